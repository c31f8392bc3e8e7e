"""treadle: one job queue and scheduler for Python, in the database you already have.

The names below are loaded when they are first asked for: whoever only enqueues does not wait for what others need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.app.audit import AuditReport
    from treadle.app.claimed import Claimed
    from treadle.app.operations import Cost
    from treadle.app.profile import OwnTable, Profile
    from treadle.app.tenant import Tenant
    from treadle.app.treadle import Treadle
    from treadle.engines.values import Finding, Page, Receipt
    from treadle.errors import (
        Ambiguous,
        Cancelled,
        ConfigError,
        EngineError,
        EngineUnavailable,
        GiveUp,
        InvalidInput,
        InvalidJob,
        InvalidPayload,
        InvalidTiming,
        JobFailed,
        JobNotFound,
        KeyTaken,
        LeaseLost,
        NotDelivered,
        NotPossible,
        Parked,
        RetryLater,
        ScheduleNotFound,
        SchemaError,
        Snooze,
        TreadleError,
        UnknownTask,
        Unreachable,
        WaitTimeout,
    )  # fmt: skip
    from treadle.model import Event, EventKind, Job, JobError, Progress, Reason, Scope, State
    from treadle.model.memo import Memo
    from treadle.model.records import Misfire, Overlap, Pause, Schedule, WorkerInfo
    from treadle.model.retry import Retry
    from treadle.model.why import Obstacle
    from treadle.tasks.context import Context
    from treadle.tasks.hooks import AttemptEnd, Hooks
    from treadle.tasks.options import Unique
    from treadle.tasks.task import Task

__version__ = "0.1.0"

__all__ = [
    "Ambiguous",
    "AttemptEnd",
    "AuditReport",
    "Cancelled",
    "Claimed",
    "ConfigError",
    "Context",
    "Cost",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "EventKind",
    "Finding",
    "GiveUp",
    "Hooks",
    "InvalidInput",
    "InvalidJob",
    "InvalidPayload",
    "InvalidTiming",
    "Job",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "KeyTaken",
    "LeaseLost",
    "Memo",
    "Misfire",
    "NotDelivered",
    "NotPossible",
    "Obstacle",
    "Overlap",
    "OwnTable",
    "Page",
    "Parked",
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
    "Tenant",
    "Treadle",
    "TreadleError",
    "Unique",
    "UnknownTask",
    "Unreachable",
    "WaitTimeout",
    "WorkerInfo",
]  # fmt: skip

_MODULES = {
    "app.audit": ["AuditReport"],
    "app.claimed": ["Claimed"],
    "app.operations": ["Cost"],
    "app.profile": ["OwnTable", "Profile"],
    "app.tenant": ["Tenant"],
    "app.treadle": ["Treadle"],
    "engines.values": ["Finding", "Page", "Receipt"],
    "errors": [
        "Ambiguous", "Cancelled", "ConfigError", "EngineError", "EngineUnavailable", "GiveUp", "InvalidInput",
        "InvalidJob", "InvalidPayload", "InvalidTiming", "JobFailed", "JobNotFound", "KeyTaken", "LeaseLost",
        "NotDelivered", "NotPossible", "Parked", "RetryLater", "ScheduleNotFound", "SchemaError", "Snooze",
        "TreadleError", "UnknownTask", "Unreachable", "WaitTimeout",
    ],
    "model": ["Event", "EventKind", "Job", "JobError", "Progress", "Reason", "Scope", "State"],
    "model.memo": ["Memo"],
    "model.records": ["Misfire", "Overlap", "Pause", "Schedule", "WorkerInfo"],
    "model.retry": ["Retry"],
    "model.why": ["Obstacle"],
    "tasks.context": ["Context"],
    "tasks.hooks": ["AttemptEnd", "Hooks"],
    "tasks.options": ["Unique"],
    "tasks.task": ["Task"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public thing of this name, from the module that has it."""
    from importlib import import_module  # noqa: PLC0415 - only for a name that is not loaded yet

    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
