"""Rows of the seeds that lived on PostgreSQL, clause by clause and in their own words."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.making import a_job, claim, current, ended, enqueued, race, recover, running, settle, several, start
from tests.support.marks import postgres_only
from treadle import EngineError, Job, KeyTaken, Reason, Retry, State, Task, Treadle, Unique
from treadle.engines.contract import Engine
from treadle.engines.values import Lease, Renewal, Ruling
from treadle.model import JobError, lifecycle
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Stopped, Succeeded
from treadle.testing import FakeClock, run_until_idle

HALF_AN_HOUR = 1800.0
BACKOFF_OF_000 = {"base": 30.0, "cap": 900.0, "jitter": 0.0}
BACKOFF_OF_002 = {"base": 5.0, "cap": 300.0, "jitter": 1.0}


pytestmark = postgres_only  # only this engine: these rows name its means


class JobService:
    """The service of 000, its methods on treadle's: a claimed job is a running one that has not started."""

    def __init__(self, app: Treadle) -> None:
        self.app, self.engine = app, app.engine

    def create(
        self,
        job_type: str,
        input: dict[str, Any],
        user_id: str,
        priority: int = 0,
        max_retries: int = 3,
        scheduled_for: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> UUID:
        retry = Retry(max_attempts=max_retries + 1, **BACKOFF_OF_000)
        using = {"tenant": user_id, "priority": priority, "retry": retry, "expires_at": expires_at}
        job = self.app.enqueue(job_type, input, checked=False, run_after=scheduled_for, **using)
        return UUID(job.id)

    def claim_next(self, job_types: list[str] | None = None) -> Job | None:
        return next(iter(claim(self.engine, 1, tasks=job_types, lease=HALF_AN_HOUR)), None)

    def mark_running(self, job: Job) -> None:
        start(self.engine, job, lease=HALF_AN_HOUR)

    def complete(self, job: Job, output: str) -> None:
        settle(self.engine, job, Succeeded(output))

    def fail(self, job: Job, error: str, should_retry: bool = True) -> None:
        told = JobError("RuntimeError", error, "", job.attempt, self.engine.now().isoformat())
        settle(self.engine, job, Failed(told) if should_retry else FailedForGood(Reason.PERMANENT, told))

    def get(self, id: UUID) -> Job:
        return self.app.get(str(id))


@pytest.fixture
def service(app: Treadle) -> JobService:
    return JobService(app)


@contextmanager
def locked(url: str, job: Job | str) -> Iterator[None]:
    """Somebody else's open transaction holds the row of this job."""
    server, _, schema = url.partition("?schema=")
    id = job if isinstance(job, str) else job.id
    with psycopg.connect(server) as stranger:
        found = stranger.execute(f"select 1 from {schema}.jobs where id = %s for update", [id]).fetchall()
        assert len(found) == 1
        yield
        stranger.rollback()


# -------------------------------------------------------------------------------------- 000: the service


@pytest.mark.covers("000-AC-08.a", "000-AC-26.a")
def test_create_answers_with_the_uuid_of_a_pending_job_with_the_listed_defaults(
    service: JobService, clock: FakeClock
) -> None:
    job = service.get(service.create("email_processing", {"connection_id": "7"}, "ada"))
    assert (job.state, job.task, job.payload) == (State.PENDING, "email_processing", {"connection_id": "7"})
    assert (job.tenant, job.priority, job.max_attempts) == ("ada", 0, 4)
    assert (job.due_at, job.expires_at, job.failures) == (clock.now(), None, 0)


@pytest.mark.covers("000-AC-08.a")
def test_create_keeps_what_was_given(service: JobService, clock: FakeClock) -> None:
    later, end = clock.now() + timedelta(hours=1), clock.now() + timedelta(hours=2)
    job = service.get(service.create("x", {}, "bob", 7, 0, later, end))
    assert (job.tenant, job.priority, job.max_attempts, job.due_at, job.expires_at) == ("bob", 7, 1, later, end)


@pytest.mark.covers("000-AC-08.b", "000-R15.e")
def test_a_job_scheduled_for_later_is_claimed_at_its_time_and_not_before(service: JobService, clock: FakeClock) -> None:
    id = service.create("x", {}, "ada", scheduled_for=clock.now() + timedelta(minutes=5))
    clock.advance(minutes=5, microseconds=-1)
    assert service.claim_next() is None
    clock.advance(microseconds=1)
    assert service.claim_next().id == str(id)


@pytest.mark.covers("000-AC-09.d", "002-Q3.d", "004-T07.a")
def test_a_job_locked_by_another_transaction_is_skipped_without_waiting(service: JobService, store_url: str) -> None:
    first, second = service.create("x", {}, "ada", priority=9), service.create("x", {}, "ada")
    with locked(store_url, str(first)):
        assert service.claim_next().id == str(second)
        assert service.claim_next() is None  # an answer, although the lock is still there
    assert service.claim_next().id == str(first)


@pytest.mark.covers("000-AC-10.a", "000-AC-26.c")
def test_mark_running_makes_a_claimed_job_a_started_one(service: JobService, clock: FakeClock) -> None:
    id = service.create("x", {}, "ada")
    job = service.claim_next()
    assert (service.get(id).state, service.get(id).claimed_at, service.get(id).started_at) == (
        State.RUNNING, clock.now(), None,
    )  # fmt: skip
    clock.advance(seconds=2)
    service.mark_running(job)
    assert (service.get(id).state, service.get(id).started_at) == (State.RUNNING, clock.now())


@pytest.mark.covers("000-AC-11.a", "000-AC-26.d", "000-AC-28.a", "002-Q4.a", "002-T1.a")
def test_a_job_goes_from_create_through_claim_and_mark_running_to_complete(
    service: JobService, clock: FakeClock
) -> None:
    id = service.create("x", {}, "ada")
    job = service.claim_next()
    service.mark_running(job)
    clock.advance(seconds=3)
    service.complete(job, '{"sent":1}')
    done = service.get(id)
    assert (done.state, done.result, done.finished_at) == (State.SUCCEEDED, {"sent": 1}, clock.now())
    assert done.lease_until is None


@pytest.mark.covers("000-AC-12.a", "000-AC-12.b", "000-AC-12.c", "000-AC-30.a", "000-AC-31.a", "000-R15.b")
def test_fail_waits_30_seconds_doubled_up_to_15_minutes_and_ends_after_the_last_retry(
    service: JobService, clock: FakeClock
) -> None:
    id = service.create("x", {}, "ada", max_retries=7)
    waits = []
    for retry_count in range(7):
        service.fail(service.claim_next(), f"failure {retry_count}")
        job = service.get(id)
        assert (job.state, job.failures) == (State.PENDING, retry_count + 1)
        assert job.error.message == f"failure {retry_count}"
        assert service.claim_next() is None  # its time is in the future
        waits.append((job.due_at - clock.now()).total_seconds())
        clock.advance(seconds=waits[-1])
    assert waits == [30, 60, 120, 240, 480, 900, 900]
    service.fail(service.claim_next(), "the last")
    job = service.get(id)
    assert (job.state, job.finished_at, job.error.message) == (State.FAILED, clock.now(), "the last")
    clock.advance(days=1)
    assert service.claim_next() is None


@pytest.mark.covers("000-AC-12.c", "000-AC-26.f")
def test_three_retries_are_four_runs(service: JobService, clock: FakeClock) -> None:
    id, runs = service.create("x", {}, "ada", max_retries=3), 0
    while job := service.claim_next():
        runs += 1
        service.fail(job, "no")
        clock.advance(hours=1)
    assert (runs, service.get(id).state, service.get(id).failures) == (4, State.FAILED, 4)


@pytest.mark.covers("000-AC-12.d")
def test_a_failure_that_should_not_be_retried_is_final_whatever_is_left(service: JobService, clock: FakeClock) -> None:
    id = service.create("x", {}, "ada")
    service.fail(service.claim_next(), "no such mailbox", should_retry=False)
    job = service.get(id)
    assert (job.state, job.finished_at, job.error.message) == (State.FAILED, clock.now(), "no such mailbox")
    assert job.failures < job.max_attempts


@pytest.mark.covers("000-R05.b")
def test_a_claim_that_rolls_back_leaves_every_job_pending_as_it_was(service: JobService, store_url: str) -> None:
    """Choosing and taking are one transaction: here it fails at the second of two jobs."""
    ids = [service.create("x", {}, "ada", priority=1), service.create("x", {}, "ada")]
    before = [service.get(id) for id in ids]
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            f"create function {schema}.refuse() returns trigger language plpgsql as"
            " $$ begin raise exception 'the disk is on fire'; end $$"
        )
        connection.execute(
            f"create trigger refuse before update on {schema}.jobs for each row when (new.id = '{ids[1]}')"
            f" execute function {schema}.refuse()"
        )
        with pytest.raises(EngineError, match="on fire"):
            claim(service.engine, 2)
        assert [service.get(id) for id in ids] == before
        connection.execute(f"drop trigger refuse on {schema}.jobs")
    assert [job.id for job in claim(service.engine, 2)] == [str(id) for id in ids]


@pytest.mark.covers("000-R15.a")
def test_every_transition_of_the_life_cycle_is_written(engine: Engine, clock: FakeClock) -> None:
    error = JobError("RuntimeError", "no", "", 1, clock.now().isoformat())
    ways = {
        Succeeded("1"): State.SUCCEEDED,
        FailedForGood(Reason.PERMANENT, error): State.FAILED,
        Failed(error): State.PENDING,
        Snoozed(60.0): State.PENDING,
        Released(): State.PENDING,
        Stopped("not wanted"): State.CANCELLED,
    }
    for outcome, state in ways.items():
        job = running(engine, retry=Retry(max_attempts=2), queue=type(outcome).__name__.lower())
        assert settle(engine, job, outcome).ruling is Ruling.APPLIED
        assert current(engine, job).state is state
    last = running(engine, retry=Retry(max_attempts=1), queue="last")
    settle(engine, last, Failed(error))
    assert current(engine, last).state is State.FAILED
    pending = enqueued(engine, queue="cancel")
    engine.turn([lifecycle.cancel(pending, clock.now(), actor="ada")])
    assert current(engine, pending).state is State.CANCELLED
    failed = ended(engine, State.FAILED, queue="retry")
    engine.turn([lifecycle.retry(failed, clock.now(), actor="ada")])
    assert current(engine, failed).state is State.PENDING


@pytest.mark.covers("000-R15.d")
def test_a_job_stale_for_over_thirty_minutes_is_found_and_a_younger_one_is_not(
    service: JobService, clock: FakeClock
) -> None:
    old, young = service.create("old", {}, "ada"), service.create("young", {}, "ada")
    service.claim_next(["old"])
    clock.advance(minutes=20)
    service.claim_next(["young"])
    clock.advance(minutes=10, seconds=1)
    [stale] = service.engine.expired(limit=10)
    assert stale.id == str(old)
    recover(service.engine, stale)
    assert (service.get(old).state, service.get(old).crashes) == (State.PENDING, 1)
    assert service.get(young).state is State.RUNNING


@pytest.mark.covers("000-R15.f", "000-R05.a")
def test_an_expired_job_is_not_claimed_and_the_sweep_ends_it(service: JobService, clock: FakeClock) -> None:
    id = service.create("x", {}, "ada", expires_at=clock.now() + timedelta(minutes=1))
    clock.advance(minutes=1)
    assert service.claim_next() is None
    [found] = service.engine.expired(limit=10)
    service.engine.turn([lifecycle.expire(found, clock.now(), actor="sweep")])
    assert (service.get(id).state, service.get(id).reason) == (State.CANCELLED, Reason.EXPIRED)


@pytest.mark.covers("000-R15.h")
def test_an_exception_of_a_handler_leads_to_a_retry_with_its_text(app: Treadle, clock: FakeClock) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(max_attempts=4, **BACKOFF_OF_000))
    def flaky() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("the mailbox is locked")
        return "sent"

    flaky.enqueue()
    [job] = run_until_idle(app)
    assert (job.state, job.error.message, job.failures) == (State.PENDING, "the mailbox is locked", 1)
    clock.advance(seconds=30)
    [job] = run_until_idle(app)
    assert (job.state, job.result) == (State.SUCCEEDED, "sent")


@pytest.mark.covers("000-R15.i", "002-Q3.c")
def test_the_highest_priority_comes_first_and_of_one_priority_the_earliest_due(
    service: JobService, clock: FakeClock
) -> None:
    now = clock.now()
    given = {
        "later": (0, now + timedelta(seconds=2)),
        "sooner": (0, now + timedelta(seconds=1)),
        "urgent": (5, now + timedelta(seconds=3)),
        "idle": (-1, None),
    }
    ids = {name: str(service.create("x", {}, "ada", priority, 3, at)) for name, (priority, at) in given.items()}
    clock.advance(seconds=3)
    order = [job.id for job in claim(service.engine, 4)]
    assert order == [ids[name] for name in ("urgent", "sooner", "later", "idle")]


# ------------------------------------------------------------------------------------- 002: the backend


@pytest.mark.covers("002-Q8.a")
def test_a_lease_that_ran_out_is_recovered_and_one_renewed_meanwhile_is_left_alone(
    engine: Engine, clock: FakeClock
) -> None:
    stalled, kept = running(engine, queue="a"), running(engine, queue="b")
    clock.advance(seconds=30)
    seen = engine.expired(limit=10)
    assert {job.id for job in seen} == {stalled.id, kept.id}
    assert engine.extend([Lease(kept.id, kept.lease_token)], lease=30.0)[0].renewal is Renewal.RENEWED
    changes = [lifecycle.crash(job, clock.now(), actor="sweep") for job in seen]
    engine.turn(changes)
    assert (current(engine, stalled).state, current(engine, stalled).crashes) == (State.PENDING, 1)
    assert (current(engine, kept).state, current(engine, kept).lease_token) == (State.RUNNING, kept.lease_token)


@pytest.mark.covers("002-Q9.a", "002-T1.g", "002-Q5.a", "002-O2.c")
@pytest.mark.parametrize("noise", [0.0, 0.5, 0.999])
def test_failure_k_is_due_after_5_seconds_doubled_up_to_300_plus_jitter(
    engine: Engine, clock: FakeClock, noise: float
) -> None:
    job = enqueued(engine, retry=Retry(max_attempts=10, **BACKOFF_OF_002))
    for wait in (5, 10, 20, 40, 80, 160, 300, 300):
        [job] = claim(engine, 1)
        failed = Failed(JobError("RuntimeError", "no", "", job.attempt, clock.now().isoformat()))
        engine.turn([lifecycle.settle(job, failed, clock.now(), noise=noise)])
        job = current(engine, job)
        assert job.due_at == clock.now() + timedelta(seconds=wait + noise)  # the jitter comes on top of the cap
        clock.advance(seconds=wait + 1)


@pytest.mark.covers("002-Q9.b")
def test_the_same_clock_and_the_same_randomness_give_the_same_row(engine: Engine, clock: FakeClock) -> None:
    due = set()
    for _ in range(3):
        job = running(engine, retry=Retry(max_attempts=10, **BACKOFF_OF_002))
        failed = Failed(JobError("RuntimeError", "no", "", 1, clock.now().isoformat()))
        engine.turn([lifecycle.settle(job, failed, clock.now(), noise=0.25)])
        due.add(current(engine, job).due_at)
    assert due == {clock.now() + timedelta(seconds=5.25)}


@pytest.mark.covers("002-Q9.c")
@pytest.mark.parametrize(("attempt", "wait"), [(-7, 5), (0, 5), (1, 5), (62, 300), (10**9, 300)])
def test_an_attempt_below_one_counts_as_one_and_a_large_one_does_not_overflow(
    engine: Engine, clock: FakeClock, attempt: int, wait: float
) -> None:
    delay = Retry(**BACKOFF_OF_002).delay(attempt, 0.0)
    assert delay == wait
    job = enqueued(engine, due_at=clock.now() + timedelta(seconds=delay))  # and PostgreSQL takes it
    assert current(engine, job).due_at == clock.now() + timedelta(seconds=wait)


@pytest.mark.covers("002-T1.j")
def test_the_same_key_twice_is_an_error_the_second_time(app: Treadle) -> None:
    task: Task = app.register("report", lambda: None)
    once = task.using(key="2026-01", unique=Unique("ever", on_conflict="raise"))
    first = once.enqueue()
    run_until_idle(app)
    with pytest.raises(KeyTaken) as refused:  # also when the first has long ended
        once.enqueue()
    assert refused.value.holder == first.id
    assert app.count()[State.SUCCEEDED] == sum(app.count().values()) == 1


# ----------------------------------------------------------------------------------- 004: the tenant system


@pytest.mark.covers("004-T06.a", "000-AC-29.a")
def test_a_claim_takes_only_what_is_still_pending_and_the_loser_goes_on_to_the_next(make_engine, clock) -> None:
    engines = several(make_engine, 2)
    first, second = enqueued(engines[0], priority=1), enqueued(engines[0])
    taken = race(2, lambda place: claim(engines[place], 1, worker=f"w{place}"))
    jobs = {job.id: job for [job] in taken}
    assert jobs.keys() == {first.id, second.id}  # neither the same one twice, nor an error, nor nothing
    for job in jobs.values():
        assert (job.state, job.claimed_at, job.attempt) == (State.RUNNING, clock.now(), 1)
    assert {job.worker for job in jobs.values()} == {"w0", "w1"}


@pytest.mark.covers("004-T06.a")
def test_of_two_claims_on_one_job_the_loser_gets_nothing_and_leaves_it_as_it_is(make_engine, clock) -> None:
    engines = several(make_engine, 2)
    job = a_job(clock.now())
    engines[0].enqueue([job])
    [won, lost] = sorted(race(2, lambda place: claim(engines[place], 1)), key=len, reverse=True)
    assert (len(won), lost) == (1, [])
    assert current(engines[0], job) == won[0]
