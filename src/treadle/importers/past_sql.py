"""What a row with a past says of its job, in SQL, for the function that takes such rows through the view."""

from collections.abc import Mapping

from treadle.app.profile import Profile
from treadle.importers.columns import Column, column_of, given, literal
from treadle.importers.words import labels_of
from treadle.model.retry import Retry

PAST_ONLY = (
    "attempt", "failures", "crashes", "retries", "retry_at", "claimed_at", "started_at", "finished_at", "succeeded_at",
    "cancelled_at", "lease_until", "worker", "error_text", "error_type", "error_traceback", "error_at", "cost_cents",
    "cost_micros",
)  # fmt: skip
"""Fields of which a new job has nothing to tell."""
CLOCKS = ("created_at", "updated_at")
"""Fields that a new job has from the clock of whoever inserts it, maybe a little off."""

_STORED = {
    "id": "«id»", "task": "«task»", "payload": "«payload»::json", "created_at": "created", "due_at": "«due_at»",
    "tenant": "«tenant»", "queue": "«queue»", "lane": "«lane»", "task_version": "1", "priority": "«priority»",
    "max_attempts": "most", "retry_base": "«base»", "retry_cap": "«cap»", "retry_jitter": "«jitter»",
    "expires_at": "«expires_at»", "key": "«key_value»",
    "key_scope": "case when «key_value» is not null then «scope» end",
    "schedule": "called", "state": "state_",
    "reason": "case state_ when 'failed' then case when spent then 'exhausted' else 'permanent' end "
    "when 'cancelled' then case label when 'expired' then 'expired' else 'by_request' end end",
    "result": "«result»::json", "error": "error_", "attempt": "tries",
    "failures": "case when spent then most else failed end", "crashes": "0", "claimed_at": "claimed",
    "started_at": "started", "finished_at": "ended", "worker": "«worker»",
    "lease_until": "case state_ when 'running' then coalesce(«lease_until», claimed + «lease») end",
    "lease_token": "case state_ when 'running' then treadle.new_id()::text end", "cancel_requested": "false",
    "cost_micros": "«cost»", "revision": "1",
}  # fmt: skip


def past_values(profile: Profile, columns: list[Column], lease: str, retry: Retry, scope: str) -> dict[str, str]:
    """What the text of that function needs."""

    def value(source: str, otherwise: str) -> str:
        column = column_of(columns, source)
        return given(column) if column else otherwise

    def number(source: str, otherwise: str) -> str:
        column = column_of(columns, source)
        return f"coalesce({given(column)}, 0)" if column else otherwise

    none = "null::timestamptz"
    ends = [given(column) for column in columns if column.source in ("finished_at", "succeeded_at", "cancelled_at")]
    waits = [given(column) for column in columns if column.source in ("retry_at", "due_at")]
    tries = "(state_ in ('running', 'succeeded'))::int"
    key = value("key", "null::text")
    texts = {
        "created_at": value("created_at", "statement_timestamp()"),
        "updated_at": value("updated_at", none),
        "claimed_at": value("claimed_at", none),
        "started_at": value("started_at", none),
        "started_too": f"case when {_if_begun(columns)} then claimed end",
        "finished_at": f"coalesce({', '.join(ends)})" if ends else none,
        "due_at": f"coalesce({', '.join([*waits, 'created'])})",
        "expires_at": value("expires_at", none),
        "lease_until": value("lease_until", none),
        "lease": lease,
        "most": value("max_attempts", f"{value('max_retries', str(retry.max_attempts - 1))} + 1"),
        "failures": number("failures", number("retries", f"{number('attempt', '0')} - {tries}")),
        "attempt": number("attempt", "0"),
        "error_text": _error_part(columns, "error_text", "null::text"),
        "error_at": f"nullif({_error_part(columns, 'error_at', 'null')}::text, '')::timestamptz",
        "tenant": value("tenant", "'default'"),
        "task": value("task", "''"),
        "payload": value("payload", "'{}'"),
        "priority": value("priority", "0"),
        "queue": value("queue", "'default'"),
        "lane": value("lane", "''"),
        "worker": value("worker", "null"),
        "result": _result(columns),
        "cost": f"{number('cost_micros', '0')} + {number('cost_cents', '0')} * 10000",
        "key_value": key,
        "scope": literal(scope),
        "takes_key": f"{key} is not null and {_covers(scope)}",
        "base": f"{retry.base:g}",
        "cap": "null" if retry.cap is None else f"{retry.cap:g}",
        "jitter": f"{retry.jitter:g}",
        "labels": " ".join(f"when {literal(word)} then {literal(label)}" for word, label in labels_of(profile).items()),
        "stored": ", ".join(_STORED),
    }
    return {**texts, "values": ", ".join(_STORED.values())}


def _if_begun(columns: list[Column]) -> str:
    """Which rows without a time of their start have begun when they were claimed."""
    return "label = 'running'" if column_of(columns, "started_at") else "label <> 'claimed'"


def _covers(scope: str) -> str:
    return {"pending": "state_ = 'pending'", "active": "ended is null"}.get(scope, "true")


def _error_part(columns: list[Column], source: str, otherwise: str) -> str:
    """A part of the error: a column of its own, or a member of one that holds an object."""
    if column := column_of(columns, source):
        return given(column)
    for column in columns:
        if isinstance(column.source, Mapping):
            for name, part in column.source.items():
                if part == source:
                    return f"({column.new} ->> {literal(name)})"
    if source == "error_text" and (column := column_of(columns, "error_traceback")):
        return given(column)
    return otherwise


def _result(columns: list[Column]) -> str:
    """The result, or nothing where the row has what stands for a missing one."""
    column = column_of(columns, "result")
    if column is None:
        return "null"
    return f"nullif({column.new}, {column.default})" if column.default else column.new
