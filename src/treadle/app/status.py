"""An overview of the jobs: what waits, runs and has ended in the last hour, by queue and task; and who works on it."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.contract import Engine
from treadle.engines.values import Tally
from treadle.model import State
from treadle.model.records import Pause, WorkerInfo

LIMIT = 10_000  # waiting jobs of a queue, and latest ends of a state, that are read
SPAN = timedelta(hours=1)


class Group(NamedTuple):
    """The jobs of a queue, or of a task on a queue (`task` is "" for all of them).

    `waiting`, `due` and `running` are as of now, the rest is of the last hour. `more`: the queue holds more waiting
    jobs than were read, so `waiting` and `due` are at least so many, and the oldest may not be among them.
    """

    queue: str
    task: str = ""
    waiting: int = 0
    due: int = 0
    oldest: datetime | None = None  # when the longest waiting of the due jobs was due
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    more: bool = False


class ErrorGroup(NamedTuple):
    """Jobs whose last error is of one type: those that failed for good in the last hour, and those that will retry."""

    type: str
    failed: int
    retrying: int


class Status(NamedTuple):
    """What an operator wants to know first; `problems` are sentences, and without any all is well.

    `rate` is how many jobs ended, by the second. `more` are the states of which more jobs ended in the last hour than
    were read: their numbers are of the latest ends, and the rate is that of the time in which these came.
    """

    at: datetime
    queues: Sequence[Group]
    tasks: Sequence[Group]
    errors: Sequence[ErrorGroup]
    rate: float
    more: Sequence[State]
    pauses: Sequence[Pause]
    workers: Sequence[WorkerInfo]
    problems: Sequence[str]

    @property
    def total(self) -> Group:
        """All queues together."""
        return _summed(self.queues, lambda _: ("*", ""))[0] if self.queues else Group("*")


def status(engine: Engine, tenant: str | None, pauses: Sequence[Pause], *, limit: int = LIMIT) -> Status:
    """Look at a bounded part of the store. A tenant sees its own jobs, and nothing of the workers."""
    now = engine.now()
    tallies = engine.tally(since=now - SPAN, limit=limit, tenant=tenant)
    rate, more = _rate(tallies, now, limit)
    tasks = _summed([_group(tally) for tally in tallies], lambda group: (group.queue, group.task))
    full = {group.queue for group in _summed(tasks, lambda group: (group.queue, "")) if group.waiting >= limit}
    tasks = [group._replace(more=group.queue in full) for group in tasks]
    queues = _summed(tasks, lambda group: (group.queue, ""))
    workers = [] if tenant is not None else [one for one in engine.records(WorkerInfo) if one.alive(now)]
    problems = []
    if tenant is None:
        problems = [*unserved(queues, workers), *unknown(tasks, workers), *_overdue(engine, workers)]
    return Status(now, queues, tasks, _errors(tallies), rate, more, pauses, workers, problems)


def unserved(queues: Sequence[Group], workers: Sequence[WorkerInfo]) -> list[str]:
    """Where jobs are due and no live worker would take them."""
    served = {queue for worker in workers if not worker.stopping for queue in worker.queues}
    waiting = [group for group in queues if group.due and group.queue not in served]
    if not waiting:
        return []
    if not workers:
        number, more = sum(group.due for group in waiting), any(group.more for group in waiting)
        return [f"{_jobs(number, more)} due and no worker is alive; start one with `treadle worker`"]
    return [f"{_jobs(one.due, one.more)} due on queue {one.queue}, which no live worker serves" for one in waiting]


def unknown(tasks: Sequence[Group], workers: Sequence[WorkerInfo]) -> list[str]:
    """Where jobs are due on a queue that is served, and no worker of it knows their task."""
    serving = [worker for worker in workers if not worker.stopping]
    found = []
    for group in tasks:
        there = [worker for worker in serving if group.queue in worker.queues]
        if group.due and there and not any(group.task in worker.tasks for worker in there):
            found.append(f"{_jobs(group.due, group.more)} due of task {group.task}, which no live worker knows")
    return found


def _overdue(engine: Engine, workers: Sequence[WorkerInfo]) -> list[str]:
    """Schedules that nobody fires."""
    if workers or not engine.due(limit=1):
        return []
    return ["schedules are overdue and no worker is alive; start one with `treadle worker`"]


def _jobs(number: int, more: bool) -> str:
    return "1 job is" if number == 1 and not more else f"{number:,}{'+' * more} jobs are"


def _rate(tallies: Sequence[Tally], now: datetime, limit: int) -> tuple[float, list[State]]:
    """How many jobs ended by the second, and the states of which more ended than were read."""
    rate, more = 0.0, []
    for state in (state for state in State if state.final):
        ended = [tally for tally in tallies if tally.state is state]
        number, span = sum(tally.number for tally in ended), SPAN
        if number >= limit:
            more.append(state)
            span = max(now - min(tally.oldest for tally in ended), timedelta(seconds=1))
        rate += number / span.total_seconds()
    return rate, more


def _group(tally: Tally) -> Group:
    group, number = Group(tally.queue, tally.task), tally.number
    match tally.state:
        case State.PENDING:
            return group._replace(waiting=number, due=tally.due, oldest=tally.oldest if tally.due else None)
        case State.RUNNING:
            return group._replace(running=number)
        case State.SUCCEEDED:
            return group._replace(succeeded=number)
        case State.FAILED:
            return group._replace(failed=number)
        case State.CANCELLED:
            return group._replace(cancelled=number)


def _summed(groups: Iterable[Group], by: Callable[[Group], tuple[str, str]]) -> list[Group]:
    """One group for each name, in their order."""
    found: dict[tuple[str, str], Group] = {}
    for group in groups:
        one = found.get(by(group), Group(*by(group)))
        due = [moment for moment in (one.oldest, group.oldest) if moment is not None]
        found[by(group)] = Group(
            *by(group),
            one.waiting + group.waiting,
            one.due + group.due,
            min(due, default=None),
            one.running + group.running,
            one.succeeded + group.succeeded,
            one.failed + group.failed,
            one.cancelled + group.cancelled,
            one.more or group.more,
        )
    return [found[name] for name in sorted(found)]


def _errors(tallies: Sequence[Tally]) -> list[ErrorGroup]:
    """The types of errors, those that most jobs failed with first."""
    found: dict[str, ErrorGroup] = {}
    for tally in tallies:
        if tally.error or tally.state is State.FAILED:
            one = found.get(tally.error, ErrorGroup(tally.error, 0, 0))
            failed = tally.number if tally.state is State.FAILED else 0
            retrying = tally.number - failed
            found[tally.error] = ErrorGroup(tally.error, one.failed + failed, one.retrying + retrying)
    return sorted(found.values(), key=lambda one: (-one.failed, -one.retrying, one.type))
