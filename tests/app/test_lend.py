"""`Treadle(lend=...)`: each call works on a connection of the caller's, in the caller's transaction."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from tests.support.marks import postgres_only
from treadle import LeaseLost, NotPossible, State, Treadle
from treadle.testing import FakeClock


@pytest.fixture
def pool(store_url: str) -> Iterator[ConnectionPool]:
    with ConnectionPool(store_url.partition("?schema=")[0], min_size=1, max_size=1) as pool:
        yield pool


def from_pool(pool: ConnectionPool) -> Callable[[], Any]:
    @contextmanager
    def lend() -> Iterator[psycopg.Connection]:
        with pool.connection() as connection, connection.transaction():
            yield connection

    return lend


@postgres_only
def test_a_job_is_stored_claimed_and_settled_on_the_one_connection_that_is_lent(
    make_app: Callable[..., Treadle], store_url: str, pool: ConnectionPool
) -> None:
    make_app().migrate()
    schema = store_url.partition("?")[2]
    app = Treadle(f"postgresql://nobody@127.0.0.1:1/nothing?{schema}", lend=from_pool(pool))  # none could be opened
    job = app.enqueue("resize", {"image": 7}, checked=False)
    [held] = app.claim()
    held.start()
    assert (held.job.id, held.extend("5m")) == (job.id, True)
    assert held.succeed({"width": 640}).state is State.SUCCEEDED
    assert (app.get(job.id).result, app.recover()) == ({"width": 640}, 0)
    assert pool.get_stats()["requests_num"] >= 6
    with pool.connection() as connection:
        status = connection.info.transaction_status
        assert status == psycopg.pq.TransactionStatus.IDLE


@postgres_only
def test_what_the_caller_rolls_back_has_not_happened(
    make_app: Callable[..., Treadle], store_url: str, pool: ConnectionPool
) -> None:
    whole = make_app()
    whole.migrate()
    rolls_back = False

    @contextmanager
    def lend() -> Iterator[psycopg.Connection]:
        with pool.connection() as connection, connection.transaction(force_rollback=rolls_back):
            yield connection

    app = Treadle(store_url, lend=lend)
    kept = app.enqueue("resize", {"image": 7}, checked=False)
    rolls_back = True
    app.enqueue("resize", {"image": 8}, checked=False)
    [held] = app.claim()
    assert [job.id for job in whole.find().jobs] == [kept.id]
    assert whole.get(kept.id).state is State.PENDING
    rolls_back = False
    with pytest.raises(LeaseLost):
        held.succeed()


@postgres_only
def test_a_worker_needs_connections_of_its_own_and_an_override_has_them(
    make_app: Callable[..., Treadle], store_url: str, pool: ConnectionPool
) -> None:
    app = Treadle(store_url, lend=from_pool(pool))
    with pytest.raises(NotPossible, match="lend: a worker listens and renews leases on connections of its own"):
        app.worker()
    with app.override("sqlite:///:memory:"):
        app.task(name="double")(lambda payload: payload * 2)
        app.run_worker(until_idle=True)
    with app.override(clock=FakeClock()):
        pool.close()
        with pytest.raises(Exception, match="closed"):
            app.find()


def test_a_connection_of_sqlite_can_be_lent_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(Treadle(url)) as whole, closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as own:
        whole.migrate()

        @contextmanager
        def lend() -> Iterator[sqlite3.Connection]:
            own.execute("begin immediate")
            try:
                yield own
            except BaseException:
                own.execute("rollback")
                raise
            own.execute("commit")

        app = Treadle(url, lend=lend)
        job = app.enqueue("resize", {"image": 7}, checked=False)
        [held] = app.claim()
        held.fail("no disk", retry=False)
        assert whole.get(job.id).state is State.FAILED
