"""The columns of a view over treadle's jobs: which field each shows, of which type, and how it is read."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from treadle.app.profile import OwnTable, Profile
from treadle.errors import ConfigError
from treadle.model.retry import Retry

WHEN, WHOLE = "timestamptz", "integer"
TYPES = {
    "id": "uuid", "payload": "jsonb", "result": "jsonb", "priority": WHOLE, "attempt": WHOLE, "failures": WHOLE,
    "crashes": WHOLE, "retries": WHOLE, "max_retries": WHOLE, "max_attempts": WHOLE, "task_version": WHOLE,
    "cost_cents": WHOLE, "cost_micros": "bigint", "due_at": WHEN, "retry_at": WHEN, "expires_at": WHEN,
    "claimed_at": WHEN, "started_at": WHEN, "finished_at": WHEN, "succeeded_at": WHEN, "cancelled_at": WHEN,
    "created_at": WHEN, "updated_at": WHEN, "lease_until": WHEN, "error_at": WHEN, "schedule_id": "uuid",
    "timeout": "double precision",
}  # fmt: skip
"""The type of a column by its field; text, if it is not here."""

READ = {
    "state": "j.word", "payload": "j.payload::jsonb", "result": "nullif(j.result::jsonb, 'null')",
    "error_text": "j.error ->> 'message'", "error_type": "j.error ->> 'type'",
    "error_traceback": "coalesce(nullif(j.error ->> 'traceback', ''), j.error ->> 'message')",
    "error_at": "nullif(j.error ->> 'at', '')::timestamptz", "retries": "least(j.failures, j.max_attempts - 1)",
    "max_retries": "j.max_attempts - 1",
    "retry_at": "case when j.state = 'pending' and j.failures > 0 then j.due_at end",
    "succeeded_at": "case j.state when 'succeeded' then j.finished_at end",
    "cancelled_at": "case j.state when 'cancelled' then j.finished_at end",
    "cost_cents": "ceil(j.cost_micros / 10000.0)::integer",
    "updated_at": """greatest(j.created_at, j.claimed_at, j.started_at, j.finished_at,
        (select max(e.at) from treadle.events e where e.job = j.id))""",
    # What a foreign key with `on delete set null` would leave; a later schedule of the same name is another.
    "schedule_id": """(select s.own_id from treadle.schedules s
        where s.tenant = j.tenant and s.name = j.schedule and s.created_at <= j.created_at and s.cron is not null)""",
}  # fmt: skip
"""How a field is read from a job; by its own name, if it is not here."""
READABLE = (
    *READ, "id", "tenant", "task", "queue", "lane", "task_version", "priority", "max_attempts", "attempt", "failures",
    "crashes", "due_at", "expires_at", "claimed_at", "started_at", "finished_at", "created_at", "lease_until", "worker",
    "key", "schedule", "cost_micros", "timeout", "reason",
)  # fmt: skip

_PLAIN = re.compile("[a-z_][a-z0-9_]*")


class Column(NamedTuple):
    """A column of the view: its name, the field it shows, its type, and its default in SQL."""

    name: str
    source: Any  # a field, or a mapping of such
    type: str
    default: str | None

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    @property
    def new(self) -> str:
        """Its value in a row that is inserted."""
        return f"new.{self.quoted}"

    @property
    def required(self) -> bool:
        return self.default is not None or self.source in ("id", "task", "tenant")

    @property
    def zoneless(self) -> bool:
        """Whether it holds times without a zone, which are UTC."""
        return self.type.startswith("timestamp") and "tz" not in self.type and "with time zone" not in self.type


def column_of(columns: list[Column], source: str) -> Column | None:
    """The column that shows this field, if there is one."""
    return next((column for column in columns if column.source == source), None)


def the_column(columns: list[Column], source: str) -> Column:
    """The column of a field that every view has."""
    return next(column for column in columns if column.source == source)


def columns_of(profile: Profile, own: OwnTable) -> Iterator[Column]:
    """The columns, in the order of the profile's fields."""
    fields = profile.fields or {}
    for field in ("id", "task", "state", "payload"):
        if field not in fields.values():
            raise ConfigError(f"profile: fields: none of them is {field!r}, which the view needs")
    for given in (own.types, own.defaults, own.comments):
        for name in given:
            if name and name not in fields:
                raise ConfigError(f"profile: table: {name!r} is not one of its fields")
    retry: Retry = profile.task.get("retry", Retry())
    usual = {
        "id": "treadle.new_id()", "state": literal(profile.word("pending")), "payload": "'{}'", "priority": "0",
        "attempt": "0", "failures": "0", "retries": "0", "cost_cents": "0", "cost_micros": "0", "due_at": "now()",
        "max_attempts": str(retry.max_attempts), "max_retries": str(retry.max_attempts - 1), "created_at": "now()",
        "updated_at": "now()",
    }  # fmt: skip
    for name, source in fields.items():
        if not isinstance(source, Mapping) and source not in READABLE:
            raise ConfigError(f"profile: fields: {name!r} is {source!r}, which a view cannot show")
        kind = "jsonb" if isinstance(source, Mapping) else TYPES.get(source, "text")
        default = own.defaults[name] if name in own.defaults else usual.get(str(source))
        yield Column(name, source, own.types.get(name, kind), default)


def given(column: Column) -> str:
    """The value of a column in a new row, in the type that treadle stores."""
    if column.zoneless:
        return f"({column.new} at time zone 'UTC')"
    if column.source in ("task", "tenant", "key", "worker", "queue", "lane"):
        return f"{column.new}::text"
    return column.new


def quoted(name: str) -> str:
    """An identifier, quoted where it must be."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
