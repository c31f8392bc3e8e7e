"""The commands on a PostgreSQL store; and what they say when it is not there, not ours, or not set up."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.support import forks, provision
from tests.support.provision import Cluster
from treadle.engines.postgres.connection import Connections

COMMANDS = {
    "migrate": ["migrate"],
    "migrate --check": ["migrate", "--check"],
    "doctor": ["doctor"],
    "jobs list": ["jobs", "list"],
    "jobs count": ["jobs", "count"],
    "jobs show": ["jobs", "show", "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"],
    "enqueue": ["enqueue", "greet", '{"name": "Ada"}'],
    "enqueue --unchecked": ["enqueue", "greet", '{"name": "Ada"}', "--unchecked"],
    "schedules create": ["schedules", "create", "a", "--task", "whatever", "--every", "1m"],
    "schedules show": ["schedules", "show", "a"],
    "schedules run": ["schedules", "run", "a"],
    "pause": ["pause", "--all"],
    "why": ["why", "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"],
    "workers": ["workers"],
    "audit verify": ["audit", "verify"],
    "prune": ["prune"],
}
IMPATIENTLY = (
    "from treadle import cli; from treadle.engines.postgres.connection import Connections\n"
    "Connections.retry_for = 0.1; cli.main()"
)
READERS = {name: words for name, words in COMMANDS.items() if not name.startswith("migrate")}


def each(commands: dict[str, list[str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", commands.values(), ids=commands)


def on_schema(server: str) -> str:
    """A schema of its own on that server, not created yet."""
    return f"{server}?schema=t{uuid4().hex[:20]}"


@pytest.fixture
def url() -> Iterator[str]:
    """A store that nobody has migrated; it is gone afterwards."""
    url = on_schema(provision.shared_postgres())
    yield url
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {schema} cascade")


@pytest.fixture
def bare(treadle, url: str, monkeypatch: pytest.MonkeyPatch):
    """`call`, with that store in TREADLE_URL."""
    monkeypatch.setenv("TREADLE_URL", url)
    return treadle


@pytest.fixture
def store(bare):
    """The same, migrated."""
    assert bare("migrate").code == 0
    return bare


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command waits five seconds for a server that will not come."""
    monkeypatch.setattr(Connections, "retry_for", 0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of our own, on which the role ada has a password: right."""
    with Cluster(synchronous_commit="on") as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute("create role ada login password 'right'")
        rules = cluster.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all ada 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        cluster.restart()
        yield cluster


def one_line(done) -> str:
    """What an error says: one line on stderr, no traceback, and the code of a failure."""
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in done.err
    return line


# ------------------------------------------------------------------------------------ the store itself


def test_migrate_creates_the_tables_once_and_check_agrees(bare, url):
    missing = bare("migrate", "--check")
    assert missing.code == 1
    assert "`treadle migrate`" in missing.out
    first = bare("migrate", "--json")
    assert first.json["applied"]
    assert bare("migrate", "--json").json == {"applied": [], "differences": []}
    assert bare("migrate").out == f"{url} is up to date\n"
    assert bare("migrate", "--check", "--json").json == {"differences": []}
    assert bare("migrate", "--check").code == 0


def test_migrate_check_names_what_was_changed_by_hand_and_mends_nothing(store, url):
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"alter table {schema}.jobs drop column priority")
        connection.execute(f"create table {schema}.strange (n int)")
    broken = store("migrate", "--check", "--json")
    assert broken.code == 1
    assert any("jobs.priority is missing" in line for line in broken.json["differences"])
    assert any("strange is unknown" in line for line in broken.json["differences"])
    assert store("migrate", "--check").code == 1
    again = store("migrate")
    assert again.code == 1
    assert "not as expected" in again.out
    assert "jobs.priority is missing" in again.out


def test_migrate_sql_prints_a_schema_that_another_tool_can_apply(bare, url):
    server, _, schema = url.partition("?schema=")
    printed = bare("migrate", "--sql")
    assert (printed.code, printed.err) == (0, "")
    assert bare("migrate", "--sql", "--json").json["sql"].strip() == printed.out.strip()
    with psycopg.connect(server) as connection:  # nothing was created by printing it
        assert connection.execute("select to_regnamespace(%s)", [schema]).fetchone() == (None,)
        connection.execute(printed.out)
    assert bare("migrate", "--check").code == 0
    assert bare("migrate", "--json").json == {"applied": [], "differences": []}
    assert bare("enqueue", "greet", '{"name": "Ada"}').code == 0


def test_the_halves_of_a_migration_make_the_whole(bare):
    assert bare("migrate", "--pre").code == 0
    assert bare("jobs", "count").code == 0  # new code works already
    assert bare("migrate", "--post").code == 0
    assert bare("migrate", "--check").code == 0


def test_doctor_tells_health_by_its_exit_code(bare):
    ill = bare("doctor")
    assert ill.code == 1
    assert "✗ error" in ill.out
    assert "`treadle migrate`" in ill.out
    bare("migrate")
    well = bare("doctor")
    assert well.code == 0
    assert re.search(r"✓ ok +PostgreSQL \d+", well.out)
    assert "LISTEN works" in well.out
    machine = bare("doctor", "--json").json
    assert machine["ok"] is True
    assert {finding["level"] for finding in machine["findings"]} <= {"ok", "warning"}


# --------------------------------------------------------------------------------------------- jobs


@pytest.mark.covers("002-L1.b", "002-L1.c", "002-T1.m")
def test_a_job_is_enqueued_run_listed_retried_and_cancelled(store, work):
    greet = store("enqueue", "greet", '{"name": "Ada"}', "--json")
    assert (greet.code, greet.json["outcome"]) == (0, "created")
    boom = store("enqueue", "boom", '{"text": "no tea left"}', "--json").json["id"]
    later = store("enqueue", "greet", '{"name": "Bob"}', "--run-after", "1h", "--json").json["id"]
    work()
    shown = store("jobs", "show", greet.json["id"], "--json").json
    assert (shown["job"]["state"], shown["job"]["result"]) == ("succeeded", "hello Ada")
    [failed] = store("jobs", "list", "--state", "failed", "--task", "boom", "--json").json["jobs"]
    assert failed["id"] == boom
    assert "no tea left" in store("jobs", "list", "--state", "failed").out
    assert store("jobs", "retry", boom).code == 0
    assert store("jobs", "cancel", later, "--reason", "typo").code == 0
    counts = store("jobs", "count", "--json").json["counts"]
    assert counts == {"pending": 1, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 1}
    again = store("jobs", "cancel", later)
    assert "already ended cancelled" in one_line(again)


def test_a_key_holds_on_the_command_line_too(store):
    words = ["enqueue", "greet", '{"name": "Ada"}', "--key", "ada", "--json"]
    first, second = store(*words), store(*words)
    assert (first.json["outcome"], second.json["outcome"]) == ("created", "existed")
    assert first.json["id"] == second.json["id"]
    raised = store(*words[:-1], "--on-conflict", "raise")
    assert first.json["id"] in one_line(raised)


def test_a_long_list_goes_on_with_its_cursor(store):
    for n in range(5):
        store("enqueue", "greet", json.dumps({"name": str(n)}))
    page = store("jobs", "list", "--limit", "3", "--json").json
    rest = store("jobs", "list", "--limit", "3", "--cursor", page["cursor"], "--json").json
    names = [job["payload"]["name"] for job in page["jobs"] + rest["jobs"]]
    assert names == ["4", "3", "2", "1", "0"]


def test_a_worker_runs_until_nothing_is_due(store, spawn, url):
    ids = [store("enqueue", "greet", json.dumps({"name": str(n)}), "--json").json["id"] for n in range(3)]
    done = spawn("worker", "--until-idle", "--name", "w1", TREADLE_URL=url)
    assert (done.code, done.out) == (0, "")
    assert "worker w1 stopped" in done.err
    assert "Traceback" not in done.err
    for id in ids:
        job = store("jobs", "show", id, "--json").json["job"]
        assert (job["state"], job["worker"]) == ("succeeded", "w1")


# --------------------------------------------------------------------- not set up, not there, not ours


@each(READERS)
def test_a_store_without_tables_says_to_migrate(bare, command):
    if command == ["doctor"]:
        assert "`treadle migrate`" in bare(*command).out
    else:
        assert "`treadle migrate`" in one_line(bare(*command))


def test_a_worker_on_a_store_without_tables_says_to_migrate_and_ends(bare):
    assert "`treadle migrate`" in one_line(bare("worker", "--until-idle"))


def test_a_worker_that_may_create_the_tables_does(bare, monkeypatch):
    monkeypatch.setenv("TREADLE_AUTO_MIGRATE", "true")
    assert bare("worker", "--until-idle").code == 0
    assert bare("migrate", "--check").code == 0


@pytest.mark.usefixtures("impatient")
@each(COMMANDS)
def test_a_server_that_is_not_there_is_named_with_its_address(treadle, monkeypatch, command):
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("TREADLE_URL", f"postgresql://treadle:s3cret@{address}/shop")
        line = one_line(treadle(*command))
    assert address in line
    assert "does not answer" in line
    assert "s3cret" not in line


@pytest.mark.usefixtures("impatient")
@each(COMMANDS)
def test_a_database_that_does_not_exist_is_said_to_be_missing(treadle, cluster, monkeypatch, command):
    monkeypatch.setenv("TREADLE_URL", cluster.url.replace("/postgres", "/nowhere"))
    line = one_line(treadle(*command))
    assert 'database "nowhere" does not exist' in line
    assert "does not answer" not in line  # it did
    assert "repeating" not in line  # that will not help


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("ada:wr0ng", 'password authentication failed for user "ada"'),
        ("ada", "no password supplied"),
        ("nobody", 'role "nobody" does not exist'),
    ],
)
@each({name: COMMANDS[name] for name in ("migrate", "jobs list", "enqueue")})
def test_a_server_that_does_not_let_us_in_is_quoted(treadle, cluster, monkeypatch, user, said, command):
    monkeypatch.setenv("TREADLE_URL", cluster.url.replace("treadle@", f"{user}@"))
    line = one_line(treadle(*command))
    assert said in line
    assert "does not answer" not in line
    assert "repeating" not in line
    assert "wr0ng" not in line


def test_a_role_without_rights_is_told_what_it_lacks(treadle, cluster, monkeypatch):
    url = on_schema(cluster.url)
    assert treadle("migrate", "--url", url).code == 0
    monkeypatch.setenv("TREADLE_URL", url.replace("treadle@", "ada:right@"))
    for command in (["jobs", "list"], ["enqueue", "greet", '{"name": "Ada"}']):
        line = one_line(treadle(*command))
        assert "permission denied" in line
        assert "Grant" in line
        assert "right@" not in line
    monkeypatch.setenv("TREADLE_URL", on_schema(cluster.url).replace("treadle@", "ada:right@"))
    assert "permission denied" in one_line(treadle("migrate"))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://treadle@127.0.0.1/shop?schema=Shop", "schema"),
        ("postgresql://treadle@127.0.0.1/shop?schema=drop%20table", "schema"),
        ("postgresql://treadle@127.0.0.1/shop?prepare=maybe", "prepare"),
        ("postgresql://treadle@127.0.0.1/shop?nonsense=1", "nonsense"),
        ("postgresql://treadle@127.0.0.1:port/shop", "port"),
    ],
)
def test_a_url_that_cannot_be_right_is_wrong_usage(treadle, url, named):
    done = treadle("jobs", "list", "--url", url)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("error: url: ")
    assert named in line


@pytest.mark.usefixtures("impatient")
def test_an_error_is_a_json_document_where_json_was_asked_for(treadle, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", "postgresql://treadle@127.0.0.1:1/shop")
    done = treadle("jobs", "list", "--json")
    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["error"]["type"] == "EngineUnavailable"


# ------------------------------------------------------------------------------- a worker and its server


def test_a_worker_waits_for_its_server_and_says_so(project: Path, cluster: Cluster, treadle, monkeypatch):
    url = on_schema(cluster.url)
    monkeypatch.setenv("TREADLE_URL", url)
    treadle("migrate")
    id = treadle("enqueue", "greet", '{"name": "Ada"}', "--json").json["id"]
    cluster.stop()
    worker = forks.Popen(
        [sys.executable, "-c", IMPATIENTLY, "worker", "--poll", "0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    heard: list[str] = []
    try:
        for line in worker.stderr or ():
            heard.append(line)
            if "the store is not there yet" in line:
                break
        else:
            pytest.fail(f"it did not wait: {heard}")
        assert any("does not answer" in line for line in heard)
        cluster.start()
        deadline = time.monotonic() + 30
        while treadle("jobs", "show", id, "--json").json["job"]["state"] != "succeeded":
            assert worker.poll() is None, heard
            assert time.monotonic() < deadline, heard
            time.sleep(0.05)
        worker.terminate()
        heard += worker.communicate(timeout=30)
    finally:
        if not cluster.is_running:
            cluster.start()
        if worker.poll() is None:
            worker.kill()
        worker.communicate()
    assert worker.returncode == 0
    assert "Traceback" not in "".join(heard)
