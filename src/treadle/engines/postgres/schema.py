"""The schema: numbered migrations, each applied once, and a comparison of the live schema with the expected one.

A migration's `pre` half adds what new code needs while old code still works; its `post` half is applied when no old
process is left, and removes what only old code needed. Halves are files: 0002_name.pre.sql, 0002_name.post.sql.
"""

import hashlib
import re
import threading
import time
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple
from uuid import uuid4

from psycopg.errors import LockNotAvailable

from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.plain_sql import CLOSED, CLOSED_DEFAULT, is_allowed, switch_sql
from treadle.engines.postgres.wire import Connection
from treadle.engines.values import Half
from treadle.errors import ConfigError, EngineUnavailable, SchemaError
from treadle.model.backoff import Backoff

_NAME = re.compile(r"(\d{4})_(\w+)\.(pre|post)\.sql")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,49}")

SCHEMA = "create schema if not exists @;"
# These words can name a schema only in quotes.
_RESERVED = frozenset(
    """
all analyse analyze and any array as asc asymmetric authorization binary both case cast check
collate collation column concurrently constraint create cross current_catalog current_date
current_role current_schema current_time current_timestamp current_user default deferrable desc
distinct do else end except false fetch for foreign freeze from full grant group having ilike in
initially inner intersect into is isnull join lateral leading left like limit localtime
localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
references returning right select session_user similar some symmetric system_user table tablesample
then to trailing true union unique user using variadic verbose when where window with
""".split()  # noqa: SIM905
)

# The trigger of row-level security, which a store may have or not (rls.py), and its name in older versions.
RLS_GUARDS = ("rls_guard", "walls_guard")

MOST_NAMED = 3  # missing migrations that an error names
MIGRATION_TIMEOUT = 300.0  # seconds to wait for a step: it may wait for locks
# Who waits for a lock on a table makes everybody behind him wait too: never for longer than this, but again and again.
MIGRATION_LOCK_TIMEOUT = "1s"
_LOCKED = Backoff(1.0, 4.0)

LEDGER = """create table if not exists @.migrations (
    name text primary key,
    checksum text not null,
    applied_at timestamptz not null default statement_timestamp()
);"""


class MigrationStep(NamedTuple):
    """One half of a migration."""

    name: str  # 0001_jobs.pre
    sql: str

    @property
    def post(self) -> bool:
        return self.name.endswith(".post")

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]

    @property
    def statements(self) -> str:
        """Its text in ASCII, which every database takes; the checksum is that of the file.

        A comment of 0002 has another character, and a file that stores have recorded cannot change any more.
        """
        return self.sql.encode("ascii", "replace").decode("ascii")

    @property
    def record(self) -> str:
        """The statement that records it as applied."""
        return f"insert into @.migrations (name, checksum) values ('{self.name}', '{self.checksum}');"


@cache
def migrations() -> tuple[MigrationStep, ...]:
    """The files beside this module, by number; the pre half of a number comes before its post half."""
    folder = resources.files("treadle.engines.postgres") / "migrations"
    names = sorted((i.name for i in folder.iterdir() if _NAME.fullmatch(i.name)), key=lambda n: (n[:4], ".post." in n))
    return tuple(MigrationStep(name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in names)


def schema_name(given: str) -> str:
    """The name of a schema, if it needs no quoting."""
    if not _SCHEMA.fullmatch(given):
        raise ConfigError(
            f"url: schema={given!r} must be a lower-case name of letters, digits and _, up to 50 characters"
        )
    if given in _RESERVED or given.startswith("pg_"):
        raise ConfigError(f"url: schema={given!r} is a name that PostgreSQL reserves; choose another")
    return given


class PostgresSchema:
    """The schema of one store: opened once, migrated, compared."""

    def __init__(self, server: Connections, name: str, *, auto_migrate: bool, plain_sql: bool | None = None) -> None:
        """`plain_sql`: whether jobs can be enqueued with it; None: as it is."""
        self.name = schema_name(name)
        self.ready = False
        self.sets_isolation = False  # whether each claim must say that it is read committed
        self._server = server
        self.auto_migrate = auto_migrate
        self._plain_sql = plain_sql
        self._opening = threading.Lock()

    def open(self) -> None:
        """See that this code can use the schema; SchemaError if not."""
        with self._opening:
            if self.ready:
                return
            if self.auto_migrate:
                self.migrate("pre")
            if problems := self._problems():
                raise SchemaError(f"{self._server.where}: {problems[0]}: run `treadle migrate`, or set auto_migrate")
            isolation = self._server.run(lambda c: c.execute("show default_transaction_isolation").fetchall())
            self.sets_isolation = isolation != [("read committed",)]  # a pooler may not pass our options on
            self.ready = True

    def migrate(self, half: Half | None = None) -> list[str]:
        """Apply the missing steps, of one half or of both, and open or close plain SQL."""

        def apply(connection: Connection) -> list[str]:
            done = migrate(connection, self.name, half)
            if self._plain_sql not in (None, is_allowed(connection, self.name)):
                connection.execute(named(switch_sql(bool(self._plain_sql)), self.name))
            return done

        give_up_at, failures = time.monotonic() + MIGRATION_TIMEOUT, 0
        while True:
            try:
                return self._server.transaction(
                    apply, answer_timeout=MIGRATION_TIMEOUT, lock_timeout=MIGRATION_LOCK_TIMEOUT
                )
            except EngineUnavailable as error:
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
                wait = _LOCKED.spread(failures)
                if time.monotonic() + wait > give_up_at:
                    raise EngineUnavailable(
                        f"{self._server.where}: a transaction has locked the tables for {MIGRATION_TIMEOUT:g} s;"
                        " end it (pg_stat_activity names it) and migrate again: nothing was changed"
                    ) from error
                failures += 1
                time.sleep(wait)

    def check(self, *, quick: bool) -> list[str]:
        """Every difference to the expected schema; with `quick`, only what keeps this code from using it."""
        try:
            if quick:
                return self._problems()
            return self._server.transaction(lambda c: [*differences(c, self.name), *self._plain_sql_differs(c)])
        except SchemaError as error:
            return [str(error)]

    def script(self, half: Half | None = None) -> str:
        """The migrations as SQL, for another tool to run."""
        steps = [
            f"-- {step.name}, checksum {step.checksum}\n{step.statements}\n{step.record}\n" for step in _half(half)
        ]
        closing = [switch_sql(allowed=False)] if self._plain_sql is False and half != "post" else []
        return named("\n".join([SCHEMA, LEDGER, "", *steps, *closing]), self.name)

    def _plain_sql_differs(self, connection: Connection) -> list[str]:
        if self._plain_sql in (None, is_allowed(connection, self.name)):
            return []
        is_now, should = ("closed", "names") if self._plain_sql else ("open", "leaves out")
        return [f"plain SQL is {is_now}, but the setting enqueue_allow {should} sql: `treadle migrate` changes that"]

    def _problems(self) -> list[str]:
        retry_for = self._server.retry_for
        done = self._server.run(lambda connection: ledger(connection, self.name), retry_for=retry_for)
        refuse_foreign(done)
        absent = missing(done)
        if not absent:
            return []
        if not done:
            return [f"schema {self.name} has no treadle tables yet"]
        names = ", ".join(absent) if len(absent) <= MOST_NAMED else f"{len(absent)} migrations, from {absent[0]} on"
        return [f"schema {self.name} lacks {names}"]


@lru_cache(200)
def named(sql: str, schema: str) -> str:
    """A statement with the schema's name in place of @."""
    return sql.replace("@", schema)


def migrate(connection: Connection, schema: str, half: Half | None = None) -> list[str]:
    """Apply the missing steps, in a transaction that one process at a time can enter; the names applied now."""
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"treadle {schema}"])
    done = ledger(connection, schema)
    refuse_foreign(done)
    if half == "post" and (first := missing(done)):
        raise SchemaError(f"{', '.join(first)} must come first: run `treadle migrate --pre`")
    steps = [step for step in _half(half) if step.name not in done]
    if steps:
        [[there]] = connection.execute("select to_regnamespace(%s) is not null", [schema]).fetchall()
        if not there:  # the owner of a schema need not have the right to create one
            connection.execute(named(SCHEMA, schema))
        connection.execute(named(LEDGER, schema))
    for step in steps:
        connection.execute(named(f"{step.statements}\n{step.record}", schema))
    return [step.name for step in steps]


def ledger(connection: Connection, schema: str) -> dict[str, str]:
    """The steps this schema has recorded: name -> checksum; empty if there is no ledger."""
    [[there]] = connection.execute("select to_regclass(%s) is not null", [f"{schema}.migrations"]).fetchall()
    if not there:
        return {}
    return dict(connection.execute(named("select name, checksum from @.migrations", schema)).fetchall())


def refuse_foreign(done: dict[str, str]) -> None:
    """Refuse a schema whose migrations are not ours. We can work with the `pre` halves of a newer treadle."""
    known = {step.name: step for step in migrations()}
    for name, checksum in done.items():
        if name not in known and name.endswith(".post"):
            raise SchemaError(f"migration {name} comes from a newer treadle: upgrade treadle to use this schema")
        if name in known and checksum != known[name].checksum:
            raise SchemaError(f"migration {name} differs from the one applied here: install the treadle that wrote it")


def missing(done: dict[str, str]) -> list[str]:
    """The steps that this code needs and the schema lacks."""
    return [step.name for step in _half("pre") if step.name not in done]


def differences(connection: Connection, schema: str) -> list[str]:
    """What is missing, altered or unknown, found by building the expected schema beside it for a moment.

    It is rolled back before this returns.
    """
    done = ledger(connection, schema)
    refuse_foreign(done)
    if not done:
        return [f"schema {schema} has no treadle tables yet: `treadle migrate` creates them"]
    differing = [f"migration {step.name} is not applied" for step in migrations() if step.name not in done]
    scratch = f"treadle_{uuid4().hex}"
    connection.execute("savepoint scratch")
    connection.execute(named(f"{SCHEMA}\n{LEDGER}", scratch))
    for step in migrations():
        if step.name in done:
            connection.execute(named(step.statements, scratch))
    wanted, found = describe(connection, scratch, schema), describe(connection, schema)
    connection.execute("rollback to savepoint scratch")
    differing += [f"{name} is missing" for name in wanted if name not in found]
    for name in wanted:
        if name in found and found[name] != wanted[name]:
            differing.append(f"{name} is {found[name]}, expected {wanted[name]}")
    return differing + [f"{name} is unknown" for name in found if name not in wanted and not _harmless(found[name])]


def _harmless(described: str) -> bool:
    """Whether this is an index that the user added: it costs time, but it refuses none of our rows."""
    return described.startswith("CREATE INDEX ")


def describe(connection: Connection, schema: str, called: str | None = None) -> dict[str, str]:
    """Everything in a schema by name: columns, constraints, indexes, triggers, functions and storage options.

    With `called`, as if the schema had that name. (Our functions may use that name for something else, such as j.)
    """
    rows = connection.execute(_DESCRIBE, {"schema": schema}).fetchall()
    name = called or schema
    return {
        what: " ".join(text.replace(f"{schema}.", f"{name}.").replace(f"{name}.", "").split()).removesuffix(
            CLOSED_DEFAULT
        )
        for what, text in rows
        if not any(option in what for option in (*RLS_GUARDS, CLOSED))
    }


def _half(half: Half | None) -> list[MigrationStep]:
    return [step for step in migrations() if half is None or step.post == (half == "post")]


_DESCRIBE = """
with r as (
    select c.oid, c.relname, c.relkind, c.reloptions, c.relpersistence from pg_class c
    where c.relnamespace = to_regnamespace(%(schema)s) and c.relkind in ('r', 'p', 'v', 'm')
)
select 'table ' || relname, coalesce((select string_agg(o, ', ' order by o) from unnest(reloptions) o), 'plain')
    || case relpersistence when 'u' then ', unlogged' else '' end from r
union all
select 'column ' || r.relname || '.' || a.attname,
    format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
from r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
union all
select 'constraint ' || r.relname || '.' || c.conname, pg_get_constraintdef(c.oid)
from r join pg_constraint c on c.conrelid = r.oid where c.contype <> 'n'
union all
select 'index ' || i.relname, pg_get_indexdef(i.oid) || case when x.indisvalid then '' else ' (invalid)' end
from r join pg_index x on x.indrelid = r.oid join pg_class i on i.oid = x.indexrelid
union all
select 'trigger ' || r.relname || '.' || t.tgname, pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
from r join pg_trigger t on t.tgrelid = r.oid and not t.tgisinternal
union all
select 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
    case when p.prokind in ('f', 'p') then pg_get_functiondef(p.oid) else 'an aggregate' end
from pg_proc p where p.pronamespace = to_regnamespace(%(schema)s)
order by 1
"""
