"""What one may see of the jobs and do to them: everybody's (the app), or one tenant's (`app.tenant("acme")`).

A handle that is bound to a tenant answers for the jobs of others as for jobs that are not there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.app import queries
from treadle.app.handle import note
from treadle.app.numbers import Numbers
from treadle.app.profile import Profile
from treadle.app.results import Results
from treadle.edits import edit_job, id_of
from treadle.engines.values import JobFilter
from treadle.errors import InvalidJob, NotPossible
from treadle.model import Change, Event, EventKind, Job, State, lifecycle
from treadle.model.clock import Duration, moment
from treadle.model.edit import Edit
from treadle.model.records import Schedule, WorkerInfo
from treadle.tasks.faces import async_face
from treadle.tasks.task import Task

if TYPE_CHECKING:
    from treadle.app.audit import AuditReport, EventPage
    from treadle.app.budgets import DayOfBudgets
    from treadle.app.follow import Following
    from treadle.app.masking import Masking
    from treadle.model.edit import NewPayload
    from treadle.model.memo import Memo
    from treadle.model.why import Obstacle
    from treadle.tasks.definition import Definition

MOST_DAYS = 3660  # of costs in one look


class Cost(NamedTuple):
    """What the jobs of a task have cost, in millionths of your currency."""

    tenant: str
    task: str
    micros: int


class Operations(Numbers, Results):
    """Jobs and pauses, everybody's or one tenant's: the store decides."""

    _known: "Mapping[str, Definition]"  # the tasks of the app

    # ------------------------------------------------------------------------------------ what is there

    def find(
        self,
        *,
        state: State | str | None = None,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        lane: str | None = None,
        error: str | None = None,
        since: Duration | datetime | None = None,
        before: Duration | datetime | None = None,
        fingerprint: str | None = None,
        text: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> queries.JobPage:
        """Jobs, newest first, up to 500 a page; go on with the page's cursor.

        `state` is a State, or a word of the profile; of a word that means several states, one state comes after the
        other. Failed and cancelled jobs that are asked for come by their end, the latest first. `error` is the type of
        the last error, such as "ValueError", `fingerprint` its kind, as `failures` tells it. `since` and `before` are
        moments, or how long ago: of the end, or of a job that has not ended, when it was stored. `text` is somewhere in
        the JSON of the payload, in capitals or not; DynamoDB refuses it. `lane=""` means jobs of no lane.

        A word, `error`, `fingerprint`, `text`, `since` and `before` are looked for job by job, on DynamoDB also task,
        queue, tenant, lane and key: where few fit, a page may come short, or empty, after 10,000 jobs, with a cursor.
        Its `looked` and `back_to` say how far it looked.
        """
        if not isinstance(limit, int) or not 1 <= limit <= queries.LARGEST_PAGE:
            raise InvalidJob("limit", f"{limit!r} must be from 1 to {queries.LARGEST_PAGE}; go on with the cursor")
        wanted = self._selection(
            {
                "state": state,
                "task": task,
                "queue": queue,
                "tenant": tenant,
                "key": key,
                "lane": lane,
                "error": error,
                "since": since,
                "before": before,
                "fingerprint": fingerprint,
            }
        )
        if text is not None:
            from treadle.app.payloads import check_search  # noqa: PLC0415 - only operators ask

            wanted = wanted._replace(text=check_search(self.engine, text), masked=self.masked)
        with queries.cursor_errors(cursor):
            return queries.find(self.engine, wanted, limit=limit, cursor=cursor)

    def resolve_id(self, prefix: str, *, queues: Collection[str] | None = None) -> str:
        """The id of the one job whose id begins so; JobNotFound if there is none, InvalidJob if there are several.

        With `queues`, only jobs on these count; a whole id is taken as it is.
        """
        return queries.resolve_id(self.engine, prefix, self._store.tenant, queues)

    @property
    def _masking(self) -> "Masking":
        """What hides secrets; the app and its tenants share it."""
        raise NotImplementedError

    def view(self, job: Job, profile: Profile | None = None) -> dict[str, Any]:
        """The job as the profile prints it, or another one, or under our own names; plain data, secrets masked."""
        return self.views([job], profile)[0]

    def views(self, jobs: Iterable[Job], profile: Profile | None = None) -> list[dict[str, Any]]:
        """Jobs as `view` prints them. Their schedules are looked up if the profile asks for an id, each one once."""
        jobs, now, names = list(jobs), self.engine.now(), profile or self.profile
        ids = queries.schedule_ids(self.engine, jobs) if names.prints("schedule_id") else {}
        return [names.view(self.masked(job), now, ids.get(job.id)) for job in jobs]

    def masked(self, job: Job) -> Job:
        """The job as people may see it: `***` stands for what is secret in its payload, wherever that is repeated."""
        return self._masking.job(job)

    def masked_events(self, job: Job, events: Iterable[Event]) -> list[Event]:
        """The audit events of this job as people may see them."""
        return self._masking.events(job, events)

    def masked_schedule(self, schedule: Schedule) -> Schedule:
        """The schedule as people may see it."""
        return self._masking.schedule(schedule)

    def events(self, job_id: Job | str, *, latest: int | None = None) -> list[Event]:
        """The audit trail of a job, oldest first; with `latest`, the last so many events, and no others are read."""
        events = self.engine.events(id_of(job_id), latest=latest)
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

    def memos(self, job_id: Job | str) -> "list[Memo]":
        """What the job remembers, by name: what `ctx.once` has done in its attempts, and has begun."""
        return self.engine.memos(self.get(job_id).id)

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

    def budgets(self, *, tenant: str | None = None) -> "DayOfBudgets":
        """What each tenant that has a budget has spent of it today (in UTC), and whether that has paused it."""
        from treadle.app.budgets import budgets  # noqa: PLC0415 - only operators ask

        now, tenant = self.engine.now(), self._of(tenant)
        return budgets(now, self.settings.budgets, self.costs(now.date(), tenant=tenant), self.pauses(), tenant)

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
        payload: Any = None,
        actor: str = "api",
        reason: str = "",
        revision: int | None = None,
    ) -> Job:
        """Run a failed or cancelled job again, with a fresh budget, or with `keep_attempts` just once more.

        With a `payload`, given as data, it runs with that one. It is checked against the task, as at an enqueue; an app
        without any tasks does not check it. Name the `revision` that it was edited from.
        """

        def decide(job: Job, now: datetime) -> Change:
            new = self._new_payload(job, payload)
            text = note(reason)
            return lifecycle.retry(job, now, actor=actor, note=text, keep_attempts=keep_attempts, payload=new)

        return self._edit(job_id, decide, actor, revision)

    def edit(
        self,
        job_id: Job | str,
        *,
        queue: str | None = None,
        lane: str | None = None,
        priority: int | None = None,
        run_after: Duration | datetime | None = None,
        payload: Any = None,
        actor: str = "api",
        reason: str = "",
        revision: int | None = None,
    ) -> Job:
        """Give a pending job another queue, lane, priority, due time or payload; NotPossible if it runs or has ended.

        `run_after` is a moment, or how long from now on; it is also the time of the next attempt of a failed one. The
        `payload` as in `retry`.
        """
        due = moment(run_after, self.engine.now(), "run_after")
        wanted = Edit(queue, lane, priority, due)
        if wanted == Edit() and payload is None:
            raise InvalidJob("edit", "nothing is named: give queue, lane, priority, run_after or payload")

        def decide(job: Job, now: datetime) -> Change:
            new = self._new_payload(job, payload)
            return lifecycle.edit(job, wanted._replace(payload=new), now, actor=actor, note=note(reason))

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

    def _new_payload(self, job: Job, payload: Any) -> "NewPayload | None":
        if payload is None:
            return None

        from treadle.app.payloads import encoded  # noqa: PLC0415 - only operators ask

        return encoded(self._known, job.task, self._masking.restored(job, payload))

    def _edit(
        self, job_id: Job | str, decide: Callable[[Job, datetime], Change], actor: str, revision: int | None
    ) -> Job:
        def decide_if_unchanged(job: Job, now: datetime) -> Change:
            if revision not in (None, job.revision):
                raise NotPossible(
                    f"job {job.id} has changed since: it has revision {job.revision}, not {revision}; look at it again"
                )
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
        by_hand: bool = False,
    ) -> "EventPage":
        """The same as `audit`, with the cursor of the next page; `by_hand` leaves out what workers do."""
        from treadle.app.audit import event_filter, latest_events  # noqa: PLC0415 - hashes are loaded where they are used

        if not isinstance(limit, int) or limit < 1:
            raise InvalidJob("limit", f"{limit!r} must be a number, 1 or more")
        wanted = event_filter(
            self.engine.now(),
            tenant=self._of(tenant),
            actor=actor,
            kind=kind,
            job_id=job_id,
            since=since,
            until=until,
            cursor=cursor,
            by_hand=by_hand,
        )
        return latest_events(self.engine, wanted, limit=limit)

    def follow(
        self,
        *,
        tenant: str | None = None,
        kind: EventKind | str | None = None,
        job_id: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        since: Duration | datetime | None = None,
    ) -> "Following":
        """The audit events as they come: begin with `latest(limit)`, and ask for `news()` again and again.

        Each event comes once. One that is committed late comes late, below others that are younger. `task` and
        `queue` are those that its job has now.
        """
        from treadle.app.audit import event_filter  # noqa: PLC0415 - only operators ask
        from treadle.app.follow import Following  # noqa: PLC0415

        wanted = event_filter(self.engine.now(), tenant=self._of(tenant), kind=kind, job_id=job_id, since=since)
        return Following(self.engine, wanted, task=task, queue=queue, masked=self.masked_events)

    def verify_audit(self, *, tenant: str | None = None) -> "AuditReport":
        """Whether the sealed audit events are as they were; and how many events are not sealed yet."""
        from treadle.app.audit import verify_events  # noqa: PLC0415

        return verify_events(self.engine, self._of(tenant), kept=self.settings.audit_retention)

    # ------------------------------------------------------------------------------- for async code

    afind = async_face(find)
    aresolve_id = async_face(resolve_id)
    aevents = async_face(events)
    awhy = async_face(why)
    amemos = async_face(memos)
    acosts = async_face(costs)
    abudgets = async_face(budgets)
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
