"""Storing new jobs. A known id or a taken key answers with the job that was first.

The statements are a script: it yields (sql, its one text parameter) and is sent the rows. The engine runs it on its own
connections; `tx=` runs the same script in the caller's transaction. `@` stands for the schema.
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any

from treadle.engines.batches import receipts_of, write_halved
from treadle.engines.postgres.connection import WRITE_ERRORS, Connection, refusal
from treadle.engines.postgres.queries import IDS, READ
from treadle.engines.postgres.rows import JSON, job_from, job_record, moment, packed, record, stored, unpack
from treadle.engines.postgres.session import PostgresStore
from treadle.engines.rows import NEW
from treadle.engines.scripts import Script
from treadle.engines.values import Receipt
from treadle.errors import EngineUnavailable
from treadle.model import Job


def selected(relation: str, names: Sequence[str]) -> str:
    """These columns of a relation, JSON texts as json."""
    return ", ".join(f"{relation}.{name}::json" if name in JSON else f"{relation}.{name}" for name in names)


# A row that is there already is skipped by `not exists`, because `on conflict` alone would wait for a transaction that
# has it locked. An id that was ever used is not taken again: a repeated enqueue must not run a finished job twice. (The
# trigger guard_jobs checks this again, for a job that finishes while this runs.) A notification is a hint, and is sent
# now and then.
_REST = tuple(name for name in NEW if name not in ("created_at", "due_at"))
INSERT = f"""
{unpack(NEW)},
made as (
    insert into @.jobs (created_at, due_at, {", ".join(_REST)})
    select t.now, case when c.due_at > c.created_at then c.due_at else t.now end, {selected("c", _REST)}
    from c cross join t
    where not exists (select 1 from @.finished f where f.id = c.id)
    and not exists (select 1 from @.jobs j where j.id = c.id)
    order by c.id
    on conflict (id) do nothing
    returning id, created_at, due_at, queue
)
select id::text, created_at, due_at,
    case when t.notify is not null and due_at <= created_at then pg_notify(t.notify, queue)::text end
from made cross join t
"""

KNOWN = f"""
with wanted as materialized {IDS}
select j.id::text from @.jobs j where j.id in (select id from wanted)
union all
select f.id::text from @.finished f where f.id in (select id from wanted)
"""

_KEY_COLUMNS = ("tenant", "task", "key", "job", "scope", "until", "position")

# A key is free if its window is over, or if the job that took it for a window is gone.
FREE_DEAD_KEYS = f"""
{unpack(_KEY_COLUMNS)}
delete from @.keys k using c, t
where k.tenant = c.tenant and k.task = c.task and k.key = c.key
and (
    k.until <= t.now
    or k.scope = 'window'
        and not exists (select 1 from @.jobs j where j.id = k.job)
        and not exists (select 1 from @.finished f where f.id = k.job)
)
"""

TAKE_KEYS = f"""
{unpack(_KEY_COLUMNS)}
insert into @.keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c
where not exists (select 1 from @.keys k where k.tenant = c.tenant and k.task = c.task and k.key = c.key)
order by position
on conflict do nothing
returning job::text
"""

HOLDERS = f"""
{unpack(_KEY_COLUMNS)}
select c.job::text, k.job::text
from c join @.keys k on k.tenant = c.tenant and k.task = c.task and k.key = c.key
"""

NOTE_ENQUEUED = f"""
{unpack(("job", "actor", "tenant"))}
insert into @.events (job, revision, at, kind, actor, note, tenant)
select c.job, 0, t.now, 'enqueued', c.actor, '', c.tenant from c cross join t
"""

RELEASE_KEYS = f"delete from @.keys where job in {IDS}"

MAX_KEY_ROUNDS = 10  # tries at a key that others keep taking and freeing

_HIDDEN = "this id cannot be used; leave it out and treadle makes one"


def enqueue(store: PostgresStore, jobs: Sequence[Job], now: datetime | None) -> list[Receipt]:
    """PostgresStore new jobs, a receipt each; a job that the server refuses does not affect the others."""
    if not jobs:
        return []
    now = store.clock.written(now)
    receipts = write_halved(jobs, lambda batch: _enqueue_batch(store, batch, now), _refused, WRITE_ERRORS)
    if any(receipt.created for receipt in receipts):
        store.notifications.wake()
    return receipts


def _enqueue_batch(store: PostgresStore, jobs: Sequence[Job], now: datetime | None) -> list[Receipt]:
    session, channel = store.session, store.notifications.channel_to_notify()

    def write(connection: Connection) -> list[Receipt]:
        return session.drive(connection, enqueue_script(store, jobs, now, channel))

    # Without keys and audit events the insert is one statement, which is a transaction by itself.
    plain = not store.audit_all and all(job.key is None for job in jobs)
    receipts = (session.run if plain else session.transact)(write, retry_for=session.retry_for)
    created = next((receipt.job for receipt in receipts if receipt.created), None)
    if created is not None:
        store.clock.sync(created.created_at)
    return receipts


def _refused(job: Job, error: Exception) -> Receipt:
    return Receipt(job, created=False, refused=refusal(error))


def enqueue_script(
    store: PostgresStore, jobs: Sequence[Job], now: datetime | None, channel: str | None = None
) -> Script[list[Receipt]]:
    """The statements that store new jobs; with a `channel`, they notify it."""
    session, audit_all = store.session, store.audit_all
    return insert_jobs(jobs, now, audit_all=audit_all, channel=channel, isolated=session.isolated)


def insert_jobs(
    jobs: Sequence[Job], now: datetime | None, *, audit_all: bool, channel: str | None = None, isolated: bool = False
) -> Script[list[Receipt]]:
    """The same without a store; `isolated`: there may be jobs that the caller cannot see."""
    fresh: dict[str, Job] = {}
    for job in jobs:
        fresh.setdefault(job.id, job)
    wanted = yield from _new_with_keys(fresh.values())
    first = yield from take_keys(wanted, now)  # id asked for -> id of the job that was first
    new = [job for job in fresh.values() if job.id not in first]
    created = yield from _insert(new, now, channel)
    yield from _release_keys([job.id for job in wanted if job.id not in first and job.id not in created], isolated)
    if audit_all and created:
        events = [{"job": id_, "actor": "enqueue", "tenant": job.tenant} for id_, job in created.items()]
        yield NOTE_ENQUEUED, packed(events, now)
    first.update({job.id: job.id for job in new if job.id not in created})
    found = yield from _read_first(first)
    receipts = receipts_of(jobs, fresh | created, set(created), found)
    return _refuse_hidden(jobs, receipts, first.keys() - found.keys()) if isolated else receipts


def _insert(jobs: Sequence[Job], now: datetime | None, channel: str | None) -> Script[dict[str, Job]]:
    """Insert these jobs; by id, those that were not there yet, with the server's time in them."""
    if not jobs:
        return {}
    rows = yield INSERT, packed((job_record(job, NEW) for job in jobs), now, notify=channel)
    by_id = {job.id: job for job in jobs}
    return {id_: by_id[id_].evolve(created_at=moment(at), due_at=moment(due)) for id_, at, due, _ in rows}


def _refuse_hidden(jobs: Sequence[Job], receipts: Sequence[Receipt], hidden: Set[str]) -> list[Receipt]:
    """The receipts, where jobs of another tenant have the `hidden` ids."""
    return [
        receipt._replace(refused=_HIDDEN) if job.id in hidden else receipt
        for job, receipt in zip(jobs, receipts, strict=True)
    ]


def _new_with_keys(jobs: Iterable[Job]) -> Script[list[Job]]:
    """The jobs with a key whose id is not known yet, in the order in which every caller takes keys."""
    keyed = [job for job in jobs if job.key is not None]
    known = {row[0] for row in (yield KNOWN, json.dumps([job.id for job in keyed]))} if keyed else set()
    return sorted((job for job in keyed if job.id not in known), key=lambda job: (job.tenant, job.task, job.key))


def _release_keys(ids: Sequence[str], isolated: bool) -> Script[None]:
    """Give back the keys of jobs that were not inserted after all."""
    if ids and not isolated:
        # The job was stored and pruned since we looked; nothing would ever free the key that we took for it just now.
        raise EngineUnavailable("a job of this id ended just now; repeating is safe")
    if ids:  # jobs of another tenant have these ids
        yield RELEASE_KEYS, json.dumps(ids)


def _read_first(first: Mapping[str, str]) -> Script[dict[str, Job]]:
    """By the id asked for: the job that was first. A pruned one, or one of another tenant, is not found."""
    if not first:
        return {}
    rows = yield READ, json.dumps(list(first.values()))
    jobs = {row[0]: job_from(row) for row in rows}
    return {id_: jobs[holder] for id_, holder in first.items() if holder in jobs}


def take_keys(jobs: Sequence[Job], now: datetime | None) -> Script[dict[str, str]]:
    """Take the keys of these jobs, in an order that all callers share; for a taken key, the id of its holder."""
    wanted = [{**_key_record(job), "position": position} for position, job in enumerate(jobs)]
    first: dict[str, str] = {}
    for _ in range(MAX_KEY_ROUNDS):
        if not wanted:
            return first
        yield FREE_DEAD_KEYS, packed(wanted, now)
        won = {row[0] for row in (yield TAKE_KEYS, packed(wanted, now))}
        wanted = [row for row in wanted if row["job"] not in won]
        if wanted:
            first.update(dict((yield HOLDERS, packed(wanted, now))))
            wanted = [row for row in wanted if row["job"] not in first]  # freed just now: try again
    raise EngineUnavailable("a key keeps changing hands; repeating is safe")


def _key_record(job: Job) -> dict[str, Any]:
    return record(_KEY_COLUMNS[:-1], (job.tenant, job.task, job.key, job.id, job.key_scope, stored(job.key_until)))
