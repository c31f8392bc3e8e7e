"""Promise 5: crashes are found and counted so that poison ends and neighbours do not pay."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
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
    start,
    write,
)
from treadle.engines.values import JobFilter, Lease, Ruling
from treadle.model import EventKind, Reason, Retry, State, lifecycle
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded

THREE = Retry(max_attempts=3, base=0, jitter=0)


def test_only_leases_that_are_past_are_listed(engine, clock):
    short = claimed(engine, enqueued(engine), lease=10.0)
    long = claimed(engine, enqueued(engine), lease=20.0)
    enqueued(engine)
    ended(engine, State.SUCCEEDED, queue="other")

    clock.advance(seconds=10, microseconds=-1)
    assert engine.expired(limit=10) == []
    clock.advance(microseconds=1)
    assert engine.expired(limit=10) == [short]
    clock.advance(seconds=10)
    assert engine.expired(limit=10) == [short, long]


def test_a_look_at_expired_leases_writes_nothing_and_keeps_to_its_limit(engine, clock):
    jobs = [running(engine) for _ in range(5)]
    clock.advance(seconds=LEASE)

    assert len(engine.expired(limit=3)) == 3
    assert engine.expired(limit=3) == engine.expired(limit=3)
    assert sorted(engine.expired(limit=10)) == sorted(jobs)
    assert engine.get([job.id for job in jobs]) == jobs


def test_a_renewed_lease_is_not_listed(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE - 1)
    engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)
    clock.advance(seconds=LEASE - 1)

    assert engine.expired(limit=10) == []


@pytest.mark.covers("003-S12.b", "003-S08.a", "002-D4.c", "000-R18.a", "002-T1.f")
def test_after_a_crash_another_worker_gets_the_job(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE)
    assert claim(engine, worker="w2") == []

    crashed(engine, clock, job)
    [again] = claim(engine, worker="w2")

    assert (again.id, again.worker, again.attempt) == (job.id, "w2", 2)
    assert settle(engine, again, Succeeded()).ruling is Ruling.APPLIED


def test_a_recovered_job_is_pending_at_its_old_place_and_says_what_happened(engine, clock):
    job = start(engine, running(engine))
    after = crashed(engine, clock, job)

    assert after.state is State.PENDING
    assert (after.due_at, after.attempt, after.revision) == (job.due_at, 1, job.revision + 1)
    assert (after.worker, after.lease_until, after.lease_token) == (None, None, None)
    assert after.error.type == "Crashed"
    assert "w1" in after.error.message
    assert [(event.kind, event.actor) for event in engine.events(job.id)] == [(EventKind.CRASHED, "reaper")]


@pytest.mark.parametrize("began", [True, False], ids=["started", "not started"])
def test_the_first_crash_is_free_for_everybody(engine, clock, began):
    job = running(engine, retry=THREE)
    if began:
        start(engine, job)

    after = crashed(engine, clock, job)

    assert (after.state, after.crashes, after.failures) == (State.PENDING, 1, 0)


def test_a_suspect_that_had_started_pays_for_its_crash(engine, clock):
    job = crashed(engine, clock, running(engine, retry=THREE))

    after = crashed(engine, clock, start(engine, claimed(engine, job)))

    assert (after.state, after.crashes, after.failures) == (State.PENDING, 2, 1)


def test_a_suspect_that_had_not_started_does_not_pay(engine, clock):
    job = crashed(engine, clock, start(engine, running(engine, retry=THREE)))

    after = crashed(engine, clock, claimed(engine, job))

    assert (after.state, after.crashes, after.failures) == (State.PENDING, 2, 0)


@pytest.mark.covers("000-R18.b")
def test_a_job_with_one_attempt_that_had_started_fails_at_its_first_crash(engine, clock):
    job = start(engine, running(engine, retry=Retry(max_attempts=1)))

    after = crashed(engine, clock, job)

    assert (after.state, after.reason) == (State.FAILED, Reason.CRASHED)
    assert (after.crashes, after.failures) == (1, 1)
    assert after.finished_at == clock.now()
    assert claim(engine) == []


def test_a_job_with_one_attempt_that_had_not_started_gets_its_attempt(engine, clock):
    after = crashed(engine, clock, running(engine, retry=Retry(max_attempts=1)))

    assert (after.state, after.crashes, after.failures) == (State.PENDING, 1, 0)
    settle(engine, claimed(engine, after), Succeeded())
    assert current(engine, after).state is State.SUCCEEDED


def test_a_job_stale_for_half_an_hour_is_pending_again_while_budget_is_left(engine, clock):
    job = claimed(engine, enqueued(engine, retry=Retry(max_attempts=4, base=30, cap=900, jitter=0)), lease=1800.0)
    clock.advance(minutes=30)

    [stale] = engine.expired(limit=10)
    recover(engine, stale)

    assert current(engine, job).state is State.PENDING


@pytest.mark.covers("002-D4.c", "002-Q8.c")
@pytest.mark.parametrize("max_attempts", [2, 3, 5])
def test_poison_ends_failed_after_one_crash_more_than_it_has_attempts(engine, clock, max_attempts):
    job = enqueued(engine, retry=Retry(max_attempts=max_attempts))
    crashes = 0

    while current(engine, job).state is not State.FAILED:
        crashed(engine, clock, start(engine, claimed(engine, job)))
        crashes += 1
        assert crashes <= max_attempts + 1

    after = current(engine, job)
    assert crashes == max_attempts + 1
    assert (after.reason, after.crashes, after.failures) == (Reason.CRASHED, max_attempts + 1, max_attempts)
    assert [event.kind for event in engine.events(job.id)] == [EventKind.CRASHED] * max_attempts + [EventKind.FAILED]
    assert claim(engine) == []


def test_neighbours_that_never_start_beside_poison_never_pay(engine, clock):
    job = enqueued(engine, retry=Retry(max_attempts=2))

    for _ in range(20):
        crashed(engine, clock, claimed(engine, job))

    after = current(engine, job)
    assert (after.state, after.crashes, after.failures, after.attempt) == (State.PENDING, 20, 0, 20)
    settle(engine, claimed(engine, job), Succeeded())
    assert current(engine, job).state is State.SUCCEEDED


def test_crashes_and_failures_draw_on_one_budget(engine, clock):
    job = running(engine, retry=THREE)
    settle(engine, job, Failed(an_error(clock.now())))
    crashed(engine, clock, claimed(engine, job))
    crashed(engine, clock, start(engine, claimed(engine, job)))
    assert current(engine, job).failures == 2

    settle(engine, claimed(engine, job), Failed(an_error(clock.now())))

    after = current(engine, job)
    assert (after.state, after.reason, after.failures, after.crashes) == (State.FAILED, Reason.EXHAUSTED, 3, 2)


@pytest.mark.parametrize("outcome", [Released(), Snoozed(0)], ids=["release", "snooze"])
def test_a_clean_stop_spends_nothing(engine, clock, outcome):
    job = enqueued(engine, retry=Retry(max_attempts=1))

    for _ in range(10):
        settle(engine, start(engine, claimed(engine, job)), outcome)

    after = current(engine, job)
    assert (after.state, after.failures, after.crashes) == (State.PENDING, 0, 0)


def test_a_crash_after_a_cancel_request_ends_cancelled(engine, clock):
    job = running(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    after = crashed(engine, clock, job)

    assert (after.state, after.reason, after.crashes) == (State.CANCELLED, Reason.BY_REQUEST, 1)


def test_pending_jobs_past_their_expiry_are_listed_and_end_expired(engine, clock):
    soon = enqueued(engine, expires_at=clock.now() + timedelta(minutes=1))
    later = enqueued(engine, expires_at=clock.now() + timedelta(minutes=1, microseconds=1))
    asleep = enqueued(engine, due_at=clock.now() + timedelta(days=1), expires_at=clock.now() + timedelta(minutes=1))
    clock.advance(minutes=1)

    found = engine.expired(limit=10)
    verdicts = engine.turn([lifecycle.expire(job, clock.now(), actor="upkeep") for job in found]).verdicts

    assert sorted(found) == sorted([soon, asleep])
    assert [verdict.ruling for verdict in verdicts] == [Ruling.APPLIED] * 2
    after = current(engine, soon)
    assert (after.state, after.reason, after.finished_at) == (State.CANCELLED, Reason.EXPIRED, clock.now())
    assert after.label(clock.now()) == "expired"
    assert [job.id for job in claim(engine)] == [later.id]


def test_a_running_job_past_its_expires_at_may_finish(engine, clock):
    job = running(engine, expires_at=clock.now() + timedelta(seconds=5))
    clock.advance(seconds=6)

    assert engine.expired(limit=10) == []
    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


def test_leases_and_expiries_share_the_limit_of_one_look(engine, clock):
    for _ in range(3):
        running(engine)
    for _ in range(3):
        enqueued(engine, expires_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=LEASE)

    assert [len(engine.expired(limit=limit)) for limit in (2, 4, 6, 9)] == [2, 4, 6, 6]


def test_a_crowd_of_crashed_jobs_is_recovered_in_one_turn(engine, clock):
    jobs = [enqueued(engine) for _ in range(100)]
    claim(engine, 100)
    clock.advance(seconds=LEASE)

    found = engine.expired(limit=1000)
    verdicts = engine.turn([lifecycle.crash(job, clock.now(), actor="reaper") for job in found]).verdicts

    assert {verdict.ruling for verdict in verdicts} == {Ruling.APPLIED}
    assert engine.count(JobFilter()) == {State.PENDING: 100}
    assert [job.id for job in claim(engine, 100)] == [job.id for job in jobs]
