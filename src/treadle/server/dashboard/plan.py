"""An act on many jobs before it is done: how many, what becomes of them, what will be refused, and the command."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import Request

from treadle.errors import InvalidInput
from treadle.server import jobs as api
from treadle.server import overview as overview_api
from treadle.server.caller import Caller
from treadle.server.dashboard import search
from treadle.server.dashboard.holding import scope_held
from treadle.server.dashboard.posted import read_into
from treadle.server.dashboard.words import plural
from treadle.server.forms import BulkForm, JobQuery

MOST_READ = 200  # jobs that are read to say of which tasks they are
ICONS = {"retry": "s-retrying", "cancel": "s-cancelled", "delete": "s-failed"}
BECOMES = {
    "retry": "run again, each with fresh attempts",
    "cancel": "will not run; those that run now are asked to stop, and may yet succeed",
    "delete": "are gone for good, with payload and result; the audit trail keeps who did it and why",
}
DONE = {"retry": "wait to be run again", "cancel": "are cancelled", "delete": "are deleted"}
DONE_ONE = {"retry": "waits to be run again", "cancel": "is cancelled", "delete": "is deleted"}
STATES = {  # of which acts are offered; a profile's words are left to the API
    "retry": ("failed", "dead", "cancelled", "expired"),
    "cancel": ("pending", "scheduled", "retrying", "running", "claimed"),
    "delete": ("pending", "scheduled", "retrying", "succeeded", "failed", "dead", "cancelled", "expired"),
}


class Meant(NamedTuple):
    """The jobs that are meant: those with these ids, or if there are none, those that fit the filters."""

    filters: Mapping[str, str] = {}
    ids: Sequence[str] = ()


def form(action: str | None, which: Meant, **more: Any) -> BulkForm:
    """The API's form of this act; InvalidInput for what it cannot mean."""
    filters = dict(which.filters)
    if which.ids:
        return read_into(BulkForm, action=action, filter={"ids": [*dict.fromkeys(which.ids)]}, **more)
    if "text" in filters:
        raise InvalidInput("text", "no act goes by a text in the payload: select rows, or take this filter away")
    if not filters:
        every = f"treadle jobs {action} --all" if action in DONE else "treadle jobs --help"
        raise InvalidInput("filter", f"nothing is named: filter first, or select rows; all jobs at once: `{every}`")
    return read_into(BulkForm, action=action, filter=filters, **more)


def offered(state: str | None) -> list[str]:
    """The acts that make sense for jobs of this state."""
    known = {word for words in STATES.values() for word in words}
    return [act for act, words in STATES.items() if state is None or state not in known or state in words]


def plan(caller: Caller, request: Request, action: str | None, which: Meant, reason: str = "") -> dict[str, Any]:
    """What the act would do; nothing is done. Its `confirm` and its number do it."""
    asked = form(action, which)
    found = api.act_on_many(caller, request, asked)
    act, sure = asked.action, found["found"] - found["not_possible"]
    return {
        "action": act,
        "icon": ICONS[act],
        "found": found["found"],
        "exact": found["exact"],
        "many": f"{'' if found['exact'] else 'at least '}{plural(sure, 'job')}",
        "sure": sure,
        "wording": "selected jobs" if which.ids else _wording(act, which.filters),
        "becomes": BECOMES[act],
        "tasks": _tasks(caller, which, found),
        "refused": found["not_possible"],
        "problems": found["problems"],
        "waits": _held(caller, which) if act == "retry" else "",
        "confirm": found["confirm"],
        "which": which,
        "reason": reason,
        "command": ["jobs", act, *_named(which, found), "--reason", reason or "…"],
    }


def outcome(action: str, done: int, asked: int = 0) -> str:
    """What was done: 212 jobs wait to be run again."""
    ended = done - asked
    first = f"{plural(ended, 'job')} {(DONE_ONE if ended == 1 else DONE)[action]}" if ended or not asked else ""
    stop = (
        f"{plural(asked, 'job')} still {'runs and is' if asked == 1 else 'run and are'} asked to stop" if asked else ""
    )
    return "; ".join(filter(None, (first, stop)))


def _wording(act: str, filters: Mapping[str, str]) -> str:
    words = search.in_words(filters)
    usual = {"retry": "failed ", "cancel": "waiting and running "}
    return words if "state" in filters else usual.get(act, "waiting and ended ") + words


def _named(which: Meant, found: Mapping[str, Any]) -> list[str]:
    if which.ids:
        return [*which.ids]
    return [*search.options(which.filters), *(["--expect", str(found["found"])] if found["exact"] else [])]


def _tasks(caller: Caller, which: Meant, found: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Of which tasks they are, most first; nothing if there are too many to look, or all are of one."""
    if which.ids or "state" not in which.filters or "task" in which.filters:
        return []
    if not found["exact"] or not 1 < found["found"] <= MOST_READ:
        return []
    jobs = api.list_jobs(caller, read_into(JobQuery, **which.filters, limit=MOST_READ))["jobs"]
    counted = Counter(job["task"] for job in jobs)
    return counted.most_common(5) if len(jobs) == found["found"] else []


def _held(caller: Caller, which: Meant) -> str:
    """The pause that they would wait for."""
    return scope_held(overview_api.pauses(caller)["pauses"], {"tenant": caller.who.tenant, **which.filters})
