"""The tasks of an app by name, and what their jobs take for granted."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from linecache import checkcache, getlines
from typing import Any

from treadle.errors import ConfigError, UnknownTask
from treadle.model import FollowUp, OnEnd, check_name
from treadle.model.clock import seconds
from treadle.tasks.definition import Definition, check_handler
from treadle.tasks.options import Options, Unique, unique_of
from treadle.tasks.secrets import paths_from
from treadle.tasks.task import Task, TaskEnqueuer, name_of

OPTIONS = (
    "queue", "lane", "priority", "retry", "timeout", "unique", "version", "isolated", "on_succeeded", "on_failed",
    "audit", "secret",
)  # fmt: skip


def unknown_option(task: str, unknown: Sequence[str], known: Sequence[str]) -> ConfigError:
    """The error for options that no task has; it says which one may be meant."""
    near = get_close_matches(unknown[0], known, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"task {task!r}: unknown option {', '.join(unknown)}; {meant}known: {', '.join(known)}")


class TaskRegistry(Mapping[str, Task[..., Any]]):
    """What is registered with an app; `defaults` are the options that hold for all of them.

    The definitions are kept in `known`, which others may look things up in.
    """

    def __init__(self, enqueuer: TaskEnqueuer, known: dict[str, Definition], defaults: Mapping[str, Any]) -> None:
        self._enqueuer = enqueuer
        self._defaults = defaults
        self._known = known
        self._tasks: dict[str, Task[..., Any]] = {}

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def known(self) -> Mapping[str, Definition]:
        """The definitions of these tasks."""
        return self._known

    def make(self, name: str, handler: Callable[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
        """A task with OPTIONS that may be added; ConfigError if its name is another's."""
        if not callable(handler):
            raise ConfigError(f"task {name!r}: {handler!r} cannot be called")
        check_handler(name, handler)
        if name in self and not is_redefinition(self[name].handler, handler):
            raise ConfigError(f"task {name!r} is registered twice; give one of them another name")
        return Task(self._enqueuer, Definition(name, handler, self._options(name, options)))

    def add(self, task: Task[..., Any]) -> None:
        """Register a task under its name."""
        self._tasks[task.name] = task
        self._known[task.name] = task.definition

    def named(self, name: str, *, checked: bool) -> Task[..., Any]:
        """The task of this name; one that is not known here only if it need not be `checked`."""
        task = self.get(name)
        if task is None:
            if checked:
                raise UnknownTask(name, self)
            task = Task(self._enqueuer, Definition(name, _raw, self._options(name, {})))
        return task

    def check_follow_ups(self) -> None:
        """ConfigError for a task whose follow-up needs what it would not be told; a warning for one not known here."""
        from treadle.tasks.follow_ups import on_end  # noqa: PLC0415 - few tasks have any

        for task in self._tasks.values():
            on_end(task.name, task.options.on_end, self._known)

    def _options(self, name: str, given: Mapping[str, Any]) -> Options:
        """What a task takes for granted of its jobs: what it was given, else what holds for all tasks."""
        options = {**self._defaults, **given}
        unknown = options.keys() - set(OPTIONS)
        if unknown:
            raise unknown_option(name, sorted(unknown), OPTIONS)
        follow = {state: _follow_up(name, state, options) for state in ("succeeded", "failed")}
        for option in ("on_succeeded", "on_failed", "audit"):
            options.pop(option, None)
        if any(follow.values()):
            options["on_end"] = OnEnd(**follow)
        if not isinstance(options.get("isolated", False), bool):
            raise ConfigError(f"task {name!r}: isolated: {options['isolated']!r} must be True or False")
        unique = options.get("unique", Unique())
        if not isinstance(unique, str | Unique):
            raise ConfigError(f"task {name!r}: unique: {unique!r} must be a scope, or Unique(scope=…)")
        options["unique"] = unique_of(unique)
        options["secret"] = paths_from(name, options.get("secret") or ())
        if options.get("timeout") is not None:
            options["timeout"] = seconds(options["timeout"], "timeout")
        return Options(**options)


def is_redefinition(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether a handler is another one anew: its module was reloaded, or a notebook's cell has run again.

    Two functions of one name in the same file are a slip: Python would keep only the second. So is a built-in task that
    is registered twice: its handlers are made in one place, for whatever they are registered.
    """
    if old is new:
        return True
    module, name = _place(new)
    if module.startswith("treadle.builtin."):
        return False
    if not name or name.endswith("<lambda>") or _place(old) != (module, name):
        return False
    file = getattr(getattr(new, "__code__", None), "co_filename", "")
    checkcache(file)
    definition = re.compile(rf"(async +)?(def|class) +{re.escape(name)}\b")
    return sum(bool(definition.match(line)) for line in getlines(file)) < 2


def _place(handler: Callable[..., Any]) -> tuple[str, str]:
    return getattr(handler, "__module__", None) or "", getattr(handler, "__qualname__", None) or ""


def _raw(payload: Any) -> None:
    """Stands for the handler of a task that is not known here."""


def _follow_up(task: str, state: str, options: Mapping[str, Any]) -> FollowUp | None:
    """What a task declares to follow a job that ends so."""
    then, names = options.get(f"on_{state}"), options.get("audit") or {}
    if not isinstance(names, Mapping):
        raise ConfigError(f"task {task!r}: audit: {names!r} must be names by state, such as {{'failed': 'LOST'}}")
    if unknown := names.keys() - {"succeeded", "failed", "exhausted"}:
        raise ConfigError(f"task {task!r}: audit: {', '.join(sorted(unknown))} must be succeeded, failed or exhausted")
    for event in names.values():
        check_name("audit", event)
    event, exhausted = names.get(state, ""), names.get("exhausted", "") if state == "failed" else ""
    if then is None and not event and not exhausted:
        return None
    name = name_of(then or "", f"on_{state}")
    if name:
        check_name(f"on_{state}", name)
    return FollowUp(event, name, exhausted=exhausted)
