"""Rows of the seeds that lived on PostgreSQL, by their profiles."""

from collections.abc import Callable
from datetime import datetime

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from tests.support.making import an_error, claim, current, race, settle, start
from tests.support.marks import postgres_only
from treadle import Context, InvalidJob, Job, NotPossible, Retry, State, Task, Treadle
from treadle.model.lifecycle import Failed, Succeeded
from treadle.profiles import backend, chat_server, tenant_ops
from treadle.testing import FakeClock, run_until_idle

STALE = "Job timed out (stale claim)"
HALF_AN_HOUR = 1800.0


pytestmark = postgres_only  # only this engine: these rows name its means


# -------------------------------------------------------------------------------------- 000: the chat server


def held(app: Treadle, begun: bool, **using: object) -> Job:
    """A job that a runner of the chat server has claimed, and, if it has begun, marked running."""
    app.tasks["work"].using(tenant="ada", **using).enqueue()
    [job] = claim(app.engine, 1, lease=HALF_AN_HOUR)
    return start(app.engine, job, HALF_AN_HOUR) if begun else job


@pytest.mark.covers("000-AC-13.a", "000-AC-13.b", "000-AC-32.a", "000-AC-32.b", "000-AC-26.g")
@pytest.mark.parametrize("begun", [False, True], ids=["claimed", "running"])
def test_expire_stale_requeues_what_has_budget_left_fails_the_rest_and_counts_both(
    make_app: Callable[..., Treadle], clock: FakeClock, begun: bool
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    app.register("work", lambda: None)
    expire_stale = app.recover
    stale = held(app, begun), held(app, begun, retry=Retry(max_attempts=1))
    clock.advance(minutes=20)
    young = held(app, begun)
    clock.advance(minutes=10)
    assert expire_stale() == 2
    again, failed = (app.view(app.get(job.id)) for job in stale)
    assert (again["status"], again["error"], again["retry_count"]) == ("pending", STALE, 1)
    assert (failed["status"], failed["error"], failed["completed_at"]) == ("failed", STALE, clock.now().isoformat())
    assert app.view(app.get(young.id))["status"] == ("running" if begun else "claimed")
    assert expire_stale() == 0


@pytest.mark.covers("000-AC-32.a")
def test_a_stale_claim_on_the_last_retry_is_failed(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    app = make_app(profile=chat_server.PROFILE)
    job = app.register("work", lambda: None).using(tenant="ada").enqueue()
    for retry_count in range(4):
        [running] = claim(app.engine, 1, lease=HALF_AN_HOUR)
        if retry_count < 3:
            settle(app.engine, running, Failed(an_error(clock.now())))
            clock.advance(hours=1)
    assert app.view(app.get(job.id))["status"] == "claimed"
    clock.advance(minutes=30)
    assert app.recover() == 1
    printed = app.view(app.get(job.id))
    assert (printed["status"], printed["error"], printed["retry_count"]) == ("failed", STALE, 3)


@pytest.mark.parametrize("begun", [False, True], ids=["claimed", "running"])
def test_under_every_other_profile_the_first_crash_is_free_and_a_claim_alone_never_pays(
    make_app: Callable[..., Treadle], clock: FakeClock, begun: bool
) -> None:
    for profile in (backend.PROFILE, tenant_ops.PROFILE):
        app = make_app(profile=profile)
        app.register("work", lambda: None)
        free, only = held(app, begun), held(app, begun, retry=Retry(max_attempts=1))
        clock.advance(minutes=30)
        assert app.recover() == 2
        assert (app.get(free.id).state, app.get(free.id).failures) == (State.PENDING, 0)
        assert app.get(only.id).state is (State.FAILED if begun else State.PENDING)
        app.cancel(free.id)
        if not begun:
            app.cancel(only.id)


@pytest.mark.covers("000-AC-13.a")
def test_a_job_that_goes_stale_again_and_again_ends_failed_with_the_same_text(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    task = app.register("work", lambda: None).using(tenant="ada")
    job, changed = task.enqueue(), 0
    while taken := claim(app.engine, 1, lease=HALF_AN_HOUR):
        start(app.engine, taken[0], HALF_AN_HOUR)
        clock.advance(minutes=30)
        changed += app.recover()
    printed = app.view(app.get(job.id))
    assert (printed["status"], printed["error"], printed["retry_count"]) == ("failed", STALE, 3)
    assert changed == 4  # four attempts: under this profile no crash is free


def test_the_service_works_with_sql_on_pooled_connections_and_in_a_transaction_of_the_callers_own_pool(
    store_url: str,
) -> None:
    server, _, schema = store_url.partition("?schema=")
    app = Treadle(f"{store_url}&application_name=chat", profile=chat_server.PROFILE)
    task: Task = app.register("work", lambda: "done")
    with ConnectionPool(server, min_size=1, max_size=1, open=True) as pool:
        with pool.connection() as connection:
            connection.execute(f"create table {schema}.connections (id int)")
        with pool.connection() as connection:
            connection.execute(f"insert into {schema}.connections values (7)")
            job = task.using(tenant="ada", tx=connection).enqueue()
            assert app.count()[State.PENDING] == 0  # it waits for the caller's commit
        with pytest.raises(ZeroDivisionError), pool.connection() as connection:
            task.using(tenant="ada", tx=connection).enqueue()
            raise ZeroDivisionError
        assert [ran.id for ran in run_until_idle(app)] == [job.id]
        with pool.connection() as connection:
            rows = connection.execute("select pid from pg_stat_activity where application_name = 'chat'").fetchall()
    assert len(rows) == 1  # every call of the service went over the one session that its pool holds
    app.close()


def waits(app: Treadle, clock: FakeClock, failures: int) -> list[float]:
    """How long a job waits after each of its failures, in a budget that has room for one more."""

    def fail() -> None:
        raise RuntimeError("again")

    task = app.register("fail", fail)
    task.using(tenant="ada", retry=task.options.retry._replace(max_attempts=failures + 1)).enqueue()
    found = []
    for number in range(1, failures + 1):
        [job] = run_until_idle(app)
        assert (job.state, job.failures, job.error.message) == (State.PENDING, number, "again")
        found.append((job.due_at - clock.now()).total_seconds())
        clock.advance(seconds=found[-1])
    assert run_until_idle(app)[0].state is State.FAILED
    return found


@pytest.mark.covers("000-R06.a")
def test_the_chat_server_waits_half_a_minute_doubled_up_to_a_quarter_of_an_hour(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    assert waits(make_app(profile=chat_server.PROFILE), clock, 7) == [30, 60, 120, 240, 480, 900, 900]


@pytest.mark.covers("004-T08.a", "004-T08.b")
def test_the_tenant_system_waits_ten_seconds_doubled(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    assert waits(make_app(profile=tenant_ops.PROFILE), clock, 4) == [10, 20, 40, 80]


# ------------------------------------------------------------------------------------------ 002: the backend


@pytest.mark.covers("002-Q6.c")
def test_a_cancel_of_the_backend_touches_queued_jobs_only_and_a_running_one_finishes(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=backend.PROFILE)
    task = app.register("work", lambda: "done")
    task.enqueue()
    [running] = claim(app.engine, 1)
    queued = task.enqueue()
    with pytest.raises(NotPossible, match="only pending jobs can be cancelled"):
        app.cancel(running.id)
    assert app.get(running.id) == running
    printed = app.view(app.cancel(queued.id))
    assert (printed["state"], printed["canceled_at"]) == ("canceled", clock.now().isoformat())
    settle(app.engine, running, Succeeded('"done"'))
    assert current(app.engine, running).result == "done"
    for word in ("canceled", "cancelled"):
        assert [job.id for job in app.find(state=word).jobs] == [queued.id]


# -------------------------------------------------------------------------------------- 004: the tenant system


@pytest.fixture
def system(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app(profile=tenant_ops.PROFILE)


@pytest.mark.covers("004-T02.a")
def test_a_job_of_the_tenant_system_has_every_field_with_its_default(system: Treadle, clock: FakeClock) -> None:
    job = system.register("ENGINE_RUN", lambda payload: None).using(tenant="acme").enqueue({"workflow": 7})
    printed = system.view(system.get(job.id))
    assert list(printed.items()) == [
        ("id", job.id), ("tenant_id", "acme"), ("status", "queued"), ("job_type", "ENGINE_RUN"), ("priority", 0),
        ("input", {"workflow": 7}), ("output", {}), ("error", {}), ("costCents", 0), ("retryCount", 0),
        ("maxRetries", 3), ("nextRetryAt", None), ("startedAt", None), ("finishedAt", None),
        ("createdAt", clock.now().isoformat()),
    ]  # fmt: skip
    assert job.max_attempts == 4


@pytest.mark.covers("004-T02.a")
def test_a_finished_job_of_the_tenant_system_keeps_what_became_of_it(system: Treadle, clock: FakeClock) -> None:
    system.register("ENGINE_RUN", lambda: {"steps": 3}).using(tenant="acme", priority=5).enqueue()
    [job] = run_until_idle(system)
    printed = system.view(job)
    assert (printed["status"], printed["output"], printed["priority"]) == ("succeeded", {"steps": 3}, 5)
    assert printed["startedAt"] == printed["finishedAt"] == clock.now().isoformat()
    assert datetime.fromisoformat(printed["createdAt"]) == clock.now()


@pytest.mark.covers("004-T06.b")
def test_the_winner_of_a_claim_has_a_running_job_with_the_time_it_started(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    apps = [make_app(profile=tenant_ops.PROFILE) for _ in range(2)]
    job = apps[0].register("ENGINE_RUN", lambda: None).using(tenant="acme").enqueue()
    apps[1].migrate()
    clock.advance(seconds=3)
    taken = race(2, lambda place: claim(apps[place].engine, 1))
    assert sorted(len(jobs) for jobs in taken) == [0, 1]
    printed = apps[0].view(apps[0].get(job.id))
    assert (printed["status"], printed["startedAt"]) == ("running", clock.now().isoformat())
    assert printed["finishedAt"] is None


@pytest.mark.covers("004-T02.b")
def test_a_job_of_the_tenant_system_without_a_tenant_is_refused(system: Treadle) -> None:
    task = system.register("ENGINE_RUN", lambda: None)
    with pytest.raises(InvalidJob, match=r"tenant: is required.*using\(tenant=") as refused:
        task.enqueue()
    assert refused.value.field == "tenant"
    assert sum(system.count().values()) == 0
    assert task.using(tenant="acme").enqueue().tenant == "acme"


@pytest.mark.covers("004-T02.c")
def test_an_empty_output_and_error_are_null_in_the_table_and_an_empty_object_in_print(
    system: Treadle, store_url: str
) -> None:
    server, _, schema = store_url.partition("?schema=")

    def stored(table: str) -> list[tuple]:
        with psycopg.connect(server, autocommit=True) as connection:
            return connection.execute(f"select result, error from {schema}.{table}").fetchall()

    waiting = system.register("ENGINE_RUN", lambda: None).using(tenant="acme").enqueue()
    assert stored("jobs") == [(None, None)]
    [done] = run_until_idle(system)
    assert stored("finished") == [(None, None)]
    for printed in (system.view(waiting), system.view(done)):
        assert (printed["output"], printed["error"]) == ({}, {})


@pytest.mark.covers("004-T02.d", "004-T16.a")
@pytest.mark.parametrize(("micros", "cents"), [([], 0), ([1], 1), ([10_000], 1), ([4_000, 4_000, 4_000], 2)])
def test_cost_is_kept_in_millionths_and_printed_in_cents_rounded_up(
    system: Treadle, micros: list[int], cents: int
) -> None:
    def work(ctx: Context) -> None:
        for each in micros:
            ctx.add_cost(each)

    system.register("ENGINE_RUN", work).using(tenant="acme").enqueue()
    [job] = run_until_idle(system)
    assert (job.cost_micros, system.view(job)["costCents"]) == (sum(micros), cents)


@pytest.mark.covers("002-M1.b")
def test_the_database_refuses_an_unknown_state_and_the_backends_words_are_understood(
    make_app: Callable[..., Treadle], store_url: str
) -> None:
    app = make_app(profile=backend.PROFILE)
    task = app.register("work", lambda: None)
    [gone, waits] = [task.enqueue(), task.enqueue()]
    app.cancel(gone.id)
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"update {schema}.jobs set state = 'queued'")

    assert (app.view(waits)["state"], app.view(app.get(gone.id))["state"]) == ("queued", "canceled")
    assert [job.id for job in app.find(state="queued").jobs] == [waits.id]
    for spelling in ("canceled", "cancelled"):
        assert [job.id for job in app.find(state=spelling).jobs] == [gone.id]
    for word in ("running", "completed", "failed"):
        assert app.find(state=word).jobs == []
