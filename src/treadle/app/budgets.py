"""What each tenant has spent today of what it may spend in a day, and whether that has paused it."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import NamedTuple

from treadle.model.records import ANY, Pause, PauseOwner

NEAR = 0.8  # of its budget, from which on a tenant is near it


class TenantBudget(NamedTuple):
    """A tenant's day, in millionths. `state` is within, near or spent.

    `budget` is None if a budget has paused the tenant that is not known here: workers may have other settings.
    """

    tenant: str
    spent: int
    budget: int | None
    state: str
    pause: Pause | None  # of all that this tenant has, whoever made it


class DayOfBudgets(NamedTuple):
    """The tenants that have a budget, those first that have spent most of theirs; `others` have that one each."""

    at: datetime
    day: date
    others: int | None
    tenants: list[TenantBudget]


def budgets(
    now: datetime,
    settings: Mapping[str, int],
    spent: Iterable[tuple[str, str, int]],
    pauses: Iterable[Pause],
    tenant: str | None,
) -> DayOfBudgets:
    """The budgets of these settings, and what has been `spent` of them today, by tenant and task."""
    sums: dict[str, int] = {}
    for owner, _, micros in spent:
        sums[owner] = sums.get(owner, 0) + micros
    paused = {pause.tenant: pause for pause in pauses if pause.tenant != ANY and pause[1:3] == (ANY, ANY)}
    by_budget = {name for name, pause in paused.items() if pause.owner is PauseOwner.BUDGET}
    named = {name for name in settings if name != ANY} | by_budget
    if ANY in settings:
        named |= sums.keys()
    found = [
        _budget(name, settings.get(name, settings.get(ANY)), sums.get(name, 0), paused.get(name))
        for name in named
        if tenant in (None, name)
    ]
    found.sort(key=lambda one: (-_share(one), one.tenant))
    return DayOfBudgets(now, now.date(), settings.get(ANY), found)


def _budget(tenant: str, budget: int | None, spent: int, pause: Pause | None) -> TenantBudget:
    if budget is None:
        return TenantBudget(tenant, spent, None, "spent", pause)
    state = "spent" if spent >= budget else "near" if spent >= NEAR * budget else "within"
    return TenantBudget(tenant, spent, budget, state, pause)


def _share(one: TenantBudget) -> float:
    """How much of its budget a tenant has spent: 1 is all of it."""
    if one.budget is None:
        return float("inf")
    return one.spent / one.budget if one.budget else float("inf")
