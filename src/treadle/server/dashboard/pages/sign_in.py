"""Signing in and out in a browser."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from treadle.app.tokens import LONGEST_TOKEN
from treadle.server.auth import COOKIE
from treadle.server.dashboard.page import PageRoute, ask_to_sign_in, go, refusal, render
from treadle.server.dashboard.posted import Posted
from treadle.server.problems import Refused
from treadle.server.session import begin_session, store_auth

router = APIRouter(route_class=PageRoute)

KEPT = "kept."  # before the names of fields of another form


@router.get("/login")
async def sign_in_page(
    request: Request,
    code: Annotated[str | None, Query(max_length=LONGEST_TOKEN)] = None,
    following: Annotated[str, Query(alias="next", max_length=4000)] = "",
) -> Response:
    """Ask for a token; the link of the first start, which has a code, signs in once."""
    auth = store_auth(request)
    if code is None:
        return ask_to_sign_in(request, following=_own(following))
    who = await run_in_threadpool(auth.take_link, code)
    if who is None:
        gone = Refused(401, "this link was used, or is older than 15 minutes; start the server again for a new one")
        return ask_to_sign_in(request, refusal(request, gone))
    return begin_session(request, auth, who, go(request, "/"))


@router.post("/login")
async def sign_in(request: Request, posted: Posted) -> Response:
    """Begin a session with a token."""
    auth, following, again = store_auth(request), _own(posted.get("next", "")), _own(posted.get("again", ""))
    kept = [(name[len(KEPT) :], one) for name, many in posted.lists.items() for one in many if name.startswith(KEPT)]
    who = await run_in_threadpool(auth.by_token, posted.get("token", "").strip())
    if who is None:
        refused = Refused(401, "there is no such token, or it has expired or was revoked")
        return ask_to_sign_in(request, refusal(request, refused), following=following, again=again, kept=kept)
    if again:  # it is they who send it, once more: nothing is done because somebody signed in
        return begin_session(request, auth, who, render(request, "again.html", None, again=again, kept=kept))
    return begin_session(request, auth, who, go(request, following or "/"))


@router.post("/logout")
def sign_out(request: Request) -> Response:
    """End the session of this browser."""
    answer = go(request, "/login")
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _own(following: str) -> str:
    """The page of ours to go to afterwards; empty if it is somebody else's."""
    own = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    return following if own else ""
