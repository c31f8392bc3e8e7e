"""`bring`: rows of an application's own table become jobs with their past, each once, on every store."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.importers.tables import MAP, NOW, Row, a_row, fill
from tests.support import stores
from tests.support.making import claim, settle
from treadle import ConfigError, EngineUnavailable, NotPossible, State, Treadle
from treadle.app.profile import Profile
from treadle.engines.values import JobFilter
from treadle.importers import ImportResult, as_toml, bring, checked_map, map_of
from treadle.model import Job, JobError, Reason, Retry, Scope
from treadle.model.lifecycle import Succeeded
from treadle.profiles import backend, chat_server, companion, mail_assistant, tenant_ops
from treadle.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
MINUTE = timedelta(minutes=1)
pytestmark = pytest.mark.usefixtures("any_store")


@contextmanager
def a_database(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """A database of the application's own: its URL, and what stands before the names of its tables."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'own.db'}", ""
        return
    with stores.empty_store("postgres", folder) as url:
        server, schema = url.partition("?schema=")[0], f"own_{uuid4().hex[:12]}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"create schema {schema}")
            yield server, f"{schema}."
            connection.execute(f"drop schema {schema} cascade")


@pytest.fixture(params=["postgres", "sqlite"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    with a_database(request.param, tmp_path) as database:
        yield database


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def importing(app: Treadle, own: tuple[str, str]) -> Callable[..., ImportResult]:
    """`importing(rows)`: fill the table with them, and bring it."""
    app.migrate()
    url, prefix = own

    def run(rows: list[Row], table_map: dict[str, Any] = MAP, **options: Any) -> ImportResult:
        if rows:
            fill(url, rows, f"{prefix}old_jobs")
        return bring(app, url, f"{prefix}old_jobs", checked_map(table_map, "map"), **options)

    return run


def expected(row: Row) -> Job:
    """The job that such a row is."""
    state = {"new": "pending", "busy": "running", "done": "succeeded", "broken": "failed", "stopped": "cancelled"}
    state = State(state[row["status"]])
    number = row["tries"]
    problem = row["problem"]
    most = row["max_tries"] + 1
    spent = state is State.FAILED and number >= most - 1
    begun = state in (State.RUNNING, State.SUCCEEDED, State.FAILED)
    tries = number + begun
    return Job(
        row["id"],
        "send",
        json.dumps(row["args"]),
        row["made"],
        row["due"],
        tenant=row["owner"],
        priority=row["priority"],
        retry=Retry(most, 30, 900, 0),
        key=row["dedup"],
        key_scope=Scope.EVER if row["dedup"] else None,
        state=state,
        reason={State.FAILED: Reason.EXHAUSTED if spent else Reason.PERMANENT, State.CANCELLED: Reason.BY_REQUEST}.get(
            state
        ),
        result_json=row["answer"] and json.dumps(row["answer"]),
        error=problem and JobError("", problem["text"], "", tries, problem["at"]),
        attempt=tries,
        failures=most if spent else number,
        claimed_at=row["taken"],
        started_at=row["taken"] if begun or state is State.CANCELLED else None,
        finished_at=row["ended"],
        worker=row["taken_by"],
        lease_until=row["taken"] + 30 * MINUTE if state is State.RUNNING else None,
        cost_micros=row["cents"] * 10_000,
        revision=1,
    )


def test_every_row_becomes_a_job_with_its_past(importing: Callable[..., ImportResult], app: Treadle) -> None:
    rows = [a_row(number) for number in range(25)]

    brought = importing(rows, batch=7)

    by_state = dict.fromkeys(("pending", "running", "succeeded", "failed", "cancelled"), 5)
    assert brought == ImportResult(25, by_state, 0, [], 0)
    found = app.engine.get([row["id"] for row in rows])
    for row, job in zip(rows, found, strict=True):
        assert job.evolve(lease_token=None) == expected(row)
        assert (job.lease_token is not None) == (job.state is State.RUNNING)
        [event] = app.events(job.id)
        assert (event.kind, event.at, event.actor) == ("imported", row["changed"], "import")
        assert "old_jobs" in event.note


def test_a_second_run_brings_nothing_and_leaves_what_has_moved_on(
    importing: Callable[..., ImportResult], app: Treadle, clock: FakeClock
) -> None:
    importing([a_row(number) for number in range(10)])
    [job] = claim(app.engine, 1)
    settle(app.engine, job, Succeeded("1"))
    before = app.engine.find(JobFilter(), limit=100).jobs

    assert importing([]) == ImportResult(10, {}, 10, [], 0)

    assert app.engine.find(JobFilter(), limit=100).jobs == before
    assert importing([a_row(10)]) == ImportResult(11, {"pending": 1}, 10, [], 0)


def test_a_dry_run_writes_nothing_and_says_what_would_be(importing: Callable[..., ImportResult], app: Treadle) -> None:
    rows = [a_row(number) for number in range(10)]
    rows[3]["status"] = "weird"

    brought = importing(rows, dry_run=True)

    assert (brought.read, sum(brought.brought.values()), brought.known, brought.unfit) == (10, 9, 0, 1)
    assert sum(app.count().values()) == 0
    assert app.audit() == []
    assert importing([]) == brought
    assert importing([], dry_run=True) == brought._replace(brought={}, known=9)


WRONG = {
    "an unknown word": ({"status": "weird"}, "status", "'weird' is none of the words", "[states]"),
    "no task": ({"kind": ""}, "kind", "is empty", "correct"),
    "a task that is too long": ({"kind": "x" * 201}, "kind", "200", "correct"),
    "an attempt too many": ({"max_tries": 10_000}, "max_tries", "10", "correct"),
    "no attempt at all": ({"max_tries": -1}, "max_tries", "1", "correct"),
    "a priority beyond all": ({"priority": 2**31 - 1}, None, "", ""),
    "an error that is no time": ({"problem": {"text": "x", "at": "soon"}}, "problem.at", "not a time", "correct"),
    "a payload that is too large": ({"args": {"x": "y" * 1_100_000}}, "args", "the limit is", "elsewhere"),
    "an empty key": ({"dedup": ""}, "dedup", "", "correct"),
    "a key that is too long": ({"dedup": "x" * 1001}, "dedup", "1,000", "correct"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_does_not_fit_is_told_with_its_column_and_the_way_out_and_the_others_come(
    importing: Callable[..., ImportResult], app: Treadle, case: str
) -> None:
    fields, column, why, way_out = WRONG[case]
    rows = [a_row(number) for number in range(5)]
    rows[2].update(fields)

    told = importing(rows, dry_run=True)
    brought = importing([])

    assert brought == told
    if column is None:
        assert brought.unfit == 0
        return
    [misfit] = brought.misfits
    assert (misfit.row, misfit.column) == (rows[2]["id"], column)
    assert why in misfit.why
    assert way_out in misfit.way_out
    assert sum(app.count().values()) == 4


def test_of_two_rows_with_one_key_one_comes_and_the_other_is_told(
    importing: Callable[..., ImportResult], app: Treadle
) -> None:
    rows = [a_row(number, dedup="same", owner="acme") for number in range(2)]

    told = importing(rows, dry_run=True)
    brought = importing([])

    for run in (told, brought):
        [misfit] = run.misfits
        assert (misfit.column, run.unfit) == ("dedup", 1)
        assert "same" in misfit.why
    assert sum(app.count().values()) == 1


def test_an_id_that_another_job_has_is_told_and_that_job_stays(
    importing: Callable[..., ImportResult], app: Treadle
) -> None:
    other = app.enqueue("greet", checked=False)

    for dry_run in (True, False):
        brought = importing([a_row(0, id=other.id)] if dry_run else [], dry_run=dry_run)
        [misfit] = brought.misfits
        assert (misfit.row, misfit.column, misfit.why) == (other.id, "id", "another job has this id")
    assert app.get(other.id) == other


def test_what_runs_is_taken_back_by_a_worker_when_its_lease_is_past(
    importing: Callable[..., ImportResult], app: Treadle, clock: FakeClock
) -> None:
    old, young = a_row(1), a_row(6, made=NOW - MINUTE, taken=NOW - MINUTE)
    importing([old, young])
    done = []
    app.register("send", lambda to: done.append(str(to)))

    app.run_worker(until_idle=True)

    assert done == [old["args"]["to"]]
    assert app.get(young["id"]).state is State.RUNNING


def test_the_audit_trail_is_sound_with_events_older_than_its_seals(
    importing: Callable[..., ImportResult], app: Treadle, clock: FakeClock
) -> None:
    importing([a_row(number, owner="acme") for number in range(3)])
    clock.advance(hours=1)
    app.seal_audit()
    importing([a_row(number, NOW - timedelta(days=9), owner="acme") for number in range(3, 9)])
    clock.advance(hours=1)
    app.seal_audit()

    assert app.verify_audit().sound


# ------------------------------------------------------------------------------------- other shapes of tables


def test_rows_with_numbers_for_ids_have_the_same_job_in_every_run(
    app: Treadle, own: tuple[str, str], importing: Callable[..., ImportResult]
) -> None:
    rows = [a_row(number, id=number) for number in random.Random(7).sample(range(5000), 40)]
    url, prefix = own
    table = fill(url, rows, f"{prefix}numbered", id="integer")

    for size, known in ((7, 0), (9, 40)):
        brought = bring(app, url, table, checked_map(MAP, "map"), batch=size)
        assert (brought.read, sum(brought.brought.values()), brought.known) == (40, 40 - known, known)
    assert len({job.id for job in app.engine.find(JobFilter(), limit=100).jobs}) == 40


def test_times_may_be_numbers_or_text_without_a_zone(app: Treadle, own: tuple[str, str]) -> None:
    app.migrate()
    url, prefix = own
    made = int((NOW - timedelta(hours=2)).timestamp())
    kinds = dict.fromkeys(("made", "changed", "due", "taken", "ended"), "text")
    row = a_row(2, made=made, changed=f"{NOW:%Y-%m-%d %H:%M:%S}", due=made * 1000, taken=None, ended="2026-03-01T12:30")
    if url.startswith("postgres"):
        kinds |= {"made": "bigint", "due": "double precision"}
    else:
        kinds |= {"made": "integer", "due": "real"}
    table = fill(url, [row], f"{prefix}times", **kinds)
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"alter table {table} alter made type text, alter due type text")

    brought = bring(app, url, table, checked_map(MAP, "map"))

    assert brought.misfits == []
    job = app.get(row["id"])
    assert (job.created_at, job.due_at, job.finished_at) == (NOW - 120 * MINUTE, NOW - 120 * MINUTE, NOW + 30 * MINUTE)


PROFILES = {
    "chat_server": chat_server.PROFILE, "mail_assistant": mail_assistant.PROFILE, "backend": backend.PROFILE,
    "companion": companion.PROFILE, "tenant_ops": tenant_ops.PROFILE,
}  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_the_map_of_a_profile_can_be_written_read_and_used(
    make_app: Callable[..., Treadle], own: tuple[str, str], name: str
) -> None:
    """A table that the profile itself has filled: what it prints of jobs comes back as jobs that it prints so."""
    profile: Profile = PROFILES[name]
    table_map = map_of(profile)
    assert checked_map(tomllib.loads(as_toml(table_map)), "map") == table_map
    app = make_app(profile=profile._replace(settings={}), clock=FakeClock(NOW))
    app.register("greet", lambda payload: None)
    fields = [field for field in profile.fields if field != "schedule_id"]
    jobs = [expected(a_row(number)).evolve(task="greet", tenant=str(UUID(int=9)), key=None, key_scope=None,
            retry=Retry(3, 30, 900, 0)) for number in range(5)]  # fmt: skip
    views = [profile.view(job, NOW) for job in jobs]
    url, prefix = own
    columns = ", ".join(f'"{field}" text' for field in fields)
    with _any_connection(url) as execute:
        execute(f"create table {prefix}printed ({columns})")
        for view in views:
            values = [view[field] for field in fields]
            given = [json.dumps(value) if isinstance(value, dict) else value for value in values]
            marks = ", ".join(["%s" if url.startswith("postgres") else "?"] * len(fields))
            execute(f"insert into {prefix}printed values ({marks})", [None if v is None else str(v) for v in given])

    brought = bring(app, url, f"{prefix}printed", table_map)

    assert (brought.misfits, sum(brought.brought.values())) == ([], 5)
    id_field = next(field for field, source in profile.fields.items() if source == "id")
    for view in views:
        job = app.get(view[id_field])
        again = profile.view(job, NOW)
        for field in fields:
            assert again[field] == view[field], field


@contextmanager
def _any_connection(url: str) -> Iterator[Callable[..., Any]]:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        yield connection.execute
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            yield server.execute


# ------------------------------------------------------------------------------------------ many, and cut short


@pytest.mark.parametrize("own", ["postgres"], indirect=True)
def test_thousands_of_rows_come_within_a_few_seconds(
    importing: Callable[..., ImportResult], app: Treadle, engine_kind: str
) -> None:
    number = 2_000 if engine_kind == "dynamodb" else 10_000
    rows = [a_row(place) for place in range(number)]
    seen: list[int] = []
    began = time.monotonic()

    brought = importing(rows, progress=seen.append)

    took = time.monotonic() - began
    assert sum(brought.brought.values()) == sum(app.count().values()) == number
    assert seen == list(range(500, number + 1, 500))
    assert took < 30  # it takes two seconds, on a machine that is not busy


IMPORT = """
import sys
from treadle import Treadle
from treadle.importers import bring, checked_map
from tests.importers.tables import MAP

app = Treadle(sys.argv[1])

def told(read):
    print(read, flush=True)

bring(app, sys.argv[2], sys.argv[3], checked_map(MAP, "map"), batch=20, progress=told)
"""


def test_an_import_that_is_killed_and_run_again_brings_each_row_once(
    app: Treadle, own: tuple[str, str], store_url: str
) -> None:
    app.migrate()
    url, prefix = own
    rows = [a_row(number) for number in range(1500)]
    table = fill(url, rows, f"{prefix}old_jobs")
    command = [sys.executable, "-c", IMPORT, store_url, url, table]
    place = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **place) as process:
        for line in process.stdout or ():
            if int(line) >= 200:
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
    there = sum(app.count().values())
    assert 200 <= there < 1500

    brought = bring(app, url, table, checked_map(MAP, "map"))

    assert (brought.known, sum(brought.brought.values()), brought.misfits) == (there, 1500 - there, [])
    found = app.engine.get([row["id"] for row in rows])
    assert [job.evolve(lease_token=None) for job in found if job] == [expected(row) for row in rows]
    assert {len(app.events(row["id"])) for row in rows[::50]} == {1}


# ------------------------------------------------------------------------------------------------ what is refused


def test_a_table_or_column_that_is_not_there_is_refused_by_name(
    importing: Callable[..., ImportResult], app: Treadle, own: tuple[str, str]
) -> None:
    url, prefix = own
    importing([a_row(0)])
    with pytest.raises(NotPossible, match=r"there is no table .*nowhere"):
        bring(app, url, f"{prefix}nowhere", checked_map(MAP, "map"))
    wrong = {**MAP, "columns": {**MAP["columns"], "task": "knd"}}
    with pytest.raises(ConfigError, match=r"columns\.task: table .* has no column 'knd'; it has id, kind"):
        importing([], wrong)
    with pytest.raises(ConfigError, match=r"columns\.id: must be a column"):
        importing([], {**MAP, "columns": {**MAP["columns"], "id": ["problem", "text"]}})


@pytest.mark.parametrize("engine_kind", ["sqlite"])
def test_a_database_that_is_not_there_is_refused(app: Treadle, tmp_path: Path) -> None:
    table_map = checked_map(MAP, "map")
    app.migrate()
    for url, error in (
        (f"sqlite:///{tmp_path}/nowhere.db", NotPossible),
        ("postgresql://nobody@127.0.0.1:1/nowhere", EngineUnavailable),
        ("mysql://localhost/jobs", ConfigError),
    ):
        with pytest.raises(error):
            bring(app, url, "jobs", table_map)
    assert not (tmp_path / "nowhere.db").exists()
