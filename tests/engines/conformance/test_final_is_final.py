"""Promise 7: final is final, except by an audited operator retry. And how jobs get there."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    as_if_holding,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    every_outcome,
    running,
    settle,
    start,
    traces,
    write,
)
from treadle.engines.values import JobFilter, Lease, Renewal, Ruling
from treadle.errors import NotPossible
from treadle.model import EventKind, Reason, Retry, State, lifecycle
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded, TimedOut

FINAL = [state for state in State if state.final]
AT_ONCE = Retry(max_attempts=3, base=0, jitter=0)


# ---------------------------------------------------------------------------------------- getting there


@pytest.mark.covers("001-R24.a", "001-R21", "000-AC-28", "002-Q4.a", "002-T1.a", "002-D4.a")
def test_a_job_goes_from_pending_to_running_to_succeeded(engine, clock):
    job = enqueued(engine)
    assert current(engine, job).state is State.PENDING
    held = start(engine, claimed(engine, job))
    assert current(engine, job).state is State.RUNNING
    clock.advance(seconds=2)

    settle(engine, held, Succeeded('{"sent":true}'))

    done = current(engine, job)
    assert (done.state, done.reason, done.error) == (State.SUCCEEDED, None, None)
    assert done.finished_at == clock.now()
    assert done.result == {"sent": True}
    assert done.lease_until is None
    assert done.started_at == clock.now() - timedelta(seconds=2)


@pytest.mark.covers("001-R24.b", "002-D4.a", "001-R21")
@pytest.mark.parametrize("reason", [Reason.PERMANENT, Reason.UNKNOWN_TASK, Reason.INVALID_PAYLOAD])
def test_a_job_that_no_attempt_can_help_fails_at_once_with_its_error(engine, clock, reason):
    job = running(engine)
    error = an_error(clock.now(), "no such customer")

    settle(engine, job, FailedForGood(reason, error))

    after = current(engine, job)
    assert (after.state, after.reason, after.error, after.failures) == (State.FAILED, reason, error, 0)
    assert after.finished_at == clock.now()
    assert claim(engine) == []


@pytest.mark.covers("000-AC-30", "000-AC-26.e", "004-T08.b", "004-T01.b", "003-S11.a", "002-D4.a", "003-S08.a")
def test_a_failure_with_budget_left_waits_for_a_later_due_time(engine, clock):
    job = running(engine, retry=Retry(max_attempts=4, base=30, cap=900, jitter=0))
    error = an_error(clock.now())

    settle(engine, job, Failed(error))

    after = current(engine, job)
    assert (after.state, after.failures, after.error) == (State.PENDING, 1, error)
    assert after.due_at == clock.now() + timedelta(seconds=30)
    assert claim(engine) == []
    clock.advance(seconds=30)
    assert [got.id for got in claim(engine)] == [job.id]


@pytest.mark.covers("001-R25.a")
def test_a_failure_under_a_base_of_zero_is_claimable_at_once(engine, clock):
    job = running(engine, retry=AT_ONCE)

    settle(engine, job, Failed(an_error(clock.now(), "first")))

    after = current(engine, job)
    assert (after.state, after.failures, after.error.message) == (State.PENDING, 1, "first")
    assert [got.id for got in claim(engine)] == [job.id]


@pytest.mark.covers(
    "001-R25.b", "001-R22.b", "001-R26.b", "000-AC-31", "000-AC-26.f", "004-T10.a", "002-T1.c", "002-O2.c"
)
@pytest.mark.parametrize("max_attempts", [1, 3, 4])
def test_the_last_allowed_failure_ends_the_job_and_every_one_before_leaves_it_claimable(engine, clock, max_attempts):
    job = enqueued(engine, retry=Retry(max_attempts=max_attempts, base=0, jitter=0))

    for attempt in range(1, max_attempts + 1):
        assert current(engine, job).state is State.PENDING
        held = claimed(engine, job)
        assert held.attempt == attempt
        settle(engine, held, Failed(an_error(clock.now(), f"failure {attempt}")))

    after = current(engine, job)
    assert (after.state, after.reason, after.failures) == (State.FAILED, Reason.EXHAUSTED, max_attempts)
    assert after.error.message == f"failure {max_attempts}"
    clock.advance(days=1000)
    assert claim(engine) == []
    assert current(engine, job) == after


@pytest.mark.covers("003-S11.b")
def test_the_waits_of_the_companion_are_60_120_240_480_and_the_fifth_failure_ends_it(engine, clock):
    job = enqueued(engine, retry=Retry(max_attempts=5, base=60, cap=None, jitter=0))
    waits = []

    while current(engine, job).state is State.PENDING:
        [held] = claim(engine, lease=300.0)
        settle(engine, held, Failed(an_error(clock.now())))
        after = current(engine, job)
        if after.state is State.PENDING:
            waits.append((after.due_at - clock.now()).total_seconds())
            clock.advance(seconds=waits[-1])

    assert waits == [60, 120, 240, 480]
    assert (after.state, after.attempt, after.label(clock.now())) == (State.FAILED, 5, "dead")


@pytest.mark.covers("002-T1.b", "002-Q5.a")
def test_a_retry_comes_after_the_backoff_of_the_jobs_own_row(engine, clock):
    waits = {}
    for base in (0, 7, 50):
        job = running(engine, retry=Retry(max_attempts=9, base=base, cap=40, jitter=10))
        engine.turn([lifecycle.settle(job, Failed(an_error(clock.now())), clock.now(), noise=0.25)])
        waits[base] = (current(engine, job).due_at - clock.now()).total_seconds()
        claim(engine)  # out of the way

    assert waits == {0: 2.5, 7: 9.5, 50: 42.5}


def test_a_timeout_that_spends_the_budget_says_so(engine, clock):
    job = running(engine, retry=Retry(max_attempts=1))

    settle(engine, job, TimedOut(an_error(clock.now(), "over 5 s")))

    after = current(engine, job)
    assert (after.state, after.reason, after.failures) == (State.FAILED, Reason.TIMEOUT, 1)


@pytest.mark.covers("002-D4.b", "002-T1.d", "002-Q6.a")
def test_a_pending_job_is_cancelled_at_once(engine, clock):
    job = enqueued(engine, due_at=clock.now() + timedelta(days=1))
    clock.advance(seconds=1)

    verdict = write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    after = current(engine, job)
    assert verdict.ruling is Ruling.APPLIED
    assert (after.state, after.reason, after.finished_at) == (State.CANCELLED, Reason.BY_REQUEST, clock.now())
    clock.advance(days=2)
    assert claim(engine) == []


# ----------------------------------------------------------------------------------------- staying there


@pytest.mark.covers("004-T01.b", "002-Q5.b")
@pytest.mark.parametrize("state", FINAL)
def test_no_write_of_a_worker_a_reaper_or_an_operator_changes_a_finished_job(engine, clock, state):
    waiting = enqueued(engine)
    held = claimed(engine, waiting)
    outcome = {
        State.SUCCEEDED: Succeeded("1"),
        State.FAILED: FailedForGood(Reason.PERMANENT, an_error(clock.now())),
        State.CANCELLED: lifecycle.Stopped("not wanted"),
    }[state]
    settle(engine, held, outcome)
    assert current(engine, held).state is state
    before = traces(engine)
    clock.advance(hours=1)
    now = clock.now()

    late = [
        *(lifecycle.settle(held, other, now) for other in every_outcome(now).values()),
        lifecycle.crash(held, now, actor="reaper"),
        lifecycle.cancel(held, now, actor="ann"),
        lifecycle.cancel(waiting, now, actor="ann"),
        lifecycle.expire(waiting, now, actor="upkeep"),
        lifecycle.replace(waiting, a_job(now), now, actor="enqueue"),
    ]
    verdicts = [write(engine, change) for change in late]
    renewals = engine.extend([Lease(held.id, held.lease_token, started_at=now)], lease=LEASE)

    assert Ruling.APPLIED not in {verdict.ruling for verdict in verdicts}
    assert renewals[0].renewal is Renewal.LOST
    assert engine.expired(limit=10) == []
    assert traces(engine) == before


@pytest.mark.parametrize("state", FINAL)
def test_a_finished_job_read_back_with_its_token_cannot_be_settled_anew(engine, clock, state):
    job = ended(engine, state)
    assert job.lease_token is not None
    before = traces(engine)

    for name, outcome in every_outcome(clock.now()).items():
        assert write(engine, as_if_holding(job, outcome, clock.now())).ruling is Ruling.LOST, name
        assert traces(engine) == before


@pytest.mark.parametrize("state", FINAL)
def test_a_finished_job_cannot_be_cancelled(engine, clock, state):
    with pytest.raises(NotPossible, match=f"already ended {state}"):
        lifecycle.cancel(ended(engine, state), clock.now(), actor="ann")


@pytest.mark.parametrize("state", FINAL)
def test_a_finished_job_is_still_found(engine, clock, state):
    job = ended(engine, state, task="mail", tenant="acme")
    clock.advance(days=100)

    assert engine.get([job.id]) == [job]
    for where in (JobFilter(), JobFilter(state=state), JobFilter(task="mail"), JobFilter(tenant="acme", state=state)):
        assert engine.find(where, limit=10).jobs == [job]
        assert engine.count(where) == {state: 1}
    written = {State.SUCCEEDED: [], State.FAILED: [EventKind.FAILED], State.CANCELLED: [EventKind.CANCELLED]}[state]
    assert [event.kind for event in engine.events(job.id)] == written


# ----------------------------------------------------------------------------------- the operator's retry


@pytest.mark.covers("002-Q7.a")
@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_an_operators_retry_brings_the_job_back_with_a_fresh_budget(engine, clock, state):
    job = ended(engine, state, retry=AT_ONCE, expires_at=clock.now() + timedelta(hours=1))
    clock.advance(hours=2)

    change = lifecycle.retry(job, clock.now(), actor="ann", note="the mail server is back")
    assert write(engine, change).ruling is Ruling.APPLIED

    again = current(engine, job)
    assert again == change.after
    assert (again.state, again.reason, again.finished_at) == (State.PENDING, None, None)
    assert (again.failures, again.crashes, again.attempt) == (0, 0, 1)
    assert again.due_at == clock.now()
    assert engine.expired(limit=10) == []
    event = engine.events(job.id)[-1]
    assert (event.kind, event.actor, event.note) == (EventKind.RETRIED, "ann", "the mail server is back")
    assert event.revision == again.revision
    assert runs_until_it_ends(engine, clock, job) == 3


def test_a_retried_job_is_no_longer_among_the_finished_ones(engine, clock):
    job = ended(engine, State.FAILED)

    write(engine, lifecycle.retry(job, clock.now(), actor="ann"))

    assert engine.count(JobFilter()) == {State.PENDING: 1}
    assert engine.find(JobFilter(state=State.FAILED), limit=10).jobs == []
    assert [found.id for found in engine.find(JobFilter(), limit=10).jobs] == [job.id]
    settle(engine, claimed(engine, job), Succeeded("1"))
    assert engine.count(JobFilter()) == {State.SUCCEEDED: 1}


@pytest.mark.covers("002-Q7.b")
def test_a_retry_that_keeps_the_attempts_gives_exactly_one_more_run(engine, clock):
    job = enqueued(engine, retry=AT_ONCE)
    assert runs_until_it_ends(engine, clock, job) == 3

    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann", keep_attempts=True))

    assert runs_until_it_ends(engine, clock, job) == 1
    after = current(engine, job)
    assert (after.state, after.failures, after.attempt) == (State.FAILED, 4, 4)


def test_a_retry_that_keeps_the_attempts_can_succeed(engine, clock):
    job = enqueued(engine, retry=AT_ONCE)
    runs_until_it_ends(engine, clock, job)
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann", keep_attempts=True))

    settle(engine, claimed(engine, job), Succeeded("1"))

    assert current(engine, job).state is State.SUCCEEDED


def test_a_cancelled_job_that_is_retried_forgets_the_cancel_request(engine, clock):
    job = running(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
    settle(engine, current(engine, job), Failed(an_error(clock.now())))
    assert current(engine, job).state is State.CANCELLED

    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="bob"))
    again = claimed(engine, job)

    assert not again.cancel_requested
    assert engine.extend([Lease(job.id, again.lease_token)], lease=LEASE)[0].cancel_requested is False


def test_the_old_holder_of_a_retried_job_is_a_stranger(engine, clock):
    job = running(engine)
    settle(engine, job, FailedForGood(Reason.PERMANENT, an_error(clock.now())))
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))
    again = current(engine, job)

    for outcome in every_outcome(clock.now()).values():
        assert settle(engine, job, outcome).ruling is Ruling.LOST
    assert current(engine, job) == again


def test_a_succeeded_job_is_not_retried(engine, clock):
    with pytest.raises(NotPossible, match="enqueue a new one"):
        lifecycle.retry(ended(engine, State.SUCCEEDED), clock.now(), actor="ann")


def runs_until_it_ends(engine, clock, job):
    """How often the job runs, failing each time, until it is final."""
    runs = 0
    while not current(engine, job).state.final:
        settle(engine, claimed(engine, job), Failed(an_error(clock.now())))
        runs += 1
        assert runs < 50
    return runs
