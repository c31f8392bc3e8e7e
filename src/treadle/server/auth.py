"""Who asks: a token of the store, a session of the browser, or what the application around us says."""

import hmac
import json
import secrets
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from inspect import isawaitable

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from treadle.app.tokens import same
from treadle.app.treadle import Treadle
from treadle.server.principal import Principal
from treadle.server.problems import Refused

Auth = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""`asgi(app, auth=…)`: who makes this request; None for somebody unknown."""

COOKIE = "treadle_session"
SESSION = timedelta(hours=12)
LINK = timedelta(minutes=15)
BEARER = "bearer "
CONSOLE = Principal.of("console", ["admin"])
"""Whoever has followed the link that is printed at the start."""


class StoreAuth:
    """Tokens of the store, and sessions that began with one, or with the link that is printed at the start."""

    def __init__(self, app: Treadle, secret: bytes | None = None) -> None:
        self._app = app
        self._key = secret or secrets.token_bytes(32)  # sessions end with the server, unless it is given one
        self._links: dict[str, datetime] = {}
        self._lock = threading.Lock()

    async def __call__(self, request: Request) -> Principal | None:
        header = request.headers.get("authorization", "")
        if header:
            if not header.lower().startswith(BEARER):
                return None
            return await run_in_threadpool(self.by_token, header[len(BEARER) :].strip())
        if cookie := request.cookies.get(COOKIE):
            return await run_in_threadpool(self.by_session, cookie)
        return None

    def by_token(self, secret: str) -> Principal | None:
        token = self._app.tokens.find(secret)
        return None if token is None else Principal.from_token(token)

    # ------------------------------------------------------------------------------------------ sessions

    def new_link(self) -> str:
        """A code that signs in once, with every right: for the person who has started the server."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._links[code] = self._app.engine.now() + LINK
        return code

    def take_link(self, code: str) -> Principal | None:
        """Whom this code signs in; it does so once."""
        now = self._app.engine.now()
        with self._lock:
            kept = next((one for one in self._links if same(code, one)), "")
            until = self._links.pop(kept, None)
        return None if until is None or now >= until else CONSOLE

    def session_of(self, who: Principal) -> str:
        """A signed cookie for this person: it names their token, and ends with it."""
        until = (self._app.engine.now() + SESSION).timestamp()
        text = urlsafe_b64encode(json.dumps([who.token, until]).encode()).decode()
        return f"{text}.{self._sign(text)}"

    def by_session(self, cookie: str) -> Principal | None:
        """Whose session this is; nobody's if it was tampered with, has ended, or its token was revoked."""
        text, _, signature = cookie.partition(".")
        if not same(signature, self._sign(text)):
            return None
        name, until = json.loads(urlsafe_b64decode(text))
        if self._app.engine.now().timestamp() >= until:
            return None
        if name is None:
            return CONSOLE
        token = self._app.tokens.usable(name)
        return None if token is None else Principal.from_token(token)

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, f"session {text}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()


async def known(auth: Auth, request: Request) -> Principal:
    """Who makes this request; refused with 401 if that is nobody we know."""
    found = auth(request)
    who = await found if isawaitable(found) else found
    if who is None:
        raise Refused(
            401,
            "send a token: Authorization: Bearer treadle_…; `treadle tokens create NAME` makes one",
            {"WWW-Authenticate": "Bearer"},
        )
    return who
