"""The first page: what is wrong, since when, what to do; then whether the rest is well."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.server import overview as api
from treadle.server.caller import Caller, Reader
from treadle.server.dashboard.page import PageRoute, go, render
from treadle.server.forms import AuditQuery

router = APIRouter(route_class=PageRoute)

SPANS = ("1h", "6h", "24h", "7d")
ACTS_SHOWN = 8


@router.get("/")
def show(
    caller: Reader, request: Request, span: Annotated[Literal["1h", "6h", "24h", "7d"], Query()] = "1h"
) -> Response:
    if caller.who.queues is not None:  # what is told here is told of all queues
        return go(request, "/jobs")
    found = api.look(caller)
    values: dict[str, Any] = {"found": found, "at": found["at"], "stats": None, "acts": []}
    if caller.who.whole:
        values["stats"] = api.stats(caller, span)
    values |= {"span": span, "spans": SPANS, "queues": _queues(found), "acts": _acts(caller)}
    return render(request, "overview.html", caller, **values)


def _acts(caller: Caller) -> list[dict[str, Any]]:
    """What people and programs have done lately."""
    events: list[dict[str, Any]] = api.audit(caller, AuditQuery(limit=ACTS_SHOWN))["events"]
    return events


def _queues(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The queues, those that need somebody first, each with how it does."""
    paused = {pause["queue"] for pause in found["pauses"] if pause["task"] is None and pause["tenant"] is None}
    rates = {rate["queue"]: rate for rate in found["rates"]}
    shown = []
    for group in found["queues"]:
        rate = rates.get(group["queue"], {"ended": 0.0, "failed": 0.0, "retrying": 0.0})
        shown.append({**group, "rate": rate, "word": _word(group, rate, group["queue"] in paused)})
    need = {"failed": 0, "paused": 1, "late": 2, "succeeded": 3}
    return sorted(shown, key=lambda queue: (need[queue["word"]], queue["queue"]))


def _word(group: dict[str, Any], rate: dict[str, float], paused: bool) -> str:
    if paused:
        return "paused"
    bad = rate["failed"] + rate["retrying"]
    if bad and bad >= (rate["ended"] - rate["failed"]):
        return "failed"
    return "succeeded"
