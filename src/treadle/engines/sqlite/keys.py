"""Who holds a key: the statements that take, read and free one. A transaction that takes a key writes its job too."""

from datetime import datetime

from treadle.engines.rows import Row
from treadle.engines.sqlite.rows import IDS, unpack
from treadle.model import Job
from treadle.model.clock import micros

_KEY = ("tenant", "task", "key", "job", "scope", "until", "now")

# A key whose window is over, or whose job is gone, keeps nobody away.
FREE_DEAD_KEYS = f"""
{unpack(_KEY)}
delete from treadle_keys
where (tenant, task, key) in (select tenant, task, key from c)
and (
    until <= (select min(now) from c)
    or scope = 'window'
        and not exists (select 1 from treadle_jobs j where j.id = treadle_keys.job)
        and not exists (select 1 from treadle_finished f where f.id = treadle_keys.job)
)
"""  # noqa: S608

TAKE_KEYS = f"""
{unpack(_KEY)}
insert into treadle_keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c where true
on conflict do nothing
returning job
"""  # noqa: S608


def take_if_new(job: str, now: str) -> str:
    """The end of an insert that takes keys, dead ones too; a job that is known already takes nothing."""
    return f"""
where not exists (select 1 from treadle_jobs j where j.id = {job})
and not exists (select 1 from treadle_finished f where f.id = {job})
on conflict do update set job = excluded.job, scope = excluded.scope, until = excluded.until
where treadle_keys.until <= {now}
or treadle_keys.scope = 'window'
    and not exists (select 1 from treadle_jobs j where j.id = treadle_keys.job)
    and not exists (select 1 from treadle_finished f where f.id = treadle_keys.job)
"""  # noqa: S608 - its arguments are ours


# A key must stand here once: a second job would take it for dead while the first is not stored yet.
TAKE_NEW_KEYS = f"""
{unpack(_KEY)}
insert into treadle_keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c
{take_if_new("c.job", "(select min(now) from c)")}
returning job
"""  # noqa: S608

HOLDERS = f"""
{unpack(_KEY)}
select c.job, k.job from c cross join treadle_keys k on (k.tenant, k.task, k.key) = (c.tenant, c.task, c.key)
"""  # noqa: S608

RELEASE_KEYS = f"delete from treadle_keys where job in {IDS} and scope in ('pending', 'active')"  # noqa: S608

DELETE_KEYS = f"delete from treadle_keys where job in {IDS}"  # noqa: S608


def key_row(job: Job, now: datetime) -> Row:
    """A job's key as these statements take it."""
    return (job.tenant, job.task, job.key, job.id, job.key_scope, micros(job.key_until), micros(now))
