"""Repeats of a request: with an Idempotency-Key it stores one job, however often it comes."""

import json
from typing import Any

from treadle.model import EventKind, Job
from treadle.model.edit import PAYLOAD_EDITED
from treadle.model.records import derived_id
from treadle.server.caller import Caller
from treadle.server.forms import NewJob
from treadle.server.problems import Refused
from treadle.tasks.task import Task

MAX_IDEMPOTENCY_KEY = 200


def repeated_id(caller: Caller, key: str) -> str:
    """The id of the job that this caller stores under this key."""
    return derived_id(f"idempotency {caller.identity} {key}")


def check_repeat(caller: Caller, form: NewJob, task: Task[..., Any], job: Job) -> None:
    """Refuse a request that is not the one by which this job was stored, as far as jobs do not change.

    Where a payload is made anew each time, by a default that is a random number for one, it cannot be compared. Nor can
    it be once an operator has edited it.
    """
    tenant = form.tenant or caller.who.tenant or "default"
    if (job.task, job.tenant) == (form.task, tenant):
        payloads = [_payload(task, form) for _ in range(2)]
        if payloads[0] == job.payload or payloads[0] != payloads[1] or _was_edited(caller, job):
            return
    raise other_request()


def other_request() -> Refused:
    """The answer to a key that was used before, for something else."""
    detail = "Idempotency-Key: it was used for another request; take a new one for each job"
    return Refused(422, detail, field="Idempotency-Key")


def _was_edited(caller: Caller, job: Job) -> bool:
    """Whether somebody has given the job another payload since: then nobody knows what it was stored with."""
    events = caller.tasks.engine.events(job.id)
    return any(event.kind is EventKind.REPLACED or PAYLOAD_EDITED in event.note for event in events)


def _payload(task: Task[..., Any], form: NewJob) -> Any:
    return json.loads(task.payload.encode_value({} if form.payload is None else form.payload))
