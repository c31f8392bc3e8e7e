"""Jobs that no live worker knows, where the setting `unknown_tasks` says that they fail."""

from collections.abc import Iterable, Sequence

from treadle.engines.contract import RecordStore
from treadle.engines.values import ClaimedJob
from treadle.errors import EngineError
from treadle.model.records import WorkerInfo


class Orphans:
    """Which tasks somebody knows: this worker, or another that is alive."""

    def __init__(self, engine: RecordStore, tasks: Iterable[str]) -> None:
        self._engine = engine
        self._tasks = tasks

    def known(self) -> tuple[str, ...]:
        """The tasks that some live worker runs: a job of any other is failed by the worker that claims it."""
        now = self._engine.now()
        alive = [worker for worker in self._engine.records(WorkerInfo) if worker.alive(now)]
        return tuple({*self._tasks, *(task for worker in alive for task in worker.task_names)})

    def known_now(self, claimed: Sequence[ClaimedJob]) -> set[str]:
        """Of jobs that nobody knew when they were claimed, the tasks that somebody may know now."""
        try:
            return set(self.known())
        except EngineError:  # nobody can tell: give them all back, which costs them nothing
            return {one.task for one in claimed}
