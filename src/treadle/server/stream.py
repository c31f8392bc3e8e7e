"""`/events`: what changes, as server-sent events. One look a second serves everybody who listens."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from treadle.app.views import status_view
from treadle.errors import TreadleError
from treadle.server.auth import known
from treadle.server.caller import Caller, Reader
from treadle.server.problems import Refused

router = APIRouter(tags=["overview"])

INTERVAL = 1.0  # seconds between two looks
QUIET = 15.0  # seconds after which a line is sent, though nothing has changed, so that no proxy hangs up
MOST_STREAMS = 50


class Notice(NamedTuple):
    """What a stream tells: the name of the event, and its data as JSON."""

    event: str
    data: str


class Streams:
    """The streams that are open, and what they share: the last look at the store, for each tenant."""

    def __init__(self) -> None:
        self.open: set[object] = set()
        self._looks: dict[str | None, tuple[float, asyncio.Task[Notice]]] = {}

    async def look(self, caller: Caller) -> Notice:
        """What there is to tell; a look that somebody began less than a second ago will do."""
        tenant, now = caller.who.tenant, time.monotonic()
        begun, look = self._looks.get(tenant, (0.0, None))
        if look is None or now - begun >= INTERVAL:
            look = asyncio.create_task(_look(caller))
            self._looks[tenant] = (now, look)
        return await asyncio.shield(look)  # one who hangs up does not end it for the others

    def close(self, mark: object) -> None:
        self.open.discard(mark)
        if not self.open:
            self._looks.clear()


@router.get("/events", response_class=StreamingResponse)
async def events(caller: Reader, request: Request) -> StreamingResponse:
    """The status whenever it changes, as `event: status`; the first one at once. Streams end when the server stops."""
    caller.every_queue  # noqa: B018 - refused to those who are bound to some
    if len(request.app.state.streams.open) >= MOST_STREAMS:
        raise Refused(
            503, f"{MOST_STREAMS} streams are open, and no more are served; try again later", {"Retry-After": "5"}
        )
    return StreamingResponse(_lines(caller, request), media_type="text/event-stream")


async def _lines(caller: Caller, request: Request) -> AsyncIterator[str]:
    state, mark = request.app.state, object()
    streams: Streams = state.streams
    streams.open.add(mark)
    try:
        last, quiet, number = Notice("", ""), 0.0, 0
        while not state.stopping and not await request.is_disconnected():
            notice = await streams.look(caller)
            if notice != last:
                number += 1
                yield f"id: {number}\nevent: {notice.event}\ndata: {notice.data}\n\n"
            elif quiet >= QUIET:
                yield ": still here\n\n"
            quiet = 0.0 if notice != last or quiet >= QUIET else quiet + INTERVAL
            last = notice
            await asyncio.sleep(INTERVAL)
            if not await _still_known(caller, request):
                return
    finally:
        streams.close(mark)


async def _still_known(caller: Caller, request: Request) -> bool:
    """Whether they could ask again: a token that is revoked ends its streams."""
    try:
        return await known(request.app.state.auth, request) == caller.who
    except Refused:
        return False
    except TreadleError:  # the store does not answer: nothing is told meanwhile that could not be told before
        return True


async def _look(caller: Caller) -> Notice:
    try:
        view: dict[str, Any] = status_view(await caller.app.astatus())
    except TreadleError:
        return Notice("trouble", json.dumps({"detail": "the job store does not answer"}))
    view.pop("at")
    view["workers"] = [{key: one[key] for key in ("name", "running", "concurrency")} for one in view["workers"]]
    return Notice("status", json.dumps(view, separators=(",", ":")))
