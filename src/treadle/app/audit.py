"""The whole audit trail: its latest events, and whether the sealed ones are as they were."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from treadle.edits import AuditedRecords
from treadle.errors import InvalidJob
from treadle.model import Event
from treadle.model.records import Seal
from treadle.model.seals import Verified, in_order, verify

MOST_UNSEALED = 100_000  # unsealed events that are read at most
VERIFY_TRIES = 2  # more at seals that seem to be wrong


class AuditReport(NamedTuple):
    """What a look at the whole audit trail found: each tenant's seals, and how many events are not sealed yet."""

    tenants: list[Verified]
    unsealed: int

    @property
    def sound(self) -> bool:
        return not any(tenant.problems for tenant in self.tenants)


def latest_events(store: AuditedRecords, tenant: str | None, *, limit: int) -> list[Event]:
    """The latest events of all jobs, schedules and pauses, newest first; maybe only one tenant's."""
    if not isinstance(limit, int) or limit < 1:
        raise InvalidJob("limit", f"{limit!r} must be a number, 1 or more")
    events = [
        *_of(store.unsealed(limit=MOST_UNSEALED), tenant),
        *_of(store.orphaned_events(limit=MOST_UNSEALED), tenant),
    ]
    for seal in sorted(store.records(Seal, tenant=tenant), key=lambda seal: seal.last_at, reverse=True):
        events = sorted(events, key=in_order, reverse=True)[:limit]
        if len(events) == limit and events[-1].at > seal.last_at:
            break
        events += store.sealed(seal)
    return sorted(set(events), key=in_order, reverse=True)[:limit]  # one that was sealed meanwhile was read twice


def verify_events(store: AuditedRecords, tenant: str | None, *, kept: timedelta | None) -> AuditReport:
    """Whether the sealed events are as they were; `kept` is how long events are kept, after which they may be gone."""
    seals: dict[str, list[Seal]] = {}
    for seal in store.records(Seal, tenant=tenant):
        seals.setdefault(seal.tenant, []).append(seal)
    unsealed = len(_of(store.unsealed(limit=MOST_UNSEALED), tenant))
    orphaned = Counter(event.tenant for event in _of(store.orphaned_events(limit=MOST_UNSEALED), tenant))
    names = sorted(seals.keys() | orphaned.keys())
    return AuditReport([_verified(store, name, seals.get(name, ()), orphaned[name], kept) for name in names], unsealed)


def _verified(
    store: AuditedRecords, tenant: str, seals: Sequence[Seal], orphaned: int, kept: timedelta | None
) -> Verified:
    """What is wrong with a tenant's seals; looked at again, because their events may be pruned just now."""
    found = verify(tenant, seals, store.sealed, kept)
    for _ in range(VERIFY_TRIES):
        if not found.problems:
            break
        found = verify(tenant, store.records(Seal, tenant=tenant), store.sealed, kept)
    if orphaned:
        gone = f"{orphaned:,} event{'s were' if orphaned != 1 else ' was'} sealed, and the seal is gone"
        found = found._replace(problems=[*found.problems, gone])
    return found


def _of(events: Sequence[Event], tenant: str | None) -> list[Event]:
    return [event for event in events if tenant in (None, event.tenant)]
