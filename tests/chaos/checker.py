"""What must be true of a run, read from the store and from the notes of its processes: pure, nothing is run here."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from treadle.model import Event, EventKind, Job, Reason, State

INSTANT = 0.001  # seconds: the store keeps microseconds, notes are floats

PENDING, RUNNING, FINAL = "pending", "running", "final"
LEGAL = {
    PENDING: {EventKind.CLAIMED: RUNNING, EventKind.CANCELLED: FINAL},
    RUNNING: {
        EventKind.SUCCEEDED: FINAL,
        EventKind.FAILED: FINAL,
        EventKind.CANCELLED: FINAL,
        EventKind.RETRYING: PENDING,
        EventKind.SNOOZED: PENDING,
        EventKind.RELEASED: PENDING,
        EventKind.CRASHED: PENDING,
        EventKind.CANCEL_REQUESTED: RUNNING,
    },
    FINAL: {},
}
SUCCESS = (State.SUCCEEDED, None)
CRASHED = (State.FAILED, Reason.CRASHED)
ENDS = {
    "fragile": {SUCCESS, CRASHED},  # one attempt only: its crash may be held against it
    "hopeless": {(State.FAILED, Reason.PERMANENT)},
    "unwanted": {SUCCESS, (State.CANCELLED, Reason.BY_REQUEST)},
    "poison": {CRASHED},
    "poison_coroutine": {CRASHED},
}
"""How the jobs of a task may end; all others must succeed."""


class Span(NamedTuple):
    """One attempt as the audit trail tells it: the claim, and what ended it."""

    number: int
    claim: Event
    end: Event | None
    crashes_before: int

    @property
    def holder(self) -> str:
        return self.claim.actor

    def crashed(self, job: Job) -> bool:
        """Whether somebody else ended it because its lease ran out."""
        if self.end is None:
            return False
        by_holder = self.end.actor == self.holder
        match self.end.kind:
            case EventKind.CRASHED:
                return True
            case EventKind.FAILED:
                return job.reason is Reason.CRASHED
            case EventKind.CANCELLED:
                return not by_holder
            case _:
                return False

    def suspect(self, job: Job) -> bool:
        return self.crashes_before > 0 or job.max_attempts == 1


class Trail(NamedTuple):
    """A job, its audit trail and the attempts in it."""

    job: Job
    events: Sequence[Event]
    spans: Sequence[Span]


class Notes(NamedTuple):
    """What the processes wrote down."""

    intended: Mapping[str, str]  # job -> task
    acknowledged: Mapping[str, int]  # job -> how often an enqueue of this very id said it had created it
    refused: Sequence[tuple[str, str]]  # job, why
    effects: Mapping[tuple[str, int], Mapping[str, set[str]]]  # (job, attempt) -> what -> processes
    claims: Mapping[tuple[str, int], set[tuple[str, str]]]  # (job, attempt) -> (process, token)
    settles: Sequence[tuple[str, list[Any]]]
    unanswered: set[tuple[str, str, int]]  # process, job, revision
    extends: Sequence[tuple[str, list[Any]]]
    order: Mapping[str, Sequence[list[Any]]]  # process -> its start, end and broke lines as written
    seen: Mapping[tuple[str, int], float] | None  # (job, attempt) -> when a process was told of it; 0: of the job

    def began(self, job: str, attempt: int, stamp: datetime) -> float:
        """When an attempt had surely begun, or for attempt 0 the job: as the audit line says, or if lines are stamped
        long before they are written, as a process was told; infinity if none was."""
        return stamp.timestamp() if self.seen is None else self.seen.get((job, attempt), math.inf)


def gather(books: Iterable[tuple[str, list[list[Any]]]], *, stamps_first: bool = False) -> Notes:
    """Sort the lines of all processes by what they tell; `stamps_first` as a Store says."""
    intended: dict[str, str] = {}
    acknowledged: Counter[str] = Counter()
    refused: list[tuple[str, str]] = []
    effects: dict[tuple[str, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    claims: dict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)
    seen: dict[tuple[str, int], float] = {}
    settles, extends = [], []
    unanswered: set[tuple[str, str, int]] = set()
    order: dict[str, list[list[Any]]] = defaultdict(list)
    for process, lines in books:
        for line in lines:
            match line:
                case ["intend", _, job, task]:
                    intended[job] = task
                case ["ack", _, job, _, _, why] if why:
                    refused.append((job, why))
                case ["ack", when, job, held_by, created, _]:
                    acknowledged[held_by] += created and job == held_by
                    seen[held_by, 0] = min(when, seen.get((held_by, 0), when))
                case ["start" | "end" | "broke" as what, _, job, attempt, _]:
                    effects[job, attempt][what].add(process)
                    order[process].append(line)
                case ["claim", when, job, attempt, token]:
                    claims[job, attempt].add((process, token))
                    for known in (0, attempt):
                        seen[job, known] = min(when, seen.get((job, known), when))
                case ["settle", *_]:
                    settles.append((process, line))
                case ["unanswered", _, job, revision]:
                    unanswered.add((process, job, revision))
                case ["extend", *_]:
                    extends.append((process, line))
    told = seen if stamps_first else None
    return Notes(intended, acknowledged, refused, effects, claims, settles, unanswered, extends, order, told)


def trail(job: Job, events: Sequence[Event]) -> Trail:
    """Fold the events of a job into attempts."""
    spans: list[Span] = []
    crashes = 0
    for event in events:
        if event.kind is EventKind.CLAIMED:
            spans.append(Span(len(spans) + 1, event, None, crashes))
        elif event.kind is not EventKind.CANCEL_REQUESTED and spans and spans[-1].end is None:
            spans[-1] = spans[-1]._replace(end=event)
            crashes += spans[-1].crashed(job)
    return Trail(job, events, spans)


def violations(trails: Mapping[str, Trail], notes: Notes, lease: float, lag: float) -> Iterator[str]:
    """Every broken promise, a sentence each.

    `lag`: by how many seconds an audit line may be stamped too early. Workers know the time of a server only from its
    answers, and its own stamps are of a statement's arrival, before it has looked at a row.
    """
    yield from _nothing_lost(trails, notes)
    for each in trails.values():
        for problem in (*_legal(each), *_counted(each, notes), *_ended_well(each, notes), *_leased(each, lease, lag)):
            yield f"job {each.job.id} ({each.job.task}): {problem}"
    yield from _one_holder(trails, notes)
    yield from _answers_true(trails, notes)
    yield from _no_renewal_by_zombies(trails, notes, lease, lag)
    yield from _one_isolated_at_a_time(trails, notes)
    yield from _keys_kept_apart(trails, notes)


class Quiet(NamedTuple):
    """A time in which no lease may be held against its holder: nobody could renew, or was only just able to again.

    While the server is down a lease runs out unrenewed. When it is back every holder has a renewal period and a margin,
    half a lease in all, before workers who saw it away take what looks past (upkeep.py), so the bound counts from the
    end of that. It excuses no more: a lease that runs out later, or was over and taken before, counts as ever.
    """

    begin: float
    end: float


def recovery(trails: Mapping[str, Trail], held: Job, quiet: Sequence[Quiet] = ()) -> float | str:
    """Seconds from the end of a dead holder's lease until its job was claimed again, or ended by its budget.

    `held` is the job as it was found after its holder had died. What did not become of it is said in words. Quiet times
    (in order) that lie in between put the beginning off to their end.
    """
    span = _span(trails, held.id, held.attempt)
    if span is None or span.end is None or held.lease_until is None:
        return f"job {held.id}: attempt {held.attempt} of {held.worker}, who died, was never ended"
    if span.end.kind is not EventKind.CANCELLED and not span.crashed(trails[held.id].job):
        return f"job {held.id}: {span.end.actor} wrote {span.end.kind} on attempt {held.attempt}, whose holder was dead"
    following = _span(trails, held.id, held.attempt + 1)
    until = span.end.at.timestamp()
    if following is not None:  # a claim may be stamped before the write that made it possible
        until = max(until, following.claim.at.timestamp())
    since = held.lease_until.timestamp()
    for begin, end in quiet:
        if begin < until and end > since:
            since = end
    return until - since


# --------------------------------------------------------------------------------------- job by job


def _nothing_lost(trails: Mapping[str, Trail], notes: Notes) -> Iterator[str]:
    for job, created in notes.acknowledged.items():
        if job not in trails:
            yield f"job {job} was acknowledged and is lost"
        elif created > 1:
            yield f"job {job} was created {created} times"
    for job, why in notes.refused:
        yield f"job {job} was refused: {why}"
    for job in trails.keys() - notes.intended.keys():
        yield f"job {job} is in the store, but nobody enqueued it"


def _legal(trail: Trail) -> Iterator[str]:
    """The events are gapless, each may follow the one before, and the holder alone settles."""
    job, events = trail.job, trail.events
    if [event.revision for event in events] != list(range(job.revision + 1)):
        yield f"events {[event.revision for event in events]} do not lead to revision {job.revision} without a gap"
    if not events or events[0].kind is not EventKind.ENQUEUED:
        yield "its first event is not that it was enqueued"
        return
    state, holder, asked = PENDING, "", False
    for event in events[1:]:
        after = LEGAL[state].get(event.kind)
        if after is None:
            yield f"{event.kind} by {event.actor} (revision {event.revision}) may not follow, it was {state}"
            return
        by_others = event.kind in (EventKind.CRASHED, EventKind.CANCEL_REQUESTED)
        crash = event.kind is EventKind.FAILED and job.reason is Reason.CRASHED
        stopped = event.kind is EventKind.CANCELLED and asked
        if state == RUNNING and event.actor != holder and not (by_others or crash or stopped):
            yield f"zombie write: {event.actor} wrote {event.kind} (revision {event.revision}) while {holder} held it"
        if asked and event.kind not in (EventKind.SUCCEEDED, EventKind.CANCELLED, EventKind.CANCEL_REQUESTED):
            yield f"{event.kind} (revision {event.revision}) buried a cancel request"
        state, asked = after, asked or event.kind is EventKind.CANCEL_REQUESTED
        holder = event.actor if event.kind is EventKind.CLAIMED else holder
    if state != FINAL or not job.state.final:
        yield f"is not final: {job.state}, attempt {job.attempt}, worker {job.worker}"
    elif events[-1].kind.value != job.state.value:
        yield f"is {job.state} but its last event is {events[-1].kind}"


def _counted(trail: Trail, notes: Notes) -> Iterator[str]:
    """Attempts, crashes and failures are what the events say; the first crash is free, a started suspect pays."""
    job = trail.job
    crashed = [span for span in trail.spans if span.crashed(job)]
    if job.attempt != len(trail.spans):
        yield f"attempt {job.attempt}, but {len(trail.spans)} claims"
    if job.cancel_requested and job.state is State.CANCELLED and job.crashes == len(crashed) + 1:
        crashed.append(trail.spans[-1])  # its own holder had given it up, and was the one to find it
    if job.crashes != len(crashed):
        yield f"crashes {job.crashes}, but {len(crashed)} crashed attempts"
    own = sum(event.kind is EventKind.RETRYING for event in trail.events)
    own += job.state is State.FAILED and job.reason in (Reason.EXHAUSTED, Reason.TIMEOUT)
    may_pay = [span for span in crashed if span.suspect(job)]
    must_pay = [span for span in may_pay if "start" in notes.effects.get((job.id, span.number), ())]
    if not own + len(must_pay) <= job.failures <= own + len(may_pay):
        yield (
            f"failures {job.failures}: {own} of its own, {len(crashed)} crashes, of which {len(must_pay)} to "
            f"{len(may_pay)} were a started suspect's"
        )


def _ended_well(trail: Trail, notes: Notes) -> Iterator[str]:
    """It ended as its task must, and what is stored is the word of its last holder."""
    job = trail.job
    if not job.state.final:
        return
    if (job.state, job.reason) not in ENDS.get(job.task, {SUCCESS}):
        yield f"ended {job.state}({job.reason}) after {job.failures} failures, {job.crashes} crashes: {job.error}"
    last = trail.spans[-1] if trail.spans else None
    if job.state is State.SUCCEEDED and last is not None:
        if last.holder not in notes.effects.get((job.id, last.number), {}).get("end", ()):
            yield f"succeeded, but no handler of {last.holder} finished attempt {last.number}"
        if job.result != f"{last.holder}/{last.number}":
            yield f"succeeded by {last.holder}/{last.number} with the result of {job.result}"
    if job.progress is not None and last is not None and job.progress.note != f"{last.holder}/{last.number}":
        yield f"ended by {last.holder}/{last.number} with the progress of {job.progress.note}"
    if job.task.startswith("poison") and job.failures != job.max_attempts:
        yield f"poison ended after {job.failures} paid crashes, with a budget of {job.max_attempts}"


def _leased(trail: Trail, lease: float, lag: float) -> Iterator[str]:
    for span in trail.spans:
        early = lease - (span.end.at - span.claim.at).total_seconds() if span.end else 0.0
        if span.crashed(trail.job) and early > lag + INSTANT:
            yield f"attempt {span.number} was taken from {span.holder} {early:.3f} s before its lease ended"


# ---------------------------------------------------------------------------- what the workers were told


def _one_holder(trails: Mapping[str, Trail], notes: Notes) -> Iterator[str]:
    for (job, attempt), holders in notes.claims.items():
        if len(holders) > 1:
            yield f"job {job}: attempt {attempt} was given to {sorted(holders)}"
        span = _span(trails, job, attempt)
        if span is None or span.holder not in {process for process, _ in holders}:
            yield f"job {job}: {sorted(holders)} claimed attempt {attempt}, the audit trail says {span and span.holder}"
    for (job, attempt), effects in notes.effects.items():
        if len(effects["start"]) > 1:
            yield f"job {job}: attempt {attempt} was run by {sorted(effects['start'])}"


def _answers_true(trails: Mapping[str, Trail], notes: Notes) -> Iterator[str]:
    """What a worker was told it had written is in the audit trail, and what was refused is not."""
    for process, (_, _, job, attempt, revision, what, fence, outcome) in notes.settles:
        events = trails[job].events if job in trails else ()
        event = events[revision] if revision < len(events) else None
        ours = event is not None and (event.actor, event.kind) == (process, what)
        if outcome in ("applied", "already") and not ours:
            yield f"job {job}: {process} was told that {what} (attempt {attempt}) is written, it is not"
        if outcome == "refused":  # no outcome in this run gives a store reason to
            yield f"job {job}: {process} was told that {what} (attempt {attempt}) cannot be stored"
        repeated = (process, job, revision) in notes.unanswered  # and by now another's: nobody can tell whose it was
        if outcome == "lost" and ours and fence == "holder" and not repeated:
            yield f"job {job}: {process} was told that {what} (attempt {attempt}) is refused, it is written"


def _no_renewal_by_zombies(trails: Mapping[str, Trail], notes: Notes, lease: float, lag: float) -> Iterator[str]:
    attempts = {(job, token): attempt for (job, attempt), held in notes.claims.items() for _, token in held}
    for process, (_, asked, job, token, renewal, _) in notes.extends:
        number = attempts.get((job, token))
        if renewal != "renewed" or number is None:
            continue
        span, following = _span(trails, job, number), _span(trails, job, number + 1)
        if following is not None and notes.began(job, number + 1, following.claim.at) + lag + INSTANT < asked:
            yield f"job {job}: {process} renewed attempt {number} after attempt {number + 1} had begun"
        if span is None or span.end is None or not span.crashed(trails[job].job):
            continue
        early = asked + lease - span.end.at.timestamp()
        if early > lag + INSTANT:
            yield f"job {job}: attempt {number} was taken from {process} {early:.3f} s before its renewed lease ended"


def _one_isolated_at_a_time(trails: Mapping[str, Trail], notes: Notes) -> Iterator[str]:
    """A process runs one job that crashed before at a time. Jobs with one attempt only run beside each other."""
    for process, lines in notes.order.items():
        isolated: tuple[str, int] | None = None
        for what, _, job, attempt, _ in lines:
            span = _span(trails, job, attempt)
            if span is None or not span.crashes_before:
                continue
            if what == "start" and isolated is not None:
                yield f"{process} ran two jobs that crashed before at once: {isolated} and {(job, attempt)}"
            isolated = (job, attempt) if what == "start" else None


def _keys_kept_apart(trails: Mapping[str, Trail], notes: Notes) -> Iterator[str]:
    lives: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for each in trails.values():
        if each.job.key is not None and each.job.finished_at is not None:
            end = each.events[-1].at.timestamp()
            lives[each.job.key].append((min(end, notes.began(each.job.id, 0, each.events[0].at)), end, each.job.id))
    for key, spans in lives.items():
        for (_, end, one), (begin, _, other) in pairwise(sorted(spans)):
            if begin < end:
                yield f"jobs {one} and {other} were active at once under {key!r}"


def _span(trails: Mapping[str, Trail], job: str, attempt: int) -> Span | None:
    spans = trails[job].spans if job in trails else ()
    return spans[attempt - 1] if 0 < attempt <= len(spans) else None
