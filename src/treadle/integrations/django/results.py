"""A job as Django's TaskResult, and a task of Django's at work."""

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from traceback import format_exception
from types import TracebackType
from typing import Any, Self

from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from treadle.errors import GiveUp, Snooze
from treadle.integrations.django.tasks_api import (
    DjangoTask,
    InvalidTask,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    signals,
)
from treadle.model import Event, EventKind, Job, JobError, State
from treadle.tasks.task import Task

_STATUS = {
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_NOT_THE_LAST = (EventKind.RETRYING, EventKind.CRASHED)


def result_of(job: Job, task: Any, alias: str, events: Sequence[Event] = ()) -> Any:
    """The result of a job of this task. Its `events` name the workers of earlier attempts."""
    earlier = [event.actor for event in events if event.kind in _NOT_THE_LAST]
    workers = [*earlier, *[job.worker or "unknown"] * job.attempt][: job.attempt]
    if len(earlier) < job.attempt and job.worker is not None:
        workers[-1] = job.worker
    result = TaskResult(
        task=_as_enqueued(task, job, alias),
        id=job.id,
        status=_STATUS[job.state],
        enqueued_at=_moment(job.created_at),
        started_at=_moment(job.started_at),
        last_attempted_at=_moment(job.started_at or job.claimed_at),
        finished_at=_moment(job.finished_at),
        args=job.payload["args"],
        kwargs=job.payload["kwargs"],
        backend=alias,
        errors=_errors(job),
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def django_task_of(job: Job, known: Mapping[str, Task[..., Any]]) -> Any:
    """The task of Django's that a job is for: known here, or found by its path; None if it is treadle's own."""
    if job.task in known:
        return getattr(known[job.task].handler, "django_task", None)
    if apps.get_containing_app_config(job.task) is None:  # a row names what is imported: nothing but what is installed
        return None
    try:
        found = import_string(job.task)
    except ImportError:
        return None
    return found if isinstance(found, DjangoTask) else None


class TaskRun:
    """A task at work, between Django's signals `task_started` and `task_finished`.

    An attempt that is followed by another does not finish the task.
    """

    def __init__(self, sender: type, task: Any, alias: str, job: Job) -> None:
        self._sender = sender
        self._job = job
        self._result = result_of(job, task, alias)
        self._set(status=_STATUS[State.RUNNING])
        self.context = [TaskContext(task_result=self._result)] if task.takes_context else []

    def __enter__(self) -> Self:
        now = _moment(timezone.now())
        self._set(started_at=now, last_attempted_at=now, errors=[])
        signals.task_started.send(self._sender, task_result=self._result)
        return self

    def returned(self, value: Any) -> Any:
        """What is kept of the value that the function returned; TypeError for what cannot be JSON."""
        kept = normalize_json(value)
        self._set(_return_value=kept)
        return kept

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish(TaskResultStatus.SUCCESSFUL)
        elif self._is_last(error):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            self._result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
            self._finish(TaskResultStatus.FAILED)

    def _is_last(self, error: BaseException) -> bool:
        """Whether no other attempt follows this error."""
        spent = self._job.failures + 1 >= self._job.max_attempts
        return not isinstance(error, Snooze) and (spent or isinstance(error, GiveUp))

    def _finish(self, status: Any) -> None:
        self._set(status=status, finished_at=_moment(timezone.now()))
        signals.task_finished.send(self._sender, task_result=self._result)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self._result, name, value)


def _as_enqueued(task: Any, job: Job, alias: str) -> Any:
    """The task with the priority, queue and time that the job was given."""
    later = job.due_at if job.due_at > job.created_at and not job.failures else None
    given = {"priority": job.priority, "queue_name": job.queue, "run_after": _moment(later), "backend": alias}
    try:
        return replace(task, **given)
    except InvalidTask:  # its queue has left the settings since
        return task


def _errors(job: Job) -> list[Any]:
    """What went wrong last; treadle keeps the traceback of one attempt."""
    if job.state is State.CANCELLED:
        return [TaskError(exception_class_path="treadle.errors.Cancelled", traceback=job.reason or "cancelled")]
    if job.error is None:
        return []
    return [TaskError(exception_class_path=_path(job.error), traceback=job.error.traceback or job.error.message)]


def _path(error: JobError) -> str:
    """Where the class of an error can be imported from; that of a worker's death is LeaseLost."""
    if "." in error.type:
        return error.type
    return f"builtins.{error.type}" if hasattr(builtins, error.type) else "treadle.errors.LeaseLost"


def _moment(moment: datetime | None) -> datetime | None:
    """A time as this project's settings want it."""
    if moment is None or settings.USE_TZ:
        return moment
    return timezone.make_naive(moment) if timezone.is_aware(moment) else moment
