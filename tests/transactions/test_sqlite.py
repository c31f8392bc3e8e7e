"""Enqueue in the caller's own SQLite transaction: the job and the caller's rows commit together, or neither."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from treadle import ConfigError, EngineError, EngineUnavailable, InvalidPayload, KeyTaken, State, Task, Treadle, Unique
from treadle.testing import run_until_idle


@pytest.fixture(params=["sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the caller's driver is the matter here."""
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file behind `store_url`."""
    return tmp_path / "treadle.db"


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., sqlite3.Connection]]:
    """Opens connections of the caller's own, and closes them."""
    opened: list[sqlite3.Connection] = []

    def open_connection(file: Path | str = path, **options: object) -> sqlite3.Connection:
        opened.append(sqlite3.connect(file, **{"timeout": 0.2, **options}))
        return opened[-1]

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    """On a store alone; the application's table is made by each test."""
    return make_app()


@pytest.fixture
def welcome(app: Treadle) -> Task:
    @app.task
    def welcome(user: str) -> str:
        return f"welcome {user}"

    app.migrate()
    return welcome


@pytest.fixture
def users(connect: Callable[..., sqlite3.Connection], welcome: Task) -> sqlite3.Connection:
    """The caller's connection, as Python opens it, with a table of users."""
    connection = connect()
    connection.execute("create table users (name text primary key)")
    connection.commit()
    return connection


def names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute("select name from users order by name")]


def test_a_job_and_the_callers_row_commit_together(
    app: Treadle, welcome: Task, users: sqlite3.Connection, path: Path
) -> None:
    users.execute("insert into users values ('Ada')")
    job = welcome.using(tx=users).enqueue("Ada")
    assert (app.count()[State.PENDING], names(path)) == (0, [])  # nobody sees either yet
    users.commit()
    assert (app.get(job.id), names(path)) == (job, ["Ada"])
    assert [ran.result for ran in run_until_idle(app)] == ["welcome Ada"]


def test_a_job_and_the_callers_row_roll_back_together(
    app: Treadle, welcome: Task, users: sqlite3.Connection, path: Path
) -> None:
    users.execute("insert into users values ('Ada')")
    welcome.using(tx=users, key="k").enqueue("Ada")
    users.rollback()
    assert (set(app.count().values()), names(path)) == ({0}, [])
    assert welcome.using(key="k").enqueue("Ada").state is State.PENDING  # the key went with it


def test_enqueue_may_come_first_in_the_transaction(
    app: Treadle, welcome: Task, users: sqlite3.Connection, path: Path
) -> None:
    with users:
        welcome.using(tx=users).enqueue("Ada")
        users.execute("insert into users values ('Ada')")
    assert (app.count()[State.PENDING], names(path)) == (1, ["Ada"])
    with pytest.raises(sqlite3.IntegrityError), users:
        welcome.using(tx=users).enqueue("Bob")
        users.execute("insert into users values ('Ada')")
    assert app.count()[State.PENDING] == 1


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE", "EXCLUSIVE"], ids=str)
def test_a_transaction_the_caller_began_is_the_one_that_is_used(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection], level: str | None
) -> None:
    connection = connect(isolation_level=level)
    connection.execute("begin immediate")
    welcome.using(tx=connection).enqueue("Ada")
    connection.execute("rollback")
    connection.execute("begin immediate")
    welcome.using(tx=connection).enqueue("Bob")
    connection.execute("commit")
    assert [job.payload["user"] for job in app.find().jobs] == ["Bob"]


def test_many_jobs_go_with_one_transaction(app: Treadle, welcome: Task, users: sqlite3.Connection) -> None:
    receipts = welcome.using(tx=users).enqueue_many([("Ada",), ("Bob",)])
    assert [receipt.created for receipt in receipts] == [True, True]
    users.rollback()
    assert set(app.count().values()) == {0}
    welcome.using(tx=users).enqueue_many([("Ada",), ("Bob",)])
    users.commit()
    assert app.count()[State.PENDING] == 2


def test_enqueue_by_name_goes_with_the_transaction_too(app: Treadle, welcome: Task, users: sqlite3.Connection) -> None:
    app.enqueue("welcome", {"user": "Ada"}, tx=users)
    assert app.count()[State.PENDING] == 0
    users.commit()
    assert app.count()[State.PENDING] == 1


def test_async_code_enqueues_in_a_synchronous_transaction_by_the_synchronous_method(
    app: Treadle, welcome: Task, users: sqlite3.Connection
) -> None:
    async def scene() -> None:
        with pytest.raises(ConfigError, match="write enqueue"):
            await welcome.using(tx=users).aenqueue("Ada")
        welcome.using(tx=users).enqueue("Bob")

    asyncio.run(scene())
    users.commit()
    assert [job.payload["user"] for job in app.find().jobs] == ["Bob"]


def test_async_code_enqueues_many_without_a_transaction(app: Treadle, welcome: Task) -> None:
    receipts = asyncio.run(welcome.aenqueue_many([("Ada",), {"user": "Bob"}]))
    assert [receipt.created for receipt in receipts] == [True, True]
    with pytest.raises(InvalidPayload, match="call 1"):
        asyncio.run(welcome.aenqueue_many([("Ada",), (7,)]))
    assert app.count()[State.PENDING] == 2


def test_a_savepoint_of_the_callers_takes_its_jobs_along(
    app: Treadle, welcome: Task, users: sqlite3.Connection
) -> None:
    users.execute("begin")
    users.execute("savepoint one")
    welcome.using(tx=users).enqueue("Ada")
    users.execute("rollback to one")
    welcome.using(tx=users).enqueue("Bob")
    users.commit()
    assert [job.payload["user"] for job in app.find().jobs] == ["Bob"]


def test_the_callers_row_factory_is_its_own_business(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection]
) -> None:
    connection = connect()
    connection.row_factory = sqlite3.Row
    first = welcome.using(tx=connection, key="k").enqueue("Ada")
    assert welcome.using(tx=connection, key="k").enqueue("Bob") == first
    connection.commit()
    assert connection.row_factory is sqlite3.Row
    assert connection.execute("select 1 as one").fetchone()["one"] == 1
    assert app.get(first.id) == first


def test_the_callers_text_factory_is_its_own_business(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection]
) -> None:
    connection = connect()
    connection.text_factory = bytes
    first = welcome.using(tx=connection, key="k").enqueue("Ada")
    assert welcome.using(tx=connection, key="k").enqueue("Bob") == first
    connection.commit()
    assert app.get(first.id) == first
    assert connection.text_factory is bytes


# ---------------------------------------------------------------------------------------- keys and conflicts


def test_a_taken_key_answers_with_the_first_job_inside_the_transaction(
    app: Treadle, welcome: Task, users: sqlite3.Connection
) -> None:
    first = welcome.using(key="k").enqueue("Ada")
    assert welcome.using(key="k", tx=users).enqueue("Bob") == first
    users.execute("insert into users values ('Bob')")
    users.commit()
    assert app.count()[State.PENDING] == 1


def test_a_taken_key_that_raises_leaves_the_transaction_usable(
    app: Treadle, welcome: Task, users: sqlite3.Connection, path: Path
) -> None:
    first = welcome.using(key="k").enqueue("Ada")
    users.execute("insert into users values ('before')")
    with pytest.raises(KeyTaken) as taken:
        welcome.using(key="k", unique=Unique(on_conflict="raise"), tx=users).enqueue("Bob")
    assert taken.value.holder == first.id
    users.execute("insert into users values ('after')")
    users.commit()
    assert names(path) == ["after", "before"]
    assert app.count()[State.PENDING] == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_replacement_happens_with_the_transaction(
    app: Treadle, welcome: Task, users: sqlite3.Connection, end: str
) -> None:
    first = welcome.using(key="k").enqueue("Ada")
    replaced = welcome.using(key="k", unique=Unique(on_conflict="replace"), tx=users).enqueue("Bob")
    assert (replaced.id, replaced.payload) == (first.id, {"user": "Bob"})
    assert app.get(first.id).payload == {"user": "Ada"}
    getattr(users, end)()
    assert app.get(first.id).payload == {"user": "Bob" if end == "commit" else "Ada"}


def test_wrong_arguments_leave_the_transaction_usable(
    app: Treadle, welcome: Task, users: sqlite3.Connection, path: Path
) -> None:
    users.execute("insert into users values ('Ada')")
    with pytest.raises(InvalidPayload):
        welcome.using(tx=users).enqueue(7)
    users.commit()
    assert names(path) == ["Ada"]


# ---------------------------------------------------------------------------------------------- refusals


def test_a_connection_in_autocommit_mode_is_refused(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection]
) -> None:
    with pytest.raises(ConfigError, match=r"autocommit.*BEGIN IMMEDIATE"):
        welcome.using(tx=connect(isolation_level=None)).enqueue("Ada")
    assert set(app.count().values()) == {0}


def test_a_read_that_became_a_write_beside_another_writer_is_told_to_begin_immediate(
    app: Treadle, welcome: Task, users: sqlite3.Connection
) -> None:
    users.execute("begin")
    assert users.execute("select count(*) from users").fetchone() == (0,)
    welcome.enqueue("somebody else's")
    with pytest.raises(EngineUnavailable, match="BEGIN IMMEDIATE"):
        welcome.using(tx=users).enqueue("Ada")
    users.rollback()
    users.execute("begin immediate")
    welcome.using(tx=users).enqueue("Ada")
    users.commit()
    assert app.count()[State.PENDING] == 2


def test_a_file_locked_by_another_writer_is_reported_as_busy(
    app: Treadle, welcome: Task, users: sqlite3.Connection, connect: Callable[..., sqlite3.Connection]
) -> None:
    other = connect(isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(EngineUnavailable, match="locked"):
        welcome.using(tx=users).enqueue("Ada")
    assert not users.in_transaction
    other.execute("rollback")
    welcome.using(tx=users).enqueue("Ada")
    users.commit()
    assert app.count()[State.PENDING] == 1


def test_a_connection_to_another_file_is_refused(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection], tmp_path: Path
) -> None:
    for elsewhere in (tmp_path / "other.db", ":memory:"):
        with pytest.raises(EngineError, match=r"treadle\.db"):
            welcome.using(tx=connect(elsewhere)).enqueue("Ada")
    assert set(app.count().values()) == {0}


def test_the_same_file_by_another_path_is_the_same_file(
    app: Treadle, welcome: Task, connect: Callable[..., sqlite3.Connection], tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "treadle.db")
    for way in ("treadle.db", tmp_path / "link.db", tmp_path / "." / "treadle.db"):
        connection = connect(way)
        welcome.using(tx=connection).enqueue("Ada")
        connection.commit()
    assert app.count()[State.PENDING] == 3


@pytest.mark.parametrize("tx", [object(), "sqlite:///treadle.db", 7], ids=["object", "url", "number"])
def test_what_is_no_transaction_is_refused_by_its_type(app: Treadle, welcome: Task, tx: object) -> None:
    with pytest.raises(ConfigError, match=rf"tx.*{type(tx).__name__}"):
        welcome.using(tx=tx).enqueue("Ada")


def test_an_app_in_memory_has_no_file_to_share(connect: Callable[..., sqlite3.Connection]) -> None:
    app = Treadle("sqlite:///:memory:")
    with pytest.raises(EngineError, match="memory"):
        app.register("tick", lambda: None).using(tx=connect(":memory:")).enqueue()
    app.close()


def test_a_store_without_tables_says_what_to_call_and_leaves_the_transaction_usable(
    app: Treadle, path: Path, connect: Callable[..., sqlite3.Connection]
) -> None:
    path.unlink()
    connection = connect()
    connection.execute("create table users (name text)")
    task = app.register("tick", lambda: None)
    with pytest.raises(EngineError, match=r"app\.migrate\(\)"):
        task.using(tx=connection).enqueue()
    connection.rollback()
    app.migrate()
    task.using(tx=connection).enqueue()
    connection.commit()
    assert app.count()[State.PENDING] == 1
