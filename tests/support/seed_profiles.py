"""The five applications that treadle replaces, each as a profile: their numbers, their words, their columns."""

from treadle import Profile, Retry, Unique
from treadle.profiles import backend

KEPT = {"keep_succeeded": "forever", "keep_cancelled": "forever", "keep_failed": "forever", "keep_audit": "forever"}

CHAT_SERVER = Profile(  # 000
    settings={
        "lease": "30m", "sweep": "5m", "poll": 5, "concurrency": 1, "batch": 1, "unknown_tasks": "fail",
        "start": "first", "tenant_required": True, "schedules": False, "audit": "everything", "count_claims": True,
        "crash_message": "Job timed out (stale claim)", **KEPT,
    },
    task={"retry": Retry(max_attempts=4, base=30, cap=900, jitter=0)},
    states={"claimed": "claimed", "succeeded": "complete", "cancelled": "failed"},
    fields={
        "id": "id", "user_id": "tenant", "job_type": "task", "status": "state", "input": "payload", "output": "result",
        "error": "error_text", "priority": "priority", "retry_count": "retries", "max_retries": "max_retries",
        "scheduled_for": "due_at", "expires_at": "expires_at", "claimed_at": "claimed_at", "started_at": "started_at",
        "completed_at": "finished_at", "created_at": "created_at", "updated_at": "updated_at",
    },
    empty={},
)  # fmt: skip

MAIL_ASSISTANT = Profile(  # 001
    settings={
        "lease": "5m", "sweep": "1m", "poll": 1, "concurrency": 3, "batch": 1, "unknown_tasks": "fail",
        "keep_failed": "7d",
    },
    task={"retry": Retry(max_attempts=3, base=0, jitter=0), "unique": "active"},
    states={"succeeded": "completed", "cancelled": "failed"},
    fields={
        "id": "id", "job_type": "task", "user_id": "tenant", "payload": "payload", "status": "state",
        "attempts": "failures", "max_attempts": "max_attempts", "error_message": "error_text",
        "created_at": "created_at", "completed_at": "finished_at",
    },
)  # fmt: skip

BACKEND = backend.PROFILE  # 002

COMPANION = Profile(  # 003
    settings={
        "lease": "5m", "sweep": 30, "poll": 30, "concurrency": 1, "batch": 25, "unknown_tasks": "fail",
        "cancel": "pending", "keep_failed": "forever",
    },
    task={"retry": Retry(max_attempts=5, base=60, cap=None, jitter=0), "unique": Unique("window", window="1d")},
    states={
        "retrying": "failed", "running": "in_progress", "succeeded": "completed", "failed": "dead_letter",
        "expired": "dead_letter",
    },
    fields={
        "job_id": "id", "job_type": "task", "payload": "payload", "scheduled_for": "due_at", "status": "state",
        "locked_by": "worker", "lock_expires_at": "lease_until", "attempts": "failures",
        "last_error": "error_traceback", "created_at": "created_at", "completed_at": "finished_at",
    },
)  # fmt: skip

TENANT_SYSTEM = Profile(  # 004
    settings={
        "lease": "5m", "sweep": "1m", "poll": 5, "concurrency": 1, "batch": 10, "unknown_tasks": "leave",
        "tenant_required": True, "audit": "everything", **KEPT,
    },
    task={"retry": Retry(max_attempts=4, base=10, cap=None, jitter=0)},
    states={"pending": "queued", "cancelled": "failed"},
    fields={
        "id": "id", "tenant_id": "tenant", "status": "state", "job_type": "task", "priority": "priority",
        "input": "payload", "output": "result", "error": {"message": "error_text", "attemptedAt": "error_at"},
        "costCents": "cost_cents", "retryCount": "retries", "maxRetries": "max_retries", "nextRetryAt": "retry_at",
        "startedAt": "claimed_at", "finishedAt": "finished_at", "createdAt": "created_at",
    },
    empty={},
)  # fmt: skip
