"""What an operator asks: lists, counts, audit events. Plain reads, no locks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from treadle.engines.postgres.rows import JOB, job_from
from treadle.engines.rows import COLUMNS
from treadle.engines.values import LISTED, JobFilter, Page
from treadle.model import UUID, Job, State

EVENTS = """
select job::text, revision, at, kind, actor, note, tenant from @.events where job = %s order by revision, at
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def find(where: JobFilter, limit: int, cursor: str | None) -> tuple[str, list[Any]]:
    """The query for a page: newest first; of failed and of cancelled jobs, the latest to end first."""
    conditions, values = _conditions(where)
    by_end = where.state in LISTED
    order = "finished_at desc, id desc" if by_end else "id desc"
    if cursor and by_end:
        micros, id_ = cursor.split(":")
        _check(id_)
        conditions.append("(finished_at, id) < (%s, %s::uuid)")
        values += [_EPOCH + timedelta(microseconds=int(micros)), id_]
    elif cursor:
        _check(cursor)
        conditions.append("id < %s::uuid")
        values.append(cursor)
    filters = f"where {' and '.join(conditions)}" if conditions else ""
    parts = [
        f"(select {', '.join(COLUMNS)} from {table} {filters} order by {order} limit %s)"
        for table in _tables(where.state)
    ]
    sql = f"select {JOB} from ({' union all '.join(parts)}) as found order by {order} limit %s"
    return sql, [*([*values, limit] * len(parts)), limit]


def page(rows: Sequence[tuple[Any, ...]], where: JobFilter, limit: int) -> Page:
    """The page those rows make."""
    jobs = [job_from(row) for row in rows]
    if len(jobs) < limit:
        return Page(jobs, None)
    return Page(jobs, _cursor(jobs[-1], where))


def count(where: JobFilter) -> tuple[str, list[Any]]:
    conditions, values = _conditions(where)
    filters = f"where {' and '.join(conditions)}" if conditions else ""
    tables = _tables(where.state)
    parts = [f"select state, count(*) from {table} {filters} group by state" for table in tables]
    return " union all ".join(parts), values * len(tables)


def _check(id_: str) -> None:
    if not UUID.fullmatch(id_):
        raise ValueError(f"{id_!r} is no id")


def _cursor(last: Job, where: JobFilter) -> str:
    if where.state in LISTED and last.finished_at is not None:
        return f"{(last.finished_at - _EPOCH) // timedelta(microseconds=1)}:{last.id}"
    return last.id


def _conditions(where: JobFilter) -> tuple[list[str], list[Any]]:
    """State is written out, not bound, so that partial indexes are used."""
    given = {name: value for name, value in where._asdict().items() if value is not None and name != "state"}
    conditions = [f"{name} = %s" for name in given]
    if where.state is not None:
        conditions.insert(0, f"state = '{where.state.value}'")
    return conditions, list(given.values())


def _tables(state: State | None) -> tuple[str, ...]:
    if state is None:
        return ("@.jobs", "@.finished")
    return ("@.finished",) if state.final else ("@.jobs",)
