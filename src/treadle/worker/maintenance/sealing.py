"""Seals over audit events: batches that are chained, so that an edit shows."""

from datetime import timedelta
from itertools import groupby

from treadle.engines.contract import Engine
from treadle.model import Event
from treadle.model.records import Seal
from treadle.model.seals import AT_ONCE, sealing

SEAL_INTERVAL = 60.0  # seconds
MORE_AFTER = 0.5  # seconds, when there is more
MAX_SEALS = 20  # of one tenant, made in one go
MAX_WAIT = 60.0  # seconds after which events are sealed although they do not fill a seal


class Sealing:
    """Seals events, and remembers the last seal of each tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: dict[str, Seal] = {}

    def seal_due(self) -> float:
        """Seal what is due; in how many seconds to look again."""
        return MORE_AFTER if self.seal(max_wait=MAX_WAIT) >= AT_ONCE * MAX_SEALS // 2 else SEAL_INTERVAL

    def seal(self, *, max_wait: float) -> int:
        """Seal what fills a seal, or has waited for `max_wait` seconds; how many events it was."""
        events = self._engine.unsealed(limit=AT_ONCE * MAX_SEALS)
        tenants = groupby(events, key=lambda event: event.tenant)
        return sum(self._seal_tenant(tenant, list(group), max_wait) for tenant, group in tenants)

    def _seal_tenant(self, tenant: str, events: list[Event], max_wait: float) -> int:
        now, done = self._engine.now(), 0
        for start in range(0, len(events), AT_ONCE):
            batch = events[start : start + AT_ONCE]
            old = any((now - event.at).total_seconds() >= max_wait for event in batch)
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
    sealer, total = Sealing(engine), 0
    while found := sealer.seal(max_wait=float("-inf")):
        total += found
    return total


def prune_old_events(engine: Engine, keep: timedelta | None, *, limit: int | None = None) -> int:
    """Delete the events of seals that are older than this, of some of them; the seals stay. How many seals it was."""
    if keep is None:
        return 0
    old = engine.now() - keep
    due = [seal for seal in engine.records(Seal) if seal.pruned_at is None and seal.last_at < old]
    return sum(engine.prune_events(seal) for seal in due[:limit])
