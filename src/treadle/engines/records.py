"""How a record lies in a row: its kind's table and columns, the same in every SQL engine; DynamoDB uses the names."""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from treadle.engines.rows import Row, on_end_from, on_end_text
from treadle.engines.values import ScheduleFilter
from treadle.model.records import (
    GONE,
    KEYS,
    ApiToken,
    Drain,
    Minute,
    Misfire,
    Overlap,
    Pause,
    PauseOwner,
    Record,
    Schedule,
    Seal,
    WorkerInfo,
)

TIMES = frozenset(
    ("created_at", "updated_at", "next_at", "last_at", "at", "until", "started_at", "seen_at", "first_at",
     "last_at", "sealed_at", "pruned_at", "expires_at", "revoked_at", "since")
)  # fmt: skip
UUIDS = frozenset(("own_id",))
JSONS = frozenset(("payload", "queues", "lanes", "tasks", "scopes", "only_queues", "counts"))
FLAGS = frozenset(("enabled", "stopping"))
WORDS: Mapping[str, Callable[[str], str]] = {"misfire": Misfire, "overlap": Overlap, "owner": PauseOwner}


class Table(NamedTuple):
    """Where the records of a kind are kept."""

    name: str
    kind: type[Any]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.kind._fields  # type: ignore[no-any-return]

    @property
    def key(self) -> tuple[str, ...]:
        return KEYS[self.kind]

    @property
    def compared(self) -> tuple[str, ...]:
        """What a save compares beside the key. Of a schedule not only the revision: people disable one with SQL."""
        if self.kind is Schedule:
            return ("revision", "enabled", "next_at")
        return ("revision",) if "revision" in self.columns else ()


TABLES: Mapping[type[Any], Table] = {
    kind: Table(name, kind)
    for name, kind in {
        "schedules": Schedule,
        "pauses": Pause,
        "workers": WorkerInfo,
        "seals": Seal,
        "tokens": ApiToken,
        "minutes": Minute,
        "drains": Drain,
    }.items()
}


def chosen(kind: type[Any], within: str | None, name: str | None) -> dict[str, str]:
    """By column, what a record must have to be read: `within` is the first part of its key."""
    return {column: value for column, value in ((KEYS[kind][0], within), ("name", name)) if value is not None}


def conditions(where: ScheduleFilter) -> list[tuple[str, Any]]:
    """What a row of schedules must fulfil to be listed: each with `?` for its value, if it has one."""
    found: list[tuple[str, Any]] = [
        (f"{column} = ?", value) for column, value in chosen(Schedule, where.tenant, where.name).items()
    ]
    if where.id is not None:  # what an older process made has none in its column: `matching` sorts these out
        found.append(("(own_id = ? or own_id is null)", where.id))
    if where.prefix is not None:
        found.append((f"substr(name, 1, {len(where.prefix)}) = ?", where.prefix))
    if where.task is not None:
        found.append(("task = ?", where.task))
    if where.enabled is not None:
        found.append(("enabled = ?", where.enabled))
    if where.declared is not None:
        found.append((f"(declared is not null) = {where.declared}", None))
    if where.gone is not None:
        found.append((f"(coalesce(declared, '') like ?) = {where.gone}", f"%{GONE}%"))
    return found


def matching(where: ScheduleFilter, found: Iterable[Schedule], limit: int) -> list[Schedule]:
    """The first of these schedules that match, where an id was asked for, which is not in every row."""
    wanted = found if where.id is None else (schedule for schedule in found if schedule.id == where.id)
    return list(islice(wanted, limit))


def table_of(record: Record) -> Table:
    return TABLES[type(record)]


def row_from(record: Record, stored: Callable[[datetime | None], Any]) -> Row:
    """A record as a row of its table's columns; `stored` writes a time."""
    return tuple(value_from(name, value, stored) for name, value in zip(record._fields, record, strict=True))


def value_from(name: str, value: Any, stored: Callable[[datetime | None], Any]) -> Any:
    """One field as a column holds it."""
    if name in TIMES:
        return stored(value)
    if name == "on_end":
        return on_end_text(value)
    if name in JSONS and (value is not None or name == "payload"):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


def record_from(kind: type[Any], row: Row, moment: Callable[[Any], datetime | None]) -> Any:
    """The record in a row of its table's columns; `moment` reads a stored time."""
    return kind(*(_read(name, value, moment) for name, value in zip(kind._fields, row, strict=True)))


def _read(name: str, value: Any, moment: Callable[[Any], datetime | None]) -> Any:
    if value is None:
        return None
    if name in TIMES:
        return moment(value)
    if name in JSONS:
        return _data(value)
    if name == "on_end":
        return on_end_from(value)
    if name in FLAGS:
        return bool(value)
    return WORDS[name](value) if name in WORDS else value


def _data(text: str) -> Any:
    """JSON as data; what somebody else has written that is none, as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
