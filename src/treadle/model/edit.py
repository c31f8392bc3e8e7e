"""What an operator wants a job to be like."""

from datetime import datetime
from typing import Any, NamedTuple

from treadle.model.job import Job

PAYLOAD_EDITED = "payload edited"
"""What the audit trail says of another payload: that, and nothing of what is in it."""


class NewPayload(NamedTuple):
    """What an operator puts in place of a payload: JSON, and the version of the task that it was checked against."""

    json: str
    version: int | None = None  # None: it was not checked


class Edit(NamedTuple):
    """What an operator wants a pending job to be like; None: as it is."""

    queue: str | None = None
    lane: str | None = None
    priority: int | None = None
    due_at: datetime | None = None
    payload: NewPayload | None = None


def new_payload(job: Job, payload: NewPayload | None) -> dict[str, Any]:
    """The fields that another payload changes; none if it is the one that is there."""
    if payload is None or payload.json == job.payload_json:
        return {}
    return {"payload_json": payload.json, "task_version": payload.version or job.task_version}
