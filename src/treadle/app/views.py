"""Events and records as plain data, whose keys are stable, for --json and other surfaces; a job's state in words."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from treadle import __version__
from treadle.app.audit import AuditReport
from treadle.app.profile import OF_A_SCHEDULE, Profile
from treadle.app.queries import JobPage
from treadle.model import Event, Job, State
from treadle.model.attempts import attempts_of
from treadle.model.records import ANY, ApiToken, Drain, Pause, Schedule, WorkerInfo

if TYPE_CHECKING:
    from treadle.app.budgets import DayOfBudgets
    from treadle.app.failures import Failures
    from treadle.app.follow import FollowedEvent
    from treadle.app.settings import Settings
    from treadle.app.status import Status
    from treadle.app.treadle import Treadle
    from treadle.schedules.cron import Tick
    from treadle.tasks.task import Task


def standing(job: Job, now: datetime, profile: Profile) -> str:
    """Where a job stands, for people, with the reason of a final state: the profile's word, else ours.

    Without a profile: final states by their state, others by their label.
    """
    return f"{short_standing(job, now, profile)} ({job.reason})" if job.reason else short_standing(job, now, profile)


def short_standing(job: Job, now: datetime, profile: Profile) -> str:
    """The same without the reason."""
    label = job.label(now)
    return profile.word(label) if profile.states or job.state.final else label


def event_view(event: Event) -> dict[str, Any]:
    """An event of a job that the reader knows."""
    return {
        "revision": event.revision,
        "at": event.at.isoformat(),
        "kind": event.kind.value,
        "actor": event.actor,
        "note": event.note,
    }


def attempts_view(job: Job, events: Sequence[Event], *, latest: int | None = None) -> list[dict[str, Any]]:
    """The attempts of a job, as far as it and its events tell; what is not kept is null, and `complete` false.

    With `latest`, the events are the last so many, and so are the attempts.
    """
    return [record_view(attempt) for attempt in attempts_of(job, events, latest=latest)]


def failures_view(found: "Failures") -> dict[str, Any]:
    view = record_view(found)
    return {"failures": view.pop("groups"), **view}


class JobViewer(Protocol):
    """Whoever tells of jobs: an app, one caller of the server, a server elsewhere."""

    def views(self, jobs: Iterable[Job]) -> list[dict[str, Any]]: ...


def page_view(app: JobViewer, page: JobPage) -> dict[str, Any]:
    """A page of jobs; `looked` and `back_to` say how far it has looked for them."""
    back_to = page.back_to and page.back_to.isoformat()
    return {
        "jobs": app.views(page.jobs),
        "cursor": page.cursor,
        "looked": page.looked,
        "back_to": back_to,
    }


def trail_view(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events of many jobs, each with its job and tenant."""
    return [{"job": event.job_id, "tenant": event.tenant, **event_view(event)} for event in events]


def followed_view(followed: "FollowedEvent") -> dict[str, Any]:
    """An event that was followed, with the task and queue of its job."""
    [view] = trail_view([followed.event])
    return {**view, "task": followed.task, "queue": followed.queue}


def report_view(report: AuditReport) -> dict[str, Any]:
    return {"sound": report.sound, **record_view(report)}


def schedule_view(schedule: Schedule, profile: Profile) -> dict[str, Any]:
    """A schedule as the profile prints it, or under our own names."""
    facts = {
        "id": schedule.id,
        **record_view(schedule),
        "declared": schedule.declared is not None,
        "declared_in": schedule.declared_in or None,
        "gone": schedule.gone,
    }
    if profile.schedules is None:
        return {name: facts[name] for name in OF_A_SCHEDULE}
    return {name: facts[ours] for name, ours in profile.schedules.items()}


def tick_view(tick: "Tick") -> dict[str, str]:
    """One run of a schedule to come."""
    return {"at": tick.at.isoformat(), "local": tick.local.isoformat(), "note": tick.note}


def pause_view(pause: Pause) -> dict[str, Any]:
    scope = {field: None if name == ANY else name for field, name in zip(Pause._fields[:3], pause[:3], strict=True)}
    return {**record_view(pause), **scope, "scope": pause.scope}


def budgets_view(found: "DayOfBudgets") -> dict[str, Any]:
    """The budgets of a day, each with the pause of its tenant."""
    tenants = [{**record_view(one), "pause": one.pause and pause_view(one.pause)} for one in found.tenants]
    return {"budgets": tenants, "at": found.at.isoformat(), "day": found.day.isoformat(), "others": found.others}


def worker_view(worker: WorkerInfo) -> dict[str, Any]:
    """A worker: `running` are its busy slots, `waiting` the jobs it holds beyond them."""
    tasks = {name: worker.tasks[name] for name in worker.task_names}
    facts = {"running": worker.busy, "waiting": worker.waiting, "version": worker.version, "memory": worker.memory}
    return {**record_view(worker), "tasks": tasks, **facts}


def crew_view(workers: Iterable[WorkerInfo], drains: Iterable[Drain], now: datetime) -> list[dict[str, Any]]:
    """Workers as a list of them shows each: whether it is `silent`, and who has asked it to stop (`drain`)."""
    asked = {(drain.name, drain.since): drain for drain in drains}
    return [
        {
            **worker_view(worker),
            "silent": not worker.alive(now),
            "drain": record_view(drain) if (drain := asked.get((worker.name, worker.started_at))) else None,
        }
        for worker in workers
    ]


def task_view(task: "Task[..., Any]") -> dict[str, Any]:
    """A task: what its jobs are given unless somebody says otherwise, and the JSON Schema of its payload."""
    options = task.options
    return {
        "name": task.name,
        "queue": options.queue,
        "priority": options.priority,
        "retry": options.retry._asdict(),
        "timeout": options.timeout,
        "version": options.version,
        "isolated": options.isolated,
        "payload_schema": task.payload.json_schema(),
    }


def token_view(token: ApiToken) -> dict[str, Any]:
    """A token of the API, without its hash."""
    return {name: value for name, value in record_view(token).items() if name != "hash"}


def status_view(status: "Status") -> dict[str, Any]:
    return {
        "ok": not status.problems,
        "at": status.at.isoformat(),
        "problems": list(status.problems),
        "total": record_view(status.total),
        "queues": [record_view(group) for group in status.queues],
        "tasks": [record_view(group) for group in status.tasks],
        "errors": [record_view(error) for error in status.errors],
        "rate": status.rate,
        "more": [state.value for state in status.more],
        "pauses": [pause_view(pause) for pause in status.pauses],
        "workers": [worker_view(worker) for worker in status.workers],
    }


def about_view(app: "Treadle") -> dict[str, Any]:
    """Which treadle this is, the time of its store, and the words it has for jobs."""
    words = {name: getattr(app.profile, name) for name in ("states", "fields", "empty", "schedules")}
    return {"version": __version__, "now": app.engine.now().isoformat(), "profile": words}


def kept_view(settings: "Settings") -> dict[str, float | None]:
    """For how many seconds finished jobs and audit events are kept, by what they are; None: for ever."""
    keep = settings.keep
    ages = {
        **{state.value: keep.states.get(state) for state in (State.SUCCEEDED, State.CANCELLED, State.FAILED)},
        **{f"{task} {state}": age for task, kept in keep.tasks.items() for state, age in kept.items()},
        "audit events": settings.audit_retention,
    }
    return {what: None if age is None else age.total_seconds() for what, age in ages.items()}


def record_view(record: NamedTuple) -> dict[str, Any]:
    """A record under its own names; plain data, times are ISO 8601 in UTC."""
    return {name: _plain(value) for name, value in record._asdict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "_asdict"):
        return record_view(value)
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
