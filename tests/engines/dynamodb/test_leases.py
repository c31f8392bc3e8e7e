"""Leases that are past and jobs that have expired: how often and how far the table is scanned for them."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    claim,
    claimed,
    current,
    enqueued,
    recover,
    running,
    settle,
)
from treadle.engines.dynamodb.items import id_of
from treadle.engines.dynamodb.leases import DEEP_PAGES, LEASE_PAGE
from treadle.engines.values import Lease, Ruling
from treadle.model import Reason, Scope, State, lifecycle
from treadle.model.lifecycle import Released, Succeeded

STEP = 0.1  # seconds


@pytest.fixture
def production(open_engine, far_url, layer, clock):
    """An engine that looks as seldom as in production, although time is moved by hand; its requests are counted."""
    engine = open_engine(far_url)
    engine._clock = clock.now
    engine.open()
    layer.forget()
    return engine


def watch(engine, clock, seconds):
    """Look every tenth of a second for so long; what was found first, and after how long."""
    for step in range(round(seconds / STEP) + 1):
        if found := engine.expired(limit=10):
            return found, step * STEP
        clock.advance(seconds=STEP)
    return [], seconds


# ------------------------------------------------------------------------------------------- leases: how often


def test_a_worker_with_nothing_to_watch_looks_every_two_seconds(production, layer, clock):
    assert watch(production, clock, 20) == ([], 20)
    looks = layer.count("Query") / (2 + 4)  # the slots, the one range, and the lists of what expires
    assert 8 <= looks <= 11


def test_a_worker_that_knows_when_the_next_lease_ends_looks_then(production, layer, clock):
    """What it claimed itself it knows; what others claimed it sees within two seconds."""
    job = running(production, worker="w1")
    found, after = watch(production, clock, LEASE + 2)
    assert [one.id for one in found] == [job.id]
    assert LEASE <= after <= LEASE + 2 * STEP


def test_between_two_looks_nothing_is_asked_for(production, layer, clock):
    production.expired(limit=10)
    layer.forget()
    for _ in range(15):
        clock.advance(seconds=STEP)
        production.expired(limit=10)
    assert layer.log == []


@pytest.mark.covers("003-S12.b")
@pytest.mark.parametrize("lease", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("late", [0.0, 0.7, 1.9])
def test_the_lease_of_another_process_is_found_within_two_seconds_of_its_end(
    production, make_engine, clock, lease, late
):
    other = make_engine()
    enqueued(other)
    production.expired(limit=10)
    clock.advance(seconds=late)
    [job] = claim(other, 1, lease=lease)
    found, after = watch(production, clock, lease + 2.0 + STEP)
    assert [one.id for one in found] == [job.id]
    assert after >= lease
    assert recover(production, found[0]).ruling is Ruling.APPLIED


def test_a_lease_that_is_renewed_is_never_found(production, make_engine, clock):
    other = make_engine()
    job = running(other)
    for _ in range(12):
        assert watch(production, clock, 10)[0] == []
        other.extend([Lease(job.id, job.lease_token)], lease=LEASE)
    assert watch(production, clock, LEASE + 2)[0][0].id == job.id


def test_after_a_full_answer_the_next_look_is_at_once(production, clock):
    jobs = production.enqueue([a_job(clock.now()) for _ in range(25)])
    claim(production, 25)
    clock.advance(seconds=LEASE)
    seen = set()
    for _ in range(3):
        found = production.expired(limit=10)
        seen |= {job.id for job in found}
        for job in found:
            recover(production, job)
    assert seen == {receipt.job.id for receipt in jobs}


def test_a_clock_that_was_set_back_does_not_keep_it_from_looking(production, layer, clock):
    production.expired(limit=10)
    layer.forget()
    clock.advance(hours=-1)
    production.expired(limit=10)
    assert layer.count("Query") > 0


# ---------------------------------------------------------------------------------------------- leases: the margin


@pytest.mark.covers("003-S13.b")
def test_a_lease_counts_as_past_only_after_the_margin_for_clocks_that_differ(open_engine, store_url, clock):
    engine = open_engine(store_url.replace("skew=0", "skew=5"), clock=clock.now)
    job = running(engine)
    clock.advance(seconds=LEASE + 5, microseconds=-1)
    assert engine.expired(limit=10) == []
    clock.advance(microseconds=1)
    assert [found.id for found in engine.expired(limit=10)] == [job.id]


def test_the_margin_is_half_a_second_unless_the_url_says_otherwise(open_engine, store_url, clock):
    engine = open_engine(store_url.replace("&skew=0", ""), clock=clock.now)
    job = running(engine)
    clock.advance(seconds=LEASE + 0.499)
    assert engine.expired(limit=10) == []
    clock.advance(seconds=0.001)
    assert [found.id for found in engine.expired(limit=10)] == [job.id]


# ------------------------------------------------------------------------------------------------ leases: how far


def a_backlog(engine, clock, number):
    """So many pending jobs that were due an hour ago."""
    hour = clock.now() - timedelta(hours=1)
    engine.enqueue([a_job(hour, due_at=hour + timedelta(microseconds=n + 1)) for n in range(number)])


def looks_until_found(engine, job, most):
    for number in range(most):
        if job.id in {found.id for found in engine.expired(limit=10)}:
            return number + 1
    return None


def test_a_running_job_behind_thousands_of_pending_ones_is_found(engine, clock):
    """Claims take from the head, so that is where leases are; but a lane or a task may be claimed from the middle."""
    job = running(engine)
    a_backlog(engine, clock, 3_000)
    clock.advance(seconds=LEASE)
    pages = 3_000 // LEASE_PAGE
    assert looks_until_found(engine, job, pages // DEEP_PAGES + 2) is not None


def test_the_slow_walk_begins_again_and_finds_what_ran_out_since(engine, clock):
    job = running(engine)
    a_backlog(engine, clock, 1_000)
    for _ in range(3 * (1_000 // LEASE_PAGE)):  # some rounds in which its lease is good
        assert engine.expired(limit=10) == []
    clock.advance(seconds=LEASE)
    assert looks_until_found(engine, job, 1_000 // LEASE_PAGE + 2) is not None


def test_one_look_reads_a_bounded_part_of_a_long_range(production, layer, make_engine, clock):
    a_backlog(make_engine(), clock, 3_000)
    layer.forget()
    production.expired(limit=10)
    assert layer.count("Query") <= 2 + 4 + 2 + DEEP_PAGES


def test_running_jobs_at_the_head_are_all_found_however_many(engine, clock):
    engine.enqueue([a_job(clock.now()) for _ in range(450)])
    held = {job.id for job in claim(engine, 450)}
    clock.advance(seconds=LEASE)
    assert {job.id for job in engine.expired(limit=1000)} == held


def test_a_lease_in_any_queue_lane_and_priority_is_found(engine, clock):
    places = [("default", "", 0), ("mail", "", 0), ("mail", "ada", 0), ("mail", "ada", -5), ("fax", "#~%", 9)]
    jobs = [running(engine, queue=queue, lane=lane, priority=priority) for queue, lane, priority in places]
    clock.advance(seconds=LEASE)
    assert {job.id for job in engine.expired(limit=100)} == {job.id for job in jobs}


def test_a_lease_of_a_parked_job_is_found(engine, clock):
    engine.enqueue([a_job(clock.now(), task="stranger") for _ in range(40)])
    claim(engine, 1, tasks=["greet"])  # files them
    [job] = claim(engine, 1, tasks=["stranger"])
    clock.advance(seconds=LEASE)
    assert [found.id for found in engine.expired(limit=100)] == [job.id]


# ---------------------------------------------------------------------------------------------------------- expiry


def lines(table):
    return [id_of(item) for item in table.items("expires#")]


def test_a_job_that_expires_has_a_line_until_it_ends(engine, table, clock):
    job = enqueued(engine, expires_at=clock.now() + timedelta(hours=1))
    assert lines(table) == [job.id]
    got = claimed(engine, job)
    assert lines(table) == [job.id]
    settle(engine, got, Succeeded("1"))
    assert lines(table) == []


def test_jobs_to_expire_are_found_at_their_time_and_not_before(engine, table, clock):
    soon = enqueued(engine, expires_at=clock.now() + timedelta(minutes=1))
    enqueued(engine, expires_at=clock.now() + timedelta(minutes=2))
    clock.advance(minutes=1, microseconds=-1)
    assert engine.expired(limit=10) == []
    clock.advance(microseconds=1)
    [found] = engine.expired(limit=10)
    assert found.id == soon.id
    assert engine.turn([lifecycle.expire(found, clock.now(), actor="sweep")]).verdicts[0].ruling is Ruling.APPLIED
    assert (current(engine, soon).state, current(engine, soon).reason) == (State.CANCELLED, Reason.EXPIRED)
    assert soon.id not in lines(table)


def test_a_job_that_runs_past_its_end_is_left_alone_and_found_once_it_waits_again(engine, clock):
    job = running(engine, expires_at=clock.now() + timedelta(seconds=10))
    clock.advance(seconds=10)
    assert engine.expired(limit=10) == []
    settle(engine, job, Released())
    assert [found.id for found in engine.expired(limit=10)] == [job.id]


def test_jobs_that_run_past_their_end_do_not_hide_those_that_wait(engine, clock):
    end = clock.now() + timedelta(seconds=10)
    for _ in range(12):
        running(engine, expires_at=end, queue="busy")
    waiting = {enqueued(engine, expires_at=end, queue="idle").id for _ in range(3)}
    clock.advance(seconds=10)
    assert {job.id for job in engine.expired(limit=3)} == waiting


def test_a_line_whose_job_is_gone_is_tidied_up(engine, table, clock):
    job = enqueued(engine, expires_at=clock.now() + timedelta(minutes=1))
    for place in table.places():
        if place.sk.endswith(job.id) and not place.pk.startswith("expires#"):
            table.remove(place)
    clock.advance(minutes=1)
    assert engine.expired(limit=10) == []
    assert lines(table) == []


@pytest.mark.parametrize("end", [timedelta(hours=2), None])
def test_a_replaced_end_replaces_the_line(engine, table, clock, end):
    job = enqueued(engine, expires_at=clock.now() + timedelta(hours=1), key="ada", key_scope=Scope.ACTIVE)
    asked = a_job(clock.now(), expires_at=None if end is None else clock.now() + end)
    engine.turn([lifecycle.replace(job, asked, clock.now(), actor="ada")])
    [kept] = table.items("expires#") or [None]
    assert (kept and kept["SK"]["S"]) == (end and f"2026-01-01T14:00:00.000000Z#{job.id}")
    clock.advance(hours=1)
    assert engine.expired(limit=10) == []


def test_an_expiry_is_found_within_two_seconds_in_production_too(production, clock):
    job = enqueued(production, expires_at=clock.now() + timedelta(seconds=7))
    found, after = watch(production, clock, 9)
    assert [one.id for one in found] == [job.id]
    assert 7 <= after <= 7 + 2 + STEP
