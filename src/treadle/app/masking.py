"""What people are shown of payloads: without what is secret in them.

The code of a task says what that is. A process that does not have it asks the live workers. If none of them knows the
task either, nobody can say what is secret, and payload and result are hidden as a whole.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.app.store import Store
from treadle.errors import EngineError
from treadle.model import Event, Job, JobError, Progress
from treadle.model.records import Schedule, WorkerInfo
from treadle.schedules.rules import EXPANSION
from treadle.tasks.definition import Definition
from treadle.tasks.secrets import EVERYTHING, MASK, NO_SECRETS, Secrets, hide, marked

if TYPE_CHECKING:
    from treadle.app.operations import Operations

FRESH = 2.0  # seconds for which the list of live workers is believed


class Masking:
    """Hides what is secret in the jobs and schedules of a store; `known` are the tasks whose code is here."""

    def __init__(self, known: Mapping[str, Definition], store: Store) -> None:
        self._known = known
        self._store = store
        self._workers: tuple[float, Sequence[WorkerInfo]] = (float("-inf"), ())

    def job(self, job: Job) -> Job:
        """The job as people may see it: its payload without secrets, and all other texts without their values."""
        payload = job.payload
        secrets = self.secrets(job.task, payload)
        if not secrets.paths:
            return job
        values = [] if secrets is EVERYTHING else secrets.values(payload)
        result = job.result_json
        if result is not None:
            result = _text(MASK if secrets is EVERYTHING else _without(job.result, values))
        return job.evolve(
            payload_json=_text(secrets.hidden(payload)),
            result_json=result,
            error=_error(job.error, values),
            progress=job.progress and Progress(job.progress.fraction, hide(job.progress.note, values)),
        )

    def schedule(self, schedule: Schedule) -> Schedule:
        """The schedule as people may see it."""
        return schedule.evolve(payload=self.secrets(schedule.task, schedule.payload).hidden(schedule.payload))

    def text(self, job: Job, text: str) -> str:
        """A text about a job, without the values that are secret in its payload."""
        return hide(text, self.secrets(job.task, job.payload).values(job.payload))

    def events(self, job: Job, events: Iterable[Event]) -> list[Event]:
        """The audit events of a job, without the values that are secret in its payload."""
        secrets = self.secrets(job.task, job.payload)
        values = [] if secrets is EVERYTHING else secrets.values(job.payload)
        return [event._replace(note=hide(event.note, values)) for event in events]

    def restored(self, job: Job, payload: Any) -> Any:
        """A payload that somebody has edited as it was shown: where it still has MASK, the secret stays."""
        return self.secrets(job.task, job.payload).restored(payload, job.payload)

    def secrets(self, task: str, payload: Any) -> Secrets:
        """What is secret in a payload of this task; EVERYTHING if nobody can say."""
        if not task.startswith(EXPANSION):
            return self._of(task)
        try:  # the job that makes one of every row holds the payload of its schedule
            return self._of(str(payload["schedule"]["task"])).below("schedule", "payload")
        except (TypeError, LookupError):
            return EVERYTHING

    def _of(self, task: str) -> Secrets:
        definition = self._known.get(task)
        if definition is not None:
            return definition.payload.secrets
        knowing = [worker.tasks for worker in self._alive() if task in worker.tasks]
        if knowing:
            paths = [path for tasks in knowing for path in marked(tasks, task).paths]
            return Secrets(tuple(dict.fromkeys(paths))) if paths else NO_SECRETS
        return NO_SECRETS if self._store.settings.unknown_payloads == "show" else EVERYTHING

    def _alive(self) -> Sequence[WorkerInfo]:
        read_at, workers = self._workers
        if time.monotonic() - read_at > FRESH:
            engine = self._store.engine
            try:
                now = engine.now()
                workers = [worker for worker in engine.records(WorkerInfo) if worker.alive(now)]
            except EngineError:  # a role that may not see them
                workers = ()
            self._workers = (time.monotonic(), workers)
        return workers


def secret_values(app: "Operations", job: Job) -> list[str]:
    """The texts and numbers that are secret in the payload of a job."""
    return app._masking.secrets(job.task, job.payload).values(job.payload)


def masked_text(app: "Operations", job: Job, text: str) -> str:
    """A text about a job, such as an error's message, without what is secret in its payload."""
    return app._masking.text(job, text)


def _text(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _without(data: Any, values: Sequence[str]) -> Any:
    """The same data without these values in its texts."""
    if isinstance(data, dict):
        return {hide(key, values): _without(item, values) for key, item in data.items()}
    if isinstance(data, list):
        return [_without(item, values) for item in data]
    if isinstance(data, str):
        return hide(data, values)
    return MASK if not isinstance(data, bool) and data is not None and str(data) in values else data


def _error(error: JobError | None, values: Sequence[str]) -> JobError | None:
    if error is None:
        return None
    return error._replace(message=hide(error.message, values), traceback=hide(error.traceback, values))
