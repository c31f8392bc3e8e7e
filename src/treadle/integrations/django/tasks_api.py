"""The interface of tasks: Django's own from Django 6 on, before it that of the package django-tasks."""

from importlib import import_module
from typing import Any

from treadle.errors import ConfigError


def _modules() -> tuple[Any, Any, Any, Any]:
    for package in ("django.tasks", "django_tasks"):
        try:
            parts = [import_module(f"{package}.{name}") for name in ("base", "backends.base", "exceptions", "signals")]
        except ModuleNotFoundError as error:
            if error.name is None or not f"{package}.".startswith(f"{error.name}."):
                raise
        else:
            return tuple(parts)  # type: ignore[return-value]
    raise ConfigError("TASKS: Django has tasks from version 6 on; before that run: pip install django-tasks")


_base, _backends, _exceptions, signals = _modules()

BaseTaskBackend: Any = _backends.BaseTaskBackend
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
DjangoTask: Any = _base.Task
normalize_json: Any = _base.normalize_json
