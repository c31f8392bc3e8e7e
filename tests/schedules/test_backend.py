"""A schedule of the backend (002) by its profile, on PostgreSQL: every field of its document."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.support.scheduling import fire
from treadle import InvalidJob, NotPossible, Retry, State, Treadle
from treadle.profiles import backend
from treadle.testing import FakeClock, run_until_idle

CRON = "0 * * * *"


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the backend has no other."""
    return request.param


@pytest.mark.covers("002-M3.a")
def test_a_schedule_has_every_field_with_its_default_and_keeps_them_up(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=backend.PROFILE)
    app.register("stale_session_cleanup", lambda: None)
    made_at = clock.now()
    made = app.schedules.create("session_cleanup_hourly", "stale_session_cleanup", cron=CRON)
    assert str(UUID(made.id)) == made.id
    assert (made.name, made.task, made.payload, made.cron) == (
        "session_cleanup_hourly", "stale_session_cleanup", {}, CRON,
    )  # fmt: skip
    assert (made.timezone, made.enabled, made.max_attempts) == ("UTC", True, 3)
    assert (made.next_at, made.last_at) == (made_at + timedelta(hours=1), None)
    assert (made.created_at, made.updated_at) == (made_at, made_at)

    clock.advance(minutes=30)
    changed = app.schedules.update("session_cleanup_hourly", payload={})
    assert (changed.created_at, changed.updated_at) == (made_at, clock.now())
    clock.advance(minutes=30)
    fire(app)
    fired = app.schedules.get("session_cleanup_hourly")
    assert (fired.last_at, fired.next_at) == (clock.now(), clock.now() + timedelta(hours=1))
    assert (fired.id, fired.updated_at) == (made.id, clock.now())


@pytest.mark.covers("002-Q2.a")
@pytest.mark.parametrize("way", ["by task", "by name", "in a transaction"])
def test_an_enqueued_job_is_queued_with_the_given_time_key_attempts_and_schedule(
    make_app: Callable[..., Treadle], clock: FakeClock, store_url: str, way: str
) -> None:
    app = make_app(profile=backend.PROFILE)
    task = app.register("webhook_delivery_prune", lambda retention_hours=168: retention_hours)
    prune = app.schedules.create("prune_daily", task, cron=CRON)
    at = clock.now() + timedelta(hours=2)
    given = {"run_after": at, "key": "prune-1", "schedule": "prune_daily", "retry": Retry(max_attempts=9)}
    with psycopg.connect(store_url.partition("?schema=")[0]) as connection:
        if way == "by name":
            job = app.enqueue("webhook_delivery_prune", {"retention_hours": 24}, **given)
        else:
            job = task.using(**given, tx=connection if way == "in a transaction" else None).enqueue(24)
    printed = app.view(app.get(job.id))
    assert (printed["type"], printed["payload"], printed["state"]) == (
        "webhook_delivery_prune", {"retention_hours": 24}, "queued",
    )  # fmt: skip
    assert (printed["run_at"], printed["idempotency_key"]) == (at.isoformat(), "prune-1")
    assert (printed["max_attempts"], printed["schedule_id"]) == (9, prune.id)
    plain = app.view(app.get(task.enqueue().id))
    assert (plain["run_at"], plain["idempotency_key"]) == (clock.now().isoformat(), None)
    assert (plain["max_attempts"], plain["schedule_id"]) == (3, None)
    clock.advance(hours=1)
    fire(app)  # a job that was given the schedule is not in the way of its own runs
    assert app.schedules.get("prune_daily").last_at == clock.now()
    assert [one.state for one in run_until_idle(app)] == [State.SUCCEEDED] * 2


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, 7])
def test_a_schedule_that_cannot_be_named_so_is_refused_at_enqueue(
    make_app: Callable[..., Treadle], name: object
) -> None:
    task = make_app(profile=backend.PROFILE).register("prune", lambda: None)
    with pytest.raises(InvalidJob, match="schedule"):
        task.using(schedule=name).enqueue()  # type: ignore[arg-type]


@pytest.mark.covers("002-M3.a")
def test_the_name_of_a_schedule_is_unique_and_so_is_its_id(make_app: Callable[..., Treadle], store_url: str) -> None:
    app = make_app(profile=backend.PROFILE)
    app.register("stale_session_cleanup", lambda: None)
    first, other = (app.schedules.create(name, "stale_session_cleanup", cron=CRON) for name in ("a", "b"))
    assert first.id != other.id
    with pytest.raises(NotPossible, match="a"):
        app.schedules.create("a", "stale_session_cleanup", cron=CRON)
    server, _, schema = store_url.partition("?schema=")
    insert = f"insert into {schema}.schedules (name, task, cron) values ('a', 'stale_session_cleanup', '{CRON}')"
    with psycopg.connect(server, autocommit=True) as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(insert)
