"""The plain path: jobs that simply succeeded, all of a turn in two statements.

What is written is what `lifecycle.settle` says of a success, behind the fence of the holder. What does not fit here (a
job with a key, one that something follows, one that is no longer ours) is left to the general path in settle.py.
"""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from treadle.engines.rows import COLUMNS
from treadle.engines.sqlite.connection import DATA_ERRORS
from treadle.engines.sqlite.rows import DELETE_JOBS, EVENT, IDS, JOB, packed
from treadle.model.clock import micros
from treadle.model.lifecycle import Success

_SUCCEEDED = {
    "state": "'succeeded'",
    "reason": "null",
    "result": "c.result",
    "error": "null",
    "started_at": "c.started_at",
    "finished_at": "max(?2, c.started_at)",
    "lease_until": "null",
    "revision": "j.revision + 1",
}

# It begins with the insert and not with the `with`: else Python's driver does not say how many rows it wrote.
FINISH_SUCCESSES = f"""
insert into treadle_finished ({JOB})
with c as materialized (
    select value ->> 0 as id, value ->> 1 as token, value ->> 2 as revision, value ->> 3 as started_at,
        value ->> 4 as result
    from json_each(?1)
)
select {", ".join(_SUCCEEDED.get(name, f"j.{name}") for name in COLUMNS)}
from c cross join treadle_jobs j on j.id = c.id
where j.state = 'running' and j.lease_token = c.token and j.revision = c.revision
and j.key_scope is null and j.on_end is null
"""  # noqa: S608

# A job is in one of the two tables, and in both only between these two statements.
WRITTEN = f"""
select f.id from treadle_finished f where f.id in {IDS} and exists (select 1 from treadle_jobs j where j.id = f.id)
"""  # noqa: S608

ADD_SUCCEEDED = f"""
insert into treadle_events ({EVENT})
select id, revision, ?2, 'succeeded', coalesce(nullif(worker, ''), 'worker'), '', tenant
from treadle_finished where id in (select value from json_each(?1))
"""  # noqa: S608


def write_successes(
    connection: sqlite3.Connection, successes: Sequence[Success], now: datetime, *, audit_all: bool
) -> set[str]:
    """Write those of these ends that are plain, in this transaction; the ids that were written."""
    try:
        rows = packed([(end.id, end.token, end.revision, micros(end.started_at), end.result_json) for end in successes])
        number = connection.execute(FINISH_SUCCESSES, (rows, micros(now))).rowcount
    except DATA_ERRORS:  # one of the values cannot be stored; nothing was written
        return set()
    ids = [end.id for end in successes]
    if number < len(ids):
        ids = [row[0] for row in connection.execute(WRITTEN, (json.dumps(ids),))]
    if ids:
        connection.execute(DELETE_JOBS, (json.dumps(ids),))
        if audit_all:
            connection.execute(ADD_SUCCEEDED, (json.dumps(ids), micros(now)))
    return set(ids)
