"""Every error as a problem document (RFC 9457): what is wrong with which field, and the way out. Never a traceback."""

import json
import logging
import secrets
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from treadle.app.answers import answer_to
from treadle.errors import ConfigError, InvalidPayload, SchemaError, TreadleError

log = logging.getLogger("treadle.server")

MEDIA_TYPE = "application/problem+json"
ANSWERED = "treadle.answered"
"""In the scope of a request that ended in a bug of ours, once it is logged and answered."""


class Refused(Exception):
    """A request that is refused before it reaches the app: the status, and what to do about it."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
        self.status, self.detail, self.headers, self.fields = status, detail, headers or {}, fields
        super().__init__(detail)


class ProblemResponse(JSONResponse):
    """A problem document. It may repeat what was asked for, half a character for one, which UTF-8 cannot hold."""

    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **fields: Any) -> ProblemResponse:
    """The answer for one error."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **fields}
    return ProblemResponse(body, status, headers)


def add_problems(api: FastAPI) -> None:
    """Let every error of a request be a problem document."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return problem_of(request, error)

    for kind in (Refused, TreadleError, RequestValidationError, HTTPException, Exception):
        api.add_exception_handler(kind, answer)


def problem_of(request: Request, error: Exception) -> ProblemResponse:
    """The problem document of an error that ended a request."""
    if isinstance(error, Refused):
        return problem(error.status, error.detail, error.headers, **error.fields)
    if isinstance(error, TreadleError):
        return _ours(request, error)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return _http(error)
    return _unexpected(request, error)


def _ours(request: Request, error: TreadleError) -> ProblemResponse:
    answer = answer_to(error)
    if isinstance(error, SchemaError):
        return problem(503, "the store's schema does not fit; run `treadle migrate`", error="SchemaError")
    if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        if isinstance(error, ConfigError) and _is_configured(request):  # then it is about a value of the request
            field, _, _ = str(error).partition(": ")
            return problem(422, str(error), field=field, error=type(error).__name__)
        return _unexpected(request, error)
    body = answer.body
    if isinstance(error, InvalidPayload) and error.parts:
        body["problems"] = [{"field": field, "problem": words} for field, words in error.parts]
    return problem(answer.status, body.pop("detail"), answer.headers, **body)


def _is_configured(request: Request) -> bool:
    """Whether the app's own settings can be used: what is wrong with them is not told to callers."""
    try:
        request.app.state.treadle.engine  # noqa: B018 - made once, from the settings
    except ConfigError:
        return False
    return True


def _invalid(error: RequestValidationError) -> ProblemResponse:
    """What the request's own form says is wrong with it; the first field, and all of them."""
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


def _http(error: HTTPException) -> ProblemResponse:
    ways = {404: "there is nothing at this address", 405: "this address does not take this method"}
    headers = dict(error.headers or {})
    return problem(error.status_code, ways.get(error.status_code, str(error.detail)), headers)


def _unexpected(request: Request, error: Exception) -> ProblemResponse:
    """A bug of ours: the log has all of it under a number that the caller can give."""
    number = secrets.token_hex(6)
    request.scope[ANSWERED] = True
    log.error("error %s: %s %s", number, request.method, request.url.path, exc_info=error)
    return problem(500, f"an error of the server; its log has more under {number}", error_id=number)
