"""What an application and its operators do with schedules: make, change, enable, look ahead, run one now.

Every act is a compare-and-set on the schedule's revision with an audit line in the same atom; who was late decides
again on what is there now.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from treadle.edits import Act, put, remove
from treadle.engines.contract import Engine
from treadle.errors import ConfigError, EngineUnavailable, InvalidJob, KeyTaken, NotPossible, ScheduleNotFound
from treadle.model import Event, EventKind, Job, check_name, new_id
from treadle.model.clock import seconds
from treadle.model.records import Misfire, Overlap, Schedule, subject
from treadle.model.retry import Retry
from treadle.schedules.cron import MOST_TICKS, Tick
from treadle.schedules.rules import check, job_of, next_tick, preview, restarted
from treadle.tasks.task import Task, name_of

if TYPE_CHECKING:
    from treadle.tasks.registry import TaskRegistry

    pass

TRIES = 20
FEW = 3  # where the next tick tries again
TIMING = ("cron", "every", "timezone")
EDITABLE = (
    "task", "payload", "cron", "every", "tz", "enabled", "queue", "lane", "priority", "retry", "max_attempts",
    "timeout", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "for_each",
)  # fmt: skip
"""What may be said of a schedule beside its name and tenant."""

NULLABLE = ("cron", "every", "for_each", "timeout", "retry_cap")

_BY_CODE = tuple(
    name
    for name in Schedule._fields
    if name not in ("name", "tenant", "created_at", "enabled", "next_at", "last_at", "last_job", "declared",
                    "updated_at", "revision")
)  # fmt: skip


class Schedules:
    """The schedules of a store: everybody's, or one tenant's (`app.schedules`, `app.tenant("acme").schedules`)."""

    def __init__(self, engine: Engine, tasks: "TaskRegistry", tenant: str | None = None) -> None:
        self._engine = engine
        self._tasks = tasks
        self._tenant = tenant

    def list(self, *, tenant: str | None = None) -> Sequence[Schedule]:
        """All schedules, or those of one tenant, by tenant and name."""
        return self._engine.records(Schedule, tenant=self._of(tenant, None))

    def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """The schedule of this name; ScheduleNotFound if there is none."""
        owner = self._of(tenant)
        there = {schedule.name: schedule for schedule in self._engine.records(Schedule, tenant=owner)}
        if name not in there:
            raise ScheduleNotFound(name, list(there))
        return there[name]

    def create(
        self,
        name: str,
        task: "str | Task[..., Any]",
        payload: Any = None,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "api",
        reason: str = "",
        **said: Any,
    ) -> Schedule:
        """Make a schedule: `cron="30 2 * * *"` with a `tz`, or `every="15m"`; the rest as in EDITABLE.

        What is not said comes from the task. With `checked=False` the task need not be known here.
        """
        check_name("actor", actor)
        now, owner = self._engine.now(), self._tasks.tenant_of(self._of(tenant, None))
        said, task_name = self._registered(said), name_of(task)
        fields = self._tasks.schedule_fields(task_name, payload, rows=said.get("for_each"), checked=checked)
        schedule = check(Schedule(name, task_name, now, owner, **{**fields, **_fields(said)}))
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
        **said: Any,
    ) -> Schedule:
        """Change what is said; a new cron, interval, zone or `enabled=True` counts its next run from now."""
        said = self._registered(said)
        if not _fields(said):
            raise ConfigError(f"schedule {name!r}: nothing to change; say one of {', '.join(EDITABLE)}")

        def edit(schedule: Schedule, now: datetime) -> Schedule:
            if said.get("cron") is not None and "every" not in said:
                schedule = schedule.evolve(every=None)
            if said.get("every") is not None and "cron" not in said:
                schedule = schedule.evolve(cron=None)
            edited = schedule.evolve(**_fields(said))
            if {"payload", "task", "for_each"} & said.keys():
                fields = self._tasks.schedule_fields(edited.task, edited.payload, rows=edited.for_each, checked=checked)
                version = fields["task_version"] if "task" in said else edited.task_version
                edited = edited.evolve(payload=fields["payload"], on_end=fields["on_end"], task_version=version)
            check(edited)
            moved = any(getattr(edited, field) != getattr(schedule, field) for field in TIMING)
            return restarted(edited, now) if moved or (edited.enabled and not schedule.enabled) else edited

        kind = EventKind.CHANGED
        if set(said) == {"enabled"}:
            kind = EventKind.ENABLED if said["enabled"] else EventKind.DISABLED
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
        for _ in range(TRIES):
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
        for _ in range(TRIES):
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
        if self._tenant is None:
            return tenant if tenant is not None else default
        if tenant not in (None, self._tenant):
            raise InvalidJob("tenant", f"{tenant!r} is not the tenant of this handle")
        return self._tenant

    def _registered(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What is said, with rows by their name."""
        rows = said.get("for_each")
        return {**said, "for_each": self._tasks.for_each(rows)} if callable(rows) else dict(said)

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
        for _ in range(TRIES):
            schedule, now = self.get(name, tenant=tenant), self._engine.now()
            after = edit(schedule, now).evolve(updated_at=now)
            changed = put(self._engine, after, schedule, Act(kind, now, actor, reason))
            if changed is not None:
                return changed
        raise NotPossible(f"schedule {name!r} keeps changing; try again")


def reconcile(engine: Engine, wanted: Schedule, *, actor: str) -> bool:
    """Bring a schedule that code declares into the store; whether it was made or changed.

    It is touched only when the code has changed: then the code's words count, but not its `enabled`, so that what an
    operator has disabled stays so, and what an operator has edited stays until the code says something new.
    """
    for _ in range(FEW):
        now = engine.now()
        there = {one.name: one for one in engine.records(Schedule, tenant=wanted.tenant)}
        found = there.get(wanted.name)
        if found is None:
            made = wanted.evolve(created_at=now, updated_at=now)
            made = made.evolve(next_at=next_tick(made, now))
            if put(engine, made, None, Act(EventKind.CREATED, now, actor, "declared in code")) is not None:
                return True
        elif found.declared == wanted.declared:
            return False
        else:
            after = found.evolve(**{name: getattr(wanted, name) for name in _BY_CODE})
            after = after.evolve(declared=wanted.declared, updated_at=now)
            if any(getattr(after, field) != getattr(found, field) for field in TIMING):
                after = restarted(after, now)
            if put(engine, after, found, Act(EventKind.CHANGED, now, actor, "declared in code")) is not None:
                return True
    raise EngineUnavailable(f"schedule {wanted.name!r} keeps changing; repeating is safe")


def declaration(name: str, task: str, fields: Mapping[str, Any], said: Mapping[str, Any], tenant: str) -> Schedule:
    """The schedule that code declares, not stored; checked, so that a bad one is an error where it is written."""
    moment = datetime.fromisoformat("2000-01-01T00:00:00+00:00")
    schedule = check(Schedule(name, task, moment, tenant, **{**fields, **_fields(said)}))
    told = json.dumps([str(getattr(schedule, field)) for field in _BY_CODE])
    return schedule.evolve(declared=sha256(told.encode()).hexdigest()[:16])


def _fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller says, as fields of a schedule."""
    unknown = said.keys() - set(EDITABLE)
    if unknown:
        raise ConfigError(f"schedule: {', '.join(sorted(unknown))}: no such option; known: {', '.join(EDITABLE)}")
    fields = dict(said)
    if "tz" in said:
        fields["timezone"] = fields.pop("tz")
    if "task" in said:
        fields["task"] = name_of(said["task"])
    retry = fields.pop("retry", None)
    if retry is not None:
        if not isinstance(retry, Retry):
            raise InvalidJob("retry", f"{retry!r} is no policy; write Retry(max_attempts=3)")
        fields |= dict(zip(("max_attempts", "retry_base", "retry_cap", "retry_jitter"), retry, strict=True))
        if said.get("max_attempts") is not None:
            fields["max_attempts"] = said["max_attempts"]
    for name in ("every", "timeout", "misfire_age", "jitter"):
        if fields.get(name) is not None:
            fields[name] = seconds(fields[name], name)
    for name, words in (("misfire", Misfire), ("overlap", Overlap)):
        if name in fields:
            fields[name] = _word(words, fields[name], name)
    if "enabled" in fields and not isinstance(fields["enabled"], bool):
        raise InvalidJob("enabled", f"{fields['enabled']!r} must be true or false")
    return {name: value for name, value in fields.items() if value is not None or name in NULLABLE}


def _word(words: Any, value: object, field: str) -> Any:
    try:
        return words(value)
    except ValueError:
        raise InvalidJob(field, f"{value!r} must be {', '.join(word.value for word in words)}") from None
