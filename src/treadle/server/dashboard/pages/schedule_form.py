"""A new schedule, or changes to one: checked by the server while somebody writes, and once more when they are done."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from fastapi import APIRouter, Query, Request, Response

from treadle.errors import InvalidInput, ScheduleNotFound
from treadle.model.clock import span
from treadle.server import overview as overview_api
from treadle.server import schedules as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import ERRORS, PageOperator, PageReader, PageRoute, go, now, refusal, render
from treadle.server.dashboard.posted import Posted, PostedFields, read_into
from treadle.server.dashboard.schedule_rows import offset, reason_of, runs, schedule_path
from treadle.server.dashboard.words import Row
from treadle.server.forms import Name, NewSchedule, ScheduleCheck, ScheduleForm
from treadle.server.problems import Refused
from treadle.server.strict import read_json

router = APIRouter(route_class=PageRoute)

Typed = dict[str, str]
Problems = list[dict[str, str]]

FIELDS = ("name", "tenant", "task", "payload", "when", "cron", "every", "tz", "queue", "overlap", "misfire", "jitter",
          "timeout", "enabled", "reason")  # fmt: skip
SENT = ("task", "queue", "overlap", "misfire", "jitter", "timeout")  # as they are written
EMPTIED = {"jitter": "0s"}  # what a field says that was emptied; another one cannot be
BLANK = {"when": "cron", "tz": "UTC", "overlap": "allow", "misfire": "once", "enabled": "1"}
PARTS = {"schedule": ("when", "cron", "every", "tz")}  # fields that are one thing
CHANGES = ("changed", "created", "enabled", "disabled")  # events by which a schedule may have become what it is
LONGEST_SHOWN = 500  # characters of what somebody else has written
PLACES = {"timezone": "tz"}  # where a field of the API stands in the form, if it is called otherwise
CONTINENTS = (
    "Africa",
    "America",
    "Antarctica",
    "Arctic",
    "Asia",
    "Atlantic",
    "Australia",
    "Europe",
    "Indian",
    "Pacific",
)
MEANT = re.compile(r"did you mean '([^']+)'\?")
AS_TWO = re.compile(r"'([^']+)' runs backwards \(as two: ([^)]+)\)")


@router.get("/schedules/new")
def new(caller: PageReader, request: Request, task: Annotated[Name | None, Query()] = None) -> Response:
    """A form for a new schedule."""
    return _form(caller, request, {**BLANK, "task": task or ""})


@router.post("/schedules/new")
def create(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """Make it, or say which field is wrong and keep what was typed."""
    typed = _typed(posted)
    try:
        named = {name: typed[name] or None for name in ("name", "tenant")}
        form = read_into(NewSchedule, **named, **_options(typed))
        made = api.create(caller, form)["schedule"]
    except ERRORS as error:
        return _form(caller, request, typed, refused=refusal(request, error))
    return go(request, _path(caller, made))


@router.get("/schedules/{name}/edit")
def edit(caller: PageReader, request: Request, name: str, tenant: Annotated[Name | None, Query()] = None) -> Response:
    """The same form with what is there."""
    schedule = api.show(caller, name, tenant)["schedule"]
    return _form(caller, request, written(schedule), schedule)


@router.post("/schedules/{name}/edit")
def change(caller: PageOperator, request: Request, name: str, posted: Posted) -> Response:
    """Send what was changed in the form, and nothing else; but not over what somebody else has changed since."""
    found = api.show(caller, name)
    schedule, typed = found["schedule"], _typed(posted)
    if posted.get("id", schedule["id"]) != schedule["id"]:  # it is gone, and another has its name
        raise ScheduleNotFound(posted["id"], [])
    was, there = _was(posted, schedule), written(schedule)
    try:
        changes = _changes(typed, was)
        if overtaken := _overtaken(typed, was, there):
            was |= {name: there[name] for part in overtaken for name in PARTS.get(part, (part,))}
            raise _stale(overtaken, there, found["events"])
        form = read_into(ScheduleForm, **changes, reason=typed["reason"] or None)
        changed = api.update(caller, schedule["id"], form)["schedule"]
    except ERRORS as error:
        return _form(caller, request, typed, schedule, was=was, refused=refusal(request, error))
    return go(request, _path(caller, changed))


@router.post("/schedules/check")
def check(caller: PageReader, request: Request, posted: Posted) -> Response:
    """The form as it is, with what it would do and what is wrong; `fix` puts what was meant into a field."""
    schedule = api.show(caller, posted["id"])["schedule"] if "id" in posted else None
    typed = _typed(posted)
    field, _, meant = posted.get("fix", "").partition("=")
    if field in FIELDS:
        typed[field] = meant
    return _form(caller, request, typed, schedule, was=_was(posted, schedule) if schedule else None)


# ------------------------------------------------------------------------------------------ the page


def _form(
    caller: Caller,
    request: Request,
    typed: Mapping[str, str],
    schedule: Row | None = None,
    *,
    was: Typed | None = None,
    refused: Row | None = None,
) -> Response:
    typed = {**dict.fromkeys(FIELDS, ""), **typed}
    at = now(caller)
    was = was or (written(schedule) if schedule else None)
    found = _checked(request, caller, typed, schedule)
    problems = [*_problems_of(refused), *found["problems"]] if refused else found["problems"]
    hidden = ("name", "tenant") if schedule else ("tenant",) if caller.who.tenant is not None else ()
    errors = _errors(problems, typed, hidden)
    zone = typed["tz"] if typed["tz"] and "tz" not in errors and typed["when"] == "cron" else "UTC"
    tasks = overview_api.tasks(caller)["tasks"]
    return render(
        request,
        "schedule_form.html",
        caller,
        status=refused["status"] if refused else 200,
        at=at,
        typed=typed,
        schedule=schedule,
        path=_path(caller, schedule) if schedule else "/schedules",
        was=json.dumps(was) if was else None,
        errors=errors,
        stale=refused is not None and "stale" in refused,
        changed=refused.get("stale") if refused else None,
        anew=schedule_path(caller, schedule["name"], schedule["tenant"], schedule["id"], page="/edit")
        if schedule
        else "",
        words=found["words"],
        runs=runs(found["ticks"], zone, at),
        tasks=tasks,
        task=next((one for one in tasks if one["name"] == typed["task"]), None),
        zones=zones(),
        clock="" if "tz" in errors else _clock(datetime.fromisoformat(at), ZoneInfo(zone)),
        command=_command(typed, schedule, was),
        reason_of=reason_of,
    )


def _path(caller: Caller, schedule: Row) -> str:
    return schedule_path(caller, schedule["name"], schedule["tenant"], schedule["id"])


def _clock(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%H:%M}, {offset(at, zone)}"


def _checked(request: Request, caller: Caller, typed: Typed, schedule: Row | None) -> Row:
    """What the API says of it."""
    if not any(typed[name] for name in ("name", "task", "cron", "every", "payload")):
        return {"words": None, "ticks": [], "problems": []}
    problems: Problems = []
    try:
        options = _options({**typed, "payload": ""})
        try:
            options |= _payload(typed)
        except InvalidInput as error:
            problems.append({"field": error.field, "problem": error.problem})
            options["payload"] = {}
        named = {name: typed[name] or None for name in ("name", "tenant")} if schedule is None else {
            "name": schedule["name"], "tenant": schedule["tenant"], "id": schedule["id"]}  # fmt: skip
        if schedule is not None and schedule["for_each"]:
            options["for_each"] = schedule["for_each"]
        found = api.check(caller, read_into(ScheduleCheck, **named, **options))
    except ERRORS as error:
        return {"words": None, "ticks": [], "problems": [*problems, *_problems_of(refusal(request, error))]}
    told_already = {problem["field"] for problem in problems}
    return {**found, "problems": problems + [one for one in found["problems"] if one["field"] not in told_already]}


def _problems_of(refused: Row) -> Problems:
    """What a problem document says of each field."""
    if "problems" in refused:
        return list(refused["problems"])
    field = refused.get("field") or ("name" if refused["status"] == 409 else "")
    return [{"field": field, "problem": refused["detail"].removeprefix(f"{field}: ")}]


def _errors(problems: Problems, typed: Typed, hidden: Sequence[str]) -> dict[str, list[Row]]:
    """Problems by the field of the form that they stand under, with what was meant; those of none under ''."""
    found: dict[str, list[Row]] = {}
    for problem in problems:
        name, _, part = problem["field"].partition(".")
        field = typed["when"] if name == "schedule" else PLACES.get(name, name)
        text = f"{part}: {problem['problem']}" if part else problem["problem"]
        there = found.setdefault(field if field in FIELDS and field not in hidden else "", [])
        if not any(one["problem"] == text for one in there):
            first, _, rest = text.partition("; ")
            there.append({"problem": text, "first": first, "rest": rest, "meant": _meant(field, text, typed)})
    return found


def _meant(field: str, text: str, typed: Typed) -> str | None:
    """What a field should hold, if the API has guessed it."""
    if field in ("tz", "task") and (found := MEANT.search(text)):
        return found[1]
    if field == "cron" and (found := AS_TWO.search(text)):
        part = rf"(?<![\w-]){re.escape(found[1])}(?![\w-])"
        return re.sub(part, found[2], typed["cron"], count=1)
    return None


@cache
def zones() -> list[str]:
    """The time zones that are offered; others can be written."""
    return ["UTC", *sorted(name for name in available_timezones() if name.partition("/")[0] in CONTINENTS)]


# ------------------------------------------------------------------------------------ what was written


def _typed(posted: PostedFields) -> Typed:
    return {name: posted.get(name, "").replace("\r\n", "\n") for name in FIELDS}


def written(schedule: Row) -> Typed:
    """A schedule as it stands in the form."""
    return {
        **dict.fromkeys(FIELDS, ""),
        "name": schedule["name"],
        "task": schedule["task"],
        "payload": json.dumps(schedule["payload"], indent=2, ensure_ascii=False),
        "when": "every" if schedule["cron"] is None else "cron",
        "cron": schedule["cron"] or "",
        "every": "" if schedule["every"] is None else span(schedule["every"]),
        "tz": schedule["timezone"],
        "queue": schedule["queue"],
        "overlap": schedule["overlap"],
        "misfire": schedule["misfire"],
        "jitter": span(schedule["jitter"]) if schedule["jitter"] else "",
        "timeout": "" if schedule["timeout"] is None else span(schedule["timeout"]),
        "enabled": "1" if schedule["enabled"] else "",
    }


def _was(posted: PostedFields, schedule: Row) -> Typed:
    """What stood in the form when it was opened, so that what others have changed since is left alone."""
    try:
        found = read_json(posted.get("was", "").encode())
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict) and all(isinstance(found.get(name), str) for name in FIELDS):
        return {name: found[name] for name in FIELDS}
    return written(schedule)


def _options(typed: Typed) -> dict[str, Any]:
    """All that was written, as the API takes it."""
    time = _time(typed)
    options = {name: typed[name] for name in SENT if typed[name]}
    return {**options, **time, **_payload(typed), "enabled": bool(typed["enabled"]), "reason": typed["reason"]}


def _time(typed: Typed) -> dict[str, str]:
    """The expression with its time zone, or the interval; what stands in the other field is left alone."""
    names = ("every",) if typed["when"] == "every" else ("cron", "tz")
    return {name: typed[name] for name in names if typed[name]}


def _payload(typed: Typed) -> dict[str, Any]:
    if not typed["payload"].strip():
        return {}
    try:
        return {"payload": read_json(typed["payload"].encode())}
    except json.JSONDecodeError as error:
        raise InvalidInput("payload", f"is not valid JSON: {error}") from None


def _changes(typed: Typed, was: Typed) -> dict[str, Any]:
    """What was changed, as the API takes it."""
    times = ("when", "every") if typed["when"] == "every" else ("when", "cron", "tz")
    time = {name: value for name, value in _time(typed).items() if typed["when"] != was["when"] or value != was[name]}
    changed = [name for name in (*SENT, *times) if typed[name] != was[name]]
    for name in changed:
        if not typed[name] and name not in EMPTIED:
            raise InvalidInput(name, f"cannot be empty; it was {was[name]!r}")
    found: dict[str, Any] = {name: typed[name] or EMPTIED[name] for name in changed if name in SENT} | time
    payload = _payload(typed) or {"payload": {}}
    if payload != _payload(was):
        found |= payload
    if typed["enabled"] != was["enabled"]:
        found["enabled"] = bool(typed["enabled"])
    return found


def _overtaken(typed: Typed, was: Typed, there: Typed) -> list[str]:
    """What was changed in the form, and meanwhile by somebody else too, to something else."""
    mine, seen, now = _parts(typed), _parts(was), _parts(there)
    return [part for part in mine if mine[part] != seen[part] and now[part] not in (seen[part], mine[part])]


def _parts(typed: Typed) -> dict[str, Any]:
    """What a schedule is, part by part; its time is one of them."""
    payload = _payload(typed) or {"payload": {}}
    return {"schedule": _time(typed), **payload, **{name: typed[name] for name in (*SENT, "enabled")}}


def _stale(overtaken: Sequence[str], there: Typed, events: Sequence[Row]) -> Refused:
    """The answer to a form that is older than what somebody else has done."""
    last = next((event for event in reversed(events) if event["kind"] in CHANGES), None)
    shown = {**there, "schedule": ", ".join(_time(there).values())}
    problems = [{"field": part, "problem": f"it is {shown[part][:LONGEST_SHOWN] or 'empty'} now"} for part in overtaken]
    detail = "somebody has changed this schedule since you opened it; nothing was done"
    return Refused(409, detail, problems=problems, stale=last)


def _command(typed: Typed, schedule: Row | None, was: Typed | None) -> list[str]:
    """The command that does the same; empty if there is nothing to do."""
    try:
        given = _options(typed) if was is None else {**_changes(typed, was), "reason": typed["reason"]}
    except InvalidInput:  # the field says what is wrong; the command is told as far as it goes
        given = {name: typed[name] for name in SENT if typed[name]} | _time(typed)
    if was is not None and not any(value for name, value in given.items() if name != "reason"):
        return []
    if schedule is None:
        given = {name: value for name, value in given.items() if value != BLANK.get(name)}
        if given.get("enabled"):
            del given["enabled"]
        given |= {"tenant": typed["tenant"]}
        parts = ["schedules", "create", typed["name"] or "NAME"]
    else:
        parts = ["schedules", "update", schedule["id"] if schedule["name"].startswith("-") else schedule["name"]]
        if schedule["tenant"] != "default":
            given["tenant"] = schedule["tenant"]
    for name, value in given.items():
        if value is not None and value != "":
            parts += [f"--{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
    return parts
