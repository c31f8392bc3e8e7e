"""How a record lies in the table: an item in its kind's partition, its fields by their names, None left out."""

from collections.abc import Mapping
from typing import Any

from treadle.engines.dynamodb.items import Item, Place, Value, part_of, text_item, text_of, time_of, value_of
from treadle.engines.records import TABLES, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.model.records import Record, Schedule, Seal

_FLOATS = frozenset(
    name for kind in TABLES for name, said in kind.__annotations__.items() if said in (float, float | None)
)


def record_place(record: Record) -> Place:
    table = table_of(record)
    return Place(table.name, "#".join(_part(getattr(record, name)) for name in table.key))


def tenant_range(tenant: str) -> tuple[str, str]:
    """Between which sort keys the records of a tenant lie."""
    return f"{_part(tenant)}#", f"{_part(tenant)}$"  # the sign that follows #


def _part(value: str | int) -> str:
    return f"{value:010d}" if isinstance(value, int) else part_of(value)


def tick_place(schedule: Schedule) -> Place:
    """Where it says when a schedule is due; one without a time comes first."""
    return Place("ticks", f"{text_of(schedule.next_at)}#{record_place(schedule).sk}")


def ticked(tick: Mapping[str, Value]) -> Place:
    """Where the schedule of a tick is."""
    return Place(TABLES[Schedule].name, str(tick["SK"]["S"]).partition("#")[2])


def record_item(record: Record) -> Item:
    """A record's attributes, without the keys; of a payload that is too large, what its pieces are found by."""
    item: Item = {}
    for name, value in zip(record._fields, record, strict=True):
        said = stored_value(name, value)
        if said is not None:
            item[name] = said
    if isinstance(record, Schedule) and (text := payload_of(record)) is not None:
        del item["payload"]
        item |= text_item("payload", text)
    return item


def stored_value(name: str, value: Any) -> Value | None:
    """One field as an attribute; None if it is left out."""
    said = value_from(name, value, lambda moment: moment)
    return None if said is None else value_of(said)


def payload_of(schedule: Schedule) -> bytes | None:
    said = stored_value("payload", schedule.payload)
    return None if said is None else str(said["S"]).encode()


def record_from(kind: type[Any], item: Mapping[str, Value], payload: str | None = None) -> Any:
    """The record in an item; `payload` is given if it is not in it."""
    told = {**item, "payload": {"S": payload}} if payload is not None else item
    if kind is Seal and "lines" in item:  # written before events were called events
        told = {**item, "events": item["lines"]}
    return read_record(kind, tuple(_plain(name, told.get(name)) for name in kind._fields), time_of)


def _plain(name: str, value: Value | None) -> Any:
    if value is None:
        return None
    [(kind, said)] = value.items()
    if kind == "N":
        return float(said) if name in _FLOATS else int(said)
    return said
