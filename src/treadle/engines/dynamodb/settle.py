"""Writing changes: each behind its fence, with its key, its audit line and the job that follows it."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime

from treadle.engines.dynamodb.audit import trail
from treadle.engines.dynamodb.client import BRIEFLY, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.items import Place, cost_place, holder_of, id_place, text_of, value_of
from treadle.engines.dynamodb.pieces import job_pieces, spilling
from treadle.engines.dynamodb.pools import Memory
from treadle.engines.dynamodb.queries import Costs, Reader
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.dynamodb.writes import (
    COST_KEPT,
    Part,
    Table,
    Test,
    delete,
    free_key,
    list_parts,
    pointer,
    put,
    revision_is,
    state_is,
    take_key,
    update,
)
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
        return change_parts(self._table, change, place, new, now, dead)

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


# ------------------------------------------------------------------------------------------- changes


def fence(change: Change) -> list[Test]:
    """What the item must still be like. The whole fence, in one place: see the compare table of the design.

    Without the token a zombie settles a job that was claimed again; without the revision a retry buries a cancel
    request; without the lease a reaper takes a job whose lease was renewed since it looked.
    """
    before = change.before
    if change.fence in (Fence.REVISION, Fence.RUNNING):
        return [state_is(before.state), revision_is(before.revision)]
    tests = [state_is(State.RUNNING), revision_is(before.revision)]
    tests.append(("lease_token", "=", {"S": before.lease_token or ""}))
    if change.fence is Fence.RECOVERY:
        tests.append(("lock_expires_at", "=", {"S": text_of(before.lease_until)}))
    return tests


def change_parts(
    table: Table, change: Change, old: Place, new: Place, now: datetime, dead: str | None = None
) -> list[Part]:
    """A change: `old` is where its item is, `new` where its due item will be (the same if it stays)."""
    before, after = change.before, change.after
    home, tests = id_place(before.id, table.spread), fence(change)
    parts: list[Part]
    if after.state.final:
        parts = [delete(table, old, tests), put(table, home, attributes_of(after))]
    elif before.state.final:
        parts = [put(table, home, pointer(new), tests), put(table, new, attributes_of(after))]
    elif old != new:
        parts = [delete(table, old, tests), put(table, new, attributes_of(after))]
        parts.append(update(table, home, pointer(new)))
    elif change.fence is Fence.RUNNING:
        sets = {"cancel_requested": value_of(True), "revision": value_of(after.revision)}
        parts = [update(table, old, sets, (), tests)]
    else:
        parts = [put(table, old, attributes_of(after), tests)]
    if change.takes_key:
        parts.append(take_key(table, after, now, dead))
    elif change.frees_key:
        parts.append(free_key(table, before))
    if table.audit_all or change.always_audited or change.kind.noteworthy:
        parts += trail(table, change.event)
    parts += list_parts(table, before, after)
    parts += _costs(table, before, after)
    return [*parts, *_respilled(table, before, after)]


def _respilled(table: Table, before: Job, after: Job) -> Iterator[Part]:
    """What is too large for the item and has changed: the new pieces, and no more those of the old."""
    was, now = spilling(before), spilling(after)
    changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    old, new = job_pieces(before, changed), job_pieces(after, changed)
    yield from (put(table, place, piece) for place, piece in new.items())
    yield from (delete(table, place) for place in old if place not in new)


def _costs(table: Table, before: Job, after: Job) -> Iterator[Part]:
    """What an ended job has cost; one that is retried has not ended, and counts when it ends again."""
    if before.state.final and before.cost_micros > 0:
        yield delete(table, cost_place(before, table.spread))
    if after.state.final and after.cost_micros > 0 and after.finished_at is not None:
        ttl = int(after.finished_at.timestamp()) + COST_KEPT
        told = {"tenant": after.tenant, "task": after.task, "cost_micros": after.cost_micros, "ttl": ttl}
        item = {name: value_of(value) for name, value in told.items()}
        yield put(table, cost_place(after, table.spread), item | {"finished_at": value_of(after.finished_at)})
