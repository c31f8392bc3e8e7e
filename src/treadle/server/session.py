"""Sessions of browsers: begun with a token, looked at, ended."""

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from treadle.server.auth import COOKIE, SESSION, StoreAuth
from treadle.server.caller import SIGN_IN, Reader
from treadle.server.forms import Form
from treadle.server.principal import Principal
from treadle.server.problems import Refused
from treadle.server.strict import StrictRoute

router = APIRouter(tags=["session"], route_class=StrictRoute)


class SignIn(Form):
    token: str


@router.post("/api/v1/session", status_code=204)
async def sign_in(request: Request, form: SignIn) -> Response:
    """Begin a session with a token, for browsers."""
    auth = store_auth(request)
    who = await run_in_threadpool(auth.by_token, form.token)
    if who is None:
        raise Refused(401, "there is no such token, or it has expired or was revoked")
    return begin_session(request, auth, who, Response(status_code=204))


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


def begin_session(request: Request, auth: StoreAuth, who: Principal, answer: Response) -> Response:
    """Let this answer sign the browser in."""
    secure = request.url.scheme == "https"
    age = int(SESSION.total_seconds())
    answer.set_cookie(COOKIE, auth.session_of(who), max_age=age, httponly=True, samesite="strict", secure=secure)
    return answer


def store_auth(request: Request) -> StoreAuth:
    """The tokens and sessions of the store; refused where the application around us knows who asks."""
    auth = request.app.state.auth
    if not isinstance(auth, StoreAuth):
        raise Refused(404, "there is nothing to sign in to: the application around this server knows who you are")
    return auth
