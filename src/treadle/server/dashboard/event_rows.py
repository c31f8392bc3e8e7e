"""Events as rows of a page: what each was done to, where that is shown, and why."""

from treadle.model import EventKind
from treadle.model.records import subject_of_schedule
from treadle.server.caller import Caller
from treadle.server.dashboard.schedule_rows import schedule_path
from treadle.server.dashboard.words import Row, shape_of

MARKED = ("failed", "crashed", "paused")  # acts that are shown with their shape


def event_row(caller: Caller, event: Row) -> Row:
    """An act in words: what was done to what, where that is shown, and why."""
    about, path = _subject(caller, event)
    note = event["note"]
    if about:
        note = note.removeprefix(about).removeprefix(": ")
    return {
        **event,
        "about": about,
        "path": path,
        "why": note,
        "by": EventKind(event["kind"]).by_hand,
        "shape": shape_of(event["kind"]) if event["kind"] in MARKED else None,
        "id": f"{event['job']}-{event['revision']}",
    }


def _subject(caller: Caller, event: Row) -> tuple[str, str]:
    """What an act was done to, in words, unless it is a job; and its page, if it has one."""
    about, kind, name = event["note"].partition(": ")[0], event["kind"], _schedule_of(event)
    if kind in ("paused", "resumed"):
        return about, "/queues"
    if name is not None:
        return f"schedule {name}", "" if kind == "deleted" else schedule_path(caller, name, event["tenant"])
    if about.startswith("token ") and kind in ("created", "revoked"):
        return about, ""
    return "", f"/jobs/{event['job']}"


def _schedule_of(event: Row) -> str | None:
    """The name of the schedule that an event is about; the name and the reason behind it may both hold a colon."""
    parts = event["note"].removeprefix("schedule ").split(": ")
    names = (": ".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in names if subject_of_schedule(event["tenant"], name) == event["job"]), None)
