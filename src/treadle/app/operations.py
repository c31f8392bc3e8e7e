"""What one may see of the jobs and do to them: everybody's (the app), or one tenant's (`app.tenant("acme")`).

A handle that is bound to a tenant answers for the jobs of others as for jobs that are not there.
"""

from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.app import queries
from treadle.app.bulk import Bulk
from treadle.app.handle import note
from treadle.app.pauses import Pauses
from treadle.app.results import Results
from treadle.edits import edit_job, id_of
from treadle.engines.values import JobFilter, Page
from treadle.errors import InvalidJob, NotPossible
from treadle.model import Change, Event, EventKind, Job, State, lifecycle
from treadle.model.clock import Duration, moment, past_moment
from treadle.model.records import WorkerInfo
from treadle.tasks.faces import async_face
from treadle.tasks.task import Task

if TYPE_CHECKING:
    from treadle.app.audit import AuditReport, EventPage
    from treadle.app.status import Status
    from treadle.model.why import Obstacle

MOST_DAYS = 3660  # of costs in one look


class Cost(NamedTuple):
    """What the jobs of a task have cost, in millionths of your currency."""

    tenant: str
    task: str
    micros: int


class Operations(Pauses, Bulk, Results):
    """Jobs and pauses, everybody's or one tenant's: the store decides."""

    # ------------------------------------------------------------------------------------ what is there

    def find(
        self,
        *,
        state: State | str | None = None,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        error: str | None = None,
        since: Duration | datetime | None = None,
        before: Duration | datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Jobs, newest first, up to 500 a page; go on with the page's cursor.

        `state` is a State, or a word of the profile; of a word that means several states, one state comes after the
        other. Failed and cancelled jobs that are asked for come by their end, the latest first. `error` is the type of
        the last error, such as "ValueError". `since` and `before` are moments, or how long ago: of the end, or of a job
        that has not ended, when it was stored. A word, `error`, `since` and `before` are looked for job by job: where
        few fit, a page may come short after 10,000 jobs, with a cursor.
        """
        if not isinstance(limit, int) or not 1 <= limit <= queries.LARGEST_PAGE:
            raise InvalidJob("limit", f"{limit!r} must be from 1 to {queries.LARGEST_PAGE}; go on with the cursor")
        if not isinstance(cursor, str | None):
            raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor; take it from the page before")
        wanted = self._selection(
            {
                "state": state,
                "task": task,
                "queue": queue,
                "tenant": tenant,
                "key": key,
                "error": error,
                "since": since,
                "before": before,
            }
        )
        try:
            return queries.find(self.engine, wanted, limit=limit, cursor=cursor)
        except (ValueError, IndexError, OverflowError):
            if cursor is None:
                raise
            raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor; take it from the page before") from None

    def count(
        self,
        *,
        state: State | str | None = None,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> dict[State, int]:
        """How many jobs there are, by stored state; every state is named.

        `state` as in `find`; what a word means only a part of is counted by reading it.
        """
        wanted = self._selection({"state": state, "task": task, "queue": queue, "tenant": tenant})
        counts = queries.count(self.engine, wanted)
        return {state: counts.get(state, 0) for state in State}

    def status(self) -> "Status":
        """An overview: what waits, runs and ended in the last hour, by queue and task; errors, pauses and workers.

        It reads a bounded part of the store, so that it is quick beside millions of jobs: up to 10,000 waiting jobs of
        a queue, and the 10,000 latest ends of a state. A tenant sees its own jobs, and no workers.
        """
        from treadle.app.status import status  # noqa: PLC0415 - only operators ask

        return status(self.engine, self._store.tenant, self.pauses())

    def resolve_id(self, prefix: str, *, queues: Collection[str] | None = None) -> str:
        """The id of the one job whose id begins so; JobNotFound if there is none, InvalidJob if there are several.

        With `queues`, only jobs on these count; a whole id is taken as it is.
        """
        return queries.resolve_id(self.engine, prefix, self._store.tenant, queues)

    def view(self, job: Job) -> dict[str, Any]:
        """The job as the profile prints it, or under our own names; plain data."""
        return self.profile.view(job, self.engine.now())

    def events(self, job_id: Job | str) -> list[Event]:
        """The audit trail of a job, oldest first."""
        events = self.engine.events(id_of(job_id))
        ours = [event for event in events if self._store.tenant in (None, event.tenant)]
        if not ours:  # of a job that was deleted or pruned there are some
            self.get(job_id)
        return ours

    def why(self, job_id: Job | str, *, queues: Collection[str] | None = None) -> "list[Obstacle]":
        """Why the job is not running, the firmest reason first; of one that runs, who has it.

        With `queues`, nothing is told of other queues, nor of the workers.
        """
        from treadle.model.why import why  # noqa: PLC0415 - only operators ask

        job = self.get(job_id)
        holder = None
        if job.key is not None and job.state.final:
            rivals = self.engine.find(JobFilter(None, job.task, None, job.tenant, job.key), limit=10).jobs
            rivals = [rival for rival in rivals if queues is None or rival.queue in queues]
            holder = next((rival for rival in rivals if rival.id != job.id and not rival.state.final), None)
        if self._store.tenant is not None or queues is not None:
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
        start, end = _span_of(day or self.engine.now().date(), days)
        found = self.engine.costs(since=start, until=end, tenant=self._of(tenant))
        return [Cost(owner, task, micros) for (owner, task), micros in sorted(found.items())]

    # ------------------------------------------------------------------------------------ acts on a job

    def cancel(self, job_id: Job | str, *, actor: str = "api", reason: str = "", revision: int | None = None) -> Job:
        """Cancel a pending job, or ask a running one to stop; NotPossible once it has ended.

        With a `revision`, here and below, the job must still be the one that you have seen.

        With the setting `cancel = "pending"` a running one cannot be cancelled either.
        """
        only_pending = self.settings.cancel == "pending"

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.cancel(job, now, actor=actor, note=note(reason), only_pending=only_pending)

        return self._edit(job_id, decide, actor, revision)

    def retry(
        self,
        job_id: Job | str,
        *,
        keep_attempts: bool = False,
        actor: str = "api",
        reason: str = "",
        revision: int | None = None,
    ) -> Job:
        """Run a failed or cancelled job again, with a fresh budget, or with `keep_attempts` just once more."""

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.retry(job, now, actor=actor, note=note(reason), keep_attempts=keep_attempts)

        return self._edit(job_id, decide, actor, revision)

    def edit(
        self,
        job_id: Job | str,
        *,
        queue: str | None = None,
        lane: str | None = None,
        priority: int | None = None,
        run_after: Duration | datetime | None = None,
        actor: str = "api",
        reason: str = "",
        revision: int | None = None,
    ) -> Job:
        """Give a pending job another queue, lane, priority or due time; NotPossible if it runs or has ended.

        `run_after` is a moment, or how long from now on; it is also the time of the next attempt of a failed one.
        """
        due = moment(run_after, self.engine.now(), "run_after")
        wanted = lifecycle.Edit(queue, lane, priority, due)
        if wanted == lifecycle.Edit():
            raise InvalidJob("edit", "nothing is named: give queue, lane, priority or run_after")

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.edit(job, wanted, now, actor=actor, note=note(reason))

        return self._edit(job_id, decide, actor, revision)

    def run_now(self, job_id: Job | str, *, actor: str = "api", reason: str = "", revision: int | None = None) -> Job:
        """Let a pending job that is due later run now, or one that waits for its next attempt."""

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.run_now(job, now, actor=actor, note=note(reason))

        return self._edit(job_id, decide, actor, revision)

    def delete(self, job_id: Job | str, *, actor: str = "api", reason: str = "", revision: int | None = None) -> Job:
        """Delete a job that waits or has ended, with its payload, result, error and key; the job as it was.

        The audit trail keeps its events, and this one: who has deleted it, when and why. NotPossible while it runs.
        """

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.delete(job, now, actor=actor, note=note(reason))

        return self._edit(job_id, decide, actor, revision)

    def _edit(
        self, job_id: Job | str, decide: Callable[[Job, datetime], Change], actor: str, revision: int | None
    ) -> Job:
        def decide_if_unchanged(job: Job, now: datetime) -> Change:
            if revision not in (None, job.revision):
                raise NotPossible(f"job {job.id} has changed since: it has revision {job.revision}, not {revision}")
            return decide(job, now)

        return edit_job(self.engine, job_id, decide_if_unchanged, actor=actor, tenant=self._store.tenant)

    # -------------------------------------------------------------------------------- the audit trail

    def audit(
        self,
        *,
        limit: int = 100,
        tenant: str | None = None,
        actor: str | None = None,
        kind: EventKind | str | None = None,
        job_id: str | None = None,
        since: Duration | datetime | None = None,
        until: Duration | datetime | None = None,
    ) -> list[Event]:
        """The latest audit events of all jobs, schedules and pauses, newest first; `audit_page` goes on from there.

        `kind` is what was done, such as "retried". `since` and `until` are moments, or how long ago.
        """
        return self.audit_page(
            limit=limit, tenant=tenant, actor=actor, kind=kind, job_id=job_id, since=since, until=until
        ).events

    def audit_page(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        tenant: str | None = None,
        actor: str | None = None,
        kind: EventKind | str | None = None,
        job_id: str | None = None,
        since: Duration | datetime | None = None,
        until: Duration | datetime | None = None,
    ) -> "EventPage":
        """The same as `audit`, with the cursor of the next page."""
        from treadle.app.audit import EventFilter, latest_events, place_of  # noqa: PLC0415 - hashes are loaded where they are used

        if not isinstance(limit, int) or limit < 1:
            raise InvalidJob("limit", f"{limit!r} must be a number, 1 or more")
        now = self.engine.now()
        wanted = EventFilter(
            self._of(tenant),
            actor,
            None if kind is None else str(kind),
            None if job_id is None else str(job_id).lower(),
            past_moment(since, now, "since"),
            past_moment(until, now, "until"),
            place_of(cursor),
        )
        return latest_events(self.engine, wanted, limit=limit)

    def verify_audit(self, *, tenant: str | None = None) -> "AuditReport":
        """Whether the sealed audit events are as they were; and how many events are not sealed yet."""
        from treadle.app.audit import verify_events  # noqa: PLC0415

        return verify_events(self.engine, self._of(tenant), kept=self.settings.audit_retention)

    # ------------------------------------------------------------------------------- for async code

    afind = async_face(find)
    acount = async_face(count)
    astatus = async_face(status)
    aresolve_id = async_face(resolve_id)
    aevents = async_face(events)
    awhy = async_face(why)
    acosts = async_face(costs)
    acancel = async_face(cancel)
    aretry = async_face(retry)
    aedit = async_face(edit)
    arun_now = async_face(run_now)
    adelete = async_face(delete)
    aaudit = async_face(audit)
    aaudit_page = async_face(audit_page)


def _span_of(day: date, days: int) -> tuple[datetime, datetime]:
    """The `days` up to the end of this day, within the years that there are."""
    midnight = datetime.combine(day, datetime.min.time(), UTC)
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    start = midnight - timedelta(days=days - 1) if midnight - first >= timedelta(days=days - 1) else first
    return start, midnight + timedelta(days=1) if last - midnight > timedelta(days=1) else last
