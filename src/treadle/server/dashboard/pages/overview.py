"""The first page: what is wrong, since when, what to do; then whether the rest is well."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.model import EventKind
from treadle.server import overview as api
from treadle.server.caller import Caller
from treadle.server.dashboard.event_rows import event_row
from treadle.server.dashboard.page import PageReader, PageRoute, go, render
from treadle.server.dashboard.queue_rows import queue_rows
from treadle.server.dashboard.schedule_rows import schedule_path
from treadle.server.dashboard.words import Row
from treadle.server.forms import AuditQuery

router = APIRouter(route_class=PageRoute)

SPANS = ("1h", "6h", "24h", "7d")
ACTS_SHOWN, EVENTS_READ, SCHEDULES_SHOWN = 8, 200, 6


@router.get("/")
def show(
    caller: PageReader, request: Request, span: Annotated[Literal["1h", "6h", "24h", "7d"], Query()] = "1h"
) -> Response:
    if caller.who.queues is not None:  # what is told here is told of all queues
        return go(request, "/jobs")
    found = api.look(caller)
    values: Row = {"found": found, "at": found["at"], "stats": None, "acts": []}
    values["schedules"] = [
        {**one, "path": schedule_path(caller, one["name"], one["tenant"], one["id"])}
        for one in found["schedules"][:SCHEDULES_SHOWN]
    ]
    if caller.who.whole:
        values["stats"] = api.stats(caller, span)
    values |= {"span": span, "spans": SPANS, "queues": queue_rows(caller, found), "acts": _acts(caller)}
    return render(request, "overview.html", caller, **values)


def _acts(caller: Caller) -> list[Row]:
    """What operators have done lately, among the newest events: a queue that fails fills them with its own."""
    events: list[Row] = api.audit(caller, AuditQuery(limit=EVENTS_READ))["events"]
    by_hand = [event for event in events if EventKind(event["kind"]).by_hand]
    return [event_row(caller, event) for event in by_hand[:ACTS_SHOWN]]
