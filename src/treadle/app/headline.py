"""The first thing that an operator reads: what is wrong, since when, and what to do, in one sentence each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.app.failures import FailureGroup
from treadle.app.status import Group, Status
from treadle.model.clock import span

MINUTE = 60  # seconds
RECENT = timedelta(minutes=15)  # a failure this old is not what happens now


class Step(NamedTuple):
    """Something to do: `act` is worker, failures, pause, retry or queues; `command` does it in a terminal."""

    act: str
    text: str
    command: str
    queue: str = ""
    fingerprint: str = ""


class Headline(NamedTuple):
    """`level` is bad, warn or calm; `quote` is what the failing code said."""

    level: str
    sentence: str
    quote: str = ""
    facts: Sequence[str] = ()
    since: datetime | None = None
    steps: Sequence[Step] = ()


def headline(status: Status, failing: Sequence[FailureGroup], warnings: Sequence[str]) -> Headline:
    """The worst of what there is: nobody works, jobs fail, jobs are late, or nothing needs anybody."""
    if status.problems:
        return _nobody(status)
    recent = [group for group in failing if status.at - group.last_seen < RECENT]
    if recent:
        return _failing(max(recent, key=lambda group: group.failed + group.retrying), status)
    if warnings:
        return Headline("warn", _sentence(warnings[0]), facts=warnings[1:], since=_oldest(status.queues))
    return Headline("calm", "Nothing needs you", facts=[_done(status)])


def _nobody(status: Status) -> Headline:
    starts = Step("worker", "Start a worker for what waits", "treadle worker")
    served = {queue for worker in status.workers if not worker.stopping for queue in worker.queues}
    late = [group for group in status.queues if group.due and group.queue not in served]
    if status.workers and late:
        queue = max(late, key=lambda group: group.due).queue
        starts = Step("worker", f"Start a worker that serves {queue}", f"treadle worker --queue {queue}", queue)
    return Headline(
        "bad",
        _sentence(status.problems[0].partition(";")[0]),
        facts=[_sentence(problem) for problem in status.problems[1:]],
        since=_oldest(late or status.queues),
        steps=[starts],
    )


def _failing(group: FailureGroup, status: Status) -> Headline:
    queue = group.queues[0] if len(group.queues) == 1 else ""
    what = f"Queue {queue}" if queue else f"{group.tasks[0]}" if len(group.tasks) == 1 else f"{len(group.tasks)} tasks"
    verb = "have" if what.endswith(" tasks") else "has"
    ago = _rounded(status.at - group.first_seen)
    tally = [f"{_jobs(group.failed)} failed for good"] * bool(group.failed)
    tally += [f"{_jobs(group.retrying)} will be tried again"] * bool(group.retrying)
    steps = [Step("failures", "Read what the code said", "treadle failures", fingerprint=group.fingerprint)]
    if queue and group.retrying:
        pause = f"treadle pause --queue {queue}"
        steps.insert(0, Step("pause", f"Pause {queue}, so that no more attempts are spent", pause, queue))
    if group.failed:
        retry = f"treadle jobs retry --fingerprint {group.fingerprint}"
        steps.append(Step("retry", "Retry them when the cause is gone", retry, queue, group.fingerprint))
    return Headline(
        "bad",
        f"{what} {verb} been failing for {ago}",
        f"{group.type}: {group.message}" if group.message else group.type,
        [f"{', '.join(tally)}, of {', '.join(group.tasks)}."] if tally else [],
        group.first_seen,
        steps,
    )


def _rounded(length: timedelta) -> str:
    """A length of time in a sentence: of more than ten minutes, the seconds do not matter."""
    seconds = int(length.total_seconds())
    return span(seconds if seconds < 10 * MINUTE else seconds - seconds % MINUTE)


def _done(status: Status) -> str:
    total = status.total
    return f"{_jobs(total.succeeded)} done in the last hour, {total.running:,} running, {total.waiting:,} waiting."


def _oldest(groups: Sequence[Group]) -> datetime | None:
    return min((group.oldest for group in groups if group.oldest is not None), default=None)


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
