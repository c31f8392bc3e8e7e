"""The tables: made once, by whoever comes first, and never used when they are not ours."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.making import a_job, an_error, claim, current, enqueued, settle, write
from tests.support.sizes import size
from treadle.engines import connect, records
from treadle.engines.contract import Engine
from treadle.engines.migrations import Migration
from treadle.engines.rows import COLUMNS
from treadle.engines.sqlite import schema
from treadle.engines.sqlite.rows import micros, row_from
from treadle.engines.values import JobFilter, Ruling
from treadle.errors import EngineError, SchemaError
from treadle.model import Event, EventKind, Job, Reason, Scope, State, lifecycle
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause, Seal
from treadle.testing import FakeClock

ORIGINALS = schema.migrations()
ALL = [step.name for step in ORIGINALS]

TABLES = [
    "treadle_drains", "treadle_events", "treadle_finished", "treadle_jobs", "treadle_keys", "treadle_memos",
    "treadle_migrations", "treadle_minutes", "treadle_pauses", "treadle_schedules", "treadle_seals", "treadle_tokens",
    "treadle_workers",
]  # fmt: skip


def test_nothing_is_touched_until_the_engine_is_used(make_engine: Callable[[], Engine], tmp_path: Path) -> None:
    make_engine()
    assert list(tmp_path.iterdir()) == []


def test_the_first_use_makes_the_tables(engine: Engine, path: Path) -> None:
    assert engine.get(["none"]) == [None]
    assert tables(path) == TABLES
    assert recorded(path) == [(step.number, step.name, step.checksum) for step in schema.migrations()]


def test_migrate_names_what_it_applied_and_the_second_time_nothing(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    assert engine.migrate() == ALL
    assert engine.migrate() == []
    assert make_engine().migrate() == []


def test_tables_of_an_application_in_the_same_file_are_left_alone(engine: Engine, path: Path) -> None:
    script(path, "create table orders (id integer); insert into orders values (7);")
    enqueued(engine)
    assert run(path, "select id from orders") == [(7,)]
    assert engine.check() == []


def test_eight_processes_may_open_a_fresh_file_at_once(
    together: Callable[..., Sequence[list[str]]], in_ram: Path, clock: FakeClock
) -> None:
    rounds = size(30, long=200)
    files = [in_ram / f"{number}.db" for number in range(rounds)]

    def work(number: int, barrier: object) -> list[str]:
        claimed = []
        for fresh in files:
            barrier.wait()
            engine = connect(f"sqlite:///{fresh}", clock=clock.now)
            enqueued(engine)
            claimed += [job.id for job in claim(engine, 1)]
            engine.close()
        return claimed

    claimed = [id for ids in together(8, work) for id in ids]
    assert len(claimed) == len(set(claimed)) == 8 * rounds
    assert [len(recorded(fresh)) for fresh in files] == [len(ALL)] * rounds
    assert {run(fresh, "select count(*) from treadle_jobs where state = 'running'")[0] for fresh in files} == {(8,)}


def test_of_processes_that_migrate_at_once_one_says_that_it_did(
    together: Callable[..., Sequence[list[list[str]]]], in_ram: Path, clock: FakeClock
) -> None:
    files = [in_ram / f"{number}.db" for number in range(20)]

    def work(number: int, barrier: object) -> list[list[str]]:
        said = []
        for fresh in files:
            engine = connect(f"sqlite:///{fresh}", clock=clock.now)
            barrier.wait()
            said.append(engine.migrate())
            engine.close()
        return said

    by_round = list(zip(*together(4, work), strict=True))
    assert [sorted(said) for said in by_round] == [[[], [], [], ALL]] * len(files)


def test_processes_may_open_and_close_a_file_all_the_time(
    together: Callable[..., Sequence[int]], in_ram: Path, clock: FakeClock
) -> None:
    # The last one to close deletes the write-ahead log and locks even readers out meanwhile.
    url = f"sqlite:///{in_ram}/treadle.db"

    def work(number: int, barrier: object) -> int:
        barrier.wait()
        for _ in range(150):
            engine = connect(url, clock=clock.now)
            assert engine.get(["none"]) == [None]
            enqueued(engine)
            engine.close()
        return 150

    made = sum(together(4, work))
    engine = connect(url, clock=clock.now)
    assert engine.count(JobFilter()) == {State.PENDING: made}
    engine.close()


# ------------------------------------------------------------------------------- files that are not ours


@pytest.fixture
def used(make_engine: Callable[[], Engine], path: Path) -> Path:
    """A file with a job in it, closed."""
    engine = make_engine()
    enqueued(engine)
    engine.close()
    return path


def test_a_file_of_a_newer_treadle_is_refused_and_says_upgrade(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(used, "insert into treadle_migrations (number, name, checksum) values (9000, '9000_rockets', 'abc')")
    for attempt in (lambda e: e.get(["x"]), enqueued, lambda e: e.migrate()):
        with pytest.raises(SchemaError, match=r"9000_rockets.*newer.*upgrade"):
            attempt(make_engine())


def test_a_newer_file_with_further_tables_says_upgrade_too(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(
        used,
        "insert into treadle_migrations (number, name, checksum) values (9000, '9000_rockets', 'abc')",
        "create table treadle_rockets (id text)",
        "alter table treadle_jobs add column rocket text",
    )
    with pytest.raises(SchemaError, match="upgrade"):
        enqueued(make_engine())


def test_a_migration_that_was_other_than_ours_is_refused(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(used, "update treadle_migrations set checksum = 'another'")
    with pytest.raises(SchemaError, match=r"0001_jobs.*install the treadle that wrote it"):
        enqueued(make_engine())


DRIFT = {
    "a dropped index": ("drop index treadle_jobs_claim", "treadle_jobs_claim is missing"),
    "a dropped table": ("drop table treadle_pauses", "treadle_pauses is missing"),
    "an added column": ("alter table treadle_jobs add column mine text", "treadle_jobs was altered"),
    "an altered index": (
        "drop index treadle_keys_job; create index treadle_keys_job on treadle_keys (job, scope)",
        "treadle_keys_job was altered",
    ),
    "a further index": ("create index treadle_jobs_mine on treadle_jobs (task)", "treadle_jobs_mine is unknown"),
}


@pytest.mark.parametrize(("change", "named"), DRIFT.values(), ids=DRIFT)
def test_drift_is_refused_by_name(used: Path, make_engine: Callable[[], Engine], change: str, named: str) -> None:
    run(used, *change.split("; "))
    for attempt in (lambda e: e.get(["x"]), enqueued, lambda e: e.migrate()):
        with pytest.raises(SchemaError, match=named):
            attempt(make_engine())


@pytest.mark.parametrize(("change", "named"), DRIFT.values(), ids=DRIFT)
def test_check_names_drift_without_raising(
    used: Path, make_engine: Callable[[], Engine], change: str, named: str
) -> None:
    run(used, *change.split("; "))
    assert make_engine().check() == [named]


def test_check_names_every_difference(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(used, *(statement for change, _ in DRIFT.values() for statement in change.split("; ")))
    assert sorted(make_engine().check()) == sorted(named for _, named in DRIFT.values())


def test_check_tells_of_a_newer_file_instead_of_raising(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(used, "insert into treadle_migrations (number, name, checksum) values (9000, '9000_rockets', 'abc')")
    [difference] = make_engine().check()
    assert "9000_rockets" in difference
    assert [finding.level for finding in make_engine().doctor()].count("error") == 1


def test_check_tells_of_a_foreign_migration_instead_of_raising(used: Path, make_engine: Callable[[], Engine]) -> None:
    run(used, "update treadle_migrations set checksum = 'another'")
    [difference] = make_engine().check()
    assert "0001_jobs" in difference


@pytest.mark.parametrize(
    ("change", "found"), [("select 1", []), ("drop table treadle_pauses", ["treadle_pauses is missing"])]
)
def test_check_does_not_change_the_file(
    used: Path, make_engine: Callable[[], Engine], change: str, found: list[str]
) -> None:
    run(used, change)
    before = (used.read_bytes(), used.stat().st_mtime_ns)
    assert make_engine().check() == found
    assert (used.read_bytes(), used.stat().st_mtime_ns) == before


def test_check_of_a_missing_file_says_so_and_makes_none(engine: Engine, tmp_path: Path) -> None:
    [difference] = engine.check()
    assert re.search(r"treadle\.db does not exist yet.*treadle migrate", difference)
    assert list(tmp_path.iterdir()) == []


def test_check_of_an_empty_file_says_what_is_missing(engine: Engine, path: Path) -> None:
    path.touch()
    assert [line for line in engine.check() if "treadle_jobs is missing" in line]
    assert path.stat().st_size == 0


def test_check_of_jobs_in_memory_finds_nothing(clock: FakeClock) -> None:
    engine = connect("sqlite://", clock=clock.now)
    enqueued(engine)
    assert engine.check() == []
    engine.close()


# -------------------------------------------------------------------------------------- migrations in steps

NEXT = len(ORIGINALS) + 1
GOOD = Migration(
    f"{NEXT:04}_good", "create table treadle_more (id text);\ncreate index treadle_more_id on treadle_more (id);"
)
BROKEN = Migration(f"{NEXT:04}_broken", "create table treadle_more (id text);\ncreate table treadle_more (id text);")


def test_a_migration_that_fails_in_the_middle_leaves_nothing(
    make_engine: Callable[[], Engine], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert schema.migrations()  # and what is expected of a file is known by now
    with monkeypatch.context() as later:
        later.setattr(schema, "migrations", lambda: [*ORIGINALS, BROKEN])
        with pytest.raises(EngineError, match="treadle_more"):
            enqueued(make_engine())
    assert tables(path) == []
    assert enqueued(make_engine()).state is State.PENDING


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(
    used: Path, make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(schema, "migrations", lambda: [*ORIGINALS, BROKEN])
        with pytest.raises(EngineError):
            enqueued(make_engine())
    assert tables(used) == TABLES
    assert make_engine().count(JobFilter()) == {State.PENDING: 1}


def test_an_upgrade_applies_only_what_is_new_and_keeps_the_jobs(
    used: Path, make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "migrations", lambda: [*ORIGINALS, GOOD])
    monkeypatch.setattr(schema, "_expected", schema._expected.__wrapped__)  # not the schema remembered from before
    engine = make_engine()
    assert engine.migrate() == [GOOD.name]
    assert [number for number, _, _ in recorded(used)] == list(range(1, NEXT + 1))
    assert engine.count(JobFilter()) == {State.PENDING: 1}


OLD_COLUMNS = ", ".join(name for name in COLUMNS if name not in ("schedule", "on_end", "trace"))


def test_a_file_from_before_the_schedules_keeps_its_jobs_and_its_trail(
    path: Path, make_engine: Callable[..., Engine], clock: FakeClock
) -> None:
    before = [step for step in ORIGINALS if step.number < 3]
    script(path, ";\n".join([schema.LEDGER, *(f"{step.sql}\n{schema.ledger_entry(step)}" for step in before)]))
    job = a_job(clock.now())
    done = a_job(clock.now()).evolve(state=State.CANCELLED, finished_at=clock.now(), revision=1)
    line = Event(done.id, 1, clock.now(), EventKind.CANCELLED, "ann", "☃", "default")
    for table, one in (("treadle_jobs", job), ("treadle_finished", done)):
        row = [value for name, value in zip(COLUMNS, row_from(one), strict=True) if name in OLD_COLUMNS.split(", ")]
        insert(path, f"insert into {table} ({OLD_COLUMNS})", row)
    insert(path, "insert into treadle_events", [*line[:2], micros(line.at), *line[3:]])
    engine = make_engine()

    assert engine.migrate() == ALL[2:]
    assert engine.get([job.id, done.id]) == [job, done]
    assert engine.events(done.id) == engine.unsealed(limit=10) == [line]
    assert [found.id for found in claim(engine)] == [job.id]


def test_a_file_from_before_traces_keeps_its_jobs_which_have_none(
    path: Path, make_engine: Callable[..., Engine], clock: FakeClock
) -> None:
    before = [step for step in ORIGINALS if step.number < 9]
    script(path, ";\n".join([schema.LEDGER, *(f"{step.sql}\n{schema.ledger_entry(step)}" for step in before)]))
    job, done = a_job(clock.now()), a_job(clock.now()).evolve(state=State.FAILED, finished_at=clock.now())
    for one in (job, done):
        insert_job(path, one, 0, "parked")
    engine = make_engine()

    assert engine.migrate() == ALL[8:]
    assert engine.get([job.id, done.id]) == [job, done]
    assert [settle(engine, found, Succeeded("1")).ruling for found in claim(engine)] == [Ruling.APPLIED]
    assert enqueued(engine, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").trace is not None


@pytest.mark.parametrize("last", [3, 4], ids=["before the words", "before parked"])
def test_a_file_of_an_older_treadle_with_jobs_of_every_kind_opens(
    path: Path, make_engine: Callable[..., Engine], clock: FakeClock, last: int
) -> None:
    old = OldFile(path, last, clock)
    engine = make_engine()

    assert engine.migrate() == ALL[last:]
    assert engine.check() == []
    jobs = list(old.jobs.values())
    assert engine.get([job.id for job in jobs]) == jobs
    assert engine.records(Pause) == [old.pause]
    assert engine.sealed(old.seal) == [old.events[0]]
    assert engine.unsealed(limit=10) == [old.events[1]]


@pytest.mark.parametrize("last", [3, 4], ids=["before the words", "before parked"])
def test_the_jobs_in_a_file_of_an_older_treadle_go_their_way(
    path: Path, make_engine: Callable[..., Engine], clock: FakeClock, last: int
) -> None:
    old = OldFile(path, last, clock)
    engine, jobs = make_engine(), old.jobs

    assert [job.id for job in claim(engine, tasks=["greet"])] == [jobs["due"].id]  # the others are parked
    assert not engine.enqueue([a_job(clock.now(), **KEYED)])[0].created
    assert settle(engine, jobs["running"], Succeeded("1")).ruling is Ruling.APPLIED
    assert [job.id for job in engine.expired(limit=10)] == [jobs["lost"].id]
    assert engine.drop(old.pause)
    assert {job.id for job in claim(engine)} == {jobs["parked by task"].id, jobs["parked by pause"].id}
    assert write(engine, lifecycle.retry(jobs["failed"], clock.now(), actor="ann")).ruling is Ruling.APPLIED
    assert [job.id for job in claim(engine)] == [jobs["failed"].id]
    clock.advance(hours=1)
    assert [job.id for job in claim(engine, limit=1)] == [jobs["later"].id]


def test_the_lanes_of_a_file_from_before_the_marks_are_found_and_those_of_the_future_are_marked(
    path: Path, make_engine: Callable[..., Engine]
) -> None:
    now = datetime.now(UTC)
    clock = FakeClock(now)
    script(path, ";\n".join([schema.LEDGER, *(f"{s.sql}\n{schema.ledger_entry(s)}" for s in ORIGINALS[:6])]))
    due, unknown, paused = a_job(now, lane="a"), a_job(now, lane="b", task="x"), a_job(now, lane="c", tenant="acme")
    later = a_job(now, lane="d", due_at=now + timedelta(hours=1))
    for job, parked in ((due, 0), (unknown, 1), (paused, 2), (later, 0)):
        insert_job(path, job, parked, "parked")
    engine = connect(f"sqlite:///{path}", clock=clock.now)

    assert engine.migrate() == ALL[6:]
    assert run(path, "select id from treadle_jobs where later = 1") == [(later.id,)]
    assert {job.id for job in claim(engine)} == {due.id, unknown.id, paused.id}
    clock.advance(hours=1)
    assert [job.id for job in claim(engine)] == [later.id]
    engine.close()


KEYED = {"key": "k", "key_scope": Scope.ACTIVE}


class OldFile:
    """A file as the first `last` migrations made it, with jobs and records of every kind in it."""

    def __init__(self, path: Path, last: int, clock: FakeClock) -> None:
        now = clock.now()
        script(path, ";\n".join([schema.LEDGER, *(f"{s.sql}\n{schema.ledger_entry(s)}" for s in ORIGINALS[:last])]))
        held = {"state": State.RUNNING, "attempt": 1, "revision": 1, "claimed_at": now, "worker": "w1"}
        ended = {"attempt": 1, "revision": 2, "finished_at": now}
        self.jobs = {
            "due": a_job(now),
            "later": a_job(now, due_at=now + timedelta(hours=1), **KEYED),
            "parked by task": a_job(now, task="render", priority=5),
            "parked by pause": a_job(now, tenant="acme"),
            "running": a_job(now).evolve(**held, lease_token="t1", lease_until=now + timedelta(minutes=1)),
            "lost": a_job(now).evolve(**held, lease_token="t2", lease_until=now),
            "succeeded": a_job(now).evolve(**ended, state=State.SUCCEEDED, result_json="1"),
            "failed": a_job(now).evolve(**ended, state=State.FAILED, reason=Reason.PERMANENT, error=an_error(now)),
            "cancelled": a_job(now).evolve(**ended, state=State.CANCELLED, reason=Reason.BY_REQUEST),
        }
        for kind, job in self.jobs.items():
            filed = {"parked by task": 1, "parked by pause": 2}.get(kind, 0)
            insert_job(path, job, filed)
        later = self.jobs["later"]
        insert(path, "insert into treadle_keys", [later.tenant, later.task, "k", later.id, Scope.ACTIVE, None])
        self.pause = Pause(tenant="acme", actor="ann", at=now)
        insert(path, "insert into treadle_pauses", records.row_from(self.pause, micros)[:-1])  # it had no owner then
        self.seal = Seal("default", 1, 1, now, now, "d", "p", "h", now)
        insert(path, "insert into treadle_seals", records.row_from(self.seal, micros))
        self.events = [
            Event(self.jobs[kind].id, 2, now, EventKind.FAILED, "w1", "☃", "default")
            for kind in ("failed", "cancelled")
        ]
        for event, seal in zip(self.events, (1, None), strict=True):
            insert(path, "insert into treadle_events", [*event[:2], micros(event.at), *event[3:], seal])


def insert_job(path: Path, job: Job, filed: int, column: str = "filed") -> None:
    names, row = list(COLUMNS[:-1]), list(row_from(job)[:-1])  # they had no trace then
    if job.state.final:
        insert(path, f"insert into treadle_finished ({', '.join(names)})", row)
    else:
        insert(path, f"insert into treadle_jobs ({', '.join([*names, column])})", [*row, filed])


# -------------------------------------------------------------------------------------------- schema_sql


def test_the_printed_schema_makes_the_very_tables(engine: Engine, path: Path, tmp_path: Path) -> None:
    enqueued(engine)
    by_hand = tmp_path / "hand.db"
    script(by_hand, engine.schema_sql())
    ours = [row for row in tables_and_indexes(path) if row[0] != "treadle_migrations"]
    assert [row for row in tables_and_indexes(by_hand) if row[0] != "treadle_migrations"] == ours


def test_a_file_made_from_the_printed_schema_is_accepted(engine: Engine, path: Path) -> None:
    script(path, engine.schema_sql())
    job = enqueued(engine)
    assert current(engine, job) == job
    assert engine.check() == []


def test_the_printed_schema_names_each_migration_and_its_checksum(engine: Engine) -> None:
    for step in ORIGINALS:
        assert f"-- {step.name}, checksum {step.checksum}\n" in engine.schema_sql()


def run(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last of these statements, each committed."""
    assert path.exists()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return [connection.execute(statement).fetchall() for statement in statements][-1]
    finally:
        connection.close()


def insert(path: Path, into: str, row: Sequence[object]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"{into} values ({', '.join('?' * len(row))})", row)
    connection.close()


def script(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()


def tables(path: Path) -> list[str]:
    return [name for (name,) in run(path, "select name from sqlite_schema where type = 'table' order by name")]


def tables_and_indexes(path: Path) -> list[tuple[object, ...]]:
    return run(path, "select tbl_name, type, name, sql from sqlite_schema where sql is not null order by type, name")


def recorded(path: Path) -> list[tuple[object, ...]]:
    return run(path, "select number, name, checksum from treadle_migrations order by number")
