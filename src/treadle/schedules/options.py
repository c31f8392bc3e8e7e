"""What a schedule can be told beside its name, its task and its payload; typed, so that a checker sees a slip."""

from collections.abc import Callable
from typing import Any, TypedDict

from treadle.model.clock import Duration
from treadle.model.retry import Retry
from treadle.tasks.task import Task


class ScheduleOptions(TypedDict, total=False):
    """The options of `app.declare`, `create` and `upsert`; what is left out comes from the task."""

    cron: str | None
    every: Duration | None
    tz: str | None
    enabled: bool | None
    queue: str | None
    lane: str | None
    priority: int | None
    retry: Retry | None
    max_attempts: int | None
    timeout: Duration | None
    misfire: str | None
    misfire_limit: int | None
    misfire_age: Duration | None
    overlap: str | None
    jitter: Duration | None
    for_each: Callable[..., Any] | str | None


class ScheduleChanges(ScheduleOptions, total=False):
    """The options of `update`; what is left out stays."""

    task: str | Task[..., Any]
    payload: Any
