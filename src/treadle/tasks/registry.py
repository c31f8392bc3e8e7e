"""The tasks of an app by name: what their jobs take for granted, and the schedules that code declares of them."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treadle.errors import ConfigError, TreadleError, UnknownTask
from treadle.model import FollowUp, OnEnd, check_name
from treadle.model.clock import seconds
from treadle.model.records import Schedule
from treadle.tasks.task import Enqueuer, Options, Task, Unique, name_of

OPTIONS = ("queue", "lane", "priority", "retry", "timeout", "unique", "version", "on_succeeded", "on_failed", "audit")
SCHEDULING = (
    "cron", "every", "tz", "payload", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "for_each",
)  # fmt: skip
"""What `@app.task(...)` may say beside OPTIONS, to be run by itself."""


class TaskRegistry(Mapping[str, Task[..., Any]]):
    """What is registered with an app; `defaults` are the options that hold for all of them."""

    def __init__(self, enqueuer: Enqueuer, defaults: Mapping[str, Any]) -> None:
        self._enqueuer = enqueuer
        self._defaults = defaults
        self._tasks: dict[str, Task[..., Any]] = {}
        self._declared: dict[tuple[str | None, str], tuple[str, Any, Mapping[str, Any]]] = {}

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def register(self, name: str, handler: Callable[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
        """Register a handler under a name, with OPTIONS; one with any of SCHEDULING is declared to run by itself."""
        if not callable(handler):
            raise ConfigError(f"task {name!r}: {handler!r} cannot be called")
        if name in self and self[name].handler is not handler:
            raise ConfigError(f"task {name!r} is registered twice; give one of them another name")
        said = {option: options[option] for option in SCHEDULING if option in options}
        rest = {option: value for option, value in options.items() if option not in SCHEDULING}
        task: Task[..., Any] = Task(self._enqueuer, name, handler, self._options(name, rest))
        if said and (None, name) not in self._declared:
            self.declare(name, name, said.pop("payload", None), said)
        self._tasks[name] = task
        return task

    def named(self, name: str, *, checked: bool) -> Task[..., Any]:
        """The task of this name; one that is not known here only if it need not be `checked`."""
        task = self.get(name)
        if task is None:
            if checked:
                raise UnknownTask(name, self)
            task = Task(self._enqueuer, name, _raw, self._options(name, {}))
        return task

    def follow_up(self, wanted: FollowUp | None) -> FollowUp | None:
        """What is to follow, with the options of the task that follows, if that is known here."""
        task = self.get(wanted.task) if wanted is not None and wanted.task else None
        if wanted is None or task is None:
            return wanted
        options = task.options
        return wanted._replace(
            queue=options.queue,
            lane=options.lane,
            priority=options.priority,
            version=options.version,
            retry=options.retry,
            timeout=options.timeout,
            wants=task.payload.names,
        )

    def _options(self, name: str, given: Mapping[str, Any]) -> Options:
        """What a task takes for granted of its jobs: what it was given, else what holds for all tasks."""
        options = {**self._defaults, **given}
        unknown = options.keys() - set(OPTIONS)
        if unknown:
            known = f"known: {', '.join((*OPTIONS, *SCHEDULING))}"
            raise ConfigError(f"task {name!r}: unknown option {', '.join(sorted(unknown))}; {known}")
        follow = {state: _follow_up(name, state, options) for state in ("succeeded", "failed")}
        for option in ("on_succeeded", "on_failed", "audit"):
            options.pop(option, None)
        if any(follow.values()):
            options["on_end"] = OnEnd(**follow)
        if isinstance(options.get("unique"), str):
            options["unique"] = Unique(options["unique"])
        if not isinstance(options.get("unique", Unique()), Unique):
            raise ConfigError(f"task {name!r}: unique: {options['unique']!r} must be a scope, or Unique(scope=…)")
        if options.get("timeout") is not None:
            options["timeout"] = seconds(options["timeout"], "timeout")
        return Options(**options)

    # ------------------------------------------------------------------------------------- schedules

    def schedule_fields(self, name: str, payload: Any, *, rows: str | None, checked: bool) -> dict[str, Any]:
        """What a schedule of this task takes for granted of its jobs, its payload among it, as the task wants it.

        Without `rows` to add to it, the payload must fit the task as it is.
        """
        from treadle.schedules.rules import EXPANSION  # noqa: PLC0415 - calendars are loaded by who uses them

        task = self.named(name, checked=checked)
        payload = {} if payload is None else payload
        if rows is None:
            payload = json.loads(task.payload.encode_value(payload))
        elif checked and f"{EXPANSION}{rows}" not in self:
            raise ConfigError(f"for_each: no rows are registered as {rows!r}; register them: app.for_each(function)")
        options = task.options
        retry = dict(zip(("max_attempts", "retry_base", "retry_cap", "retry_jitter"), options.retry, strict=True))
        return {
            "payload": payload,
            "queue": options.queue,
            "lane": options.lane,
            "priority": options.priority,
            "timeout": options.timeout,
            **retry,
            "task_version": options.version,
            "on_end": task.on_end(),
        }

    def encode_row(self, task: str, payload: object) -> tuple[str, OnEnd | None]:
        """The payload of one row as its task wants it, as JSON, and what follows its jobs."""
        known = self.named(task, checked=False)
        return known.payload.encode_value(payload), known.on_end()

    def for_each(self, rows: Callable[..., Any], name: str | None = None) -> str:
        """Register a function that yields rows, under a name or its own; the name."""
        from treadle.schedules.for_each import expansion  # noqa: PLC0415 - only who has rows needs it
        from treadle.schedules.rules import EXPANSION  # noqa: PLC0415

        name = name or str(getattr(rows, "__name__", ""))
        task = f"{EXPANSION}{name}"
        known = self.get(task)
        if known is not None and getattr(known.handler, "rows", None) is not rows:
            raise ConfigError(f"for_each: {name!r} is registered twice; give one of them another name")
        if known is None:
            self.register(task, expansion(rows, self.encode_row, self._enqueuer), {})
        return name

    def declare(self, name: str, task: "str | Task[..., Any]", payload: Any, said: Mapping[str, Any]) -> None:
        """Keep in mind a schedule that code declares; what is wrong with it is an error here and now."""
        from treadle.schedules.api import declaration  # noqa: PLC0415

        said = dict(said)
        tenant = said.pop("tenant", None)
        if (tenant, name) in self._declared:
            raise ConfigError(f"schedule {name!r} is declared twice; give one of them another name")
        if callable(said.get("for_each")):
            said["for_each"] = self.for_each(said["for_each"])
        task_name = name_of(task)
        declaration(name, task_name, {}, said, tenant or "default")
        self._declared[tenant, name] = (task_name, payload, said)

    def declared(self) -> list[Schedule]:
        """The schedules that code declares."""
        if not self._declared:
            return []
        from treadle.schedules.api import declaration  # noqa: PLC0415

        found = []
        for (tenant, name), (task, given, said) in self._declared.items():
            try:
                fields = self.schedule_fields(task, given, rows=said.get("for_each"), checked=True)
            except TreadleError as error:
                raise ConfigError(f"schedule {name!r}: {error}") from error
            found.append(declaration(name, task, fields, said, self.tenant_of(tenant)))
        return found

    def tenant_of(self, named: str | None) -> str:
        """Whose a schedule is; InvalidJob if that must be said and is not."""
        return self._enqueuer.tenant_of(named)


def _raw(payload: Any) -> None:
    """Stands for the handler of a task that is not known here."""


def _follow_up(task: str, state: str, options: Mapping[str, Any]) -> FollowUp | None:
    """What a task says is to follow a job that ends so."""
    then, names = options.get(f"on_{state}"), options.get("audit") or {}
    if not isinstance(names, Mapping):
        raise ConfigError(f"task {task!r}: audit: {names!r} must be names by state, such as {{'failed': 'LOST'}}")
    if unknown := names.keys() - {"succeeded", "failed"}:
        raise ConfigError(f"task {task!r}: audit: {', '.join(sorted(unknown))} must be succeeded or failed")
    if state in names:
        check_name("audit", names[state])
    if then is None and state not in names:
        return None
    name = name_of(then or "", f"on_{state}")
    if name:
        check_name(f"on_{state}", name)
    return FollowUp(names.get(state, ""), name)
