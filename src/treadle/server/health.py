"""What machines ask: is the process alive, can it serve, and what are the numbers."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from treadle.app.exposition import CONTENT_TYPE
from treadle.app.treadle import Treadle
from treadle.server.caller import SIGN_IN, Reader
from treadle.server.problems import Refused

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)  # many load balancers ask so
@router.get("/healthz")
def healthz() -> dict[str, bool]:
    """Whether the process answers. It asks no store, so a store that is away restarts nobody."""
    return {"ok": True}


@router.head("/readyz", include_in_schema=False)  # many load balancers ask so
@router.get("/readyz")
def readyz(request: Request) -> dict[str, bool]:
    """Whether requests can be served: the store answers, its schema fits, and the server is not stopping."""
    app: Treadle = request.app.state.treadle
    if request.app.state.stopping:
        raise Refused(503, "the server is stopping")
    if app.check_schema(quick=True):
        raise Refused(503, "the store's schema does not fit; run `treadle migrate`")
    return {"ok": True}


@router.get("/metrics", response_class=PlainTextResponse, dependencies=SIGN_IN)
def metrics(caller: Reader, request: Request) -> PlainTextResponse:
    """The numbers for Prometheus."""
    text = request.app.state.metrics.exposition(caller.whole)
    return PlainTextResponse(text, media_type=CONTENT_TYPE)
