"""Sign-in of browsers: the link that is printed at the start, a token, and the way out."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from treadle.app.tokens import LONGEST_TOKEN
from treadle.server.auth import COOKIE, SESSION, StoreAuth
from treadle.server.caller import SIGN_IN, Reader
from treadle.server.forms import Form
from treadle.server.principal import Principal
from treadle.server.problems import Refused
from treadle.server.strict import StrictRoute

router = APIRouter(tags=["session"], route_class=StrictRoute)


class SignIn(Form):
    token: str


@router.get("/login")
async def follow_link(request: Request, code: Annotated[str, Query(max_length=LONGEST_TOKEN)]) -> Response:
    """The link of the first start: it signs in once, and leads to the server's first page."""
    auth = _store_auth(request)
    who = await run_in_threadpool(auth.take_link, code)
    if who is None:
        raise Refused(401, "this link was used, or is older than 15 minutes; start the server again for a new one")
    where = f"{request.scope.get('root_path', '')}/api/v1/session"
    return _signed_in(request, auth, who, RedirectResponse(where, 303))


@router.post("/api/v1/session", status_code=204)
async def sign_in(request: Request, form: SignIn) -> Response:
    """Begin a session with a token, for browsers."""
    auth = _store_auth(request)
    who = await run_in_threadpool(auth.by_token, form.token)
    if who is None:
        raise Refused(401, "there is no such token, or it has expired or was revoked")
    return _signed_in(request, auth, who, Response(status_code=204))


@router.get("/api/v1/session", dependencies=SIGN_IN)
def who_am_i(caller: Reader) -> dict[str, object]:
    """The caller, and what they may do."""
    who = caller.who
    queues = None if who.queues is None else sorted(who.queues)
    return {"actor": who.actor, "scopes": sorted(who.scopes), "tenant": who.tenant, "queues": queues}


@router.delete("/api/v1/session", status_code=204)
def sign_out() -> Response:
    """End the session of this browser."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _signed_in(request: Request, auth: StoreAuth, who: Principal, answer: Response) -> Response:
    secure = request.url.scheme == "https"
    age = int(SESSION.total_seconds())
    answer.set_cookie(COOKIE, auth.session_of(who), max_age=age, httponly=True, samesite="strict", secure=secure)
    return answer


def _store_auth(request: Request) -> StoreAuth:
    auth = request.app.state.auth
    if not isinstance(auth, StoreAuth):
        raise Refused(404, "there is nothing to sign in to: the application around this server knows who you are")
    return auth
