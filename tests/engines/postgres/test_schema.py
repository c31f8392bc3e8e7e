"""The schema: applied once by whoever comes first, never by surprise, compared in every detail, upgraded in halves."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.support import provision
from tests.support.making import a_job, claim, claimed, current, ended, enqueued, race, settle
from tests.support.provision import Cluster, standby
from tests.support.workbench import until
from treadle import Treadle
from treadle.engines import connect
from treadle.engines.contract import Engine, StagedSchema, TenantIsolation
from treadle.engines.postgres import schema
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.schema import MigrationStep
from treadle.engines.values import Claim, Finding, JobFilter, Lease, Retention, RowSecurity, Ruling, ScheduleFilter
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError
from treadle.model import State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause, Seal
from treadle.testing import FakeClock

OpenEngine = Callable[..., PostgresEngine]

OURS = schema.migrations()
FIRST = OURS[0]
APPLIED = [step.name for step in OURS]
RECORDED = [(step.name, step.checksum) for step in OURS]
TABLES = {
    "drains", "events", "finished", "jobs", "keys", "memos", "migrations", "minutes", "pauses", "schedules", "seals",
    "tokens", "workers",
}  # fmt: skip


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


@pytest.fixture
def bare_url(engine_kind: str) -> Iterator[str]:
    """A schema that nobody has made yet; it, and others whose names begin like it, are gone afterwards."""
    server, name = provision.shared_postgres(), f"b{uuid4().hex[:20]}"
    yield f"{server}?schema={name}"
    with psycopg.connect(server, autocommit=True) as connection:
        for [made] in connection.execute("select nspname from pg_namespace where starts_with(nspname, %s)", [name]):
            connection.execute(f"drop schema {made} cascade")


def name_in(url: str) -> str:
    return url.partition("?schema=")[2]


@contextmanager
def plain(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody who is not treadle."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        yield connection


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last of these statements, each committed; @ is the schema."""
    with plain(url) as connection:
        for statement in statements:
            cursor = connection.execute(statement.replace("@", name_in(url)))
        return cursor.fetchall() if cursor.description else []


def described(url: str) -> dict[str, str]:
    with plain(url) as connection:
        return schema.describe(connection, name_in(url))  # type: ignore[arg-type]


def recorded(url: str) -> list[tuple[object, ...]]:
    return run(url, "select name, checksum from @.migrations order by applied_at, name")


def schemas(url: str) -> list[object]:
    """The schemas in this database, all of them."""
    return [name for (name,) in run(url, "select nspname from pg_namespace order by 1")]


def exists(url: str) -> bool:
    return name_in(url) in schemas(url)


def everything_in(url: str) -> object:
    """All that a careless reader could have changed."""
    return schemas(url), described(url), recorded(url), run(url, "select * from @.jobs order by id")


# -------------------------------------------------------------------------------------- made when asked for


def test_nothing_is_made_by_looking(open_engine: OpenEngine, bare_url: str) -> None:
    engine = open_engine(bare_url)
    assert engine.check() == [f"schema {name_in(bare_url)} has no treadle tables yet: `treadle migrate` creates them"]
    assert engine.check(quick=True) == [f"schema {name_in(bare_url)} has no treadle tables yet"]
    with pytest.raises(SchemaError, match=r"has no treadle tables yet: run `treadle migrate`, or set auto_migrate"):
        engine.open()
    assert "create table" in engine.schema_sql()
    assert not exists(bare_url)


@pytest.mark.covers("002-M4.a")
def test_migrate_names_what_it_applied_and_the_second_time_nothing(open_engine: OpenEngine, bare_url: str) -> None:
    engine = open_engine(bare_url)
    assert engine.migrate() == APPLIED
    made = everything_in(bare_url)
    assert engine.migrate() == open_engine(bare_url).migrate() == []
    assert everything_in(bare_url) == made
    assert engine.check() == []
    assert recorded(bare_url) == RECORDED
    tables = {name.removeprefix("table ") for name in described(bare_url) if name.startswith("table ")}
    assert tables == TABLES


def the_calls(engine: PostgresEngine) -> dict[str, Callable[[], object]]:
    """Every method that needs the tables, called."""
    job = a_job(FakeClock().now())
    held = job.evolve(state=State.RUNNING, lease_token="t", lease_until=job.due_at)
    wish = Claim(new_id(), "w", 1, 30.0)
    settling = lifecycle.settle(held, Succeeded(), job.due_at)
    seal = Seal("acme", 1, 0, job.due_at, job.due_at, "d", "p", "h", job.due_at)
    return {
        "open": engine.open,
        "enqueue": lambda: engine.enqueue([job]),
        "turn": lambda: engine.turn([settling], wish),
        "extend": lambda: engine.extend([Lease(job.id, "t")], lease=30.0),
        "expired": lambda: engine.expired(limit=1),
        "get": lambda: engine.get([job.id]),
        "find": lambda: engine.find(JobFilter(), limit=1),
        "count": lambda: engine.count(JobFilter()),
        "events": lambda: engine.events(job.id),
        "prune": lambda: engine.prune(Retention({State.FAILED: timedelta(0)}), limit=1),
        "cancel_requests": lambda: engine.cancel_requests([job.id]),
        "memos": lambda: engine.memos(job.id),
        "tally": lambda: engine.tally(since=job.due_at, limit=1),
        "costs": lambda: engine.costs(since=job.due_at, until=job.due_at),
        "records": lambda: engine.records(Pause),
        "find_schedules": lambda: engine.find_schedules(ScheduleFilter(), limit=1),
        "due": lambda: engine.due(limit=1),
        "save": lambda: engine.save(Pause(), before=None),
        "drop": lambda: engine.drop(Pause()),
        "unsealed": lambda: engine.unsealed(limit=1),
        "seal": lambda: engine.seal(seal, []),
        "sealed": lambda: engine.sealed(seal),
        "orphaned_events": lambda: engine.orphaned_events(limit=1),
        "prune_events": lambda: engine.prune_events(seal),
        "rls": lambda: engine.rls(RowSecurity("treadle_w", "treadle_a")),
    }


CALLS = [
    "enqueue", "turn", "extend", "expired", "get", "find", "count", "events", "prune", "costs", "records", "due",
    "save", "drop", "unsealed", "seal", "sealed", "orphaned_events", "prune_events", "rls", "cancel_requests",
    "memos", "tally", "find_schedules",
]  # fmt: skip


NEEDS_NO_TABLES = {
    "migrate", "migrate_half", "check", "schema_sql", "half_sql", "doctor", "close", "for_tenant", "now", "wait",
    "enqueue_script", "settle_script", "schedule_script", "save_script", "wake",
}  # fmt: skip


def test_every_method_is_in_the_list_of_calls(open_engine: OpenEngine, bare_url: str) -> None:
    promised = (Engine, StagedSchema, TenantIsolation)
    methods = {name for protocol in promised for name in dir(protocol) if not name.startswith("_")}
    assert methods == {"open", *CALLS} | NEEDS_NO_TABLES
    assert the_calls(open_engine(bare_url)).keys() == {"open", *CALLS}


@pytest.mark.parametrize("call", ["open", *CALLS])
def test_without_the_tables_a_call_says_migrate_and_makes_nothing(
    open_engine: OpenEngine, bare_url: str, call: str
) -> None:
    for again in range(2):
        with pytest.raises(SchemaError, match=rf"{name_in(bare_url)}.*`treadle migrate`.*auto_migrate"):
            the_calls(open_engine(bare_url))[call]()
        assert not exists(bare_url), again


def test_waiting_needs_no_tables_and_makes_none(open_engine: OpenEngine, bare_url: str) -> None:
    engine = open_engine(bare_url)
    interrupt = threading.Event()
    engine.wait(["default"], 0.05, interrupt)
    interrupt.set()
    assert engine.wait(["default"], 30.0, interrupt)
    assert not exists(bare_url)


def test_a_schema_of_other_tables_is_not_ready_and_left_alone(open_engine: OpenEngine, bare_url: str) -> None:
    run(bare_url, "create schema @", "create table @.orders (id int)", "insert into @.orders values (7)")
    with pytest.raises(SchemaError, match="`treadle migrate`"):
        open_engine(bare_url).enqueue([a_job(FakeClock().now())])
    assert described(bare_url).keys() == {"table orders", "column orders.id"}
    assert open_engine(bare_url).migrate() == APPLIED
    assert run(bare_url, "select id from @.orders") == [(7,)]
    assert open_engine(bare_url).check() == ["column orders.id is unknown", "table orders is unknown"]


@pytest.mark.parametrize("call", CALLS)
def test_tables_that_go_away_under_an_open_engine_are_told_of_alike(
    open_engine: OpenEngine, bare_url: str, call: str
) -> None:
    engine = open_engine(bare_url)
    engine.migrate()
    engine.open()
    run(bare_url, "drop schema @ cascade")
    with pytest.raises(SchemaError, match="`treadle migrate`"):
        the_calls(engine)[call]()
    assert not exists(bare_url)
    engine.migrate()
    assert enqueued(engine).state is State.PENDING  # and it goes on, without being opened anew


def test_auto_migrate_makes_the_tables_on_first_use(open_engine: OpenEngine, bare_url: str) -> None:
    engine = open_engine(bare_url, auto_migrate=True)
    assert not exists(bare_url)
    job = enqueued(engine)
    assert current(engine, job).state is State.PENDING
    assert engine.check() == []


def test_auto_migrate_makes_the_tables_before_a_first_use_in_the_callers_transaction(bare_url: str) -> None:
    with Treadle(bare_url, auto_migrate=True) as app, psycopg.connect(provision.shared_postgres()) as connection:

        @app.task
        def greet() -> None: ...

        greet.using(tx=connection).enqueue()
        connection.commit()
        assert app.count()[State.PENDING] == 1


def test_auto_migrate_is_a_setting_that_is_off_until_set(bare_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cautious = Treadle(bare_url)
    with pytest.raises(SchemaError):
        cautious.open()
    monkeypatch.setenv("TREADLE_AUTO_MIGRATE", "true")
    bold = Treadle(bare_url)
    bold.open()
    assert bold.check_schema() == []
    for app in (cautious, bold):
        app.close()


# -------------------------------------------------------------------------------------- many start at once

STARTER = """
import json, sys
from treadle.engines import connect
print("ready", flush=True)
for line in sys.stdin:
    engine = connect(line.strip())
    print(json.dumps(engine.migrate()), flush=True)
    engine.close()
"""


@pytest.fixture
def starters() -> Iterator[list[subprocess.Popen[str]]]:
    """Eight processes; each migrates the URL it is told, and says what it applied."""
    command = [sys.executable, "-W", "error", "-c", STARTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    started = [subprocess.Popen(command, **pipes) for _ in range(8)]
    try:
        for each in started:
            assert each.stdout.readline() == "ready\n"
        yield started
    finally:
        for each in started:
            each.stdin.close()
            each.kill()
            each.wait()
            each.stdout.close()


def test_of_eight_processes_that_migrate_at_once_one_does(
    starters: list[subprocess.Popen[str]], open_engine: OpenEngine, bare_url: str
) -> None:
    for round in range(5):
        url = f"{bare_url}_{round}"
        for each in starters:
            each.stdin.write(f"{url}\n")
        said = [json.loads(each.stdout.readline()) for each in starters]
        assert sorted(said) == [[]] * 7 + [APPLIED]
        assert recorded(url) == RECORDED
    assert open_engine(url).check() == []


def test_of_eight_threads_that_start_with_auto_migrate_all_can_work(open_engine: OpenEngine, bare_url: str) -> None:
    for round in range(5):
        url = f"{bare_url}_{round}"
        engines = [open_engine(url, auto_migrate=True) for _ in range(8)]

        def start(place: int, engines: list[PostgresEngine] = engines) -> str:
            enqueued(engines[place])
            # A claim sees what was there when it began, and the others may take all of that before it can.
            while not (jobs := claim(engines[place], 1)):
                pass
            return jobs[0].id

        assert len(set(race(8, start))) == 8
        assert recorded(url) == RECORDED


def test_of_eight_threads_that_share_an_engine_all_can_work(open_engine: OpenEngine, bare_url: str) -> None:
    engine = open_engine(bare_url, auto_migrate=True)
    assert len({job.id for job in race(8, lambda _: enqueued(engine))}) == 8
    assert recorded(bare_url) == RECORDED


def test_migrations_of_two_schemas_do_not_wait_for_each_other(open_engine: OpenEngine, bare_url: str) -> None:
    with plain(bare_url) as connection, connection.transaction():
        schema.migrate(connection, name_in(bare_url))  # type: ignore[arg-type] # and does not commit yet
        assert open_engine(f"{bare_url}_other").migrate() == APPLIED


# -------------------------------------------------------------------------------------- the schema's name


@pytest.mark.covers("002-M4.g")
def test_two_schemas_in_one_database_do_not_touch_each_other(open_engine: OpenEngine, bare_url: str) -> None:
    one, two = open_engine(f"{bare_url}_1"), open_engine(f"{bare_url}_2")
    one.migrate()
    with pytest.raises(SchemaError, match=f"{two.schema}.*`treadle migrate`"):
        enqueued(two)
    assert two.migrate() == APPLIED
    job, other = enqueued(one, key="k", key_scope="ever"), enqueued(two, key="k", key_scope="ever")
    assert job.id != other.id
    assert (one.get([other.id]), two.get([job.id])) == ([None], [None])
    assert [got.id for got in claim(one)] == [job.id]
    assert [got.id for got in claim(two)] == [other.id]
    assert one.check() == two.check() == []
    before = described(f"{bare_url}_2")
    run(f"{bare_url}_1", "drop schema @ cascade")
    assert described(f"{bare_url}_2") == before
    assert current(two, other).state is State.RUNNING


@pytest.mark.parametrize(
    "name",
    ["", "Treadle", "two words", "1st", "a.b", 'a"b', "a'b", "a;b", "a-b", "jöbs", "jobs%0A", "a@b", "a" * 51],
)
def test_a_schema_name_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"schema=.*lower-case"):
        connect(f"postgresql://127.0.0.1:1/x?schema={name}")


@pytest.mark.parametrize("name", ["select", "user", "table", "order", "pg_jobs", "pg_catalog"])
def test_a_schema_name_that_means_something_to_the_server_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"schema='{name}'"):
        connect(f"postgresql://127.0.0.1:1/x?schema={name}")


@pytest.fixture
def database() -> Iterator[str]:
    """A database of our own, for schemas whose names others might use as well."""
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)


@pytest.mark.parametrize("name", ["j", "k", "enqueue", "jobs", "keys", "migrations", "new_id", "public", "a" * 50])
def test_any_other_name_will_do(open_engine: OpenEngine, database: str, name: str) -> None:
    url = f"{database}?schema={name}"
    engine = open_engine(url)
    assert engine.migrate() == APPLIED
    enqueue = "select @.enqueue('greet', key => 'k')::text"
    [(by_sql,)] = run(url, enqueue)
    assert claimed(engine, a_job(engine.now(), id=by_sql)).key == "k"
    assert run(url, enqueue) == [(by_sql,)]
    assert engine.check() == []


# --------------------------------------------------------------------------------------------- schema_sql


def by_psycopg(url: str, text: str) -> None:
    run(url, text)


def by_psql(url: str, text: str) -> None:
    psql = provision.binaries()[provision.DEFAULT] / "psql"
    command = [psql, "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", url.partition("?")[0]]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("tool", [by_psycopg, by_psql])
def test_the_printed_schema_is_the_one_that_migrate_makes(
    open_engine: OpenEngine, bare_url: str, store_url: str, tool: Callable[[str, str], None]
) -> None:
    engine = open_engine(bare_url)
    tool(bare_url, engine.schema_sql())
    assert described(bare_url) == described(store_url)
    assert recorded(bare_url) == recorded(store_url)
    assert (engine.migrate(), engine.check()) == ([], [])
    assert claimed(engine, enqueued(engine)).state is State.RUNNING


def test_the_printed_schema_names_each_migration_and_its_checksum(open_engine: OpenEngine, bare_url: str) -> None:
    text = open_engine(bare_url).schema_sql()
    for step in OURS:
        assert f"-- {step.name}, checksum {step.checksum}\n" in text
    assert "@" not in text


# ------------------------------------------------------------------------------------------------- check

DRIFT = {
    "a dropped index": ("drop index @.jobs_claim", "index jobs_claim is missing"),
    "a dropped table": ("drop table @.events", "table events is missing"),
    "a dropped column": ("alter table @.events drop column note", "column events.note is missing"),
    "a dropped constraint": (
        "alter table @.jobs drop constraint jobs_lease_while_running",
        "constraint jobs.jobs_lease_while_running is missing",
    ),
    "a dropped trigger": ("drop trigger guard_jobs on @.jobs", "trigger jobs.guard_jobs is missing"),
    "a dropped function": (
        "drop function @.enqueue(text, jsonb, text, timestamptz, int, text, text, timestamptz, text, text, int,"
        " float8, float8, float8, float8, timestamptz, int, uuid)",
        "function enqueue* is missing",
    ),
    "an altered column type": (
        "alter table @.jobs alter column priority type bigint",
        "column jobs.priority is bigint not null default 0, expected integer not null default 0",
    ),
    "a column that may be null": (
        "alter table @.jobs alter column queue drop not null",
        "column jobs.queue is text default 'default'::text, expected text not null default 'default'::text",
    ),
    "a changed default": (
        "alter table @.jobs alter column max_attempts set default 3",
        "column jobs.max_attempts is integer not null default 3, expected integer not null default 5",
    ),
    "an altered index": (
        "drop index @.keys_job; create index keys_job on @.keys (job, scope)",
        "index keys_job is CREATE INDEX keys_job ON keys USING btree (job, scope), expected "
        "CREATE INDEX keys_job ON keys USING btree (job)",
    ),
    "an invalid index": (
        "update pg_index set indisvalid = false where indexrelid = '@.keys_until'::regclass",
        "index keys_until is CREATE INDEX keys_until * (invalid), expected CREATE INDEX keys_until *",
    ),
    "an altered function": (
        "create or replace function @.new_id() returns uuid language sql return gen_random_uuid()",
        "function new_id* is CREATE OR REPLACE FUNCTION new_id*, expected CREATE OR REPLACE FUNCTION new_id*",
    ),
    "an altered trigger function": (
        "create or replace function @.guard_jobs() returns trigger language plpgsql as 'begin return null; end'",
        "function guard_jobs* is *begin return null; end*, expected *names a key that it does not hold*",
    ),
    "a trigger that is off": (
        "alter table @.jobs disable trigger guard_jobs",
        "trigger jobs.guard_jobs is CREATE TRIGGER guard_jobs * D, expected CREATE TRIGGER guard_jobs * O",
    ),
    "an altered constraint": (
        "alter table @.finished drop constraint finished_state_check,"
        " add constraint finished_state_check check (state <> '') not valid",
        "constraint finished.finished_state_check is CHECK * NOT VALID, expected CHECK *succeeded*",
    ),
    "another storage option": (
        "alter table @.jobs set (fillfactor = 100)",
        "table jobs is *fillfactor=100*, expected *fillfactor=80*",
    ),
    "a table that a crash would empty": ("alter table @.jobs set unlogged", "table jobs is *unlogged*"),
    "an added table": ("create table @.mine (id int)", "table mine is unknown"),
    "an added view": ("create view @.seen as select id from @.jobs", "table seen is unknown"),
    "an added column": ("alter table @.jobs add column mine text", "column jobs.mine is unknown"),
    "an added index": ("create unique index jobs_mine on @.jobs (task)", "index jobs_mine is unknown"),
    "an added trigger": (
        "create trigger mine before insert on @.jobs for each row execute function"
        " suppress_redundant_updates_trigger()",
        "trigger jobs.mine is unknown",
    ),
    "an added function": ("create function @.mine() returns int language sql return 1", "function mine* is unknown"),
    "another function of a name of ours": (
        "create function @.enqueue(int) returns int language sql return 1",
        "function enqueue* is unknown",
    ),
    "an added aggregate": (
        "create aggregate @.total(int) (sfunc = int4pl, stype = int)",
        "function total* is unknown",
    ),
}


@pytest.mark.parametrize(("change", "named"), DRIFT.values(), ids=DRIFT)
def test_check_names_what_differs(open_engine: OpenEngine, store_url: str, change: str, named: str) -> None:
    run(store_url, change)
    said = open_engine(store_url).check()
    assert [line for line in said if fnmatchcase(line, named)], said
    about = named.split()[1].rpartition(".")[2].strip("*")
    assert [line for line in said if about not in line] == []


def test_an_index_of_the_users_own_is_left_alone(open_engine: OpenEngine, store_url: str) -> None:
    run(store_url, "create index mine on @.jobs (tenant)")
    assert open_engine(store_url).check() == []


def test_check_names_every_difference_at_once(open_engine: OpenEngine, store_url: str) -> None:
    chosen = [
        "a dropped index", "an altered column type", "a dropped trigger", "an altered function", "an added table",
        "a changed default", "an invalid index", "a dropped constraint",
    ]  # fmt: skip
    for what in chosen:
        run(store_url, DRIFT[what][0])
    said = open_engine(store_url).check()
    for what in chosen:
        assert [line for line in said if fnmatchcase(line, DRIFT[what][1])], what


def test_check_leaves_nothing_behind(open_engine: OpenEngine, store_url: str) -> None:
    engine = open_engine(store_url)
    enqueued(engine)
    before = everything_in(store_url)
    assert engine.check() == []
    run(store_url, "drop index @.jobs_claim")
    assert engine.check() == ["index jobs_claim is missing"]
    run(store_url, *(s.replace("filed", "parked") for s in re.findall(r"create index jobs_claim [^;]+;", FIRST.sql)))
    assert everything_in(store_url) == before
    left = "select pid from pg_stat_activity where state like 'idle in transaction%' and query like '%@%'"
    assert run(store_url, left) == []


def test_check_hinders_nobody_who_checks_or_works_beside_it(open_engine: OpenEngine, store_url: str) -> None:
    engines = [open_engine(store_url) for _ in range(4)]

    def act(place: int) -> object:
        for _ in range(5):
            assert engines[place].check() == []
            settle(engines[place], claimed(engines[place], enqueued(engines[place], lane=str(place))), Succeeded())
        return place

    assert race(4, act) == [0, 1, 2, 3]


def test_check_is_not_put_off_by_a_schema_called_like_its_scratch(open_engine: OpenEngine, bare_url: str) -> None:
    name = name_in(bare_url)
    engine = open_engine(bare_url)
    engine.migrate()
    for taken in (f"{name}_expected", f"{name}_scratch", f"{name}_check"):
        beside = open_engine(f"{bare_url.partition('?')[0]}?schema={taken}")
        beside.migrate()
        job = enqueued(beside)
        assert engine.check() == beside.check() == []
        assert current(beside, job) == job


@pytest.mark.covers("002-M2.a", "002-M2.b", "002-M4.e")
def test_the_indexes_that_claims_and_recovery_need_are_partial(store_url: str) -> None:
    found = described(store_url)
    assert "WHERE ((state = 'pending'::text) AND (NOT parked))" in found["index jobs_claim"]
    assert "(lease_token, lease_until) WHERE (state = 'running'::text)" in found["index jobs_lease"]


@pytest.mark.covers("002-M2.c", "002-D5.b")
def test_the_database_itself_refuses_a_second_holder_of_a_key(open_engine: OpenEngine, store_url: str) -> None:
    engine = open_engine(store_url)
    enqueued(engine)
    assert run(store_url, "select * from @.keys") == []
    enqueued(engine, key="k", key_scope="active")
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(store_url, "insert into @.keys select tenant, task, key, gen_random_uuid(), scope from @.keys")


# ------------------------------------------------------------------------------------ migrations in halves

CHAIN = (
    *OURS,
    MigrationStep("9001_more.pre", "alter table @.jobs add column more text;\ncreate table @.more (id int);"),
    MigrationStep("9001_more.post", "alter table @.more alter column id set not null;\ndrop index @.jobs_expiry;"),
    MigrationStep(
        "9002_last.pre",
        "create function @.last() returns int language sql return 1;\ncreate index more_id on @.more (id);",
    ),
    MigrationStep("9002_last.post", "alter table @.jobs drop column more;"),
)
MORE = CHAIN[len(OURS)]
NAMES = [step.name for step in CHAIN]
PRE = [name for name in NAMES if name.endswith(".pre")]
POST = [name for name in NAMES if name.endswith(".post")]

Pretend = Callable[..., None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """`pretend(*steps)`: this treadle has these migrations."""
    return lambda *steps: monkeypatch.setattr(schema, "migrations", lambda: steps)


def test_the_files_are_read_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    for name in ("0010_c.pre", "0002_b.post", "0002_b.pre", "0001_a.pre"):
        (folder / f"{name}.sql").write_text(f"-- {name}")
    (folder / "0003_draft.sql").write_text("no half, no migration")
    monkeypatch.setattr(schema.resources, "files", lambda _: tmp_path)
    found = schema.migrations.__wrapped__()
    assert [step.name for step in found] == ["0001_a.pre", "0002_b.pre", "0002_b.post", "0010_c.pre"]
    assert [step.sql for step in found] == [f"-- {step.name}" for step in found]


def test_the_migrations_of_this_treadle_are_numbered_without_a_gap() -> None:
    numbers = sorted({int(step.name[:4]) for step in schema.migrations()})
    assert numbers == list(range(1, len(numbers) + 1))
    assert len({step.name for step in schema.migrations()}) == len(schema.migrations())


@pytest.fixture
def whole(open_engine: OpenEngine, bare_url: str, pretend: Pretend) -> dict[str, str]:
    """What a fresh install of the whole chain looks like."""
    pretend(*CHAIN)
    assert open_engine(f"{bare_url}_whole").migrate() == NAMES
    return described(f"{bare_url}_whole")


@pytest.mark.parametrize("halves", [(None,), ("pre", "post"), ("pre", None)], ids=str)
def test_a_fresh_install_is_the_same_in_one_go_and_in_halves(
    open_engine: OpenEngine, bare_url: str, whole: dict[str, str], halves: tuple[str | None, ...]
) -> None:
    engine = open_engine(bare_url)
    applied = [name for half in halves for name in (engine.migrate_half(half) if half else engine.migrate())]
    assert sorted(applied) == sorted(NAMES)
    assert described(bare_url) == whole
    assert engine.check() == []


def test_a_migration_that_waits_for_a_lock_lets_the_workers_through(
    open_engine: OpenEngine, store_url: str, pretend: Pretend
) -> None:
    """A dump reads the table for hours: who queues for the lock behind it would stop every claim behind himself."""
    worker = open_engine(store_url)
    job = enqueued(worker)
    pretend(*OURS, MigrationStep("0099_more.pre", "alter table @.jobs add column more int;"))
    upgrade = threading.Thread(target=open_engine(store_url).migrate)
    with psycopg.connect(store_url.partition("?")[0]) as dump:
        dump.execute(f"select 1 from {name_in(store_url)}.jobs")
        upgrade.start()
        until(lambda: waiting_for_a_lock(store_url), "the migration waits")
        [claimed] = claim(worker)  # while the dump still reads
        assert claimed.id == job.id
    upgrade.join(60)
    assert not upgrade.is_alive()
    assert "0099_more.pre" in {name for name, _ in recorded(store_url)}


def test_a_migration_that_never_gets_its_lock_says_what_to_do_and_changes_nothing(
    open_engine: OpenEngine, store_url: str, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATION_TIMEOUT", 2.0)
    pretend(*OURS, MigrationStep("0099_more.pre", "alter table @.jobs add column more int;"))
    with psycopg.connect(store_url.partition("?")[0]) as dump:
        dump.execute(f"select 1 from {name_in(store_url)}.jobs")
        with pytest.raises(EngineUnavailable, match=r"locked the tables for 2 s; end it .pg_stat_activity"):
            open_engine(store_url).migrate()
    assert recorded(store_url) == RECORDED


def waiting_for_a_lock(url: str) -> bool:
    return run(url, "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%0099_more%'") != []


@pytest.mark.parametrize("known", range(len(OURS), len(CHAIN)))
def test_a_fresh_install_and_an_upgrade_give_the_same_schema(
    open_engine: OpenEngine, bare_url: str, pretend: Pretend, whole: dict[str, str], known: int
) -> None:
    pretend(*CHAIN[:known])
    old = open_engine(bare_url)
    assert old.migrate() == NAMES[:known]
    job = enqueued(old)
    pretend(*CHAIN)
    engine = open_engine(bare_url)
    assert engine.migrate() == NAMES[known:]
    assert described(bare_url) == whole
    assert engine.check() == []
    assert current(engine, job) == job


def test_an_upgrade_step_by_step_gives_the_same_schema(
    open_engine: OpenEngine, bare_url: str, pretend: Pretend, whole: dict[str, str]
) -> None:
    for known in range(1, len(CHAIN) + 1):  # from the first one that there ever was
        pretend(*CHAIN[:known])
        assert open_engine(bare_url).migrate() == NAMES[known - 1 : known]
        assert open_engine(bare_url).check() == []
    assert described(bare_url) == whole


def test_the_halves_are_applied_apart_and_in_order(open_engine: OpenEngine, bare_url: str, pretend: Pretend) -> None:
    pretend(*CHAIN)
    engine = open_engine(bare_url)
    assert engine.migrate_half("pre") == PRE
    assert engine.migrate_half("pre") == []
    assert {"index jobs_expiry", "column jobs.more", "index more_id"} <= described(bare_url).keys()
    assert claimed(engine, enqueued(engine)).state is State.RUNNING
    assert engine.check() == [f"migration {name} is not applied" for name in POST]
    assert engine.check(quick=True) == []
    assert engine.migrate_half("post") == POST
    assert not {"index jobs_expiry", "column jobs.more"} & described(bare_url).keys()
    assert engine.migrate() == []


def test_auto_migrate_applies_the_first_halves_only(open_engine: OpenEngine, bare_url: str, pretend: Pretend) -> None:
    pretend(*CHAIN)
    engine = open_engine(bare_url, auto_migrate=True)
    enqueued(engine)
    assert [name for name, _ in recorded(bare_url)] == PRE
    assert engine.check() == [f"migration {name} is not applied" for name in POST]


def test_what_must_wait_is_not_applied_before_what_must_come_first(
    open_engine: OpenEngine, bare_url: str, pretend: Pretend
) -> None:
    pretend(*CHAIN)
    with pytest.raises(SchemaError, match=r"0001_jobs\.pre.*`treadle migrate --pre`"):
        open_engine(bare_url).migrate_half("post")
    assert not exists(bare_url)
    pretend(*OURS)
    open_engine(bare_url).migrate()
    pretend(*OURS, MORE, MigrationStep("9001_more.post", "drop index @.jobs_expiry;"))  # would not even fail
    with pytest.raises(SchemaError, match=r"9001_more\.pre.*`treadle migrate --pre`"):
        open_engine(bare_url).migrate_half("post")
    assert "index jobs_expiry" in described(bare_url)


def test_the_printed_halves_make_the_same_schema(open_engine: OpenEngine, bare_url: str, whole: dict[str, str]) -> None:
    engine = open_engine(bare_url)
    run(bare_url, engine.half_sql("pre"))
    assert [name for name, _ in recorded(bare_url)] == PRE
    run(bare_url, engine.half_sql("post"))
    assert described(bare_url) == whole
    assert (engine.migrate(), engine.check()) == ([], [])


def test_new_code_does_not_start_on_an_old_schema(open_engine: OpenEngine, store_url: str, pretend: Pretend) -> None:
    pretend(*CHAIN)
    engine = open_engine(store_url)
    before = everything_in(store_url)
    with pytest.raises(SchemaError, match=r"lacks 9001_more\.pre, 9002_last\.pre: run `treadle migrate`"):
        enqueued(engine)
    assert engine.check(quick=True) == [f"schema {engine.schema} lacks 9001_more.pre, 9002_last.pre"]
    assert engine.check() == [f"migration {name} is not applied" for name in NAMES[len(OURS) :]]
    assert everything_in(store_url) == before


def test_check_names_what_is_altered_also_while_a_second_half_waits(
    open_engine: OpenEngine, bare_url: str, pretend: Pretend
) -> None:
    pretend(*CHAIN)
    engine = open_engine(bare_url)
    engine.migrate_half("pre")
    run(bare_url, "drop index @.jobs_claim")
    said = engine.check()
    assert [f"migration {name} is not applied" for name in POST] == [line for line in said if "migration" in line]
    assert "index jobs_claim is missing" in said


@pytest.fixture
def old(open_engine: OpenEngine, store_url: str) -> PostgresEngine:
    """An engine of this treadle that has not looked at its schema yet, which somebody else may have changed."""
    return open_engine(store_url)


def test_old_code_works_on_while_a_newer_first_half_is_applied(
    old: PostgresEngine, open_engine: OpenEngine, store_url: str, pretend: Pretend
) -> None:
    running = open_engine(store_url)
    waiting = enqueued(running)
    pretend(*CHAIN)
    assert open_engine(store_url).migrate_half("pre") == [name for name in PRE if name not in APPLIED]
    pretend(*OURS)
    for engine in (running, old):  # started before, and started now
        job = enqueued(engine, task="new", key="k", key_scope="active")
        for each in (waiting, job):
            held = claimed(engine, each)
            assert settle(engine, held, Succeeded("1")).ruling is Ruling.APPLIED
            assert current(engine, each).state is State.SUCCEEDED
        waiting = enqueued(engine)
    assert old.migrate() == []  # and takes nothing back
    assert old.check(quick=True) == []
    assert [name for name, _ in recorded(store_url)] == PRE


def test_old_code_is_refused_after_a_newer_second_half(old: PostgresEngine, store_url: str) -> None:
    run(store_url, "insert into @.migrations values ('9000_rockets.pre', 'abc'), ('9000_rockets.post', 'def')")
    for attempt in (old.open, old.migrate, lambda: enqueued(old), lambda: claim(old)):
        with pytest.raises(SchemaError, match=r"9000_rockets\.post.*newer treadle.*upgrade"):
            attempt()
    for quick in (False, True):
        [said] = old.check(quick=quick)
        assert "9000_rockets.post" in said
    assert run(store_url, "select * from @.jobs") == []


def test_a_migration_that_is_not_the_one_applied_is_refused(old: PostgresEngine, store_url: str) -> None:
    run(store_url, "update @.migrations set checksum = 'another'")
    for attempt in (old.open, old.migrate, lambda: enqueued(old), lambda: claim(old)):
        with pytest.raises(SchemaError, match=r"0001_jobs\.pre differs.*install the treadle that wrote it"):
            attempt()
    for quick in (False, True):
        [said] = old.check(quick=quick)
        assert "0001_jobs.pre differs" in said


BROKEN = MigrationStep(
    "9001_broken.pre", "create table @.more (id int);\ninsert into @.more values (1);\nselect 1 / (id - 1) from @.more;"
)


@pytest.mark.parametrize("how", [{}, {"auto_migrate": True}], ids=["asked for", "by itself"])
def test_a_migration_that_fails_half_way_leaves_nothing(
    open_engine: OpenEngine, bare_url: str, pretend: Pretend, how: dict[str, bool]
) -> None:
    pretend(*OURS, BROKEN)
    engine = open_engine(bare_url, **how)
    with pytest.raises(EngineError, match="division by zero"):
        engine.open() if how else engine.migrate()
    assert not exists(bare_url)
    pretend(*OURS)
    assert open_engine(bare_url).migrate() == APPLIED


def test_an_upgrade_that_fails_leaves_the_schema_as_it_was(
    open_engine: OpenEngine, store_url: str, pretend: Pretend
) -> None:
    job = ended(open_engine(store_url), State.SUCCEEDED)
    before = everything_in(store_url)
    pretend(*OURS, MORE, BROKEN._replace(name="9002_broken.pre"))
    with pytest.raises(EngineError):
        open_engine(store_url).migrate()
    assert everything_in(store_url) == before
    pretend(*OURS)
    assert current(open_engine(store_url), job) == job


def test_a_process_killed_while_it_migrates_leaves_nothing_and_the_next_one_does_it(
    open_engine: OpenEngine, bare_url: str
) -> None:
    name = name_in(bare_url)
    slow = (
        "import sys; from treadle.engines import connect; from treadle.engines.postgres import schema\n"
        "first = schema.migrations()\n"
        "schema.migrations = lambda: (*first, schema.MigrationStep('9001_slow.pre', 'select pg_sleep(60);'))\n"
        "connect(sys.argv[1]).migrate()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, bare_url])
    try:
        sleeping = "select pid from pg_stat_activity where state = 'active' and query like '%9001_slow.pre%' and "
        sleeping += f"query like '%{name}%' and pid <> pg_backend_pid()"
        [(backend,)] = until(lambda: run(bare_url, sleeping), "the migration has begun")
    finally:
        process.kill()
        process.wait()
    run(bare_url, f"select pg_terminate_backend({backend}, 10000)")  # else the server notices when the sleep is over
    assert not exists(bare_url)
    assert open_engine(bare_url).migrate() == APPLIED


# ------------------------------------------------------------------------------------------------ doctor


def finding(findings: list[Finding], about: str) -> Finding:
    [found] = [each for each in findings if about in each.text]
    return found


def test_the_doctor_tells_version_durability_schema_and_listen(open_engine: OpenEngine, store_url: str) -> None:
    found = open_engine(store_url).doctor()
    [(version,)] = run(store_url, "select current_setting('server_version')")
    assert finding(found, "PostgreSQL") == Finding("ok", f"PostgreSQL {version}")
    assert finding(found, "schema") == Finding("ok", "schema is up to date")
    assert finding(found, "LISTEN").level == "ok"
    [(fsync,)] = run(store_url, "select current_setting('fsync')")
    assert finding(found, "fsync").level == ("warning" if fsync == "off" else "ok")


def test_the_doctor_names_what_differs(open_engine: OpenEngine, store_url: str) -> None:
    run(store_url, "drop index @.jobs_claim")
    found = finding(open_engine(store_url).doctor(), "schema")
    assert found == Finding("error", "schema: index jobs_claim is missing")


def test_the_doctor_says_that_polling_is_enough_where_listen_hears_nothing(
    open_engine: OpenEngine, store_url: str, database: str
) -> None:
    engine = open_engine(store_url, listen_url=database)  # notifications stay within their database
    found = finding(engine.doctor(), "LISTEN")
    assert found.level == "warning"
    assert "polling, which is always enough" in found.text
    assert "listen_url" in found.text


def test_the_doctor_says_the_same_where_nobody_listens_at_all(open_engine: OpenEngine, store_url: str) -> None:
    engine = open_engine(store_url, listen_url="postgresql://treadle@127.0.0.1:1/postgres")
    found = finding(engine.doctor(), "LISTEN")
    assert (found.level, "listen_url" in found.text) == ("warning", True)


@pytest.mark.parametrize("how", [{}, {"auto_migrate": True}], ids=["explicit", "auto_migrate"])
def test_the_doctor_tells_that_tables_are_missing_and_makes_none(
    open_engine: OpenEngine, bare_url: str, how: dict[str, bool]
) -> None:
    found = open_engine(bare_url, **how).doctor()
    said = finding(found, "schema")
    assert (said.level, "`treadle migrate`" in said.text) == ("error", True)
    assert finding(found, "PostgreSQL").level == "ok"
    assert not exists(bare_url)


def test_the_doctor_tells_of_a_newer_schema(old: PostgresEngine, store_url: str) -> None:
    run(store_url, "insert into @.migrations values ('9000_rockets.post', 'def')")
    said = finding(old.doctor(), "schema")
    assert (said.level, "9000_rockets.post" in said.text) == ("error", True)


class Pair:
    """A durable primary with an empty schema `treadle`, and its standby."""

    def __init__(self, primary: Cluster, follower: Cluster) -> None:
        self.primary, self.follower = primary, follower

    def both(self, rest: str = "") -> str:
        hosts = f"127.0.0.1:{self.follower.port},127.0.0.1:{self.primary.port}"
        return f"postgresql://treadle@{hosts}/postgres{rest}"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Cluster(fsync="on", synchronous_commit="on") as primary:
        engine = PostgresEngine.connect(primary.url)
        engine.migrate()
        engine.close()
        with standby(primary, name="second") as follower:
            yield Pair(primary, follower)


def test_the_doctor_is_content_with_a_server_that_keeps_what_it_says(open_engine: OpenEngine, pair: Pair) -> None:
    found = open_engine(pair.primary.url).doctor()
    assert {each.level for each in found} == {"ok"}
    page = (Path(__file__).parents[3] / "docs" / "postgresql.md").read_text("utf-8")
    for each in found:
        printed = re.sub(r"PostgreSQL \d+\.\d+.*", "PostgreSQL 18.1", each.text)
        assert f"\n✓ ok       {printed}\n" in page


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
def test_the_doctor_warns_of_what_a_crash_would_undo(open_engine: OpenEngine, pair: Pair, setting: str) -> None:
    with psycopg.connect(pair.primary.url, autocommit=True) as connection:
        before = [*connection.execute(f"show {setting}")]
        try:
            connection.execute(f"alter system set {setting} = off")
            connection.execute("select pg_reload_conf()")
            until(lambda: [*connection.execute(f"show {setting}")] == [("off",)], f"{setting} is off")
            found = finding(open_engine(pair.primary.url).doctor(), "synchronous_commit")
            assert (found.level, "may undo acknowledged jobs" in found.text) == ("warning", True)
        finally:
            connection.execute(f"alter system reset {setting}")
            connection.execute("select pg_reload_conf()")
            until(lambda: [*connection.execute(f"show {setting}")] == before, f"{setting} is on again")


def test_the_doctor_tells_that_a_server_is_a_standby(open_engine: OpenEngine, pair: Pair) -> None:
    found = open_engine(f"{pair.follower.url}?target_session_attrs=any").doctor()
    said = finding(found, "standby")
    assert said == Finding("error", "this server is a standby: name the primary, or both with host=a,b")


def test_of_two_hosts_the_primary_is_taken(open_engine: OpenEngine, pair: Pair) -> None:
    engine = open_engine(pair.both())
    assert claimed(engine, enqueued(engine)).state is State.RUNNING
    assert not [each for each in engine.doctor() if "standby" in each.text]
