"""A problem document of the server as the error that it was there, so that it reads and ends as it does locally."""

from collections.abc import Mapping
from typing import Any

import treadle
from treadle import errors
from treadle.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    InvalidInput,
    KeyTaken,
    NotPossible,
    TreadleError,
)

HELD_BY = " is held by job "


def error_from(status: int, problem: Mapping[str, Any], url: str) -> TreadleError:
    """The error that this problem tells of."""
    detail, field = str(problem.get("detail") or f"the server answers {status}"), problem.get("field")
    kind = getattr(errors, str(problem.get("error", "")), None)
    if isinstance(kind, type) and issubclass(kind, InvalidInput):
        name = str(field or "value")
        return _made(kind, detail, field=name, problem=detail.removeprefix(f"{name}: "))
    if isinstance(kind, type) and issubclass(kind, TreadleError):
        holder = {"holder": detail.rpartition(HELD_BY)[2]} if kind is KeyTaken else {}
        return _made(kind, detail, **holder)
    return _by_status(status, detail, field, url)


def _made(kind: type[TreadleError], message: str, **facts: Any) -> TreadleError:
    """An error of this kind with these words: its own constructor would make others."""
    error = kind.__new__(kind, message)
    error.args = (message,)
    vars(error).update(facts)
    return error


def _by_status(status: int, detail: str, field: Any, url: str) -> TreadleError:
    """What the server refuses before it asks its app."""
    match status:
        case 401:
            return ConfigError(
                f"token: {url} does not know it, or it has expired or was revoked; where the server runs, "
                "`treadle tokens create NAME --scope operate` makes one"
            )
        case 404 | 405:
            return NotPossible(
                f"the server at {url} does not know this request: it is older than this treadle "
                f"({treadle.__version__}); upgrade the server"
            )
        case 403 | 409:
            return NotPossible(detail)
        case 421:
            return ConfigError(f"server: {url}: {detail}")
        case 429 | 503:
            return EngineUnavailable(f"{url}: {detail}")
        case _ if status < 500:
            name = str(field or "request")
            return InvalidInput(name, detail.removeprefix(f"{name}: "))
        case _:
            return EngineError(f"{url}: {detail}")
