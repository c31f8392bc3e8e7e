"""Schedules as rows of a page, each with its address, its time in words, its next runs and how its last job did."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import quote
from zoneinfo import ZoneInfo

from treadle.app.lasts import SWITCHES
from treadle.errors import InvalidInput, JobNotFound
from treadle.model.clock import span
from treadle.schedules.cron import FIRST, MOVED, ONCE, SECOND
from treadle.server import jobs as jobs_api
from treadle.server import schedules as api
from treadle.server.caller import Caller
from treadle.server.dashboard.holding import scope_held
from treadle.server.dashboard.page import with_query
from treadle.server.dashboard.words import Row, capital, duration, moment

RUNS = 5
LATE = timedelta(minutes=1)  # a run that nobody has made into a job by then is overdue, as /metrics has it
FAR = timedelta(days=300)  # a run that is further away is told with its year
TAKEN = ("new", "check", ".", "..")  # names that an address of ours, or a browser, takes for something else
PLAIN = re.compile(r"[\w .@:+~-]{1,100}")
NOTES = {
    MOVED: "Clocks are set forward: its time does not exist that day. It runs once, at the end of the gap.",
    ONCE: "Clocks are set back: this time comes twice. It runs once, the first time.",
    FIRST: "Clocks are set back: this time comes twice, and both run. This is the first.",
    SECOND: "Clocks are set back: this time comes twice, and both run. This is the second.",
}


def schedule_path(caller: Caller, name: str, tenant: str, id: str = "", *, page: str = "") -> str:
    """The path of its page, or of a page below it: by its name, or by its id if an address does not hold the name.

    It is empty if there is neither.
    """
    if name in TAKEN or not PLAIN.fullmatch(name):
        return f"/schedules/{id}{page}" if id else ""
    usual = caller.who.tenant or "default"
    return with_query(f"/schedules/{quote(name, safe='')}{page}", tenant=None if tenant == usual else tenant)


def row(caller: Caller, schedule: Row, at: str, pauses: Sequence[Row]) -> Row:
    """A schedule as a row of the list: it is told with its `last` job, and with how it was `switched` off."""
    words, ticks = _timing(caller, schedule, at)
    zone, here, next_at = ZoneInfo(schedule["timezone"]), moment(at), moment(schedule["next_at"])
    last, switched = _last(schedule["last_job"], schedule["last"]), schedule["switched"]
    named = {field: schedule[field] for field in ("name", "tenant", "id")}
    elsewhere = caller.who.tenant is None and schedule["tenant"] != "default"
    called = [schedule["id"]] if schedule["name"].startswith("-") else [schedule["name"]]
    local = (
        "" if next_at is None or zone.key == "UTC" else f"{next_at.astimezone(zone):%a %H:%M} {offset(next_at, zone)}"
    )
    return {
        **schedule,
        "words": words,
        "more": _more(schedule),
        "spelt": schedule["cron"] or f"every {span(schedule['every'])}",
        "path": schedule_path(caller, **named),
        "edit_path": schedule_path(caller, **named, page="/edit"),
        "elsewhere": elsewhere,
        "called": called + (["--tenant", schedule["tenant"]] if elsewhere else []),
        "local": local,
        "late": schedule["enabled"] and next_at is not None and here is not None and here - next_at > LATE,
        "change": next((one for one in runs(ticks, schedule["timezone"], at) if one["note"]), None),
        "last": last,
        "failing": last is not None and last["state"] == "failed",
        "waits": scope_held(pauses, schedule),
        "switched": switched and {**switched, "why": reason_of(switched, schedule)},
    }


def runs(ticks: Sequence[dict[str, str]], zone: str, at: str) -> list[Row]:
    """Runs to come, by the local clock with its offset and in UTC; notes say where clocks are changed."""
    here = datetime.fromisoformat(at)
    shown, before = [], offset(here, ZoneInfo(zone))
    for tick in ticks:
        instant, local = datetime.fromisoformat(tick["at"]), datetime.fromisoformat(tick["local"])
        then, note = offset(instant, ZoneInfo(zone)), NOTES.get(tick["note"], tick["note"])
        if not note and then != before:
            note = f"Clocks have changed: {then} from here on, it was {before}."
        days = {"local": f"{local:%a} {_day(local, instant - here)}", "utc": _day(instant, instant - here)}
        shown.append({"at": tick["at"], **days, "offset": then, "note": note, "moved": bool(tick["note"])})
        before = then
    return shown


def _day(when: datetime, away: timedelta) -> str:
    day = f"{when:%-d %B}" + (f" {when:%Y}" if abs(away) > FAR else "")
    return f"{day} {when:%H:%M:%S}" if when.second else f"{day} {when:%H:%M}"


def offset(when: datetime, zone: ZoneInfo) -> str:
    """How far the clocks of a zone are from UTC then: +01:00."""
    return when.astimezone(zone).isoformat()[-6:]


def _timing(caller: Caller, schedule: Row, at: str) -> tuple[str, list[dict[str, str]]]:
    """Its time in words, and its next runs if it goes by the clock."""
    if schedule["cron"] is None:
        return f"Every {duration(schedule['every'])}", []
    try:
        found = api.explain_cron(caller, schedule["cron"], schedule["timezone"], RUNS, moment(at))
    except InvalidInput as error:  # another program wrote the row; the next worker switches it off
        return f"It cannot be read: {error}", []
    return capital(found["words"]), found["ticks"]


def _more(schedule: Row) -> str:
    """What the words of its time do not say."""
    more = f", for each of {schedule['for_each']}" if schedule["for_each"] else ""
    return more + {"skip": ", skipped while one runs", "queue_one": ", one waits while one runs"}.get(
        schedule["overlap"], ""
    )


def _last(job_id: str | None, job: Row | None) -> Row | None:
    """How the last job that it made by itself did; of one that is no longer kept, nothing but its id."""
    if job_id is None:
        return None
    if job is None:
        return {"id": job_id, "state": None}
    begun, ended = moment(job["started_at"]), moment(job["finished_at"])
    took = (ended - begun).total_seconds() if begun and ended else None
    return {"id": job_id, "state": job["state"], "label": job["label"], "reason": job["reason"],
            "ended": job["finished_at"], "since": job["started_at"] or job["created_at"], "took": took}  # fmt: skip


def with_last(caller: Caller, schedule: Row, events: Sequence[Row]) -> Row:
    """A schedule as the list tells it: with its last job, and how it was switched off."""
    off = [event for event in events if event["kind"] in SWITCHES] if not schedule["enabled"] else []
    try:
        job = jobs_api.show_job(caller, schedule["last_job"], 1)["job"] if schedule["last_job"] else None
    except JobNotFound:
        job = None
    return {**schedule, "last": job, "switched": off[-1] if off else None}


def reason_of(event: Row, schedule: Row) -> str:
    """The reason that somebody gave for an act on this schedule."""
    return str(event["note"]).removeprefix(f"schedule {schedule['name']}").removeprefix(": ")
