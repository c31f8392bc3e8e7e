"""Workers: who is alive, what each runs now, whether anything was lost; drain one."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from treadle.server import jobs as jobs_api
from treadle.server import overview as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import ERRORS, PageOperator, PageReader, PageRoute, go, now, refusal, render
from treadle.server.dashboard.posted import Posted, read_into
from treadle.server.dashboard.words import Row, moment
from treadle.server.forms import AuditQuery, JobQuery, ReasonForm
from treadle.server.problems import Refused

router = APIRouter(route_class=PageRoute)

MOST_RUNNING = 200  # running jobs that are read
MOST_ROWS = 80  # workers of one page
MOST_SHOWN = 5  # jobs of one worker that are named
MOST_LOST, LOST_SINCE = 100, "1d"  # events of lost jobs that are read
AWAY = ("silent", "draining")  # workers that take no jobs come first; the others stay where their name puts them
MIB, GIB = 1024**2, 1024**3
NUMBERS = re.compile(r"\d+")
TWIN = re.compile(r" #\d+$")


@router.get("/workers")
def show(
    caller: PageReader,
    request: Request,
    act: Annotated[Literal["drain"] | None, Query()] = None,
    worker: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """All workers: those that were lost first."""
    return _page(caller, request, act, worker)


@router.post("/workers/drain")
def drain(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """Ask a worker to finish what it runs and to take no more."""
    name = posted.get("worker", "")
    try:
        api.drain(caller, name, read_into(ReasonForm, reason=posted.get("reason")))
    except ERRORS as error:
        return _page(caller, request, "drain", name, refusal(request, error), posted.get("reason", ""))
    return go(request, "/workers")


def _page(
    caller: Caller, request: Request, act: str | None, name: str, problem: Row | None = None, reason: str = ""
) -> Response:
    try:
        workers = api.workers(caller, silent=True)["workers"]
    except Refused as error:
        if error.status != 403:
            raise
        return render(request, "workers.html", caller, status=403, rows=None, problem=refusal(request, error), act=None)
    at = now(caller)
    rows = _rows(caller, workers, at)
    alive = [row for row in rows if not row["silent"]]
    lost = [row for row in rows if row["silent"]]
    return render(
        request,
        "workers.html",
        caller,
        status=problem["status"] if problem else 200,
        at=at,
        rows=rows[:MOST_ROWS],
        hidden=len(rows) - len(rows[:MOST_ROWS]),
        alive=len(alive),
        busy=sum(row["running"] for row in alive),
        slots=sum(row["concurrency"] for row in alive),
        lost=lost,
        act=act,
        name=name,
        reason=reason,
        problem=problem,
        known=any(row["name"] == name for row in rows[:MOST_ROWS]),
    )


def _rows(caller: Caller, workers: Sequence[Row], at: str) -> list[Row]:
    """The workers, those that need somebody first, with the jobs that each runs."""
    jobs = jobs_api.list_jobs(caller, JobQuery(state="running", limit=MOST_RUNNING))["jobs"]
    held: dict[str, list[Row]] = {}
    for job in sorted(jobs, key=lambda job: job["started_at"] or job["claimed_at"] or job["created_at"]):
        held.setdefault(job["worker"], []).append(_job(job, at))
    found = _lost(caller) if any(worker["silent"] for worker in workers) else Counter()
    newest = max((_parts(worker["version"]) for worker in workers if not worker["silent"]), default=())
    serving = Counter(queue for worker in workers if _word(worker) not in AWAY for queue in worker["queues"])
    rows = []
    for worker in workers:
        given = TWIN.sub("", worker["name"])
        there = held.get(worker["name"], held.get(given, []))
        rows.append(
            {
                **worker,
                "word": _word(worker),
                "jobs": there[:MOST_SHOWN],
                "more": max(0, len(there) - MOST_SHOWN),
                "held": len(there),
                "all_read": len(jobs) < MOST_RUNNING,
                "recovered": found[worker["name"]] or found[given],
                "older": bool(worker["version"]) and _parts(worker["version"]) < newest,
                "memory": _size(worker["memory"]),
                "alone": [queue for queue in worker["queues"] if serving[queue] == 1],
            }
        )
    return sorted(rows, key=lambda row: (AWAY.index(row["word"]) if row["word"] in AWAY else len(AWAY), row["name"]))


def _word(worker: Row) -> str:
    """How a worker does."""
    if worker["silent"]:
        return "silent"
    if worker["stopping"] or worker["drain"]:
        return "draining"
    if worker["running"] >= worker["concurrency"]:
        return "busy"
    return "working" if worker["running"] else "idle"


def _job(job: Row, at: str) -> Row:
    """A job that runs: how far it is, and for how long it runs of how long it may."""
    began, now = moment(job["started_at"] or job["claimed_at"]), moment(at)
    ran = max(0.0, (now - began).total_seconds()) if began and now else None
    late = bool(job["timeout"] and ran and ran > job["timeout"])
    lease = moment(job["lease_until"])
    return {**job, "ran": ran, "late": late, "left": bool(lease and now and lease < now)}


def _lost(caller: Caller) -> Counter[str]:
    """By worker, how many jobs were found and set free after it had been lost, of a day's latest hundred."""
    events = api.audit(caller, AuditQuery(kind="crashed", since=LOST_SINCE, limit=MOST_LOST))["events"]
    notes = (re.match(r"the lease of worker (.+) ran out on attempt \d+", event["note"] or "") for event in events)
    return Counter(note.group(1) for note in notes if note)


def _parts(version: str | None) -> tuple[int, ...]:
    """A version, to be compared."""
    return tuple(int(number) for number in NUMBERS.findall(version or "")[:4])


def _size(held: int | None) -> str:
    if held is None:
        return "–"
    return f"{held / MIB:,.0f} MiB" if held < GIB else f"{held / GIB:,.1f} GiB"
