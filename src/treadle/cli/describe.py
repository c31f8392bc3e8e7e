"""Events as plain data for --json, whose keys are stable, and a job's state in words."""

from datetime import datetime
from typing import Any

from treadle.model import Event, Job
from treadle.profile import Profile


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
        "what": event.what.value,
        "actor": event.actor,
        "note": event.note,
    }
