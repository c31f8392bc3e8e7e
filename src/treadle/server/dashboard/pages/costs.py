"""Costs: what was spent by tenant and day, who is near their budget or above it, and what happens then."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from treadle.server import overview as api
from treadle.server.caller import Caller
from treadle.server.dashboard.page import ERRORS, PageReader, PageRoute, now, refusal, render
from treadle.server.dashboard.words import Row

router = APIRouter(route_class=PageRoute)

SPANS = (1, 7, 30)
UNIT = 1_000_000  # micros
MOST_TENANTS = 50
MOST_TASKS = 3  # of a tenant that are named
HEIGHT = 120  # pixels of the bars


@router.get("/costs")
def show(
    caller: PageReader,
    request: Request,
    days: Annotated[int, Query(ge=1, le=30)] = 7,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """What the jobs that ended on these days have cost, and today's budgets."""
    values: Row = {"days": days, "spans": SPANS, "tenant": tenant, "at": now(caller)}
    try:
        found = api.budgets(caller, None)  # all of them: the command that raises one names the others too
        spent = _spent(caller, found["day"], days, tenant or None)
    except ERRORS as error:
        problem = refusal(request, error)
        status = problem["status"]
        return render(request, "costs.html", caller, status=status, problem=problem, tenants=[], **values)
    shown = [one for one in found["budgets"] if tenant in (None, "", one["tenant"])]
    amounts = [cost["micros"] for _, costs in spent for cost in costs]
    places = _places(amounts + [one["budget"] or 0 for one in shown])
    values |= {
        "problem": None,
        "others": found["others"],
        "budgets": [_budget(one, found["budgets"], found["others"]) for one in shown],
        "tenants": _tenants(spent),
        "total": sum(amounts),
        "chart": _chart(spent),
        "units": lambda micros: _units(micros, places),
        "about": lambda micros: _units(micros, 2 if micros >= UNIT // 100 else places),
        "shown": MOST_TENANTS,
        "midnight": f"{date.fromisoformat(found['day']) + timedelta(days=1)}T00:00:00+00:00",
    }
    return render(request, "costs.html", caller, **values)


Days = Sequence[tuple[date, Sequence[Row]]]


def _spent(caller: Caller, last: str, days: int, tenant: str | None) -> Days:
    """The costs of each day, the oldest first."""
    until = date.fromisoformat(last)
    each = [until - timedelta(days=back) for back in reversed(range(days))]
    return [(day, api.costs(caller, day, 1, tenant)["costs"]) for day in each]


def _tenants(spent: Days) -> list[Row]:
    """Each tenant with its days and its dearest tasks, the dearest tenant first."""
    by_day: dict[str, list[int]] = {}
    by_task: dict[str, Counter[str]] = {}
    for place, (_, costs) in enumerate(spent):
        for cost in costs:
            by_day.setdefault(cost["tenant"], [0] * len(spent))[place] += cost["micros"]
            by_task.setdefault(cost["tenant"], Counter())[cost["task"]] += cost["micros"]
    found = [
        {
            "tenant": name,
            "micros": sum(numbers),
            "bars": numbers,
            "tasks": by_task[name].most_common(MOST_TASKS),
            "more": max(0, len(by_task[name]) - MOST_TASKS),
        }
        for name, numbers in by_day.items()
    ]
    return sorted(found, key=lambda one: (-one["micros"], one["tenant"]))


def _chart(spent: Days) -> Row:
    """A bar for each day, and the dearest of them."""
    sums = [sum(cost["micros"] for cost in costs) for _, costs in spent]
    most, width = max([1, *sums]), 100 / len(spent)
    bars = [
        {
            "day": f"{day:%-d %B}",
            "short": f"{day:%-d %b}",
            "micros": micros,
            "x": round(place * width, 3),
            "width": round(min(width * 0.8, 12), 3),
            "height": round(HEIGHT * micros / most, 1),
        }
        for place, ((day, _), micros) in enumerate(zip(spent, sums, strict=True))
    ]
    return {"bars": bars, "most": max(sums), "height": HEIGHT}


def _budget(one: Row, budgets: Sequence[Row], others: int | None) -> Row:
    """A tenant's budget with how much of it is spent, what that has done, and the command that would raise it."""
    budget, pause = one["budget"], one["pause"]
    share = None if not budget else one["spent"] / budget
    return {
        **one,
        "share": share,
        "filled": round(min(100.0, 100 * (1.0 if share is None else share)), 1),
        "held": pause is not None and pause["owner"] == "budget",
        "raising": _raising(one, budgets, others),
    }


def _raising(one: Row, budgets: Sequence[Row], others: int | None) -> list[str] | None:
    """The command that would give a tenant a budget of twice what it has spent; the other budgets stay as they are."""
    if one["budget"] is None:
        return None
    named = {} if others is None else {"*": others}
    named |= {other["tenant"]: other["budget"] for other in budgets if other["budget"] not in (None, others)}
    wanted = {**named, one["tenant"]: 2 * max(one["spent"], one["budget"], 1)}
    return ["config", "set", "budgets", json.dumps(wanted)]


def _places(amounts: Sequence[int]) -> int:
    """How many decimals stand in the tables: two, or what small amounts need, and four beside larger ones."""
    needed = max([2, *(len(f"{amount % UNIT:06}".rstrip("0")) for amount in amounts if amount < UNIT // 100)])
    return needed if max([0, *amounts]) < UNIT // 100 else min(needed, 4)


def _units(micros: int, places: int) -> str:
    """An amount in units, rounded to so many decimals."""
    step = 10 ** (6 - places)
    rounded = (micros + step // 2) // step * step
    return f"{rounded // UNIT:,}.{f'{rounded % UNIT:06}'[:places]}"
