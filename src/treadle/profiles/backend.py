"""A backend as a service with built-in jobs: its words, its schedules, its admin API, and nothing to enqueue.

from treadle.profiles import backend

app = Treadle("postgresql://localhost/ayb", profile=backend.PROFILE)
"""

from typing import Any

from treadle.app.profile import OwnTable, Profile
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
        "last_error": "error_text", "last_run_at": "claimed_at", "idempotency_key": "key", "schedule_id": "schedule_id",
        "created_at": "created_at", "updated_at": "updated_at", "completed_at": "succeeded_at",
        "canceled_at": "cancelled_at",
    },
    schedules={
        "id": "id", "name": "name", "job_type": "task", "payload": "payload", "cron_expr": "cron",
        "timezone": "timezone", "enabled": "enabled", "max_attempts": "max_attempts", "next_run_at": "next_at",
        "last_run_at": "last_at", "created_at": "created_at", "updated_at": "updated_at",
    },
    table=OwnTable(
        "_ayb_jobs",
        types=dict.fromkeys(("type", "state", "worker_id", "idempotency_key"), "varchar"),
        defaults={"id": "gen_random_uuid()"},
        script=("treadle.profiles", "backend.sql"),
    ),
)  # fmt: skip
"""Its numbers, its words and its columns."""
