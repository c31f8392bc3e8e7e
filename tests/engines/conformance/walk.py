"""A random walk through the engine contract: the same acts on an engine and on the reference, every answer compared.

Workers, producers, an operator and a reaper act in random order on copies of jobs that may be long out of date,
repeat what they sent, and lose answers, while the clock jumps to just before, onto and just past the moments that
matter. Each store is walked with its own seed, and each seed leaves out some acts and favours others.

python3 dev.py walk --engine sqlite --steps 5000000 --seed 1
"""

import argparse
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from tests.engines.conformance.reference import ReferenceEngine, storable, writable
from tests.support import stores
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import (
    OVERWRITE,
    Claim,
    JobFilter,
    Lease,
    Overwrite,
    Receipt,
    Renewal,
    RenewalResult,
    Retention,
    Ruling,
    Saved,
    Turn,
    Verdict,
)
from treadle.model import (
    Change,
    Event,
    EventKind,
    Fence,
    FollowUp,
    Job,
    JobError,
    OnEnd,
    Progress,
    Reason,
    Retry,
    Scope,
    State,
    lifecycle,
)
from treadle.model.records import ANY, Pause, Record, Schedule, subject

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORKERS = ("w1", "w2", "w3", "w4")
SCOPES = (*(Scope.PENDING, Scope.ACTIVE) * 3, Scope.WINDOW, Scope.EVER)
HALF_A_CHARACTER = '"\ud800"'  # no store takes it
STEPS_PER_STORE = 5_000
STEPS_PER_CHECK = 40

REACHED = (
    "enqueue: created", "enqueue: known id", "enqueue: taken key", "enqueue: refused",
    "claim: given", "claim: nothing due", "claim: repeated", "claim: several lanes",
    "settle: applied", "settle: already", "settle: stale", "settle: lost", "settle: refused",
    "settle: value refused", "supersede: applied", "supersede: lost",
    "recover: applied", "recover: lost", "recover: refused", "expire: applied", "expire: lost",
    "cancel: applied", "cancel: lost", "request: applied", "request: lost",
    "retry: applied", "retry: lost", "retry: refused", "replace: applied", "replace: lost",
    "extend: renewed", "extend: lost", "extend: cancel requested",
    "expired: found", "prune: deleted", "prune: by task", "prune: nothing", "find", "clock",
    "pause: saved", "pause: not saved", "pause: dropped", "pause: not dropped", "claim: stopped", "claim: all stopped",
    "schedule: saved", "schedule: not saved", "schedule: dropped", "fire: created", "fire: not ours",
    "follow-up: stored", "loud line",
    *(f"outcome: {outcome.__name__}" for outcome in lifecycle.Outcome.__args__),
)  # fmt: skip
"""What a walk worth its name has met many times."""


class Difference(AssertionError):
    """The engine and the reference disagree, or the engine broke a promise."""


# ------------------------------------------------------------------------------------------ the pair


class Pair:
    """An engine beside the reference: each call goes to both, and a different answer raises Difference.

    Several engines are several processes on one store: `switch` says which one is called from now on.
    """

    def __init__(self, *engines: Engine, audit_all: bool = False) -> None:
        self.engines = engines
        self.engine = engines[0]
        self.reference = ReferenceEngine(audit_all=audit_all)
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self.recent: deque[tuple[object, ...]] = deque(maxlen=12)

    def switch(self, number: int) -> None:
        self.engine = self.engines[number % len(self.engines)]

    def enqueue(self, jobs: Sequence[Job], now: datetime) -> list[Receipt]:
        self.recent.append(("enqueue", now, jobs))
        receipts = self.engine.enqueue(jobs, now=now)
        expected = self.reference.enqueue(jobs, now=now)
        for job, receipt, wanted in zip(jobs, receipts, expected, strict=True):
            if storable(job):
                same(receipt, wanted, "receipt")
            else:  # whether the value or the key is looked at first is open
                promise(not receipt.created, "a value no store takes was taken:", receipt)
            if receipt.created:
                self.ledger.created(receipt.job)
            self.counts[f"enqueue: {_fate(job, receipt)}"] += 1
        return receipts

    def turn(self, changes: Sequence[Change], claim: Claim | None, now: datetime) -> Turn:
        self.recent.append(("turn", now, changes, claim))
        turn = self.engine.turn(changes, claim, now=now)
        given = {job.id for job in turn.jobs}
        known = {change.follow.id for change in changes if change.follow and change.follow.id in self.reference.jobs}
        expected = self.reference.turn(changes, claim, now=now, prefer=given)
        for change, verdict, wanted in zip(changes, turn.verdicts, expected.verdicts, strict=True):
            self._judge(change, verdict, wanted, given)
            if verdict.ruling is Ruling.APPLIED and change.follow is not None and change.follow.id not in known:
                self.ledger.created(change.follow)
                self.counts["follow-up: stored"] += 1
            self.counts["loud line"] += verdict.ruling is Ruling.APPLIED and change.always_audited
        # Between lanes the order is the engine's own affair.
        same(_by_lane(turn.jobs), _by_lane(expected.jobs), "jobs claimed")
        same(turn.now, expected.now, "the store's time")
        if claim is not None:
            repeated = self.ledger.claimed(turn.jobs, claim)
            self.counts["claim: repeated" if repeated else "claim: given" if turn.jobs else "claim: nothing due"] += 1
            self.counts["claim: several lanes"] += len(_by_lane(turn.jobs)) > 1
            stopped = self.reference.stopped(claim, now)
            self.counts["claim: stopped"] += stopped > 0
            self.counts["claim: all stopped"] += stopped > 0 and not turn.jobs
        return turn

    def _judge(self, change: Change, verdict: Verdict, wanted: Verdict, given: set[str]) -> None:
        kind, outcome = kind_of(change), verdict.ruling
        if writable(change):
            same(outcome, wanted.ruling, f"verdict on {kind}")
            same(verdict.holder, wanted.holder, "holder of the key")
            # What this very turn claimed may be shown as it was before or after.
            if outcome in (Ruling.ALREADY, Ruling.STALE, Ruling.LOST) and change.before.id not in given:
                same(verdict.job, wanted.job, f"job beside {outcome}")
            self.counts[f"{kind}: {outcome.value}"] += 1
        else:  # whether the value or the fence is looked at first is open
            promise(outcome is not Ruling.APPLIED, "a value no store takes was applied:", change)
            self.counts[f"{kind}: value refused"] += outcome is Ruling.REFUSED
        self.ledger.told(change, outcome)

    def extend(self, holds: Sequence[Lease], lease: float, now: datetime) -> list[RenewalResult]:
        self.recent.append(("extend", now, holds, lease))
        answers = self.engine.extend(holds, lease=lease, now=now)
        same(answers, self.reference.extend(holds, lease=lease, now=now), "renewals")
        for held in answers:
            self.counts[f"extend: {held.renewal.value}"] += 1
            self.counts["extend: cancel requested"] += held.cancel_requested
        return answers

    def expired(self, limit: int, now: datetime) -> list[Job]:
        self.recent.append(("expired", now, limit))
        found = self.engine.expired(limit=limit, now=now)
        wanted = {job.id: job for job in self.reference.expired(limit=sys.maxsize, now=now)}
        same(len({job.id for job in found}), min(limit, len(wanted)), "number of jobs expired")
        same(found, [wanted.get(job.id) for job in found], "jobs expired")  # which come first is open
        self.counts["expired: found"] += len(found)
        return found

    def prune(self, keep: Retention, limit: int, now: datetime) -> int:
        self.recent.append(("prune", now, keep, limit))
        deleted = self.engine.prune(keep, limit=limit, now=now)
        ids = list(self.reference.jobs)
        gone = {id_ for id_, job in zip(ids, self.engine.get(ids), strict=True) if job is None}
        # Where tasks are kept apart an engine walks over what stays, and need not find all of the rest at once.
        enough = limit if not keep.tasks else len(gone)
        same(deleted, self.reference.prune(keep, limit=enough, now=now, prefer=gone), "number of jobs pruned")
        same(gone, set(ids) - set(self.reference.jobs), "jobs pruned")
        promise(deleted <= limit, "pruned, and allowed:", deleted, limit)
        self.counts["prune: deleted" if deleted else "prune: nothing"] += 1
        self.counts["prune: by task"] += bool(deleted and keep.tasks)
        return deleted

    def save(
        self,
        record: Record,
        before: Record | Overwrite | None,
        now: datetime,
        event: Event | None = None,
        job: Job | None = None,
    ) -> Saved:
        self.recent.append(("save", now, record, before, job))
        saved = self.engine.save(record, before=before, event=event, job=job, now=now)
        expected = self.reference.save(record, before=before, event=event, job=job, now=now)
        same(saved.done, expected.done, "saved")
        same(saved.receipt is None, expected.receipt is None, "receipt")
        kind = type(record).__name__.lower()
        self.counts[f"{kind}: saved" if saved.done else f"{kind}: not saved"] += 1
        if job is not None:
            self._received(job, saved.receipt, expected.receipt)
        return saved

    def _received(self, job: Job, receipt: Receipt | None, wanted: Receipt | None) -> None:
        """What became of the job of a tick."""
        if receipt is None or wanted is None:
            self.counts["fire: not ours"] += 1
            return
        if storable(job):
            same(receipt, wanted, "receipt of a tick")
        else:
            promise(not receipt.created, "a value no store takes was taken:", receipt)
        if receipt.created:
            self.ledger.created(receipt.job)
        self.counts[f"fire: {_fate(job, receipt)}"] += 1

    def drop(self, record: Record, event: Event | None = None) -> bool:
        self.recent.append(("drop", record))
        dropped = self.engine.drop(record, event=event)
        same(dropped, self.reference.drop(record, event=event), "dropped")
        self.counts[f"{type(record).__name__.lower()}: {'dropped' if dropped else 'not dropped'}"] += 1
        return dropped

    def records(self, kind: type[Any]) -> list[Any]:
        found = self.engine.records(kind)
        same(found, self.reference.records(kind), f"records of {kind.__name__}")
        return found

    def due(self, limit: int, ahead: float, now: datetime) -> list[Schedule]:
        self.recent.append(("due", now, limit, ahead))
        found = self.engine.due(limit=limit, ahead=ahead, now=now)
        until = now + timedelta(seconds=ahead)
        wanted = [one for one in self.reference.records(Schedule) if one.enabled and (one.next_at or now) <= until]
        same(len(found), min(limit, len(wanted)), "number of schedules due")
        first = sorted(one.next_at or datetime.min.replace(tzinfo=UTC) for one in wanted)[: len(found)]
        same([one.next_at or datetime.min.replace(tzinfo=UTC) for one in found], first, "when they are due")
        promise(all(one in wanted for one in found), "due, and should not be:", found)
        return found

    def find(self, where: JobFilter, limit: int) -> list[Job]:
        self.recent.append(("find", where, limit))
        found: list[Job] = []
        cursor = None
        while True:
            page = self.engine.find(where, limit=limit, cursor=cursor)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
            promise(len(page.jobs) == limit, "a page that is not the last is not full")
        same(found, self.reference.find(where), f"jobs found by {where}")
        same(self.engine.count(where), self.reference.count(where), f"count by {where}")
        self.counts["find"] += 1
        return found

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        found = self.engine.get(ids)
        same(found, self.reference.get(ids), "jobs")
        return found

    def check(self, trails: int = sys.maxsize) -> None:
        """Compare the whole state, the trails of the newest `trails` jobs, and what the ledger has seen."""
        self.recent.append(("check",))
        jobs = self.find(JobFilter(), limit=1000)
        self.ledger.compare(jobs)
        records = [*self.records(Pause), *self.records(Schedule)]
        for id_ in [*(job.id for job in jobs[:trails]), *(subject(record) for record in records[:trails])]:
            same(self.engine.events(id_), self.reference.events(id_), f"events of {id_}")


class Ledger:
    """What the engine's own answers oblige it to, kept without the reference's help."""

    def __init__(self) -> None:
        self.revisions: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.final: set[str] = set()
        self.asked: set[str] = set()  # running jobs with a cancel request
        self.holders: dict[str, str] = {}  # job -> token
        self.settled: set[tuple[str, str | None, int]] = set()  # job, token, revision after

    def created(self, job: Job) -> None:
        self.revisions[job.id] = self.attempts[job.id] = 0
        self.final.discard(job.id)

    def claimed(self, jobs: Sequence[Job], claim: Claim) -> bool:
        """Whether the answer repeats an earlier one; otherwise nobody may hold what was given."""
        held = {id_ for id_, token in self.holders.items() if token == claim.token}
        if held:
            promise({job.id for job in jobs} == held, "a repeated claim holds and was answered", held, jobs)
            return True
        for job in jobs:
            promise(job.id not in self.holders, "held by another, and given again:", job)
            promise(job.id not in self.final, "ended, and given:", job)
            self.holders[job.id] = claim.token
            self.revisions[job.id] += 1
            self.attempts[job.id] += 1
        return False

    def told(self, change: Change, outcome: Ruling) -> None:
        """A holder may only be told of its own writes, and may only decide again on what it still holds."""
        ours = (change.before.id, change.before.lease_token, change.after.revision)
        match outcome:
            case Ruling.APPLIED:
                self._applied(change)
                if change.fence is Fence.HOLDER:
                    self.settled.add(ours)
            case Ruling.ALREADY:
                promise(ours in self.settled, "already there, and never written:", change)
            case Ruling.STALE:
                promise(self.holders.get(ours[0]) == ours[1], "stale, and not held:", change)

    def _applied(self, change: Change) -> None:
        id_, token = change.before.id, self.holders.get(change.before.id)
        match change.fence:
            case Fence.HOLDER | Fence.RECOVERY:
                promise(
                    token == change.before.lease_token, "held under this token, written by that change:", token, change
                )
                promise(id_ not in self.asked or change.after.state.final, "a cancel request was buried by", change)
                del self.holders[id_]
                self.asked.discard(id_)
            case Fence.RUNNING:
                promise(token is not None, "not running, and asked to stop by", change)
                self.asked.add(id_)
            case Fence.REVISION:
                promise(token is None, "held under this token, written by that change:", token, change)
        promise((id_ in self.final) == (change.kind is EventKind.RETRIED), "final is final, except by a retry:", change)
        (self.final.add if change.after.state.final else self.final.discard)(id_)
        self.revisions[id_] += 1

    def compare(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            seen = (job.revision, job.attempt, job.state.final)
            told = (self.revisions[job.id], self.attempts[job.id], job.id in self.final)
            promise(seen == told, "(revision, attempt, final) as seen, as the answers amount to:", seen, told, job)
            holder = job.lease_token if job.state is State.RUNNING else None
            promise(holder == self.holders.get(job.id), "held under another token than was given:", job)
            promise(
                job.state is not State.RUNNING or job.cancel_requested == (job.id in self.asked),
                "the cancel request of",
                job,
            )


def promise(kept: bool, broken: str, *values: object) -> None:
    if not kept:
        raise Difference("\n  ".join([broken, *map(str, values)]))


def same(answer: object, expected: object, what: str) -> None:
    if answer != expected:
        raise Difference("\n  ".join([f"{what}:", *_differences("", answer, expected)]))


def _differences(place: str, answer: Any, expected: Any) -> list[str]:
    """Only what differs, for people who have a screen and not all day."""
    if answer == expected:
        return []
    if type(answer) is type(expected) and isinstance(answer, tuple | list | dict) and len(answer) == len(expected):
        if hasattr(answer, "_asdict"):
            place = f"{place} {answer[0]}" if isinstance(answer[0], str) else place
            answer, expected = answer._asdict(), expected._asdict()
        if not isinstance(answer, dict):
            answer, expected = dict(enumerate(answer)), dict(enumerate(expected))
        if answer.keys() == expected.keys():
            return [event for name in answer for event in _differences(f"{place}.{name}", answer[name], expected[name])]
    return [f"{place} engine    {answer}", f"{place} reference {expected}"]


def kind_of(change: Change) -> str:
    """Who writes: the rows of the compare table."""
    match change.fence, change.kind:
        case _, EventKind.SUPERSEDED | EventKind.RETRIED | EventKind.REPLACED | EventKind.EXPIRED:
            names = {"superseded": "supersede", "retried": "retry", "replaced": "replace", "expired": "expire"}
            return names[change.kind]
        case Fence.HOLDER, _:
            return "settle"
        case Fence.RECOVERY, _:
            return "recover"
        case Fence.RUNNING, _:
            return "request"
    return "cancel"


def _fate(job: Job, receipt: Receipt) -> str:
    if receipt.refused:
        return "refused"
    if receipt.created:
        return "created"
    return "known id" if receipt.job.id == job.id else "taken key"


def _by_lane(jobs: Sequence[Job]) -> dict[tuple[str, str], list[Job]]:
    lanes: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        lanes.setdefault((job.queue, job.lane), []).append(job)
    return lanes


# ------------------------------------------------------------------------------------------ the walk


class Walk:
    """The actors, what they remember, and the die they roll."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.rng = Random(seed)
        self.now = START
        self.copies: dict[str, list[Job]] = {worker: [] for worker in WORKERS}  # of jobs each once held
        self.sent: deque[tuple[Sequence[Change], Claim | None]] = deque(maxlen=12)
        self.asked_for: deque[list[Job]] = deque(maxlen=8)  # enqueued before, perhaps again
        self.readings: deque[Job] = deque(maxlen=12)  # the operator's
        self.found_expired: deque[Job] = deque(maxlen=8)  # the reaper's
        self.replaceable: deque[tuple[Job, Job]] = deque(maxlen=6)  # who holds the key, who wants it
        self.seen: deque[Any] = deque(maxlen=8)  # schedules and pauses as somebody read them
        self.acts_told = 0  # so that no two lines of a record are the same
        self._draw_the_swarm()

    def _draw_the_swarm(self) -> None:
        """Leave some acts out and favour others, so that rare company is met in some seed."""
        roll = self.rng
        usual: dict[Callable[[], bool], float] = {
            self.clock: 12, self.enqueue: 12, self.claim: 14, self.settle: 16, self.extend: 8, self.repeat_turn: 5,
            self.enqueue_again: 2, self.replace: 4, self.look_for_expired: 5, self.recover: 7, self.read: 4,
            self.cancel: 5, self.retry: 6, self.mixed: 6, self.prune: 2, self.find: 2,
            self.pause: 1.5, self.resume: 3, self.tick: 3, self.edit: 1.5,
        }  # fmt: skip
        needed = (self.clock, self.enqueue, self.claim, self.settle, self.look_for_expired, self.recover, self.prune)
        needed += (self.resume,)
        self.acts = list(usual)
        self.weights = [
            weight * roll.choice((0.3, 1, 1, 2)) if act in needed or roll.random() < 0.85 else 0.0
            for act, weight in usual.items()
        ]
        self.population = roll.choice((4, 8, 14, 24))  # jobs alive, about
        self.keyed = roll.choice((0.1, 0.5, 0.9))
        self.distracted = roll.choice((0.1, 0.4, 0.7))  # act on an old copy, keep one after the end, lose an answer
        self.lease = roll.choice((1.0, 5.0, 30.0))
        self.lanes = roll.choice((("",), ("", "a"), ("a", "b", "c")))
        self.queues = roll.choice((("default",), ("default", "mail")))
        self.tasks = roll.choice((("greet",), ("greet", "render")))
        self.tenants = roll.choice((("default",), ("default", "acme"), ("default", "acme", "zeta")))
        self.followed = roll.choice((0.0, 0.3, 0.6))
        self.stopped = roll.choice((1, 2, 4))  # pauses at once
        self.brief = roll.choice((0.5, 0.9))  # of them, how many are over by themselves

    def step(self) -> str:
        """One act that could be done; its name."""
        self.pair.switch(self.rng.randrange(4) // 3)
        while True:
            [act] = self.rng.choices(self.acts, self.weights)
            if act():
                return act.__name__

    # -------------------------------------------------------------------------------- producers

    def enqueue(self) -> bool:
        alive = sum(not job.state.final for job in self.pair.reference.jobs.values())
        if alive >= self.population:
            return False
        self._enqueue([self._new_job() for _ in range(self.rng.choice((1, 1, 2, 4)))])
        return True

    def enqueue_again(self) -> bool:
        """The answer was lost, or the producer is not sure."""
        if not self.asked_for:
            return False
        self._enqueue(self.rng.choice(self.asked_for))
        return True

    def _enqueue(self, jobs: list[Job]) -> None:
        # Whether a window that was over before its job arrived keeps away others of the same call is open.
        jobs = [job for job in jobs if job.key_until is None or job.key_until > self.now] or jobs[:1]
        receipts = self.pair.enqueue(jobs, self.now)
        self.asked_for.append(jobs)
        for job, receipt in zip(jobs, receipts, strict=True):
            if receipt.created:
                self._forget(job.id)
            if not receipt.created and receipt.job.id != job.id:
                self.replaceable.append((receipt.job, job))
            elif not receipt.refused and self._chance(0.2):
                self.readings.append(receipt.job)

    def _forget(self, id_: str) -> None:
        """An id that was pruned and enqueued again begins at revision 0, so old readings would pass for new ones.

        Old leases must not: zombies of the former job stay and are refused by their token alone.
        """
        self.readings = deque((job for job in self.readings if job.id != id_), self.readings.maxlen)
        leased = (job for job in self.found_expired if job.id != id_ or job.state is State.RUNNING)
        self.found_expired = deque(leased, self.found_expired.maxlen)
        self.replaceable = deque((two for two in self.replaceable if two[0].id != id_), self.replaceable.maxlen)
        tokened = (
            turn
            for turn in self.sent
            if not any(change.before.id == id_ and change.fence is Fence.REVISION for change in turn[0])
        )
        self.sent = deque(tokened, self.sent.maxlen)

    def _new_job(self) -> Job:
        roll = self.rng
        scope = roll.choice(SCOPES) if self._chance(self.keyed) else None
        sent_at = self.now + timedelta(seconds=roll.choice((0, 0, 0, -2, 2)))  # a producer's clock may be wrong
        return Job(
            id=self._new_id(),
            task=roll.choice(self.tasks),
            task_version=roll.choice((1, 1, 1, 2)),
            payload_json=HALF_A_CHARACTER if self._chance(0.01) else f'{{"n":{roll.randrange(100)}}}',
            created_at=sent_at,
            due_at=sent_at + timedelta(seconds=roll.choice((0, 0, 0, 0, 1, 5, 20, -3))),
            tenant=roll.choice(self.tenants),
            queue=roll.choice(self.queues),
            lane=roll.choice(self.lanes),
            priority=roll.choice((0, 0, 0, 1, 5, -1)),
            retry=Retry(
                roll.choice((1, 2, 3)), roll.choice((0.0, 2.0)), roll.choice((None, 3.0)), roll.choice((0, 1.0))
            ),
            timeout=roll.choice((None, 60.0)),
            expires_at=self.now + timedelta(seconds=roll.choice((0, 3, 15))) if self._chance(0.15) else None,
            # A key kept for ever is lost to the walk, so most of those are names of their own.
            key=None if scope is None else f"e{roll.randrange(50)}" if scope is Scope.EVER else roll.choice("klm"),
            key_scope=scope,
            key_until=self.now + timedelta(seconds=roll.choice((0, 4, 20))) if scope is Scope.WINDOW else None,
            schedule=roll.choice((None, None, "hourly")),
            on_end=OnEnd(self._follow_up(), self._follow_up()) if self._chance(self.followed) else None,
            trace=roll.choice((None, None, f"00-{roll.randrange(1, 9):032x}-{roll.randrange(1, 9):016x}-01")),
        )

    def _follow_up(self) -> FollowUp | None:
        roll = self.rng
        if self._chance(0.2):
            return None
        return FollowUp(
            event=roll.choice(("", "SENT")), task=roll.choice(("", *self.tasks)), queue=roll.choice(self.queues),
            priority=roll.choice((0, 9)), version=roll.choice((1, 2)),
        )  # fmt: skip

    def _new_id(self) -> str:
        """A UUIDv7 of the walk's own time and die; within a millisecond the order is random."""
        stamp = f"{int(self.now.timestamp() * 1000):012x}"
        low = f"{self.rng.getrandbits(62) | 1 << 63:016x}"
        return f"{stamp[:8]}-{stamp[8:]}-7{self.rng.getrandbits(12):03x}-{low[:4]}-{low[4:]}"

    def replace(self) -> bool:
        return self._send(self._replacements())

    def _replacements(self) -> list[Change]:
        if not self.replaceable:
            return []
        first, wanted = self.rng.choice(self.replaceable)
        [first] = self._as_it_is_now([first])
        if first.state is not State.PENDING or not storable(wanted):
            return []
        return [lifecycle.replace(first, wanted, self.now, actor="producer")]

    # ---------------------------------------------------------------------------------- workers

    def claim(self) -> bool:
        self._turn([], self._new_claim())
        return True

    def _new_claim(self) -> Claim:
        roll = self.rng
        return Claim(
            token=f"t{roll.getrandbits(48):012x}",
            worker=roll.choice(WORKERS),
            limit=roll.choice((0, 1, 1, 1, 2, 2, 3, 3, 5, 50)),
            lease=self.lease,
            queues=roll.choice((self.queues, self.queues[:1])),
            lanes=roll.choice((None, self.lanes[:1], self.lanes[-1:], self.lanes * 2)),
            tasks=roll.choice((None, None, self.tasks[-1:])),
            versions=roll.choice(({}, {}, {"greet": 1}, {"greet": 1, "render": 2})),
            unless=roll.choice(((), (), (), self.tasks[:1], ("nothing",))),
        )

    def settle(self) -> bool:
        return self._send(self._settlements(), self._new_claim() if self._chance(0.3) else None)

    def _settlements(self) -> list[Change]:
        copies = self.copies[self.rng.choice(WORKERS)]
        chosen = self.rng.sample(copies, min(len(copies), self.rng.choice((1, 1, 2, 4))))
        return [self._settlement(job) for job in chosen]

    def _settlement(self, job: Job) -> Change:
        outcome = self._outcome(job)
        self.pair.counts[f"outcome: {type(outcome).__name__}"] += 1
        return lifecycle.settle(job, outcome, self.now, noise=self.rng.random())

    def _outcome(self, job: Job) -> lifecycle.Outcome:
        roll = self.rng
        message = "half \ud800" if self._chance(0.02) else roll.choice(("boom", "Ünglück ☂"))
        error = JobError("RuntimeError", message, "Traceback", job.attempt, self.now.isoformat())
        return roll.choice(
            (
                lifecycle.Succeeded(roll.choice((None, '{"ok":true}', '"\\u00fc"'))),
                lifecycle.Failed(error),
                lifecycle.Failed(error, delay=roll.choice((0.0, 2.5))),
                lifecycle.TimedOut(error),
                lifecycle.FailedForGood(roll.choice((Reason.PERMANENT, Reason.UNKNOWN_TASK)), error),
                lifecycle.Snoozed(roll.choice((0.0, 1.0, 10.0))),
                lifecycle.Released(),
                lifecycle.Stopped("enough"),
            )
        )

    def extend(self) -> bool:
        copies = self.copies[self.rng.choice(WORKERS)]
        if not copies:
            return False
        chosen = self.rng.sample(copies, self.rng.randint(1, len(copies)))
        # One job under two tokens is a worker beside its own zombie; under one token it is named once.
        chosen = list({(job.id, job.lease_token): job for job in chosen}.values())
        tellings = [self._telling(job) for job in chosen]
        answers = self.pair.extend([hold for _, hold in tellings], self.lease, self.now)
        for (job, hold), held in zip(tellings, answers, strict=True):
            if held.renewal is Renewal.LOST and not self._chance(self.distracted):
                copies.remove(job)
            elif held.renewal is Renewal.RENEWED and not self._chance(self.distracted):
                told = {
                    name: value for name, value in hold._asdict().items() if name in Job._fields and value is not None
                }
                copies[copies.index(job)] = job.evolve(**told)
        return True

    def _telling(self, job: Job) -> tuple[Job, Lease]:
        roll = self.rng
        return job, Lease(
            job.id,
            job.lease_token or "",
            started_at=roll.choice((None, self.now, job.started_at)),
            progress=roll.choice((None, None, Progress(0.5, "half way"), Progress(1.0))),
            cost_micros=roll.choice((None, None, job.cost_micros + 7)),
        )

    def repeat_turn(self) -> bool:
        """The very same turn again: its answer was lost, or it was slow to arrive."""
        if not self.sent:
            return False
        self._turn(*self.rng.choice(self.sent))
        return True

    # --------------------------------------------------------------- the reaper and the operator

    def look_for_expired(self) -> bool:
        ahead = timedelta(seconds=self.rng.choice((0, 0, 3)))  # the reaper's clock may be wrong
        self.found_expired += self.pair.expired(self.rng.choice((1, 3, 100)), self.now + ahead)
        return True

    def recover(self) -> bool:
        return self._send(self._recoveries())

    def _recoveries(self) -> list[Change]:
        chosen = self.rng.sample(self.found_expired, min(len(self.found_expired), self.rng.choice((1, 2, 3))))
        return [
            lifecycle.crash(job, self.now, actor="reaper")
            if job.state is State.RUNNING
            else lifecycle.expire(job, self.now, actor="reaper")
            for job in chosen
        ]

    def read(self) -> bool:
        if not self.pair.reference.jobs:
            return False
        [job] = self.pair.get([self.rng.choice(list(self.pair.reference.jobs))])
        self.readings.append(job)
        return True

    def cancel(self) -> bool:
        return self._send(self._cancellations())

    def _cancellations(self) -> list[Change]:
        return [
            lifecycle.cancel(job, self.now, actor="operator", note="not needed")
            for job in self._some_readings()
            if not job.state.final
        ]

    def retry(self) -> bool:
        return self._send(self._retries())

    def _retries(self) -> list[Change]:
        return [
            lifecycle.retry(job, self.now, actor="operator", keep_attempts=self._chance(0.4))
            for job in self._some_readings()
            if job.state in (State.FAILED, State.CANCELLED)
        ]

    def _some_readings(self) -> list[Job]:
        chosen = self.rng.sample(self.readings, min(len(self.readings), self.rng.choice((1, 3, 6))))
        return self._as_it_is_now(chosen)

    def _as_it_is_now(self, jobs: list[Job]) -> list[Job]:
        """Look again before acting, unless distracted."""
        if self._chance(self.distracted):
            return jobs
        return [now or job for now, job in zip(self.pair.get([job.id for job in jobs]), jobs, strict=True)]

    # ------------------------------------------------------------------- the rows beside the jobs

    def pause(self) -> bool:
        """Somebody shuts the gate, or changes a pause that somebody read."""
        roll = self.rng
        pauses = self.pair.reference.records(Pause)
        scope = [roll.choice((ANY, *names)) for names in (self.tenants, self.queues, self.tasks)]
        if pauses and (len(pauses) >= self.stopped or self._chance(0.3)):
            scope = roll.choice(pauses)[:3]
        until = self.now + timedelta(seconds=roll.choice((0, 1, 5, 20))) if self._chance(self.brief) else None
        pause = Pause(*scope, actor="operator", reason="busy ☂", at=self.now, until=until)
        read = next((one for one in self._seen(Pause) if one[:3] == pause[:3]), None)
        before = roll.choice((None, None, read, read, OVERWRITE))
        if isinstance(before, Pause):
            pause = pause.evolve(revision=before.revision + 1)
        self.pair.save(pause, before, self.now, event=self._line(pause, EventKind.PAUSED))
        self.seen.append(pause)
        return True

    def resume(self) -> bool:
        """Somebody opens the gate; the pause may have been changed since it was read."""
        known = self._seen(Pause)
        if not known:
            return False
        pause = self.rng.choice(known)
        self.pair.drop(pause, event=self._line(pause, EventKind.RESUMED))
        return True

    def _seen(self, kind: type[Any]) -> list[Any]:
        """Records as they are now or, when distracted, as they were once read."""
        if self._chance(self.distracted) and any(isinstance(one, kind) for one in self.seen):
            return [one for one in self.seen if isinstance(one, kind)]
        found = self.pair.records(kind)
        self.seen += found[:2]
        return found

    def _line(self, record: Record, what: EventKind) -> Event | None:
        self.acts_told += 1
        if self._chance(0.3):
            return None
        return Event(subject(record), self.acts_told, self.now, what, "operator", "why ☂", record.tenant)

    def tick(self) -> bool:
        """A worker makes the job of a schedule that it saw due, perhaps long ago."""
        roll = self.rng
        due = [one for one in self._seen(Schedule) if one.next_at is None or one.next_at <= self.now]
        if self._chance(0.5):
            due = self.pair.due(roll.choice((1, 5)), roll.choice((0.0, 0.0, 10.0)), self.now)
        if not due:
            return False
        schedule = roll.choice(due)
        later = self.now + timedelta(seconds=roll.choice((1, 4, 15)))
        after = schedule.evolve(next_at=later, last_at=schedule.next_at, revision=schedule.revision + 1)
        job = self._new_job() if self._chance(0.8) else None
        if job is not None and job.key_until is not None and job.key_until <= self.now:
            job = job.evolve(key=None, key_scope=None, key_until=None)
        saved = self.pair.save(after, schedule, self.now, event=self._line(after, EventKind.CHANGED), job=job)
        if saved.receipt is not None and saved.receipt.created:
            self._forget(saved.receipt.job.id)
        return True

    def edit(self) -> bool:
        """Somebody makes, switches, moves or drops a schedule; by hand, without a new revision, too."""
        roll = self.rng
        name, tenant = roll.choice(("hourly", "daily")), roll.choice(self.tenants)
        read = next((one for one in self._seen(Schedule) if (one.name, one.tenant) == (name, tenant)), None)
        next_at = roll.choice((None, self.now, self.now + timedelta(seconds=roll.choice((1, 5)))))
        if read is None:
            made = Schedule(name, roll.choice(self.tasks), self.now, tenant, every=60.0, next_at=next_at)
            self.pair.save(made, None, self.now, event=self._line(made, EventKind.CREATED))
            return True
        if self._chance(0.15):
            self.pair.drop(read, event=self._line(read, EventKind.DELETED))
            return True
        after = read.evolve(enabled=self._chance(0.7), next_at=next_at)
        before: Record | Overwrite = OVERWRITE
        if self._chance(0.6):
            after, before = after.evolve(revision=read.revision + 1), read
        self.pair.save(after, before, self.now, event=self._line(after, EventKind.CHANGED))
        return True

    # --------------------------------------------------------------------------- turns and time

    def mixed(self) -> bool:
        """A worker's turn also carries the upkeep it did meanwhile."""
        sources = (self._settlements, self._recoveries, self._cancellations, self._retries, self._replacements)
        changes = [change for source in self.rng.sample(sources, 3) for change in source()]
        return self._send(changes, self._new_claim() if self._chance(0.7) else None)

    def _send(self, changes: list[Change], claim: Claim | None = None) -> bool:
        one_a_job = list({change.before.id: change for change in changes}.values())
        if not one_a_job:
            return False
        self._turn(one_a_job, claim)
        return True

    def _turn(self, changes: Sequence[Change], claim: Claim | None) -> None:
        turn = self.pair.turn(changes, claim, self.now)
        self.sent.append((changes, claim))
        if self._chance(self.distracted / 3):
            return  # the answer was lost
        if claim is not None:
            self.copies[claim.worker] = (self.copies[claim.worker] + turn.jobs)[-10:]
        again = [self._follow(change, verdict) for change, verdict in zip(changes, turn.verdicts, strict=True)]
        self._send([change for change in again if change is not None])

    def _follow(self, change: Change, verdict: Verdict) -> Change | None:
        """What a writer does about its verdict: let go, decide again, or give way to the holder of the key."""
        holder = change.fence is Fence.HOLDER
        memory = self.copies[change.actor] if holder else self.found_expired
        match verdict.ruling:
            case Ruling.APPLIED | Ruling.ALREADY | Ruling.LOST:
                if change.before in memory and not self._chance(self.distracted):
                    memory.remove(change.before)
            case Ruling.STALE:
                if change.before in memory:
                    memory[memory.index(change.before)] = verdict.job
                if self._chance(0.7):
                    return self._settlement(verdict.job)
            case Ruling.REFUSED if verdict.holder and (holder or change.fence is Fence.RECOVERY):
                giving_way = lifecycle.supersede(change, self.now)
                self.sent += [([giving_way], None)] * 4  # later, or once more
                if not self._chance(self.distracted):
                    return giving_way
            case Ruling.BUSY:
                raise Difference("one thread, and something is busy")
        return None

    def clock(self) -> bool:
        """Move on a little, or to just before, onto or just past a moment that matters."""
        moments = [
            moment
            for job in self.pair.reference.jobs.values()
            for moment in (job.lease_until, job.due_at, job.expires_at, job.key_until)
            if moment is not None and moment > self.now
        ]
        pauses = (pause.until for pause in self.pair.reference.records(Pause))
        moments += [until for until in pauses if until is not None and until > self.now] * 3
        if moments and self._chance(0.6):
            moment = self.rng.choice(moments) + timedelta(microseconds=self.rng.choice((-1, 0, 0, 1)))
        else:
            moment = self.now + timedelta(milliseconds=self.rng.choice((1, 50, 500, 2_000, 12_000)))
        self.now = max(self.now, moment)
        self.pair.counts["clock"] += 1
        return True

    def prune(self) -> bool:
        ages = (timedelta(), timedelta(seconds=5), timedelta(seconds=30))
        states = self.rng.sample([state for state in State if state.final], self.rng.choice((1, 3, 3)))
        keep = Retention({state: self.rng.choice(ages) for state in states})
        if self._chance(0.3):
            own = {state: self.rng.choice((None, *ages)) for state in self.rng.sample(states, 1)}
            keep = keep._replace(tasks={self.rng.choice(self.tasks): own})
        self.pair.prune(keep, self.rng.choice((1, 5, 100)), self.now)
        return True

    def find(self) -> bool:
        roll = self.rng
        where = JobFilter(
            state=roll.choice((None, *State)),
            task=roll.choice((None, None, *self.tasks)),
            queue=roll.choice((None, None, *self.queues)),
            tenant=roll.choice((None, None, *self.tenants)),
            key=roll.choice((None, None, None, "k")),
        )
        self.pair.find(where, limit=roll.choice((1, 3, 50)))
        return True

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability


# ------------------------------------------------------------------------------------- walking it


def walk(kind: str, seed: int, steps: int = STEPS_PER_STORE) -> Counter[str]:
    """Walk a fresh store; what was met, how often. Raises Difference naming the seed and the step."""
    audit_all = Random(-seed).random() < 0.5
    with tempfile.TemporaryDirectory() as folder, stores.fresh_store(kind, Path(folder)) as store:
        url = f"{store}?synchronous=normal" if kind == "sqlite" else store  # it need not survive a power cut
        engines = [connect(url, clock=lambda: START, audit_all=audit_all) for _ in range(2)]
        try:
            return _walk(Pair(*engines, audit_all=audit_all), seed, steps)
        finally:
            for engine in engines:
                engine.close()


def _walk(pair: Pair, seed: int, steps: int) -> Counter[str]:
    walk = Walk(pair, seed)
    step = 0
    try:
        for step in range(1, steps + 1):
            walk.step()
            if step % STEPS_PER_CHECK == 0:
                pair.check(trails=8)
        pair.check()
    except Exception as error:
        acts = "\n".join(f"  {' '.join(map(_short, act))}" for act in pair.recent)
        said = error if isinstance(error, Difference) else f"{type(error).__name__}: {error}"
        told = f"seed {seed}, step {step}, in {pair.recent[-1][0]}: {said}\nthe last acts, newest last:\n{acts}"
        raise Difference(told.encode(errors="backslashreplace").decode()) from error
    return pair.counts


def _short(value: Any) -> str:
    """A value as a line of a trace."""
    match value:
        case Change():
            before, after = value.before, value.after
            return (
                f"[{value.kind} {before.id[-4:]} by {value.actor}: {before.state}@{before.revision}"
                f" -> {after.state}@{after.revision}, token {before.lease_token}, key {before.key} {before.key_scope}]"
            )
        case Job():
            return f"[{value.id[-4:]} key {value.key} {value.key_scope}]"
        case Schedule():
            on = "on" if value.enabled else "off"
            return f"[schedule {value.tenant} {value.name}@{value.revision} {on}, next {_short(value.next_at)}]"
        case Pause():
            return f"[pause of {value.scope}@{value.revision} until {_short(value.until)}]"
        case datetime():
            return f"+{(value - START).total_seconds()}s"
        case list():
            return " ".join(map(_short, value))
    return str(value)


def table(counts: Counter[str]) -> str:
    """The counts, three to a line."""
    cells = [f"{name:<24}{counts[name]:>9,}" for name in sorted(counts)]
    return "\n".join("   ".join(cells[at : at + 3]) for at in range(0, len(cells), 3))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted({*stores.KINDS, *stores.DYNAMO}), default="sqlite")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first store; the next ones count on")
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    done, seed, started = 0, given.seed, time.monotonic()
    while done < given.steps:
        steps = min(STEPS_PER_STORE, given.steps - done)
        try:
            counts += walk(given.engine, seed, steps)
        except Difference as difference:
            print(f"DIFFERENT after {done:,} steps and more\n{difference}")
            return 1
        done, seed = done + steps, seed + 1
        if done % 100_000 < STEPS_PER_STORE or done == given.steps:
            pace = done / (time.monotonic() - started)
            print(f"{done:>12,} steps, {pace:,.0f} a second, seeds {given.seed}-{seed - 1}: no difference", flush=True)
    print(table(counts))
    unmet = [name for name in REACHED if not counts[name]]
    print(f"never met: {', '.join(unmet)}" if unmet else "every act and every verdict was met")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
