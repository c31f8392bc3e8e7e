"""Where due jobs lie: slots that are written down before they are used, lanes that share, shards that come and go."""

import random
from collections import defaultdict
from datetime import timedelta
from itertools import cycle
from zlib import crc32

import pytest

from tests.support.making import a_job, an_error, claim, claimed, crashed, current, enqueued, race, running, settle
from treadle import EngineUnavailable
from treadle.engines.dynamodb import client, scan
from treadle.engines.dynamodb.items import PLAIN, ItemKey, Slot
from treadle.model import State
from treadle.model.lifecycle import Failed, Succeeded


@pytest.fixture
def sharded(open_engine, store_url, clock):
    """`sharded(8)`: an engine on the same table that spreads its jobs over so many shards."""
    return lambda shards, url=store_url: open_engine(f"{url}&shards={shards}", clock=clock.now)


def shard_of(job, shards):
    return crc32(job.id.encode()) % shards


def slots(table, queue="default"):
    return [item for item in table.items("slots") if item["queue"]["S"] == queue]


def drained(engine, **wish):
    """Every job that claims give, ten at a time."""
    got = []
    while some := claim(engine, 10, **wish):
        got += some
    return got


# ------------------------------------------------------------------------------------------------ written down


def test_a_slot_is_written_down_before_its_first_job(open_engine, far_url, layer, table, clock, monkeypatch):
    monkeypatch.setitem(client.Client.write.__kwdefaults__, "retry_for", 0.05)
    engine = open_engine(far_url, clock=clock.now)
    layer.fail("TransactWriteItems")
    with pytest.raises(EngineUnavailable):
        enqueued(engine, queue="mail", lane="ada", priority=7)
    assert table.items("job") == []
    assert table.places("slots") == [ItemKey("slots", Slot("mail", "ada", 7).name)]
    layer.calm()
    layer.forget()
    enqueued(engine, queue="fax")
    assert [exchange.operation for exchange in layer.log] == ["UpdateItem", "TransactWriteItems"]


def test_a_slot_that_could_not_be_written_down_gets_no_job(open_engine, far_url, layer, table, clock, monkeypatch):
    monkeypatch.setitem(client.Client.write.__kwdefaults__, "retry_for", 0.05)
    engine = open_engine(far_url, clock=clock.now)
    layer.fail("UpdateItem")
    with pytest.raises(EngineUnavailable):
        enqueued(engine, queue="mail")
    assert [place.pk for place in table.places()] == ["meta"]


def test_a_claim_that_begins_after_the_enqueue_sees_a_slot_that_is_new(make_engine, clock):
    reader, writer = make_engine(), make_engine()
    enqueued(writer)
    assert len(claim(reader)) == 1  # it knows the slots there were
    job = enqueued(writer, lane="new", priority=3)
    assert [got.id for got in claim(reader)] == [job.id]


def test_a_slot_is_written_once_by_many_processes_at_once(make_engine, table, clock):
    engines = [make_engine() for _ in range(4)]
    for engine in engines:
        engine.open()
    jobs = race(4, lambda place: enqueued(engines[place], queue="mail", lane="ada"))
    [slot] = slots(table, "mail")
    assert slot["shards"] == {"N": "1"}
    assert {job.id for job in claim(engines[0], queues=["mail"])} == {job.id for job in jobs}


# ------------------------------------------------------------------------------------------------- many lanes


MOST, BUCKETS = 48, 16  # as the guide says
LANES = [f"lane {number}" for number in range(100)]


@pytest.fixture
def crowded(engine, clock):
    """A hundred lanes with two jobs each, of two priorities."""
    engine.enqueue([a_job(clock.now(), lane=lane, priority=priority) for lane in LANES for priority in (0, 1)])
    return engine


def test_there_are_never_more_slots_than_a_claim_can_look_at(crowded, table):
    assert len(slots(table)) <= MOST + 2 * BUCKETS
    assert sum(item["hashed"]["BOOL"] for item in slots(table)) <= 2 * BUCKETS


@pytest.mark.parametrize("lane", [LANES[0], LANES[60], LANES[99]])
def test_a_lane_is_claimed_by_its_name_whether_it_has_a_slot_or_shares_one(crowded, lane):
    got = drained(crowded, lanes=[lane])
    assert [(job.lane, job.priority) for job in got] == [(lane, 1), (lane, 0)]


def test_every_job_of_many_lanes_is_claimed_once(crowded):
    got = drained(crowded)
    assert len(got) == len({job.id for job in got}) == 2 * len(LANES)
    assert {job.lane for job in got} == set(LANES)


def test_a_process_that_comes_later_finds_every_lane_and_makes_no_further_slot(crowded, make_engine, table, clock):
    before = len(slots(table))
    later = make_engine()
    jobs = [enqueued(later, lane=lane) for lane in (LANES[3], LANES[80], "quite new")]
    assert len(slots(table)) <= max(before, MOST + 2 * BUCKETS)
    for job in jobs:
        assert job.id in {got.id for got in drained(crowded, lanes=[job.lane])}


def test_a_job_without_a_lane_never_shares(crowded, table, clock):
    job = enqueued(crowded)
    assert ItemKey(*current_place(table, job)) == ItemKey("job", f"scheduled#2026-01-01T12:00:00.000000Z#{job.id}")
    assert [got.id for got in claim(crowded, lanes=[""])] == [job.id]


def current_place(table, job):
    [item] = [item for item in table.items("job") if item["SK"]["S"].endswith(job.id)]
    return item["PK"]["S"], item["SK"]["S"]


def test_a_job_of_a_shared_slot_is_retried_and_settled_like_any_other(crowded, clock):
    [first, second] = drained(crowded, lanes=[LANES[99]])
    settle(crowded, first, Failed(an_error(clock.now())))
    settle(crowded, second, Succeeded("1"))
    clock.advance(minutes=1)
    assert [job.id for job in drained(crowded, lanes=[LANES[99]])] == [first.id]


def test_other_queues_do_not_count(crowded, table, clock):
    enqueued(crowded, queue="small", lane="a lane of its own")
    [slot] = slots(table, "small")
    assert slot["hashed"] == {"BOOL": False}


# ------------------------------------------------------------------------------------------------------ shards


def test_shards_raised_and_lowered_on_a_live_table_lose_no_job(sharded, clock):
    jobs = []
    for shards in (1, 8, 2):
        engine = sharded(shards)
        receipts = engine.enqueue([a_job(clock.now()) for _ in range(60)])
        jobs += [receipt.job.id for receipt in receipts]
    for shards in (1, 2, 8):
        got = claim(sharded(shards), 50)
        assert len(got) == 50
        jobs = [id for id in jobs if id not in {job.id for job in got}]
    assert {job.id for job in drained(sharded(1))} == set(jobs)


def test_two_engines_of_different_shards_share_a_table(sharded, clock):
    """The one of fewer finds what the other has spread, and the other finds everything too."""
    narrow, wide = sharded(1), sharded(8)
    mine = [enqueued(narrow) for _ in range(20)]
    spread = [enqueued(wide) for _ in range(40)]
    by_narrow, by_wide = claim(narrow, 30), claim(wide, 30)
    assert {job.id for job in by_narrow + by_wide} == {job.id for job in mine + spread}
    for job in by_narrow:  # the other one may end it, move it and find it again
        assert settle(wide, job, Failed(an_error(clock.now()))).ruling.value == "applied"
    clock.advance(minutes=1)
    assert {job.id for job in drained(narrow)} == {job.id for job in by_narrow}


def test_a_crash_in_any_shard_is_found_by_an_engine_of_fewer(sharded, clock):
    wide, narrow = sharded(8), sharded(1)
    jobs = [running(wide) for _ in range(16)]
    assert {shard_of(job, 8) for job in jobs} != {0}
    for job in jobs:
        assert crashed(narrow, clock, job).crashes == 1


def test_jobs_are_spread_over_all_shards(sharded, table, clock):
    sharded(4).enqueue([a_job(clock.now()) for _ in range(100)])
    partitions = {place.pk for place in table.places("job")}
    assert partitions == {PLAIN.partition(shard) for shard in range(4)}


def test_a_claim_begins_at_a_random_shard(sharded, clock, monkeypatch):
    """Were it always the first, all workers would write to one partition until it is empty."""
    engine = sharded(4)
    engine.enqueue([a_job(clock.now()) for _ in range(200)])
    monkeypatch.setattr(scan.random, "randrange", random.Random(7).randrange)
    shards = [shard_of(job, 4) for _ in range(24) for job in claim(engine, 1)]
    assert set(shards) == {0, 1, 2, 3}
    assert max(map(shards.count, range(4))) <= 12


def test_a_claim_goes_on_to_the_next_shard_when_one_is_empty(sharded, clock, monkeypatch):
    engine = sharded(4)
    jobs = [enqueued(engine) for _ in range(12)]
    starts = cycle(range(4))
    monkeypatch.setattr(scan.random, "randrange", lambda _: next(starts))
    assert {job.id for job in claim(engine, 12)} == {job.id for job in jobs}


@pytest.mark.covers("003-S18.b")
@pytest.mark.parametrize("shards", [1, 4])
def test_within_a_shard_jobs_come_in_the_order_of_their_due_time(sharded, clock, shards):
    engine = sharded(shards)
    now, dice = clock.now(), random.Random(7)
    moments = [now + timedelta(seconds=dice.randrange(1000)) for _ in range(80)]
    engine.enqueue([a_job(now, due_at=moment) for moment in moments])
    clock.advance(seconds=1000)
    order = defaultdict(list)
    for _ in range(80):
        [job] = claim(engine, 1)
        order[shard_of(job, shards)].append((job.due_at, job.id))
    assert len(order) == shards
    assert all(line == sorted(line) for line in order.values())
    assert sum(map(len, order.values())) == 80


def test_the_urgent_come_first_whatever_shard_they_are_in(sharded, clock):
    engine = sharded(8)
    low = [enqueued(engine) for _ in range(20)]
    high = [enqueued(engine, priority=1) for _ in range(20)]
    first = [job for _ in range(4) for job in claim(engine, 5)]
    assert {job.id for job in first} == {job.id for job in high}
    assert {job.id for job in drained(engine)} == {job.id for job in low}


def test_a_slot_keeps_the_most_shards_it_ever_had(sharded, table, clock):
    for shards, written in ((2, 2), (8, 8), (4, 8), (1, 8)):
        enqueued(sharded(shards))
        [slot] = slots(table)
        assert slot["shards"] == {"N": str(written)}


def test_a_claimed_job_of_many_shards_ends_where_every_engine_finds_its_record(sharded, clock):
    wide = sharded(256)
    job = claimed(wide, enqueued(wide))
    settle(wide, job, Succeeded("1"))
    assert current(sharded(1), job).state is State.SUCCEEDED
