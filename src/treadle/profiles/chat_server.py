"""A chat server with one table `jobs` for mail, agents and reminders, and a runner inside the web process.

from treadle.profiles import chat_server

app = Treadle("postgresql://localhost/chat", profile=chat_server.PROFILE)
"""

from typing import Any

from treadle.app.profile import OwnTable, Profile
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
    table=OwnTable(
        "jobs",
        types={"user_id": "uuid"},
        words=("pending", "claimed", "running", "complete", "failed"),
        comments={
            "": "Universal job queue for all background work types (email processing, agent invocation, reminder "
            "delivery, etc.): the jobs of treadle, under this application's names.",
            "job_type": "Discriminator for handler dispatch (e.g., email_processing, agent_invocation, "
            "reminder_delivery)",
            "priority": "Higher priority jobs are claimed first. Default 0.",
            "scheduled_for": "Job is not eligible for claiming until this time. Supports delayed/scheduled execution.",
            "expires_at": "Optional hard expiry. Jobs past this time are not executed.",
        },
        checks="perform public.jobs_known_user(new.user_id);",
        script=("treadle.profiles", "chat_server.sql"),
    ),
)  # fmt: skip
"""Its numbers, its words and its columns."""
