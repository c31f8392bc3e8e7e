"""The rows beside the jobs: schedules, pauses, workers and the like.

A function that is given `query(sql, values)` runs its queries by it; `@` stands for the schema.
"""

import time
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from treadle.engines.postgres.audit import write_event
from treadle.engines.postgres.connection import WRITE_ERRORS, is_locked, refusal
from treadle.engines.postgres.enqueue import enqueue_script
from treadle.engines.postgres.rows import as_given, moment, storable
from treadle.engines.postgres.session import LOCK_TIMEOUT, PostgresStore, Query
from treadle.engines.postgres.wire import Connection
from treadle.engines.records import JSONS, TABLES, UUIDS, Table, chosen, row_from, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.engines.values import Overwrite, Receipt, Saved
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Event, Job
from treadle.model.backoff import Backoff
from treadle.model.records import KEYS, Pause, Record, Schedule

R = TypeVar("R", bound=Record)

CLAIMS_TIMEOUT = 30.0  # seconds that a pause waits for the claims that began before it
_CLAIMS_POLL = Backoff(0.002, 0.05)  # the waits between two reads of them

# ------------------------------------------------------------------------------------------------ reading


def read(query: Query, kind: type[R], tenant: str | None = None, name: str | None = None) -> list[R]:
    table, wanted = TABLES[kind], chosen(kind, tenant, name)
    if not all(map(storable, wanted.values())):
        return []
    only = "".join(f" {'and' if place else 'where'} {column} = %s" for place, column in enumerate(wanted))
    sql = f"select {_selected(table)} from @.{table.name}{only} order by {_in_order(kind)}"
    return [read_record(kind, row, moment) for row in query(sql, list(wanted.values()))]


def _selected(table: Table) -> str:
    texts = {*JSONS, *UUIDS, "on_end"}
    return ", ".join(f"{name}::text" if name in texts else name for name in table.columns)


def _in_order(kind: type[Any]) -> str:
    """Their keys, sorted as every engine does, whatever the collation of the database is."""
    return ", ".join(name if name in ("number", "minute") else f'{name} collate "C"' for name in KEYS[kind])


def due(query: Query, limit: int, ahead: float, now: datetime | None) -> list[Schedule]:
    sql = f"""
    with t as materialized (
        select coalesce(%(now)s::timestamptz, statement_timestamp()) + make_interval(secs => %(ahead)s) as until
    )
    select {_selected(TABLES[Schedule])} from (
        (select * from @.schedules where enabled and next_at is null limit %(limit)s)
        union all
        (select * from @.schedules where enabled and next_at <= (select until from t) order by next_at limit %(limit)s)
    ) s
    order by next_at nulls first, {_in_order(Schedule)} limit %(limit)s
    """
    rows = query(sql, {"now": now, "ahead": float(ahead), "limit": limit})
    return [read_record(Schedule, row, moment) for row in rows]


# ------------------------------------------------------------------------------------------------ writing


def save(
    store: PostgresStore,
    record: Record,
    before: Record | Overwrite | None,
    event: Event | None,
    job: Job | None,
    now: datetime | None,
) -> Saved:
    """Write a record, its audit event and the job it makes, if what is stored is still `before`."""
    saved = _save(store, record, before, event, job, store.clock.written(now))
    if isinstance(record, Pause):  # also if it was there already: another call may have stored it and not waited
        await_claims(store.session.read, "the pause is stored")
    if saved.receipt is not None and saved.receipt.created:
        store.notifications.wake()
    return saved


def _save(
    store: PostgresStore,
    record: Record,
    before: Record | Overwrite | None,
    event: Event | None,
    job: Job | None,
    now: datetime | None,
) -> Saved:
    def write(connection: Connection) -> Saved:
        done = write_record(partial(store.session.query, connection), record, before, event)
        if not done or job is None:
            return Saved(done)
        script = enqueue_script(store, [job], now, store.notifications.channel_to_notify())
        return Saved(True, store.session.drive(connection, script)[0])

    try:
        return store.session.transact(write, lock_timeout=LOCK_TIMEOUT)
    except WRITE_ERRORS as error:
        if is_locked(error):
            return Saved(done=False)  # another open transaction changes it, or has the job's key
        if job is None:
            raise
        why = refusal(error)
        saved = _save(store, record, before, event, None, now)
        return saved._replace(receipt=Receipt(job, created=False, refused=why)) if saved.done else saved


def write_record(query: Query, record: Record, before: Record | Overwrite | None, event: Event | None) -> bool:
    """Write a record and its audit event if what is stored is still `before`; whether they were written."""
    done = _write(query, record, before)
    if done:
        write_event(query, event)
    return done


def _write(query: Query, record: Record, before: Record | Overwrite | None) -> bool:
    table, row = table_of(record), row_from(record, as_given)
    columns, marks, key = ", ".join(table.columns), ", ".join(["%s"] * len(row)), ", ".join(table.key)
    if before is None or isinstance(before, Overwrite):
        others = ", ".join(f"{name} = excluded.{name}" for name in table.columns if name not in table.key)
        verb = "nothing" if before is None else f"update set {others}"
        sql = f"insert into @.{table.name} ({columns}) values ({marks}) on conflict ({key}) do {verb} returning 1"
        return bool(query(sql, row))
    same = [f"{name} = %s" for name in table.key] + [f"{name} is not distinct from %s" for name in table.compared]
    was = [value_from(name, getattr(before, name), as_given) for name in (*table.key, *table.compared)]
    sql = f"update @.{table.name} set ({columns}) = ({marks}) where {' and '.join(same)} returning 1"
    return bool(query(sql, [*row, *was]))


def drop(store: PostgresStore, record: Record, event: Event | None) -> bool:
    """Delete a record if it still has this revision; whether this call did it."""
    session, notifications = store.session, store.notifications

    def write(connection: Connection) -> bool:
        done = _delete(partial(session.query, connection), record, event)
        if done and isinstance(record, Pause):
            session.query(connection, "select pg_notify(%s, 'resumed')", [notifications.channel])
        return done

    try:
        done = session.transact(write, lock_timeout=LOCK_TIMEOUT)
    except EngineError as error:
        if not is_locked(error):
            raise
        return False
    notifications.wake()
    return done


def _delete(query: Query, record: Record, event: Event | None) -> bool:
    table = table_of(record)
    names = [*table.key, *(name for name in ("revision",) if name in table.columns)]
    where = " and ".join(f"{name} = %s" for name in names)
    values = [getattr(record, name) for name in names]
    done = bool(query(f"delete from @.{table.name} where {where} returning 1", values))
    if done:
        write_event(query, event)
    return done


# ------------------------------------------------------------------------------------------- the gate

_CLAIMS = """
select l.virtualtransaction from pg_locks l
where l.locktype = 'relation' and l.database = (select oid from pg_database where datname = current_database())
and l.relation = '@.pauses'::regclass and l.mode = 'RowShareLock' and l.granted
and l.pid is distinct from pg_backend_pid()
"""


def await_claims(query: Query, done: str) -> bool:
    """Wait until the claims that are under way are over; whether there were any. `done` is said if that takes too long.

    They may not have seen a new pause. A claim that begins later sees it: it locks the table before it reads it (the
    function claim).
    """
    deadline, reads = time.monotonic() + CLAIMS_TIMEOUT, 0
    waits = left = {row[0] for row in query(_CLAIMS, [])}
    while left:
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                f"{done}, but a claim that began before has not ended after {CLAIMS_TIMEOUT:g} s; repeating is safe"
            )
        time.sleep(_CLAIMS_POLL.delay(reads))
        reads += 1
        left = left & {row[0] for row in query(_CLAIMS, [])}
    return bool(waits)
