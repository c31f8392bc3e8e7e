"""The tables of a SQLite file: their migrations, the comparison of what is there with them, and the doctor."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from treadle.engines.migrations import Migration, read_migrations, refuse_foreign
from treadle.engines.sqlite.connection import MEMORY, DatabaseFile, retry_locked
from treadle.engines.values import Finding
from treadle.errors import EngineError, SchemaError

WAL_RESET_FIXED = (3, 51, 3)  # the first SQLite that has no WAL-reset bug

LEDGER = """create table if not exists treadle_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at text not null default current_timestamp
)"""


@cache
def migrations() -> tuple[Migration, ...]:
    """The migrations of this treadle, in order."""
    return read_migrations("treadle.engines.sqlite")


def migrate(connection: sqlite3.Connection, deadline: float) -> list[str]:
    """Apply what is missing, in one transaction that starting processes take turns at; the names applied now."""
    if not retry_locked(deadline, lambda: differences(connection)):
        return []
    retry_locked(deadline, lambda: connection.execute("begin immediate"))
    try:
        applied = apply_missing(connection)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    if drift := retry_locked(deadline, lambda: differences(connection)):
        raise SchemaError(
            "the tables are not as treadle left them: " + "; ".join(drift) + ". Undo the change by hand, or move the "
            "jobs to a fresh file; `treadle migrate --sql` prints the expected schema"
        )
    return applied


def check(file: DatabaseFile) -> list[str]:
    """Every difference between the tables in the file and the expected ones; the file is not changed."""
    if file.path == MEMORY:
        return []
    path = Path(file.path)
    if not path.exists():
        return [f"{path} does not exist yet: `treadle migrate` creates it"]
    if not path.is_file():
        raise EngineError(f"{path} cannot be opened: it is not a file")
    with file.translated_errors, closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return differences(connection)
        except SchemaError as error:
            return [str(error)]


def schema_sql() -> str:
    """The migrations as text."""
    steps = [f"-- {step.name}, checksum {step.checksum}\n{step.sql}\n{ledger_entry(step)};\n" for step in migrations()]
    return "\n".join([f"{LEDGER};\n", *steps])


def ledger_entry(step: Migration) -> str:
    """The statement that records a migration as applied."""
    columns = "insert into treadle_migrations (number, name, checksum)"
    return f"{columns} values ({step.number}, '{step.name}', '{step.checksum}')"


def differences(connection: sqlite3.Connection) -> list[str]:
    """What is missing, altered or unknown among treadle's tables and indexes."""
    wanted, found = _expected(), _schema(connection)
    applied = _ledger(connection) if "treadle_migrations" in found else {}
    refuse_foreign(applied, migrations())
    drift = [
        *(f"{name} is missing" for name in wanted if name not in found),
        *(f"{name} was altered" for name in wanted if name in found and found[name] != wanted[name]),
        *(f"{name} is unknown" for name in found if name not in wanted),
    ]
    return drift or [f"migration {step.name} is not recorded" for step in migrations() if step.name not in applied]


def apply_missing(connection: sqlite3.Connection) -> list[str]:
    """Apply what is missing, in the transaction that is open; the names applied now."""
    connection.execute(LEDGER)
    applied = _ledger(connection)
    refuse_foreign(applied, migrations())
    missing = [step for step in migrations() if step.name not in applied]
    for step in missing:
        for statement in (*_statements(step.sql), ledger_entry(step)):
            connection.execute(statement)
    return [step.name for step in missing]


def _ledger(connection: sqlite3.Connection) -> dict[str, str]:
    """The migrations this file has seen: name -> checksum."""
    return dict(connection.execute("select name, checksum from treadle_migrations order by number").fetchall())


def _statements(sql: str) -> Iterator[str]:
    """The single statements of a migration."""
    gathered = ""
    for line in sql.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""


@cache
def _expected() -> dict[str, str]:
    with closing(sqlite3.connect(MEMORY)) as scratch:
        scratch.execute(LEDGER)
        for step in migrations():
            scratch.executescript(step.sql)
        return _schema(scratch)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute(
        "select name, sql from sqlite_schema where name glob 'treadle_*' and sql is not null"
    ).fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows}


# ------------------------------------------------------------------------------------------- the doctor


def doctor(file: DatabaseFile, drift: Sequence[str] | None = None) -> list[Finding]:
    """What an operator should know about this file; `drift`: the differences of its tables, if they are known."""
    found = [_library(), _durability(file)]
    if locked := _not_writable(file):
        return [*found, Finding("error", f"cannot write to {' and '.join(locked)}: make it writable")]
    drift = check(file) if drift is None else drift
    if drift:
        return [*found, Finding("error", "schema: " + "; ".join(drift))]
    return [*found, Finding("ok", "schema is up to date")]


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= WAL_RESET_FIXED:
        return Finding("ok", f"SQLite {version}")
    return Finding(
        "warning",
        f"SQLite {version} has the WAL-reset bug (fixed in 3.51.3): several processes writing one file can, "
        "very rarely, damage it. Upgrade SQLite, or keep to one process, and back the file up",
        f"SQLite {version}: back the file up if several processes write to it; `treadle doctor` says why",
    )


def _durability(file: DatabaseFile) -> Finding:
    level = file.synchronous.lower()
    if level == "full":
        return Finding("ok", "synchronous=full: an enqueued job survives a power cut")
    return Finding("warning", f"synchronous={level}: a power cut may undo the last acknowledged writes")


def _not_writable(file: DatabaseFile) -> list[str]:
    """The file and its folder, if this process may not write there."""
    path = Path(file.path)
    if file.path == MEMORY or not path.exists():
        return []
    who = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
    return [str(place) for place in (path.resolve(), path.resolve().parent) if not os.access(place, os.W_OK, **who)]
