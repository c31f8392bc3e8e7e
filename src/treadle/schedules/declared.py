"""The schedules that code declares, and how a worker brings them into the store."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

from treadle.edits import Act, AuditedRecords, put
from treadle.errors import ConfigError, EngineUnavailable, TreadleError
from treadle.model import EventKind, OnEnd
from treadle.model.records import Schedule
from treadle.schedules.for_each import RowStore, row_handler
from treadle.schedules.rules import EXPANSION, TIMING, check, fields_of, next_tick, restarted
from treadle.tasks.definition import on_end
from treadle.tasks.registry import TaskRegistry
from treadle.tasks.task import Task, name_of

NOT_YET = datetime.fromtimestamp(0, UTC)  # when a schedule was made that is only declared so far
RECONCILE_TRIES = 3  # the next run of the scheduler tries again
BY_CODE = tuple(
    name
    for name in Schedule._fields
    if name not in ("name", "tenant", "created_at", "enabled", "next_at", "last_at", "last_job", "declared",
                    "updated_at", "revision")
)  # fmt: skip
"""What the code decides about a schedule that it declares; the rest is the operator's, or changes with every run."""


class ScheduleEnqueuer(RowStore, Protocol):
    """What declarations need of the app (app.enqueue.Enqueuer)."""

    def tenant_of(self, named: str | None) -> str: ...


class Declarations:
    """What an app declares: schedules, and the functions that yield rows for them."""

    def __init__(self, tasks: TaskRegistry, enqueuer: ScheduleEnqueuer) -> None:
        self._tasks = tasks
        self._enqueuer = enqueuer
        self._declared: dict[tuple[str | None, str], tuple[str, Any, Mapping[str, Any]]] = {}

    def declare(self, name: str, task: str | Task[..., Any], payload: Any, options: Mapping[str, Any]) -> None:
        """Keep in mind a schedule that code declares; what is wrong with it is an error here and now."""
        options = dict(options)
        tenant = options.pop("tenant", None)
        if (tenant, name) in self._declared:
            raise ConfigError(f"schedule {name!r} is declared twice; give one of them another name")
        if callable(options.get("for_each")):
            options["for_each"] = self.for_each(options["for_each"])
        task_name = name_of(task)
        declaration(name, task_name, {}, options, tenant or "default")
        self._declared[tenant, name] = (task_name, payload, options)

    def declare_task(self, task: str, options: Mapping[str, Any]) -> None:
        """Declare the schedule of a task under the task's own name; of one that is registered again, only once."""
        if (None, task) not in self._declared:
            timing = {name: value for name, value in options.items() if name != "payload"}
            self.declare(task, task, options.get("payload"), timing)

    def declared(self) -> list[Schedule]:
        """The schedules that code declares, as they are to be in the store."""
        found = []
        for (tenant, name), (task, payload, options) in self._declared.items():
            try:
                fields = self.task_fields(task, payload, rows=options.get("for_each"), checked=True)
            except TreadleError as error:
                raise ConfigError(f"schedule {name!r}: {error}") from error
            found.append(declaration(name, task, fields, options, self.tenant_of(tenant)))
        return found

    def for_each(self, rows: Callable[..., Any], name: str | None = None) -> str:
        """Register a function that yields rows, under a name or its own; the name."""
        name = name or str(getattr(rows, "__name__", ""))
        known = self._tasks.get(f"{EXPANSION}{name}")
        if known is not None and getattr(known.handler, "rows", None) is not rows:
            raise ConfigError(f"for_each: {name!r} is registered twice; give one of them another name")
        if known is None:
            handler = row_handler(rows, self._encode_row, self._enqueuer)
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
            "on_end": on_end(options.on_end, self._tasks.known),
        }

    def tenant_of(self, named: str | None) -> str:
        """Whose a schedule is; InvalidJob if that must be named and is not."""
        return self._enqueuer.tenant_of(named)

    def _encode_row(self, task: str, payload: object) -> tuple[str, OnEnd | None]:
        """The payload of one row as its task wants it, as JSON, and what follows its jobs."""
        known = self._tasks.named(task, checked=False)
        return known.payload.encode_value(payload), on_end(known.options.on_end, self._tasks.known)


def declaration(name: str, task: str, fields: Mapping[str, Any], options: Mapping[str, Any], tenant: str) -> Schedule:
    """The schedule that code declares, not stored; checked, so that a bad one is an error where it is written."""
    schedule = check(Schedule(name, task, NOT_YET, tenant, **{**fields, **fields_of(options)}))
    values = json.dumps([str(getattr(schedule, field)) for field in BY_CODE])
    return schedule.evolve(declared=sha256(values.encode()).hexdigest()[:16])


def reconcile(engine: AuditedRecords, wanted: Schedule, *, actor: str) -> bool:
    """Bring a schedule that code declares into the store; whether it was made or changed.

    It is touched only when the code has changed: then the code's options count, but not its `enabled`, so that what an
    operator has disabled stays so, and what an operator has edited stays until the code changes again.
    """
    for _ in range(RECONCILE_TRIES):
        now = engine.now()
        found = next(iter(engine.records(Schedule, tenant=wanted.tenant, name=wanted.name)), None)
        if found is not None and found.declared == wanted.declared:
            return False
        if found is None:
            kind, after = EventKind.CREATED, wanted.evolve(created_at=now, updated_at=now)
            after = after.evolve(next_at=next_tick(after, now))
        else:
            kind, after = EventKind.CHANGED, found.evolve(**{name: getattr(wanted, name) for name in BY_CODE})
            after = after.evolve(declared=wanted.declared, updated_at=now)
            if any(getattr(after, field) != getattr(found, field) for field in TIMING):
                after = restarted(after, now)
        if put(engine, after, found, Act(kind, now, actor, "declared in code")) is not None:
            return True
    raise EngineUnavailable(f"schedule {wanted.name!r} keeps changing; repeating is safe")
