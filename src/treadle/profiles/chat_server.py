"""A chat server with one table `jobs` for mail, agents and reminders, and a runner inside the web process.

from treadle.profiles import chat_server

app = Treadle("postgresql://localhost/chat", profile=chat_server.PROFILE)
"""

from typing import Any

from treadle.app.profile import Profile
from treadle.model.retry import Retry

_KEPT: dict[str, Any] = {f"keep_{what}": "forever" for what in ("succeeded", "cancelled", "failed", "audit")}

PROFILE = Profile(
    settings={
        "lease": "30m", "sweep": "5m", "poll": 5, "concurrency": 1, "batch": 1, "unknown_tasks": "fail",
        "start": "first", "tenant_required": True, "schedules": False, "audit": "everything", "count_claims": True,
        "crash_message": "Job timed out (stale claim)", **_KEPT,
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
"""Its numbers, its words and its columns."""
