"""Budgets: a tenant that has spent what it may in a day is paused until that day is over."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from treadle.edits import Act, put, remove
from treadle.engines.contract import Engine
from treadle.model import EventKind
from treadle.model.records import ANY, Pause, PauseOwner

BUDGET_INTERVAL = 10.0  # seconds
ACTOR = "budget"  # of the pauses that a spent budget has made


class Budgets:
    """What each tenant may spend in a day (of UTC), in millionths; ANY stands for the tenants that are not named."""

    def __init__(self, engine: Engine, budgets: Mapping[str, int], logger: logging.Logger) -> None:
        self._engine, self._budgets, self._log = engine, budgets, logger

    def enforce(self) -> float:
        """Pause the tenants that have spent their budget, and resume those whose budget was raised."""
        now = self._engine.now()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        spent = self._spent(today)
        paused = {pause.tenant: pause for pause in self._engine.records(Pause) if pause[1:3] == (ANY, ANY)}
        for tenant in self._budgets.keys() - {ANY} | spent.keys():
            budget = self._budgets.get(tenant, self._budgets.get(ANY))
            self._weigh(tenant, budget, spent.get(tenant, 0), paused.get(tenant), now, today)
        return BUDGET_INTERVAL

    def _spent(self, today: datetime) -> dict[str, int]:
        spent: dict[str, int] = {}
        for (tenant, _), micros in self._engine.costs(since=today, until=today + timedelta(days=1)).items():
            spent[tenant] = spent.get(tenant, 0) + micros
        return spent

    def _weigh(
        self, tenant: str, budget: int | None, spent: int, there: Pause | None, now: datetime, today: datetime
    ) -> None:
        # A tenant's own pause does not count: the tenant may lift it at any time.
        holds = there is not None and not there.over(now) and there.owner is not PauseOwner.TENANT
        within = budget is not None and spent < budget
        # Lifted only when the budget was raised: what was spent may seem less since a job was run again.
        if (
            there is not None
            and holds
            and within
            and there.owner is PauseOwner.BUDGET
            and _spent_by(there) < (budget or 0)
        ):
            self._resume(there, now)
        if budget is not None and not within and not holds:
            self._pause(tenant, _reason(spent, budget, today), there, now, today)

    def _pause(self, tenant: str, why: str, there: Pause | None, now: datetime, today: datetime) -> None:
        tomorrow = today + timedelta(days=1)
        pause = Pause(tenant, actor=ACTOR, reason=why, at=now, until=tomorrow, owner=PauseOwner.BUDGET)
        if put(self._engine, pause, there, Act(EventKind.PAUSED, now, ACTOR, why)) is not None:
            self._log.warning("tenant %s is paused until %s: %s", tenant, pause.until, why)

    def _resume(self, pause: Pause, now: datetime) -> None:
        if remove(self._engine, pause, Act(EventKind.RESUMED, now, ACTOR, "within its budget")):
            self._log.info("tenant %s is within its budget again", pause.tenant)


def _reason(spent: int, budget: int, today: datetime) -> str:
    """Why a tenant is paused; `_spent_by` reads it."""
    return f"{spent:,} of {budget:,} micros were spent on {today:%Y-%m-%d}"


def _spent_by(pause: Pause) -> float:
    """What a budget's pause says was spent."""
    spent = pause.reason.partition(" ")[0].replace(",", "")
    return int(spent) if spent.isdigit() else float("inf")
