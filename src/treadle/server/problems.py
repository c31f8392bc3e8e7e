"""Every error as a problem document (RFC 9457): what is wrong with which field, and the way out. Never a traceback."""

import logging
import secrets
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from treadle.app.answers import answer_to
from treadle.errors import ConfigError, InvalidInput, TreadleError

log = logging.getLogger("treadle.server")

MEDIA_TYPE = "application/problem+json"


class Refused(Exception):
    """A request that is refused before it reaches the app: the status, and what to do about it."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
        self.status, self.detail, self.headers, self.fields = status, detail, headers or {}, fields
        super().__init__(detail)


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **fields: Any) -> JSONResponse:
    """The answer for one error."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **fields}
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def add_problems(api: FastAPI) -> None:
    """Let every error of a request be a problem document."""
    api.add_exception_handler(Refused, _refused)
    api.add_exception_handler(TreadleError, _ours)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(Exception, _unexpected)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)  # noqa: S101 - it was added for these
    return problem(error.status, error.detail, error.headers, **error.fields)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TreadleError)  # noqa: S101
    answer = answer_to(error)
    if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        if isinstance(error, ConfigError):  # what a caller gave, in words that the app uses for its own settings too
            field, _, _ = str(error).partition(": ")
            return problem(422, str(error), field=field, error=type(error).__name__)
        return await _unexpected(request, error)
    body = answer.body
    return problem(answer.status, body.pop("detail"), answer.headers, **body)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """What the request's own form says is wrong with it; the first field, and all of them."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found = [_told(item) for item in error.errors()]
    first = found[0] if found else {"field": "body", "problem": "cannot be read"}
    return problem(
        422, f"{first['field']}: {first['problem']}", field=first["field"], error="InvalidInput", problems=found
    )


def _told(item: Any) -> dict[str, str]:
    place = [str(part) for part in item["loc"]]
    field = ".".join(place[1:]) or place[0]
    what = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        what = "is not known here; the API description at /api/v1/openapi.json lists what is"
    if item["type"] == "json_invalid":
        field, what = "body", f"is not valid JSON: {item.get('ctx', {}).get('error', '')}"
    return {"field": field, "problem": what}


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    ways = {404: "there is nothing at this address", 405: "this address does not take this method"}
    headers = dict(error.headers or {})
    return problem(error.status_code, ways.get(error.status_code, str(error.detail)), headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug of ours: the log has all of it under a number that the caller can give."""
    number = secrets.token_hex(6)
    log.error("error %s: %s %s", number, request.method, request.url.path, exc_info=error)
    return problem(500, f"an error of the server; its log has more under {number}", error_id=number)


def invalid(field: str, what: str) -> InvalidInput:
    """A value of a request that cannot be."""
    return InvalidInput(field, what)
