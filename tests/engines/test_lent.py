"""An engine on a lent connection: it sees what its owner has not committed, and commits nothing itself."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support import provision
from tests.support.making import a_job
from treadle import ConfigError
from treadle.engines import connect, connect_on
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, JobFilter, Ruling
from treadle.model import Job, State, lifecycle, new_id


@pytest.fixture(params=["sqlite", "postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def owner(store_url: str) -> Iterator[Any]:
    """Somebody's connection to the store, which has its tables."""
    with opened(store_url) as connection:
        yield connection


def opened(url: str) -> Any:
    """A connection of the driver, which commits when it is told to."""
    if url.startswith("sqlite"):
        return closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None))
    return closing(psycopg.connect(url.partition("?")[0], autocommit=True))


@contextmanager
def savepoint(connection: Any) -> Iterator[Any]:
    """As its owner lends it: in the transaction that is open."""
    connection.execute("savepoint lent")
    try:
        yield connection
    except BaseException:
        connection.execute("rollback to savepoint lent")
        raise
    connection.execute("release savepoint lent")


@contextmanager
def block(connection: Any) -> Iterator[Any]:
    """The same where no transaction is open."""
    connection.execute("begin")
    yield connection
    connection.execute("commit")


@pytest.fixture
def lent(store_url: str, owner: Any) -> Engine:
    owner.execute("begin")
    return connect_on(store_url, partial(savepoint, owner))


def job(**fields: object) -> Job:
    return a_job(datetime.now(UTC), **fields)


def claim() -> Claim:
    return Claim(new_id(), "tester", 10, 30.0)


def test_a_whole_life_of_a_job_is_undone_with_the_transaction(lent: Engine, owner: Any, engine: Engine) -> None:
    [receipt] = lent.enqueue([job()])
    assert lent.get([receipt.job.id]) == [receipt.job]
    assert engine.get([receipt.job.id]) == [None]
    [claimed] = lent.turn([], claim()).jobs
    [verdict] = lent.turn([lifecycle.settle(claimed, lifecycle.Succeeded("1"), lent.now())]).verdicts
    assert verdict.ruling is Ruling.APPLIED
    assert lent.count(JobFilter())[State.SUCCEEDED] == 1
    owner.execute("rollback")
    assert engine.count(JobFilter()) == {}


def test_what_it_wrote_is_there_when_its_owner_commits(lent: Engine, owner: Any, engine: Engine) -> None:
    receipts = lent.enqueue([job() for _ in range(30)])
    owner.execute("commit")
    assert engine.get([one.job.id for one in receipts]) == [one.job for one in receipts]


def test_a_refused_value_leaves_the_transaction_usable(lent: Engine, owner: Any) -> None:
    refused, kept = lent.enqueue([job(payload_json='"\0"' if hasattr(owner, "pgconn") else '"\ud800"'), job()])
    assert refused.refused
    assert lent.get([kept.job.id]) == [kept.job]


def test_a_connection_is_used_in_one_block_of_its_owner_a_call(store_url: str, owner: Any) -> None:
    blocks = []

    @contextmanager
    def lend() -> Iterator[Any]:
        blocks.append(owner)
        with savepoint(owner):
            yield owner

    owner.execute("begin")
    lent = connect_on(store_url, lend)
    lent.open()
    del blocks[:]
    lent.enqueue([job()])
    assert len(blocks) == 1


def test_its_owner_is_told_of_what_was_written_and_nobody_else(store_url: str, owner: Any) -> None:
    told: list[str] = []
    lent = connect_on(store_url, partial(savepoint, owner), written=lambda: told.append("written"))
    owner.execute("begin")
    lent.count(JobFilter())
    assert told == []
    lent.enqueue([job()])
    assert told == ["written"]
    owner.execute("commit")


def test_workers_elsewhere_are_notified_when_the_owner_asks_and_not_before(store_url: str, owner: Any) -> None:
    lent, channel = connect_on(store_url, partial(block, owner)), f"treadle_{store_url.partition('schema=')[2]}"
    if store_url.startswith("sqlite"):
        return lent.wake(others=True)  # others watch the file
    with opened(store_url) as listener:
        listener.execute(f"listen {channel}")
        lent.enqueue([job()])
        assert list(listener.notifies(timeout=0.2)) == []
        lent.wake(others=True)
        assert [notice.channel for notice in listener.notifies(timeout=10, stop_after=1)] == [channel]
    return None


def test_it_makes_the_tables_in_the_transaction_of_the_owner(engine_kind: str, tmp_path: Path) -> None:
    new = (
        f"sqlite:///{tmp_path}/new.db" if engine_kind == "sqlite" else f"{provision.shared_postgres()}?schema={name()}"
    )
    with opened(new) as owner, closing(connect(new)) as engine:
        owner.execute("begin")
        lent = connect_on(new, partial(savepoint, owner))
        assert "0001_jobs" in lent.migrate()[0]
        assert (lent.check(), lent.migrate()) == ([], [])
        owner.execute("rollback")
        assert engine.check() != []


def name() -> str:
    return f"t{uuid4().hex[:20]}"


def test_a_store_without_such_connections_is_refused() -> None:
    with pytest.raises(ConfigError, match="SQLite and PostgreSQL have"):
        connect_on("dynamodb://jobs", lambda: None)  # type: ignore[arg-type, return-value]
