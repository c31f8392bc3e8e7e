"""Tables of jobs that applications had, made and filled for tests."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

Row = dict[str, Any]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MAP = {
    "columns": {
        "id": "id", "task": "kind", "tenant": "owner", "state": "status", "payload": "args", "result": "answer",
        "error_text": ["problem", "text"], "error_at": ["problem", "at"], "priority": "priority", "retries": "tries",
        "max_retries": "max_tries", "key": "dedup", "created_at": "made", "updated_at": "changed", "due_at": "due",
        "claimed_at": "taken", "finished_at": "ended", "worker": "taken_by", "cost_cents": "cents",
    },
    "states": {"new": "pending", "busy": "running", "done": "succeeded", "broken": "failed", "stopped": "cancelled"},
    "defaults": {"lease": "30m", "retry_base": 30, "retry_cap": 900, "retry_jitter": 0, "key_scope": "ever"},
}  # fmt: skip
COLUMNS = {
    "id": "uuid", "kind": "text", "owner": "text", "status": "text", "args": "jsonb", "answer": "jsonb",
    "problem": "jsonb", "priority": "integer", "tries": "integer", "max_tries": "integer", "dedup": "text",
    "made": "timestamptz", "changed": "timestamptz", "due": "timestamptz", "taken": "timestamptz",
    "ended": "timestamptz", "taken_by": "text", "cents": "integer",
}  # fmt: skip
WORDS = ("new", "busy", "done", "broken", "stopped")


def a_row(number: int, now: datetime = NOW, **fields: Any) -> Row:
    """A row, the number's word in turn, with what such a row has."""
    word = WORDS[number % 5]
    made = now - timedelta(hours=2, seconds=number)
    problem = {"text": f"no mail {number}", "at": (made + timedelta(minutes=3)).isoformat()}
    row = {
        "id": str(UUID(int=0x4000 << 64 | 0x8 << 60 | number, version=4)),
        "kind": "send",
        "owner": f"tenant-{number % 3}",
        "status": word,
        "args": {"to": f"ada+{number}@example.org"},
        "answer": {"sent": number} if word == "done" else None,
        "problem": problem if word in ("broken", "new") else None,
        "priority": number % 4,
        "tries": 2 if word == "broken" else 1,
        "max_tries": 2,
        "dedup": f"mail-{number}" if number % 2 else None,
        "made": made,
        "changed": made + timedelta(minutes=4),
        "due": made + timedelta(seconds=5),
        "taken": None if word == "new" else made + timedelta(minutes=2),
        "ended": made + timedelta(minutes=4) if word in ("done", "broken", "stopped") else None,
        "taken_by": "old-runner" if word == "busy" else None,
        "cents": 7 if word == "done" else 0,
    }
    return {**row, **fields}


def fill(url: str, rows: Sequence[Row], table: str = "old_jobs", **types: str) -> str:
    """Make the table in the database of this URL, and fill it; its name."""
    columns = ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **types}.items())
    names = ", ".join(COLUMNS)
    values = [tuple(_given(row[name]) for name in COLUMNS) for row in rows]
    if url.startswith("sqlite:"):
        with sqlite3.connect(path_of(url)) as file:
            file.execute(f"create table if not exists {table} ({columns})")
            file.executemany(f"insert into {table} values ({', '.join('?' * len(COLUMNS))})", values)
        file.close()
    else:
        with psycopg.connect(url.partition("?schema=")[0]) as connection:
            connection.execute(f"create table if not exists {table} ({columns})")
            with connection.cursor().copy(f"copy {table} ({names}) from stdin") as copy:
                for value in values:
                    copy.write_row(value)
            connection.execute(f"create index if not exists {table.replace('.', '_')}_id on {table} (id)")
    return table


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, datetime) else value
