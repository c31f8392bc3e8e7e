"""treadle: one job queue and scheduler for Python, in the database you already have."""

from treadle.app.operations import Spent, Trail
from treadle.app.profile import Profile
from treadle.app.treadle import Treadle
from treadle.engines.values import Finding, Page, Receipt
from treadle.errors import (
    Cancelled,
    ConfigError,
    EngineError,
    EngineUnavailable,
    GiveUp,
    InvalidJob,
    InvalidPayload,
    JobNotFound,
    KeyTaken,
    LeaseLost,
    NotPossible,
    RetryLater,
    ScheduleNotFound,
    SchemaError,
    Snooze,
    TreadleError,
    UnknownTask,
)  # fmt: skip
from treadle.model import Event, Job, JobError, Progress, Reason, Scope, State, What
from treadle.model.records import Member, Misfire, Overlap, Pause, Schedule
from treadle.model.retry import Retry
from treadle.model.why import Obstacle
from treadle.tasks.context import Context
from treadle.tasks.task import Task, Unique

__version__ = "0.1.0"

__all__ = [
    "Cancelled", "ConfigError", "Context", "EngineError", "EngineUnavailable", "Event", "Finding", "GiveUp",
    "InvalidJob", "InvalidPayload", "Job", "JobError", "JobNotFound", "KeyTaken", "LeaseLost", "Member", "Misfire",
    "NotPossible", "Obstacle", "Overlap", "Page", "Pause", "Profile", "Progress", "Reason", "Receipt", "Retry",
    "RetryLater", "Schedule", "ScheduleNotFound", "SchemaError", "Scope", "Snooze", "Spent", "State", "Task", "Trail",
    "Treadle", "TreadleError", "Unique", "UnknownTask", "What",
]  # fmt: skip
