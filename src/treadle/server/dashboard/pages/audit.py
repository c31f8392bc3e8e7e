"""Audit: who did what, when and why, newest first; and, when asked, whether the record of it is as it was."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.model import EventKind
from treadle.server import overview as api
from treadle.server.dashboard.event_rows import event_row
from treadle.server.dashboard.page import ERRORS, PageReader, PageRoute, now, refusal, render
from treadle.server.dashboard.posted import read_into
from treadle.server.dashboard.words import Row
from treadle.server.forms import AuditQuery

router = APIRouter(route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=1000)]

PAGE = 50
SINCE = "7d"  # how far back a filter looks that may fit little: it would read the whole trail
EVER = "ever"
MOST_TENANTS = 50  # whose seals are listed one by one
KINDS = tuple(kind.value for kind in EventKind)


@router.get("/audit")
def show(
    caller: PageReader,
    request: Request,
    actor: Text = None,
    kind: Text = None,
    job: Text = None,
    tenant: Text = None,
    since: Text = None,
    until: Text = None,
    cursor: Text = None,
    by: Annotated[Literal["hand"] | None, Query()] = None,
    verify: Annotated[Literal["1"] | None, Query()] = None,
) -> Response:
    """The latest acts that are meant. With `verify` all sealed events are read: are they as they were?"""
    typed = {"actor": actor, "kind": kind, "job": job, "tenant": tenant, "since": since, "until": until}
    bounded = not since and not job and bool(actor or kind or tenant or by)
    wanted = {**typed, "since": SINCE if bounded else None if since == EVER else since}
    values: Row = {"typed": typed, "bounded": bounded, "cursor": cursor, "kinds": KINDS, "by": by}
    values["at"] = now(caller)
    try:
        given = {name: text or None for name, text in {**wanted, "cursor": cursor}.items()}
        query = read_into(AuditQuery, limit=PAGE, by_hand=by == "hand", **given)
        found = api.audit(caller, query)
        seals = _seals(api.verify_audit(caller, tenant or None)) if verify else None
    except ERRORS as error:
        problem = refusal(request, error)
        status = problem["status"]
        return render(request, "audit.html", caller, status=status, events=None, seals=None, problem=problem, **values)
    values |= {"events": [event_row(caller, event) for event in found["events"]], "next_cursor": found["cursor"]}
    values["command"] = _command(given, by)
    return render(request, "audit.html", caller, seals=seals, problem=None, **values)


def _seals(report: Row) -> Row:
    """What a look at all seals has found, those with problems first."""
    tenants = sorted(report["tenants"], key=lambda one: (not one["problems"], one["tenant"]))
    return {
        **report,
        "shown": tenants[:MOST_TENANTS],
        "more": max(0, len(tenants) - MOST_TENANTS),
        "problems": sum(len(one["problems"]) for one in tenants),
        "seals": sum(one["seals"] for one in tenants),
        "events": sum(one["events"] for one in tenants),
        "early": sum(one["early"] for one in tenants),
    }


def _command(given: dict[str, str | None], by: str | None) -> list[str]:
    """The command that lists the same."""
    return [
        "audit",
        *(["--by-hand"] if by else []),
        *(word for name, text in given.items() if text for word in (f"--{name}", text)),
    ]
