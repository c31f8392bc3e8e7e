"""How jobs and events lie in rows of SQLite, and how many of them travel to a statement as one parameter.

Times are microseconds since 1970; the rest is as in every SQL engine.
"""

import json
from collections.abc import Iterable

from treadle.engines import rows
from treadle.engines.rows import BARE_COLUMNS, COLUMNS, Row
from treadle.model import Event, EventKind, Job, holds_nul
from treadle.model.clock import from_micros, micros

JOB = ", ".join(COLUMNS)
BARE = ", ".join(BARE_COLUMNS)
EVENT_COLUMNS = ("job", "revision", "at", "kind", "actor", "note", "tenant")
EVENT = ", ".join(EVENT_COLUMNS)

IDS = "(select value from json_each(?))"
"""The parameter, an array of ids, as a relation."""

DELETE_JOBS = f"delete from treadle_jobs where id in {IDS}"  # noqa: S608
DELETE_MEMOS = f"delete from treadle_memos where job in {IDS}"  # noqa: S608


def job_from(row: Row) -> Job:
    """The job in a row selected as JOB."""
    return rows.job_from(row, from_micros)


def row_from(job: Job) -> Row:
    """A job as a row, in the order of COLUMNS."""
    return rows.row_from(job, micros)


def event_from(row: Row) -> Event:
    """The event in a row selected as EVENT."""
    job_id, revision, at, kind, actor, note, tenant = row
    return Event(job_id, revision, from_micros(at), EventKind(kind), actor, note, tenant)


def event_row(event: Event) -> Row:
    """An event as a row, in the order of EVENT_COLUMNS."""
    return (event.job_id, event.revision, micros(event.at), event.kind, event.actor, event.note, event.tenant)


def unpack(names: Iterable[str]) -> str:
    """`with c as (…)`: the parameter, an array of arrays, as a relation with these columns."""
    columns = ", ".join(f"value ->> {index} as {name}" for index, name in enumerate(names))
    return f"with c as materialized (select {columns} from json_each(?))"  # noqa: S608 - names are constants


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def packed(value: object) -> str:
    """The parameter of a statement; ValueError for what SQLite would cut short or not take as JSON."""
    text = _encode(value)
    if holds_nul(text):
        raise ValueError("holds a NUL character, which would cut the text short")
    return text
