"""Schedules: when each runs next, whether the last run worked, what the clocks do to it; switch, run now, delete."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.server import overview as overview_api
from treadle.server import schedules as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import (
    ERRORS,
    PageOperator,
    PageReader,
    PageRoute,
    go,
    is_signed,
    now,
    refusal,
    render,
    signed,
    with_query,
)
from treadle.server.dashboard.posted import Posted, PostedFields, read_into
from treadle.server.dashboard.schedule_rows import RUNS, reason_of, row, runs, with_last
from treadle.server.dashboard.words import Row, moment
from treadle.server.forms import Name, ReasonForm, ScheduleQuery

router = APIRouter(route_class=PageRoute)

Act = Annotated[Literal["run", "switch", "delete"] | None, Query()]
OfTenant = Annotated[Name | None, Query()]
Sure = Annotated[str | None, Query(max_length=200)]  # of what was done: that it was
Ran = Annotated[str | None, Query(max_length=64, pattern=r"^[0-9a-fA-F-]*$")]

PAGE = 50  # schedules of one page; each is shown with how its last job did
EVENTS_SHOWN = 20
BACK = re.compile(r"/schedules([/?][^\\\s#]*)?")


# ------------------------------------------------------------------------------------------- looking


@router.get("/schedules")
def show_all(
    caller: PageReader,
    request: Request,
    by: Annotated[Literal["next", "name"], Query()] = "next",
    show: Annotated[Literal["all", "failing", "off"], Query()] = "all",
    deleted: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    sure: Sure = None,
) -> Response:
    """All schedules. More than fit on a page are told by name; only then is it not known which runs next."""
    query = read_into(ScheduleQuery, last=True, limit=PAGE, cursor=cursor, enabled=False if show == "off" else None)
    found = api.list_schedules(caller, query)
    at, pauses = now(caller), overview_api.pauses(caller)["pauses"]
    rows = [row(caller, schedule, at, pauses) for schedule in found["schedules"]]
    whole = cursor is None and found["cursor"] is None
    if whole and by == "next":
        rows.sort(key=lambda one: (not one["enabled"], one["next_at"] or "", one["name"]))
    return render(
        request,
        "schedules.html",
        caller,
        at=at,
        rows=[one for one in rows if show != "failing" or one["failing"]],
        found=rows,
        by=by,
        show=show,
        deleted=deleted if is_signed(request, caller, sure, "deleted", deleted) else None,
        whole=whole,
        next_cursor=found["cursor"],
        back=with_query(
            "/schedules", by=None if by == "next" else by, show=None if show == "all" else show, cursor=cursor
        ),
    )


@router.get("/schedules/{name}")
def show_one(
    caller: PageReader,
    request: Request,
    name: str,
    tenant: OfTenant = None,
    act: Act = None,
    ran: Ran = None,
    sure: Sure = None,
) -> Response:
    """Everything about one schedule."""
    return _page(
        caller, request, name, tenant, act=act, ran=ran if is_signed(request, caller, sure, "ran", ran) else None
    )


def _page(
    caller: Caller,
    request: Request,
    name: str,
    tenant: str | None = None,
    *,
    act: str | None,
    ran: str | None = None,
    problem: Row | None = None,
    reason: str = "",
) -> Response:
    found = api.show(caller, name, tenant)
    at, pauses = now(caller), overview_api.pauses(caller)["pauses"]
    one = row(caller, with_last(caller, found["schedule"], found["events"]), at, pauses)
    ticks = api.preview(caller, one["id"], None, RUNS, moment(at))["ticks"]
    return render(
        request,
        "schedule.html",
        caller,
        status=problem["status"] if problem else 200,
        at=at,
        one=one,
        runs=runs(ticks, one["timezone"], at),
        events=[{**event, "why": reason_of(event, one)} for event in reversed(found["events"][-EVENTS_SHOWN:])],
        act=act,
        ran=ran,
        back=one["path"],
        problem=problem,
        reason_typed=reason,
    )


# -------------------------------------------------------------------------------------------- acting


@router.post("/schedules/{name}/switch")
def switch(caller: PageOperator, request: Request, name: str, posted: Posted) -> Response:
    """Let a schedule make jobs, or no more."""
    act = api.enable if posted.get("on") == "1" else api.disable
    try:
        act(caller, name, _reason(posted))
    except ERRORS as error:
        return _again(caller, request, name, "switch", posted, error)
    return _back(request, posted)


@router.post("/schedules/{name}/run")
def run(caller: PageOperator, request: Request, name: str, posted: Posted) -> Response:
    """Make a job of a schedule now."""
    try:
        job = api.run(caller, name, _reason(posted))["job"]
    except ERRORS as error:
        return _again(caller, request, name, "run", posted, error)
    return _back(request, posted, ran=job["id"], sure=signed(request, caller, "ran", job["id"]))


@router.post("/schedules/{name}/delete")
def delete(caller: PageOperator, request: Request, name: str, posted: Posted) -> Response:
    """Remove a schedule; this page wants to know why, since nothing brings it back."""
    try:
        posted.demand_reason("say why, for those who look for it later; nothing brings it back")
        gone = api.delete(caller, name, None, _reason(posted).reason)["schedule"]
    except ERRORS as error:
        return _again(caller, request, name, "delete", posted, error)
    return go(request, "/schedules", deleted=gone["name"], sure=signed(request, caller, "deleted", gone["name"]))


def _reason(posted: PostedFields) -> ReasonForm:
    return read_into(ReasonForm, reason=posted.get("reason"))


def _again(caller: Caller, request: Request, name: str, act: str, posted: PostedFields, error: Exception) -> Response:
    """The same form with what was typed, and why it was refused."""
    return _page(caller, request, name, act=act, problem=refusal(request, error), reason=posted.get("reason", ""))


def _back(request: Request, posted: PostedFields, **query: str) -> Response:
    """To the page of schedules on which the button stood."""
    path = posted.get("back", "")
    known = BACK.fullmatch(path)
    return (
        go(request, path, **query)
        if known and path.startswith("/schedules/")
        else go(request, path if known else "/schedules")
    )
