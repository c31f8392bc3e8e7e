"""The addresses of the dashboard: its pages, and the files they are drawn with."""

import gzip
from functools import cache

from fastapi import APIRouter, Request, Response

from treadle.server.dashboard.page import PageRoute, static_files
from treadle.server.dashboard.pages import (
    audit,
    costs,
    doctor,
    failures,
    job,
    jobs,
    overview,
    queues,
    schedule_form,
    schedules,
    sign_in,
    workers,
)
from treadle.server.problems import Refused

KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(route_class=PageRoute)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """A file that pages are drawn with; its address changes with it."""
    if name not in static_files():
        raise Refused(404, "there is nothing at this address")
    data, _ = static_files()[name]
    headers = {"cache-control": FOR_EVER, "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(_gzipped(name), headers={**headers, "content-encoding": "gzip"}, media_type=_kind(name))
    return Response(data, headers=headers, media_type=_kind(name))


@cache
def _gzipped(name: str) -> bytes:
    return gzip.compress(static_files()[name][0], mtime=0)


def _kind(name: str) -> str:
    return KINDS[name.rpartition(".")[2]]


PAGES = (sign_in, overview, jobs, job, failures, queues, workers, schedule_form, schedules, audit, costs, doctor)
for page in PAGES:
    router.include_router(page.router)
