"""What an enqueue, a claim and a change write: the parts of one transaction each, with the conditions they stand on.

The first part carries the fence of a change, so that whoever reads a refusal knows where to look.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from treadle.engines.dynamodb.items import Item, Place, Value, ended_place, expiry_place, id_place, key_place, value_of
from treadle.engines.values import LISTED
from treadle.model import Job, State

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


def revision_is(revision: int) -> Test:
    return ("revision", "=", value_of(revision) if revision else None)


def state_is(state: State) -> Test:
    return ("status", "=", {"S": state.value})


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


def free_key(table: Table, job: Job) -> Part:
    return delete(table, key_of(job), [ABSENT], [("job", "=", {"S": job.id})])


def key_of(job: Job) -> Place:
    return key_place(job.tenant, job.task, job.key or "")


def list_parts(table: Table, before: Job | None, after: Job | None) -> Iterator[Part]:
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
