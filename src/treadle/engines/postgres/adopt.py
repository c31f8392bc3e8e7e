"""Jobs that come from another table with their past: in one statement, with their keys and their events."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from treadle.engines.batches import write_halved
from treadle.engines.postgres import queries
from treadle.engines.postgres.connection import WRITE_ERRORS
from treadle.engines.postgres.enqueue import selected
from treadle.engines.postgres.rows import EDIT, edit_record, packed, unpack
from treadle.engines.postgres.session import LOCK_TIMEOUT, PostgresStore
from treadle.engines.postgres.settle import NOTED, refused_or_busy
from treadle.engines.rows import COLUMNS
from treadle.engines.values import APPLIED, Ruling, Verdict
from treadle.model import Change

_JOB = ", ".join(COLUMNS)
_VALUES = ", ".join(selected("c", [name]) for name in COLUMNS)

# `fresh` is what nobody has heard of: no job has the id, and no event is about one that had it and is gone. Of two that
# want one key the first gets it; one that is dead keeps nobody away.
ADOPT = f"""
{unpack((*EDIT, "takes"))},
fresh as materialized (
    select c.* from c
    where (select j.id from @.jobs j where j.id = c.id) is null
    and (select f.id from @.finished f where f.id = c.id) is null
    and (select e.job from @.events e where e.job = c.id limit 1) is null
),
took as (
    insert into @.keys as k (tenant, task, key, job, scope, until)
    select distinct on (tenant, task, key) tenant, task, key, id, key_scope, key_until from fresh where takes
    order by tenant, task, key, id
    on conflict (tenant, task, key) do update set job = excluded.job, scope = excluded.scope, until = excluded.until
    where k.until <= (select now from t)
    or k.scope = 'window'
        and not exists (select 1 from @.jobs j where j.id = k.job)
        and not exists (select 1 from @.finished f where f.id = k.job)
    returning job
),
mine as materialized (select c.* from fresh c where c.takes is null or c.id = any (array(select job from took))),
live as (
    insert into @.jobs ({_JOB}, later)
    select {_VALUES}, c.state = 'pending' and c.lane <> '' and c.due_at > t.now
    from mine c cross join t where c.state in ('pending', 'running')
    on conflict (id) do nothing
    returning id
),
ended as (
    insert into @.finished ({_JOB}) select {_VALUES} from mine c where c.state not in ('pending', 'running')
    on conflict (id) do nothing
    returning id
),
written as (select id from live union all select id from ended),{NOTED}"""

HAS_PAST = """
with wanted as materialized (select value::uuid as id from json_array_elements_text($1::text::json))
select w.id::text from wanted w where exists (select 1 from @.events e where e.job = w.id)
"""


def adopt(store: PostgresStore, changes: Sequence[Change], now: datetime | None) -> list[Verdict]:
    """Write these jobs, a verdict each; one that the server refuses does not affect the others."""

    def write(batch: Sequence[Change]) -> list[Verdict]:
        text = packed([_record(change) for change in batch], now)
        rows = store.session.transact(
            lambda connection: store.session.execute(connection, ADOPT, text), lock_timeout=LOCK_TIMEOUT
        )
        return _verdicts(store, batch, {row[0] for row in rows})

    return write_halved(changes, write, refused_or_busy, WRITE_ERRORS)


def _record(change: Change) -> dict[str, Any]:
    record = edit_record(change, audit_all=True)
    return record | {"takes": True} if change.takes_key else record


def _verdicts(store: PostgresStore, changes: Sequence[Change], written: set[str]) -> list[Verdict]:
    """A verdict each, in order: of one that was not written, whether its id is known or its key is taken."""
    left = [change.id for change in changes if change.id not in written]
    found = dict(zip(left, queries.get(store.session, left), strict=True)) if left else {}
    gone = [change.id for change in changes if change.takes_key and change.id in found and found[change.id] is None]
    known = {id_ for (id_,) in store.session.send(HAS_PAST, json.dumps(gone))} if gone else set()
    return [
        APPLIED
        if change.id in written
        else Verdict(Ruling.REFUSED, why=f"key {change.after.key!r} is taken")
        if change.id in gone and change.id not in known
        else Verdict(Ruling.LOST, found[change.id])
        for change in changes
    ]
