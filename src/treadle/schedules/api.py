"""What an application and its operators do with schedules: make, change, enable, look ahead, run one now.

Every act is a compare-and-set on the schedule's revision, with an audit event in the same transaction. An act that
comes too late decides again on what is there now. With `tx` it is part of the caller's own transaction.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Unpack

from treadle.edits import Act, AuditedRecords
from treadle.engines.contract import JobStore
from treadle.engines.values import ScheduleFilter
from treadle.errors import InvalidJob, KeyTaken, NotPossible, ScheduleNotFound
from treadle.model import UUID, Event, EventKind, Job, check_name, new_id
from treadle.model.checks import bound_tenant
from treadle.model.clock import Duration, seconds
from treadle.model.records import Schedule, subject_of_schedule
from treadle.schedules.acts import EDIT_TRIES, Decision, Later, ScheduleAct, brought_to, edited, made, tx_face
from treadle.schedules.cron import MOST_TICKS, Tick
from treadle.schedules.declared import NOT_YET, Declarations
from treadle.schedules.options import ScheduleChanges, ScheduleOptions
from treadle.schedules.pages import SchedulePage, cursor_of, every, place_of
from treadle.schedules.rules import EDITABLE, check, fields_of, job_of, preview
from treadle.tasks.faces import async_face
from treadle.tasks.task import Task, name_of

UPCOMING = 1000  # schedules that one look ahead reads at most
MOST_LISTED = 100_000  # schedules that one call lists at most, if it names a limit
SUGGESTED = 200  # names that are compared with one that is not there


class ScheduleStore(AuditedRecords, JobStore, Protocol):
    """What these acts need of a store."""


class Schedules:
    """The schedules of a store: everybody's, or one tenant's (`app.schedules`, `app.tenant("acme").schedules`)."""

    def __init__(self, engine: ScheduleStore, declarations: Declarations, tenant: str | None = None) -> None:
        self._engine = engine
        self._declarations = declarations
        self._tenant = tenant

    # --------------------------------------------------------------------------------------- looking

    def list(
        self,
        *,
        tenant: str | None = None,
        task: str | Task[..., Any] | None = None,
        enabled: bool | None = None,
        name: str | None = None,
        prefix: str | None = None,
        declared: bool | None = None,
        gone: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> SchedulePage:
        """The schedules, by tenant and name: all, or those of a tenant, a task, a name, a beginning of the name …

        `declared`: by code or not; `gone`: code declared it once and does no more. With a `limit` it is a page: a list
        whose `cursor` leads to the next one, and is None at the end.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise InvalidJob("limit", f"{limit!r} must be a number from 1 on, or left out for all of them")
        if limit is not None and limit > MOST_LISTED:
            raise InvalidJob("limit", f"is too large; it must be from 1 to {MOST_LISTED:,}: go on with the cursor")
        where = ScheduleFilter(
            tenant=self._of(tenant, None),
            name=name,
            prefix=prefix,
            task=None if task is None else name_of(task),
            enabled=enabled,
            declared=declared,
            gone=gone,
        )
        after = None if cursor is None else place_of(cursor)
        if limit is None:
            return SchedulePage(every(self._engine, where, after))
        found = self._engine.find_schedules(where, limit=limit + 1, after=after)
        return SchedulePage(found[:limit], cursor_of(found[limit - 1]) if len(found) > limit else None)

    def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """The schedule of this name or id; ScheduleNotFound if there is none."""
        owner = self._of(tenant) or "default"
        for schedule in [*self._of_id(name, tenant), *self._engine.records(Schedule, tenant=owner, name=name)]:
            return schedule
        raise self._not_found(name, owner)

    def upcoming(self, n: int = 5, *, within: Duration = "1d") -> Sequence[Schedule]:
        """The enabled schedules that run next, within this time, the longest due first: a bounded look.

        One of which no worker has said yet when it runs has no `next_at`. A tenant's are looked for among the first
        1,000 of all.
        """
        if not 1 <= n <= UPCOMING:
            raise InvalidJob("n", f"{n} must be from 1 to {UPCOMING:,}")
        limit = n if self._tenant is None else UPCOMING
        due = self._engine.due(limit=limit, ahead=seconds(within, "within"))
        return [one for one in due if self._tenant in (None, one.tenant)][:n]

    alist = async_face(list)
    aget = async_face(get)

    def plan(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any = None,
        *,
        of: str | None = None,
        tenant: str | None = None,
        checked: bool = True,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """The schedule that `create` would make, with its next run; what is wrong with it is an error, as there.

        Nothing is written. `of` is the id of the schedule that is to become so; what is masked in the payload is its.
        """
        there = None if of is None else self.get(of, tenant=tenant)
        if there is not None and name_of(task) == there.task:
            payload = self._declarations.restored(there, payload)
        wanted = self._wanted(name, task, payload, tenant, checked, options)
        found = self._engine.records(Schedule, tenant=wanted.tenant, name=name)
        if any(there is None or one.id != there.id for one in found):
            raise self._taken(name)
        return made(wanted, self._engine.now())

    aplan = async_face(plan)

    def preview(
        self, name: str, n: int = 5, *, after: datetime | None = None, tenant: str | None = None
    ) -> Sequence[Tick]:
        """Its next runs, with offsets, and a note where clocks are changed."""
        if not 1 <= n <= MOST_TICKS:
            raise InvalidJob("n", f"{n} runs cannot be shown; it must be from 1 to {MOST_TICKS:,}")
        return preview(self.get(name, tenant=tenant), after or self._engine.now(), n)

    def events(self, name: str, *, tenant: str | None = None) -> Sequence[Event]:
        """What was done to a schedule, oldest first; also to one that is gone."""
        owner, name, _ = self._meant(name, tenant)
        return [event for event in self._engine.events(subject_of_schedule(owner, name)) if event.tenant == owner]

    apreview = async_face(preview)
    aevents = async_face(events)

    # -------------------------------------------------------------------------------------- changing

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
        tx: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule: `cron="30 2 * * *"` with a `tz`, or `every="15m"`; the rest as in ScheduleOptions.

        What is left out comes from the task. With `checked=False` the task need not be known here. `tx` is your own
        connection or session: the schedule is there when you commit.
        """
        wanted = self._wanted(name, task, payload, tenant, checked, options)

        def decide(found: Schedule | None, now: datetime) -> Decision:
            if found is not None:
                raise self._taken(name)
            return Decision(EventKind.CREATED, made(wanted, now))

        return self._do(ScheduleAct(wanted.tenant, name, decide, actor, reason), tx)  # type: ignore[no-any-return]

    def upsert(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any = None,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "api",
        reason: str = "",
        tx: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule, or bring the one of this name to these values; one that has them is not written.

        It takes what `create` takes. Without `enabled`, what somebody disabled stays disabled. A new time counts from
        now on.
        """
        wanted = self._wanted(name, task, payload, tenant, checked, options)
        switch = {"enabled": wanted.enabled} if options.get("enabled") is not None else {}

        def decide(found: Schedule | None, now: datetime) -> Decision:
            if found is None:
                return Decision(EventKind.CREATED, made(wanted, now))
            return Decision(EventKind.CHANGED, edited(brought_to(found, wanted, now), switch, now))

        return self._do(ScheduleAct(wanted.tenant, name, decide, actor, reason), tx)  # type: ignore[no-any-return]

    def update(
        self,
        name: str,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "api",
        reason: str = "",
        tx: Any = None,
        **options: Unpack[ScheduleChanges],
    ) -> Schedule:
        """Change what is given; a new cron, interval, zone or `enabled=True` counts its next run from now."""
        given = self._registered(options)
        fields = fields_of(given)
        if not fields:
            raise InvalidJob("update", f"of schedule {name!r} nothing is to change; give one of {', '.join(EDITABLE)}")
        if fields.get("cron") is not None:
            fields = {"every": None, **fields}
        if fields.get("every") is not None:
            fields = {"cron": None, **fields}
        kind = EventKind.CHANGED
        if set(given) == {"enabled"}:
            kind = EventKind.ENABLED if given["enabled"] else EventKind.DISABLED
        owner, called, id_ = self._meant(name, tenant)

        def decide(found: Schedule | None, now: datetime) -> Decision:
            if found is None or id_ not in (None, found.id):
                raise ScheduleNotFound(name, ())
            after = found.evolve(**fields)
            if after.task != found.task:
                self._declarations.check_new_task(found, fields.get("payload"))
            elif "payload" in given:
                after = after.evolve(payload=self._declarations.restored(found, after.payload))
            if {"payload", "task", "for_each"} & given.keys():
                task = self._declarations.task_fields(after.task, after.payload, rows=after.for_each, checked=checked)
                version = task["task_version"] if "task" in given else after.task_version
                after = after.evolve(payload=task["payload"], on_end=task["on_end"], task_version=version)
            check(after)
            changed = {field: value for field, value in zip(Schedule._fields, after, strict=True) if field in fields}
            more = {field: getattr(after, field) for field in ("payload", "on_end", "task_version")}
            return Decision(kind, edited(found, {**changed, **more}, now).evolve(updated_at=now))

        return self._do(ScheduleAct(owner, called, decide, actor, reason), tx)  # type: ignore[no-any-return]

    def enable(
        self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "", tx: Any = None
    ) -> Schedule:
        """Let it run again, from now on: what was missed meanwhile stays missed."""
        return self.update(name, tenant=tenant, actor=actor, reason=reason, tx=tx, enabled=True)

    def disable(
        self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "", tx: Any = None
    ) -> Schedule:
        """Let it make no more jobs; a restart of the code that declares it does not enable it."""
        return self.update(name, tenant=tenant, actor=actor, reason=reason, tx=tx, enabled=False)

    def delete(
        self, name: str, *, tenant: str | None = None, actor: str = "api", reason: str = "", tx: Any = None
    ) -> None:
        """Remove it; the jobs it has made stay. One that code declares comes back: disable it instead."""
        owner, called, id_ = self._meant(name, tenant)

        def decide(found: Schedule | None, now: datetime) -> Decision:  # noqa: ARG001
            if found is None or id_ not in (None, found.id):
                raise ScheduleNotFound(name, ())
            return Decision(EventKind.DELETED, None)

        self._do(ScheduleAct(owner, called, decide, actor, reason), tx)

    acreate, aupsert, aupdate = tx_face(create), tx_face(upsert), tx_face(update)
    aenable, adisable, adelete = tx_face(enable), tx_face(disable), tx_face(delete)

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
            [made_] = self._engine.get([id_])
            if made_ is not None:  # the answer was lost
                return made_
        raise NotPossible(f"schedule {name!r} keeps changing; try again")

    arun = async_face(run)

    # --------------------------------------------------------------------------------------- helpers

    def _do(self, act: ScheduleAct, tx: Any) -> Any:
        """Do it now, or in the caller's transaction; the schedule afterwards."""
        if tx is None:
            try:
                return act.run(self._engine)
            except ScheduleNotFound:
                raise self._not_found(act.name, act.tenant) from None
        steps = act.steps(self._engine, self._engine.now())
        if isinstance(tx, Later):
            tx.steps = steps
            return None
        from treadle.transactions import run_in  # noqa: PLC0415 - only those with a transaction of their own need it

        return run_in(tx, steps)

    def _wanted(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any,
        tenant: str | None,
        checked: bool,
        options: Mapping[str, Any],
    ) -> Schedule:
        """The schedule as it is to be, but for its times; checked before the store is asked."""
        given, task_name = self._registered(options), name_of(task)
        owner = self._declarations.tenant_of(self._of(tenant, None))
        fields = self._declarations.task_fields(task_name, payload, rows=given.get("for_each"), checked=checked)
        return check(Schedule(name, task_name, NOT_YET, owner, **{**fields, **fields_of(given)}))

    def _meant(self, name: str, tenant: str | None) -> tuple[str, str, str | None]:
        """Tenant and name of the schedule that has this id, and the id; else what was given, and None.

        It is looked for outside of the caller's transaction: what that has made itself goes by its name.
        """
        for schedule in self._of_id(name, tenant):
            return schedule.tenant, schedule.name, schedule.id
        return self._of(tenant) or "default", name, None

    def _of_id(self, id_: str, tenant: str | None) -> Sequence[Schedule]:
        """The schedule that has this id, whosever it is if no tenant is named; none if this is not an id."""
        id_ = str(id_).lower()
        if not UUID.fullmatch(id_):
            return ()
        return self._engine.find_schedules(ScheduleFilter(tenant=self._of(tenant, None), id=id_), limit=1)

    def _not_found(self, name: str, owner: str | None) -> ScheduleNotFound:
        """The error, with a name that is there and almost the same; only so many are compared."""
        alike = ScheduleFilter(tenant=owner, prefix=name[:1])
        return ScheduleNotFound(name, [one.name for one in self._engine.find_schedules(alike, limit=SUGGESTED)])

    @staticmethod
    def _taken(name: str) -> NotPossible:
        return NotPossible(f"there is a schedule {name!r} already; update it, choose another name, or write upsert")

    def _of(self, tenant: str | None, default: str | None = "default") -> str | None:
        if self._tenant is not None:
            return bound_tenant(self._tenant, tenant)
        return default if tenant is None else tenant

    def _registered(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with rows by their name."""
        rows = options.get("for_each")
        return {**options, "for_each": self._declarations.for_each(rows)} if callable(rows) else dict(options)
