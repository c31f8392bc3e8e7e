"""sql.cleanup: which rows it deletes to the microsecond, in batches, on PostgreSQL and SQLite; and what it refuses."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.marks import sql_stores
from tests.support.workbench import until
from treadle import Cancelled, ConfigError, GiveUp, InvalidPayload, Job, Reason, State, Treadle
from treadle.builtin import sql_cleanup
from treadle.builtin.sql_cleanup import OldRows, SqlCleanup
from treadle.testing import FakeClock, FakeContext, run_until_idle

MICRO, DAY = timedelta(microseconds=1), timedelta(days=1)


class Table:
    """A table of the application, beside the jobs in its database."""

    def __init__(self, url: str) -> None:
        self.name = f"rows {uuid4().hex} 100%"  # a name that must be quoted
        self._of_postgres = url.startswith("postgres")
        self._place = url.partition("?")[0].removeprefix("sqlite:///")
        kind = "timestamptz" if self._of_postgres else "text"
        self.run(f'create table "{self.name}" (name text, at {kind}, state text)')

    def add(self, **times: object) -> None:
        """A row of each name and time."""
        for name, at in times.items():
            value = at.isoformat() if isinstance(at, datetime) and not self._of_postgres else at
            mark = "%s" if self._of_postgres else "?"
            self.run(f"insert into {self.quoted} values ({mark}, {mark}, 'draft')", name, value)

    def fill(self, rows: int, at: datetime) -> None:
        """Many rows of one time."""
        if self._of_postgres:
            self.run(f"insert into {self.quoted} select 'old', %s from generate_series(1, {rows})", at)
        else:
            counted = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})"
            self.run(f"insert into {self.quoted} {counted} select 'old', ?, '' from n", at.isoformat())

    def names(self) -> list[str]:
        return [name for (name,) in self.run(f'select name from "{self.name}" order by name')]

    def drop(self) -> None:
        self.run(f'drop table if exists "{self.name}"')

    @property
    def quoted(self) -> str:
        return f'"{self.name}"'.replace("%", "%%") if self._of_postgres else f'"{self.name}"'

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._of_postgres:
            with psycopg.connect(self._place, autocommit=True) as connection:
                cursor = connection.execute(statement, values or None)
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self._place, isolation_level=None)) as file:
            return file.execute(statement, values).fetchall()


@pytest.fixture
def table(store_url: str) -> Iterator[Table]:
    made = Table(store_url)
    yield made
    made.drop()


def ended(app: Treadle, job: Job) -> Job:
    run_until_idle(app)
    return app.get(job.id)


@sql_stores
def test_a_row_goes_when_its_time_is_before_the_cutoff_and_stays_at_it(
    app: Treadle, clock: FakeClock, table: Table
) -> None:
    now = clock.now()
    task = sql_cleanup.register(app, OldRows(table.name, "at", keep="1d"))
    elsewhere = timezone(timedelta(hours=-9))
    table.add(past=now - DAY - MICRO, at=now - DAY, inside=now - DAY + MICRO, none=None)
    table.add(abroad=(now - DAY - MICRO).astimezone(elsewhere), later=(now + DAY).astimezone(elsewhere))
    job = ended(app, task.enqueue())
    assert table.names() == ["at", "inside", "later", "none"]
    assert job.result == {"deleted": 2, "tables": {table.name: 2}}
    assert ended(app, task.enqueue()).result["deleted"] == 0  # twice is once
    clock.advance(seconds=1)
    assert ended(app, task.enqueue(keep="2d")).result["deleted"] == 0  # the payload's own time
    assert ended(app, task.enqueue(keep=0)).result["deleted"] == 2
    assert table.names() == ["later", "none"]


@sql_stores
def test_rows_are_picked_by_other_columns_too_and_rules_share_a_table(
    app: Treadle, clock: FakeClock, table: Table
) -> None:
    hour = timedelta(hours=1)
    table.add(draft=clock.now() - hour, other=clock.now() - hour, ancient=clock.now() - 2 * DAY)
    table.run(f"update \"{table.name}\" set state = 'sent' where name <> 'draft'")
    cleanup = SqlCleanup(app, OldRows(table.name, "at", where={"state": "draft"}), OldRows(table.name, "at", keep="1d"))
    assert cleanup.run() == {"deleted": 2, "tables": {table.name: 2}}
    assert table.names() == ["other"]


@sql_stores
def test_a_hundred_thousand_rows_go_in_batches_with_a_commit_each(app: Treadle, clock: FakeClock, table: Table) -> None:
    table.fill(100_000, clock.now() - DAY)
    table.add(young=clock.now())
    rules, ctx = OldRows(table.name, "at"), FakeContext()
    ctx.cancel()
    with pytest.raises(Cancelled, match="1,000 rows were deleted"):
        SqlCleanup(app, rules, batch=1000).run(ctx=ctx)
    assert len(table.names()) == 99_001  # what it had done is committed, and it stops after that
    ctx = FakeContext()
    assert SqlCleanup(app, rules, batch=10_000).run(ctx=ctx)["deleted"] == 99_000
    assert [report.note.split()[0] for report in ctx.reported][:2] == ["10,000", "20,000"]
    assert len(ctx.reported) == 10
    assert table.names() == ["young"]


@sql_stores
def test_a_missing_table_or_column_fails_the_job_at_once_with_its_name_and_the_way_out(
    app: Treadle, table: Table
) -> None:
    gone = sql_cleanup.register(app, OldRows("no_such_table", "at"))
    wrong = sql_cleanup.register(app, OldRows(table.name, "expires"), name="wrong")
    jobs = [gone.enqueue(), wrong.enqueue()]
    for job, words in zip(jobs, (["'no_such_table'"], [f"'{table.name}'", "expires"]), strict=True):
        failed = ended(app, job)
        assert (failed.state, failed.reason, failed.attempt) == (State.FAILED, Reason.PERMANENT, 1)
        assert all(word in failed.error.message for word in [*words, "change what is registered"])
    assert app.count()[State.PENDING] == 0


@pytest.mark.parametrize("engine_kind", ["postgres"])
def test_on_postgresql_a_row_that_changes_meanwhile_does_not_end_the_clean_up(
    app: Treadle, clock: FakeClock, table: Table, store_url: str
) -> None:
    table.fill(30, clock.now() - DAY)
    server, role = store_url.partition("?")[0], f"role_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as other:
        # A policy that waits for us at the first row: then the statement has begun, and holds no row yet.
        other.execute(f"""
            create role {role} login; grant all on "{table.name}" to {role};
            alter table "{table.name}" enable row level security;
            create policy waits on "{table.name}" using (pg_advisory_xact_lock_shared(4711) is not null);
            select pg_advisory_lock(4711);
        """)
        cleanup = SqlCleanup(app, OldRows(table.name, "at"), url=re.sub("//[^@/]*@", f"//{role}@", server), batch=10)
        deleted: dict[str, Any] = {}
        running = threading.Thread(target=lambda: deleted.update(cleanup.run()))
        running.start()
        try:
            waits = "select 1 from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"
            until(lambda: other.execute(waits).fetchall(), "the wait")
            other.execute(f"update \"{table.name}\" set state = 'seen' where ctid = '(0,5)'")
        finally:
            other.execute("select pg_advisory_unlock(4711)")
            running.join()
            table.drop()
            other.execute(f"drop role {role}")
    assert deleted["deleted"] == 30


@pytest.mark.parametrize("engine_kind", ["postgres"])
def test_on_postgresql_a_row_that_somebody_holds_is_left_and_times_without_a_zone_are_utc(
    app: Treadle, clock: FakeClock, table: Table, store_url: str
) -> None:
    now = clock.now()
    table.run(f"alter table \"{table.name}\" alter at type timestamp using at at time zone 'UTC'")
    table.add(
        **{name: at.replace(tzinfo=None) for name, at in {"held": now - DAY, "at": now, "past": now - MICRO}.items()}
    )
    cleanup = SqlCleanup(app, OldRows(f"public.{table.name}", "at"))
    with psycopg.connect(store_url.partition("?")[0]) as other:
        other.execute("set timezone to 'Asia/Tokyo'")
        other.execute(f"select from \"{table.name}\" where name = 'held' for update")
        assert cleanup.run()["deleted"] == 1
    assert table.names() == ["at", "held"]
    with pytest.raises(GiveUp, match="does not fit"):
        SqlCleanup(app, OldRows(table.name, "name")).run()


def test_on_sqlite_times_are_text_in_any_iso_form_or_seconds_and_all_else_is_left(
    app: Treadle, clock: FakeClock, table: Table
) -> None:
    now = clock.now()
    table.add(stamp="2020-01-01 00:00:00", zulu="2020-01-01T00:00:00Z", day="2020-01-01", later="2999-01-01")
    table.add(word="yesterday", empty="", exact=now, past=now - MICRO)
    cleanup = SqlCleanup(app, OldRows(table.name, "at"))
    assert cleanup.run()["deleted"] == 4
    assert table.names() == ["empty", "exact", "later", "word"]
    table.run(f'alter table "{table.name}" add column seconds')
    table.run(
        f"update \"{table.name}\" set seconds = case name when 'word' then 1 when 'later' then 9e99 else x'00' end"
    )
    assert SqlCleanup(app, OldRows(table.name, "seconds")).run()["deleted"] == 1


def test_a_running_job_tells_how_far_it_is_and_stops_when_it_is_cancelled(
    make_app: Callable[..., Treadle], tmp_path: Path
) -> None:
    app = make_app(clock=None, watch=0.05, poll=0.05)
    table = Table(f"sqlite:///{tmp_path}/shop.db")
    table.fill(50_000, app.engine.now() - DAY)
    job = sql_cleanup.register(app, OldRows(table.name, "at"), url=f"sqlite:///{tmp_path}/shop.db", batch=1).enqueue()
    worker = app.worker()
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    seen = until(lambda: app.get(job.id).progress, "the progress of the job")
    assert seen.note.endswith(f"rows deleted, now in {table.name}")
    app.cancel(job.id)
    until(lambda: app.get(job.id).state is State.CANCELLED, lambda: f"the end of {app.get(job.id)}")
    assert 0 < len(table.names()) < 50_000
    worker.stop()
    thread.join(20)


def test_a_payload_names_no_table_and_no_time_that_is_not_one(app: Treadle, table: Table) -> None:
    task = sql_cleanup.register(app, OldRows(table.name, "at"))
    for payload in ({"table": "jobs"}, {"column": "due_at"}, {"keep": "soon"}, {"keep": -1}, {"keep": []}):
        with pytest.raises(InvalidPayload, match=next(iter(payload))):
            task.enqueue_payload(payload)
    assert task.name == "sql.cleanup"


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "no rows are named"),
        ([OldRows("", "at")], {}, "not the name of a table"),
        ([OldRows("a.", "at")], {}, "not the name of a table"),
        ([OldRows("a", "at", where={"b": None})], {}, "no row equals NULL"),
        ([OldRows("a", "at", keep="soon")], {}, "keep"),
        ([OldRows("a", "at")], {"batch": 0}, "from 1 to 100,000"),
        ([OldRows("a", "at")], {"url": "dynamodb://table"}, "has no tables"),
        ([OldRows("a", "at")], {"url": "sqlite:///:memory:"}, "in memory"),
        ([OldRows("a", "at")], {"url": 5}, "not a URL"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_registered(rows: Any, options: Any, words: str, app: Treadle) -> None:
    with pytest.raises(ConfigError, match=words):
        sql_cleanup.register(app, *rows, **options)
    assert "sql.cleanup" not in app.tasks


def test_another_database_can_be_named_and_it_must_be_there(app: Treadle, clock: FakeClock, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    cleanup = SqlCleanup(app, OldRows("carts", "at"), url=url)
    with pytest.raises(GiveUp, match=r"there is no file .*shop\.db"):
        cleanup.run()
    assert not (tmp_path / "shop.db").exists()
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as shop:
        shop.execute("create table carts (id integer primary key, at text)")
        shop.execute("create table lines (cart int references carts on delete cascade)")
        shop.execute("insert into carts values (7, '2020-01-01')")
        shop.execute("insert into lines values (7)")
        assert cleanup.run()["deleted"] == 1
        assert shop.execute("select * from lines").fetchall() == []  # references hold


def test_a_store_without_tables_says_that_a_url_is_needed(clock: FakeClock) -> None:
    with Treadle("dynamodb://jobs?region=eu-central-1", clock=clock) as app, pytest.raises(GiveUp, match="url="):
        SqlCleanup(app, OldRows("carts", "at")).run()
