"""How a job lies in a row of SQLite: times are microseconds since 1970, the rest is as in every SQL engine."""

from datetime import UTC, datetime, timedelta

from treadle.engines import rows
from treadle.engines.rows import COLUMNS, Row
from treadle.model import Event, EventKind, Job

JOB = ", ".join(COLUMNS)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime | None) -> int | None:
    """A time as stored."""
    if moment is None:
        return None
    since = moment - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


def moment(stored: int | None) -> datetime | None:
    """A stored time as read."""
    return None if stored is None else EPOCH + timedelta(microseconds=stored)


def job_from(row: Row) -> Job:
    """The job in a row selected as JOB."""
    return rows.job_from(row, moment)


def row_from(job: Job) -> Row:
    """A job as a row, in the order of COLUMNS."""
    return rows.row_from(job, micros)


def event_from(row: Row) -> Event:
    """The event in a row (job, revision, at, kind, actor, note, tenant)."""
    job_id, revision, at, kind, actor, note, tenant = row
    return Event(job_id, revision, EPOCH + timedelta(microseconds=at), EventKind(kind), actor, note, tenant)
