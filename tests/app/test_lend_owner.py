"""What the owner of a lent connection finds afterwards: the settings, handlers and factories that were there before."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.lending import address_of, as_it_is, in_blocks, in_transactions, schema_of
from tests.support.marks import postgres_only
from treadle import EngineError, State, Treadle
from treadle.testing import run_until_idle


@pytest.fixture
def whole(make_app: Callable[..., Treadle]) -> Treadle:
    app = make_app(clock=None)
    app.migrate()
    return app


@pytest.fixture
def connection(store_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(address_of(store_url), autocommit=True)) as connection:
        yield connection


def setting(connection: psycopg.Connection, name: str) -> Any:
    return connection.execute("select current_setting(%s, true)", [name]).fetchone()[0]


# --------------------------------------------------------------------------------------------- settings


@postgres_only
@pytest.mark.parametrize("before", ["0", "7s"])
def test_the_lock_timeout_of_the_transaction_is_the_owners_after_each_kind_of_write(
    whole: Treadle, store_url: str, connection: psycopg.Connection, before: str
) -> None:
    app = Treadle(store_url, lend=in_blocks(connection))
    with connection.transaction():
        connection.execute(f"set local lock_timeout = '{before}'")
        job = app.enqueue("sync", checked=False, key="user-1")
        assert setting(connection, "lock_timeout") == before
        app.pause(queue="mail")
        app.cancel(job.id)
        app.retry(job.id)
        assert setting(connection, "lock_timeout") == before
    assert app.get(job.id).state is State.PENDING


@postgres_only
def test_a_write_that_fails_in_a_transaction_that_goes_on_leaves_the_lock_timeout(
    whole: Treadle, store_url: str, connection: psycopg.Connection
) -> None:
    app = Treadle(store_url, lend=as_it_is(connection))
    server = app._store.engine.server
    connection.execute("begin")

    def fail(_: object) -> None:
        assert setting(connection, "lock_timeout") == "100ms"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.transaction(fail, lock_timeout="100ms")
    assert setting(connection, "lock_timeout") == "0"


@postgres_only
def test_the_tenant_of_a_call_is_not_the_tenant_of_the_owners_next_statement(
    whole: Treadle, store_url: str, connection: psycopg.Connection
) -> None:
    jobs = f"{schema_of(store_url)}.jobs"
    connection.execute(f"alter table {jobs} enable row level security")
    connection.execute(f"alter table {jobs} add check (current_setting('treadle.tenant', true) = tenant)")
    app = Treadle(store_url, lend=in_blocks(connection))
    acme = app.tenant("acme")
    with connection.transaction():
        acme.enqueue("sync", checked=False)
        assert len(acme.find().jobs) == 1
        acme.enqueue("sync", checked=False, key="user-1")
        assert not setting(connection, "treadle.tenant")
    with connection.transaction():
        connection.execute("select set_config('treadle.tenant', 'globex', true)")
        assert len(acme.find().jobs) == 2
        assert setting(connection, "treadle.tenant") == "globex"


# --------------------------------------------------------------------------------------------- handlers


@postgres_only
def test_the_owners_handlers_hear_of_notices_and_notifications_as_before(
    whole: Treadle, store_url: str, connection: psycopg.Connection
) -> None:
    heard: list[str | None] = []
    connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    connection.add_notify_handler(lambda notification: heard.append(notification.payload))
    channel = f"owners_{schema_of(store_url)}"
    connection.execute(f"listen {channel}")
    app = Treadle(store_url, lend=in_blocks(connection))
    with closing(psycopg.connect(address_of(store_url), autocommit=True)) as other:
        other.execute(f"notify {channel}, 'during'")
    for statement in (b"select 1", b"begin"):  # the notification is there, and not read yet
        connection.pgconn.exec_(statement)
    Treadle(store_url, lend=as_it_is(connection)).find()
    connection.pgconn.exec_(b"commit")
    with pytest.raises(EngineError):
        app._store.engine.session.read("select * from nothing", ())
    connection.execute("do $$ begin raise notice 'after'; end $$")
    connection.execute(f"notify {channel}, 'later'")
    connection.execute("select 1")
    assert heard == ["during", "after", "later"]


# -------------------------------------------------------------------------------------------- factories


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize(("row_factory", "text_factory"), [(sqlite3.Row, str), (as_dict, str), (None, bytes)])
def test_the_factories_of_a_connection_of_sqlite_do_not_matter_and_stay(
    tmp_path: Path, row_factory: Any, text_factory: Any
) -> None:
    file = tmp_path / "jobs.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as own:
        own.row_factory, own.text_factory = row_factory, text_factory
        app = Treadle(f"sqlite:///{file}", lend=in_transactions(own))
        app.migrate()
        job = app.enqueue("resize", {"image": 7}, checked=False, key="7")
        assert (app.get(job.id).payload, len(app.find().jobs), app.check_schema()) == ({"image": 7}, 1, [])
        [held] = app.claim()
        held.succeed({"width": 640})
        with pytest.raises(EngineError):
            app._store.engine.file.rows("select * from nothing")
        assert (own.row_factory, own.text_factory) == (row_factory, text_factory)


# --------------------------------------------------------------------------------------- what works besides


def test_what_is_not_a_worker_works_on_a_lent_connection(tmp_path: Path) -> None:
    file, sent = tmp_path / "jobs.db", []
    with closing(sqlite3.connect(file, isolation_level=None)) as own:
        app = Treadle(f"sqlite:///{file}", lend=in_transactions(own))
        app.task(name="mail")(lambda payload: payload)
        app.migrate()
        lives_on(app, sent)
        own.execute("pragma synchronous = off")
        assert "synchronous=off" in " ".join(finding.text for finding in app.doctor())
    assert sent == ["mail"]


@postgres_only
def test_the_same_on_postgresql(whole: Treadle, store_url: str, connection: psycopg.Connection) -> None:
    sent: list[str] = []
    app = Treadle(store_url, lend=in_blocks(connection))
    app.task(name="mail")(lambda payload: payload)
    lives_on(app, sent)
    assert sent == ["mail"]
    texts = [finding.text for finding in app.doctor()]
    assert any("schema is up to date" in text for text in texts)


def test_a_forked_child_works_on_the_connection_that_it_lends_itself(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"

    @contextmanager
    def lend() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(file, isolation_level=None)) as own, in_transactions(own)() as connection:
            yield connection

    app = Treadle(f"sqlite:///{file}", lend=lend)
    app.migrate()
    app.enqueue("mail", checked=False)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            app.enqueue("mail", checked=False)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert app.count()[State.PENDING] == 2


def lives_on(app: Treadle, sent: list[str]) -> None:
    """Claims with `once` and a cost, audit events that are followed and sealed, helpers of tests, a close."""
    following = app.follow()
    following.latest(10)
    app.enqueue("mail", {"to": "ada"})
    [held] = app.claim()
    held.start()
    for _ in range(2):
        held.context.once("send", lambda: sent.append("mail"))
    held.context.add_cost(7)
    held.extend()
    held.succeed()
    assert app.wait_for(held.job).cost_micros == 7
    assert [memo.name for memo in app.memos(held.job)] == ["send"]
    app.pause(queue="slow")
    assert [followed.event.kind for followed in following.news()] == ["paused"]
    assert app.seal_audit() >= 1
    assert (app.verify_audit().unsealed, app.budgets().tenants) == (0, [])
    app.enqueue("mail", {"to": "bob"})
    run_until_idle(app)
    app.close()
    assert app.count()[State.SUCCEEDED] == 2
