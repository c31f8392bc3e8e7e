"""What an enqueue, a claim and a change write: the parts of one transaction each, with the conditions they stand on.

The first part carries the fence of a change, so that whoever reads a refusal knows where to look.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from treadle.engines.dynamodb.items import (
    INLINE,
    SPILLED,
    Item,
    Place,
    Value,
    attributes_of,
    id_place,
    key_place,
    pieces_of,
    place_of,
    spilling,
    text_of,
    value_of,
)
from treadle.engines.dynamodb.lines import cost_place, ended_place, event_item, expiry_place, marker_place
from treadle.engines.values import LISTED, Claim
from treadle.model import Change, Event, EventKind, Fence, Job, Scope, State

Part = dict[str, Any]
Test = tuple[str, str, Value | None]
"""An attribute, how it is compared (=, < or <=), and with what; None: it must not be there."""

COST_KEPT = 400 * 86_400  # seconds that the cost of an ended job is known


class Table(NamedTuple):
    """What must be known of the table to write into it."""

    name: str
    spread: int  # over how many partitions the id items are spread; fixed when the table is made
    audit_all: bool  # routine events are audited too


# --------------------------------------------------------------------------------------------- parts


def put(table: Table, place: Place, item: Item, *when: Sequence[Test]) -> Part:
    return {"Put": {"TableName": table.name, "Item": {**item, **place.key}, **_condition(when)}}


def delete(table: Table, place: Place, *when: Sequence[Test]) -> Part:
    return {"Delete": {"TableName": table.name, "Key": place.key, **_condition(when)}}


def check(table: Table, place: Place, *when: Sequence[Test]) -> Part:
    """Nothing is written, but all the rest only if this holds."""
    return {"ConditionCheck": {"TableName": table.name, "Key": place.key, **_condition(when)}}


def update(
    table: Table, place: Place, sets: Mapping[str, Value], removes: Iterable[str] = (), *when: Sequence[Test]
) -> Part:
    part = _condition(when)
    names, values = part.setdefault("ExpressionAttributeNames", {}), part.setdefault("ExpressionAttributeValues", {})
    names.update({f"#{name}": name for name in (*sets, *removes)})
    values.update({f":new_{name}": value for name, value in sets.items()})
    expression = f"SET {', '.join(f'#{name} = :new_{name}' for name in sets)}"
    gone = ", ".join(f"#{name}" for name in removes)
    expression += f" REMOVE {gone}" if gone else ""
    return {"Update": {"TableName": table.name, "Key": place.key, "UpdateExpression": expression, **part}}


def _condition(when: Sequence[Sequence[Test]]) -> dict[str, Any]:
    """A condition: all tests of one of the groups hold."""
    names: dict[str, str] = {}
    values: dict[str, Value] = {}
    groups = []
    for group in when:
        tests = []
        for name, compared, value in group:
            names[f"#{name}"] = name
            if value is None:
                tests.append(f"attribute_not_exists(#{name})")
            else:
                mark = f":was_{len(values)}"
                values[mark] = value
                tests.append(f"#{name} {compared} {mark}")
        groups.append(" and ".join(tests))
    if not groups:
        return {}
    said: dict[str, Any] = {"ConditionExpression": " or ".join(f"({group})" for group in groups)}
    said["ExpressionAttributeNames"] = names
    if values:
        said["ExpressionAttributeValues"] = values
    return said


ABSENT: Test = ("PK", "=", None)


def there(place: Place) -> Test:
    return ("SK", "=", {"S": place.sk})


def _revision(revision: int) -> Test:
    return ("revision", "=", value_of(revision) if revision else None)


def _status(state: State) -> Test:
    return ("status", "=", {"S": state.value})


# ------------------------------------------------------------------------------------------- enqueue

ID, KEY = 0, 2  # where an enqueue's parts stand that may be refused


def enqueue(table: Table, job: Job, place: Place, now: datetime, dead: str | None = None) -> list[Part]:
    """A new job: the id item that proves it, the due item, and what goes with them."""
    parts = [
        put(table, id_place(job.id, table.spread), pointer(place), [ABSENT]),
        put(table, place, attributes_of(job)),
    ]
    if job.key is not None:
        parts.append(take_key(table, job, now, dead))
    parts += _lists(table, None, job)
    if table.audit_all:
        parts += trail(table, Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant))
    return [*parts, *(put(table, place, piece) for place, piece in _pieces(job, SPILLED).items())]


def pointer(place: Place) -> Item:
    return {"job_pk": {"S": place.pk}, "job_sk": {"S": place.sk}}


def take_key(table: Table, job: Job, now: datetime, dead: str | None = None) -> Part:
    """The job gets its key: if nobody has it, if its window is over, or if the job that has it (`dead`) is gone."""
    home = id_place(job.id, table.spread)
    item: Item = {"job": {"S": job.id}, "scope": {"S": job.key_scope or ""}, **pointer(home)}
    if job.key_until is not None:
        item["until"] = value_of(job.key_until)
        item["ttl"] = {"N": str(int(job.key_until.timestamp()) + 86_400)}
    tests: list[list[Test]] = [[ABSENT], [("until", "<=", value_of(now))], [("job", "=", {"S": job.id})]]
    if dead is not None:
        tests.append([("job", "=", {"S": dead})])
    return put(table, key_of(job), item, *tests)


def _free_key(table: Table, job: Job) -> Part:
    return delete(table, key_of(job), [ABSENT], [("job", "=", {"S": job.id})])


def key_of(job: Job) -> Place:
    return key_place(job.tenant, job.task, job.key or "")


def trail(table: Table, line: Event) -> list[Part]:
    """A line of the audit trail, and what says that it is in no seal yet."""
    item = event_item(line)
    return [put(table, place_of(item), item), put(table, marker_place(line, table.spread), {})]


def _pieces(job: Job, names: Sequence[str]) -> dict[Place, Item]:
    """The items of what is too large of these texts."""
    texts = {name: text for name, text in spilling(job).items() if name in names and len(text) > INLINE}
    return {place_of(piece): piece for name, text in texts.items() for piece in pieces_of(job.id, name, text)}


# --------------------------------------------------------------------------------------------- claim


TAKEN_AWAY = ("started_at", "progress")  # by a claim: they told of the attempt before


def taking(job: Job, claim: Claim, now: datetime) -> Item:
    """What a claim sets in the due item of this job."""
    said = {
        "status": State.RUNNING,
        "claims": job.attempt + 1,
        "revision": job.revision + 1,
        "claimed_at": now,
        "lock_expires_at": now + timedelta(seconds=claim.lease),
        "lease_token": claim.token,
        "locked_by": claim.worker,
    }
    return {name: value_of(value) for name, value in said.items()}


def take(table: Table, job: Job, claim: Claim, place: Place, now: datetime) -> list[Part]:
    """A claim of one job."""
    tests = [_status(State.PENDING), _revision(job.revision)]
    parts = [update(table, place, taking(job, claim, now), TAKEN_AWAY, tests)]
    if job.key_scope is Scope.PENDING:
        parts.append(_free_key(table, job))
    if table.audit_all:
        parts += trail(table, Event(job.id, job.revision + 1, now, EventKind.CLAIMED, claim.worker, "", job.tenant))
    return parts


# ------------------------------------------------------------------------------------------- changes


def fence(change: Change) -> list[Test]:
    """What the item must still be like. The whole fence, in one place: see the compare table of the design.

    Without the token a zombie settles a job that was claimed again; without the revision a retry buries a cancel
    request; without the lease a reaper takes a job whose lease was renewed since it looked.
    """
    before = change.before
    if change.fence in (Fence.REVISION, Fence.RUNNING):
        return [_status(before.state), _revision(before.revision)]
    tests = [_status(State.RUNNING), _revision(before.revision)]
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
        parts.append(_free_key(table, before))
    if table.audit_all or change.always_audited or change.kind.noteworthy:
        parts += trail(table, change.event)
    parts += _lists(table, before, after)
    parts += _costs(table, before, after)
    return [*parts, *_respilled(table, before, after)]


def _respilled(table: Table, before: Job, after: Job) -> Iterator[Part]:
    """What is too large for the item and has changed: the new pieces, and no more those of the old."""
    was, now = spilling(before), spilling(after)
    changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    old, new = _pieces(before, changed), _pieces(after, changed)
    yield from (put(table, place, piece) for place, piece in new.items())
    yield from (delete(table, place) for place in old if place not in new)


def _lists(table: Table, before: Job | None, after: Job | None) -> Iterator[Part]:
    """The lines of a job in the lists of failed and cancelled jobs and of those that expire; None: it is not there."""
    had, has = _lines(table, before), _lines(table, after)
    yield from (delete(table, place) for place in had if place not in has)
    yield from (put(table, place, {}) for place in has if place not in had)


def _lines(table: Table, job: Job | None) -> list[Place]:
    if job is not None and job.state in LISTED:
        return [ended_place(job, table.spread)]
    if job is not None and not job.state.final and job.expires_at is not None:
        return [expiry_place(job, table.spread)]
    return []


def _costs(table: Table, before: Job, after: Job) -> Iterator[Part]:
    """What an ended job has cost; one that is retried has not ended, and counts when it ends again."""
    if before.state.final and before.cost_micros > 0:
        yield delete(table, cost_place(before, table.spread))
    if after.state.final and after.cost_micros > 0 and after.finished_at is not None:
        ttl = int(after.finished_at.timestamp()) + COST_KEPT
        told = {"tenant": after.tenant, "task": after.task, "cost_micros": after.cost_micros, "ttl": ttl}
        item = {name: value_of(value) for name, value in told.items()}
        yield put(table, cost_place(after, table.spread), item | {"finished_at": value_of(after.finished_at)})


def renewal(table: Table, place: Place, token: str, sets: Mapping[str, Value], *, forward: bool) -> Part:
    """A lease, renewed by its holder; `forward`: not to an earlier end than it has."""
    tests: list[Test] = [_status(State.RUNNING), ("lease_token", "=", {"S": token})]
    if forward and "lock_expires_at" in sets:
        tests.append(("lock_expires_at", "<=", sets["lock_expires_at"]))
    return update(table, place, sets, (), tests)


MOVED = 3  # parts that moving a job takes


def moved(table: Table, item: Item, job: Job, old: Place, new: Place) -> list[Part]:
    """A pending job in another slot; nothing else changes."""
    tests = [_status(State.PENDING), _revision(job.revision)]
    home = update(table, id_place(job.id, table.spread), pointer(new))
    return [delete(table, old, tests), put(table, new, item), home]


def forgotten(table: Table, job: Job) -> list[Part]:
    """A finished job, deleted unless it has changed since it was read."""
    parts = [delete(table, id_place(job.id, table.spread), [_status(job.state), _revision(job.revision)])]
    return [*parts, *_lists(table, job, None)]
