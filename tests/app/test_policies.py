"""What an application may forbid, and leases that are taken back on request."""

from collections.abc import Callable

import pytest

from tests.support.making import claim, start
from tests.support.marks import any_store
from treadle import InvalidJob, Job, NotPossible, Reason, Retry, State, Task, Treadle
from treadle.engines.values import Lease, Renewal
from treadle.model import EventKind
from treadle.testing import FakeClock, run_until_idle

ONCE = Retry(max_attempts=1)
LEASE = 30.0


@pytest.fixture
def greet(app: Treadle) -> Task:
    return app.register("greet", lambda: "hello")


def held(app: Treadle, count: int = 1, **using: object) -> list[Job]:
    """Jobs that a worker has claimed for thirty seconds."""
    for _ in range(count):
        app.tasks["greet"].using(**using).enqueue()
    return claim(app.engine, count, lease=LEASE)


# ---------------------------------------------------------------------------------------------- recovering


@any_store
def test_leases_that_ran_out_are_taken_back_on_request_and_counted(app: Treadle, greet: Task, clock: FakeClock) -> None:
    jobs = held(app, 3)
    clock.advance(seconds=LEASE / 2)
    [kept] = held(app)
    assert app.recover() == 0
    clock.advance(seconds=LEASE / 2)
    assert app.recover(actor="ada") == 3
    assert {(app.get(job.id).state, app.get(job.id).crashes) for job in jobs} == {(State.PENDING, 1)}
    assert app.get(kept.id) == kept
    [line] = app.events(jobs[0].id)
    assert (line.kind, line.actor) == (EventKind.CRASHED, "ada")
    assert "ran out on attempt 1" in line.note
    assert app.recover() == 0


@any_store
def test_more_leases_than_fit_one_turn_are_all_taken_back(app: Treadle, greet: Task, clock: FakeClock) -> None:
    greet.enqueue_many([()] * 450)
    assert len(claim(app.engine, 450, lease=LEASE)) == 450
    clock.advance(seconds=LEASE)
    assert app.recover() == 450
    assert app.count()[State.PENDING] == 450


def test_a_recovered_job_keeps_the_words_it_is_given_and_ends_when_its_budget_is_spent(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    [free], [paid] = held(app), held(app, retry=ONCE)
    for job in (free, paid):
        start(app.engine, job, LEASE)
    clock.advance(seconds=LEASE)
    assert app.recover(message="the worker is gone\0") == 2
    free, paid = app.get(free.id), app.get(paid.id)
    assert (free.state, paid.state, paid.reason) == (State.PENDING, State.FAILED, Reason.CRASHED)
    assert free.error.message == paid.error.message == "the worker is gone\N{REPLACEMENT CHARACTER}"
    assert app.events(paid.id)[-1].note == paid.error.message


def test_a_pending_job_is_none_of_a_recoverys_business(app: Treadle, greet: Task, clock: FakeClock) -> None:
    job = greet.using(expires_at="1s").enqueue()
    [lost] = held(app, queue="default", priority=1)
    clock.advance(seconds=LEASE)
    assert app.recover() == 1
    assert (app.get(job.id).state, app.get(lost.id).state) == (State.PENDING, State.PENDING)


def test_a_recovery_leaves_a_lease_alone_that_was_renewed_since_it_looked_and_comes_to_an_end(
    app: Treadle, greet: Task, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = held(app)
    clock.advance(seconds=LEASE)
    [seen] = app.engine.expired(limit=10)
    assert app.engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)[0].renewal is Renewal.RENEWED
    monkeypatch.setattr(app.engine, "expired", lambda **_: [seen])
    assert app.recover() == 0
    assert (app.get(job.id).state, app.get(job.id).crashes) == (State.RUNNING, 0)


def test_who_recovers_has_a_name(app: Treadle) -> None:
    with pytest.raises(InvalidJob, match="actor"):
        app.recover(actor="")


@any_store
def test_a_key_that_somebody_took_meanwhile_ends_the_recovered_job(app: Treadle, greet: Task, clock: FakeClock) -> None:
    [job] = held(app, key="k", unique="pending")
    greet.using(key="k", unique="pending").enqueue()
    clock.advance(seconds=LEASE)
    assert app.recover() == 1
    assert (app.get(job.id).state, app.get(job.id).reason) == (State.CANCELLED, Reason.SUPERSEDED)


# ----------------------------------------------------------------------------------------------- cancelling


def test_where_only_pending_jobs_can_be_cancelled_a_running_one_is_left_alone(make_app: Callable[..., Treadle]) -> None:
    app = make_app(cancel="pending")
    app.register("greet", lambda: "hello")
    [job] = held(app)
    with pytest.raises(NotPossible, match=rf"{job.id} is running.*setting cancel.*finish or time out"):
        app.cancel(job.id)
    assert app.get(job.id) == job
    waiting = app.tasks["greet"].enqueue()
    assert app.cancel(waiting.id).state is State.CANCELLED
    with pytest.raises(NotPossible, match="already ended"):
        app.cancel(waiting.id)


# -------------------------------------------------------------------------------------------------- tenants


def test_where_tenants_are_required_no_way_to_enqueue_does_without_one(make_app: Callable[..., Treadle]) -> None:
    app = make_app(tenant_required=True)
    greet = app.register("greet", lambda: "hello")
    for enqueue in (greet.enqueue, lambda: greet.enqueue_many([(), ()]), lambda: app.enqueue("greet")):
        with pytest.raises(InvalidJob, match=r"tenant.*tenant_required.*using\(tenant=") as refused:
            enqueue()
        assert refused.value.field.endswith("tenant")
    with pytest.raises(InvalidJob, match="tenant"):
        app.enqueue("elsewhere", {}, checked=False)
    assert sum(app.count().values()) == 0
    assert greet.using(tenant="default").enqueue().tenant == "default"  # said, so it is meant
    assert app.enqueue("greet", tenant="acme").tenant == "acme"
    assert [job.state for job in run_until_idle(app)] == [State.SUCCEEDED] * 2
