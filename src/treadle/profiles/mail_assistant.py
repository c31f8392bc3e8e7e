"""A mail assistant in one process on SQLite: seven kinds of jobs about a mailbox, tried again at once.

from treadle.profiles import mail_assistant

app = Treadle("sqlite:///assistant.db", profile=mail_assistant.PROFILE)
"""

from treadle.app.profile import Profile
from treadle.model.retry import Retry

PROFILE = Profile(
    settings={
        "lease": "5m", "sweep": "1m", "poll": 1, "concurrency": 3, "batch": 1, "unknown_tasks": "fail",
        "keep_succeeded": "7d", "keep_cancelled": "7d", "keep_failed": "7d",
    },
    task={"retry": Retry(max_attempts=3, base=0, jitter=0), "unique": "pending"},
    states={"succeeded": "completed", "cancelled": "failed"},
    fields={
        "id": "id", "job_type": "task", "user_id": "tenant", "payload": "payload", "status": "state",
        "attempts": "failures", "max_attempts": "max_attempts", "error_message": "error_text",
        "created_at": "created_at", "completed_at": "finished_at",
    },
)  # fmt: skip
"""Its numbers, its words and its columns."""
