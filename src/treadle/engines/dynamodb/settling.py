"""Writing changes: each behind its fence, with its key, its audit line and the job that follows it."""

import time
from collections.abc import Callable
from datetime import datetime

from treadle.engines.dynamodb import writes
from treadle.engines.dynamodb.claims import Cursors
from treadle.engines.dynamodb.client import BRIEFLY, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.costs import Costs
from treadle.engines.dynamodb.items import Place, holder_of, id_place
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import Memory
from treadle.engines.dynamodb.writes import Part, Table
from treadle.engines.fence import judge, stamped
from treadle.engines.values import Ruling, Verdict
from treadle.model import Change, EventKind, Fence, Job, State

PLACED_BY = ("due_at", "queue", "lane", "priority", "task_version")


class Settling:
    """Writes changes into one table; `new` says what a job writes, `due_place` where its due item belongs."""

    def __init__(
        self,
        client: Client,
        table: Table,
        reader: Reader,
        costs: Costs,
        cursors: Cursors,
        places: Memory[Place],
        new: Callable[[Job, datetime], list[Part]],
        due_place: Callable[[Job], Place],
    ) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._costs = costs
        self._cursors = cursors
        self._places = places
        self._new = new
        self._due_place = due_place

    def settle(self, change: Change, now: datetime, deadline: float) -> Verdict:
        """Write one change, or say why not."""
        dead, id_ = None, change.before.id
        try:
            place = self._places.get(id_) or self.where(change)
            for _ in range(TRIES):
                if place is None or not _ripe(change, now):
                    return judge(change, self._reader.get([id_])[0])
                try:
                    self._change(change, place, now, dead, deadline - time.monotonic())
                    return Verdict(Ruling.APPLIED)
                except Failed as failed:
                    if 0 not in failed.which:  # its key is another's
                        holder = next((holder_of(item) for item in failed.which.values() if item), None)
                        if dead is None and holder and self._reader.get([holder]) == [None]:
                            dead = holder
                            continue
                        why = f"key {change.after.key!r} is taken"
                        return Verdict(Ruling.REFUSED, holder=holder, why=why)
                there = self.where(change)
                if there == place:
                    [current] = self._reader.get([id_])
                    if change.fence is not Fence.RUNNING or current is None or current.state is not State.RUNNING:
                        return judge(change, current)
                    change = _again(change, current)
                place = there
        except Crowded:
            return Verdict(Ruling.BUSY)
        except ValueError as error:
            return Verdict(Ruling.REFUSED, why=str(error))
        return Verdict(Ruling.BUSY)

    def where(self, change: Change) -> Place | None:
        """Where the item is that the change compares."""
        if change.before.state.final and change.fence is Fence.REVISION:
            return id_place(change.before.id, self._table.spread)
        return self._reader.place(change.before.id, change.before.due_at)

    def _change(self, change: Change, place: Place, now: datetime, dead: str | None, patience: float) -> None:
        once = change.fence is not Fence.HOLDER  # the holder's repeat is known by its token
        parts = self.parts(change, place, now, dead)
        follow = self._new(stamped(change.follow, now), now) if change.follow is not None else []
        try:
            self._client.write([*parts, *follow], patience=patience, once=once)
        except Failed as failed:
            if min(failed.which) < len(parts):
                raise
            self._client.write(parts, patience=patience, once=once)  # what was to follow is there, or its key is taken
        if change.after.state is not State.RUNNING:
            self._places.drop(change.before.id)

    def parts(self, change: Change, place: Place, now: datetime, dead: str | None) -> list[Part]:
        before, after = change.before, change.after
        stays = all(getattr(before, field) == getattr(after, field) for field in PLACED_BY)
        new = place
        if not after.state.final and (before.state.final or not stays):
            new = self._due_place(after)
        self._cursors.back(new.pk, new.sk)
        self._costs.expect(after)
        return writes.change_parts(self._table, change, place, new, now, dead)

    def put_back(self, job: Job, now: datetime) -> None:
        """Give back a job that we have claimed and should not have, as its holder would."""
        after = job.evolve(state=State.PENDING, worker=None, lease_until=None, revision=job.revision + 1)
        release = Change(job, after, EventKind.RELEASED, Fence.HOLDER, now, job.worker or "worker")
        self.settle(release, now, time.monotonic() + BRIEFLY)


def _ripe(change: Change, now: datetime) -> bool:
    """Whether a lease that is to be taken is past by the clock."""
    if change.fence is not Fence.RECOVERY:
        return True
    return change.before.lease_until is not None and change.before.lease_until <= now


def _again(change: Change, current: Job) -> Change:
    """A cancel request for the job as it is now: whoever holds it, it is told."""
    after = current.evolve(cancel_requested=True, revision=current.revision + 1)
    return change._replace(before=current, after=after)
