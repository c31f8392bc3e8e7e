"""Failures: is this new, how many, one cause or several; each kind with its counts over time and a way to retry it."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.errors import JobNotFound
from treadle.server import jobs as jobs_api
from treadle.server import overview as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import ERRORS, PageReader, PageRoute, now, refusal, render
from treadle.server.dashboard.posted import read_into
from treadle.server.dashboard.words import Row, moment
from treadle.server.forms import FailureQuery

router = APIRouter(route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=1000)]

SHOWN = 40  # kinds of one page
MOST_BARS = 48
MOST_MESSAGE = 400  # characters of a message that are shown in the list
BUCKETS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
SPANS = ("1h", "24h", "7d")
FRESH = timedelta(hours=1)  # what came first within it is new


@router.get("/failures")
def show(
    caller: PageReader,
    request: Request,
    task: Text = None,
    queue: Text = None,
    tenant: Text = None,
    since: Text = None,
    cursor: Text = None,
    by: Annotated[Literal["new", "most", "latest"], Query()] = "new",
    opened: Annotated[str | None, Query(alias="open", max_length=64)] = None,
    skip: Annotated[int, Query(ge=0, le=100_000)] = 0,
) -> Response:
    """What went wrong, by kind. One of them may be open, with the traceback of its latest job."""
    typed = {"task": task, "queue": queue, "tenant": tenant, "since": since}
    values: Row = {"typed": typed, "by": by, "cursor": cursor, "skip": skip, "spans": SPANS, "opened": opened}
    given = {name: text or None for name, text in {**typed, "cursor": cursor}.items()}
    try:
        found = api.failures(caller, read_into(FailureQuery, **given))
    except ERRORS as error:
        problem, at = refusal(request, error), now(caller)
        return render(
            request, "failures.html", caller, status=problem["status"], at=at, found=None, problem=problem, **values
        )
    causes = Counter((group["type"], group["frame"]) for group in found["failures"])
    groups = [_group(group, found, given, causes) for group in found["failures"]]
    total = _total(groups)
    groups.sort(key=ORDERS[by])
    shown = groups[skip : skip + SHOWN]
    values |= {"groups": shown, "kinds": len(groups), "total": total, "chart": _chart(found)}
    values["sample"] = _sample(caller, next((one for one in shown if one["fingerprint"] == opened), None))
    return render(request, "failures.html", caller, at=found["at"], found=found, problem=None, **values)


def _jobs_of(group: Row) -> int:
    return int(group["failed"] + group["retrying"])


ORDERS = {
    "new": lambda one: (not one["new"], -_jobs_of(one), one["fingerprint"]),
    "most": lambda one: (-_jobs_of(one), one["fingerprint"]),
    "latest": lambda one: (-_instant(one["last_seen"]).timestamp(), one["fingerprint"]),
}


def _group(group: Row, found: Row, given: dict[str, str | None], causes: Counter[tuple[str, str]]) -> Row:
    """A kind as the page shows it; `alike` are the others of the same error from the same place."""
    cause = (group["type"], group["frame"])
    at, first, last = (_instant(moment) for moment in (found["at"], group["first_seen"], group["last_seen"]))
    new = _tells_new(found, given) and first >= at - FRESH
    return {
        **group,
        "new": new,
        "word": "new" if new else "quiet" if last < at - FRESH else "steady",
        "name": group["type"].rpartition(".")[2] or "No error",
        "message": group["message"][:MOST_MESSAGE],
        "cause": cause if group["frame"] else None,
        "alike": causes[cause] - 1 if group["frame"] else 0,
        "bars": _bars(group, found),
        "command": _command(group["fingerprint"], given),
        "which": {name: text for name, text in given.items() if name != "cursor"},
    }


def _tells_new(found: Row, given: dict[str, str | None]) -> bool:
    """Whether this look reaches further back than what is new: else nobody can tell that something is."""
    if given["cursor"] or not found["back_to"]:
        return False
    if _instant(found["back_to"]) < _instant(found["at"]) - FRESH:
        return True
    return found["cursor"] is None and given["since"] in (None, *SPANS[1:])


def _total(groups: Sequence[Row]) -> Row:
    """The numbers of the sentence that comes first: how many, what is new, and whether it seems to have one cause."""
    new = [one for one in groups if one["new"]]
    causes = {one["cause"] for one in new}
    return {
        "failed": sum(one["failed"] for one in groups),
        "retrying": sum(one["retrying"] for one in groups),
        "new": len(new),
        "since": min((one["first_seen"] for one in new), key=_instant, default=None),
        "one_cause": len(new) > 1 and len(causes) == 1 and None not in causes,
    }


def _command(fingerprint: str, given: dict[str, str | None]) -> list[str]:
    """The command that retries a kind, as far as it is shown here."""
    options = [word for name in ("task", "queue", "tenant", "since") if (text := given[name])
               for word in (f"--{name}", text)]  # fmt: skip
    return ["jobs", "retry", "--fingerprint", fingerprint, *options]


# ------------------------------------------------------------------------------------- counts over time


def _chart(found: Row) -> Row | None:
    """Since when the bars count, and how long each is."""
    if not found["back_to"]:
        return None
    since, each, count = _scale(found)
    return {"since": since, "step": each.total_seconds(), "count": count}


def _bars(group: Row, found: Row) -> list[int]:
    """How many jobs of a kind went wrong in each step of time, up to now."""
    since, each, count = _scale(found)
    numbers = [0] * count
    for bucket in group["over_time"]:
        place = (_instant(bucket["at"]) - since) // each
        numbers[min(max(place, 0), count - 1)] += bucket["number"]
    return numbers


def _scale(found: Row) -> tuple[datetime, timedelta, int]:
    """Where the bars begin, how long each is, and how many reach until now: the same for every kind."""
    bucket = BUCKETS[found["bucket"]]
    since, until = _instant(found["back_to"]), _instant(found["at"])
    since -= (since - datetime.min.replace(tzinfo=since.tzinfo)) % bucket
    buckets = max(1, -((since - until) // bucket))
    each = bucket * -(-buckets // MOST_BARS)
    return since, each, -((since - until) // each) or 1


# --------------------------------------------------------------------------------------- the one that is open


def _sample(caller: Caller, group: Row | None) -> Row | None:
    """The error of the latest job of a kind, with its traceback by lines."""
    if group is None:
        return None
    try:
        job = jobs_api.show_job(caller, group["job_id"], 1)["job"]
    except JobNotFound:  # it was deleted a moment ago
        return None
    error = job["error"] or {"type": "", "message": "", "traceback": "", "attempt": None, "at": None}
    return {"job": job["id"], "task": job["task"], "error": error, "lines": error["traceback"].rstrip().split("\n")}


def _instant(value: str) -> datetime:
    found = moment(value)
    assert found is not None  # noqa: S101 - the API always says it
    return found
