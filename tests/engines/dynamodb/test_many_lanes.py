"""Among many lanes, tasks and tenants no job is lost or out of order, and a claim that says idle has seen all."""

import random
from datetime import timedelta

import pytest

from tests.support.making import LEASE, a_job, claim, crashed, current, enqueued
from treadle.engines.dynamodb import claim as claim_module
from treadle.engines.dynamodb import ranges, unparking
from treadle.engines.dynamodb import scan as engine_scan
from treadle.engines.values import OVERWRITE, Claim, JobFilter, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause

TOMORROW = timedelta(days=1)


def lanes(number, now, **fields):
    return [a_job(now, lane=f"lane {n}", **fields) for n in range(number)]


def paused(engine, **scope):
    engine.save(Pause(at=engine.now(), **scope), before=OVERWRITE)


def wish(limit, **fields):
    fields = {"tasks": ["greet", "slow"], "queues": ["default", "slow"], **fields}
    return Claim(new_id(), "w", limit, LEASE, **fields)


def walked(engine, **fields):
    """Claims until one has seen everything and got nothing; what they get is settled."""
    got, more, settled = [], True, []
    while more:
        turn = engine.turn(settled, wish(10, **fields))
        settled = [lifecycle.settle(job, Succeeded("1"), engine.now()) for job in turn.jobs]
        got += turn.jobs
        more = turn.more or turn.claimed
    return got


# ------------------------------------------------------------------------------------------ parked and shared


@pytest.fixture
def sharing(monkeypatch):
    """Parked jobs share a slot from the first on."""
    monkeypatch.setattr(ranges, "MAX_PARKED_SLOTS", 0)
    monkeypatch.setattr(claim_module, "MAX_UNPARKED", 0)


def slots(table):
    return [item for item in table.items("slots") if "queue" in item]


def test_thousands_of_lanes_tasks_and_tenants_make_no_long_list_of_slots(engine, table, clock):
    crowd = [a_job(clock.now(), task=f"t{n}", lane=f"lane {n % 700}", tenant=f"tenant {n}") for n in range(1_000)]
    engine.enqueue(crowd)
    assert walked(engine) == []
    assert len(slots(table)) <= 2 * (48 + 16) + 16
    assert engine.count(JobFilter()) == {State.PENDING: 1_000}
    assert {job.id for job in engine.find(JobFilter(State.PENDING), limit=1_000).jobs} == {job.id for job in crowd}


@pytest.mark.parametrize("limit", [1, 7, 400])
def test_jobs_that_shared_a_slot_come_in_order_once_a_worker_knows_them(engine, clock, sharing, limit):
    order = [(priority, due) for priority in (9, 0) for due in range(60)]
    jobs = [
        a_job(clock.now(), task=f"t{due % 11}", priority=priority, due_at=clock.now() + timedelta(seconds=due))
        for priority, due in order
    ]
    engine.enqueue(random.Random(7).sample(jobs, len(jobs)))
    clock.advance(minutes=2)
    assert walked(engine, tasks=["greet"]) == []
    fresh = enqueued(engine, task="t3")
    got = [job.id for _ in range(200) for job in claim(engine, limit)]
    assert got == [job.id for job in (*jobs, fresh)]


def test_a_worker_that_knows_thousands_of_parked_tasks_finds_all_their_jobs(engine, make_engine, clock):
    tasks = [f"t{n}" for n in range(1_000)]
    engine.enqueue([a_job(clock.now(), task=task) for task in tasks])
    assert walked(engine) == []
    later = make_engine()
    got = walked(later, tasks=tasks, thorough=True)
    assert {job.task for job in got} == set(tasks)
    assert len(got) == 1_000


def test_a_worker_that_does_not_know_them_says_idle_however_many_there_are(engine, clock):
    engine.enqueue([a_job(clock.now(), task=f"t{n}") for n in range(1_000)])
    known = enqueued(engine)
    assert [job.id for job in walked(engine, thorough=True)] == [known.id]
    assert not engine.turn([], wish(10, thorough=True)).more


def test_jobs_of_resumed_tenants_come_back_and_others_stay(engine, clock, sharing):
    for tenant in ("ada", "eve"):
        paused(engine, tenant=tenant)
    jobs = [a_job(clock.now(), tenant=tenant) for _ in range(40) for tenant in ("ada", "eve")]
    engine.enqueue(jobs)
    assert walked(engine) == []
    [pause] = [pause for pause in engine.records(Pause) if pause.tenant == "ada"]
    assert engine.drop(pause)
    assert [job.id for job in walked(engine)] == [job.id for job in jobs if job.tenant == "ada"]
    assert walked(engine) == []


def test_a_parked_job_that_shares_can_be_cancelled_and_changed_in_time(engine, clock, sharing):
    job, other = enqueued(engine, task="stranger"), enqueued(engine, task="stranger")
    assert walked(engine, tasks=["greet"]) == []
    assert engine.turn([lifecycle.cancel(job, clock.now(), actor="ada")]).verdicts[0].ruling is Ruling.APPLIED
    assert current(engine, job).state is State.CANCELLED
    assert [one.id for one in walked(engine, tasks=["stranger"])] == [other.id]


def test_a_job_that_changed_while_it_was_to_come_back_comes_with_the_next_claim(engine, make_engine, clock, sharing):
    """What this process remembers of a shared slot is old, and the move is refused."""
    tasks = [f"t{n}" for n in range(3)]
    jobs = [enqueued(engine, task=task) for task in tasks]
    assert walked(engine, tasks=["greet"]) == []
    [first] = claim(engine, 1, tasks=tasks)  # the other two are remembered
    [second] = claim(make_engine(), 1, tasks=tasks)
    got = walked(engine, tasks=tasks)
    assert [first.id, second.id, *(job.id for job in got)] == [job.id for job in jobs]


def test_jobs_that_could_not_be_moved_just_now_come_with_a_later_claim(
    open_engine, far_url, layer, clock, monkeypatch, sharing
):
    engine = open_engine(far_url, clock=clock.now)
    tasks = [f"t{n}" for n in range(5)]
    jobs = [enqueued(engine, task=task) for task in tasks]
    assert walked(engine, tasks=["greet"]) == []
    [first] = claim(engine, 1, tasks=tasks)  # the others are remembered
    monkeypatch.setattr(unparking, "SHORT_RETRY", 0.02)
    layer.conflict("TransactWriteItems")
    with pytest.raises(EngineUnavailable):
        claim(engine, 1, tasks=tasks)
    layer.calm()
    got = walked(engine, tasks=tasks)
    assert [first.id, *(job.id for job in got)] == [job.id for job in jobs]


def test_a_job_that_another_process_parks_is_found_although_the_shared_slot_was_empty_before(
    engine, make_engine, clock, sharing
):
    other = make_engine()
    for _ in range(3):
        job = enqueued(other, task="stranger")
        assert walked(other, tasks=["greet"]) == []
        assert [one.id for one in walked(engine, tasks=["stranger"])] == [job.id]


def test_a_crash_is_found_among_jobs_that_shared_a_slot(engine, clock, sharing):
    engine.enqueue([a_job(clock.now(), task="stranger") for _ in range(30)])
    assert walked(engine, tasks=["greet"]) == []
    [job] = claim(engine, 1, tasks=["stranger"])
    assert crashed(engine, clock, job).crashes == 1


def test_shards_of_two_engines_differ_where_parked_jobs_share(open_engine, store_url, clock, sharing):
    wide, narrow = open_engine(f"{store_url}&shards=8", clock=clock.now), open_engine(store_url, clock=clock.now)
    wide.enqueue([a_job(clock.now(), task="stranger") for _ in range(40)])
    narrow.enqueue([a_job(clock.now(), task="stranger") for _ in range(40)])
    assert walked(wide, tasks=["greet"]) == walked(narrow, tasks=["greet"]) == []
    assert len({job.id for job in walked(narrow, tasks=["stranger"], thorough=True)}) == 80


def test_a_thorough_claim_beside_which_others_park_does_not_say_nothing(engine, make_engine, clock, monkeypatch):
    """A job that is moved behind the claim's back may be the one it looks for."""
    monkeypatch.setattr(claim_module, "MAX_UNPARKED", 0)
    other, scanned = make_engine(), engine_scan.ClaimScan.sources

    def sources(self, *args):
        monkeypatch.setattr(engine_scan.ClaimScan, "sources", scanned)
        enqueued(other, task="stranger", priority=9)
        assert claim(other, tasks=["greet"]) == []  # it parks the job
        monkeypatch.setattr(engine_scan.ClaimScan, "sources", sources)
        return scanned(self, *args)

    monkeypatch.setattr(engine_scan.ClaimScan, "sources", sources)
    turn = engine.turn([], wish(10, tasks=["stranger"], thorough=True))
    assert turn.claimed or turn.more


# --------------------------------------------------------------------------------------------- quiet lanes


def test_a_job_of_another_process_in_a_quiet_lane_is_not_left_behind_a_backlog(engine, make_engine, clock):
    engine.enqueue(lanes(100, clock.now(), due_at=clock.now() + TOMORROW))
    other = make_engine()
    assert walked(engine) == []
    other.enqueue([a_job(clock.now()) for _ in range(200)])
    quiet = enqueued(other, lane="lane 7")
    got = [job.id for _ in range(9) for job in claim(engine, 4)]
    assert quiet.id in got


def test_a_claim_that_left_lanes_out_and_gives_less_than_asked_says_so(engine, make_engine, clock):
    engine.enqueue(lanes(100, clock.now(), due_at=clock.now() + TOMORROW))
    other = make_engine()
    assert walked(engine) == []
    jobs = other.enqueue(lanes(100, clock.now()))
    turn = engine.turn([], wish(200))
    assert len(turn.claimed) == 100 or turn.more
    assert {job.id for job in (*turn.jobs, *walked(engine))} == {receipt.job.id for receipt in jobs}


def test_a_claim_that_finds_nothing_has_looked_into_every_lane(meter, engine, clock):
    engine.enqueue(lanes(200, clock.now(), due_at=clock.now() + TOMORROW))
    assert walked(meter.engine) == []
    nothing = meter.of(lambda: meter.engine.turn([], wish(10)))
    assert nothing.requests >= 48


def test_lanes_that_were_quiet_a_second_ago_are_looked_into_again_beside_lanes_with_jobs(meter, engine, clock):
    engine.enqueue(lanes(200, clock.now(), due_at=clock.now() + TOMORROW))
    assert walked(meter.engine) == []
    clock.advance(seconds=1)
    job = enqueued(meter.engine)
    with meter:
        turn = meter.engine.turn([], wish(10))
    assert [one.id for one in turn.claimed] == [job.id]
    assert meter.last.requests >= 48


# -------------------------------------------------------------------------------------- while others move jobs


def test_a_job_that_was_moved_while_a_claim_looked_is_claimed_once(engine, clock, monkeypatch):
    """The claim has read it in two places, and a transaction with both would be refused as a whole."""
    paused(engine, tenant="nobody")
    jobs = [enqueued(engine, key=key, key_scope=Scope.PENDING) for key in ("ada", "eve")]
    scanned = engine_scan.ClaimScan.sources

    def sources(self, *args):
        first, left_out = scanned(self, *args)
        again, _ = scanned(self, *args)
        return [*first, *again], left_out

    monkeypatch.setattr(engine_scan.ClaimScan, "sources", sources)
    assert {job.id for job in claim(engine, 10)} == {job.id for job in jobs}
