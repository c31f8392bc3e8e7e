"""Reading jobs: by id, by filter, counted, and what they have cost."""

import json
import re
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from treadle.engines.batches import MOST_QUEUES, merged_tallies
from treadle.engines.rows import counts_from
from treadle.engines.sqlite.connection import DatabaseFile
from treadle.engines.sqlite.rows import BARE, IDS, JOB, job_from
from treadle.engines.values import LISTED, Count, JobFilter, Page, Tally
from treadle.model import UUID, Job, State
from treadle.model.clock import from_micros, micros

_END = re.compile(r"-?[0-9]{1,18}")  # microseconds

BY_IDS = f"""
with wanted as materialized {IDS}
select {JOB} from treadle_jobs where id in wanted
union all
select {JOB} from treadle_finished where id in wanted
"""  # noqa: S608


def get(file: DatabaseFile, ids: Sequence[str]) -> list[Job | None]:
    """These jobs, in order."""
    found = {row[0]: job_from(row) for row in file.rows(BY_IDS, json.dumps(list(ids)))}
    return [found.get(id_) for id_ in ids]


def find(file: DatabaseFile, where: JobFilter, limit: int, cursor: str | None, bare: bool = False) -> Page:
    """A page of the jobs that match, and the cursor of the next one."""
    conditions, values = _conditions(where)
    by_end = where.state in LISTED
    order = "finished_at desc, id desc" if by_end else "id desc"
    after = _position(cursor, by_end) if cursor else ()
    if after:
        conditions.append("(finished_at, id) < (?, ?)" if by_end else "id < ?")
    tables, columns = _tables(where.state), BARE if bare else JOB
    parts = [
        f"select * from (select {columns} from {table} {_where(conditions)} order by {order} limit ?)"  # noqa: S608
        for table in tables
    ]
    sql = f"{' union all '.join(parts)} order by {order} limit ?"
    rows = file.rows(sql, *([*values, *after, limit] * len(tables)), limit)
    jobs = [job_from(row) for row in rows]
    return Page(jobs, _cursor(jobs[-1], by_end) if len(jobs) == limit else None)


_LABELS = "count(*) filter (where failures = 0 and due_at > ?), count(*) filter (where failures > 0)"
_NO_LABELS = "0, 0"


def count(file: DatabaseFile, where: JobFilter, now: datetime) -> dict[State, Count]:
    """How many jobs match, by state."""
    conditions, values = _conditions(where)
    counts: dict[State, Count] = {}
    for table in _tables(where.state):
        labels, moment = (_LABELS, [micros(now)]) if table == "treadle_jobs" else (_NO_LABELS, [])
        sql = f"select state, count(*), {labels} from {table} {_where(conditions)} group by state"  # noqa: S608
        counts.update(counts_from(file.rows(sql, *moment, *values)))
    return counts


def estimate(file: DatabaseFile, where: JobFilter, limit: int, now: datetime) -> dict[State, Count]:
    """How many jobs match, by state, up to a limit; all states at one moment.

    What nearly every job matches ends early. What few match is a scan: no index is by tenant, task or lane.
    """
    conditions, values = _conditions(where._replace(state=None))
    fits = "".join(f" and {condition}" for condition in conditions)
    looks, parameters = [], []
    for state in [where.state] if where.state is not None else State:
        waits = state is State.PENDING
        looks.append(f"""
            select '{state}', count(*), {_LABELS if waits else _NO_LABELS} from (
                select {"failures, due_at" if waits else "1"} from {_tables(state)[0]} where state = '{state}'{fits}
                limit ?
            )
            """)  # noqa: S608 - no word of it is a caller's
        parameters += [*([micros(now)] if waits else []), *values, limit + 1]
    rows = file.rows(" union all ".join(looks), *parameters)
    return counts_from(rows, limit)


# A step from queue to queue in each of the three indexes of waiting jobs, so that one queue hides no other.
_QUEUES = """
with recursive q(queue) as (
    select min(queue) from treadle_jobs where state = 'pending' and parked = {parked}
    union all
    select (select min(queue) from treadle_jobs where state = 'pending' and parked = {parked} and queue > q.queue)
    from q where q.queue is not null limit ?
)
select queue from q where queue is not null
"""
_GROUPED = "select queue, task, state, error, count(*), sum(due), min(at) from ({rows}) group by 1, 2, 3, 4"
_ERROR = "case when {failed} then coalesce(error ->> 'type', '') else '' end as error"


def tally(
    connection: sqlite3.Connection, since: datetime, limit: int, tenant: str | None, now: datetime
) -> list[Tally]:
    """How many jobs wait, run, and have ended since then, as far as a bounded look sees."""
    of, whose = ("and tenant = ?", [tenant]) if tenant is not None else ("", [])
    waiting = f"""
        select queue, task, state, {_ERROR.format(failed="failures > 0")}, due_at <= ? as due, due_at as at
        from treadle_jobs where state = 'pending' and parked = %d and queue = ? {of} limit ?
        """  # noqa: S608 - no word of it is a caller's
    running = f"""
        select queue, task, state, '' as error, 0 as due, claimed_at as at
        from treadle_jobs where state = 'running' {of} limit ?
        """  # noqa: S608
    ended = f"""
        select queue, task, state, {_ERROR.format(failed="state = 'failed'")}, 0 as due, finished_at as at
        from treadle_finished where state = ? and finished_at >= ? {of} order by finished_at desc limit ?
        """  # noqa: S608
    looks: list[tuple[str, list[Any]]] = [(running, [*whose, limit])]
    looks += [(ended, [state, micros(since), *whose, limit]) for state in State if state.final]
    for parked in (0, 1, 2):
        for [queue] in connection.execute(_QUEUES.format(parked=parked), (MOST_QUEUES,)):
            looks.append((waiting % parked, [micros(now), queue, *whose, limit]))
    groups = [row for rows, values in looks for row in connection.execute(_GROUPED.format(rows=rows), values)]
    return merged_tallies(
        Tally(queue, task, State(state), error, number, due, from_micros(at))
        for queue, task, state, error, number, due, at in groups
    )


def costs(file: DatabaseFile, since: datetime, until: datetime, tenant: str | None) -> dict[tuple[str, str], int]:
    """What the jobs that ended in this time have cost, by tenant and task."""
    rows = file.rows(
        """
        select tenant, task, sum(cost_micros) from treadle_finished
        where cost_micros > 0 and finished_at >= ? and finished_at < ? and (? is null or tenant = ?)
        group by tenant, task
        """,
        micros(since), micros(until), tenant, tenant,
    )  # fmt: skip
    return {(tenant, task): cost for tenant, task, cost in rows}


def _conditions(where: JobFilter) -> tuple[list[str], list[Any]]:
    given = {name: value for name, value in where._asdict().items() if value is not None and name != "expired"}
    conditions = [f"{name} = ?" for name in given]
    if where.expired is not None:
        conditions.append(f"reason is{'' if where.expired else ' not'} 'expired'")
    return conditions, list(given.values())


def _where(conditions: list[str]) -> str:
    return f"where {' and '.join(conditions)}" if conditions else ""


def _tables(state: State | None) -> tuple[str, ...]:
    if state is None:
        return ("treadle_jobs", "treadle_finished")
    return ("treadle_finished",) if state.final else ("treadle_jobs",)


def _cursor(last: Job, by_end: bool) -> str:
    return f"{micros(last.finished_at)}:{last.id}" if by_end else last.id


def _position(cursor: str, by_end: bool) -> tuple[Any, ...]:
    """Where the page before ended: the id of its last job, after its end in a list by the ends."""
    end, _, id_ = cursor.rpartition(":")
    if not UUID.fullmatch(id_) or bool(_END.fullmatch(end)) != by_end:
        raise ValueError(f"{cursor!r} is not a valid cursor: pass the cursor of the page before")
    return (int(end), id_) if by_end else (id_,)
