"""`/events`: what changes, as server-sent events. One look a second serves everybody who listens."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from treadle.app.views import status_view
from treadle.errors import TreadleError
from treadle.server.caller import Caller, Reader
from treadle.server.problems import Refused

router = APIRouter(tags=["overview"])

INTERVAL = 1.0  # seconds between two looks
QUIET = 15.0  # seconds after which a line is sent, though nothing has changed, so that no proxy hangs up
MOST_STREAMS = 50


@router.get("/events", response_class=StreamingResponse)
async def events(caller: Reader, request: Request) -> StreamingResponse:
    """The status whenever it changes, as `event: status`; the first one at once. Streams end when the server stops."""
    app, streams = caller.every_queue, request.app.state.streams
    if len(streams) >= MOST_STREAMS:
        raise Refused(
            503, f"{MOST_STREAMS} streams are open, and no more are served; try again later", {"Retry-After": "5"}
        )
    del app
    return StreamingResponse(_told(caller, request), media_type="text/event-stream")


async def _told(caller: Caller, request: Request) -> AsyncIterator[str]:
    state, mark = request.app.state, object()
    state.streams.add(mark)
    try:
        last, quiet, number = "", 0.0, 0
        while not state.stopping and not await request.is_disconnected():
            told = await _look(caller)
            text = json.dumps(told["data"], separators=(",", ":"))
            if text != last or quiet >= QUIET:
                number += text != last
                yield f"id: {number}\nevent: {told['event']}\ndata: {text}\n\n" if text != last else ": still here\n\n"
                last, quiet = text, 0.0
            quiet += INTERVAL
            await asyncio.sleep(INTERVAL)
    finally:
        state.streams.discard(mark)


async def _look(caller: Caller) -> dict[str, Any]:
    try:
        view = status_view(await caller.app.astatus())
    except TreadleError:
        return {"event": "trouble", "data": {"detail": "the job store does not answer"}}
    view.pop("at")
    view["workers"] = [{key: one[key] for key in ("name", "running", "concurrency")} for one in view["workers"]]
    return {"event": "status", "data": view}
