"""The server, put together: `asgi(app)` is an ASGI application with the REST API of a store."""

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

import treadle
from treadle.app.treadle import Treadle
from treadle.server import health, jobs, overview, schedules, session, stream
from treadle.server.auth import Auth, StoreAuth
from treadle.server.confirm import Confirmations
from treadle.server.guard import App, Guard, Receive, Send
from treadle.server.problems import MEDIA_TYPE, add_problems

PREFIX = "/api/v1"


class Server:
    """An ASGI application: the API behind its guard. `auth` and `api` are there for those who put it together."""

    def __init__(self, api: FastAPI, guarded: App, auth: Auth) -> None:
        self.api, self.auth = api, auth
        self._guarded = guarded

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    def stop(self) -> None:
        """Answer no more /readyz with yes, and end the streams."""
        self.api.state.stopping = True


def asgi(
    app: Treadle,
    *,
    auth: Auth | None = None,
    hosts: Collection[str] = (),
    secret: bytes | None = None,
    rate: float = 50.0,
    burst: int = 200,
) -> Server:
    """The REST API of this app's store, to be served alone or mounted in an ASGI application of yours.

    `auth` says who makes a request, as a `Principal`, or None: give it to use your own sign-in. Without it, tokens of
    the store are asked for. `hosts` are the names by which the server may be asked, beside localhost. `secret` signs
    sessions and confirmations: give the same to several servers of one store.
    """
    api = FastAPI(
        title="treadle",
        version=treadle.__version__,
        description="Jobs, schedules, pauses and all that is known of them. Errors are problem documents (RFC 9457).",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        responses={"default": {"description": "A problem", "content": {MEDIA_TYPE: {}}}},
    )
    chosen = auth or StoreAuth(app, secret)
    api.state.treadle, api.state.auth = app, chosen
    api.state.confirmations = Confirmations(secret)
    api.state.streams, api.state.stopping = set(), False
    versioned = APIRouter(prefix=PREFIX)
    for part in (jobs, schedules, overview, stream):
        versioned.include_router(part.router)
    api.include_router(versioned)
    api.include_router(session.router)
    api.include_router(health.router)
    add_problems(api)
    return Server(api, Guard(api, hosts=hosts, rate=rate, burst=burst), chosen)


def _operation_id(route: APIRoute) -> str:
    return f"{route.name}_{route.tags[0]}" if route.tags else route.name
