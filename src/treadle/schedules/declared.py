"""The schedules that code declares, and how a worker brings them into the store."""

import inspect
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from treadle.edits import Act, AuditedRecords, put
from treadle.errors import ConfigError, EngineUnavailable, InvalidJob, InvalidPayload, TreadleError
from treadle.model import EventKind, OnEnd
from treadle.model.records import RETIRED, Schedule
from treadle.schedules.acts import BY_CODE, brought_to, made
from treadle.schedules.for_each import RowStore, row_handler
from treadle.schedules.modules import calling_module, module_name
from treadle.schedules.rules import EXPANSION, check, fields_of
from treadle.tasks.context import Context
from treadle.tasks.follow_ups import on_end
from treadle.tasks.registry import TaskRegistry
from treadle.tasks.secrets import EVERYTHING, MASK, holds_mask
from treadle.tasks.task import Task, name_of

NOT_YET = datetime.fromtimestamp(0, UTC)  # when a schedule was made that is only declared so far
RECONCILE_TRIES = 3  # the next run of the scheduler tries again


class ScheduleEnqueuer(RowStore, Protocol):
    """What declarations need of the app (app.enqueue.Enqueuer)."""

    def tenant_of(self, named: str | None) -> str: ...


class _Declaration(NamedTuple):
    """What code says of a schedule, and in which module."""

    task: str
    payload: Any
    options: Mapping[str, Any]
    module: str


class Declarations:
    """What an app declares: schedules, and the functions that yield rows for them."""

    def __init__(self, tasks: TaskRegistry, enqueuer: ScheduleEnqueuer) -> None:
        self._tasks = tasks
        self._enqueuer = enqueuer
        self._declared: dict[tuple[str | None, str], _Declaration] = {}

    def declare(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any,
        options: Mapping[str, Any],
        *,
        tenant: str | None = None,
        module: str,
    ) -> None:
        """Keep in mind a schedule that a module's code declares; what is wrong with it is an error here and now."""
        options = dict(options)
        if (tenant, name) in self._declared:
            raise ConfigError(f"schedule {name!r} is declared twice; give one of them another name")
        if callable(options.get("for_each")):
            options["for_each"] = self.for_each(options["for_each"])
        task_name = name_of(task)
        declaration(name, task_name, {}, options, "default" if tenant is None else tenant)
        if payload is None and options.get("for_each") is None and isinstance(task, Task):
            _refuse_missing_payload(name, task)
        self._declared[tenant, name] = _Declaration(task_name, payload, options, module_name(module))

    def declare_task(self, task: Task[..., Any], options: Mapping[str, Any]) -> None:
        """Declare the schedule of a task under the task's own name; of one that is registered again, only once."""
        if (None, task.name) not in self._declared:
            timing = {name: value for name, value in options.items() if name != "payload"}
            module = str(getattr(task.handler, "__module__", ""))
            if module.startswith("treadle.builtin."):  # a built-in task is declared by the program that registers it
                module = calling_module()
            self.declare(task.name, task, options.get("payload"), timing, module=module)

    def declared(self) -> list[Schedule]:
        """The schedules that code declares, as they are to be in the store."""
        found = []
        for (tenant, name), given in self._declared.items():
            try:
                fields = self.task_fields(given.task, given.payload, rows=given.options.get("for_each"), checked=True)
            except TreadleError as error:
                raise ConfigError(f"schedule {name!r}: {error}") from error
            schedule = declaration(name, given.task, fields, given.options, self.tenant_of(tenant))
            found.append(schedule.evolve(declared=f"{schedule.declared} {given.module}"))
        return found

    def for_each(self, rows: Callable[..., Any], name: str | None = None) -> str:
        """Register a function that yields rows, under a name or its own; the name."""
        name = name or str(getattr(rows, "__name__", ""))
        known = self._tasks.get(f"{EXPANSION}{name}")
        if known is not None and getattr(known.handler, "rows", None) is not rows:
            raise ConfigError(f"for_each: {name!r} is registered twice; give one of them another name")
        if known is None:
            handler = row_handler(rows, self._encode_row, self._enqueuer, self._hidden_row)
            self._tasks.add(self._tasks.make(f"{EXPANSION}{name}", handler, {}))
        return name

    def task_fields(self, name: str, payload: Any, *, rows: str | None, checked: bool) -> dict[str, Any]:
        """What a schedule of this task takes for granted of its jobs, its payload among it, as the task wants it.

        Without `rows` to add to it, the payload must fit the task as it is.
        """
        task = self._tasks.named(name, checked=checked)
        payload = {} if payload is None else payload
        if rows is None:
            payload = json.loads(task.payload.encode_value(payload))
        elif checked and f"{EXPANSION}{rows}" not in self._tasks:
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
            "on_end": on_end(name, options.on_end, self._tasks.known),
        }

    def restored(self, schedule: Schedule, payload: Any) -> Any:
        """A payload that somebody has edited as it was shown: where it still has MASK, the secret stays.

        InvalidJob if nobody here knows which secret that is.
        """
        known = self._tasks.get(schedule.task)
        return (EVERYTHING if known is None else known.payload.secrets).restored(payload, schedule.payload)

    def check_new_task(self, schedule: Schedule, payload: Any) -> None:
        """InvalidJob if a secret of a schedule would go to another task, which may show it."""
        known = self._tasks.get(schedule.task)
        if not schedule.payload or (known is not None and not known.payload.secrets.paths):
            return
        if payload is None or holds_mask(payload):
            raise InvalidJob(
                "payload",
                f"task {schedule.task!r} may have secrets in it, and another task does not hide them: "
                f"give a whole payload for the new task, without {MASK!r}",
            )

    def tenant_of(self, named: str | None) -> str:
        """Whose a schedule is; InvalidJob if that must be named and is not."""
        return self._enqueuer.tenant_of(named)

    def _hidden_row(self, task: str, row: object) -> object:
        """A row as an error may show it, without what is secret in the payloads of its task."""
        known = self._tasks.get(task)
        return row if known is None else known.payload.secrets.hidden(row)

    def _encode_row(self, task: str, payload: object) -> tuple[str, OnEnd | None]:
        """The payload of one row as its task wants it, as JSON, and what follows its jobs."""
        known = self._tasks.named(task, checked=False)
        return known.payload.encode_value(payload), on_end(task, known.options.on_end, self._tasks.known)


def declaration(name: str, task: str, fields: Mapping[str, Any], options: Mapping[str, Any], tenant: str) -> Schedule:
    """The schedule that code declares, not stored; checked, so that a bad one is an error where it is written."""
    schedule = check(Schedule(name, task, NOT_YET, tenant, **{**fields, **fields_of(options)}))
    values = json.dumps([str(getattr(schedule, field)) for field in BY_CODE])
    return schedule.evolve(declared=sha256(values.encode()).hexdigest()[:16])


def _refuse_missing_payload(name: str, task: Task[..., Any]) -> None:
    """ConfigError for a schedule without a payload of a task that needs one: its jobs could not run."""
    needed = required_parameters(task.handler)
    if not needed:
        return
    try:
        task.payload.encode_value({})
    except InvalidPayload as error:
        if task.payload.single is not None:  # of a model, its fields
            parts = (part.removeprefix("payload").lstrip(".") for part, _ in error.parts)
            needed = [part for part in parts if part.isidentifier()] or needed
        written = ", ".join(f"{one!r}: …" for one in needed)
        raise ConfigError(
            f"schedule {name!r}: task {task.name!r} needs {', '.join(needed)}, and no payload is given; write "
            f"payload={{{written}}}, give the parameter a default, or for_each= rows that have it"
        ) from None
    except ConfigError:  # an annotation that is defined further down: a worker that starts looks again
        return


def required_parameters(handler: Any) -> list[str]:
    """The parameters that a payload has to fill, by the look of it: annotations are not resolved."""
    target = getattr(handler, "handle", None) if inspect.isclass(handler) else handler
    if not callable(target):
        return []
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters[1 if inspect.isclass(handler) else 0 :]
        if parameter.default is parameter.empty
        and parameter.annotation is not Context
        and str(parameter.annotation).rpartition(".")[2].strip("'\"") != "Context"
    ]


# ------------------------------------------------------------------------------------- into the store


def reconcile(engine: AuditedRecords, wanted: Schedule, *, actor: str) -> bool:
    """Bring a schedule that code declares into the store; whether it was made or changed.

    It is touched only when the code has changed: then the code's options count, but not its `enabled`, so that what an
    operator has disabled stays so, and what an operator has edited stays until the code changes again. One that was
    retired because no code declared it any more is enabled again, and what it missed is made up for as always.
    """
    for _ in range(RECONCILE_TRIES):
        now = engine.now()
        found = next(iter(engine.records(Schedule, tenant=wanted.tenant, name=wanted.name)), None)
        if found is not None and found.declared == wanted.declared:
            return False
        if found is None:
            kind, after = EventKind.CREATED, made(wanted, now)
        elif _digest(found) != _digest(wanted):
            kind, after = EventKind.CHANGED, brought_to(found, wanted, now)
        elif found.gone:
            kind, after = EventKind.ENABLED if is_retired(found) else EventKind.CHANGED, found
        else:  # the same, said in another module, or by an older treadle, which did not say where
            engine.save(found.evolve(declared=wanted.declared, revision=found.revision + 1), before=found)
            return False
        if found is not None:
            enabled = found.enabled or is_retired(found)
            after = after.evolve(declared=wanted.declared, enabled=enabled, updated_at=now)
        if put(engine, after, found, Act(kind, now, actor, "declared in code")) is not None:
            return True
    raise EngineUnavailable(f"schedule {wanted.name!r} keeps changing; repeating is safe")


def _digest(schedule: Schedule) -> str:
    return (schedule.declared or "").partition(" ")[0]


def is_retired(schedule: Schedule) -> bool:
    """Whether it was disabled because no code declares it any more."""
    return (schedule.declared or "").endswith(RETIRED) and not schedule.enabled
