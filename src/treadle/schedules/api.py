"""What an application and its operators do with schedules: make, change, enable, look ahead, run one now.

Every act is a compare-and-set on the schedule's revision, with an audit event in the same transaction. An act that
comes too late decides again on what is there now.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from treadle.edits import Act, AuditedRecords, put, remove
from treadle.engines.contract import JobStore
from treadle.errors import ConfigError, InvalidJob, KeyTaken, NotPossible, ScheduleNotFound
from treadle.model import Event, EventKind, Job, check_name, new_id
from treadle.model.checks import bound_tenant
from treadle.model.records import Schedule, subject
from treadle.schedules.cron import MOST_TICKS, Tick
from treadle.schedules.declared import Declarations
from treadle.schedules.rules import EDITABLE, TIMING, check, fields_of, job_of, next_tick, preview, restarted
from treadle.tasks.task import Task, name_of

EDIT_TRIES = 20


class ScheduleStore(AuditedRecords, JobStore, Protocol):
    """What these acts need of a store."""


class Schedules:
    """The schedules of a store: everybody's, or one tenant's (`app.schedules`, `app.tenant("acme").schedules`)."""

    def __init__(self, engine: ScheduleStore, declarations: Declarations, tenant: str | None = None) -> None:
        self._engine = engine
        self._declarations = declarations
        self._tenant = tenant

    def list(self, *, tenant: str | None = None) -> Sequence[Schedule]:
        """All schedules, or those of one tenant, by tenant and name."""
        return self._engine.records(Schedule, tenant=self._of(tenant, None))

    def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """The schedule of this name; ScheduleNotFound if there is none."""
        owner = self._of(tenant)
        for schedule in self._engine.records(Schedule, tenant=owner, name=name):
            return schedule
        raise ScheduleNotFound(name, [schedule.name for schedule in self._engine.records(Schedule, tenant=owner)])

    def create(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any = None,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "api",
        reason: str = "",
        **options: Any,
    ) -> Schedule:
        """Make a schedule: `cron="30 2 * * *"` with a `tz`, or `every="15m"`; the rest as in EDITABLE.

        What is left out comes from the task. With `checked=False` the task need not be known here.
        """
        check_name("actor", actor)
        now, owner = self._engine.now(), self._declarations.tenant_of(self._of(tenant, None))
        options, task_name = self._registered(options), name_of(task)
        fields = self._declarations.task_fields(task_name, payload, rows=options.get("for_each"), checked=checked)
        schedule = check(Schedule(name, task_name, now, owner, **{**fields, **fields_of(options)}))
        schedule = schedule.evolve(next_at=next_tick(schedule, now), updated_at=now)
        if put(self._engine, schedule, None, Act(EventKind.CREATED, now, actor, reason)) is None:
            raise NotPossible(f"there is a schedule {name!r} already; update it, or choose another name")
        return self.get(name, tenant=schedule.tenant)

    def update(
        self,
        name: str,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "api",
        reason: str = "",
        **options: Any,
    ) -> Schedule:
        """Change what is given; a new cron, interval, zone or `enabled=True` counts its next run from now."""
        options = self._registered(options)
        if not fields_of(options):
            raise ConfigError(f"schedule {name!r}: nothing to change; give one of {', '.join(EDITABLE)}")

        def edit(schedule: Schedule, now: datetime) -> Schedule:
            if options.get("cron") is not None and "every" not in options:
                schedule = schedule.evolve(every=None)
            if options.get("every") is not None and "cron" not in options:
                schedule = schedule.evolve(cron=None)
            edited = schedule.evolve(**fields_of(options))
            if {"payload", "task", "for_each"} & options.keys():
                fields = self._declarations.task_fields(
                    edited.task, edited.payload, rows=edited.for_each, checked=checked
                )
                version = fields["task_version"] if "task" in options else edited.task_version
                edited = edited.evolve(payload=fields["payload"], on_end=fields["on_end"], task_version=version)
            check(edited)
            moved = any(getattr(edited, field) != getattr(schedule, field) for field in TIMING)
            return restarted(edited, now) if moved or (edited.enabled and not schedule.enabled) else edited

        kind = EventKind.CHANGED
        if set(options) == {"enabled"}:
            kind = EventKind.ENABLED if options["enabled"] else EventKind.DISABLED
        return self._change(name, tenant, kind, edit, actor, reason)

    def enable(self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "") -> Schedule:
        """Let it run again, from now on: what was missed meanwhile stays missed."""
        return self.update(name, tenant=tenant, actor=actor, reason=reason, enabled=True)

    def disable(self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "") -> Schedule:
        """Let it make no more jobs; a restart of the code that declares it does not enable it."""
        return self.update(name, tenant=tenant, actor=actor, reason=reason, enabled=False)

    def delete(self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "") -> None:
        """Remove it; the jobs it has made stay. One that code declares comes back: disable it instead."""
        check_name("actor", actor)
        for _ in range(EDIT_TRIES):
            schedule, now = self.get(name, tenant=tenant), self._engine.now()
            if remove(self._engine, schedule, Act(EventKind.DELETED, now, actor, reason)):
                return
        raise NotPossible(f"schedule {name!r} keeps changing; try again")

    def preview(
        self, name: str, n: int = 5, *, after: datetime | None = None, tenant: str | None = None
    ) -> Sequence[Tick]:
        """Its next runs, with offsets, and a note where clocks are changed."""
        if not 1 <= n <= MOST_TICKS:
            raise ConfigError(f"n: {n} runs cannot be shown; it must be from 1 to {MOST_TICKS:,}")
        return preview(self.get(name, tenant=tenant), after or self._engine.now(), n)

    def run(self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "") -> Job:
        """Make a job of it now, beside its ticks; KeyTaken if `overlap` does not allow one."""
        check_name("actor", actor)
        id_ = new_id()
        for _ in range(EDIT_TRIES):
            schedule, now = self.get(name, tenant=tenant), self._engine.now()
            job = job_of(schedule, now, now, id_=id_)
            after = schedule.evolve(revision=schedule.revision + 1)
            event = Act(EventKind.RUN_REQUESTED, now, actor, reason).event(after)
            saved = self._engine.save(after, before=schedule, event=event, job=job)
            if saved.done and saved.receipt is not None:
                if saved.receipt.refused:
                    raise InvalidJob("payload", saved.receipt.refused)
                if not saved.receipt.created:
                    raise KeyTaken(job.key or "", saved.receipt.job.id)
                return saved.receipt.job
            [made] = self._engine.get([id_])
            if made is not None:  # the answer was lost
                return made
        raise NotPossible(f"schedule {name!r} keeps changing; try again")

    def events(self, name: str, *, tenant: str | None = None) -> Sequence[Event]:
        """What was done to a schedule, oldest first; also to one that is gone."""
        named = Schedule(name, "", datetime.min.replace(tzinfo=UTC), tenant=self._of(tenant) or "default")
        return [event for event in self._engine.events(subject(named)) if event.tenant == named.tenant]

    def _of(self, tenant: str | None, default: str | None = "default") -> str | None:
        if self._tenant is not None:
            return bound_tenant(self._tenant, tenant)
        return default if tenant is None else tenant

    def _registered(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with rows by their name."""
        rows = options.get("for_each")
        return {**options, "for_each": self._declarations.for_each(rows)} if callable(rows) else dict(options)

    def _change(
        self,
        name: str,
        tenant: str | None,
        kind: EventKind,
        edit: Callable[[Schedule, datetime], Schedule],
        actor: str,
        reason: str,
    ) -> Schedule:
        check_name("actor", actor)
        for _ in range(EDIT_TRIES):
            schedule, now = self.get(name, tenant=tenant), self._engine.now()
            after = edit(schedule, now).evolve(updated_at=now)
            changed = put(self._engine, after, schedule, Act(kind, now, actor, reason))
            if changed is not None:
                return changed
        raise NotPossible(f"schedule {name!r} keeps changing; try again")
