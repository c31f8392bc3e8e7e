"""A schedule of the backend (002) by its profile, on PostgreSQL: every field of its document."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.support.scheduling import fire
from tests.support.seed_profiles import BACKEND
from treadle import NotPossible, Treadle
from treadle.testing import FakeClock

CRON = "0 * * * *"


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the backend has no other."""
    return request.param


@pytest.mark.covers("002-M3.a")
def test_a_schedule_has_every_field_with_its_default_and_keeps_them_up(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=BACKEND)
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


@pytest.mark.covers("002-M3.a")
def test_the_name_of_a_schedule_is_unique_and_so_is_its_id(make_app: Callable[..., Treadle], store_url: str) -> None:
    app = make_app(profile=BACKEND)
    app.register("stale_session_cleanup", lambda: None)
    first, other = (app.schedules.create(name, "stale_session_cleanup", cron=CRON) for name in ("a", "b"))
    assert first.id != other.id
    with pytest.raises(NotPossible, match="a"):
        app.schedules.create("a", "stale_session_cleanup", cron=CRON)
    server, _, schema = store_url.partition("?schema=")
    insert = f"insert into {schema}.schedules (name, task, cron) values ('a', 'stale_session_cleanup', '{CRON}')"
    with psycopg.connect(server, autocommit=True) as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(insert)
