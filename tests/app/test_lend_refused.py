"""What `Treadle(lend=...)` refuses: connections on which calls would be half done, wait without an end, or lie."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.lending import address_of, as_it_is, in_blocks, in_transactions, schema_of
from tests.support.making import a_job
from tests.support.marks import postgres_only
from treadle import ConfigError, EngineError, State, Treadle
from treadle.engines.postgres.lent import LentConnections
from treadle.engines.values import Ruling
from treadle.model import lifecycle
from treadle.testing import FakeClock

IsolationLevel = psycopg.IsolationLevel


@pytest.fixture
def whole(make_app: Callable[..., Treadle]) -> Treadle:
    """An app with connections of its own, on a store that has its tables."""
    app = make_app(clock=None)
    app.migrate()
    return app


@pytest.fixture
def connection(store_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(address_of(store_url), autocommit=True)) as connection:
        yield connection


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"{tmp_path}/lent.db"


@pytest.fixture
def own(file: str) -> Iterator[sqlite3.Connection]:
    """Somebody's connection to a SQLite file that has its tables."""
    with closing(Treadle(f"sqlite:///{file}")) as whole:
        whole.migrate()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


# ------------------------------------------------------------------------------------------ no transaction


@postgres_only
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_without_a_transaction_is_refused_and_nothing_is_stored(
    whole: Treadle, store_url: str, autocommit: bool
) -> None:
    with closing(psycopg.connect(address_of(store_url), autocommit=autocommit)) as connection:
        app = Treadle(store_url, lend=as_it_is(connection))
        for call in (lambda: app.enqueue("resize", checked=False), lambda: app.pause(queue="mail"), app.find):
            with pytest.raises(ConfigError, match="lend: begin a transaction before you yield the connection, such as"):
                call()
    assert (whole.find().jobs, whole.pauses()) == ([], [])


@postgres_only
def test_a_connection_in_pipeline_mode_is_refused(
    whole: Treadle, store_url: str, connection: psycopg.Connection
) -> None:
    app = Treadle(store_url, lend=as_it_is(connection))
    refused = pytest.raises(ConfigError, match="lend: this connection is in pipeline mode")
    with connection.pipeline(), connection.transaction(), refused:
        app.enqueue("resize", checked=False)
    assert whole.find().jobs == []


@postgres_only
def test_a_connection_that_is_busy_is_refused(whole: Treadle, store_url: str, connection: psycopg.Connection) -> None:
    app = Treadle(store_url, lend=as_it_is(connection))
    with connection.transaction(), connection.cursor() as cursor, cursor.copy("copy (select 1) to stdout") as rows:
        with pytest.raises(ConfigError, match="lend: this connection is busy with another statement"):
            app.find()
        assert list(rows.rows()) == [("1",)]


@postgres_only
def test_a_transaction_that_has_failed_says_so(whole: Treadle, store_url: str, connection: psycopg.Connection) -> None:
    app = Treadle(store_url, lend=as_it_is(connection))
    connection.execute("begin")
    with pytest.raises(psycopg.Error):
        connection.execute("select 1/0")
    with pytest.raises(EngineError, match="current transaction is aborted"):
        app.find()


def test_a_write_without_a_transaction_is_refused_on_sqlite_and_a_read_is_not(
    file: str, own: sqlite3.Connection
) -> None:
    app = Treadle(f"sqlite:///{file}", lend=as_it_is(own))
    writes = [lambda: app.enqueue("resize", checked=False), lambda: app.pause(queue="mail"), app.claim, app.migrate]
    for write in writes:
        with pytest.raises(ConfigError, match=r"lend: begin a transaction before .* BEGIN IMMEDIATE"):
            write()
    assert (app.find().jobs, app.pauses()) == ([], [])


def test_a_call_that_fails_leaves_nothing_in_a_transaction_of_sqlite_that_goes_on(
    file: str, own: sqlite3.Connection
) -> None:
    app = Treadle(f"sqlite:///{file}", lend=as_it_is(own))
    own.execute("create trigger no_events before insert on treadle_events begin select raise(abort, 'no events'); end")
    own.execute("begin immediate")
    with pytest.raises(EngineError, match="no events"):
        app.pause(queue="mail")
    own.execute("commit")
    assert app.pauses() == []


def test_a_job_that_the_file_refuses_gets_a_receipt_that_says_why(file: str, own: sqlite3.Connection) -> None:
    engine = Treadle(f"sqlite:///{file}", lend=in_transactions(own))._store.engine
    own.execute("create trigger full before insert on treadle_jobs begin select raise(abort, 'full'); end")
    [receipt] = engine.enqueue([a_job(engine.now())])
    assert (receipt.created, receipt.refused) == (False, "full")
    [receipt] = engine.enqueue([a_job(engine.now(), payload_json='"\ud800"')])
    assert "surrogates not allowed" in receipt.refused


# ------------------------------------------------------------------------------- another kind of transaction


@postgres_only
@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_claim_in_an_old_snapshot_is_refused_and_all_else_works(
    whole: Treadle, store_url: str, connection: psycopg.Connection, level: IsolationLevel
) -> None:
    app = Treadle(store_url, lend=in_blocks(connection))
    app.enqueue("resize", checked=False)
    [held] = app.claim()
    connection.isolation_level = level
    waiting = app.enqueue("resize", checked=False)
    with pytest.raises(ConfigError, match=f"lend: a claim in a {level.name.lower().replace('_', ' ')} transaction"):
        app.claim()
    assert app.get(waiting.id).state is State.PENDING
    assert held.succeed().state is State.SUCCEEDED
    connection.isolation_level = IsolationLevel.READ_UNCOMMITTED
    assert len(app.claim()) == 1


@postgres_only
@pytest.mark.parametrize(("name", "value"), [("client_encoding", "LATIN1"), ("standard_conforming_strings", "off")])
def test_a_connection_that_would_read_our_text_otherwise_is_refused(
    whole: Treadle, store_url: str, connection: psycopg.Connection, name: str, value: str
) -> None:
    connection.execute(f"set {name} = {value}")
    app = Treadle(store_url, lend=in_blocks(connection))
    with pytest.raises(ConfigError, match=f"lend: {name} of this connection is {value}, .*; connect with {name}="):
        app.enqueue("resize", {"name": "é"}, checked=False)
    assert whole.find().jobs == []


# ---------------------------------------------------------------------------------------------- waiting


@postgres_only
def test_a_key_in_an_open_transaction_is_not_waited_for_and_the_connection_stays_usable(
    whole: Treadle, store_url: str, connection: psycopg.Connection
) -> None:
    app = Treadle(store_url, lend=in_blocks(connection))
    engine = app._store.engine
    whole.enqueue("sync", checked=False, key="user-1")
    [held] = whole.claim()
    failed = held.fail("no network", retry=False)
    engine.server.answer_timeout = 5.0  # a lock that is waited for without an end ends here
    with closing(psycopg.connect(address_of(store_url))) as other, other.transaction():
        whole.enqueue("sync", checked=False, key="user-1", tx=other)
        [verdict] = engine.turn([lifecycle.retry(failed, engine.now(), actor="ops")]).verdicts
        assert verdict.ruling is Ruling.BUSY
        assert app.get(failed.id).state is State.FAILED


@postgres_only
def test_a_statement_that_is_not_answered_is_ended_and_its_transaction_can_be_rolled_back(
    store_url: str, connection: psycopg.Connection
) -> None:
    server = LentConnections(in_blocks(connection))
    with pytest.raises(EngineError, match=r"no answer within 0\.1 s"):
        server.run(lambda ours: ours.execute("select pg_sleep(30)"), answer_timeout=0.1)
    assert connection.execute("select 1").fetchone() == (1,)


# -------------------------------------------------------------------------------------- not a connection


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "postgresql://nobody@127.0.0.1:1/nothing"])
def test_what_lends_no_connection_of_the_driver_is_refused(url: str) -> None:
    @asynccontextmanager
    async def async_block() -> AsyncIterator[None]:
        yield

    lends: list[tuple[Any, str]] = [
        (as_it_is("a connection"), "lend: it must yield a connection of (sqlite3|psycopg), not str"),
        (lambda: 5, "lend: it must return a context manager, not int"),
        (async_block, "lend: it must return a context manager, not _AsyncGeneratorContextManager.* cannot be async"),
    ]
    for lend, message in lends:
        with pytest.raises(ConfigError, match=message):
            Treadle(url, lend=lend).find()
    with pytest.raises(ConfigError, match="lend: it must be a function that returns a context manager, not int"):
        Treadle(url, lend=5)  # type: ignore[arg-type]


def test_a_transaction_of_another_file_is_refused(file: str, own: sqlite3.Connection) -> None:
    app = Treadle(f"sqlite:///{file}", lend=in_transactions(own))
    with closing(Treadle(f"sqlite:///{file}2")) as other_app, closing(sqlite3.connect(f"{file}2")) as other:
        other_app.migrate()
        other.execute("begin")
        with pytest.raises(EngineError, match=r"tx is a connection to .*lent\.db2, but the jobs are in .*lent\.db:"):
            app.enqueue("resize", checked=False, tx=other)
        other.rollback()
        assert other_app.find().jobs == []
    own.execute("begin")
    job = app.enqueue("resize", checked=False, tx=own)
    own.execute("commit")
    assert [one.id for one in app.find().jobs] == [job.id]


def test_a_transaction_of_a_file_is_refused_by_an_app_whose_store_is_in_memory(
    file: str, own: sqlite3.Connection
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        app = Treadle("sqlite:///:memory:", lend=in_transactions(memory))
        app.migrate()
        own.execute("begin")
        with pytest.raises(EngineError, match=r"tx is a connection to .*lent\.db, .*: name the file in the url"):
            app.enqueue("resize", checked=False, tx=own)
        memory.execute("begin")
        job = app.enqueue("resize", checked=False, tx=memory)
        memory.execute("commit")
        assert [one.id for one in app.find().jobs] == [job.id]


def test_an_error_names_the_file(file: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as empty:
        app = Treadle(f"sqlite:///{file}", lend=in_transactions(empty))
        with pytest.raises(EngineError, match=r"lent\.db: no such table"):
            app.find()
        assert "0001_jobs" in app.migrate()[0]
        assert app.find().jobs == []


# ------------------------------------------------------------------------------------- settings and threads


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "postgresql://nobody@127.0.0.1:1/nothing"])
def test_auto_migrate_is_refused(url: str) -> None:
    app = Treadle(url, auto_migrate=True, lend=as_it_is(None))
    with pytest.raises(ConfigError, match=r"auto_migrate: an app with `lend` makes no tables.*call app\.migrate\(\)"):
        app.find()


@postgres_only
def test_migrate_on_a_lent_connection_closes_plain_sql_as_the_settings_say(
    make_app: Callable[..., Treadle], store_url: str, connection: psycopg.Connection
) -> None:
    app = Treadle(store_url, enqueue_allow=["api"], lend=in_blocks(connection))
    app.migrate()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no job can be enqueued with plain SQL"):
        connection.execute(f"select {schema_of(store_url)}.enqueue('resize', '{{}}')")
    assert make_app(enqueue_allow=["api"]).check_schema() == app.check_schema() == []
    wider = Treadle(store_url, enqueue_allow=["api", "sql"], lend=in_blocks(connection))
    assert wider.check_schema() == [
        "plain SQL is closed, but the setting enqueue_allow names sql: `treadle migrate` changes that"
    ]


def test_a_connection_of_sqlite_that_belongs_to_another_thread_says_so(file: str, own: sqlite3.Connection) -> None:
    app = Treadle(f"sqlite:///{file}", lend=as_it_is(own))
    errors: list[BaseException] = []

    def find() -> None:
        try:
            app.find()
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=find)
    thread.start()
    thread.join()
    assert "can only be used in that same thread" in str(errors[0])


def test_an_override_with_a_clock_stays_on_the_lent_connection(file: str, own: sqlite3.Connection) -> None:
    app, clock = Treadle(f"sqlite:///{file}", lend=in_transactions(own)), FakeClock()
    with app.override(clock=clock):
        job = app.enqueue("resize", checked=False)
        assert job.created_at == clock.now()
    assert own.execute("select count(*) from treadle_jobs").fetchone() == (1,)
