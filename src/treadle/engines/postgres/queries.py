"""Plain reads without locks: get, find, count, costs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.engines.batches import MOST_QUEUES, merged_tallies
from treadle.engines.postgres.rows import JOB, job_from, storable
from treadle.engines.postgres.session import Session
from treadle.engines.rows import BARE_COLUMNS, COLUMNS, Row, counts_from
from treadle.engines.values import LISTED, Count, JobFilter, Page, Tally
from treadle.model import UUID, Job, State
from treadle.model.clock import from_micros, micros

IDS = "(select value::uuid as id from json_array_elements_text($1::text::json))"

# The function has one statement with a union. Two statements would see two snapshots, and a job that moves from one
# table to the other would be seen in neither or in both.
READ = f"select * from @.read_jobs(array{IDS})"

COSTS = """
select tenant, task, sum(cost_micros) from @.finished
where cost_micros > 0 and finished_at >= %(since)s and finished_at < %(until)s
and (%(tenant)s::text is null or tenant = %(tenant)s)
group by tenant, task
"""


# A step from queue to queue in each of the three indexes of waiting jobs, so that one queue hides no other. Only the
# rows below a limit are read, and grouped afterwards.
_WAITING = """
select w.* from (
    with recursive q as (
        (select queue from @.jobs where $parked order by queue limit 1)
        union all
        select (select j.queue from @.jobs j where $parked and j.queue > q.queue order by j.queue limit 1)
        from q where q.queue is not null
    )
    select queue from q where queue is not null limit $queues
) q cross join lateral (
    select queue, task, state, case when failures > 0 then error ->> 'type' end as error,
        due_at <= coalesce(%(now)s::timestamptz, statement_timestamp()) as due, due_at as at
    from @.jobs j where $parked and j.queue = q.queue $of limit %(limit)s
) w
"""
_LIVE = [
    _WAITING.replace("$parked", f"state = 'pending' and {parked}").replace("$queues", str(MOST_QUEUES))
    for parked in ("not parked", "parked and not parked_by_tenant", "parked and parked_by_tenant")
]
_RUNNING = """
select queue, task, state, null as error, false as due, claimed_at as at
from @.jobs where state = 'running' $of limit %(limit)s
"""
_ENDED = """
select queue, task, state, case when state = 'failed' then error ->> 'type' end as error, false as due,
    finished_at as at
from @.finished where state = '$state' and finished_at >= %(since)s $of order by finished_at desc limit %(limit)s
"""
_TALLY = "select queue, task, state, coalesce(error, ''), count(*), count(*) filter (where due), min(at)"
_LOOKS = " union all ".join(
    f"({look})" for look in (*_LIVE, _RUNNING, *(_ENDED.replace("$state", state) for state in State if state.final))
)
TALLY = f"{_TALLY} from ({_LOOKS}) as seen group by 1, 2, 3, 4"


_LABELS = """
count(*) filter (where failures = 0 and due_at > coalesce(%s::timestamptz, statement_timestamp())),
count(*) filter (where failures > 0)
"""
_NO_LABELS = "0, 0"


def get(session: Session, ids: Sequence[str]) -> list[Job | None]:
    """These jobs, in order."""
    text = json.dumps([id_ for id_ in ids if is_id(id_)])
    found = {row[0]: job_from(row) for row in session.send(READ, text, retry_for=session.retry_for)}
    return [found.get(id_) for id_ in ids]


def find(session: Session, where: JobFilter, limit: int, cursor: str | None, bare: bool = False) -> Page:
    """A page of the jobs that match."""
    if not _storable(where):
        return Page([], None)
    jobs = [job_from(row) for row in session.read(*find_sql(where, limit, cursor, bare))]
    return Page(jobs, _cursor(jobs[-1], where) if jobs and len(jobs) >= limit else None)


def count(session: Session, where: JobFilter, now: datetime | None) -> dict[State, Count]:
    """How many jobs match, by state."""
    rows = session.read(*_count_sql(where, now)) if _storable(where) else []
    return counts_from(rows)


def estimate(session: Session, where: JobFilter, limit: int, now: datetime | None) -> dict[State, Count]:
    """How many jobs match, by state, up to a limit; beyond it, as many as the planner expects.

    Its statistics are of everybody's jobs: a tenant is told the limit instead.
    """
    states = [where.state] if where.state is not None else list(State)
    if not _storable(where):
        return {}
    looks: list[str] = []
    parameters: list[Any] = []
    for state in states:
        conditions, values = _conditions(where._replace(state=state))
        fits, waits = " and ".join(conditions), state is State.PENDING
        looks.append(
            f"select '{state}', count(*), {_LABELS if waits else _NO_LABELS} from (select "
            f"{'failures, due_at' if waits else '1'} from {_tables(state)[0]} where {fits} limit %s) as looked"
        )
        parameters += [*([now] if waits else []), *values, limit + 1]
    rows = session.read(" union all ".join(looks), parameters)
    counts = counts_from(rows, limit)
    for state, count in counts.items():
        if not count.exact and where.tenant is None:
            expected = max(count, _expected(session, where._replace(state=state)))
            counts[state] = Count(expected, exact=False, labels=count.labels)
    return counts


def _expected(session: Session, where: JobFilter) -> int:
    """How many rows the planner expects, from its statistics."""
    conditions, values = _conditions(where)
    table = _tables(where.state)[0]
    sql = f"explain (format json) select 1 from {table} where {' and '.join(conditions)}"
    [[plan]] = session.read(sql, values)
    found = json.loads(plan) if isinstance(plan, str | bytes) else plan
    return int(found[0]["Plan"]["Plan Rows"])


def tally(session: Session, since: datetime, limit: int, tenant: str | None, now: datetime | None) -> list[Tally]:
    """How many jobs wait, run, and have ended since then, as far as a bounded look sees."""
    sql = TALLY.replace("$of", "" if tenant is None else "and tenant = %(tenant)s")
    rows = session.read(sql, {"since": since, "limit": limit, "tenant": tenant, "now": now})
    return merged_tallies(
        Tally(queue, task, State(state), error, number, due, at.astimezone(UTC))
        for queue, task, state, error, number, due, at in rows
    )


def costs(session: Session, since: datetime, until: datetime, tenant: str | None) -> dict[tuple[str, str], int]:
    """The costs of the jobs that ended in this time, by tenant and task."""
    rows: list[Row] = session.read(COSTS, {"since": since, "until": until, "tenant": tenant})
    return {(tenant, task): int(micros) for tenant, task, micros in rows}


def is_id(id_: str) -> bool:
    """Whether a job can have this id."""
    return UUID.fullmatch(id_) is not None


def find_sql(where: JobFilter, limit: int, cursor: str | None, bare: bool = False) -> tuple[str, list[Any]]:
    """The query for a page: newest first; of failed and of cancelled jobs, the latest to end first."""
    conditions, values = _conditions(where)
    by_end = where.state in LISTED
    order = "finished_at desc, id desc" if by_end else "id desc"
    if cursor and by_end:
        ended, id_ = cursor.split(":")
        conditions.append("(finished_at, id) < (%s, %s::uuid)")
        values += [from_micros(int(ended)), _checked(id_)]
    elif cursor:
        conditions.append("id < %s::uuid")
        values.append(_checked(cursor))
    filters = f"where {' and '.join(conditions)}" if conditions else ""
    parts = [
        f"(select {', '.join(BARE_COLUMNS if bare else COLUMNS)} from {table} {filters} order by {order} limit %s)"
        for table in _tables(where.state)
    ]
    sql = f"select {JOB} from ({' union all '.join(parts)}) as found order by {order} limit %s"
    return sql, [*([*values, limit] * len(parts)), limit]


def _count_sql(where: JobFilter, now: datetime | None) -> tuple[str, list[Any]]:
    conditions, values = _conditions(where)
    filters = f"where {' and '.join(conditions)}" if conditions else ""
    parts: list[str] = []
    parameters: list[Any] = []
    for table in _tables(where.state):
        labels, moment = (_LABELS, [now]) if table == "@.jobs" else (_NO_LABELS, [])
        parts.append(f"select state, count(*), {labels} from {table} {filters} group by state")
        parameters += [*moment, *values]
    return " union all ".join(parts), parameters


def _storable(where: JobFilter) -> bool:
    """Whether a job can match at all: a text that cannot be stored cannot be found."""
    return all(storable(value) for value in where if isinstance(value, str))


def _checked(id_: str) -> str:
    if not is_id(id_):
        raise ValueError(f"{id_!r} is not a valid id")
    return id_


def _cursor(last: Job, where: JobFilter) -> str:
    if where.state in LISTED and last.finished_at is not None:
        return f"{micros(last.finished_at)}:{last.id}"
    return last.id


def _conditions(where: JobFilter) -> tuple[list[str], list[Any]]:
    """The filter as SQL. The state is written out, not bound, so that partial indexes are used."""
    plain = where._replace(state=None, expired=None)
    given = {name: value for name, value in plain._asdict().items() if value is not None}
    conditions = [f"{name} = %s" for name in given]
    if where.expired is not None:
        conditions.append("reason = 'expired'" if where.expired else "reason is distinct from 'expired'")
    if where.state is not None:
        conditions.insert(0, f"state = '{where.state.value}'")
    return conditions, list(given.values())


def _tables(state: State | None) -> tuple[str, ...]:
    if state is None:
        return ("@.jobs", "@.finished")
    return ("@.finished",) if state.final else ("@.jobs",)
