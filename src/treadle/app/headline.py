"""The first thing that an operator reads: what is wrong, since when, and what to do, in one sentence each."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.app.failures import FailureGroup
from treadle.app.rates import Rate
from treadle.app.status import Group, Status
from treadle.model.clock import span
from treadle.model.records import ANY, Pause

MINUTE = 60  # seconds
RECENT = timedelta(minutes=15)  # a failure this old is not what happens now


class Step(NamedTuple):
    """Something to do: `act` is worker, failures, pause, resume or retry; `command` does it in a terminal."""

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


def headline(
    status: Status, kinds: Sequence[FailureGroup], warnings: Sequence[str], rates: Sequence[Rate] = ()
) -> Headline:
    """The worst of what there is: nobody works, a queue fails, jobs are late or held back, or nothing needs anybody."""
    if status.problems:
        return _nobody(status)
    speeds = {rate.queue: rate for rate in rates}
    if failing := _failing_kinds(status, kinds, speeds):
        return _failing(max(failing, key=_size), status, speeds)
    if warnings:
        return Headline("warn", _sentence(warnings[0]), facts=warnings[1:], since=_oldest(status.queues))
    held = [(group, pause) for pause in status.pauses for group in status.queues if group.due and _holds(pause, group)]
    if held:
        return _held(*max(held, key=lambda one: one[0].due))
    return Headline("calm", "Nothing needs you", facts=[_done(status)])


def _failing_kinds(status: Status, kinds: Sequence[FailureGroup], speeds: Mapping[str, Rate]) -> list[FailureGroup]:
    """What goes wrong now on queues where no less fails than is done; a queue that is paused is seen to already."""
    recent = [kind for kind in kinds if status.at - kind.last_seen < RECENT]
    done = {group.queue: group.succeeded for group in status.queues}
    seen_to = {group.queue for group in status.queues for pause in status.pauses if _holds(pause, group)}
    bad: dict[str, int] = {}
    for kind in recent:
        for queue in kind.queues:
            bad[queue] = bad.get(queue, 0) + _size(kind)
    fails = {
        queue
        for queue, number in bad.items()
        if (speeds[queue].failing if queue in speeds else number >= done.get(queue, 0)) and queue not in seen_to
    }
    return [kind for kind in recent if fails.intersection(kind.queues)]


def _size(kind: FailureGroup) -> int:
    return kind.failed + kind.retrying


def _holds(pause: Pause, group: Group) -> bool:
    """Whether it stops the whole queue."""
    return pause.blocks(ANY, group.queue, ANY)


def _held(group: Group, pause: Pause) -> Headline:
    queue = group.queue
    command = f"treadle resume --queue {queue}" if pause.queue != ANY else "treadle resume --all"
    facts = [f"{_jobs(group.due)} {'is' if group.due == 1 else 'are'} due and held back."]
    if pause.reason:
        facts.append(f"The reason given: {pause.reason}")
    if pause.until is not None:
        facts.append(f"It ends by itself at {pause.until:%H:%M} UTC.")
    step = Step("resume", "Resume it when the cause is gone", command, queue if pause.queue != ANY else "")
    return Headline(
        "warn", f"{_sentence(pause.scope)} is paused by {pause.actor}", facts=facts, since=pause.at, steps=[step]
    )


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


def _failing(group: FailureGroup, status: Status, speeds: Mapping[str, Rate]) -> Headline:
    queue = group.queues[0] if len(group.queues) == 1 else ""
    since = (speeds[queue].failing_since if queue in speeds else None) or group.first_seen
    what = f"Queue {queue}" if queue else f"{group.tasks[0]}" if len(group.tasks) == 1 else f"{len(group.tasks)} tasks"
    verb = "have" if what.endswith(" tasks") else "has"
    ago = _rounded(status.at - since)
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
        since,
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
