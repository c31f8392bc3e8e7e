"""THE state machine, as a table of what leads where, and as laws that hold for every job."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.making import OUTCOMES, a_job, an_error, every_outcome
from tests.support.sizes import size
from treadle.errors import NotPossible
from treadle.model import (
    EventKind,
    Fence,
    FollowUp,
    Job,
    OnEnd,
    Progress,
    Reason,
    Retry,
    Scope,
    State,
    lifecycle,
    new_id,
)
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Stopped, Succeeded, TimedOut
from treadle.testing import FakeClock

NOW = FakeClock().now()
BEFORE = NOW - timedelta(minutes=1)


def held(**fields: object) -> Job:
    """A job in the hands of a worker, on its first attempt."""
    given = {
        "state": State.RUNNING,
        "attempt": 1,
        "revision": 1,
        "worker": "w1",
        "lease_token": "t1",
        "claimed_at": BEFORE,
        "lease_until": NOW + timedelta(seconds=30),
    }
    return a_job(BEFORE, **{**given, **fields})


# ------------------------------------------------------------------------------------- what leads where


@pytest.mark.covers("001-R21", "002-D4.a")
@pytest.mark.parametrize(
    ("name", "state", "reason", "what"),
    [
        ("success", State.SUCCEEDED, None, EventKind.SUCCEEDED),
        ("failure", State.PENDING, None, EventKind.RETRYING),
        ("failure with its own delay", State.PENDING, None, EventKind.RETRYING),
        ("timeout", State.PENDING, None, EventKind.RETRYING),
        ("failure for good", State.FAILED, Reason.PERMANENT, EventKind.FAILED),
        ("snooze", State.PENDING, None, EventKind.SNOOZED),
        ("release", State.PENDING, None, EventKind.RELEASED),
        ("stop", State.CANCELLED, Reason.BY_REQUEST, EventKind.CANCELLED),
    ],
)
def test_an_attempt_ends_where_its_outcome_leads(name, state, reason, what):
    change = lifecycle.settle(held(), every_outcome(NOW)[name], NOW)

    assert (change.after.state, change.after.reason, change.kind) == (state, reason, what)
    assert (change.fence, change.at, change.actor) == (Fence.HOLDER, NOW, "w1")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("failure", Reason.EXHAUSTED),
        ("failure with its own delay", Reason.EXHAUSTED),
        ("timeout", Reason.TIMEOUT),
        ("failure for good", Reason.PERMANENT),
    ],
)
def test_a_failure_that_spends_the_last_attempt_ends_the_job_and_says_why(name, reason):
    change = lifecycle.settle(held(failures=4, retry=Retry(max_attempts=5)), every_outcome(NOW)[name], NOW)

    assert (change.after.state, change.after.reason, change.kind) == (State.FAILED, reason, EventKind.FAILED)
    assert change.note == "boom"


@pytest.mark.parametrize("name", OUTCOMES)
def test_after_a_cancel_request_success_stays_and_any_other_way_out_ends_cancelled(name):
    change = lifecycle.settle(held(cancel_requested=True), every_outcome(NOW)[name], NOW)

    state = State.SUCCEEDED if name == "success" else State.CANCELLED
    assert change.after.state is state
    assert change.after.reason is (None if name == "success" else Reason.BY_REQUEST)


def test_the_error_of_an_attempt_is_kept_though_the_job_ends_cancelled():
    for outcome in (Failed(an_error(NOW, "last words")), TimedOut(an_error(NOW, "last words"))):
        change = lifecycle.settle(held(cancel_requested=True), outcome, NOW)

        assert change.after.error.message == "last words"


def test_a_success_takes_its_result_and_forgets_earlier_errors():
    change = lifecycle.settle(held(error=an_error(BEFORE), failures=2), Succeeded('"done"'), NOW)

    assert (change.after.result, change.after.error, change.after.failures) == ("done", None, 2)
    assert change.after.finished_at == NOW


def test_an_end_is_never_before_its_start():
    ahead = NOW + timedelta(seconds=5)
    late, early = held(started_at=ahead), held(started_at=BEFORE)

    assert lifecycle.settle(late, Succeeded(), NOW).after.finished_at == ahead
    assert lifecycle.settle(early, Succeeded(), NOW).after.finished_at == NOW


def test_a_failure_is_due_after_the_backoff_of_its_row():
    retry = Retry(max_attempts=9, base=10, cap=None, jitter=4)

    waits = [
        (lifecycle.settle(held(failures=k, retry=retry), Failed(an_error(NOW)), NOW, noise=0.5).after.due_at - NOW)
        for k in range(4)
    ]

    assert [wait.total_seconds() for wait in waits] == [12, 22, 42, 82]


def test_a_failure_may_choose_its_own_delay_and_still_spends_one():
    change = lifecycle.settle(held(retry=Retry(jitter=9)), Failed(an_error(NOW), 7.0), NOW, noise=0.9)

    assert change.after.due_at == NOW + timedelta(seconds=7)
    assert change.after.failures == 1


def test_a_delay_of_zero_is_a_delay():
    change = lifecycle.settle(held(), Failed(an_error(NOW), 0.0), NOW)

    assert change.after.due_at == NOW


@pytest.mark.parametrize("failures", [20, 40, 9_000])
def test_a_backoff_without_a_cap_never_leaves_the_calendar(failures):
    job = held(retry=Retry(max_attempts=10_000, base=60, cap=None), failures=failures)

    change = lifecycle.settle(job, Failed(an_error(NOW)), NOW)

    assert change.after.state is State.PENDING
    assert change.after.due_at > NOW


def test_a_snooze_spends_nothing_and_comes_back_when_it_said():
    change = lifecycle.settle(held(failures=4, retry=Retry(max_attempts=5)), Snoozed(90), NOW)

    assert change.after.due_at == NOW + timedelta(seconds=90)
    assert (change.after.failures, change.after.crashes) == (4, 0)


def test_a_release_spends_nothing_and_keeps_its_place():
    job = held(failures=4, retry=Retry(max_attempts=5))

    change = lifecycle.settle(job, Released(), NOW)

    assert change.after.due_at == job.due_at
    assert change.after.failures == 4


def test_a_settle_keeps_the_holders_token_so_that_its_repetition_is_known():
    for outcome in every_outcome(NOW).values():
        assert lifecycle.settle(held(), outcome, NOW).after.lease_token == "t1"


def test_a_stop_says_why():
    assert lifecycle.settle(held(), Stopped("not on Sundays"), NOW).note == "not on Sundays"


def test_the_actor_of_a_job_without_a_worker_is_called_worker():
    assert lifecycle.settle(held(worker=None), Succeeded(), NOW).actor == "worker"


# ------------------------------------------------------------------------------------------------- crash


@pytest.mark.parametrize(
    ("fields", "state", "failures"),
    [
        ({}, State.PENDING, 0),
        ({"started_at": NOW}, State.PENDING, 0),
        ({"crashes": 1}, State.PENDING, 0),
        ({"crashes": 1, "started_at": NOW}, State.PENDING, 1),
        ({"crashes": 9, "failures": 3, "started_at": NOW}, State.PENDING, 4),
        ({"crashes": 9, "failures": 4, "started_at": NOW}, State.FAILED, 5),
        ({"crashes": 9, "failures": 4}, State.PENDING, 4),
        ({"retry": Retry(max_attempts=1)}, State.PENDING, 0),
        ({"retry": Retry(max_attempts=1), "started_at": NOW}, State.FAILED, 1),
        ({"retry": Retry(max_attempts=1), "crashes": 5}, State.PENDING, 0),
        ({"failures": 4, "started_at": NOW}, State.PENDING, 4),
        ({"cancel_requested": True}, State.CANCELLED, 0),
        ({"cancel_requested": True, "crashes": 1, "started_at": NOW}, State.CANCELLED, 1),
    ],
    ids=lambda given: ",".join(given) if isinstance(given, dict) else str(given),
)
def test_a_crash_is_free_unless_a_suspect_had_started(fields, state, failures):
    job = held(**fields)

    change = lifecycle.crash(job, NOW, actor="reaper")

    assert (change.after.state, change.after.failures) == (state, failures)
    assert change.after.crashes == job.crashes + 1
    assert change.after.reason is {State.FAILED: Reason.CRASHED, State.CANCELLED: Reason.BY_REQUEST}.get(state)


@pytest.mark.parametrize("begun", [None, NOW], ids=["claimed", "started"])
@pytest.mark.parametrize(
    ("fields", "state", "failures"),
    [
        ({}, State.PENDING, 1),
        ({"crashes": 1}, State.PENDING, 1),
        ({"failures": 3}, State.PENDING, 4),
        ({"failures": 4}, State.FAILED, 5),
        ({"retry": Retry(max_attempts=1)}, State.FAILED, 1),
        ({"cancel_requested": True, "failures": 4}, State.CANCELLED, 5),
    ],
    ids=lambda given: ",".join(given) if isinstance(given, dict) else str(given),
)
def test_where_claims_count_every_lost_one_is_an_attempt(begun, fields, state, failures):
    job = held(**fields, started_at=begun)

    change = lifecycle.crash(job, NOW, actor="reaper", count_claims=True)

    assert (change.after.state, change.after.failures, change.after.crashes) == (state, failures, job.crashes + 1)


def test_a_crash_is_the_reapers_write_and_takes_the_token_away():
    job = held()

    change = lifecycle.crash(job, NOW, actor="reaper")

    assert (change.before, change.fence, change.actor, change.kind) == (
        job,
        Fence.RECOVERY,
        "reaper",
        EventKind.CRASHED,
    )
    assert (change.after.lease_token, change.after.lease_until, change.after.worker) == (None, None, None)
    assert change.after.due_at == job.due_at
    assert change.after.error.type == "Crashed"
    assert change.after.error.attempt == 1


# --------------------------------------------------------------------------------------------- operators


def test_cancel_ends_a_waiting_job_asks_a_running_one_and_refuses_a_finished_one():
    waiting, running = a_job(BEFORE), held()

    at_once = lifecycle.cancel(waiting, NOW, actor="ann", note="why")
    asked = lifecycle.cancel(running, NOW, actor="ann", note="why")

    assert (at_once.after.state, at_once.after.reason) == (State.CANCELLED, Reason.BY_REQUEST)
    assert (at_once.fence, at_once.kind, at_once.note) == (Fence.REVISION, EventKind.CANCELLED, "why")
    assert asked.after == running.evolve(cancel_requested=True, revision=2)
    assert (asked.fence, asked.kind, asked.actor) == (Fence.RUNNING, EventKind.CANCEL_REQUESTED, "ann")
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
        with pytest.raises(NotPossible, match=f"already ended {state}"):
            lifecycle.cancel(running.evolve(state=state), NOW, actor="ann")


def test_an_expired_job_is_cancelled_by_revision():
    change = lifecycle.expire(a_job(BEFORE, expires_at=NOW), NOW, actor="upkeep")

    assert (change.after.state, change.after.reason) == (State.CANCELLED, Reason.EXPIRED)
    assert (change.fence, change.kind, change.actor) == (Fence.REVISION, EventKind.EXPIRED, "upkeep")


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept"])
def test_an_operators_retry_is_a_fresh_start_or_keeps_what_was_spent(state, keep):
    job = held(
        state=state, reason=Reason.EXHAUSTED, failures=5, crashes=2, finished_at=BEFORE, expires_at=BEFORE,
        cancel_requested=True, error=an_error(BEFORE), attempt=7,
    )  # fmt: skip

    change = lifecycle.retry(job, NOW, actor="ann", note="again", keep_attempts=keep)
    after = change.after

    assert (after.state, after.reason, after.finished_at, after.due_at) == (State.PENDING, None, None, NOW)
    assert (after.failures, after.crashes) == ((5, 2) if keep else (0, 0))
    assert (after.attempt, after.error, after.cancel_requested, after.expires_at) == (7, job.error, False, None)
    assert (after.worker, after.lease_token) == (None, None)
    assert (change.fence, change.kind, change.note) == (Fence.REVISION, EventKind.RETRIED, "again")


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.SUCCEEDED])
def test_only_a_failed_or_cancelled_job_is_retried(state):
    with pytest.raises(NotPossible, match=r"job .* (is|succeeded)"):
        lifecycle.retry(held(state=state), NOW, actor="ann")


def test_a_retry_that_keeps_the_attempts_gives_one_more_run_however_the_job_failed():
    failed = lifecycle.settle(held(), FailedForGood(Reason.PERMANENT, an_error(NOW)), NOW).after

    again = lifecycle.retry(failed, NOW, actor="ann", keep_attempts=True).after
    claimed = again.evolve(state=State.RUNNING, attempt=2, revision=again.revision + 1, worker="w1", lease_token="t2")

    assert lifecycle.settle(claimed, Failed(an_error(NOW)), NOW).after.state is State.FAILED


def test_replace_takes_what_was_asked_and_keeps_what_happened():
    job = a_job(BEFORE, key="k", key_scope=Scope.PENDING, failures=2, attempt=2, error=an_error(BEFORE), revision=4)
    new = a_job(
        NOW, payload_json='"new"', task_version=2, queue="q", lane="l", priority=9, due_at=NOW + timedelta(hours=1),
        expires_at=NOW + timedelta(days=1), timeout=5.0, retry=Retry(max_attempts=2), key="k", key_scope=Scope.PENDING,
    )  # fmt: skip

    change = lifecycle.replace(job, new, NOW, actor="enqueue")

    assert change.after == new.evolve(
        id=job.id, created_at=job.created_at, failures=2, attempt=2, error=job.error, revision=5
    )
    assert (change.fence, change.kind) == (Fence.REVISION, EventKind.REPLACED)
    for state in set(State) - {State.PENDING}:
        with pytest.raises(NotPossible, match="only a pending job"):
            lifecycle.replace(job.evolve(state=state), new, NOW, actor="enqueue")


@pytest.mark.parametrize(
    ("asked", "due"),
    [(timedelta(0), NOW), (timedelta(seconds=30), NOW), (timedelta(hours=1), NOW + timedelta(minutes=59))],
    ids=["now", "already past", "later"],
)
def test_a_replaced_job_is_due_when_the_new_request_asks_but_not_in_the_past(asked, due):
    new = a_job(BEFORE, due_at=BEFORE + asked)  # made a minute ago

    assert lifecycle.replace(a_job(BEFORE), new, NOW, actor="enqueue").after.due_at == due


@pytest.mark.parametrize("name", ["failure", "snooze", "release"])
def test_a_superseded_job_ends_instead_of_waiting_and_keeps_what_it_spent(name):
    job = held(key="k", key_scope=Scope.PENDING)
    refused = lifecycle.settle(job, every_outcome(NOW)[name], NOW)

    change = lifecycle.supersede(refused, NOW)

    assert (change.before, change.fence, change.actor) == (job, Fence.HOLDER, "w1")
    assert (change.after.state, change.after.reason) == (State.CANCELLED, Reason.SUPERSEDED)
    assert (change.after.revision, change.after.worker) == (2, "w1")
    assert (change.after.failures, change.after.error) == (refused.after.failures, refused.after.error)
    assert change.kind is EventKind.SUPERSEDED


def test_what_is_written_instead_of_a_refused_change_depends_on_why_it_was_refused():
    on_end = OnEnd(failed=FollowUp(task="tell"))
    waits = lifecycle.settle(held(key="k", key_scope=Scope.PENDING), Released(), NOW)
    ends = lifecycle.settle(held(on_end=on_end, retry=Retry(max_attempts=1)), every_outcome(NOW)["failure"], NOW)
    assert ends.follow is not None

    assert lifecycle.fallback(waits, "another job", "key 'k' is taken", NOW) == lifecycle.supersede(waits, NOW)
    alone = lifecycle.fallback(ends, None, "too long", NOW)
    assert (alone.after, alone.follow, alone.always_audited) == (ends.after, None, True)
    assert "cannot be stored: too long" in alone.note
    assert lifecycle.fallback(alone, None, "too long", NOW) is None


# -------------------------------------------------------------------------------------------------- laws

moments = st.integers(0, 10_000).map(lambda minutes: NOW - timedelta(minutes=minutes))
maybe = st.none() | moments
policies = st.builds(
    Retry,
    max_attempts=st.integers(1, 20),
    base=st.floats(0, 3600),
    cap=st.none() | st.floats(0, 3600),
    jitter=st.floats(0, 60),
)
outcomes = st.one_of(
    st.builds(Succeeded, st.none() | st.just("1")),
    st.builds(Failed, st.just(an_error(NOW)), st.none() | st.floats(0, 1e6)),
    st.just(TimedOut(an_error(NOW))),
    st.builds(FailedForGood, st.sampled_from(Reason), st.just(an_error(NOW))),
    st.builds(Snoozed, st.floats(0, 1e6)),
    st.just(Released()),
    st.just(Stopped("enough")),
)


@st.composite
def held_jobs(draw: st.DrawFn) -> Job:
    """Any job a worker can hold that no operator has retried with its attempts kept."""
    retry = draw(policies)
    scope = draw(st.none() | st.sampled_from(Scope))
    return held(
        id=new_id(),
        retry=retry,
        failures=draw(st.integers(0, retry.max_attempts - 1)),
        crashes=draw(st.integers(0, 30)),
        attempt=draw(st.integers(1, 60)),
        revision=draw(st.integers(1, 200)),
        started_at=draw(maybe),
        expires_at=draw(maybe),
        cancel_requested=draw(st.booleans()),
        progress=draw(st.none() | st.just(Progress(0.5))),
        cost_micros=draw(st.integers(0, 10**9)),
        error=draw(st.none() | st.just(an_error(BEFORE))),
        key=None if scope is None else "k",
        key_scope=scope,
    )


ends = st.one_of(
    st.tuples(st.just("settle"), outcomes, st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just("crash"), st.none(), st.just(0.0)),
)


def end(job, how):
    kind, outcome, noise = how
    if kind == "crash":
        return lifecycle.crash(job, NOW, actor="reaper")
    return lifecycle.settle(job, outcome, NOW, noise=noise)


HISTORY = ("id", "task", "payload_json", "created_at", "tenant", "queue", "lane", "task_version", "priority", "retry",
           "timeout", "expires_at", "key", "key_scope", "key_until", "attempt", "claimed_at", "started_at", "progress",
           "cost_micros", "cancel_requested")  # fmt: skip


@settings(deadline=None, max_examples=size(60, long=300))
@given(held_jobs(), ends)
def test_however_an_attempt_ends_the_laws_hold(job, how):
    change = end(job, how)
    after = change.after

    assert change.before == job
    assert after.revision == job.revision + 1
    assert job.failures <= after.failures <= min(job.failures + 1, job.max_attempts)
    assert job.crashes <= after.crashes <= job.crashes + 1
    assert after.lease_until is None
    assert (after.finished_at == NOW) == after.state.final
    assert (after.finished_at is None) == (after.state is State.PENDING)
    assert after.state is not State.RUNNING
    assert (after.reason is None) == (after.state in (State.PENDING, State.SUCCEEDED))
    assert after.result_json is None or after.state is State.SUCCEEDED
    assert all(getattr(after, name) == getattr(job, name) for name in HISTORY)


@settings(deadline=None)
@given(held_jobs(), ends)
def test_a_job_asked_to_cancel_never_waits_again(job, how):
    after = end(job.evolve(cancel_requested=True), how).after

    assert after.state in (State.SUCCEEDED, State.CANCELLED)


@settings(deadline=None)
@given(held_jobs(), ends)
def test_a_job_that_waits_again_has_budget_left_no_holder_and_is_not_lost(job, how):
    after = end(job, how).after

    if after.state is State.PENDING:
        assert after.failures < after.max_attempts
        assert after.worker is None
        assert after.due_at >= job.due_at
        assert not after.cancel_requested


@settings(deadline=None)
@given(held_jobs(), ends)
def test_only_a_failure_a_timeout_or_a_suspects_crash_spends_budget(job, how):
    kind, outcome, _ = how
    spends = isinstance(outcome, Failed | TimedOut) and not job.cancel_requested
    spends = spends or (kind == "crash" and job.suspect and job.started_at is not None)

    assert end(job, how).after.failures == job.failures + spends


@settings(deadline=None)
@given(held_jobs(), ends, st.booleans())
def test_an_operators_retry_brings_any_failed_or_cancelled_job_back(job, how, keep):
    ended = end(job, how).after
    if ended.state not in (State.FAILED, State.CANCELLED):
        return

    again = lifecycle.retry(ended, NOW, actor="ann", keep_attempts=keep).after

    assert again.state is State.PENDING
    assert again.revision == ended.revision + 1
    assert again.attempt == ended.attempt
    assert (again.finished_at, again.reason, again.lease_token, again.lease_until) == (None,) * 4
    assert not again.cancel_requested
    assert again.failures >= ended.failures if keep else again.failures == 0


@settings(deadline=None)
@given(held_jobs(), outcomes)
def test_superseding_a_job_that_would_wait_ends_it_by_one_revision(job, outcome):
    refused = lifecycle.settle(job, outcome, NOW)
    if refused.after.state is not State.PENDING:
        return

    change = lifecycle.supersede(refused, NOW)

    assert change.before == job
    assert change.after.revision == job.revision + 1
    assert (change.after.state, change.after.finished_at) == (State.CANCELLED, NOW)
    assert (change.after.lease_until, change.fence) == (None, refused.fence)


@settings(deadline=None)
@given(st.lists(ends, min_size=1, max_size=60), policies)
def test_a_job_that_is_claimed_again_and_again_fails_no_later_than_its_budget(hows, retry):
    job, claims = a_job(BEFORE, retry=retry), 0
    for how in hows:
        claims += 1
        job = job.evolve(
            state=State.RUNNING, attempt=job.attempt + 1, revision=job.revision + 1, worker="w1", lease_token=new_id(),
            claimed_at=NOW, started_at=NOW, lease_until=NOW,
        )  # fmt: skip
        job = end(job, how).after
        if job.state.final:
            break

    assert job.attempt == claims
    assert job.revision == 2 * claims
    assert job.failures <= retry.max_attempts
    assert job.failures < retry.max_attempts or job.state.final
    assert job.crashes <= retry.max_attempts + 1
