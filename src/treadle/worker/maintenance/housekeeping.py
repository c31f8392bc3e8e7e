"""What keeps a store in order beside its jobs: old rows, sealed audit events, budgets.

Any worker does any of it; what two do at once is done once, for every write compares what was there.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import groupby

from treadle.edits import Act, put, remove
from treadle.engines.contract import Engine
from treadle.errors import EngineError
from treadle.model import Event, EventKind
from treadle.model.records import ANY, Pause, Seal, WorkerInfo
from treadle.model.seals import AT_ONCE, sealing
from treadle.model.why import BUDGET
from treadle.worker.config import WorkerConfig

log = logging.getLogger("treadle.upkeep")

PATIENCE = 5.0  # seconds until a chore that failed is tried again
PRUNE_PERIOD = 60.0
SEAL_PERIOD = 60.0
BUDGET_PERIOD = 10.0
FORGET_PERIOD = 3600.0
BATCH = 200
SEALS = 20  # of one tenant, made in one go
RIPE = 60.0  # seconds after which events are sealed although they do not fill a seal
GONE = timedelta(days=1)  # after which a worker that was not heard of is forgotten


class Housekeeping:
    """The chores of one worker that are seldom due, its `beat` among them; `tick` is called between its turns."""

    def __init__(
        self,
        engine: Engine,
        config: WorkerConfig,
        tasks: Iterable[str],
        beat: Callable[[], float],
        logger: logging.Logger | None = None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._tasks = tasks
        self._beat = beat
        self._log = logger or log
        self._sealer = Sealer(engine)
        chores: dict[Callable[[], float], float] = {
            beat: 0.0,
            self._prune: random.uniform(0, PRUNE_PERIOD),  # noqa: S311 - spreads the workers
            self._seal: random.uniform(0, SEAL_PERIOD),  # noqa: S311
            self._forget: random.uniform(0, FORGET_PERIOD),  # noqa: S311
        }
        if config.budgets:
            chores[self._heed_budgets] = random.uniform(0, BUDGET_PERIOD)  # noqa: S311
        self._chores = {chore: time.monotonic() + delay for chore, delay in chores.items()}

    def tick(self) -> None:
        """Do what is due; each chore says in how many seconds it is due again. One that fails harms no other."""
        for chore, due_at in self._chores.items():
            if time.monotonic() >= due_at:
                again = min(PATIENCE, self._config.beat) if chore == self._beat else PATIENCE
                try:
                    again = chore()
                except EngineError as error:
                    self._log.warning("%s: not done, next try in %g s: %s", chore.__name__, again, error)
                except Exception:
                    self._log.exception("%s: not done, next try in %g s", chore.__name__, again)
                self._chores[chore] = time.monotonic() + again

    # ------------------------------------------------------------------------------------- old rows

    def _prune(self) -> float:
        """Delete old jobs of our own tasks: how long those of another program are kept, its own workers know."""
        deleted = self._engine.prune(self._config.keep._replace(only=frozenset(self._tasks)), limit=BATCH)
        if deleted:
            self._log.info("deleted %d old job%s", deleted, "s" * (deleted != 1))
        if deleted >= BATCH:
            return 0.1  # there is more, but the jobs come first
        return PRUNE_PERIOD

    def _forget(self) -> float:
        if prune_old_events(self._engine, self._config.keep_events, limit=SEALS) == SEALS:
            return 0.1  # there is more, but the jobs come first
        now = self._engine.now()
        for member in self._engine.records(WorkerInfo):
            if now - member.seen_at > GONE:
                self._engine.drop(member)
        for pause in self._engine.records(Pause):
            if pause.until is not None and now - pause.until > GONE:
                self._engine.drop(pause)
        return FORGET_PERIOD

    # ------------------------------------------------------------------------------ the audit trail

    def _seal(self) -> float:
        return 0.5 if self._sealer.seal(ripe=RIPE) >= AT_ONCE * SEALS // 2 else SEAL_PERIOD

    # --------------------------------------------------------------------------------------- budgets

    def _heed_budgets(self) -> float:
        """Pause the tenants that have spent what they may in a day (of UTC), until that day is over."""
        now = self._engine.now()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        tomorrow = today + timedelta(days=1)
        spent: dict[str, int] = {}
        for (tenant, _), micros in self._engine.costs(since=today, until=tomorrow).items():
            spent[tenant] = spent.get(tenant, 0) + micros
        paused = {pause.tenant: pause for pause in self._engine.records(Pause) if pause[1:3] == (ANY, ANY)}
        for tenant in self._config.budgets.keys() - {ANY} | spent.keys():
            budget = self._config.budgets.get(tenant, self._config.budgets.get(ANY))
            there = paused.get(tenant)
            holds = there is not None and (there.until is None or there.until > now)
            within = budget is not None and spent.get(tenant, 0) < budget
            # Lifted only when the budget was raised: what was spent may seem less since, for a job that is run again.
            if there is not None and holds and within and there.actor == BUDGET and _spent_by(there) < (budget or 0):
                self._let_go(there, now)
            if budget is None or within or holds:
                continue
            why = f"{spent.get(tenant, 0):,} of {budget:,} micros were spent on {today:%Y-%m-%d}"
            pause = Pause(tenant, actor=BUDGET, reason=why, at=now, until=tomorrow)
            if put(self._engine, pause, there, Act(EventKind.PAUSED, now, BUDGET, why)) is not None:
                self._log.warning("tenant %s is paused until %s: %s", tenant, tomorrow, why)
        return BUDGET_PERIOD

    def _let_go(self, pause: Pause, now: datetime) -> None:
        if remove(self._engine, pause, Act(EventKind.RESUMED, now, BUDGET, "within its budget")):
            self._log.info("tenant %s is within its budget again", pause.tenant)


def _spent_by(pause: Pause) -> float:
    """What a budget's pause says was spent."""
    said = pause.reason.partition(" ")[0].replace(",", "")
    return int(said) if said.isdigit() else float("inf")


class Sealer:
    """Seals audit events, and remembers the last seal of each tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: dict[str, Seal] = {}

    def seal(self, *, ripe: float) -> int:
        """Seal what fills a seal, or has waited for `ripe` seconds; how many events it was."""
        events = self._engine.unsealed(limit=AT_ONCE * SEALS)
        tenants = groupby(events, key=lambda event: event.tenant)
        return sum(self._seal_tenant(tenant, list(group), ripe) for tenant, group in tenants)

    def _seal_tenant(self, tenant: str, events: list[Event], ripe: float) -> int:
        now, done = self._engine.now(), 0
        for start in range(0, len(events), AT_ONCE):
            batch = events[start : start + AT_ONCE]
            old = any((now - event.at).total_seconds() >= ripe for event in batch)
            if len(batch) < AT_ONCE and not old:
                break
            seal, ordered = sealing(batch, self._last_seal(tenant), now)
            if not self._engine.seal(seal, ordered):
                self._last.pop(tenant, None)  # somebody else does it
                break
            self._last[tenant] = seal
            done += len(ordered)
        return done

    def _last_seal(self, tenant: str) -> Seal | None:
        if tenant not in self._last:
            found = self._engine.records(Seal, tenant=tenant)
            if not found:
                return None
            self._last[tenant] = max(found, key=lambda seal: seal.number)
        return self._last[tenant]


def seal_events(engine: Engine) -> int:
    """Seal every event there is; how many it was."""
    sealer, total = Sealer(engine), 0
    while found := sealer.seal(ripe=float("-inf")):
        total += found
    return total


def prune_old_events(engine: Engine, keep: timedelta | None, *, limit: int | None = None) -> int:
    """Delete the events of seals that are older than this, of some of them; the seals stay. How many seals it was."""
    if keep is None:
        return 0
    old = engine.now() - keep
    due = [seal for seal in engine.records(Seal) if seal.pruned_at is None and seal.last_at < old]
    return sum(engine.prune_events(seal) for seal in due[:limit])
