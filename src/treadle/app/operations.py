"""What one may see of the jobs and do to them: everybody's (the app), or one tenant's (`app.tenant("acme")`).

A handle that is bound to a tenant answers for the jobs of others as for jobs that are not there.
"""

import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.app import queries
from treadle.app.profile import LABELS, Profile
from treadle.app.store import Store
from treadle.edits import Act, edit_job, get_job, put, remove
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter, Page
from treadle.errors import InvalidJob, NotPossible
from treadle.model import MESSAGE_CAP, Change, Event, EventKind, Job, State, check_name, clean, lifecycle
from treadle.model.checks import bound_tenant
from treadle.model.clock import Duration, moment, seconds
from treadle.model.records import ANY, Gate, Pause, PauseOwner, WorkerInfo

if TYPE_CHECKING:
    from treadle.app.audit import AuditReport
    from treadle.app.settings import Settings
    from treadle.model.why import Obstacle

PAUSE_TRIES = 20
MOST_DAYS = 3660  # of costs in one look
POLL_INTERVAL = 0.1  # seconds between two looks at what still runs


class Cost(NamedTuple):
    """What the jobs of a task have cost, in millionths of your currency."""

    tenant: str
    task: str
    micros: int


class Operations:
    """Jobs and pauses, everybody's or one tenant's: the store decides."""

    def __init__(self, store: Store, profile: Profile) -> None:
        self._store = store
        self.profile = profile

    @property
    def settings(self) -> "Settings":
        """The settings in force, read once, on first use."""
        return self._store.settings

    @property
    def engine(self) -> Engine:
        """The store's engine, opened on first use."""
        return self._store.engine

    # ------------------------------------------------------------------------------------ what is there

    def get(self, job_id: str) -> Job:
        """The job of this id, finished ones too."""
        return get_job(self.engine, job_id, self._store.tenant)

    def find(
        self,
        *,
        state: State | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Jobs, newest first, up to 500 a page; go on with the page's cursor.

        `state` is a State, or a word of the profile. A page of a word that means only some jobs of a state may be
        shorter than `limit`, and the jobs of that state are read until one fits; of a word that means several states,
        one state comes after the other.
        """
        if not isinstance(limit, int) or not 1 <= limit <= queries.LARGEST_PAGE:
            raise InvalidJob("limit", f"{limit!r} must be from 1 to {queries.LARGEST_PAGE}; go on with the cursor")
        if not isinstance(cursor, str | None):
            raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor; take it from the page before")
        where = JobFilter(None, task, queue, self._of(tenant), key)
        meaning = None if state is None else self.profile.meaning(state)
        try:
            if meaning is None:
                return self.engine.find(where, limit=limit, cursor=cursor)
            return queries.find(self.engine, where, meaning, limit=limit, cursor=cursor)
        except (ValueError, IndexError, OverflowError):
            if cursor is None:
                raise
            raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor; take it from the page before") from None

    def count(
        self,
        *,
        state: State | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> dict[State, int]:
        """How many jobs there are, by stored state; every state is named.

        `state` as in `find`; what a word means only a part of is counted by reading it.
        """
        meaning = LABELS if state is None else self.profile.meaning(state)
        counts = queries.count(self.engine, JobFilter(None, task, queue, self._of(tenant)), meaning)
        return {state: counts.get(state, 0) for state in State}

    def view(self, job: Job) -> dict[str, Any]:
        """The job as the profile prints it, or under our own names; plain data."""
        return self.profile.view(job, self.engine.now())

    def events(self, job_id: str) -> list[Event]:
        """The audit trail of a job, oldest first."""
        events = self.engine.events(self.get(job_id).id)
        return [event for event in events if self._store.tenant in (None, event.tenant)]

    def why(self, job_id: str) -> "list[Obstacle]":
        """Why the job is not running, the firmest reason first; of one that runs, who has it."""
        from treadle.model.why import why  # noqa: PLC0415 - only operators ask

        job = self.get(job_id)
        holder = None
        if job.key is not None and job.state.final:
            rivals = self.engine.find(JobFilter(None, job.task, None, job.tenant, job.key), limit=10).jobs
            holder = next((rival for rival in rivals if rival.id != job.id and not rival.state.final), None)
        if self._store.tenant is not None:
            return why(job, self.engine.now(), self._pauses_now(), [], holder, outside=True)
        return why(job, self.engine.now(), self._pauses_now(), self.engine.records(WorkerInfo), holder)

    def costs(self, day: date | None = None, *, days: int = 1, tenant: str | None = None) -> list[Cost]:
        """What the jobs that ended on this day (in UTC; today, or the `days` up to it) have cost, by tenant and task.

        A job counts on the day it ends, with all its attempts.
        """
        if not 1 <= days <= MOST_DAYS:
            raise InvalidJob("days", f"{days} must be from 1 to {MOST_DAYS:,}")
        if day is not None and not isinstance(day, date):
            raise InvalidJob("day", f"{day!r} is not a valid date; write date(2026, 11, 15)")
        end = datetime.combine(day or self.engine.now().date(), datetime.min.time(), UTC) + timedelta(days=1)
        found = self.engine.costs(since=end - timedelta(days=days), until=end, tenant=self._of(tenant))
        return [Cost(owner, task, micros) for (owner, task), micros in sorted(found.items())]

    # ------------------------------------------------------------------------------------ acts on a job

    def cancel(self, job_id: str, *, actor: str = "api", reason: str = "") -> Job:
        """Cancel a pending job, or ask a running one to stop; NotPossible once it has ended.

        With the setting `cancel = "pending"` a running one cannot be cancelled either.
        """
        only_pending = self.settings.cancel == "pending"

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.cancel(job, now, actor=actor, note=note(reason), only_pending=only_pending)

        return edit_job(self.engine, job_id, decide, actor=actor, tenant=self._store.tenant)

    def retry(self, job_id: str, *, keep_attempts: bool = False, actor: str = "api", reason: str = "") -> Job:
        """Run a failed or cancelled job again, with a fresh budget, or with `keep_attempts` just once more."""

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.retry(job, now, actor=actor, note=note(reason), keep_attempts=keep_attempts)

        return edit_job(self.engine, job_id, decide, actor=actor, tenant=self._store.tenant)

    # ------------------------------------------------------------------------------------------ pauses

    def pause(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        everything: bool = False,
        reason: str = "",
        until: Duration | datetime | None = None,
        actor: str = "api",
        wait: bool = False,
        timeout: Duration = "1h",
    ) -> Pause:
        """Let no job of this tenant, queue and task be claimed; with `everything`, no job at all.

        When it returns, no claim of such a job can commit. What runs, runs on; with `wait` it returns when nothing of
        it runs any more (NotPossible if that takes longer than `timeout`; the pause stands).
        """
        check_name("actor", actor)
        wanted = self._pause_of(tenant, queue, task, everything)
        longest = seconds(timeout, "timeout")
        for _ in range(PAUSE_TRIES):
            now, there = self.engine.now(), self._stored_pause(wanted)
            if there is not None and not there.over(now):
                self._check_owner(there)
            new = wanted.evolve(actor=actor, reason=note(reason), at=now, until=_end_of_pause(until, now))
            pause = put(self.engine, new, there, Act(EventKind.PAUSED, now, actor, reason))
            if pause is not None:
                if wait:
                    self._wait_until_drained(wanted, longest)
                return pause
        raise NotPossible(f"the pause of {wanted.scope} keeps changing; try again")

    def resume(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        everything: bool = False,
        reason: str = "",
        actor: str = "api",
    ) -> Pause:
        """Lift the pause of exactly this scope; NotPossible if there is none.

        A tenant lifts only what it has paused itself (`Pause.owner`).
        """
        check_name("actor", actor)
        wanted = self._pause_of(tenant, queue, task, everything)
        for _ in range(PAUSE_TRIES):
            pause = self._stored_pause(wanted)
            if pause is None:
                there = "; ".join(one.scope for one in self.pauses()) or "nothing"
                raise NotPossible(f"{wanted.scope} is not paused by itself; paused: {there}")
            self._check_owner(pause)
            if remove(self.engine, pause, Act(EventKind.RESUMED, self.engine.now(), actor, reason)):
                return pause
        raise NotPossible(f"the pause of {wanted.scope} keeps changing; try again")

    def pauses(self) -> list[Pause]:
        """The pauses that hold now."""
        return [pause for pause in self._pauses_now() if self._store.tenant in (None, pause.tenant)]

    def _pauses_now(self) -> list[Pause]:
        return list(Gate.at(self.engine.records(Pause), self.engine.now()).pauses)

    def _pause_of(self, tenant: str | None, queue: str | None, task: str | None, everything: bool) -> Pause:
        given = {"tenant": self._of(tenant), "queue": queue, "task": task}
        named = {field: name for field, name in given.items() if name is not None}
        for field, name in named.items():
            check_name(field, name)
        part = [field for field in named if field != "tenant" or self._store.tenant is None]
        if everything and part:
            raise InvalidJob("everything", f"is more than {', '.join(part)}: leave out one of them")
        if not everything and not named:  # a name that got lost must not stop them all
            raise InvalidJob("everything", "nothing is named: give tenant, queue or task, or everything=True")
        owner = PauseOwner.OPERATOR if self._store.tenant is None else PauseOwner.TENANT
        return Pause(owner=owner).evolve(**named)

    def _check_owner(self, pause: Pause) -> None:
        """Refuse a tenant that would change what the operators, or a budget, have paused."""
        if self._store.tenant is not None and pause.owner is not PauseOwner.TENANT:
            by = "because its budget is spent" if pause.owner is PauseOwner.BUDGET else "by the operators"
            raise NotPossible(f"{pause.scope} was paused {by}; only the operators can change or lift it")

    def _stored_pause(self, wanted: Pause) -> Pause | None:
        return next((pause for pause in self.engine.records(Pause) if pause[:3] == wanted[:3]), None)

    def _wait_until_drained(self, wanted: Pause, timeout: float) -> None:
        """Wait until nothing runs that the pause would stop."""
        named = [None if name == ANY else name for name in wanted[:3]]
        where = JobFilter(State.RUNNING, named[2], named[1], named[0])
        deadline = time.monotonic() + timeout
        while running := self.engine.find(where, limit=1).jobs:
            if time.monotonic() > deadline:
                raise NotPossible(
                    f"{wanted.scope} is paused, but job {running[0].id} and maybe others still run after {timeout:g} s"
                )
            time.sleep(POLL_INTERVAL)

    # -------------------------------------------------------------------------------- the audit trail

    def audit(self, *, limit: int = 100, tenant: str | None = None) -> list[Event]:
        """The latest audit events of all jobs, schedules and pauses, newest first."""
        from treadle.app.audit import latest_events  # noqa: PLC0415 - hashes are loaded where they are used

        return latest_events(self.engine, self._of(tenant), limit=limit)

    def verify_audit(self, *, tenant: str | None = None) -> "AuditReport":
        """Whether the sealed audit events are as they were; and how many events are not sealed yet."""
        from treadle.app.audit import verify_events  # noqa: PLC0415

        return verify_events(self.engine, self._of(tenant), kept=self.settings.audit_retention)

    def _of(self, tenant: str | None) -> str | None:
        """Whose rows are meant; InvalidJob if a bound handle is asked for another's."""
        own = self._store.tenant
        return tenant if own is None else bound_tenant(own, tenant)


def note(reason: str) -> str:
    """An operator's reason, made storable."""
    if not isinstance(reason, str):
        raise InvalidJob("reason", f"{reason!r} must be text")
    return clean(reason, MESSAGE_CAP)


def _end_of_pause(until: Duration | datetime | None, now: datetime) -> datetime | None:
    end = moment(until, now, "until")
    if end is not None and end <= now:
        raise InvalidJob("until", f"{end:%Y-%m-%d %H:%M:%S} UTC is past; leave it out to pause until you resume")
    return end
