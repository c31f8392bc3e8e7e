"""From a URL to a server: what is understood, what is refused before anything is opened, and what is never shown."""

import logging
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import create_engine

from tests.support.making import claimed, enqueued, settle
from tests.support.provision import Cluster, drop_database, fresh_database
from treadle import ConfigError, EngineError, EngineUnavailable, Treadle
from treadle.engines import connect
from treadle.engines.postgres import connection as connections
from treadle.engines.postgres.connection import RETRY_FOR
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Ruling
from treadle.model.lifecycle import Succeeded

OpenEngine = Callable[..., PostgresEngine]

PASSWORD = "s3cret:/?#[]@!$&'()*+,;=% ü\"\\"
SLACK = 2.0  # seconds by which a busy machine may be late
NOBODY_THERE = "postgresql://treadle@127.0.0.1:1/postgres"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that asks `ada` for her password, and lets `treadle` in without one."""
    cluster = Cluster()
    rules = ["local all all trust", "host all treadle 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"]
    (cluster.folder / "data" / "pg_hba.conf").write_text("\n".join([*rules, ""]))
    with cluster:
        engine = connect(cluster.url)
        engine.migrate()
        engine.close()
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute(f"create role ada login superuser password {psycopg.sql.quote(PASSWORD)}")
        yield cluster


def works(engine: PostgresEngine) -> bool:
    """Whether jobs go all the way."""
    return settle(engine, claimed(engine, enqueued(engine)), Succeeded()).ruling is Ruling.APPLIED


def setting(engine: PostgresEngine, name: str) -> str:
    [[value]] = engine.server.run(lambda c: c.execute("select current_setting(%s)", [name]).fetchall())
    return str(value)


# ----------------------------------------------------------------------------------------- what is understood


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_both_names_of_the_scheme_will_do(open_engine: OpenEngine, server: Cluster, scheme: str) -> None:
    assert works(open_engine(server.url.replace("postgresql", scheme)))


def in_host(server: Cluster) -> str:
    return f"postgresql://treadle@{quote(str(server.socket_dir), safe='')}:{server.port}/postgres"


def in_query(server: Cluster) -> str:
    return f"postgresql:///postgres?host={server.socket_dir}&port={server.port}&user=treadle"


def in_query_with_a_user(server: Cluster) -> str:
    return f"postgresql://treadle@/postgres?host={quote(str(server.socket_dir), safe='')}&port={server.port}"


def in_query_without_a_database(server: Cluster) -> str:
    return f"postgresql://?host={server.socket_dir}&port={server.port}&user=treadle&dbname=postgres"


@pytest.mark.parametrize("form", [in_host, in_query, in_query_with_a_user, in_query_without_a_database])
def test_a_socket_of_this_machine_may_be_named_in_every_way_libpq_knows(
    open_engine: OpenEngine, server: Cluster, form: Callable[[Cluster], str]
) -> None:
    engine = open_engine(form(server))
    assert works(engine)
    [[over]] = engine.server.run(lambda c: c.execute("select inet_server_port()").fetchall())
    assert over is None


@pytest.mark.parametrize(
    "hosts",
    [
        "postgresql://treadle@127.0.0.1:1,127.0.0.1:{port}/postgres",
        "postgresql://treadle@127.0.0.1:{port},127.0.0.1:1/postgres",
        "postgresql://treadle@/postgres?host=127.0.0.1,127.0.0.1&port=1,{port}",
        "postgresql:///postgres?host=127.0.0.1,127.0.0.1&port=1,{port}&user=treadle",
    ],
)
def test_of_several_hosts_one_that_answers_is_taken(open_engine: OpenEngine, server: Cluster, hosts: str) -> None:
    engine = open_engine(hosts.format(port=server.port))
    assert works(engine)
    assert setting(engine, "port") == str(server.port)


def test_the_hosts_are_named_where_the_store_is_spoken_of(open_engine: OpenEngine) -> None:
    for url in (
        "postgresql://ada@one.invalid,two.invalid:7/jobs",
        "postgresql://ada@/jobs?host=one.invalid,two.invalid",
        "postgresql:///jobs?host=one.invalid,two.invalid&user=ada",
    ):
        where = open_engine(url).server.where
        assert "one.invalid" in where
        assert "two.invalid" in where
        assert "jobs" in where


def test_options_of_libpq_reach_the_server(open_engine: OpenEngine, server: Cluster) -> None:
    engine = open_engine(f"{server.url}?application_name=shop%20mail&options=-c%20work_mem%3D7MB")
    assert setting(engine, "application_name") == "shop mail"
    assert setting(engine, "work_mem") == "7MB"
    assert setting(engine, "jit") == "off"  # and ours beside them


def test_a_plus_is_a_plus(open_engine: OpenEngine, server: Cluster) -> None:
    engine = open_engine(f"{server.url}?application_name=shop+mail")  # as libpq reads it, which is no web browser
    assert setting(engine, "application_name") == "shop+mail"


def test_without_options_there_are_sensible_ones(open_engine: OpenEngine, server: Cluster) -> None:
    engine = open_engine(server.url)
    assert setting(engine, "application_name") == "treadle"
    assert int(setting(engine, "tcp_user_timeout")) == connections.TCP_TIMEOUT


@pytest.mark.parametrize(("option", "prepared"), [("", True), ("?prepare=off", False), ("?prepare=on", True)])
def test_calls_are_prepared_on_a_connection_that_leads_straight_to_the_server(
    open_engine: OpenEngine, server: Cluster, option: str, prepared: bool
) -> None:
    engine = open_engine(server.url + option)
    for _ in range(12):
        assert works(engine)
    count = "select count(*) from pg_prepared_statements"
    [[kept]] = engine.server.run(lambda c: c.execute(count).fetchall())
    assert (kept > 0) == prepared


def test_calls_that_are_no_longer_prepared_are_made_all_the_same(open_engine: OpenEngine, server: Cluster) -> None:
    engine = open_engine(server.url)
    assert works(engine)
    engine.server.run(lambda c: c.execute("deallocate all"))  # as if a pooler had given us another server connection

    assert works(engine)

    kept = engine.server.run(lambda c: c.execute("select count(*) from pg_prepared_statements").fetchall())
    assert kept == [(0,)], "it prepares no more"


def test_the_schema_is_called_treadle_unless_named(open_engine: OpenEngine, server: Cluster) -> None:
    assert open_engine(server.url).schema == "treadle"
    other = open_engine(f"{server.url}?schema=other&prepare=on&connect_timeout=3")
    assert other.schema == "other"
    other.migrate()
    assert works(other)


def test_a_password_may_hold_any_character_percent_encoded(open_engine: OpenEngine, server: Cluster) -> None:
    secret = quote(PASSWORD, safe="")
    in_front = f"postgresql://ada:{secret}@127.0.0.1:{server.port}/postgres"
    behind = f"postgresql://ada@127.0.0.1:{server.port}/postgres?password={secret}"
    for url in (in_front, behind):
        assert works(open_engine(url))
    assert works(open_engine(server.url, listen_url=in_front))


def test_times_are_utc_whatever_zone_the_server_keeps(open_engine: OpenEngine, server: Cluster) -> None:
    url = fresh_database(server.url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"alter database {url.rpartition('/')[2]} set timezone to 'Asia/Tokyo'")
    engine = open_engine(url, auto_migrate=True)
    job = enqueued(engine)
    held = claimed(engine, job)
    settle(engine, held, Succeeded())
    for found in (job, held, *engine.get([job.id])):
        times = [value for value in found if isinstance(value, datetime)]
        assert {moment.tzinfo for moment in times} == {UTC}
    engine.close()
    drop_database(url)


def test_nothing_is_opened_until_it_is_used() -> None:
    connect(NOBODY_THERE).close()


def test_a_closed_engine_opens_again_when_it_is_used(open_engine: OpenEngine, server: Cluster) -> None:
    engine = open_engine(server.url)
    assert works(engine)
    engine.close()
    engine.close()
    assert works(engine)


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://h/d?prepare=maybe", "prepare='maybe' must be auto, on or off"),
        ("postgresql://h/d?prepare=", "prepare='' must be auto, on or off"),
        ("postgresql://h/d?schema=Two%20Words", "schema='Two Words'"),
        ("postgresql://h/d?synchronous=full", 'parameter.*"synchronous"'),
        ("postgresql://h/d?sslmod=require", 'parameter.*"sslmod"'),
        ("postgresql://h/d?prepared", '"prepared"'),
        ("postgresql://[::1/d", "postgresql://user:password@host/database"),
        ("postgresql:/d", "postgresql://user:password@host/database"),
        ("postgresql:host=h", "postgresql://user:password@host/database"),
        ("postgresql://h/d#2", "%23"),
        ("postgresql://h/d\n", "it holds a control character, such as a line break at its end"),
        ("postgresql://u:p\x01@h/d", "it holds a control character"),
        ("postgresql://h/d\udc80", "it holds half a character"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_by_name(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"url: .*{said}"):
        connect(url)


@pytest.mark.parametrize(
    "listen_url", ["postgresql://h/d?sslmod=require", "nonsense", "sqlite:///x.db", "postgresql://h/d\n"]
)
def test_a_listen_url_that_cannot_be_meant_is_refused_too(listen_url: str) -> None:
    with pytest.raises(ConfigError, match="listen_url"):
        connect("postgresql://h/d", listen_url=listen_url)


@pytest.mark.parametrize("option", ["schema=jobs", "prepare=off", "schema=jobs&application_name=x"])
def test_a_listen_url_may_be_written_like_the_url(open_engine: OpenEngine, server: Cluster, option: str) -> None:
    engine = open_engine(f"{server.url}?{option}", listen_url=f"{server.url}?{option}")
    engine.migrate()
    assert [finding.level for finding in engine.doctor() if "LISTEN" in finding.text] == ["ok"]


# ------------------------------------------------------------------------------------------- what is not shown

HEAD, TAIL = "hunter2first", "second2hunter"


def said_by(act: Callable[[], object], caplog: pytest.LogCaptureFixture) -> str:
    """All that a terminal or a log would show of it: the error, its causes, the lines that were logged."""
    caplog.set_level(logging.DEBUG)
    shown = ""
    try:
        act()
    except Exception as error:
        shown = "".join(traceback.format_exception(error, limit=0))
    return shown + caplog.text


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is not waited for."""
    monkeypatch.setattr(connections.Connections, "retry_for", 0.0)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("character", list("@:/?#[]%+&= é\"'"))
def test_a_password_is_never_shown_even_if_it_is_wrong(
    open_engine: OpenEngine, server: Cluster, caplog: pytest.LogCaptureFixture, character: str
) -> None:
    secret = quote(f"{HEAD}{character}{TAIL}", safe="")
    for url in (
        f"postgresql://ada:{secret}@127.0.0.1:{server.port}/postgres",
        f"postgresql://ada@127.0.0.1:{server.port}/postgres?password={secret}",
        f"postgresql://ada:{secret}@127.0.0.1:1/postgres",
        f"postgresql://ada:{secret}@127.0.0.1:1,127.0.0.1:2/postgres",
    ):
        engine = open_engine(url)
        said = said_by(engine.open, caplog)
        assert "Error" in said or "Unavailable" in said
        assert HEAD not in said + engine.server.where
        assert TAIL not in said + engine.server.where


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{HEAD}%zz{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}/{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}?{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}#{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}@{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}[{TAIL}@127.0.0.1:1/d",
        f"postgresql://ada:{HEAD}{TAIL}@[::1]x/d",
        f"postgresql://ada:{HEAD}{TAIL}@[::1/d",
        f"postgresql://ada:{HEAD}{TAIL}@127.0.0.1:1/d?sslmod=require",
        f"postgresql://ada@127.0.0.1:1/d?sslmod=require&password={HEAD}{TAIL}",
        f"postgresql://ada@127.0.0.1:1/d?password={HEAD}%zz{TAIL}",
        f"postgresql:///d?password={HEAD}{TAIL}&host=127.0.0.1&port=1",
        f"postgresql:ada:{HEAD}{TAIL}@h/d",
        f"postgre://ada:{HEAD}{TAIL}@h/d",
        f"ada:{HEAD}{TAIL}@h/d",
    ],
    ids=lambda url: url.replace(HEAD, "~").replace(TAIL, "~"),
)
def test_a_password_is_not_shown_by_what_is_wrong_with_its_url(caplog: pytest.LogCaptureFixture, url: str) -> None:
    def use() -> None:
        engine = connect(url)
        try:
            engine.open()
        finally:
            engine.close()

    said = said_by(use, caplog)
    assert "Error" in said or "Unavailable" in said
    assert HEAD not in said
    assert TAIL not in said


def test_the_command_line_shows_no_password_either(
    server: Cluster,
) -> None:
    secret = f"{HEAD}%2F{TAIL}"
    url = f"postgresql://ada:{secret}@127.0.0.1:{server.port}/postgres"
    for arguments in (["jobs", "list"], ["migrate"], ["doctor"]):
        command = [sys.executable, "-m", "treadle", *arguments, "--url", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert str(server.port) in done.stderr
        assert not [part for part in (HEAD, TAIL) if part in done.stdout + done.stderr]


# ------------------------------------------------------------------------------------- who is not there

CALLS: dict[str, Callable[[PostgresEngine], object]] = {
    "open": lambda engine: engine.open(),
    "enqueue": enqueued,
    "get": lambda engine: engine.get(["none"]),
    "turn": lambda engine: engine.turn([]),
    "migrate": lambda engine: engine.migrate(),
    "check": lambda engine: engine.check(),
    "doctor": lambda engine: engine.doctor(),
}


@pytest.fixture
def took() -> Callable[[], float]:
    """Seconds since the test began."""
    began = time.monotonic()
    return lambda: time.monotonic() - began


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_not_there_is_unavailable(open_engine: OpenEngine, call: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1/postgres.*repeating is safe"):
        CALLS[call](open_engine(NOBODY_THERE))


def test_a_server_that_is_not_there_is_tried_for_a_while_and_no_longer(took: Callable[[], float]) -> None:
    app = Treadle(NOBODY_THERE)
    with pytest.raises(EngineUnavailable):
        app.enqueue("greet", checked=False)
    assert RETRY_FOR / 2 < took() < RETRY_FOR + SLACK
    app.close()


def test_a_server_that_takes_connections_and_says_nothing_is_unavailable_in_time(
    open_engine: OpenEngine, took: Callable[[], float]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        engine = open_engine(f"postgresql://treadle@127.0.0.1:{deaf.getsockname()[1]}/postgres?connect_timeout=2")
        with pytest.raises(EngineUnavailable, match="repeating is safe"):
            enqueued(engine)
        assert took() < RETRY_FOR + 2 + SLACK


NO_DATABASE = ("treadle@127.0.0.1:{port}/no_such_database", 'database "no_such_database" does not exist')
NO_ROLE = ("no_such_role:x@127.0.0.1:{port}/postgres", 'authentication failed for user "no_such_role"')
WRONG_PASSWORD = ("ada:wrong@127.0.0.1:{port}/postgres", 'authentication failed for user "ada"')
NO_PASSWORD = ("ada@127.0.0.1:{port}/postgres", "password")
MEANINGLESS = ("treadle@127.0.0.1:{port}/postgres?sslmode=foo", "sslmode")


@pytest.mark.parametrize(
    ("call", "there", "said"),
    [
        *((call, *NO_DATABASE) for call in CALLS),
        ("enqueue", *NO_ROLE),
        ("enqueue", *WRONG_PASSWORD),
        ("enqueue", *NO_PASSWORD),
        ("enqueue", *MEANINGLESS),
    ],
)
def test_what_repeating_cannot_mend_is_an_error_at_once(
    open_engine: OpenEngine, server: Cluster, took: Callable[[], float], call: str, there: str, said: str
) -> None:
    engine = open_engine(f"postgresql://{there.format(port=server.port)}")
    with pytest.raises(EngineError, match=said) as refused:
        CALLS[call](engine)
    assert not isinstance(refused.value, EngineUnavailable)
    assert took() < RETRY_FOR / 2


@pytest.mark.timeout(20)  # else it would try for ever
def test_a_worker_does_not_wait_for_a_database_that_does_not_exist(server: Cluster) -> None:
    app = Treadle(server.url.replace("/postgres", "/no_such_database"))
    with pytest.raises(EngineError, match="no_such_database") as refused:
        app.run_worker()
    assert not isinstance(refused.value, EngineUnavailable)
    app.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg2"])
def test_a_url_may_name_the_driver_of_sqlalchemy(server: Cluster, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url.replace("postgresql://", f"postgresql+{driver}://")
    with Treadle(url) as app:
        assert app.engine.now()
    monkeypatch.setenv("TREADLE_URL", url)
    with Treadle(listen_url=url) as app:
        assert (app.settings.url, app.settings.listen_url) == (server.url, server.url)


def test_an_app_takes_the_url_object_of_an_engine_with_its_password(server: Cluster) -> None:
    secret = quote(PASSWORD, safe="")
    made = create_engine(f"postgresql+psycopg://ada:{secret}@127.0.0.1:{server.port}/postgres")
    with Treadle(made.url) as app:
        assert app.engine.server.run(lambda c: c.execute("select current_user").fetchall()) == [("ada",)]
    with pytest.raises(ConfigError, match="pass the URL object itself"):
        Treadle(str(made.url)).count()
