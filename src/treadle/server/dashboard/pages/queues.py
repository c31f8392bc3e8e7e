"""Queues: which is late and why, what is paused by whom until when; pause and resume, each with what it would do."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from treadle.app.profile import LABELS, Profile
from treadle.app.reading import soon_from
from treadle.errors import InvalidInput
from treadle.model import State
from treadle.model.records import NOT_PAUSED
from treadle.server import jobs as jobs_api
from treadle.server import overview as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import ERRORS, PageOperator, PageReader, PageRoute, go, now, refusal, render
from treadle.server.dashboard.posted import Posted, PostedFields, read_into
from treadle.server.dashboard.queue_rows import queue_rows
from treadle.server.dashboard.words import Row, moment
from treadle.server.forms import CountQuery, PauseForm, Printable
from treadle.server.forms import Query as Parameters

router = APIRouter(route_class=PageRoute)

Text = Annotated[str, Field(max_length=200), Printable]

MOST_ROWS = 60  # queues of one page; what is left out is on time, and said to be
FIELDS = ("queue", "task", "tenant", "everything", "until", "reason")


class PageQuery(Parameters):
    """What the address of the page says: which form is open, and what is in it."""

    act: Literal["pause", "resume"] | None = None
    queue: Text = ""
    task: Text = ""
    tenant: Text = ""
    everything: Literal["", "1"] = ""
    until: Annotated[str, Field(max_length=64)] = ""
    reason: Annotated[str, Field(max_length=2000)] = ""
    revision: Text = ""  # of the pause that a form saw, whose preview this is; it is looked at anew


@router.get("/queues")
def show(caller: PageReader, request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """All queues, what needs somebody first, and all pauses."""
    typed = {name: value for name in FIELDS if (value := getattr(query, name))}
    return _page(caller, request, query.act, typed)


@router.post("/queues/check")
def check(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """What a form would pause, and what is wrong with it, while somebody types."""
    return _page(caller, request, "pause", dict(posted))


@router.post("/queues/pause")
def pause(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """Let no such job start; to stop everything, this page wants to know why."""
    try:
        form = _form(posted)
        if form.everything:
            posted.demand_reason("say why: this stops everything, and others will ask")
        api.pause(caller, form)
    except ERRORS as error:
        return _page(caller, request, "pause", dict(posted), refusal(request, error))
    return go(request, "/queues")


@router.post("/queues/resume")
def resume(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """Lift a pause."""
    try:
        api.resume(caller, _form(posted))
    except ERRORS as error:
        return _page(caller, request, "resume", dict(posted), refusal(request, error))
    return go(request, "/queues")


def _form(posted: PostedFields) -> PauseForm:
    given = {name: posted.get(name) for name in FIELDS if name != "everything"}
    everything = posted.get("everything") == "1" or None
    return read_into(PauseForm, **given, everything=everything, revision=posted.number("revision"))


def _page(
    caller: Caller, request: Request, act: str | None, typed: dict[str, str], problem: Row | None = None
) -> Response:
    found, refused = _found(caller), problem is not None
    at, rows = found["at"], queue_rows(caller, found)
    typed = {name: typed.get(name, "") for name in FIELDS}
    end, means = None, None
    if act == "pause":
        try:
            means = _means(caller, rows, typed)
            end = _end(typed["until"], at)
        except ERRORS as error:
            problem = problem or refusal(request, error)
    pauses = [_pause(caller, one, rows) for one in found["pauses"]]
    values = {
        "rows": rows[:MOST_ROWS],
        "hidden": rows[MOST_ROWS:],
        "worst": [row for row in rows if row["word"] != "on time"],
        "well": sum(row["word"] == "on time" for row in rows),
        "rates": caller.who.whole,
        "pauses": pauses,
        "act": act,
        "typed": typed,
        "problem": problem,
        "end": end,
        "means": means,
        "home": _home(act, typed, rows[:MOST_ROWS], pauses),
        "command": _command(typed),
        "standing": _standing(caller, pauses, typed) if act == "pause" else None,
        "not_paused": NOT_PAUSED,
    }
    status = problem["status"] if problem and refused else 200
    return render(request, "queues.html", caller, status=status, at=at, **values)


# ----------------------------------------------------------------------------------------------- what there is


def _found(caller: Caller) -> Row:
    """The queues that are theirs, with rates and workers for those who may know them."""
    if caller.who.queues is None:
        found = api.look(caller)
    else:
        found = {"at": now(caller), "queues": api.queues(caller)["queues"], "rates": [], "workers": []}
    return {**found, "pauses": api.pauses(caller)["pauses"]}


def _pause(caller: Caller, one: Row, rows: Sequence[Row]) -> Row:
    """A pause with what waits behind it, where that is known, and whether they may lift it."""
    named = {name: one[name] for name in ("tenant", "queue", "task") if one[name] is not None}
    behind = [row for row in rows if one["queue"] in (None, row["queue"])]
    known = one["task"] is None and one["tenant"] in (None, caller.who.tenant)
    everything = not named
    command = [word for name, value in named.items() for word in (f"--{name}", value)]
    return {
        **one,
        "key": _key(one),
        "fields": {**named, **({"everything": "1"} if everything else {})},
        "behind": sum(row["due"] for row in behind) if known else None,
        "more": any(row["more"] for row in behind),
        "command": ["resume", *(["--all"] if everything else command)],
        "liftable": (caller.who.tenant is None or one["owner"] == "tenant")
        and (caller.who.queues is None or one["queue"] in caller.who.queues),
    }


def _standing(caller: Caller, pauses: Sequence[Row], typed: dict[str, str]) -> Row | None:
    """The pause that there is already of exactly what is named: another would take its place."""
    if not any(typed[name] for name in ("tenant", "queue", "task", "everything")):
        return None
    try:
        queue = caller.queue(typed["queue"] or None)
    except InvalidInput:
        return None
    key = _key({**typed, "tenant": typed["tenant"] or caller.who.tenant, "queue": queue})
    return next((one for one in pauses if one["key"] == key), None)


def _key(scope: Row) -> str:
    """What tells a pause from others: its tenant, queue and task."""
    return "\x1f".join(scope[name] or "*" for name in ("tenant", "queue", "task"))


# ------------------------------------------------------------------------------------------- what an act means


def _means(caller: Caller, rows: Sequence[Row], typed: dict[str, str]) -> Row | None:
    """How many jobs a pause would hold back and how many run on; None while nothing is named."""
    named = {name: typed[name] for name in ("tenant", "queue", "task") if typed[name]}
    if typed["everything"]:
        return _summed("everything", rows)
    if not named:
        return None
    scope = ", ".join(f"{name} {value}" for name, value in named.items())
    if set(named) == {"queue"}:
        caller.queue(typed["queue"])
        return _summed(scope, [row for row in rows if row["queue"] == typed["queue"]])
    found = jobs_api.count(caller, read_into(CountQuery, **named))
    numbers = {"waiting": _counted(caller, found, State.PENDING), "running": _counted(caller, found, State.RUNNING)}
    return {"scope": scope, **numbers, "about": not found["exact"], "due": None}


def _counted(caller: Caller, found: Row, state: State) -> int:
    """How many jobs are in a state: they are counted by the words of the profile, which may have several for it."""
    profile = Profile(states=api.about(caller)["profile"]["states"])
    return sum(found["counts"].get(word, 0) for word in {profile.word(label) for label in LABELS[state]})


def _summed(scope: str, rows: Sequence[Row]) -> Row:
    numbers = {name: sum(row[name] for row in rows) for name in ("waiting", "due", "running")}
    return {"scope": scope, **numbers, "about": any(row["more"] for row in rows)}


def _end(until: str, at: str) -> datetime | None:
    """When a pause would end by itself."""
    found, now = soon_from(until.strip() or None, "until"), moment(at)
    if found is None or now is None:
        return None
    try:
        end = moment(found) if isinstance(found, datetime) else now + timedelta(seconds=found)
    except OverflowError:
        raise InvalidInput("until", f"{until!r:.50} is too far away; leave it out to pause until you resume") from None
    if end is not None and end <= now:
        raise InvalidInput("until", f"{end:%Y-%m-%d %H:%M:%S} UTC is past; leave it out to pause until you resume")
    return end


def _command(typed: dict[str, str]) -> list[str]:
    """The command that pauses the same."""
    words = ["pause", *(["--all"] if typed["everything"] else [])]
    for name in ("tenant", "queue", "task", "until", "reason"):
        if typed[name]:
            words += [f"--{name}", typed[name]]
    return words


def _home(act: str | None, typed: dict[str, str], rows: Sequence[Row], pauses: Sequence[Row]) -> str:
    """Below which row the form stands: a queue, a pause, or none."""
    if act == "pause" and any(row["queue"] == typed["queue"] for row in rows):
        return typed["queue"]
    if act == "resume":
        return next((one["key"] for one in pauses if one["key"] == _key(typed)), "")
    return ""
