"""A backend as a service with built-in jobs: its words, its schedules, its admin API, and nothing to enqueue.

from treadle.profiles import backend

app = Treadle("postgresql://localhost/ayb", profile=backend.PROFILE)
"""

import re
from importlib import resources
from typing import Any

from treadle.app.profile import Profile
from treadle.errors import ConfigError
from treadle.model.retry import Retry
from treadle.tasks.options import Unique

_KEPT: dict[str, Any] = {f"keep_{what}": "forever" for what in ("succeeded", "cancelled", "failed", "audit")}

PROFILE = Profile(
    settings={
        "lease": "5m", "sweep": 15, "poll": 1, "concurrency": 4, "batch": 1, "unknown_tasks": "fail",
        "cancel": "pending", "enqueue_allow": ["sql"], "schedule_interval": 15, **_KEPT,
    },
    task={"retry": Retry(max_attempts=3, base=5, cap=300, jitter=1), "unique": Unique("ever", on_conflict="raise")},
    states={"pending": "queued", "succeeded": "completed", "cancelled": "canceled", "expired": "failed"},
    fields={
        "id": "id", "type": "task", "payload": "payload", "state": "state", "run_at": "due_at",
        "lease_until": "lease_until", "worker_id": "worker", "attempts": "attempt", "max_attempts": "max_attempts",
        "last_error": "error_text", "last_run_at": "claimed_at", "idempotency_key": "key", "created_at": "created_at",
        "completed_at": "succeeded_at", "canceled_at": "cancelled_at", "schedule_id": "schedule_id",
        "updated_at": "updated_at",
    },
    schedules={
        "id": "id", "name": "name", "job_type": "task", "payload": "payload", "cron_expr": "cron",
        "timezone": "timezone", "enabled": "enabled", "max_attempts": "max_attempts", "next_run_at": "next_at",
        "last_run_at": "last_at", "created_at": "created_at", "updated_at": "updated_at",
    },
)  # fmt: skip
"""Its numbers, its words and its columns."""

_NAME = re.compile("[a-z_][a-z0-9_]*")


def view_sql(schema: str = "treadle", into: str = "public") -> str:
    """The SQL that makes the views `_ayb_jobs` and `_ayb_job_schedules` in PostgreSQL, to be run by a table owner.

    `schema` is where treadle's tables lie, `into` where the views go.
    """
    for field, name in (("schema", schema), ("into", into)):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{field}: {name!r} must be a name of small letters, digits and underscores")
    text = resources.files(__package__).joinpath("backend.sql").read_text("utf-8")
    places = {"treadle": schema, "public": into}
    return re.sub(r"\b(treadle|public)\.(?=[a-z_])", lambda found: f"{places[found[1]]}.", text)
