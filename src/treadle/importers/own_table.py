"""The SQL of a view that looks like the table of jobs an application had, written from its profile.

Texts here name treadle's tables as `treadle.jobs` and the view's schema as `public`; both are replaced at the end.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from treadle.app.profile import OwnTable, Profile
from treadle.errors import ConfigError
from treadle.importers.columns import READ, TYPES, Column, column_of, columns_of, given, literal, quoted, the_column
from treadle.importers.own_table_text import (
    ENUM,
    HEAD,
    INSERT,
    KEY_CHECK,
    REFUSE,
    SCHEDULE_CHECK,
    SCHEDULE_SET,
    TENANT,
    VIEW,
)
from treadle.importers.past_sql import CLOCKS, PAST_ONLY, past_values
from treadle.importers.words import labels_of
from treadle.model import State
from treadle.model.clock import seconds
from treadle.model.retry import Retry
from treadle.tasks.options import Unique

SLACK = 60  # seconds between two clocks: a client may write down the time of its new row by itself
_SCHEMA = re.compile("[a-z_][a-z0-9_]{0,62}")  # PostgreSQL cuts longer names

_STORED = (
    "id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, "
    "crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, "
    "worker, key, schedule, cost_micros"
)
_SPENT = "('exhausted', 'timeout', 'crashed')"
PART_OF = {
    "pending": "failures = 0 and due_at <= now()",
    "scheduled": "failures = 0 and due_at > now()",
    "retrying": "failures > 0",
    "running": "started_at is not null",
    "claimed": "started_at is null",
    "failed": f"coalesce(reason, '') not in {_SPENT}",
    "dead": f"reason in {_SPENT}",
    "cancelled": "reason is distinct from 'expired'",
    "expired": "reason = 'expired'",
}
"""Which jobs of its state a label is about."""


def own_table_sql(profile: Profile, *, schema: str = "treadle", into: str = "public", table: str | None = None) -> str:
    """The SQL for PostgreSQL that puts a view in the place of the profile's table of jobs; may be run again.

    `schema` is where treadle's tables lie, `into` where the view goes, `table` another name for it. An insert into the
    view is a job; a row with a past is taken from a role that owns treadle's tables.
    """
    for field, name in (("schema", schema), ("into", into)):
        if not _SCHEMA.fullmatch(name):
            raise ConfigError(f"{field}: {name!r} must be a name of 1 to 63 small letters, digits and underscores")
    if profile.table is None or profile.fields is None:
        raise ConfigError("profile: it has no table (Profile.table and Profile.fields), so there is no view to write")
    if table is not None and profile.table.script is not None and table != profile.table.name:
        raise ConfigError(
            f"table: {profile.table.name!r} has a script of its own, which says that name; leave out the table"
        )
    own = profile.table._replace(name=profile.table.name if table is None else table)
    if not own.name or "\0" in own.name or len(own.name.encode()) > 50:
        raise ConfigError(f"table: {own.name!r} must be a name of 1 to 50 bytes")
    known = labels_of(profile)
    for word in own.words:
        if word not in known:
            raise ConfigError(f"profile: table: words: {word!r} is not one of its words: {', '.join(known)}")
    text = "\n".join(_parts(profile, own))
    places = {"treadle": schema, "public": into}
    return re.sub(r'\b(treadle|public)\.(?=[a-z_"])', lambda found: f"{places[found[1]]}.", text)


def _parts(profile: Profile, own: OwnTable) -> Iterator[str]:
    columns = list(columns_of(profile, own))
    names = _names(profile, own, columns)
    yield _filled(HEAD, names)
    if is_enum(the_column(columns, "state")):
        yield _filled(ENUM, names)
    if "tenant_function" in names:
        yield _filled(TENANT, names)
    yield _filled(VIEW, names)
    yield _filled(INSERT, names)
    yield _filled(REFUSE, names)
    if own.script is not None:
        yield resources.files(own.script[0]).joinpath(own.script[1]).read_text("utf-8")
    yield "commit;\n"


def _filled(text: str, names: Mapping[str, str]) -> str:
    """A text with its «names» filled in."""
    while "«" in text:
        text = re.sub("«([a-z_]+)»", lambda found: names[found[1]], text)
    return text


def _names(profile: Profile, own: OwnTable, columns: list[Column]) -> dict[str, str]:
    words = [word for word in labels_of(profile) if word not in own.words]
    words = [*own.words, *words]
    state, id_ = the_column(columns, "state"), the_column(columns, "id")
    tenant = column_of(columns, "tenant")
    names = {
        "plain": own.name,
        "view": f"public.{quoted(own.name)}",
        "insert": f"public.{quoted(own.name + '_insert')}",
        "refuse": f"public.{quoted(own.name + '_refuse')}",
        "insert_trigger": quoted(f"{own.name}_insert"),
        "refuse_trigger": quoted(f"{own.name}_refuse"),
        "columns": ",\n    ".join(_as(_shown(column, profile, own), column) for column in columns),
        "jobs": "\n    union all\n".join(_union(profile, state.type if is_enum(state) else "")),
        "where": "",
        "defaults": "\n".join(
            f"alter view public.{quoted(own.name)} alter column {column.quoted} set default {column.default};"
            for column in columns
            if column.default is not None
        ),
        "comments": "\n".join(_comments(own)),
        "enum": state.type,
        "words": ", ".join(map(literal, words)),
        "listed_words": ", ".join(words),
        "state": state.new,
        "state_name": state.name,
        "id": id_.new,
        "id_name": id_.quoted,
        "checks": f"    {own.checks}\n" if own.checks else "",
    }
    if tenant is None:
        names["where"] = "\nwhere j.tenant = 'default'"
    elif tenant.type == "uuid":
        names["tenant_function"] = f"public.{quoted(own.name + '_tenant')}"
        names["where"] = f"\nwhere {names['tenant_function']}(j.tenant) is not null"
    return names | _insert_names(profile, columns)


def _shown(column: Column, profile: Profile, own: OwnTable) -> str:
    """A column of the view, from a job `j`."""
    empty = literal(json.dumps(profile.empty))
    if isinstance(column.source, Mapping):
        return _object(column.source, empty if column.required else "null")
    if column.source == "tenant" and column.type == "uuid":
        return f"public.{quoted(own.name + '_tenant')}(j.tenant)"
    read = READ.get(column.source, f"j.{column.source}")
    if column.source == "result" and column.required:
        return f"coalesce({read}, {empty})"
    if column.zoneless:
        return f"({read} at time zone 'UTC')::{column.type}"
    usual = TYPES.get(column.source, "text")
    return read if column.type == usual or is_enum(column) else f"({read})::{column.type}"


def is_enum(column: Column) -> bool:
    """Whether it is that of the states, and they have a type of their own."""
    return column.source == "state" and column.type not in ("text", "varchar")


def _as(shown: str, column: Column) -> str:
    return shown if shown == f"j.{column.quoted}" else f"{shown} as {column.quoted}"


def _object(fields: Mapping[str, Any], empty: str) -> str:
    texts = {"error_at": "j.error ->> 'at'"}
    reads = {name: texts.get(source, READ.get(source, f"j.{source}")) for name, source in fields.items()}
    pairs = ", ".join(f"{literal(name)}, {read}" for name, read in reads.items())
    return f"case when num_nonnulls({', '.join(reads.values())}) > 0 then jsonb_build_object({pairs}) else {empty} end"


def _union(profile: Profile, enum: str) -> Iterator[str]:
    """A part for each word and table, not one case over both: who asks for a word reads only where such jobs lie."""
    for place, states in (("jobs", (State.PENDING, State.RUNNING)), ("finished", tuple(State)[2:])):
        found: dict[str, tuple[list[str], list[str]]] = {}
        for state in states:
            words = profile.words_of(state)
            for word, labels in words.items():
                whole, parts = found.setdefault(word, ([], []))
                if len(words) == 1:
                    whole.append(literal(state.value))
                else:
                    some = _labelled(state, labels)
                    parts.append(f"(state = {literal(state.value)} and {some})")
        for word, (whole, parts) in found.items():
            if whole:
                parts.insert(0, f"state = {whole[0]}" if len(whole) == 1 else f"state in ({', '.join(whole)})")
            kind = f"public.{quoted(enum)}" if enum else "text"
            read = f"select {literal(word)}::{kind} as word, {_STORED}"
            yield f"    {read}\n    from treadle.{place} where {' or '.join(parts)}"


def _labelled(state: State, labels: tuple[str, ...]) -> str:
    if state is State.PENDING and {"pending", "scheduled"} <= {*labels}:
        return "failures = 0"
    return f"({' or '.join(PART_OF[label] for label in labels)})"


def _comments(own: OwnTable) -> Iterator[str]:
    for name, text in own.comments.items():
        what = f"column public.{quoted(own.name)}.{quoted(name)}" if name else f"view public.{quoted(own.name)}"
        yield f"comment on {what} is {literal(text)};"


# ------------------------------------------------------------------------------------------------ an insert


def _insert_names(profile: Profile, columns: list[Column]) -> dict[str, str]:
    required = [column for column in columns if column.required]
    retry: Retry = profile.task.get("retry", Retry())
    schedule = column_of(columns, "schedule_id")
    return {
        "missing": ",\n        ".join(f"({literal(column.name)}, {column.new} is null)" for column in required),
        **_signs(profile, columns),
        "attempts_check": _attempts_check(columns),
        "enqueue": ", ".join(f"{name} => {value}" for name, value in _enqueued(profile, columns, retry).items()),
        "key": _key_name(columns),
        "schedule": schedule.new if schedule else "",
        "schedule_check": SCHEDULE_CHECK if schedule else "",
        "schedule_set": SCHEDULE_SET if schedule else "",
        "key_check": KEY_CHECK if column_of(columns, "key") else "",
        "pending_word": profile.word("pending"),
        **past_values(profile, columns, _lease(profile), retry, _scope(profile)),
    }


def _signs(profile: Profile, columns: list[Column]) -> dict[str, str]:
    """How a row is known to have a past, and what a new one leaves out."""
    signs, empty = [], []
    marks = [column for column in columns if _tells_of_a_past(column)]
    for column in marks:
        if column.source == "state":
            signs.append(f"{column.new} <> {literal(profile.word('pending'))}")
        elif column.source in CLOCKS:
            signs.append(f"abs(extract(epoch from {column.new} - {column.default})) > {SLACK}")
        elif column.default is not None:
            signs.append(f"{column.new} is distinct from {column.default}")
        else:
            empty.append(column.new)
    if empty:
        signs.append(f"num_nonnulls({', '.join(empty)}) > 0")
    return {
        "has_past": "\n        or ".join(signs),
        "left_out": ", ".join(column.name for column in marks).replace("'", "''"),
    }


def _tells_of_a_past(column: Column) -> bool:
    return isinstance(column.source, Mapping) or column.source in (*PAST_ONLY, *CLOCKS, "state", "result")


def _lease(profile: Profile) -> str:
    return f"make_interval(secs => {seconds(profile.settings.get('lease', '30s'), 'lease'):g})"


def _scope(profile: Profile) -> str:
    unique = profile.task.get("unique", Unique())
    scope = unique if isinstance(unique, str) else unique.scope
    return "active" if scope == "window" else scope  # a row does not say when its window ends


def _key_name(columns: list[Column]) -> str:
    key = column_of(columns, "key")
    return key.name if key else "id"


def _attempts_check(columns: list[Column]) -> str:
    column = column_of(columns, "max_attempts")
    if column is None:
        return ""
    return (
        f"    if {column.new} < 1 then\n        raise exception '{column.name}: % must be 1 or more', {column.new} "
        "using errcode = 'check_violation';\n    end if;\n"
    )


def _enqueued(profile: Profile, columns: list[Column], retry: Retry) -> dict[str, str]:
    """The arguments of treadle.enqueue for a new row."""
    arguments = {
        "task": "task", "payload": "payload", "tenant": "tenant", "priority": "priority", "run_after": "due_at",
        "expires_at": "expires_at", "max_attempts": "max_attempts", "queue": "queue", "lane": "lane",
        "timeout": "timeout", "task_version": "task_version", "key": "key", "id": "id",
    }  # fmt: skip
    found = {name: given(column) for name, source in arguments.items() if (column := column_of(columns, source))}
    if column := column_of(columns, "max_retries"):
        found["max_attempts"] = f"{column.new} + 1"
    found.setdefault("max_attempts", str(retry.max_attempts))
    found |= {
        "retry_base": f"{retry.base:g}",
        "retry_cap": "null" if retry.cap is None else f"{retry.cap:g}",
        "retry_jitter": f"{retry.jitter:g}",
    }
    if "key" in found:
        found["key_scope"] = f"case when {found['key']} is not null then {literal(_scope(profile))} end"
    return found
