"""Thousands of operations on a DynamoDB that throttles, conflicts, fails and loses answers, and every promise checked.

python3 dev.py faults --operations 10000 --seed 1 --threads 6 --server dynoxide

Each thread has an engine of its own behind the fault layer and is a producer, a worker, its renewal, a reaper and an
operator by turns; what it asked and what it was told goes into a book. All share one clock, which moves with every
reading and runs far ahead of the machine's, so leases run out at any point of a call. Now and then the threads stand
still and the table is looked at with nothing in between; at the end it is drained and compared with the book.

Two thirds of the operations are audited in full. The rest leave routine events out, as treadle does unless told
otherwise: then a claim is a plain conditional write, and no token of a transaction tells the server of a repetition.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random, randrange
from typing import Any, NamedTuple, TypeVar

from tests.support import dynamo_servers, stores
from tests.support.faults_dynamodb import FaultLayer, Order
from treadle.engines import connect
from treadle.engines.dynamodb import claim, client, enqueue, leases, parking, scan, schema, settle
from treadle.engines.dynamodb.audit import event_from, marker_key
from treadle.engines.dynamodb.engine import DynamoEngine
from treadle.engines.dynamodb.items import (
    Item,
    ItemKey,
    cost_key,
    ended_key,
    expiry_key,
    key_of,
    plain,
    pointed_key,
    unique_key,
)
from treadle.engines.values import OVERWRITE, Claim, JobFilter, Lease, Receipt, Renewal, Ruling, Turn, Verdict
from treadle.errors import EngineUnavailable
from treadle.model import (
    Change,
    Event,
    EventKind,
    Fence,
    Job,
    JobError,
    Progress,
    Reason,
    Retry,
    Scope,
    State,
    lifecycle,
    new_id,
)
from treadle.model.records import Pause

T = TypeVar("T")

LEASE = 30.0  # seconds of the shared clock
PACE = 0.3  # seconds that it moves with each operation, on average
POPULATION = 80  # jobs alive, about
REPEATS = 8  # of an operation without an answer, before its actor counts as dead
ROUND = 2_500  # operations between two looks at the table
SHOWN = 20  # violations printed
QUEUES = ("default", "mail")
SCOPES = (*(Scope.PENDING, Scope.ACTIVE) * 3, Scope.WINDOW, Scope.EVER)


class Clock:
    """One for all; no two readings are the same, so the time of a change is its name."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self.advance(0.000001)

    def advance(self, seconds: float) -> datetime:
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now


# ---------------------------------------------------------------------------------------- the weather


USUAL = {
    "conflict": 0.04, "RequestLimitExceeded": 0.01, "ThrottlingException": 0.01,
    "ProvisionedThroughputExceededException": 0.01, "500": 0.01, "503": 0.01, "500 after it was applied": 0.01,
    "503 after it was applied": 0.01, "lost request": 0.01, "lost answer": 0.02,
}  # fmt: skip
"""Which share of all requests meets it."""
SEASONS = {  # how often they come, and what they bring
    "usual": (10, USUAL),
    "throttled": (1, USUAL | {"ThrottlingException": 0.3, "RequestLimitExceeded": 0.1}),
    "contended": (1, USUAL | {"conflict": 0.5}),
    "failing": (1, USUAL | {"500": 0.1, "503": 0.1, "500 after it was applied": 0.15}),
    "losing": (2, USUAL | {"lost answer": 0.3, "lost request": 0.1}),
    "losing and throttled": (1, USUAL | {"lost answer": 0.3, "ThrottlingException": 0.4}),
    "narrow": (2, USUAL),
    "away": (0.5, {"503": 1.0}),
}


class Weather:
    """What goes wrong, and how often: a kind of trouble for a while, then another."""

    def __init__(self, layer: FaultLayer, seed: int) -> None:
        self._layer, self._dice = layer, Random(seed)
        self._orders: list[tuple[str, Order]] = []
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._over.clear()
        changing = threading.Thread(target=self._change, name="weather", daemon=True)
        changing.start()
        yield
        self._over.set()
        changing.join()
        self._layer.calm()

    def met(self) -> dict[str, int]:
        """How many requests met each kind of trouble."""
        met = Counter[str]()
        for name, order in self._orders:
            met[name] += order.count
        met["throttled by a partition's limit"] = self._layer.count(fault="throttled")
        met["stale read"] = self._layer.count(fault="stale")
        return dict(met)

    def _change(self) -> None:
        names, weights = list(SEASONS), [weight for weight, _ in SEASONS.values()]
        while not self._over.is_set():
            [season] = self._dice.choices(names, weights)
            self._layer.calm()
            for name, chance in SEASONS[season][1].items():
                self._orders.append((name, self._order(name, chance)))
            self._layer.lag(5.0, indexes_only=False)  # for whoever does not ask for a consistent read
            if season == "narrow":
                self._layer.limit_partitions(write=self._dice.choice((10, 40)), read=400, burst=0.5)
            self._over.wait(0.9 if season == "away" else self._dice.uniform(0.1, 0.5))

    def _order(self, name: str, chance: float) -> Order:
        match name.split(" ", 1):
            case ["conflict"]:
                return self._layer.conflict(chance=chance)
            case ["lost", what]:
                return self._layer.lose(applied=what == "answer", chance=chance)
            case ["500" | "503" as status, *applied]:
                return self._layer.fail(status=int(status), applied=bool(applied), chance=chance)  # type: ignore[arg-type]
        return self._layer.refuse(name, chance=chance)


@contextmanager
def impatience(patience: float = 0.5, briefly: float = 0.2, longest_pause: float = 0.1) -> Iterator[None]:
    """Engines that give up soon, and park unknown jobs early, so that a run sees much of both."""
    wanted = {
        "retry_for": patience,
        "RETRY_FOR": patience,
        "SHORT_RETRY": briefly,
        "BACKOFF": client.BACKOFF._replace(longest=longest_pause),
        "MAX_UNPARKED": 3,
    }
    modules = [
        vars(module) for module in (claim, client, enqueue, leases, parking, scan, settle)
    ]  # each has its own copy of a constant
    defaults = [getattr(function, "__kwdefaults__", None) or {} for function in vars(client.Client).values()]
    before = [(where, name, where[name]) for where in (*modules, *defaults) for name in wanted if name in where]
    assert {name for _, name, _ in before} == wanted.keys(), "a constant has another name now"
    for where, name, _ in before:
        where[name] = wanted[name]
    try:
        yield
    finally:
        for where, name, value in before:
            where[name] = value


# ------------------------------------------------------------------------------------------- the book


class Stored(NamedTuple):
    """An enqueue of one job; no receipt: no answer."""

    job: Job
    receipt: Receipt | None


class Sent(NamedTuple):
    """A change, sent once; no ruling: no answer. The times are of the shared clock, just before and just after."""

    change: Change
    ruling: Ruling | None
    begin: datetime
    end: datetime


class Wish(NamedTuple):
    """A claim and the jobs it was told of in the end, if it was; `unsure` if it had to be sent again."""

    claim: Claim
    jobs: Sequence[Job] | None
    unsure: bool
    end: datetime


class Beat(NamedTuple):
    """A lease that was to be renewed; no renewal: no answer."""

    hold: Lease
    renewal: Renewal | None
    begin: datetime
    end: datetime


class Book:
    """What the actors asked and what they were told."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.sent: list[Sent] = []
        self.wishes: list[Wish] = []
        self.beats: list[Beat] = []
        self.counts: Counter[str] = Counter()
        self.strange: list[str] = []
        self._lock = threading.Lock()

    def count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)


# ------------------------------------------------------------------------------------------ the actors


class Actor:
    """A process: its engine, what it holds and remembers, and the die it rolls."""

    def __init__(self, name: str, engine: DynamoEngine, clock: Clock, book: Book, ids: list[str], seed: str) -> None:
        self.name, self.engine = name, engine
        self.held: dict[str, Job] = {}
        self.zombies: list[Job] = []  # held once
        self._clock, self._book, self._ids, self._dice = clock, book, ids, Random(seed)
        self._found: list[Job] = []  # past their lease when it looked
        self._readings: list[Job] = []
        self.eye: DynamoEngine | None = None  # who has one may pause
        self._replaceable: list[tuple[Job, Job]] = []  # who has the key, who wants it
        self._serial = 0

    def act(self, crew: Sequence["Actor"]) -> None:
        neighbour = self._dice.choice(crew)
        alive = self._book.counts["created"] - self._book.counts["ended"]
        acts: dict[Callable[[], None], float] = {
            self.enqueue: 25 if alive < POPULATION else 2,
            self.work: 40,
            self.keep: 10,
            neighbour.keep: 4,  # lease renewal is another thread of the same process
            lambda: self.reap(neighbour): 10,
            self.operate: 12,
            self.replace: 6,
            self.intrude: 4,
            self.pause: 4 if self.eye is not None else 0,
        }
        [act] = self._dice.choices(list(acts), list(acts.values()))
        self._clock.advance(self._dice.expovariate(1 / PACE))
        act()

    # ------------------------------------------------------------------------------------- producer

    def enqueue(self) -> None:
        self.store([self._new_job() for _ in range(self._dice.choice((1, 1, 1, 2, 2, 5, 30)))])

    def store(self, jobs: list[Job]) -> None:
        """Enqueue until there is an answer."""
        receipts = None
        for _ in range(REPEATS):
            receipts = self._ask("enqueue", lambda: self.engine.enqueue(jobs))
            answers = receipts or [None] * len(jobs)
            self._book.stored += [Stored(job, receipt) for job, receipt in zip(jobs, answers, strict=True)]
            if receipts is not None or self._chance(0.1):
                break
        for job, receipt in zip(jobs, receipts or (), strict=False):
            self._ids.append(receipt.job.id)
            self._book.count("created" if receipt.created else "existing")
            if not receipt.created and receipt.job.id != job.id:
                self._replaceable = [*self._replaceable[-5:], (receipt.job, job)]

    def _new_job(self) -> Job:
        roll, now = self._dice, self._clock.now()
        scope = roll.choice(SCOPES) if self._chance(0.4) else None
        queue = roll.choice(QUEUES)
        self._serial += 1
        return Job(
            id=new_id(),
            task=roll.choice(("greet", "greet", "render")),
            payload_json=f'{{"by":"{self.name}/{self._serial}"{self._padding()}}}',
            created_at=now,
            due_at=now + timedelta(seconds=roll.choice((0, 0, 0, 0, 5, 20))),
            tenant=roll.choice(("default", "acme")) if scope else "default",
            queue=queue,
            lane="" if queue == "default" else roll.choice(("", "a", f"lane {roll.randrange(5)}")),
            priority=0 if queue == "default" else roll.choice((0, 0, 5)),
            retry=Retry(roll.choice((1, 2, 3)), roll.choice((0.0, 2.0)), 3.0, 0.0),
            expires_at=now + timedelta(seconds=roll.choice((3, 15, 60))) if self._chance(0.15) else None,
            key=None if scope is None else f"e{roll.randrange(50)}" if scope is Scope.EVER else roll.choice("klmn"),
            key_scope=scope,
            key_until=now + timedelta(seconds=roll.choice((4, 20))) if scope is Scope.WINDOW else None,
        )

    def _padding(self) -> str:
        """Seldom, enough for an item of its own."""
        return f',"much":"{"x" * 5000}"' if self._chance(0.03) else ""

    def replace(self) -> None:
        if self._replaceable:
            first, wanted = self._replaceable.pop()
            [first] = self._ask("get", lambda: self.engine.get([first.id])) or [first]
            if first is not None and first.state is State.PENDING:
                self.turn([lifecycle.replace(first, wanted, self._clock.now(), actor=self._pen("producer"))])

    # --------------------------------------------------------------------------------------- worker

    def work(self) -> None:
        """Settle some of what it holds, or held once, and claim more."""
        chosen = self._some(self.held.values(), 4)
        if self._chance(0.15):
            chosen += self._some(self.zombies, 2)
        changes = [self._settlement(job) for job in {job.id: job for job in chosen}.values()]
        claim = self._new_claim() if len(self.held) < 12 and self._chance(0.8) else None
        if changes or claim:
            self.turn(changes, claim)

    def _new_claim(self) -> Claim:
        return Claim(
            token=new_id(),
            worker=self._pen(self.name),
            limit=self._dice.choice((1, 2, 3, 5, 20)),
            lease=LEASE,
            queues=self._dice.choice((QUEUES, QUEUES, QUEUES[:1], QUEUES[1:])),
            lanes=self._dice.choice((None, None, None, ("", "a"))),
            tasks=self._dice.choice((None, None, None, None, ("greet",))),
        )

    def _settlement(self, job: Job) -> Change:
        now = self._clock.now()
        error = JobError("RuntimeError", f"boom of {job.worker}", "Traceback", job.attempt, now.isoformat())
        succeeded = lifecycle.Succeeded(f'{{"by":"{job.worker}"{self._padding()}}}')
        outcome = self._dice.choice(
            (
                succeeded,
                succeeded,
                succeeded,
                lifecycle.Failed(error),
                lifecycle.Failed(error, delay=self._dice.choice((0.0, 2.5))),
                lifecycle.TimedOut(error),
                lifecycle.FailedForGood(Reason.PERMANENT, error),
                lifecycle.Snoozed(self._dice.choice((0.0, 1.0, 10.0))),
                lifecycle.Released(),
                lifecycle.Stopped("enough"),
            )
        )
        return lifecycle.settle(job, outcome, now)

    def keep(self) -> None:
        """Lease renewal."""
        jobs = list(self.held.values()) + (self._some(self.zombies, 2) if self._chance(0.2) else [])
        if not jobs:
            return
        now = self._clock.now()
        holds = [
            Lease(job.id, job.lease_token or "", started_at=job.started_at or now, progress=Progress(0.5, self.name))
            for job in {job.id: job for job in jobs}.values()
        ]
        answers = self._ask("extend", lambda: self.engine.extend(holds, lease=LEASE))
        end = self._clock.now()
        for hold, held in zip(holds, answers or [None] * len(holds), strict=True):
            self._book.beats.append(Beat(hold, held and held.renewal, now, end))
            self._book.count(f"extend: {held.renewal.value if held else 'no answer'}")
            job = self.held.get(hold.job_id)
            if held is None or job is None or job.lease_token != hold.token:
                continue
            if held.renewal is Renewal.LOST:
                self._let_go(job)
            elif held.renewal is Renewal.RENEWED:
                self.held[job.id] = job.evolve(started_at=hold.started_at, progress=hold.progress)

    # -------------------------------------------------------------------------- reaper and operator

    def reap(self, late: "Actor | None" = None) -> None:
        """Recover what is past its lease; if that is meanwhile renewed by one who comes `late`, it must be in vain."""
        found = self._ask("expired", lambda: self.engine.expired(limit=20)) or []
        old = self._some(self._found, 3) if self._chance(0.2) else []
        self._found = (self._found + found)[-20:]
        if found and late and self._chance(0.3):
            late.keep()
            self.keep()
        now = self._clock.now()
        self.turn([self._end_of(job, now) for job in {job.id: job for job in (*found, *old)}.values()])

    def _end_of(self, job: Job, now: datetime) -> Change:
        if job.state is State.RUNNING:
            return lifecycle.crash(job, now, actor=self._pen("reaper"))
        return lifecycle.expire(job, now, actor=self._pen("reaper"))

    def operate(self) -> None:
        """Cancel what has not ended and retry some of the rest; now and then by an old reading."""
        if not self._ids:
            return
        chosen = [self._dice.choice(self._ids[-200:]) for _ in range(2)]
        read = [job for job in self._ask("get", lambda: self.engine.get(chosen)) or [] if job]
        old = self._some(self._readings, 2) if self._chance(0.3) else []
        self._readings = (self._readings + read)[-10:]
        now = self._clock.now()
        changes = []
        for job in {job.id: job for job in (*read, *old)}.values():
            if job.state in (State.FAILED, State.CANCELLED):
                changes.append(lifecycle.retry(job, now, actor=self._pen("operator")))
            elif not job.state.final and self._chance(0.4):
                changes.append(lifecycle.cancel(job, now, actor=self._pen("operator"), note="not needed"))
        self.turn(changes)

    def intrude(self) -> None:
        """Settle what another holds, by a token that was never given: only that can tell it from the holder."""
        running = [job for job in self._readings if job.state is State.RUNNING]
        ours = [job.evolve(lease_token=new_id(), worker=self._pen("intruder")) for job in self._some(running, 2)]
        self.turn([self._settlement(job) for job in {job.id: job for job in ours}.values()])

    def pause(self) -> None:
        """Stop some jobs for a while: of those, none may begin to run once it is told that they are stopped."""
        scopes = ({"queue": "mail"}, {"tenant": "acme"}, {"task": "render"}, {"queue": "default", "task": "greet"})
        pause = Pause(**self._dice.choice(scopes), actor=self._pen("operator"))
        for _ in range(REPEATS):
            if self._ask("pause", lambda: self.engine.save(pause, before=OVERWRITE)) is not None:
                before = self._running(pause)
                for _ in range(self._dice.randint(0, 3)):
                    self.work()
                late = self._running(pause) - before
                self._book.count("pause: saved", *["pause: broken"] * len(late))
                self._book.strange += [f"job {id_} was claimed although {pause.scope} was paused" for id_, _ in late]
                break
        self.eye.drop(pause)

    def _running(self, pause: Pause) -> set[tuple[str, int]]:
        jobs = self.eye.find(JobFilter(state=State.RUNNING), limit=1000).jobs
        return {(job.id, job.attempt) for job in jobs if pause.blocks(job.tenant, job.queue, job.task)}

    # ---------------------------------------------------------------------------------------- turns

    def turn(self, changes: Sequence[Change], claim: Claim | None = None) -> None:
        """Take the very same turn until there is an answer, as the worker does, or die."""
        if not changes and claim is None:
            return
        turn: Turn | None = None
        unsure = False
        for _ in range(REPEATS):
            begin = self._clock.now()
            turn = self._ask("turn", lambda: self.engine.turn(changes, claim))
            end = self._clock.now()
            rulings = [verdict.ruling for verdict in turn.verdicts] if turn else [None] * len(changes)
            for change, ruling in zip(changes, rulings, strict=True):
                self._book.sent.append(Sent(change, ruling, begin, end))
                self._book.count(f"{WRITERS[change.fence]}: {ruling.value if ruling else 'no answer'}")
            if turn is not None or self._chance(0.1):
                break
            unsure = True
            time.sleep(self._dice.uniform(0.0, 0.1))
        if claim is not None:
            self._book.wishes.append(Wish(claim, turn and turn.jobs, unsure, end))
            self._book.count(*["claim: a job"] * len(turn.jobs) if turn else ["claim: no answer"])
        if turn is None:
            self.held.clear()
            return
        self.held |= {job.id: job for job in turn.jobs}
        self.turn([after for pair in zip(changes, turn.verdicts, strict=True) if (after := self._follow(*pair))])

    def _follow(self, change: Change, verdict: Verdict) -> Change | None:
        """What a writer does about its verdict: let go, decide again, or give way to the holder of the key."""
        job = self.held.get(change.before.id)
        ours = job is not None and job.lease_token == change.before.lease_token and change.fence is Fence.HOLDER
        match verdict.ruling:
            case Ruling.APPLIED | Ruling.ALREADY | Ruling.LOST:
                if verdict.ruling is Ruling.APPLIED:
                    self._book.counts["ended"] += change.after.state.final - change.before.state.final
                if ours:
                    self._let_go(job)
            case Ruling.STALE if ours:
                self.held[change.before.id] = verdict.job
                return self._settlement(verdict.job)
            case Ruling.REFUSED if verdict.holder and change.fence in (Fence.HOLDER, Fence.RECOVERY):
                return lifecycle.supersede(change, self._clock.now())
            case Ruling.REFUSED if not verdict.holder:
                self._book.strange.append(f"job {change.before.id}: {change.kind} was refused: {verdict.why}")
            case Ruling.STALE | Ruling.BUSY | Ruling.REFUSED:
                pass
        return None

    def _let_go(self, job: Job) -> None:
        del self.held[job.id]
        if self._chance(0.2):
            self.zombies = [*self.zombies[-8:], job]

    def _ask(self, what: str, call: Callable[[], T]) -> T | None:
        """The answer, or None if there was none."""
        self._book.count("operations", what)
        try:
            return call()
        except EngineUnavailable as error:
            self._book.count(f"unavailable: {what}")
            if "repeating is safe" not in str(error):
                self._book.strange.append(f"{what}: an error that does not say what to do: {error}")
        return None

    def _pen(self, role: str) -> str:
        """A name that is used once, so that an audit line tells which call wrote it."""
        self._serial += 1
        return f"{role} {self.name}/{self._serial}"

    def _some(self, jobs: Iterable[Job], most: int) -> list[Job]:
        jobs = list(jobs)
        return self._dice.sample(jobs, min(len(jobs), self._dice.randint(0, most)))

    def _chance(self, probability: float) -> bool:
        return self._dice.random() < probability


WRITERS = {Fence.HOLDER: "settle", Fence.RECOVERY: "recover", Fence.REVISION: "operate", Fence.RUNNING: "request"}


# ----------------------------------------------------------------------------- the table, as it lies there


class Seen(NamedTuple):
    """Every item of the table, read past the engine, and the jobs as the engine reads them."""

    items: dict[ItemKey, Item]
    jobs: dict[str, Job]
    trails: dict[str, list[Event]]
    now: datetime

    def under(self, prefix: str) -> dict[ItemKey, Item]:
        return {place: item for place, item in self.items.items() if place.pk.startswith(prefix)}


def look(engine: DynamoEngine, now: datetime) -> Seen:
    items: dict[ItemKey, Item] = {}
    body: dict[str, Any] = {"TableName": engine.client.table, "ConsistentRead": True}
    while True:
        reply = engine.client.call("Scan", body)
        items |= {key_of(item): item for item in reply["Items"]}
        if "LastEvaluatedKey" not in reply:
            break
        body["ExclusiveStartKey"] = reply["LastEvaluatedKey"]
    ids = [place.sk for place in items if place.pk.startswith("id#")]
    trails: dict[str, list[Event]] = defaultdict(list)
    for place in sorted(place for place in items if place.pk.startswith("events#")):
        trails[place.pk.partition("#")[2]].append(event_from(items[place]))
    return Seen(items, {job.id: job for job in engine.get(ids) if job}, dict(trails), now)


def disorder(seen: Seen, spread: int) -> Iterator[str]:
    """Everything that lies where it should not, or does not lie where it should."""
    kinds = (
        "job", "id#", "key#", "events#", "unsealed#", "large#", "failed#", "cancelled#", "expires#", "cost", "slots",
        "gate#", "pauses", "meta",
    )  # fmt: skip
    for place in seen.items:
        if not place.pk.startswith(kinds):
            yield f"nobody knows what {place} is"
    yield from _ids_and_due_items(seen)
    yield from _lists(seen, spread)
    yield from _keys(seen)
    for place in (*seen.under("events#"), *seen.under("large#")):
        if place.pk.partition("#")[2] not in seen.jobs:
            yield f"{place} belongs to no job"


def _ids_and_due_items(seen: Seen) -> Iterator[str]:
    homes, due = seen.under("id#"), seen.under("job")
    pointers = {pointed_key(home) for home in homes.values()}
    for place, home in homes.items():
        there = pointed_key(home)
        if place.sk not in seen.jobs:
            yield f"job {place.sk} has an id and cannot be read"
        if there is not None and there not in due:
            yield f"job {place.sk} is said to be at {there}, where nothing is"
        if there is None and not State(home["status"]["S"]).final:
            yield f"job {place.sk} is {home['status']['S']} in its record"
    slots = {place.sk for place in seen.under("slots")}
    for place, item in due.items():
        if place not in pointers:
            yield f"{place} is no job's: {plain(item)}"
        elif item["status"]["S"] not in ("pending", "running"):
            yield f"{place} is due and {item['status']['S']}"
        if place.pk != "job" and place.pk.removeprefix("job#").rpartition("#")[0] not in slots:
            yield f"{place} is in a slot that no claim knows of"


def _lists(seen: Seen, spread: int) -> Iterator[str]:
    wanted = {ended_key(job, spread) for job in seen.jobs.values() if job.state in (State.FAILED, State.CANCELLED)}
    wanted |= {expiry_key(job, spread) for job in seen.jobs.values() if job.expires_at and not job.state.final}
    wanted |= {cost_key(job, spread) for job in seen.jobs.values() if job.cost_micros > 0 and job.state.final}
    wanted |= {marker_key(line, spread) for trail in seen.trails.values() for line in trail}
    lists = ("failed#", "cancelled#", "expires#", "cost#", "unsealed#")
    there = {place for kind in lists for place in seen.under(kind)}
    for place in there - wanted:
        job = seen.jobs.get(place.sk.rpartition("#")[2])
        yield f"the line {place} is left over: the job is {job and job.state}"
    for place in wanted - there:
        yield f"the line {place} is missing"


def _keys(seen: Seen) -> Iterator[str]:
    holders = {place: item["job"]["S"] for place, item in seen.under("key#").items()}
    for place, holder in holders.items():
        job = seen.jobs.get(holder)
        if job is None or job.key is None or job.key_scope is None or _key(job) != place:
            yield f"{place} is held by {holder}, who has no such key"
        elif not job.key_scope.covers(job.state):
            yield f"{place} is held by {holder}, {job.state}, though its scope is {job.key_scope}"
    for job in seen.jobs.values():
        if job.key is not None and job.key_scope is not None and holders.get(_key(job)) != job.id:
            is_over = job.key_until is not None and job.key_until <= seen.now
            if job.key_scope.covers(job.state) and not is_over:
                holder = holders.get(_key(job))
                yield f"job {job.id} is {job.state} without its key {job.key} ({job.key_scope}), {holder} has it"


def _key(job: Job) -> ItemKey:
    return unique_key(job.tenant, job.task, job.key or "")


# ------------------------------------------------------------------------------- the table against the book

LEGAL = {
    State.PENDING: {
        EventKind.CLAIMED: State.RUNNING,
        EventKind.REPLACED: State.PENDING,
        EventKind.CANCELLED: State.CANCELLED,
        EventKind.EXPIRED: State.CANCELLED,
    },
    State.RUNNING: {
        EventKind.SUCCEEDED: State.SUCCEEDED,
        EventKind.FAILED: State.FAILED,
        EventKind.CANCELLED: State.CANCELLED,
        EventKind.SUPERSEDED: State.CANCELLED,
        EventKind.RETRYING: State.PENDING,
        EventKind.SNOOZED: State.PENDING,
        EventKind.RELEASED: State.PENDING,
        EventKind.CRASHED: State.PENDING,
        EventKind.CANCEL_REQUESTED: State.RUNNING,
    },
    State.SUCCEEDED: {},
    State.FAILED: {EventKind.RETRIED: State.PENDING},
    State.CANCELLED: {EventKind.RETRIED: State.PENDING},
}


class Ledger:
    """The book, sorted by job and by audit line, beside what the table says."""

    def __init__(self, book: Book, seen: Seen, *, audit_all: bool) -> None:
        self.book, self.seen, self.audit_all = book, seen, audit_all
        self.sent: dict[tuple[str, datetime], list[Sent]] = defaultdict(list)
        for sent in book.sent:
            self.sent[sent.change.before.id, sent.change.at].append(sent)
        self.wishes = {wish.claim.worker: wish for wish in book.wishes}
        self.workers = {wish.claim.token: wish.claim.worker for wish in book.wishes}
        self.lines = {(event.job_id, event.at): event for trail in seen.trails.values() for event in trail}
        self.numbered = {(event.job_id, event.revision): event for event in self.lines.values()}

    def broken_promises(self) -> Iterator[str]:
        yield from self.book.strange
        yield from self._nothing_lost()
        for job in self.seen.jobs.values():
            trail = self.seen.trails.get(job.id, [])
            problems = [*self._explained(trail), *self._as_last_written(job)]
            if self.audit_all:
                problems += self._legal(job, trail)
            yield from (f"job {job.id}: {problem}" for problem in problems)
        yield from self._told_the_truth()
        yield from self._one_writer_a_revision()
        yield from self._one_holder()
        yield from self._nobody_stranded()
        yield from self._leases_kept()

    def _nothing_lost(self) -> Iterator[str]:
        created: Counter[str] = Counter()
        asked = {stored.job.id for stored in self.book.stored}
        for job, receipt in self.book.stored:
            if receipt is None:
                continue
            created[job.id] += receipt.created
            if receipt.refused:
                yield f"job {job.id} was refused: {receipt.refused}"
            elif receipt.job.id not in self.seen.jobs:
                yield f"job {receipt.job.id} was acknowledged and is lost"
            elif receipt.job.id != job.id and (job.key is None or _key(job) != _key(receipt.job)):
                yield f"job {job.id} was told to be {receipt.job.id}"
        yield from (f"job {id_} was created {times} times" for id_, times in created.items() if times > 1)
        yield from (f"job {id_} is there, and nobody enqueued it" for id_ in self.seen.jobs.keys() - asked)

    def _legal(self, job: Job, trail: Sequence[Event]) -> Iterator[str]:
        """The lines are gapless, each may follow the one before, and the holder alone settles."""
        numbers = [event.revision for event in trail]
        if numbers != list(range(job.revision + 1)):
            yield f"revisions {numbers} do not lead to {job.revision} one by one"
        if not trail or trail[0].kind is not EventKind.ENQUEUED:
            yield "its first line is not that it was enqueued"
            return
        state, holder, asked, claims = State.PENDING, "", False, 0
        for event in trail[1:]:
            after = LEGAL[state].get(event.kind)
            if after is None:
                yield f"{event.kind} by {event.actor} (revision {event.revision}) may not follow, it was {state}"
                return
            may_write = event.actor == holder or event.actor.startswith("reaper")
            if state is State.RUNNING and not may_write and event.kind is not EventKind.CANCEL_REQUESTED:
                yield f"{event.actor} wrote {event.kind} (revision {event.revision}) while {holder} held it"
            if asked and after is State.PENDING and event.kind is not EventKind.RETRIED:
                yield f"{event.kind} (revision {event.revision}) buried a cancel request"
            asked = event.kind is EventKind.CANCEL_REQUESTED or (asked and state is State.RUNNING)
            holder, claims = (event.actor, claims + 1) if event.kind is EventKind.CLAIMED else (holder, claims)
            state = after
        if (job.state, job.attempt) != (state, claims):
            yield f"is {job.state} after {job.attempt} attempts, its lines say {state} after {claims}"

    def _explained(self, trail: Sequence[Event]) -> Iterator[str]:
        """Somebody sent what each line tells, and was not told that it was refused."""
        for event in trail:
            told = f"{event.kind} by {event.actor} (revision {event.revision})"
            if event.kind is EventKind.ENQUEUED:
                continue
            if event.kind is EventKind.CLAIMED:
                yield from self._claim_explained(event)
                continue
            sendings = self.sent.get((event.job_id, event.at), [])
            rulings = [sent.ruling for sent in sendings]
            if not sendings:
                yield f"nobody sent {told}"
                continue
            change = sendings[0].change
            if (change.kind, change.actor) != (event.kind, event.actor):
                yield f"{told} is not what was sent: {change.kind} by {change.actor}"
            if change.fence is not Fence.RUNNING and change.after.revision != event.revision:
                yield f"{told} was sent as revision {change.after.revision}"
            if not {Ruling.APPLIED, Ruling.ALREADY, None} & set(rulings):
                yield f"{told} is written, and its sender was told {[ruling and ruling.value for ruling in rulings]}"

    def _claim_explained(self, event: Event) -> Iterator[str]:
        wish = self.wishes.get(event.actor)
        if wish is None:
            yield f"nobody made the claim of {event.actor} (revision {event.revision})"
        elif wish.jobs is not None and not wish.unsure and event.job_id not in {job.id for job in wish.jobs}:
            yield f"{event.actor} was not told of its claim (revision {event.revision})"

    def _as_last_written(self, job: Job) -> Iterator[str]:
        """What is stored is, field by field, what its last writer meant."""
        last = self.numbered.get((job.id, job.revision))
        if last is None or not job.state.final or (job.id, last.at) not in self.sent:
            return
        after = self.sent[job.id, last.at][0].change.after
        for field, value, meant in zip(Job._fields, job, after, strict=True):
            if value != meant:
                yield f"its {field} is {value!r}, {last.actor} wrote {meant!r}"

    def _told_the_truth(self) -> Iterator[str]:
        """Who was told that it has written finds its line, once."""
        times = Counter((event.job_id, event.at) for trail in self.seen.trails.values() for event in trail)
        for (id_, at), sendings in self.sent.items():
            change = sendings[0].change
            if not self.audit_all and not change.kind.noteworthy:
                continue
            told = f"job {id_}: {change.actor} was told that {change.kind} (revision {change.after.revision})"
            rulings = [sent.ruling for sent in sendings]
            if rulings.count(Ruling.APPLIED) > 1:
                yield f"{told} was applied twice"
            if times[id_, at] > 1 and change.fence is not Fence.RUNNING:
                yield f"{told} was sent once and is written {times[id_, at]} times"
            if Ruling.APPLIED in rulings and not times[id_, at]:
                yield f"{told} is written, it is not"
            if Ruling.ALREADY in rulings:
                line = self.numbered.get((id_, change.after.revision))
                # A zombie that decides otherwise the second time hears of its first decision, if both led there.
                same = line is not None and LEGAL[State.RUNNING].get(line.kind) is change.after.state
                routine = line is None and not self.audit_all  # it was the first decision, which left no line
                if not routine and (line is None or line.actor != change.actor or not same):
                    yield f"{told} had been written, the line says {line and (line.kind, line.actor)}"

    def _one_writer_a_revision(self) -> Iterator[str]:
        """No two were told that they made the same revision; this needs no audit line."""
        writers: dict[tuple[str, int], set[str]] = defaultdict(set)
        for sent in self.book.sent:
            if sent.ruling is Ruling.APPLIED and sent.change.fence is not Fence.RUNNING:
                change = sent.change
                writers[change.before.id, change.after.revision].add(f"{change.actor} at {change.at}")
        for wish in self.book.wishes:
            for job in wish.jobs or () if not wish.unsure else ():
                writers[job.id, job.revision].add(wish.claim.worker)
        for (id_, revision), names in writers.items():
            if len(names) > 1:
                yield f"job {id_}: revision {revision} was written by {sorted(names)}"
            if id_ in self.seen.jobs and revision > self.seen.jobs[id_].revision:
                yield f"job {id_}: revision {revision} of {names} is gone, it is at {self.seen.jobs[id_].revision}"

    def _one_holder(self) -> Iterator[str]:
        given: dict[tuple[str, int], set[str]] = defaultdict(set)
        for wish in self.book.wishes:
            for job in wish.jobs or ():
                given[job.id, job.attempt].add(wish.claim.worker)
                if (job.lease_token, job.worker) != (wish.claim.token, wish.claim.worker):
                    yield f"job {job.id} was given to {wish.claim.worker} as held by {job.worker}"
                if job.due_at > wish.end:
                    yield f"job {job.id} was given before it was due"
        for (id_, attempt), workers in given.items():
            if len(workers) > 1:
                yield f"job {id_}: attempt {attempt} was given to {sorted(workers)}"

    def _nobody_stranded(self) -> Iterator[str]:
        """Who held a job until its lease ran out had been told of it; else it waited in vain, and pays for a crash."""
        for change, ruling, begin, _ in self.book.sent:
            wish = self.wishes.get(change.before.worker or "")
            if change.fence is not Fence.RECOVERY or ruling is not Ruling.APPLIED or wish is None:
                continue
            if wish.jobs is not None and wish.end < begin and change.before.id not in {job.id for job in wish.jobs}:
                yield f"job {change.before.id} was stranded: {wish.claim.worker} was answered, and not told of it"

    def _leases_kept(self) -> Iterator[str]:
        """No lease is taken that is not past, and none is renewed that has ended."""
        beats: dict[tuple[str, str], list[Beat]] = defaultdict(list)
        for beat in self.book.beats:
            if beat.renewal is Renewal.RENEWED:
                beats[beat.hold.job_id, beat.hold.token].append(beat)
        for sent in self.book.sent:
            change, token = sent.change, sent.change.before.lease_token or ""
            if sent.ruling is not Ruling.APPLIED or change.fence not in (Fence.HOLDER, Fence.RECOVERY):
                continue
            who = f"job {change.before.id}: the lease of {self.workers.get(token)}"
            for beat in beats[change.before.id, token]:
                renewed_until = beat.begin + timedelta(seconds=LEASE)
                if change.fence is Fence.RECOVERY and beat.end < sent.begin and renewed_until > sent.end:
                    yield f"{who} was taken at {sent.end}, it had been renewed until {renewed_until}"
                if beat.begin > sent.end:
                    yield f"{who} was renewed after {change.kind} by {change.actor}"


# --------------------------------------------------------------------------------------------- a run


class Outcome(NamedTuple):
    operations: int
    jobs: int
    lines: int
    requests: int
    faults: dict[str, int]
    counts: Counter[str]
    seconds: float
    problems: list[str]


def run(
    operations: int, *, seed: int, threads: int = 6, server: str = dynamo_servers.DEFAULT, audit_all: bool
) -> Outcome:
    """So many operations on a fresh table; afterwards it is drained and checked."""
    kind = next(name for name, of in stores.DYNAMO.items() if of == server)
    target = dynamo_servers.shared_dynamodb(server)
    clock, book, ids, problems = Clock(), Book(), list[str](), list[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        stores.fresh_store(kind, Path(folder)) as url,
        FaultLayer(target, seed=seed) as layer,
        impatience(),
    ):
        weather = Weather(layer, seed)
        far = url.replace(target, layer.url)
        engines = [connect(far, clock=clock.now, audit_all=audit_all) for _ in range(threads)]
        direct = connect(url, clock=clock.now, audit_all=audit_all)
        actors = [Actor(f"w{n}", one, clock, book, ids, f"{seed}/{n}") for n, one in enumerate(engines)]
        actors[0].eye = direct
        started = time.monotonic()
        for one in (*engines, direct):
            one.open()
        spread = schema.spread_of(direct.client)
        done = 0
        while done < operations and not problems:
            done = min(operations, done + ROUND)
            with weather.at_work():
                _act(actors, book, done)
            problems = list(disorder(look(direct, clock.now()), spread))
        faults, requests, seconds = weather.met(), len(layer.log), time.monotonic() - started
        counts = Counter(book.counts)
        if not problems:
            problems += _drain(Actor("drain", direct, clock, book, ids, f"{seed}/drain"), clock)
        seen = look(direct, clock.now())
        problems += disorder(seen, spread)
        problems += Ledger(book, seen, audit_all=audit_all).broken_promises()
        for one in (*engines, direct):
            one.close()
    lines = sum(map(len, seen.trails.values()))
    return Outcome(counts["operations"], len(seen.jobs), lines, requests, faults, counts, seconds, problems)


def _act(actors: Sequence[Actor], book: Book, operations: int) -> None:
    """All at once, until so many operations are done."""

    def go(actor: Actor) -> None:
        try:
            while book.counts["operations"] < operations and not book.strange:
                actor.act(actors)
        except Exception as error:
            book.strange.append(f"{actor.name}: {type(error).__name__}: {error}")
            raise

    threads = [threading.Thread(target=go, args=(actor,), name=actor.name, daemon=True) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain(actor: Actor, clock: Clock) -> Iterator[str]:
    """Run everything to its end, by an engine that nothing disturbs."""
    for _ in range(60):
        clock.advance(10 * LEASE)
        actor.reap()
        claim = actor._new_claim()._replace(limit=200, queues=QUEUES, lanes=None, tasks=None)
        actor.turn([], claim)
        jobs = list(actor.held.values())
        actor.turn([lifecycle.settle(job, lifecycle.Succeeded('"drained"'), clock.now()) for job in jobs])
        alive = actor.engine.count(JobFilter())
        if not any(count for state, count in alive.items() if not state.final):
            return
    yield f"not everything could be brought to an end: {alive}"


def told(outcomes: Sequence[Outcome]) -> str:
    """The figures of some runs together."""
    faults, counts = Counter[str](), Counter[str]()
    for outcome in outcomes:
        faults.update(outcome.faults)
        counts.update(outcome.counts)
    operations, seconds = sum(one.operations for one in outcomes), sum(one.seconds for one in outcomes)
    requests, harmed = sum(one.requests for one in outcomes), sum(faults.values())
    calls = {name: counts[name] for name in ("enqueue", "turn", "extend", "expired", "get", "pause")}
    verdicts = {name: count for name, count in sorted(counts.items()) if ": " in name and "unavailable" not in name}
    silent = {name.partition(": ")[2]: count for name, count in sorted(counts.items()) if "unavailable" in name}
    return "\n".join(
        (
            f"operations: {operations:,} ({_listed(calls)}), {operations / seconds:.0f} a second",
            f"jobs: {sum(one.jobs for one in outcomes):,}, audit lines: {sum(one.lines for one in outcomes):,}",
            f"requests: {requests:,}, of which met trouble: {harmed:,} ({_listed(faults)})",
            f"answers: {_listed(verdicts)}",
            f"unavailable: {sum(silent.values()):,} ({_listed(silent)})",
        )
    )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=randrange(10**6), help="of the dice; threads add their own chance")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--server", choices=list(stores.DYNAMO.values()), default=dynamo_servers.DEFAULT)
    given = parser.parse_args(arguments)
    for name in [name for name in os.environ if name.startswith(("TREADLE_", "AWS_"))]:
        if not name.startswith("TREADLE_TEST_"):
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    audited = given.operations * 2 // 3
    outcomes = []
    for number, (operations, audit_all) in enumerate(((audited, True), (given.operations - audited, False))):
        seed = given.seed + number
        outcomes.append(run(operations, seed=seed, threads=given.threads, server=given.server, audit_all=audit_all))
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    print(f"faults on {given.server}: {given.threads} threads, seed {given.seed}")
    print(told(outcomes))
    for problem in problems[:SHOWN]:
        print(f"violation: {problem}")
    if len(problems) > SHOWN:
        print(f"violation: and {len(problems) - SHOWN} more")
    print(f"verdict: {f'FAIL ({len(problems)} violations)' if problems else 'PASS'}", flush=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
