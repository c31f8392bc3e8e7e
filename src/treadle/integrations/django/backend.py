"""The backend for TASKS: what `django.tasks` (Django 6) or `django_tasks` (before it) declares, run by treadle.

TASKS = {"default": {"BACKEND": "treadle.integrations.django.backend.TreadleBackend"}}
"""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings
from django.core import checks
from django.utils import timezone

from treadle.errors import InvalidJob, JobNotFound
from treadle.integrations.django import app
from treadle.integrations.django.results import TaskRun, django_task_of, result_of
from treadle.integrations.django.tasks_api import BaseTaskBackend, TaskResultDoesNotExist, normalize_json, signals
from treadle.model.retry import Retry
from treadle.tasks.context import Context
from treadle.tasks.task import Task

ONCE = Retry(max_attempts=1)


class TreadleBackend(BaseTaskBackend):
    """Runs Django's tasks as jobs; each is a task of treadle, named by the path of its function.

    OPTIONS are options of `@app.task`, such as `retry` and `timeout`, for all tasks of this backend. Without `retry` a
    task that raises has failed, as with every other backend.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot run; let a worker know what can."""
        super().validate_task(task)
        self._registered(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a job; inside `atomic()` it commits with that block."""
        self.validate_task(task)
        after = task.run_after
        if after is not None and not settings.USE_TZ and timezone.is_naive(after):
            after = timezone.make_aware(after)
        ours = self._registered(task).using(queue=task.queue_name, priority=int(task.priority), run_after=after)
        job = ours.enqueue(args=normalize_json(list(args)), kwargs=normalize_json(dict(kwargs)))
        result = result_of(job, task, self.alias)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of this id, from any process; of a task that is not Django's there is none."""
        try:
            job = app.get(str(result_id))
        except (InvalidJob, JobNotFound):
            raise TaskResultDoesNotExist(result_id) from None
        task = django_task_of(job, app.tasks)
        if task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, task, self.alias, app.events(job.id) if job.attempt > 1 else ())

    def check(self, **_: Any) -> list[Any]:
        """What `manage.py check` says of the settings."""
        if "treadle.integrations.django" in settings.INSTALLED_APPS:
            return []
        where = f"TASKS[{self.alias!r}]"
        hint = "Add 'treadle.integrations.django' to INSTALLED_APPS."
        return [checks.Error(f"{where} needs treadle's Django app.", hint=hint, id="treadle.E001")]

    def _registered(self, task: Any) -> Task[..., Any]:
        known = app.tasks.get(task.module_path)
        if known is None:
            options = {"retry": ONCE, **self.options}
            known = app.register(task.module_path, _handler(type(self), task, self.alias), **options)
        return known


def _handler(sender: type, task: Any, alias: str) -> Callable[..., Any]:
    """What treadle calls: it gives the function its arguments and context, and tells Django's signals."""

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with TaskRun(sender, task, alias, ctx.job) as at_work:
            return at_work.returned(task.func(*at_work.context, *args, **kwargs))

    async def arun(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with TaskRun(sender, task, alias, ctx.job) as at_work:
            return at_work.returned(await task.func(*at_work.context, *args, **kwargs))

    handler: Any = arun if iscoroutinefunction(task.func) else run
    handler.django_task = task  # for django_task_of
    return handler  # type: ignore[no-any-return]
