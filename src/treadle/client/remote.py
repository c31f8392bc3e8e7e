"""RemoteTreadle: what an operator does with a `Treadle`, done by a server that is asked over HTTP."""

import time
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from treadle.app.audit import EventPage
from treadle.app.budgets import DayOfBudgets
from treadle.app.enqueue import Enqueued
from treadle.app.failures import Failures
from treadle.app.operations import Cost
from treadle.app.profile import LABELS, Profile
from treadle.app.queries import LARGEST_PAGE, JobPage, ids_by_job
from treadle.app.stats import Stats
from treadle.app.status import Group, Status
from treadle.client import values
from treadle.client.address import address_of, checked_token
from treadle.client.bulk import RemoteBulk
from treadle.client.oversight import RemoteOversight
from treadle.client.schedules import RemoteSchedules
from treadle.client.tokens import RemoteTokens
from treadle.client.transport import TIMEOUT, Transport, segment
from treadle.client.values import read
from treadle.client.words import given, when
from treadle.errors import InvalidInput, InvalidJob, JobNotFound, NotPossible
from treadle.model import UUID, Event, Job, State, new_id
from treadle.model.clock import Duration, seconds
from treadle.model.records import Drain, Pause, Schedule, WorkerInfo
from treadle.model.retry import Retry
from treadle.model.why import Obstacle
from treadle.tasks.options import Unique

POLL_INTERVAL = 0.5  # seconds between two looks at what still runs
NEW_JOB = (
    "tenant", "queue", "lane", "priority", "key", "unique", "window", "on_conflict", "max_attempts", "run_after",
    "expires_at", "timeout", "id",
)  # fmt: skip


class RemoteClock:
    """The time of the server's store, or a little later: what is due there must not look as if it were not."""

    def __init__(self, now: datetime, asked_at: float) -> None:
        self._now = now
        self._at = asked_at

    def now(self) -> datetime:
        return self._now + timedelta(seconds=time.monotonic() - self._at)


class RemoteTreadle(RemoteBulk, RemoteOversight):
    """The jobs, schedules and pauses of a server. It takes what `Treadle` takes, and returns the same values.

    Who acts is the token's owner: an `actor` is not sent. Nothing is asked before the first call.
    """

    def __init__(self, url: str, token: str | None, *, insecure: bool = False, timeout: float = TIMEOUT) -> None:
        """`insecure` sends the token in the clear to another machine, over http://."""
        super().__init__(Transport(address_of(url, insecure=insecure), checked_token(token), timeout=timeout))
        self.schedules = RemoteSchedules(self._http)
        self.tokens = RemoteTokens(self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteTreadle({self.url!r})"

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._http.address.url

    def open(self) -> None:
        """See that the server is there, is a treadle, and knows the token; otherwise done on first use."""
        self._about  # noqa: B018 - asked for once

    def close(self) -> None:
        """Nothing is kept open."""

    @cached_property
    def _about(self) -> tuple[Profile, RemoteClock]:
        answer = self._http.get("/about")
        profile = read(lambda: values.profile_from(answer["profile"]))
        return profile, RemoteClock(read(lambda: datetime.fromisoformat(answer["now"])), self._http.sent_at)

    @property
    def profile(self) -> Profile:
        """The server's words for jobs."""
        return self._about[0]

    @property
    def engine(self) -> RemoteClock:
        """What is known here of the server's engine: its time."""
        return self._about[1]

    def view(self, job: Job) -> dict[str, Any]:
        """The job as the server's profile prints it; plain data."""
        return self.views([job])[0]

    def views(self, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        """Jobs as `view` prints them. Their schedules are asked for if the profile prints an id, each one once."""
        jobs, now = list(jobs), self.engine.now()
        ids = self._schedule_ids(jobs) if self.profile.prints("schedule_id") else {}
        return [self.profile.view(job, now, ids.get(job.id)) for job in jobs]

    def _schedule_ids(self, jobs: Sequence[Job]) -> dict[str, str]:
        made = {(job.tenant, job.schedule) for job in jobs if job.schedule is not None}
        return ids_by_job(jobs, {place: self.schedules.list(tenant=place[0], name=place[1]) for place in made})

    def masked(self, job: Job) -> Job:
        """The job itself: the server has masked what is secret in it."""
        return job

    def masked_events(self, job: Job, events: Iterable[Event]) -> list[Event]:
        """The events themselves: the server has masked what is secret in them."""
        return list(events)

    def masked_schedule(self, schedule: Schedule) -> Schedule:
        """The schedule itself: the server has masked what is secret in it."""
        return schedule

    # ------------------------------------------------------------------------------------ looking at jobs

    def find(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> JobPage:
        """Jobs, newest first, up to 500 a page; filters as in `Treadle.find`."""
        if not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise InvalidJob("limit", f"{limit!r} must be from 1 to {LARGEST_PAGE}; go on with the cursor")
        answer = self._http.get("/jobs", {**given(filters), "limit": limit, "cursor": cursor})
        return read(lambda: values.page_from(answer))

    def counts(self, **where: str | None) -> dict[str, Any]:
        """How many jobs there are, by the server's words for their states; those of `estimates` are not exact."""
        answer = self._http.get("/jobs/count", given(where))
        names = ("counts", "labels", "total", "exact", "estimates")
        return read(lambda: {name: {"labels": {}, **answer}[name] for name in names})  # older servers count no labels

    def failures(self, **filters: Any) -> Failures:
        """The jobs that failed or will be tried again, grouped by what went wrong; filters as in `Treadle.failures`."""
        answer = self._http.get("/failures", given(filters))
        return read(lambda: values.failures_from(answer))

    def get(self, job_id: Job | str) -> Job:
        """The job as it is now; JobNotFound if there is none."""
        answer = self._job(job_id)
        return read(lambda: values.job_from(answer["job"]))

    def resolve_id(self, prefix: str) -> str:
        """The id of the one job whose id begins so; a whole id is not looked for."""
        if UUID.fullmatch(str(prefix).lower()):
            return str(prefix).lower()
        answer = self._job(prefix)
        return read(lambda: str(answer["job"]["id"]))

    def events(self, job_id: Job | str, *, latest: int | None = None) -> list[Event]:
        """The audit trail of a job, oldest first, also of one that was deleted; with `latest`, the last so many."""
        try:
            answer = self._job(job_id, events=latest)
        except JobNotFound:
            try:
                gone = self.audit_page(limit=latest or LARGEST_PAGE, job_id=_id(job_id)).events
            except NotPossible:  # a token that is bound to queues does not see the trail
                gone = []
            if not gone:
                raise
            return gone[::-1]
        return read(
            lambda: [
                values.event_from(event, answer["job"]["id"], answer["job"]["tenant"]) for event in answer["events"]
            ]
        )

    def why(self, job_id: Job | str) -> list[Obstacle]:
        """Why the job is not running, the firmest reason first."""
        answer = self._http.get(f"/jobs/{segment(_id(job_id))}/why")
        return read(lambda: [values.obstacle_from(one) for one in answer["obstacles"]])

    def _job(self, job_id: Job | str, **query: Any) -> Any:
        return self._http.get(f"/jobs/{segment(_id(job_id))}", query)

    # --------------------------------------------------------------------------------- acting on a job

    def enqueue(self, name: str, /, payload: Any = None, **using: Any) -> Enqueued:
        """Store a job by task name. It is sent again if the server does not answer, and is stored once.

        `using` as in `Task.using`, and `max_attempts`, `window`, `on_conflict`; what is left out is as the task says.
        """
        body = {"task": name, "payload": payload, "id": new_id(), **_new_job(using)}
        answer = self._http.post("/jobs", body, repeatable=True)
        return read(lambda: _enqueued(answer))

    def retry(
        self,
        job_id: Job | str,
        *,
        keep_attempts: bool = False,
        payload: Any = None,
        actor: str = "",
        reason: str = "",
        revision: int | None = None,
    ) -> Job:
        """Run a failed or cancelled job again, with a fresh budget, or with `keep_attempts` just once more."""
        return self._act(job_id, "retry", reason, revision, keep_attempts=keep_attempts, **given({"payload": payload}))

    def cancel(self, job_id: Job | str, *, actor: str = "", reason: str = "", revision: int | None = None) -> Job:
        """Cancel a pending job, or ask a running one to stop."""
        return self._act(job_id, "cancel", reason, revision)

    def run_now(self, job_id: Job | str, *, actor: str = "", reason: str = "", revision: int | None = None) -> Job:
        """Let a pending job run now that is due later."""
        return self._act(job_id, "run-now", reason, revision)

    def edit(
        self, job_id: Job | str, *, actor: str = "", reason: str = "", revision: int | None = None, **fields: Any
    ) -> Job:
        """Give a pending job another queue, lane, priority or due time."""
        body = {**given(fields), "reason": reason, "revision": revision}
        answer = self._http.patch(f"/jobs/{segment(_id(job_id))}", body)
        return read(lambda: values.job_from(answer["job"]))

    def delete(self, job_id: Job | str, *, actor: str = "", reason: str = "", revision: int | None = None) -> Job:
        """Delete a job that waits or has ended; the job as it was."""
        query = {"reason": reason or None, "revision": revision}
        answer = self._http.delete(f"/jobs/{segment(_id(job_id))}", query)
        return read(lambda: values.job_from(answer["job"]))

    def _act(self, job_id: Job | str, act: str, reason: str, revision: int | None, **fields: Any) -> Job:
        body = {"reason": reason, "revision": revision, **fields}
        answer = self._http.post(f"/jobs/{segment(_id(job_id))}/{act}", body)
        return read(lambda: values.job_from(answer["job"]))

    # ------------------------------------------------------------------------------------------ overview

    def status(self) -> Status:
        """What waits, runs and ended in the last hour, by queue and task; errors, pauses and workers."""
        answer = self._http.get("/status")
        return read(lambda: values.status_from(answer))

    def queues(self) -> list[Group]:
        """The queues that hold jobs or had ends in the last hour."""
        answer = self._http.get("/queues")
        return read(lambda: [values.group_from(group) for group in answer["queues"]])

    def workers(self, *, silent: bool = False) -> list[WorkerInfo]:
        """The workers that are alive, as they last reported; with `silent` also those that were not heard of lately."""
        answer = self._http.get("/workers", {"silent": "true"} if silent else {})
        return read(lambda: [values.worker_from(worker) for worker in answer["workers"]])

    def drains(self) -> list[Drain]:
        """Who has asked which live worker to stop."""
        answer = self._http.get("/workers")
        return read(lambda: [values.drain_from(one["drain"]) for one in answer["workers"] if one.get("drain")])

    def drain(self, worker: str, *, actor: str = "", reason: str = "") -> WorkerInfo:
        """Ask a live worker to stop as a signal would."""
        answer = self._http.post(f"/workers/{segment(worker)}/drain", {"reason": reason})
        return read(lambda: values.worker_from(answer["worker"]))

    def stats(self, span: Duration = "1h", *, queue: str | None = None, task: str | None = None) -> Stats:
        """How many jobs ended in this time, by the minute, and how long they waited and ran."""
        answer = self._http.get("/stats", {"span": when(span), "queue": queue, "task": task})
        return read(lambda: values.stats_from(answer))

    def costs(self, day: date | None = None, *, days: int = 1, tenant: str | None = None) -> list[Cost]:
        """What the jobs that ended on these days have cost, by tenant and task."""
        answer = self._http.get("/costs", {"day": day and day.isoformat(), "days": days, "tenant": tenant})
        return read(lambda: [values.cost_from(cost) for cost in answer["costs"]])

    def budgets(self, *, tenant: str | None = None) -> DayOfBudgets:
        """What each tenant that has a budget has spent of it today, and whether that has paused it."""
        answer = self._http.get("/budgets", {"tenant": tenant})
        return read(lambda: values.budgets_from(answer))

    def audit_page(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> EventPage:
        """The latest audit events, newest first, and where to go on; filters as in `Treadle.audit_page`."""
        query = given(filters)
        if "job_id" in query:
            query["job"] = query.pop("job_id")
        events, cursor = self._http.pages("/audit", "events", query, limit=limit, cursor=cursor)
        return read(lambda: values.trail_from({"events": events, "cursor": cursor}))

    # -------------------------------------------------------------------------------------------- pauses

    def pauses(self) -> list[Pause]:
        """The pauses that hold now."""
        answer = self._http.get("/pauses")
        return read(lambda: [values.pause_from(pause) for pause in answer["pauses"]])

    def pause(
        self,
        *,
        reason: str = "",
        until: Duration | datetime | None = None,
        actor: str = "",
        wait: bool = False,
        timeout: Duration = "1h",
        revision: int | None = None,
        **scope: Any,
    ) -> Pause:
        """Let no job of this tenant, queue and task be claimed; with `everything`, no job at all.

        With `wait` it returns when nothing of it runs any more. With a `revision` the pause that is there must be the
        one that you have seen, or with -1 none.
        """
        longest = seconds(timeout, "timeout")
        body = {**given(scope), "reason": reason, "until": when(until), "revision": revision}
        answer = self._http.post("/pauses", body)
        made = read(lambda: values.pause_from(answer["pause"]))
        if wait:
            self._wait_until_drained(made, longest, {name: scope.get(name) for name in ("tenant", "queue", "task")})
        return made

    def resume(self, *, reason: str = "", actor: str = "", revision: int | None = None, **scope: Any) -> Pause:
        """Lift the pause of exactly this scope; with a `revision` it must still be the one that you have seen."""
        answer = self._http.post("/pauses/resume", {**given(scope), "reason": reason, "revision": revision})
        return read(lambda: values.pause_from(answer["pause"]))

    def _wait_until_drained(self, pause: Pause, timeout: float, named: dict[str, Any]) -> None:
        words = dict.fromkeys(self.profile.word(label) for label in LABELS[State.RUNNING])
        deadline = time.monotonic() + timeout
        while running := next((job for word in words if (job := self._first(state=word, **named))), None):
            if time.monotonic() > deadline:
                raise NotPossible(
                    f"{pause.scope} is paused, but job {running.id} and maybe others still run after {timeout:g} s"
                )
            time.sleep(POLL_INTERVAL)

    def _first(self, **wanted: Any) -> Job | None:
        """One of these jobs; a page may be empty and have a cursor."""
        page = self.find(limit=1, **wanted)
        while not page.jobs and page.cursor is not None:
            page = self.find(limit=1, cursor=page.cursor, **wanted)
        return next(iter(page.jobs), None)


def _id(job_id: Job | str) -> str:
    return job_id.id if isinstance(job_id, Job) else str(job_id)


def _enqueued(answer: Any) -> Enqueued:
    job = answer["job"]
    if "task" not in job:
        return Enqueued(job["id"])
    return Enqueued(job["id"], answer["outcome"], values.job_from(job))


def _new_job(using: dict[str, Any]) -> dict[str, Any]:
    """The options of a new job as the API takes them."""
    options = dict(using)
    if isinstance(retry := options.pop("retry", None), Retry):
        if retry[1:] != Retry()[1:]:
            raise InvalidInput("retry", "over the API only max_attempts can be given; the rest is as the task says")
        options["max_attempts"] = retry.max_attempts
    if isinstance(unique := options.get("unique"), Unique):
        options |= {"unique": unique.scope, "on_conflict": unique.on_conflict, "window": unique.window}
    if unknown := options.keys() - set(NEW_JOB):
        raise InvalidInput(sorted(unknown)[0], f"is not an option over the API; known: {', '.join(NEW_JOB)}")
    return given(options)
