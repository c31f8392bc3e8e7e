"""Operations for many tenants: mails and workflows in one table of a TypeScript backend, behind one switch.

from treadle.profiles import tenant_ops

app = Treadle("postgresql://localhost/ops", profile=tenant_ops.PROFILE)
"""

from typing import Any

from treadle.app.profile import OwnTable, Profile
from treadle.model.retry import Retry

_KEPT: dict[str, Any] = {f"keep_{what}": "forever" for what in ("succeeded", "cancelled", "failed", "audit")}

GATE = "atlas_online"
"""The switch that all its workers ask. It is a pause: `app.pause(everything=True, reason=GATE)` sets it offline."""

EXHAUSTED = "JOB_EXHAUSTED_RETRIES"
"""What its audit log calls a job whose retries are spent."""

EMAIL_AUDIT = {"succeeded": "EMAIL_SENT", "exhausted": EXHAUSTED}
"""The option `audit` of its task EMAIL_SEND."""

PROFILE = Profile(
    settings={
        "lease": "5m", "sweep": "1m", "poll": 5, "concurrency": 1, "batch": 10, "unknown_tasks": "leave",
        "tenant_required": True, "audit": "everything", **_KEPT,
    },
    task={"retry": Retry(max_attempts=4, base=10, cap=None, jitter=0), "audit": {"exhausted": EXHAUSTED}},
    states={"pending": "queued", "cancelled": "failed"},
    fields={
        "id": "id", "tenant_id": "tenant", "status": "state", "job_type": "task", "priority": "priority",
        "input": "payload", "output": "result", "error": {"message": "error_text", "attemptedAt": "error_at"},
        "costCents": "cost_cents", "retryCount": "retries", "maxRetries": "max_retries", "nextRetryAt": "retry_at",
        "startedAt": "claimed_at", "finishedAt": "finished_at", "createdAt": "created_at",
    },
    empty={},
    table=OwnTable(
        "jobs",
        types={
            "tenant_id": "uuid", "status": "job_status",
            **dict.fromkeys(("nextRetryAt", "startedAt", "finishedAt", "createdAt"), "timestamp(3)"),
        },
        defaults={
            "id": "gen_random_uuid()", "output": "'{}'", "error": "'{}'",
            "createdAt": "(now() at time zone 'UTC')::timestamp(3)",
        },
        words=("queued", "running", "succeeded", "failed"),
    ),
)  # fmt: skip
"""Its numbers, its words and its columns."""
