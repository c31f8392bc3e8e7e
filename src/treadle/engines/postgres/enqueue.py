"""Storing new jobs. A known id or a taken key answers with the job that was first.

The statements are a script: it yields (sql, its one text parameter) and is sent the rows. The engine runs it on its own
connections; `tx=` runs the same script in the caller's transaction. `@` stands for the schema.
"""

import json
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from treadle.engines.batches import Receipts, first_created, receipts_of, write_halved
from treadle.engines.postgres.connection import WRITE_ERRORS, refusal
from treadle.engines.postgres.queries import READ
from treadle.engines.postgres.rows import JSON, job_from, moment_in, new_record, row_in, stored
from treadle.engines.postgres.session import PostgresStore, Session
from treadle.engines.postgres.wire import Connection
from treadle.engines.rows import Row, on_end_text
from treadle.engines.scripts import Script, drive
from treadle.engines.values import Receipt
from treadle.model import AlikeJobs, Job
from treadle.model.alike import common_job, have_keys, ids_of


def selected(relation: str, names: Sequence[str]) -> str:
    """These columns of a relation, JSON texts as json."""
    return ", ".join(f"{relation}.{name}::json" if name in JSON else f"{relation}.{name}" for name in names)


# Stores new jobs with their keys and audit events: a function in migrations/0013_trace.pre.sql. A notification is a
# hint, and is sent now and then.
ADD_JOBS = "select @.add_jobs($1::text)"

# The same for one job without a key, on our own connections: nothing is packed and unpacked.
_TYPES = (
    "timestamptz", "text", "uuid", "text", "text", "timestamptz", "timestamptz", "text", "text", "text", "int", "int",
    "int", "float8", "float8", "float8", "float8", "timestamptz", "text", "text",
    "text",
)  # fmt: skip
_ADD_JOB = f"select @.add_job({', '.join(f'${number}::{kind}' for number, kind in enumerate(_TYPES, 1))})"

KEY_TIMEOUT = "10s"  # to wait for a key that another open transaction takes; less than we wait for the answer

_HIDDEN = "this id cannot be used; leave it out and treadle makes one"


def enqueue(store: PostgresStore, jobs: Sequence[Job], now: datetime | None) -> Sequence[Receipt]:
    """Store new jobs, a receipt each; a job that the server refuses does not affect the others."""
    if not jobs:
        return []
    now = store.clock.written(now)
    receipts = write_halved(jobs, lambda batch: _enqueue_batch(store, batch, now), _refused, WRITE_ERRORS)
    if first_created(receipts) is not None:
        store.notifications.wake()
    return receipts


def _enqueue_batch(store: PostgresStore, jobs: Sequence[Job], now: datetime | None) -> Sequence[Receipt]:
    session, channel = store.session, store.notifications.channel_to_notify()

    def write(connection: Connection) -> Sequence[Receipt]:
        if len(jobs) == 1 and jobs[0].key is None and not store.audit_all:
            at = session.call(connection, _ADD_JOB, _values(jobs[0], now, channel)).get_value(0, 0)
            if at is not None:
                return [Receipt(jobs[0].stored_at(moment_in(at)), created=True)]
        script = enqueue_script(store, jobs, now, channel, lock_timeout=KEY_TIMEOUT)
        return drive(script, partial(_run, session, connection))

    receipts = session.run(write, retry_for=session.retry_for)  # one statement, a transaction by itself
    created = first_created(receipts)
    if created is not None:
        store.clock.sync(created.job.created_at)
    return receipts


def _run(session: Session, connection: Connection, sql: str, text: str) -> list[Row]:
    """Run a statement of the script on our own connection; both are calls of functions."""
    result = session.call(connection, sql, [text])
    if sql == READ:
        return [row_in(result, number) for number in range(result.ntuples)]
    return [((result.get_value(0, 0) or b"").decode(),)]


def _values(job: Job, now: datetime | None, channel: str | None) -> tuple[Any, ...]:
    """The parameters of _ADD_JOB."""
    return (
        now, channel, job.id, job.payload_json, job.task, job.created_at, job.due_at, job.tenant, job.queue, job.lane,
        job.task_version, job.priority, *job.retry, job.timeout, job.expires_at, job.schedule, on_end_text(job.on_end),
        job.trace,
    )  # fmt: skip


def _refused(job: Job, error: Exception) -> Receipt:
    return Receipt(job, created=False, refused=refusal(error))


def enqueue_script(
    store: PostgresStore,
    jobs: Sequence[Job],
    now: datetime | None,
    channel: str | None = None,
    lock_timeout: str | None = None,
) -> Script[Sequence[Receipt]]:
    """The statements that store new jobs; with a `channel`, they notify it. A `lock_timeout` is for keys."""
    session, more = store.session, {"notify": channel, "lock_timeout": lock_timeout}
    return insert_jobs(jobs, now, audit_all=store.audit_all, more=more, isolated=session.isolated)


def insert_jobs(
    jobs: Sequence[Job],
    now: datetime | None,
    *,
    audit_all: bool,
    more: Mapping[str, str | None] = MappingProxyType({}),
    isolated: bool = False,
) -> Script[Sequence[Receipt]]:
    """The same without a store; `isolated`: there may be jobs that the caller cannot see."""
    if not jobs:
        return []
    wanted = jobs
    if len(set(ids_of(jobs))) < len(jobs):  # of two with one id, the first
        wanted = list({job.id: job for job in reversed(jobs)}.values())[::-1]
    [[text]] = yield ADD_JOBS, _request(wanted, now, {"audit_all": audit_all, **more})
    answer = json.loads(text)
    at = datetime.fromisoformat(answer["now"]).astimezone(UTC)
    first: dict[str, str] = answer.get("others") or {}  # of a job that was not stored: which one was first
    if not first and wanted is jobs:
        return Receipts(jobs, at)
    fresh = {job.id: job for job in wanted}
    found = yield from _read_first(first)
    stored_ = {id_: job if id_ in first else job.stored_at(at) for id_, job in fresh.items()}
    receipts = receipts_of(jobs, stored_, fresh.keys() - first.keys(), found)
    return _refuse_hidden(jobs, receipts, first.keys() - found.keys()) if isolated else receipts


def _request(jobs: Sequence[Job], now: datetime | None, more: Mapping[str, Any]) -> str:
    """The parameter of ADD_JOBS; jobs that differ in id and payload alone travel as two lists and what they share."""
    request: dict[str, Any] = {"now": stored(now), **more}
    like = common_job(jobs)
    if like is not None and like.key is None:
        request["ids"] = ids_of(jobs)
        request["payloads"] = jobs.payloads if isinstance(jobs, AlikeJobs) else [job.payload_json for job in jobs]
        request["job"] = new_record(like)
    else:
        request["rows"] = [new_record(job) for job in jobs]
        request["keyed"] = have_keys(jobs)
    return _encode(request)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _refuse_hidden(jobs: Sequence[Job], receipts: Sequence[Receipt], hidden: Set[str]) -> list[Receipt]:
    """The receipts, where jobs of another tenant have the `hidden` ids."""
    return [
        receipt._replace(refused=_HIDDEN) if job.id in hidden else receipt
        for job, receipt in zip(jobs, receipts, strict=True)
    ]


def _read_first(first: Mapping[str, str]) -> Script[dict[str, Job]]:
    """By the id asked for: the job that was first. A pruned one, or one of another tenant, is not found."""
    if not first:
        return {}
    rows = yield READ, json.dumps(list(first.values()))
    jobs = {row[0]: job_from(row) for row in rows}
    return {id_: jobs[holder] for id_, holder in first.items() if holder in jobs}
