"""A companion on DynamoDB: a summary a day for every user, polled every half minute, with dead letters kept.

from treadle.profiles import companion

app = Treadle("dynamodb://companion", profile=companion.PROFILE)
"""

from treadle.app.profile import Profile
from treadle.model.retry import Retry
from treadle.tasks.options import Unique

PROFILE = Profile(
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
"""Its numbers, its words and its columns."""
