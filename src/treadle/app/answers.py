"""Our errors as HTTP answers, for the server and the web frameworks."""

import logging
from typing import Any, NamedTuple

from treadle.errors import (
    EngineUnavailable,
    InvalidInput,
    JobFailed,
    JobNotFound,
    KeyTaken,
    NotPossible,
    ScheduleNotFound,
    TreadleError,
    UnknownTask,
    WaitTimeout,
)

log = logging.getLogger("treadle.integrations")

STATUS: dict[type[TreadleError], int] = {
    InvalidInput: 422,
    UnknownTask: 422,
    JobNotFound: 404,
    ScheduleNotFound: 404,
    JobFailed: 409,
    KeyTaken: 409,
    NotPossible: 409,
    EngineUnavailable: 503,
    WaitTimeout: 504,
}
"""The errors that a request can bring about, and their HTTP status. All others are faults of the program: 500."""


class HttpAnswer(NamedTuple):
    """The answer to a request that ended in one of our errors; the body is plain data."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def answer_to(error: TreadleError) -> HttpAnswer:
    """What a client hears of this error: `detail` says it, `field` names what was wrong, `error` is its class.

    The store's address and the driver's words stay in the log.
    """
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    body: dict[str, Any] = {"detail": str(error), "error": type(error).__name__}
    match error:
        case InvalidInput():
            return HttpAnswer(status, {**body, "field": error.field}, {})
        case UnknownTask():
            return HttpAnswer(status, {**body, "field": "task"}, {})
        case EngineUnavailable():
            log.warning("answered with 503: %s", error)
            return HttpAnswer(status, {**body, "detail": "the job store does not answer; try again"}, RETRY)
        case _:
            return HttpAnswer(status, body, {})


RETRY = {"Retry-After": "1"}
