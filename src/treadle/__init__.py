"""treadle: one job queue and scheduler for Python, in the database you already have."""

from treadle.app.audit import AuditReport
from treadle.app.operations import Cost
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
from treadle.model import Event, EventKind, Job, JobError, Progress, Reason, Scope, State
from treadle.model.records import Misfire, Overlap, Pause, Schedule, WorkerInfo
from treadle.model.retry import Retry
from treadle.model.why import Obstacle
from treadle.tasks.context import Context
from treadle.tasks.options import Unique
from treadle.tasks.task import Task

__version__ = "0.1.0"

__all__ = [
    "AuditReport",
    "Cancelled",
    "ConfigError",
    "Context",
    "Cost",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "EventKind",
    "Finding",
    "GiveUp",
    "InvalidJob",
    "InvalidPayload",
    "Job",
    "JobError",
    "JobNotFound",
    "KeyTaken",
    "LeaseLost",
    "Misfire",
    "NotPossible",
    "Obstacle",
    "Overlap",
    "Page",
    "Pause",
    "Profile",
    "Progress",
    "Reason",
    "Receipt",
    "Retry",
    "RetryLater",
    "Schedule",
    "ScheduleNotFound",
    "SchemaError",
    "Scope",
    "Snooze",
    "State",
    "Task",
    "Treadle",
    "TreadleError",
    "Unique",
    "UnknownTask",
    "WorkerInfo",
]  # fmt: skip
