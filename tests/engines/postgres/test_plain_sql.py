"""Plain SQL as a surface that enqueues: open by default, closed by the setting, whatever role asks."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from treadle import ConfigError, Profile, State, Treadle
from treadle.profiles import backend
from treadle.testing import run_until_idle

INSERT = """insert into {0}.jobs (task, payload) values ('greet', '{{"name": "Ada"}}')"""
FUNCTION = """select {0}.enqueue('greet', '{{"name": "Ada"}}', key => 'k')"""
BOTH = pytest.mark.parametrize("statement", [INSERT, FUNCTION], ids=["insert", "function"])
CLOSED = Profile(settings={"enqueue_allow": ["cli"]})


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


@pytest.fixture
def shop(store_url: str) -> Iterator[Callable[..., Treadle]]:
    """Opens the shop's app, migrated with the settings it is given."""
    opened: list[Treadle] = []

    def open_shop(**settings: object) -> Treadle:
        app = Treadle(store_url, **settings)  # type: ignore[arg-type]
        opened.append(app)
        app.register("greet", lambda name: f"hello {name}")
        app.migrate()
        return app

    yield open_shop
    for app in opened:
        app.close()


@pytest.fixture
def sql(store_url: str) -> Callable[[str], None]:
    """Runs a statement as the tables' owner, who may do anything; {0} is the schema."""
    server, _, schema = store_url.partition("?schema=")

    def run(statement: str) -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(statement.format(schema))

    return run


@pytest.mark.covers("002-D3.a")
@BOTH
def test_closed_it_is_refused_with_the_setting_and_nothing_is_stored(
    shop: Callable[..., Treadle], sql: Callable[[str], None], statement: str
) -> None:
    app = shop(profile=CLOSED)
    with pytest.raises(InsufficientPrivilege, match="enqueue_allow leaves out sql") as refused:
        sql(statement)
    assert "treadle migrate" in str(refused.value.diag.message_hint)
    assert sum(app.count().values()) == 0
    with pytest.raises(InsufficientPrivilege):  # no key was taken either: it is free
        sql(FUNCTION)
    assert app.enqueue("greet", {"name": "Bob"}, key="k").payload == {"name": "Bob"}


@pytest.mark.covers("002-D3.a")
@BOTH
def test_open_as_by_default_and_for_the_backend_it_makes_a_job(
    shop: Callable[..., Treadle], sql: Callable[[str], None], statement: str
) -> None:
    app = shop(profile=backend.PROFILE)
    sql(statement)
    assert [job.result for job in run_until_idle(app)] == ["hello Ada"]


@pytest.mark.covers("002-D3.a")
def test_closed_the_library_goes_on_in_every_way_it_stores_jobs(shop: Callable[..., Treadle], store_url: str) -> None:
    app = shop(profile=CLOSED)
    task = app.tasks["greet"]
    with psycopg.connect(store_url.partition("?schema=")[0]) as connection:
        task.using(tx=connection).enqueue("in a transaction")
    task.enqueue_many([("a",), ("b",)])
    task.using(key="k").enqueue("with a key")
    app.schedules.create("often", task, {"name": "by a schedule"}, every="1h")
    app.schedules.run("often")
    gone = app.cancel(task.enqueue("cancelled").id)
    app.retry(gone.id)  # comes back into the table
    assert {job.result for job in run_until_idle(app)} == {
        f"hello {name}" for name in ("in a transaction", "a", "b", "with a key", "by a schedule", "cancelled")
    }


def test_what_follows_a_job_is_stored_where_plain_sql_is_closed(shop: Callable[..., Treadle]) -> None:
    app = shop(profile=CLOSED)
    app.register("first", lambda: None, on_succeeded="told")
    app.register("told", lambda state: state)
    app.enqueue("first")
    assert [job.result for job in run_until_idle(app)] == [None, "succeeded"]


def test_it_is_opened_again_by_the_setting_and_left_alone_without_one(
    shop: Callable[..., Treadle], sql: Callable[[str], None]
) -> None:
    shop(profile=CLOSED)
    plain = shop()  # an operator who migrates with other settings
    with pytest.raises(InsufficientPrivilege):
        sql(INSERT)
    assert plain.check_schema() == []
    shop(enqueue_allow=["cli", "sql"])
    sql(INSERT)
    assert plain.count()[State.PENDING] == 1
    assert plain.check_schema() == []


def test_a_store_that_is_not_as_the_setting_asks_is_told_of(
    shop: Callable[..., Treadle], store_url: str, sql: Callable[[str], None]
) -> None:
    shop()
    closed = Treadle(store_url, profile=CLOSED)
    [line] = closed.check_schema()
    assert line == "plain SQL is open, but the setting enqueue_allow leaves out sql: `treadle migrate` changes that"
    assert closed.check_schema(quick=True) == []  # it can be used
    assert [one.level for one in closed.doctor() if "plain SQL is open" in one.text] == ["error"]
    assert closed.migrate() == []
    assert closed.check_schema() == []
    opened = Treadle(store_url, enqueue_allow=["sql"])
    [line] = opened.check_schema()
    assert line.startswith("plain SQL is closed, but the setting enqueue_allow names sql")
    for app in (closed, opened):
        app.close()


def test_auto_migrate_closes_it_too(store_url: str, sql: Callable[[str], None]) -> None:
    app = Treadle(store_url, profile=CLOSED, auto_migrate=True)
    app.open()
    app.close()
    with pytest.raises(InsufficientPrivilege):
        sql(INSERT)


def test_the_schema_as_sql_closes_it(store_url: str, sql: Callable[[str], None]) -> None:
    server = store_url.partition("?schema=")[0]
    sql("drop schema {0} cascade")
    app = Treadle(store_url, profile=CLOSED)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(app.schema_sql())
    assert app.check_schema() == []
    with pytest.raises(InsufficientPrivilege):
        sql(INSERT)
    app.close()


def test_a_surface_that_there_is_not_is_refused(store_url: str) -> None:
    with pytest.raises(ConfigError, match="enqueue_allow"):
        Treadle(store_url, enqueue_allow=["web"]).settings  # noqa: B018
