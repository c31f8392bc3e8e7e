"""A claimed job that succeeds in its holder's own transaction."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from treadle import LeaseLost, State, Treadle
from treadle.testing import FakeClock


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    app = make_app()
    app.migrate()
    app.enqueue("resize", checked=False)
    return app


def own(store_url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
    connection.execute("create table if not exists images (id int)")
    connection.commit()
    connection.execute("insert into images values (7)")
    return connection


def images(store_url: str) -> int:
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
        return connection.execute("select count(*) from images").fetchone()[0]


def test_effect_and_end_commit_together_or_not_at_all(app: Treadle, store_url: str) -> None:
    [claimed] = app.claim()
    with closing(own(store_url)) as connection:
        assert claimed.succeed({"width": 640}, tx=connection).state is State.SUCCEEDED
        connection.rollback()
    assert (app.get(claimed.job.id).state, images(store_url)) == (State.RUNNING, 0)
    with closing(own(store_url)) as connection:
        claimed.succeed({"width": 640}, tx=connection)
        connection.commit()
    assert (app.get(claimed.job.id).result, images(store_url)) == ({"width": 640}, 1)


def test_a_zombies_effect_is_rolled_back(app: Treadle, store_url: str, clock: FakeClock) -> None:
    [claimed] = app.claim()
    clock.advance(minutes=5)
    app.recover()
    with closing(own(store_url)) as connection, pytest.raises(LeaseLost), connection:
        claimed.succeed(tx=connection)
    assert images(store_url) == 0
