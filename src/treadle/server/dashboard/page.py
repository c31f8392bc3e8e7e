"""What every page shares: its templates, its headers, and errors told as pages in the API's own words."""

import hashlib
import json
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from treadle.errors import TreadleError
from treadle.server.auth import StoreAuth
from treadle.server.caller import Caller
from treadle.server.dashboard import charts, words
from treadle.server.problems import Refused, problem_of

HERE = Path(__file__).parent
POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
ERRORS = (TreadleError, Refused, RequestValidationError)
"""What a page or an act can be refused with; `told` says it."""

PAGES = (  # path, name, the key that goes there after g
    ("/", "Overview", "o"),
    ("/jobs", "Jobs", "j"),
    ("/failures", "Failures", "f"),
    ("/queues", "Queues", "q"),
    ("/workers", "Workers", "w"),
    ("/schedules", "Schedules", "s"),
    ("/audit", "Audit", "a"),
    ("/costs", "Costs", "c"),
    ("/doctor", "Doctor", "d"),
)


class PageRoute(APIRoute):
    """A route of the dashboard: an error is a page, and somebody unknown is asked to sign in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "include_in_schema": False})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except (*ERRORS, HTTPException) as error:
                return _refused(request, error)

        return handle_as_page


class Url:
    """Addresses of this server's pages, also where it is mounted below a path."""

    def __init__(self, request: Request) -> None:
        self._root = str(request.scope.get("root_path", ""))

    def __call__(self, path: str, /, **query: Any) -> str:
        """The address of a page; parameters that are None or empty are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self._root}{path}" + (f"?{urlencode(given)}" if given else "")

    def static(self, name: str) -> str:
        """The address of a file, which changes with the file: browsers keep it for ever."""
        return f"{self._root}/static/{name}?v={static_files()[name][1]}"


def render(
    request: Request, template: str, caller: Caller | None, /, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """A page. Templates see the values, `url`, and what the frame around them shows."""
    page = environment().get_template(template)
    shown = {"caller": _shown(request, caller), "url": Url(request), "here": _path(request), "pages": PAGES, **values}
    return HTMLResponse(page.render(shown), status, {"content-security-policy": POLICY})


def told(request: Request, error: Exception) -> dict[str, Any]:
    """What an act was refused with: the API's own problem document."""
    found: dict[str, Any] = json.loads(bytes(problem_of(request, error).body))
    return found


def go(request: Request, path: str, /, **query: Any) -> RedirectResponse:
    """Lead to another page, after an act."""
    return RedirectResponse(Url(request)(path, **query), 303)


@cache
def environment() -> Environment:
    """The templates; what they print is escaped."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words.FILTERS)
    made.globals.update(words.GLOBALS)
    made.globals.update(charts.GLOBALS)
    return made


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """The files beside the pages: what is in each, and a short name for that."""
    found = {path.name: path.read_bytes() for path in (HERE / "static").iterdir()}
    return {name: (data, hashlib.sha256(data).hexdigest()[:12]) for name, data in found.items()}


def _refused(request: Request, error: Exception) -> Response:
    problem = told(request, error)
    if problem["status"] == 401 and isinstance(request.app.state.auth, StoreAuth):
        following = request.url.path.removeprefix(str(request.scope.get("root_path", "")))
        query = f"?{request.url.query}" if request.url.query else ""
        return go(request, "/login", next=f"{following}{query}" if request.method == "GET" else None)
    answer = render(request, "problem.html", None, status=problem["status"], problem=problem)
    if isinstance(error, Refused):
        answer.headers.update(error.headers)
    return answer


def _shown(request: Request, caller: Caller | None) -> dict[str, Any]:
    """Who looks, for the frame: their name, what they may do, and what they are bound to."""
    if caller is None:
        return {"actor": "", "operate": False, "tenant": None, "queues": None, "session": False}
    who = caller.who
    return {
        "actor": who.actor,
        "operate": "operate" in who.scopes,
        "tenant": who.tenant,
        "queues": None if who.queues is None else sorted(who.queues),
        "session": isinstance(request.app.state.auth, StoreAuth),
    }


def _path(request: Request) -> str:
    return request.url.path.removeprefix(str(request.scope.get("root_path", "")))
