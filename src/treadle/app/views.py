"""Events and records as plain data, whose keys are stable, for --json and other surfaces; a job's state in words."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.app.audit import AuditReport
from treadle.app.profile import Profile
from treadle.model import Event, Job, State
from treadle.model.records import ANY, ApiToken, Pause, Schedule, WorkerInfo

if TYPE_CHECKING:
    from treadle.app.settings import Settings
    from treadle.app.status import Status
    from treadle.schedules.cron import Tick


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


def trail_view(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events of many jobs, each with its job and tenant."""
    return [{"job": event.job_id, "tenant": event.tenant, **event_view(event)} for event in events]


def report_view(report: AuditReport) -> dict[str, Any]:
    return {"sound": report.sound, **record_view(report), "tenants": [record_view(found) for found in report.tenants]}


def schedule_view(schedule: Schedule) -> dict[str, Any]:
    declared = schedule.declared is not None
    return {"id": schedule.id, **record_view(schedule), "declared": declared, "gone": schedule.gone}


def tick_view(tick: "Tick") -> dict[str, str]:
    """One run of a schedule to come."""
    return {"at": tick.at.isoformat(), "local": tick.local.isoformat(), "note": tick.note}


def pause_view(pause: Pause) -> dict[str, Any]:
    scope = {field: None if name == ANY else name for field, name in zip(Pause._fields[:3], pause[:3], strict=True)}
    return {**record_view(pause), **scope, "scope": pause.scope}


def worker_view(worker: WorkerInfo) -> dict[str, Any]:
    """A worker: `running` are its busy slots, `waiting` the jobs it holds beyond them."""
    return {**record_view(worker), "running": worker.busy, "waiting": worker.waiting}


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
    return list(value) if isinstance(value, tuple | list) else value
