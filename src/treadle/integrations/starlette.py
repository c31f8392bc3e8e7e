"""Starlette: the lifespan, and our errors as answers. FastAPI has a module that knows more."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from treadle.app.answers import STATUS, answer_to
from treadle.errors import TreadleError
from treadle.integrations.asgi import WorkerOptions, lifespan, running
from treadle.integrations.http import JobView

__all__ = ["JobView", "WorkerOptions", "add_error_handlers", "lifespan", "running"]


def add_error_handlers(app: Starlette) -> None:
    """Answer 422, 404, 409, 503 or 504 to requests that end in an error of treadle that is not the program's fault."""
    for kind in STATUS:
        app.add_exception_handler(kind, _respond)


async def _respond(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TreadleError)  # noqa: S101 - Starlette calls it for what it was added for
    status, body, headers = answer_to(error)
    return JSONResponse(body, status, headers)
