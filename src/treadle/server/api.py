"""The server, put together: `asgi(app)` is an ASGI application with the REST API and the dashboard of a store."""

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

import treadle
from treadle.app.metrics import StoreMetrics
from treadle.app.treadle import Treadle
from treadle.server import admin as admin_api
from treadle.server import health, jobs, overview, schedules, session, stream
from treadle.server.auth import Auth, StoreAuth
from treadle.server.caller import SIGN_IN
from treadle.server.confirm import Confirmations
from treadle.server.dashboard import routes as dashboard
from treadle.server.guard import App, Guard, Receive, Send
from treadle.server.problems import MEDIA_TYPE, add_problems
from treadle.server.stream import Streams

PREFIX = "/api/v1"
ADMIN = "/api/admin"


class Server:
    """An ASGI application: the API behind its guard. `auth` and `api` are there for those who put it together."""

    auth: Auth

    def __init__(self, api: FastAPI, guarded: App) -> None:
        self.api = api
        self._guarded = guarded

    def serve_app(self, app: Treadle, auth: Auth | None = None, secret: bytes | None = None) -> None:
        """Serve the store of this app, for those whom `auth` knows, or who have a token of it."""
        state = self.api.state
        state.treadle, state.auth = app, auth or StoreAuth(app, secret)
        state.confirmations = Confirmations(lambda: app.engine.now(), secret)  # noqa: PLW0108 - opened later
        state.streams, state.stopping, state.metrics = Streams(), False, StoreMetrics()
        self.auth = state.auth

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
    admin: bool | None = None,
) -> Server:
    """The REST API of this app's store, to be served alone or mounted in an ASGI application of yours.

    `auth` says who makes a request, as a `Principal`, or None: give it to use your own sign-in. Without it, tokens of
    the store are asked for. `hosts` are the names by which the server may be asked, beside localhost. `secret` signs
    sessions and confirmations: give the same to several servers of one store. `admin` adds `/api/admin`, or leaves it
    away; without it, an app of the profile `treadle.profiles.backend` has it.
    """
    api = FastAPI(
        title="treadle",
        version=treadle.__version__,
        description="Jobs, schedules, pauses and all that is known of them. Errors are problem documents (RFC 9457).",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        responses={"default": {"description": "A problem", "content": {MEDIA_TYPE: {}}}},
    )
    versioned = APIRouter(prefix=PREFIX, dependencies=SIGN_IN)
    for router in (jobs.router, schedules.router, schedules.cron_router, overview.router, stream.router):
        versioned.include_router(router)
    api.include_router(versioned)
    if admin if admin is not None else admin_api.wanted(app.profile):
        api.include_router(admin_api.router, prefix=ADMIN, dependencies=SIGN_IN)
    for router in (session.router, health.router, dashboard.router):
        api.include_router(router)
    add_problems(api)
    server = Server(api, Guard(api, hosts=hosts, rate=rate, burst=burst))
    server.serve_app(app, auth, secret)
    return server


def _operation_id(route: APIRoute) -> str:
    return f"{route.name}_{route.tags[0]}" if route.tags else route.name
