"""The parts of a transaction, the conditions they stand on, and the parts that several verbs write.

A change, a claim and an enqueue are one transaction each. The first part carries the fence, or the proof that an id is
new, so a refusal shows by its number what was refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from treadle.engines.dynamodb.items import (
    Item,
    ItemKey,
    Value,
    ended_key,
    expiry_key,
    id_key,
    pointer,
    unique_key,
    value_of,
)
from treadle.engines.values import LISTED
from treadle.model import Job, State

Part = dict[str, Any]
"""One write or check of a transaction, as TransactWriteItems takes it: {"Put": {...}}."""
Test = tuple[str, str, Value | None]
"""An attribute, how it is compared (=, < or <=), and with what; None: it must not be there."""


class TableInfo(NamedTuple):
    """What must be known of the table to write into it."""

    name: str
    spread: int  # over how many partitions the id items are spread; fixed when the table is made
    audit_all: bool  # routine events are audited too


# --------------------------------------------------------------------------------------------- parts


def put(table: TableInfo, key: ItemKey, item: Item, *when: Sequence[Test]) -> Part:
    return {"Put": {"TableName": table.name, "Item": {**item, **key.attributes}, **_condition(when)}}


def delete(table: TableInfo, key: ItemKey, *when: Sequence[Test]) -> Part:
    return {"Delete": {"TableName": table.name, "Key": key.attributes, **_condition(when)}}


def check(table: TableInfo, key: ItemKey, *when: Sequence[Test]) -> Part:
    """Writes nothing; all other parts are written only if this holds."""
    return {"ConditionCheck": {"TableName": table.name, "Key": key.attributes, **_condition(when)}}


def update(
    table: TableInfo, key: ItemKey, sets: Mapping[str, Value], removes: Iterable[str] = (), *when: Sequence[Test]
) -> Part:
    part = _condition(when)
    names, values = part.setdefault("ExpressionAttributeNames", {}), part.setdefault("ExpressionAttributeValues", {})
    names.update({f"#{name}": name for name in (*sets, *removes)})
    values.update({f":new_{name}": value for name, value in sets.items()})
    expression = f"SET {', '.join(f'#{name} = :new_{name}' for name in sets)}"
    gone = ", ".join(f"#{name}" for name in removes)
    expression += f" REMOVE {gone}" if gone else ""
    return {"Update": {"TableName": table.name, "Key": key.attributes, "UpdateExpression": expression, **part}}


def _condition(when: Sequence[Sequence[Test]]) -> dict[str, Any]:
    """A condition: all tests of at least one group hold."""
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
    condition: dict[str, Any] = {"ConditionExpression": " or ".join(f"({group})" for group in groups)}
    condition["ExpressionAttributeNames"] = names
    if values:
        condition["ExpressionAttributeValues"] = values
    return condition


# --------------------------------------------------------------------------------------------- tests

ABSENT: Test = ("PK", "=", None)


def there(key: ItemKey) -> Test:
    return ("SK", "=", {"S": key.sk})


def revision_is(revision: int) -> Test:
    return ("revision", "=", value_of(revision) if revision else None)


def state_is(state: State) -> Test:
    return ("status", "=", {"S": state.value})


# --------------------------------------------------------------------------------------- unique keys


def unique_key_of(job: Job) -> ItemKey:
    return unique_key(job.tenant, job.task, job.key or "")


def take_key(table: TableInfo, job: Job, now: datetime, dead: str | None = None) -> Part:
    """The job gets its key: if it is free, if its window is over, or if the job it points at (`dead`) is gone."""
    home = id_key(job.id, table.spread)
    item: Item = {"job": {"S": job.id}, "scope": {"S": job.key_scope or ""}, **pointer(home)}
    if job.key_until is not None:
        item["until"] = value_of(job.key_until)
        item["ttl"] = {"N": str(int(job.key_until.timestamp()) + 86_400)}
    tests: list[list[Test]] = [[ABSENT], [("until", "<=", value_of(now))], [("job", "=", {"S": job.id})]]
    if dead is not None:
        tests.append([("job_sk", "=", {"S": dead})])
    return put(table, unique_key_of(job), item, *tests)


def free_key(table: TableInfo, job: Job) -> Part:
    return delete(table, unique_key_of(job), [ABSENT], [("job", "=", {"S": job.id})])


# --------------------------------------------------------------------------------------------- lists


def list_parts(table: TableInfo, before: Job | None, after: Job | None) -> Iterator[Part]:
    """A job's entries in the lists of failed, cancelled and expiring jobs; None: the job is not there."""
    had, has = _entries(table, before), _entries(table, after)
    yield from (delete(table, key) for key in had if key not in has)
    yield from (put(table, key, {}) for key in has if key not in had)


def _entries(table: TableInfo, job: Job | None) -> list[ItemKey]:
    if job is not None and job.state in LISTED:
        return [ended_key(job, table.spread)]
    if job is not None and not job.state.final and job.expires_at is not None:
        return [expiry_key(job, table.spread)]
    return []
