"""The key of a job that is edited or runs again. New jobs take theirs in the function take_keys of the schema."""

from datetime import datetime
from typing import Any

from treadle.engines.postgres.rows import packed, record, stored, unpack
from treadle.engines.scripts import Script
from treadle.errors import EngineUnavailable
from treadle.model import Job

_COLUMNS = ("tenant", "task", "key", "job", "scope", "until")

# A key is free if its window is over, or if the job that took it for a window is gone.
FREE_DEAD_KEY = f"""
{unpack(_COLUMNS)}
delete from @.keys k using c, t
where k.tenant = c.tenant and k.task = c.task and k.key = c.key
and (
    k.until <= t.now
    or k.scope = 'window'
        and not exists (select 1 from @.jobs j where j.id = k.job)
        and not exists (select 1 from @.finished f where f.id = k.job)
)
"""

TAKE_KEY = f"""
{unpack(_COLUMNS)}
insert into @.keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c
where not exists (select 1 from @.keys k where k.tenant = c.tenant and k.task = c.task and k.key = c.key)
on conflict do nothing
returning job::text
"""

HOLDER = f"""
{unpack(_COLUMNS)}
select k.job::text from c join @.keys k on k.tenant = c.tenant and k.task = c.task and k.key = c.key
"""

MAX_ROUNDS = 10  # tries at a key that others keep taking and freeing


def take_key(job: Job, now: datetime | None) -> Script[str]:
    """Take the key of this job; the id of the job that holds it now."""
    wanted = packed([_key_record(job)], now)
    for _ in range(MAX_ROUNDS):
        yield FREE_DEAD_KEY, wanted
        if (yield TAKE_KEY, wanted):
            return job.id
        for [holder] in (yield HOLDER, wanted):
            return str(holder)  # else it was freed just now: try again
    raise EngineUnavailable("a key keeps changing hands; repeating is safe")


def _key_record(job: Job) -> dict[str, Any]:
    return record(_COLUMNS, (job.tenant, job.task, job.key, job.id, job.key_scope, stored(job.key_until)))
