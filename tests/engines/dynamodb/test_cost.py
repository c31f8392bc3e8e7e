"""What each act costs in units, as the server tells them; and that a claim costs the same whatever it steps over.

`COSTS` is the table of the guide: a row that changes here changes there.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.support import dynamo_servers
from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    claim,
    claimed,
    crashed,
    current,
    ended,
    enqueued,
    recover,
    running,
    settle,
)
from treadle.engines import connect
from treadle.engines.values import OVERWRITE, Claim, JobFilter, Lease, Retention
from treadle.model import Event, EventKind, Job, Progress, Reason, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Succeeded
from treadle.model.records import Pause, Schedule, Seal, WorkerInfo, subject

DAY = timedelta(days=1)
KEPT = Retention({State.SUCCEEDED: DAY, State.FAILED: DAY, State.CANCELLED: DAY})

pytestmark = pytest.mark.usefixtures("long_memory")


@pytest.fixture
def store_url() -> Iterator[str]:
    """A table as `treadle migrate` makes it when nothing is said: its lists lie in 64 partitions."""
    url = f"dynamodb://t{uuid4().hex[:20]}?endpoint={dynamo_servers.shared_dynamodb()}&region=us-east-1&skew=0"
    engine = connect(url)
    engine.migrate()
    yield url
    engine.client.call("DeleteTable", {"TableName": engine.client.table})
    engine.close()


@pytest.fixture
def ready(meter, clock):
    """The meter, with the slot of plain jobs written down and known."""
    settle(meter.engine, running(meter.engine), Succeeded("1"))
    return meter


def payload_of(size: int) -> str:
    """JSON of so many bytes."""
    return json.dumps({"text": "x" * (size - 11)}, separators=(",", ":"))


# ------------------------------------------------------------------------------------------- what is measured


class Cost(NamedTuple):
    """An act on the engine, what must be there before, and the units it costs."""

    before: Callable[[Any, Any], Any]
    act: Callable[[Any, Any, Any], Any]
    writes: float
    reads: float


def nothing(engine: Any, clock: Any) -> None: ...


def held(**fields: Any) -> Callable[[Any, Any], Job]:
    return lambda engine, clock: running(engine, **fields)


def waiting(**fields: Any) -> Callable[[Any, Any], Job]:
    return lambda engine, clock: enqueued(engine, **fields)


def done(state: State, **fields: Any) -> Callable[[Any, Any], Job]:
    return lambda engine, clock: ended(engine, state, **fields)


def settling(outcome: Callable[[Any], lifecycle.Outcome]) -> Callable[[Any, Any, Any], Any]:
    return lambda engine, job, now: settle(engine, job, outcome(now))


def storing(**fields: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda engine, _, now: engine.enqueue([a_job(now, **fields)])


def taking(engine: Any, job: Any, now: Any) -> Any:
    return claimed(engine, job)


def renewing(engine: Any, job: Any, now: Any) -> Any:
    return engine.extend([Lease(job.id, job.lease_token)], lease=30.0)


def asking(engine: Any, job: Any, now: Any) -> Any:
    engine.turn([lifecycle.cancel(job, now, actor="ada")])


def past_its_lease(engine: Any, clock: Any) -> Job:
    job = running(engine)
    clock.advance(seconds=LEASE)
    return job


def over(state: State, **fields: Any) -> Callable[[Any, Any], Job]:
    """A job that ended two days ago."""

    def before(engine: Any, clock: Any) -> Job:
        engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10, now=clock.now() + DAY)
        job = ended(engine, state, **fields)
        clock.advance(days=2)
        return job

    return before


def many(number: int) -> Callable[[Any, Any], Any]:
    """So many jobs whose ids lie in the same partitions every time."""
    ids = [f"fe000000-{n:04x}-7000-8000-{n:012x}" for n in range(number)]
    return lambda engine, clock: engine.enqueue([a_job(clock.now(), id=id) for id in ids])


def succeeded(now: Any) -> Succeeded:
    return Succeeded('{"answer":42}')


def failed(now: Any) -> Failed:
    return Failed(an_error(now))


KEY = {"key": "ada", "key_scope": Scope.ACTIVE}
PENDING_KEY = {"key": "ada", "key_scope": Scope.PENDING}
EVER_KEY = {"key": "ada", "key_scope": Scope.EVER}


def window(now: Any) -> dict[str, Any]:
    return {"key": "ada", "key_scope": Scope.WINDOW, "key_until": now + DAY}


def line_of(record: Any, now: Any) -> Event:
    return Event(subject(record), 0, now, EventKind.CHANGED, "ada", "why", "default")


def paused(engine: Any) -> Pause:
    """Nobody, so that others can still claim."""
    pause = Pause(tenant="nobody", at=engine.now())
    assert engine.save(pause, before=OVERWRITE, event=line_of(pause, engine.now())).done
    return pause


def behind_a_pause(engine: Any, clock: Any) -> Pause:
    pause = paused(engine)
    engine.enqueue([a_job(clock.now()) for _ in range(11)])
    claim(engine, 1)
    return pause


def crowd_of_a_paused_tenant(engine: Any, clock: Any) -> None:
    engine.enqueue([a_job(clock.now(), tenant="nobody") for _ in range(60)])
    paused(engine)
    claim(engine, queues=["another"])


def scheduled(engine: Any, clock: Any) -> Schedule:
    schedule = Schedule("tick", "greet", clock.now(), every=60.0, next_at=clock.now())
    engine.save(schedule, before=None)
    return schedule


def fire(engine: Any, schedule: Schedule) -> Any:
    after = schedule.evolve(next_at=schedule.next_at + timedelta(minutes=1), revision=schedule.revision + 1)
    return engine.save(after, before=schedule, job=a_job(engine.now(), schedule="tick"))


def a_member(now: Any) -> WorkerInfo:
    return WorkerInfo("w1", "here", 7, ["default"], None, {"greet": 1}, 4, 0, False, now, now, 10.0)


def a_seal(now: Any) -> Seal:
    return Seal("default", 1, 10, now, now, "d" * 64, "", "h" * 64, now)


def spent(engine: Any, clock: Any) -> Job:
    job = running(engine)
    settle(engine, job.evolve(cost_micros=7), succeeded(clock.now()))
    return job


def watching(engine: Any, job: Any, now: Any) -> Any:
    return engine.cancel_requests([job.id])


def lines(engine: Any, clock: Any) -> list[Event]:
    for _ in range(10):
        ended(engine, State.FAILED)
    return engine.unsealed(limit=10)


def sealed(engine: Any, clock: Any) -> Seal:
    seal = a_seal(clock.now())
    assert engine.seal(seal, lines(engine, clock))
    return seal


COSTS = {
    # a small job without a key
    "enqueue": Cost(nothing, storing(), 4, 0),
    "claim": Cost(waiting(), taking, 1, 2),
    "settle, succeeded": Cost(held(), settling(succeeded), 4, 0),
    "settle, failed for good": Cost(
        held(), settling(lambda now: FailedForGood(Reason.PERMANENT, an_error(now))), 10, 0
    ),
    "settle, failed and waiting for its retry": Cost(held(), settling(failed), 10, 0),
    "snooze": Cost(held(), settling(lambda now: Snoozed(60.0)), 6, 0),
    "release": Cost(held(), settling(lambda now: Released()), 1, 0),
    "renewal": Cost(held(), renewing, 1, 0),
    "renewal with progress": Cost(
        held(),
        lambda engine, job, now: engine.extend(
            [Lease(job.id, job.lease_token, now, Progress(0.5, "half way"), 7)], lease=30.0
        ),
        1, 0,
    ),
    "look for a cancellation": Cost(held(), watching, 0, 1),
    "look for a cancellation, 100 KB": Cost(held(payload_json=payload_of(100_000)), watching, 0, 1),
    "look for leases that ran out": Cost(past_its_lease, lambda engine, job, now: engine.expired(limit=10), 0, 10),
    "crash, found and requeued": Cost(
        past_its_lease, lambda engine, job, now: recover(engine, engine.expired(limit=10)[0]), 6, 10
    ),
    "cancel, pending": Cost(waiting(), asking, 10, 1),
    "cancel, running": Cost(held(), asking, 6, 0),
    "retry by an operator": Cost(
        done(State.FAILED), lambda engine, job, now: engine.turn([lifecycle.retry(job, now, actor="ada")]), 10, 0
    ),
    "enqueue again, same id": Cost(waiting(), lambda engine, job, now: engine.enqueue([job]), 4, 2),
    "enqueue 25 at once": Cost(nothing, lambda engine, _, now: engine.enqueue([a_job(now) for _ in range(25)]), 100, 0),
    # with a key
    "enqueue, with a key": Cost(nothing, storing(**KEY), 6, 0),
    "claim, key while active": Cost(waiting(**KEY), taking, 1, 2),
    "settle, key while active": Cost(held(**KEY), settling(succeeded), 6, 0),
    "claim, key while pending": Cost(waiting(**PENDING_KEY), taking, 4, 2),
    "settle, key while pending": Cost(held(**PENDING_KEY), settling(succeeded), 4, 0),
    "retry with a key while pending": Cost(held(**PENDING_KEY), settling(failed), 12, 0),
    "settle, key of a window or for ever": Cost(held(**EVER_KEY), settling(succeeded), 4, 0),
    "enqueue, key taken": Cost(waiting(**KEY), lambda engine, job, now: engine.enqueue([a_job(now, **KEY)]), 6, 2),
    # with an end
    "enqueue, with expires_at": Cost(
        nothing, lambda engine, _, now: engine.enqueue([a_job(now, expires_at=now + DAY)]), 6, 0
    ),
    "settle, with expires_at": Cost(
        lambda engine, clock: running(engine, expires_at=clock.now() + DAY), settling(succeeded), 6, 0
    ),
    # larger ones
    "enqueue, 3 KB": Cost(nothing, storing(payload_json=payload_of(3_000)), 10, 0),
    "claim, 3 KB": Cost(waiting(payload_json=payload_of(3_000)), taking, 1, 3),
    "renewal, 3 KB": Cost(
        held(payload_json=payload_of(3_000)), renewing, 1, 0,
    ),
    "settle, 3 KB": Cost(held(payload_json=payload_of(3_000)), settling(succeeded), 4, 0),
    "enqueue, 100 KB": Cost(nothing, storing(payload_json=payload_of(100_000)), 4 + 2 * 98, 0),
    "claim, 100 KB": Cost(waiting(payload_json=payload_of(100_000)), taking, 1, 2 + 25),
    "renewal, 100 KB": Cost(
        held(payload_json=payload_of(100_000)), renewing, 1, 0,
    ),
    "settle, 100 KB": Cost(held(payload_json=payload_of(100_000)), settling(succeeded), 4, 0),
    # behind a gate
    "pause": Cost(behind_a_pause, lambda engine, _, now: paused(engine), 8 + 8, 1),
    "pause, the first of a table": Cost(nothing, lambda engine, _, now: paused(engine), 8 + 8 + 1, 1),
    "resume": Cost(behind_a_pause, lambda engine, pause, now: engine.drop(pause, event=line_of(pause, now)), 8, 2),
    "claim of one, in a table that had a pause": Cost(behind_a_pause, lambda engine, _, now: claim(engine, 1), 4, 2),
    "claim of ten, in a table that had a pause": Cost(behind_a_pause, lambda engine, _, now: claim(engine), 22, 2),
    "park 60 jobs that are paused": Cost(crowd_of_a_paused_tenant, lambda engine, _, now: claim(engine), 364, 6),
    # schedules, workers, seals
    "look for schedules that are due": Cost(nothing, lambda engine, _, now: engine.due(limit=100, ahead=1.0), 0, 1),
    "fire a schedule": Cost(scheduled, lambda engine, schedule, now: fire(engine, schedule), 10, 0),
    "beat of a worker": Cost(nothing, lambda engine, _, now: engine.save(a_member(now), before=OVERWRITE), 1, 0),
    "settle, with a cost, not the first of the day": Cost(
        lambda engine, clock: (spent(engine, clock), running(engine))[1],
        lambda engine, job, now: settle(engine, job.evolve(cost_micros=7), succeeded(now)),
        6, 0,
    ),
    "costs of a day": Cost(spent, lambda engine, _, now: engine.costs(since=now, until=now + DAY), 0, 9),
    "look for lines to seal": Cost(nothing, lambda engine, _, now: engine.unsealed(limit=1800), 0, 16),
    "seal ten lines": Cost(lines, lambda engine, lines, now: engine.seal(a_seal(now), lines), 24, 0),
    "prune the events of a seal of ten": Cost(sealed, lambda engine, seal, now: engine.prune_events(seal), 24, 1),
    # looking
    "poll that finds nothing": Cost(nothing, lambda engine, _, now: claim(engine), 0, 2),
    "look for leases, nothing runs": Cost(nothing, lambda engine, _, now: engine.expired(limit=10), 0, 10),
    "get, pending or running": Cost(waiting(), lambda engine, job, now: engine.get([job.id]), 0, 2),
    "get, finished": Cost(done(State.SUCCEEDED), lambda engine, job, now: engine.get([job.id]), 0, 1),
    "events": Cost(done(State.FAILED), lambda engine, job, now: engine.events(job.id), 0, 1),
    "list, newest 50 of 1,000 pending": Cost(
        many(1000), lambda engine, _, now: engine.find(JobFilter(), limit=50), 0, 114
    ),
    "list, 50 of 1,000 by state pending": Cost(
        many(1000), lambda engine, _, now: engine.find(JobFilter(State.PENDING), limit=50), 0, 125
    ),
    "list, failed": Cost(
        done(State.FAILED), lambda engine, _, now: engine.find(JobFilter(State.FAILED), limit=50), 0, 9
    ),
    "count, 1,000 pending": Cost(many(1000), lambda engine, _, now: engine.count(JobFilter()), 0, 116),
    "count up to 100 of 1,000 pending, and their labels": Cost(
        many(1000), lambda engine, _, now: engine.count(JobFilter(State.PENDING), limit=100), 0, 51
    ),
    "prune, nothing old": Cost(nothing, lambda engine, _, now: engine.prune(KEPT, limit=10), 0, 80),
    "prune, one succeeded": Cost(over(State.SUCCEEDED), lambda engine, _, now: engine.prune(KEPT, limit=10), 1, 81),
    "prune, one failed": Cost(over(State.FAILED), lambda engine, _, now: engine.prune(KEPT, limit=10), 4, 82),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_an_act_costs_what_the_guide_says(ready, clock, name):
    cost = COSTS[name]
    before = cost.before(ready.engine, clock)
    units = ready.of(lambda: cost.act(ready.engine, before, clock.now()))
    print(f"| {name} | {units.writes:g} | {units.reads:g} |")
    assert (units.writes, units.reads) == (cost.writes, cost.reads)


def test_the_life_of_a_small_job_takes_nine_write_units(ready):
    """The promise of the engine; without a table of its own for every state it could not be less."""
    engine = ready.engine
    with ready:
        settle(engine, claimed(engine, enqueued(engine, payload_json='{"user":12345}')), Succeeded('{"sent":true}'))
    assert ready.last.writes == 9


def test_a_job_is_small_up_to_about_six_hundred_bytes(ready):
    """One unit writes 1 KB: the item, its names and what a claim adds to it, included."""
    engine = ready.engine
    with ready:
        job = claimed(engine, enqueued(engine, payload_json=payload_of(600)))
        settle(engine, job, Succeeded("1"))
    assert ready.last.writes == 9


@pytest.mark.parametrize(
    ("scope", "writes"), [(Scope.PENDING, 14), (Scope.ACTIVE, 13), (Scope.WINDOW, 11), (Scope.EVER, 11)]
)
def test_a_key_costs_two_units_to_take_and_two_or_three_to_free(ready, clock, scope, writes):
    engine = ready.engine
    fields = window(clock.now()) if scope is Scope.WINDOW else {"key": "ada", "key_scope": scope}
    with ready:
        settle(engine, claimed(engine, enqueued(engine, **fields)), Succeeded("1"))
    assert ready.last.writes == writes


def test_a_trail_of_everything_costs_four_units_a_line_and_five_on_a_claim(ready, open_engine, far_url, clock):
    """The line, and the marker that it is in no seal yet. A claim alone is a plain write; with its line it is none."""
    told = open_engine(far_url, clock=clock.now, audit_all=True)
    settle(told, running(told), Succeeded("1"))
    with ready:
        job = claimed(told, enqueued(told))
        settle(told, job, Succeeded("1"))
    assert ready.last.writes == 9 + 4 + 5 + 4
    assert [event.kind for event in told.events(job.id)] == ["enqueued", "claimed", "succeeded"]


def test_the_first_job_of_a_slot_pays_one_unit_more_in_each_process(meter, open_engine, far_url, clock):
    first = meter.of(lambda: enqueued(meter.engine))
    again = meter.of(lambda: enqueued(meter.engine))
    other = open_engine(far_url, clock=clock.now)
    other.open()
    elsewhere = meter.of(lambda: enqueued(other))
    assert (first.writes, again.writes, elsewhere.writes) == (5, 4, 5)


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_an_empty_poll_reads_one_unit_a_shard_and_one_for_the_slots(open_engine, far_url, meter, clock, shards):
    engine = open_engine(f"{far_url}&shards={shards}", clock=clock.now)
    settle(engine, running(engine), Succeeded("1"))
    assert meter.of(lambda: claim(engine)) == (0, 1 + shards, 1 + shards)


def test_a_full_claim_of_ten_reads_one_page(ready, clock):
    ready.engine.enqueue([a_job(clock.now()) for _ in range(10)])
    units = ready.of(lambda: claim(ready.engine, 10))
    assert (units.writes, units.reads) == (10, 2)


# ---------------------------------------------------------------------------------------------- calls for a job


CALLS = {  # by how many jobs each enqueue and each turn is about: calls a job for enqueue, claim and settle
    1: (1.0, 3.0, 1.0),
    10: (0.1, 1.2, 0.1),
    50: (0.04, 1.04, 0.1),
}


@pytest.mark.parametrize("batch", CALLS)
def test_a_job_takes_as_many_calls_as_the_guide_says(ready, clock, batch):
    engine, now, rounds = ready.engine, clock.now(), 4
    calls = [0.0, 0.0, 0.0]
    for _ in range(rounds):
        stored = ready.of(lambda: engine.enqueue([a_job(now) for _ in range(batch)]))
        with ready:
            jobs = claim(engine, batch)
        claims = ready.last
        ends = ready.of(lambda jobs=jobs: engine.turn([lifecycle.settle(job, Succeeded("1"), now) for job in jobs]))
        assert (stored.writes, claims.writes, ends.writes) == (4 * batch, batch, 4 * batch)
        calls = [sum(pair) for pair in zip(calls, (one.requests for one in (stored, claims, ends)), strict=True)]
    a_job_each = tuple(number / rounds / batch for number in calls)
    print(f"| {batch} | {a_job_each} |")
    assert a_job_each == pytest.approx(CALLS[batch])


# ------------------------------------------------------------------------------------------------ it stays flat

CROWD = 3_000


def cost_of_a_claim(meter) -> tuple[float, float]:
    """Of one job that is due, the only one that may be taken."""
    enqueued(meter.engine)
    units = meter.of(lambda: claim(meter.engine, 1))
    return units.writes, units.reads


def settled(engine, number, now, **fields):
    engine.enqueue([a_job(now, **fields) for _ in range(number)])
    claim_ = Claim(token=new_id(), worker="w0", limit=number, lease=60.0, queues=[fields.get("queue", "default")])
    jobs = engine.turn([], claim_).jobs
    engine.turn([lifecycle.settle(job, Succeeded("1"), now) for job in jobs])


CROWDS = {
    "jobs of tomorrow": lambda engine, now: engine.enqueue([a_job(now, due_at=now + DAY) for _ in range(CROWD)]),
    "finished jobs": lambda engine, now: settled(engine, 1000, now),
    "jobs of another queue": lambda engine, now: engine.enqueue([a_job(now, queue="other") for _ in range(CROWD)]),
    "jobs of a lower priority": lambda engine, now: engine.enqueue([a_job(now, priority=-1) for _ in range(CROWD)]),
    "jobs behind it": lambda engine, now: engine.enqueue(
        [a_job(now, due_at=now + timedelta(microseconds=1)) for _ in range(CROWD)]
    ),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_claim_costs_the_same_beside_thousands(ready, engine, clock, crowd):
    CROWDS[crowd](engine, clock.now())
    claim(ready.engine, 1, queues=["default"], now=clock.now() - timedelta(microseconds=1))
    assert cost_of_a_claim(ready) == (1, 2)


def test_a_claim_from_a_long_backlog_costs_a_page_however_long_it_is(ready, engine, clock):
    ready.engine.enqueue([a_job(clock.now()) for _ in range(100)])
    short = ready.of(lambda: claim(ready.engine, 1))
    engine.enqueue([a_job(clock.now()) for _ in range(CROWD)])
    assert ready.of(lambda: claim(ready.engine, 1)) == short == (1, 3, 3)


def test_running_jobs_at_the_head_are_walked_over_once_and_then_begun_behind(ready, clock):
    engine = ready.engine
    engine.enqueue([a_job(clock.now()) for _ in range(330)])
    assert len(claim(engine, 30)) == 30
    clock.advance(seconds=3)
    enqueued(engine)
    claim(engine, 1)  # the cursor is set
    few = ready.of(lambda: claim(engine, 1))
    assert len(claim(engine, 269)) == 269
    enqueued(engine)
    claim(engine, 1)
    many = ready.of(lambda: claim(engine, 1))
    assert many.reads <= few.reads + 2
    assert many.reads <= 6


def test_unknown_jobs_are_parked_once_and_cost_nothing_from_then_on(ready, clock):
    engine = ready.engine
    alone = ready.of(lambda: claim(engine, 1, tasks=["greet"]))
    engine.enqueue([a_job(clock.now(), task="stranger") for _ in range(500)])
    claim(engine, 1, tasks=["greet"])
    known = enqueued(engine)
    units = ready.of(lambda: claimed(engine, known))
    assert (units.writes, units.reads) == (1, alone.reads)
    assert ready.of(lambda: claim(engine, 1, tasks=["greet"])).reads == alone.reads


def test_a_worker_that_knows_them_pays_one_unit_for_their_range_until_it_is_empty(ready, engine, clock):
    engine.enqueue([a_job(clock.now(), task="stranger") for _ in range(500)])
    claim(engine, 1, tasks=["greet"])
    both = ["greet", "stranger"]
    got = [job for _ in range(5) for job in claim(engine, 100, tasks=both)]
    assert {job.task for job in got} == {"stranger"}
    assert len({job.id for job in got}) == 500
    engine.turn([lifecycle.settle(job, Succeeded("1"), clock.now()) for job in got])
    assert ready.of(lambda: claim(ready.engine, 1, tasks=both)) == (1, 4, 5)  # it looks again, and takes the slot away
    assert ready.of(lambda: claim(ready.engine, 1, tasks=both)) == (0, 2, 2)


def test_a_crash_costs_the_same_behind_thousands_of_finished_and_future_jobs(ready, engine, clock):
    settled(engine, 1000, clock.now())
    engine.enqueue([a_job(clock.now(), due_at=clock.now() + DAY) for _ in range(CROWD)])
    job = running(ready.engine)
    units = ready.of(lambda: crashed(ready.engine, clock, job))
    assert (units.writes, units.reads) == (6, 12)  # as in COSTS, and a look at it afterwards
    assert current(engine, job).crashes == 1
