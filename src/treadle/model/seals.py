"""Tamper evidence for the audit trail: batches of events are sealed, and each seal names the one before it. Pure.

A seal's digest is over its events, its hash over the digest and the hash before it. Whoever edits, removes or moves
an event has to change the digest, and with it the hash of every later seal. Keep one hash elsewhere, and you can tell.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

from treadle.model import Event
from treadle.model.records import Seal

AT_ONCE = 90  # events in a seal: what every engine can write in one atom


class Verified(NamedTuple):
    """What a look at a tenant's seals found."""

    tenant: str
    seals: int
    events: int  # that are sealed and there
    pruned: int  # seals whose events were old and are gone
    early: int  # of these, how many went sooner than events go now: by an older setting, or by somebody's hand
    hash: str  # of the last seal: keep it elsewhere
    problems: Sequence[str]


def digest(events: Iterable[Event]) -> str:
    """Over every word of every event, in order."""
    content = sha256()
    for event in events:
        at = event.at.astimezone(UTC).isoformat(timespec="microseconds")
        row = [event.job_id, event.revision, at, event.kind.value, event.actor, event.note, event.tenant]
        content.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return content.hexdigest()


def sealing(events: Sequence[Event], last: Seal | None, now: datetime) -> tuple[Seal, list[Event]]:
    """The next seal of a tenant, over events of that tenant, and those events in the order it holds them."""
    ordered = sorted(events, key=in_order)
    previous, number = (last.hash, last.number + 1) if last is not None else ("", 1)
    seal = Seal(
        tenant=ordered[0].tenant,
        number=number,
        events=len(ordered),
        first_at=ordered[0].at,
        last_at=ordered[-1].at,
        digest=digest(ordered),
        previous=previous,
        hash="",
        sealed_at=now,
    )
    return seal.evolve(hash=hash_of(seal)), ordered


def in_order(event: Event) -> tuple[datetime, str, int]:
    return event.at, event.job_id, event.revision


def hash_of(seal: Seal) -> str:
    """Over all that a seal says, but for when its events were pruned."""
    times = (seal.first_at, seal.last_at, seal.sealed_at)
    moments = [moment.astimezone(UTC).isoformat(timespec="microseconds") for moment in times]
    content = [seal.tenant, seal.number, seal.events, *moments, seal.digest, seal.previous]
    return sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def verify(
    tenant: str, seals: Sequence[Seal], events_of: Callable[[Seal], Sequence[Event]], keep: timedelta | None = None
) -> Verified:
    """Whether a tenant's seals follow each other and their events are as they were sealed.

    `keep` is how long events are kept now: seals whose events went sooner are counted as `early`.
    """
    problems: list[str] = []
    previous, number, there, early = "", 0, 0, 0
    for seal in sorted(seals, key=lambda seal: seal.number):
        number += 1
        if seal.number != number:
            problems.append(f"seal {number} is missing" if seal.number == number + 1 else _gap(number, seal.number))
            number = seal.number
        elif seal.previous != previous:
            problems.append(f"seal {seal.number} does not follow the seal before it")
        if hash_of(seal) != seal.hash:
            problems.append(f"seal {seal.number} was edited")
        previous = seal.hash
        if seal.pruned_at is not None:
            early += keep is None or seal.pruned_at - seal.last_at < keep
            if events_of(seal):
                problems.append(f"seal {seal.number}: its events were pruned, and there are some")
            continue
        events = events_of(seal)
        there += len(events)
        if len(events) != seal.events:
            gone = seal.events - len(events)
            what = f"{gone} of its {seal.events} events are gone" if gone > 0 else f"{-gone} events were added to it"
            problems.append(f"seal {seal.number}: {what}")
        elif digest(events) != seal.digest:
            problems.append(f"seal {seal.number}: an event was edited or moved")
    pruned = sum(seal.pruned_at is not None for seal in seals)
    return Verified(tenant, len(seals), there, pruned, early, previous, problems)


def _gap(first: int, found: int) -> str:
    return f"seals {first} to {found - 1} are missing"
