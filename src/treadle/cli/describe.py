"""Jobs and events as plain data for --json, whose keys are stable, and a job's state in words."""

from datetime import datetime
from typing import Any

from treadle.model import Event, Job

_HIDDEN = {"payload_json", "result_json", "lease_token", "retry", "error", "progress"}


def job_as_dict(job: Job, now: datetime) -> dict[str, Any]:
    """Every field of a job but its fencing token; times are ISO 8601 in UTC."""
    fields = {name: _plain(value) for name, value in job._asdict().items() if name not in _HIDDEN}
    return {
        **fields,
        "label": job.label(now),
        "max_attempts": job.max_attempts,
        "payload": job.payload,
        "result": job.result,
        "retry": job.retry._asdict(),
        "error": job.error and job.error._asdict(),
        "progress": job.progress and job.progress._asdict(),
    }


def standing(job: Job, now: datetime) -> str:
    """Where a job stands, for people: a final state is the word that --state knows, with its reason."""
    if job.state.final:
        return f"{job.state} ({job.reason})" if job.reason else job.state.value
    return job.label(now)


def event_as_dict(event: Event) -> dict[str, Any]:
    return {
        "revision": event.revision,
        "at": event.at.isoformat(),
        "what": event.what.value,
        "actor": event.actor,
        "note": event.note,
    }


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
