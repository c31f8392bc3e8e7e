"""What the web frameworks share: a job as a JSON answer."""

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from treadle.model import Job, Reason, State


class ErrorView(BaseModel):
    """What went wrong in the last attempt; without the traceback, which is not for clients."""

    model_config = ConfigDict(from_attributes=True)

    type: str
    message: str
    attempt: int
    at: str


class ProgressView(BaseModel):
    """How far the handler says it is."""

    model_config = ConfigDict(from_attributes=True)

    fraction: float
    note: str


class JobView(BaseModel):
    """A job as a web client may see it: how it stands and what came of it, without payload, traceback and lease.

    Derive from it to show more fields of `Job`, under their own names. `app.view(job)` has them all.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    task: str
    state: State
    reason: Reason | None
    result: Any
    error: ErrorView | None
    progress: ProgressView | None
    cancel_requested: bool
    attempt: int
    max_attempts: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls.model_validate(job)
