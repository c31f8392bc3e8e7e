"""Schedules that code once declared and no longer does: marked, told of, and disabled if nobody says otherwise.

A worker judges only what was declared by a module of its own program. While another live worker runs that module with
other declarations, as in a rolling deploy, it waits.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from os import getpid
from socket import gethostname

from treadle.edits import Act, AuditedRecords, put
from treadle.engines.contract import RecordStore
from treadle.engines.values import Finding, ScheduleFilter
from treadle.model import EventKind
from treadle.model.records import DECLARES, GONE, RETIRED, Schedule, WorkerInfo, twin_name
from treadle.schedules.modules import can_judge, declaring
from treadle.schedules.pages import every
from treadle.schedules.rules import EXPANSION

LOOK_AGAIN = 30.0  # seconds until a worker looks again at what other workers still declare
MOST_TOLD = 20  # schedules of which `doctor` tells one by one


class Retirement:
    """One worker's part in it."""

    def __init__(
        self, engine: AuditedRecords, actor: str, declared: Sequence[Schedule], *, disable: bool, logger: logging.Logger
    ) -> None:
        self._engine = engine
        self._actor = actor
        self._declares = {(schedule.tenant, schedule.name) for schedule in declared}
        self._ours = declaring(declared)
        self._disable = disable
        self._log = logger
        self._watched: list[Schedule] | None = None
        self._look_at = 0.0

    def run_due(self) -> None:
        """Retire what no code declares any more; what others still declare is looked at again after a while."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_AGAIN
        if self._watched is None:
            self._watched = self._found()
            for schedule in self._watched:
                self._log.warning("schedule %s: module %s no longer declares it", schedule.name, schedule.declared_in)
        still = [self._looked_at(schedule) for schedule in self._watched]
        self._watched = [schedule for schedule in still if schedule is not None]

    def _found(self) -> list[Schedule]:
        """What modules of this program once declared and do not now."""
        return [
            schedule
            for schedule in every(self._engine, ScheduleFilter(declared=True))
            if (schedule.tenant, schedule.name) not in self._declares and can_judge(schedule.declared_in)
        ]

    def _looked_at(self, schedule: Schedule) -> Schedule | None:
        """The schedule as it is now, retired if it is to be; None if it needs no more looks."""
        stored = self._engine.records(Schedule, tenant=schedule.tenant, name=schedule.name)
        if not stored or stored[0].declared_in != schedule.declared_in:
            return None
        found = stored[0]
        if not found.gone and not self._declared_elsewhere(found.declared_in):
            self._retire(found)
        return found

    def _declared_elsewhere(self, module: str) -> bool:
        """Whether another live worker runs this module and declares something else than we do."""
        now, key = self._engine.now(), f"{DECLARES}{module}"
        own = {(gethostname(), getpid(), name) for name in (self._actor, twin_name(self._actor, getpid()))}
        there = self._engine.records(WorkerInfo)
        others = (one for one in there if (one.host, one.pid, one.name) not in own and one.alive(now))
        return any(key in other.tasks and other.tasks[key] != self._ours.get(key) for other in others)

    def _retire(self, schedule: Schedule) -> None:
        now = self._engine.now()
        off = self._disable and schedule.enabled
        kind = EventKind.DISABLED if off else EventKind.CHANGED
        why = f"module {schedule.declared_in} no longer declares it"
        after = schedule.evolve(
            enabled=schedule.enabled and not off,
            declared=f"{schedule.declared}{RETIRED if off else GONE}",
            updated_at=now,
        )
        if put(self._engine, after, schedule, Act(kind, now, self._actor, why)) is None:
            return
        if off:
            self._log.warning("schedule %s is disabled now: %s; delete it, or enable it", schedule.name, why)


def findings(engine: RecordStore) -> list[Finding]:
    """What an operator should know of the schedules: those that no code declares any more, and idle ones."""
    gone = engine.find_schedules(ScheduleFilter(gone=True), limit=MOST_TOLD)
    return [*(Finding("warning", _told(schedule)) for schedule in gone), *_unknown_tasks(engine)]


def _told(schedule: Schedule) -> str:
    what = "it still makes jobs" if schedule.enabled else "it is disabled"
    whose = "" if schedule.tenant == "default" else f" --tenant {schedule.tenant}"
    return (
        f"schedule {schedule.name}: module {schedule.declared_in} no longer declares it; {what}: "
        f"`treadle schedules delete {schedule.name!r}{whose}` removes it"
    )


def _unknown_tasks(engine: RecordStore) -> Iterator[Finding]:
    """Schedules whose jobs would wait for ever: no worker that is alive knows their task."""
    now = engine.now()
    alive = [worker for worker in engine.records(WorkerInfo) if worker.alive(now)]
    if not alive:
        return
    known = {task for worker in alive for task in worker.tasks}
    lost: dict[str, list[str]] = {}
    for schedule in every(engine, ScheduleFilter(enabled=True)):
        tasks = [schedule.task] if schedule.for_each is None else [schedule.task, f"{EXPANSION}{schedule.for_each}"]
        for task in tasks:
            if task not in known:
                lost.setdefault(task, []).append(schedule.name)
    for task, names in sorted(lost.items()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield Finding(
            "warning",
            f"task {task} is known to no live worker, but has schedules: {', '.join(names[:3])}{more}; start a worker "
            "that knows it, or disable them",
        )
