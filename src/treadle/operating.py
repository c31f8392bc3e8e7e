"""What is done to a job from outside: decided on the job as it is, and decided again if it has moved on meanwhile."""

import time
from collections.abc import Callable
from datetime import datetime

from treadle.engines.base import Engine, Ruling
from treadle.errors import NotPossible
from treadle.looking import get
from treadle.model import Change, Event, Job, check_name
from treadle.records import Record, subject
from treadle.tx import pauses


def operate(engine: Engine, job_id: str, decide: Callable[[Job, datetime], Change], *, actor: str) -> Job:
    """Write what `decide` makes of the job and the time; the job afterwards."""
    check_name("actor", actor)
    for pause in pauses():
        change = decide(get(engine, job_id), engine.now())
        [verdict] = engine.turn([change]).verdicts
        if verdict.ruling is Ruling.APPLIED:
            return get(engine, job_id)
        if verdict.ruling is Ruling.REFUSED:
            by = f" by job {verdict.holder}; wait for it, or cancel it first" if verdict.holder else ""
            raise NotPossible(f"job {job_id}: {verdict.why}{by}")
        if verdict.ruling is Ruling.LOST and _noted(engine, change):
            return get(engine, job_id)  # by us: the answer was lost and the write repeated
        if verdict.ruling is Ruling.BUSY:
            time.sleep(pause)
    raise NotPossible(f"job {job_id} keeps changing, or an open transaction holds it; try again")


def first_revision(engine: Engine, record: Record) -> int:
    """Where a new record begins to count: its trail may tell of an earlier one of the same name."""
    return max((line.revision for line in engine.events(subject(record))), default=-1) + 1


def _noted(engine: Engine, change: Change) -> bool:
    """Whether the audit trail has this very change."""
    job = change.after
    return told(engine, Event(job.id, job.revision, change.at, change.what, change.actor, change.note, job.tenant))


def told(engine: Engine, line: Event) -> bool:
    """Whether the audit trail has this very line: then the write was done, and its answer was lost."""
    ours = (line.revision, line.what, line.actor, line.at)
    return any((one.revision, one.what, one.actor, one.at) == ours for one in engine.events(line.job_id))
