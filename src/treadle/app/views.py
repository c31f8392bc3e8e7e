"""Events and records as plain data for --json, whose keys are stable, and a job's state in words."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from treadle.app.profile import Profile
from treadle.model import Event, Job
from treadle.model.records import ANY, Pause, Schedule


def standing(job: Job, now: datetime, profile: Profile) -> str:
    """Where a job stands, for people, with the reason of a final state: the profile's word, else ours.

    Of ours a final state is the word that --state knows, any other is said more precisely.
    """
    return f"{short_standing(job, now, profile)} ({job.reason})" if job.reason else short_standing(job, now, profile)


def short_standing(job: Job, now: datetime, profile: Profile) -> str:
    """The same without the reason."""
    label = job.label(now)
    return profile.word(label) if profile.states or job.state.final else label


def event_as_dict(event: Event) -> dict[str, Any]:
    return {
        "revision": event.revision,
        "at": event.at.isoformat(),
        "kind": event.kind.value,
        "actor": event.actor,
        "note": event.note,
    }


def schedule_as_dict(schedule: Schedule) -> dict[str, Any]:
    return {"id": schedule.id, **as_dict(schedule), "declared": schedule.declared is not None}


def pause_as_dict(pause: Pause) -> dict[str, Any]:
    scope = {field: None if name == ANY else name for field, name in zip(Pause._fields[:3], pause[:3], strict=True)}
    return {**as_dict(pause), **scope, "scope": pause.scope}


def as_dict(record: NamedTuple) -> dict[str, Any]:
    """A record under its own names; plain data, times are ISO 8601 in UTC."""
    return {name: _plain(value) for name, value in record._asdict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "_asdict"):
        return as_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | list) else value
