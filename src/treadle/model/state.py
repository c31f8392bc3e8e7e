"""Where a job stands, and why it ended."""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


class Reason(StrEnum):
    """Why a job ended failed or cancelled."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNKNOWN_TASK = "unknown_task"
    INVALID_PAYLOAD = "invalid_payload"
    INVALID_RESULT = "invalid_result"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    BY_REQUEST = "by_request"

    @property
    def spent(self) -> bool:
        """Whether the job has failed because it had no attempt left."""
        return self in (Reason.EXHAUSTED, Reason.TIMEOUT, Reason.CRASHED)
