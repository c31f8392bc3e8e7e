"""The whole audit trail: its latest events, and whether the sealed ones are as they were."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from treadle.edits import AuditedRecords
from treadle.errors import InvalidJob
from treadle.model import UUID, Event
from treadle.model.clock import Duration, past_moment
from treadle.model.records import Seal
from treadle.model.seals import Verified, in_order, verify

MOST_UNSEALED = 100_000  # unsealed events that are read at most, the newest
FIRST_STEP = 4  # times as many as a page has are read at first
LOWEST_ID, HIGHEST_ID = ("-".join(digit * length for length in (8, 4, 4, 4, 12)) for digit in "0f")
MOST_REVISIONS = 2**31 - 1
VERIFY_TRIES = 2  # more at seals that seem to be wrong


class AuditReport(NamedTuple):
    """What a look at the whole audit trail found: each tenant's seals, and how many events are not sealed yet."""

    tenants: list[Verified]
    unsealed: int

    @property
    def sound(self) -> bool:
        return not any(tenant.problems for tenant in self.tenants)


class EventFilter(NamedTuple):
    """Which events are meant; None: any. `until` is not included."""

    tenant: str | None = None
    actor: str | None = None
    kind: str | None = None
    job: str | None = None  # or the subject of a schedule or a pause
    since: datetime | None = None
    until: datetime | None = None
    after: tuple[datetime, str, int] | None = None  # in the order of a list: older than this event
    by_hand: bool = False  # only what people and programs did, not workers

    def fits(self, event: Event) -> bool:
        wanted = ((self.tenant, event.tenant), (self.actor, event.actor), (self.kind, event.kind.value))
        return (
            all(one in (None, there) for one, there in wanted)
            and self.job in (None, event.job_id)
            and (event.kind.by_hand or not self.by_hand)
            and (self.since is None or event.at >= self.since)
            and (self.until is None or event.at < self.until)
            and (self.after is None or in_order(event) < self.after)
        )

    @property
    def before(self) -> tuple[datetime, str, int] | None:
        """All events that are meant lie before this place; None where nothing is said of that."""
        ends = [self.after] if self.after else []
        ends += [(self.until, LOWEST_ID, 0)] if self.until else []
        if not ends:
            return None
        at, job_id, revision = min(ends)
        real = UUID.fullmatch(job_id) and 0 <= revision <= MOST_REVISIONS
        return (at, job_id, revision) if real else (at, HIGHEST_ID, MOST_REVISIONS)

    def reaches(self, seal: Seal) -> bool:
        """Whether one of the events in a seal may be meant."""
        end = min((moment for moment in (self.until, self.after and self.after[0]) if moment), default=seal.first_at)
        return seal.pruned_at is None and seal.first_at <= end and (self.since is None or seal.last_at >= self.since)


class EventPage(NamedTuple):
    """Audit events, newest first, and where to go on (None at the end)."""

    events: list[Event]
    cursor: str | None


def event_filter(
    now: datetime,
    *,
    tenant: str | None,
    actor: str | None = None,
    kind: str | None = None,
    job_id: str | None = None,
    since: Duration | datetime | None = None,
    until: Duration | datetime | None = None,
    cursor: str | None = None,
    by_hand: bool = False,
) -> EventFilter:
    """The filter that these words of a caller mean; `since` and `until` are moments, or how long before `now`."""
    return EventFilter(
        tenant,
        actor,
        None if kind is None else str(kind),
        None if job_id is None else str(job_id).lower(),
        past_moment(since, now, "since"),
        past_moment(until, now, "until"),
        place_of(cursor),
        by_hand,
    )


def latest_events(store: AuditedRecords, wanted: EventFilter, *, limit: int) -> EventPage:
    """The latest events of all jobs, schedules and pauses that are meant, newest first.

    It reads from the newest on until there are enough: first those that wait for a seal, up to 100,000, then seal after
    seal. A filter that fits little reads far back.
    """
    if wanted.job is not None:
        events = [event for event in store.events(wanted.job) if wanted.fits(event)]
        return _page(events, limit)
    events = _unsealed(store, wanted, limit)
    events += [event for event in store.orphaned_events(limit=MOST_UNSEALED) if wanted.fits(event)]
    seals = [seal for seal in store.records(Seal, tenant=wanted.tenant) if wanted.reaches(seal)]
    for seal in sorted(seals, key=lambda seal: seal.last_at, reverse=True):
        if len(events) > limit:
            events = sorted(set(events), key=in_order, reverse=True)[: limit + 1]
            if len(events) > limit and events[-1].at > seal.last_at:
                break
        events += [event for event in store.sealed(seal) if wanted.fits(event)]
    return _page(events, limit)


def _unsealed(store: AuditedRecords, wanted: EventFilter, limit: int) -> list[Event]:
    """The latest events that are meant and wait for a seal: more than `limit`, or all. Read in growing steps."""
    before, step, looked_at = wanted.before, FIRST_STEP * limit, 0
    found: list[Event] = []
    while len(found) <= limit and looked_at < MOST_UNSEALED:
        step = min(step, MOST_UNSEALED - looked_at)
        some = store.unsealed(limit=step, newest=True, before=before)
        found += [event for event in some if wanted.fits(event)]
        if len(some) < step or (wanted.since is not None and some[-1].at < wanted.since):
            break
        before, looked_at, step = in_order(some[-1]), looked_at + step, step * 2
    return found


def _page(events: Sequence[Event], limit: int) -> EventPage:
    found = sorted(set(events), key=in_order, reverse=True)  # one that was sealed meanwhile was read twice
    last = found[limit - 1] if len(found) > limit else None
    return EventPage(found[:limit], last and f"{last.at.isoformat()}_{last.job_id}_{last.revision}")


def place_of(cursor: str | None) -> tuple[datetime, str, int] | None:
    """Where the page before ended; InvalidJob if that is not a cursor."""
    if cursor is None:
        return None
    try:
        at, job_id, revision = cursor.split("_")
        moment = datetime.fromisoformat(at)
        return moment.astimezone(UTC), job_id, int(revision)
    except (ValueError, AttributeError, OverflowError):
        raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor; take it from the page before") from None


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
