"""`treadle why`, `workers`, `costs` and `budgets`: why a job does not run, who is alive, what was spent."""

from collections import Counter
from contextlib import closing
from datetime import date, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from treadle.app.budgets import TenantBudget
from treadle.app.operations import MOST_DAYS
from treadle.app.views import budgets_view, crew_view, standing, worker_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.jobs import NARROW, Id, actor, check_id, resolved
from treadle.cli.terminal import age, clock, coloured, document, safe, say, table, width
from treadle.errors import InvalidJob
from treadle.model.records import WorkerInfo

WORKERS = ("name", "host", "queues", "tasks", "slots", "since", "seen", "memory", "version")
NARROW_WORKERS = ("name", "queues", "tasks", "slots", "since", "seen")  # a name has the host in it, unless it was given
MIB = 1024**2
COSTS = ("tenant", "task", "micros", "units")
UNIT = 1_000_000  # micros
BUDGETS = {"spent": "error", "near": "warning", "within": "ok"}  # a state, and how it is coloured
NO_BUDGETS = "no tenant has a budget; `budgets` in the settings gives one: docs/costs.md"
YEARS = range(1970, 3000)


def why(id: Id, app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Say why a job does not run, the firmest reason first; of one that runs, who has it."""
    check_id(id)
    with closing(find_target(app, url)) as store:
        known = resolved(store, id)
        job, obstacles = store.get(known), store.why(known)
        view, profile, now = store.view(job), store.profile, store.engine.now()
    if as_json:
        document({"job": view, "obstacles": [obstacle._asdict() for obstacle in obstacles]})
        return
    state = coloured(job.label(now), standing(job, now, profile))
    say(job.id, f"  {safe(job.task)} on queue {safe(job.queue)}, tenant {safe(job.tenant)}: ", state)
    for obstacle in obstacles:
        say(f"  {safe(obstacle.text)}")


def workers(
    app: options.App = None,
    url: options.Url = None,
    silent: Annotated[bool, typer.Option("--silent", help="Also those not heard of lately, of the last day.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the workers that are alive, as they last said.

    "slots" has how many are busy and how many there are; a worker also holds jobs that wait for the next free slot,
    such as 10/10 +7. "tasks" has how many tasks a worker knows (--json names them). "memory" is that of its process.
    """
    with closing(find_target(app, url)) as store:
        members, drains, now = store.workers(silent=silent), store.drains(), store.engine.now()
    if as_json:
        document({"workers": crew_view(members, drains, now)})
        return
    if not members:
        say("no worker is alive; `treadle worker` starts one")
        return
    narrow = (room := width()) is not None and room < NARROW
    headers = NARROW_WORKERS if narrow else WORKERS
    cells = [dict(zip(WORKERS, _worker(member, now), strict=True)) for member in members]
    table(headers, [[cell[header] for header in headers] for cell in cells], right=["tasks", "memory"])
    for view in crew_view(members, drains, now):
        if (asked := view["drain"]) is not None and not view["stopping"]:
            why = f": {safe(asked['reason'])}" if asked["reason"] else ""
            say(f"{safe(view['name'])} was asked to stop by {safe(asked['actor'])}{why}")
    for name, number in Counter(member.given_name for member in members if member.alive(now)).items():
        if number > 1:
            say(coloured("warning", f"{number} live workers are called {safe(name)}: give each a --name of its own"))


def drain(
    name: Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `treadle workers` lists it.")],
    app: options.App = None,
    url: options.Url = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Ask a worker to stop: it finishes what it runs, takes no more jobs, and exits.

    It hears of it with its next heartbeat, within seconds. A supervisor may start it again.
    """
    with closing(find_target(app, url)) as store:
        member = store.drain(name, actor=actor(), reason=reason)
    if as_json:
        document({"worker": worker_view(member)})
    else:
        say(f"{safe(member.name)} was asked to stop; it finishes {member.busy} running jobs first")


def costs(
    app: options.App = None,
    url: options.Url = None,
    day: Annotated[
        str | None, typer.Option("--day", metavar="DATE", help="In UTC: 2026-11-15; today if left out.")
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", help="That day and those before it.")] = 1,
    tenant: options.OfTenant = None,
    as_json: options.Json = False,
) -> None:
    """Add up what jobs have cost, by tenant and task; a job counts on the day it ends.

    Handlers say what they spend in micros, millionths of your currency: 1,000,000 micros are 1.00 units.
    """
    last = _day(day)
    if not 1 <= days <= MOST_DAYS:
        raise InvalidJob("--days", f"{days} must be from 1 to {MOST_DAYS:,}")
    with closing(find_target(app, url)) as store:
        last = last or store.engine.now().date()
        spent = store.costs(last, days=days, tenant=tenant)
    first, total = last - timedelta(days=days - 1), sum(cost.micros for cost in spent)
    places = _places([cost.micros for cost in spent])
    if as_json:
        rows = [{**cost._asdict(), "units": _units(cost.micros, places)} for cost in spent]
        span = {"first_day": first.isoformat(), "last_day": last.isoformat()}
        document({**span, "costs": rows, "total": {"micros": total, "units": _units(total, places)}})
        return
    period = f"on {last}" if days == 1 else f"from {first} to {last}"
    if not spent:
        say(f"nothing was spent {period} (UTC)")
        return
    cells = [(safe(cost.tenant), safe(cost.task), f"{cost.micros:,}", _units(cost.micros, places)) for cost in spent]
    table(COSTS, [*cells, ("total", "", f"{total:,}", _units(total, places))], right=["micros", "units"])
    say(Text(f"of jobs that ended {period} (UTC)", "dim"))


def budgets(
    app: options.App = None, url: options.Url = None, tenant: options.OfTenant = None, as_json: options.Json = False
) -> None:
    """Show what each tenant that has a budget has spent of it today, and which it has paused.

    The budgets are those of the settings here, or of the server that is asked. Days are UTC.
    """
    with closing(find_target(app, url)) as store:
        found = store.budgets(tenant=tenant)
    if as_json:
        document(budgets_view(found))
        return
    if not found.tenants:
        say(NO_BUDGETS if found.others is None else f"of {found.others:,} micros a day, no tenant has spent any today")
        return
    places = _places([amount for one in found.tenants for amount in (one.spent, one.budget or 0)])
    rows = [
        (safe(one.tenant), _units(one.spent, places), "?" if one.budget is None else _units(one.budget, places),
         coloured(BUDGETS[one.state], one.state), _held(one))
        for one in found.tenants
    ]  # fmt: skip
    table(("tenant", "spent", "budget", "state", "paused"), rows, right=["spent", "budget"])
    say(Text(f"units spent on {found.day} (UTC) by jobs that have ended", "dim"))


def _held(one: TenantBudget) -> str:
    """By whom it is paused and until when."""
    if one.pause is None:
        return ""
    until = "" if one.pause.until is None else f" until {clock(one.pause.until)}"
    return f"by {safe(one.pause.actor)}{until}"


def _worker(member: WorkerInfo, now: datetime) -> tuple[str, ...]:
    lanes = "" if member.lanes is None else f" (lanes {', '.join(member.lanes)})"
    state = ", stopping" if member.stopping else ""
    state = state if member.alive(now) else ", silent"
    return (
        safe(member.name),
        safe(member.host),
        safe(", ".join(member.queues) + lanes),
        f"{len(member.task_names):,}",
        f"{slots(member)}{state}",
        age(member.started_at, now),
        age(member.seen_at, now),
        "" if member.memory is None else f"{member.memory / MIB:,.0f} MiB",
        safe(member.version or ""),
    )


def slots(worker: WorkerInfo) -> str:
    """How many slots are busy, of how many; what it holds beyond them waits in the worker for a slot."""
    waiting = f" +{worker.waiting}" if worker.waiting else ""
    return f"{worker.busy}/{worker.concurrency}{waiting}"


def _day(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise InvalidJob("--day", f"{text!r} is no day; write one such as 2026-11-15") from None
    if found.year not in YEARS:
        raise InvalidJob("--day", f"the year {found.year} is out of range; it must be from {YEARS[0]} to {YEARS[-1]}")
    return found


def _places(amounts: list[int]) -> int:
    """How many decimals all of these need, two at least, so that they stand below each other and none is rounded."""
    needed = [len(f"{amount % UNIT:06}".rstrip("0")) for amount in amounts]
    return max(2, *needed, 0)


def _units(micros: int, places: int) -> str:
    return f"{micros // UNIT:,}.{f'{micros % UNIT:06}'[:places]}"
