"""What every page shares: its templates, its headers, and errors told as pages in the API's own words."""

import hashlib
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from treadle.errors import InvalidInput, TreadleError
from treadle.server import overview as api
from treadle.server.auth import StoreAuth
from treadle.server.caller import Caller, Needs
from treadle.server.dashboard import charts, words
from treadle.server.dashboard.posted import pairs_of
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
"""What a page or an act can be refused with; `refusal` says it."""

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


class _NeedsForPage(Needs):
    """A dependency: the caller of a page, told of jobs and schedules under treadle's own names, as templates are."""

    async def __call__(self, request: Request) -> Caller:
        caller = await super().__call__(request)
        return Caller(caller.tasks, caller.who, own_names=True)


PageReader = Annotated[Caller, Depends(_NeedsForPage("read"))]
PageOperator = Annotated[Caller, Depends(_NeedsForPage("operate"))]


def now(caller: Caller) -> str:
    """The time of the store."""
    return str(api.about(caller)["now"])


class PageRoute(APIRoute):
    """A route of the dashboard: an error is a page, and somebody unknown is asked to sign in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "include_in_schema": False})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                if request.method == "POST" and isinstance(error, Refused) and error.status == 401:
                    return await _signed_out(request, error)
                return _refused(request, error)

        return handle_as_page


class Url:
    """Addresses of this server's pages, also where it is mounted below a path."""

    def __init__(self, request: Request) -> None:
        self._root = str(request.scope.get("root_path", ""))

    def __call__(self, path: str, /, **query: Any) -> str:
        """The address of a page, which may have parameters already; those that are None or empty are left out."""
        return f"{self._root}{with_query(path, **query)}"

    def static(self, name: str) -> str:
        """The address of a file, which changes with the file: browsers keep it for ever."""
        return f"{self._root}/static/{name}?v={static_files()[name][1]}"


def with_query(path: str, /, **query: Any) -> str:
    """A path with more parameters; those that are None or empty are left out."""
    given = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{path}{'&' if '?' in path else '?'}{given}" if given else path


def render(
    request: Request, template: str, caller: Caller | None, /, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """A page. Templates see the values, `url`, and what the frame around them shows."""
    page = environment().get_template(template)
    shown = {"caller": _shown(request, caller), "url": Url(request), "here": _path(request), "pages": PAGES, **values}
    text = page.render(shown).encode("utf-8", "replace")  # it may repeat half a character, which UTF-8 cannot hold
    return HTMLResponse(text, status, {"content-security-policy": POLICY})


def refusal(request: Request, error: Exception) -> dict[str, Any]:
    """What an act was refused with: the API's own problem document, and its `words` for the field that it is about."""
    found: dict[str, Any] = json.loads(bytes(problem_of(request, error).body))
    return {**found, "words": found["detail"].removeprefix(f"{found.get('field')}: ")}


def go(request: Request, path: str, /, **query: Any) -> RedirectResponse:
    """Lead to another page, after an act."""
    return RedirectResponse(Url(request)(path, **query), 303)


def signed(request: Request, caller: Caller, *what: object) -> str:
    """What shows for ten minutes that this server has led this caller to a page that says so: a link shows nothing."""
    made: str = request.app.state.confirmations.make(_meant(caller, what))
    return made


def is_signed(request: Request, caller: Caller, given: str | None, *what: object) -> bool:
    """Whether it was this server that sent this caller here, to be told this."""
    return bool(given) and request.app.state.confirmations.check(_meant(caller, what), given)


def _meant(caller: Caller, what: Sequence[object]) -> str:
    return f"shown to {caller.identity} {json.dumps(what)}"


@cache
def environment() -> Environment:
    """The templates; what they print is escaped."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
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


def ask_to_sign_in(
    request: Request,
    problem: dict[str, Any] | None = None,
    *,
    following: str = "",
    again: str = "",
    kept: Sequence[tuple[str, str]] = (),
    late: bool = False,
) -> HTMLResponse:
    """The page that asks for a token. It keeps a form that was sent too late: where it goes, and what is in it."""
    shown = {"following": following, "again": again, "kept": kept, "late": late, "problem": problem}
    ours = isinstance(request.app.state.auth, StoreAuth)
    return render(request, "sign_in.html", None, status=problem["status"] if problem else 200, ours=ours, **shown)


async def _signed_out(request: Request, error: Refused) -> Response:
    """Somebody sent a form when their session had ended: what they typed is kept, to be sent again."""
    try:
        kept = await pairs_of(request)
    except InvalidInput:
        return _refused(request, error)
    late = Refused(401, "your session has ended, and nothing was done; what you sent is kept below")
    query = f"?{request.url.query}" if request.url.query else ""
    return ask_to_sign_in(request, refusal(request, late), again=f"{_path(request)}{query}", kept=kept, late=True)


def _refused(request: Request, error: Exception) -> Response:
    problem = refusal(request, error)
    if problem["status"] == 401 and isinstance(request.app.state.auth, StoreAuth):
        query = f"?{request.url.query}" if request.url.query else ""
        return go(request, "/login", next=f"{_path(request)}{query}" if request.method == "GET" else None)
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
