"""`treadle bench`: figures of your own database, and nothing left behind."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import dynamo_servers, provision

BENCH = [sys.executable, "-m", "treadle", "bench"]
KEYS = {"jobs_per_second", "bare_per_second", "ratio", "p50_ms", "p95_ms", "p99_ms"}
FILE = ("--url", "sqlite:///mine.db")


@pytest.fixture
def postgres() -> Iterator[str]:
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)


def schemas(url: str) -> set[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {name for (name,) in connection.execute("select nspname from pg_namespace")}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("measured", ["drain", "enqueue", "latency"])
def test_on_sqlite_the_json_has_every_key_and_no_file_is_left(call, project, measured):
    before = files(project)
    told = call("bench", measured, *FILE, "--jobs", "30", "--bare", "--json")
    assert (told.code, told.err) == (0, "")
    assert told.json.keys() >= KEYS
    assert told.json["ratio"] > 0
    assert (told.json["jobs_per_second"] is None) is (measured == "latency")
    assert (told.json["p50_ms"] is None) is (measured == "drain")
    assert files(project) == before


@pytest.mark.server
@pytest.mark.parametrize("measured", ["drain", "enqueue", "latency"])
def test_on_postgresql_the_json_has_every_key_and_no_schema_is_left(call, postgres, measured):
    before = schemas(postgres)
    told = call("bench", measured, "--url", f"{postgres}?schema=mine", "--jobs", "30", "--bare", "--json")
    assert (told.code, told.err) == (0, "")
    assert told.json.keys() >= KEYS
    assert told.json["ratio"] > 0
    assert schemas(postgres) == before


@pytest.mark.server
@pytest.mark.parametrize("measured", ["drain", "enqueue", "latency"])
def test_on_dynamodb_it_measures_on_a_table_that_is_gone_afterwards(call, monkeypatch, measured):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with dynamo_servers.dynamodb() as address:
        url = f"dynamodb://mine?region=eu-central-1&endpoint={address}"
        told = call("bench", measured, "--url", url, "--jobs", "30", "--json")
        tables = dynamo_tables_at(address)
    assert (told.code, told.err) == (0, "")
    assert told.json["bare_per_second"] is None
    assert tables == []


def dynamo_tables_at(address: str) -> list[str]:
    import botocore.session

    client = botocore.session.get_session().create_client("dynamodb", region_name="eu-central-1", endpoint_url=address)
    return [name for name in client.list_tables()["TableNames"] if name.startswith("treadle_bench_")]


def test_without_bare_and_json_a_person_reads_jobs_a_second(call):
    told = call("bench", "drain", *FILE, "--jobs", "30")
    assert told.code == 0
    assert re.search(r"^drain: 30 jobs, sqlite:///mine\.db\n  treadle +[\d,]+ jobs/s", told.out)
    assert "bare" not in told.out


def test_all_in_one_call_is_measured_too(call):
    told = call("bench", "enqueue", *FILE, "--jobs", "30", "--bulk", "--json").json
    assert told["jobs_per_second"] > 0
    assert told["p50_ms"] is None


def test_a_terminal_shows_a_bar(project):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*BENCH, "drain", *FILE, "--jobs", "2000"], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    assert process.wait() == 0
    os.close(ours)
    assert "━" in shown.decode()
    assert "2000/2000" in shown.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("measured", ["drain", "latency"])
def test_on_sqlite_an_interrupted_bench_leaves_no_process_and_no_file(project, number, measured):
    before = files(project)
    process = start(measured, *FILE, "--jobs", "100000")
    until(lambda: [*project.glob("treadle_bench_*/treadle.db-wal")])
    children = until(lambda: children_of(process.pid)) if measured == "latency" else []
    code, err = interrupt(process, number)
    assert code in (130, 128 + number)
    assert "Traceback" not in err
    assert "interrupted" in err
    assert files(project) == before
    until(lambda: not any(map(alive, children)))  # they are told to end, and end


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_on_postgresql_an_interrupted_bench_leaves_no_schema(project, postgres, number):
    before = schemas(postgres)
    process = start("latency", "--url", postgres, "--jobs", "100000")
    until(lambda: schemas(postgres) - before and children_of(process.pid))
    code, err = interrupt(process, number)
    assert code in (130, 128 + number)
    assert "Traceback" not in err
    assert schemas(postgres) == before


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*BENCH, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupt(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def until(look):
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if int(line.split()[1]) == pid]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.server
def test_a_role_that_may_not_make_a_schema_is_told_what_to_do(call, postgres):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("drop role if exists bench_reader")
        connection.execute("create role bench_reader login")
    told = call("bench", "drain", "--url", postgres.replace("treadle@", "bench_reader@"), "--jobs", "30")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("drop role bench_reader")
    assert told.code == 1
    assert "may not make a schema" in told.err
    assert "grant create on database" in told.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("drain", "--jobs", "0", *FILE), 2, "--jobs: 0 must be from 1 to 10,000,000"),
        (("latency", "--jobs", "100001", *FILE), 2, "--jobs: 100,001 must be from 1 to 100,000"),
        (("drain", "--jobs", "many", *FILE), 2, "--jobs"),
        (("drain", "--url", "sqlite:///:memory:"), 2, "url: give a file such as sqlite:///treadle.db"),
        (("drain", "--url", "sqlite:///nowhere/x.db"), 2, "url: a folder for the test cannot be made in"),
        (("drain", "--url", "oracle://scott:tiger@host/db"), 2, "no engine for 'oracle'"),
        (("drain", "--url", "x.db"), 2, "write sqlite:///x.db"),
        (("drain", "--url", "sqlite:///x.db?synchronous=never"), 2, "synchronous='never' must be one of"),
        (("drain", "--bare", "--url", "dynamodb://mine"), 2, "--bare: DynamoDB has no SQL to compare with"),
        (("enqueue", "--url", "postgresql://nobody:secret@127.0.0.1:1/x"), 1, "error"),
        ((), 2, "Missing command"),
        (("sprint",), 2, "No such command 'sprint'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call, project, arguments, code, message):
    before = files(project)
    told = call("bench", *arguments)
    assert told.code == code
    assert message in told.err
    assert "Traceback" not in told.err
    assert "secret" not in told.err
    assert len(told.err.splitlines()) == 1
    assert files(project) == before


def test_an_error_is_json_when_json_was_asked_for(call):
    told = call("bench", "drain", "--jobs", "0", *FILE, "--json")
    assert json.loads(told.err)["error"]["type"] == "ConfigError"


def test_settings_of_yours_play_no_part_in_the_measured_processes(call, project, monkeypatch):
    monkeypatch.setenv("TREADLE_CONCURRENCY", "1")
    (project / "treadle.toml").write_text('url = "sqlite:///mine.db"\nqueues = ["mail"]\n')
    assert call("bench", "drain", "--jobs", "30", "--json").json["jobs_per_second"] > 0
