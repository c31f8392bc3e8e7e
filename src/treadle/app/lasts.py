"""What became of schedules lately: the last job of each, and by which event one came to be off."""

from collections.abc import Sequence

from treadle.app.treadle import Treadle
from treadle.model import Event, EventKind, Job
from treadle.model.records import Schedule, subject_of_schedule

SWITCHES = (EventKind.DISABLED, EventKind.CREATED, EventKind.CHANGED)
MOST_EVENTS = 20  # that are looked at


def last_jobs(app: Treadle, schedules: Sequence[Schedule]) -> dict[str, Job]:
    """The last jobs of all of these, as far as they are kept, by id; read at once."""
    ids = [schedule.last_job for schedule in schedules if schedule.last_job is not None]
    return {job.id: job for job in (app.engine.get(ids) if ids else ()) if job is not None}


def last_switch(app: Treadle, schedule: Schedule) -> Event | None:
    """The event by which a schedule came to be off, if it is among its latest."""
    events = app.engine.events(subject_of_schedule(schedule.tenant, schedule.name), latest=MOST_EVENTS)
    found = [event for event in events if event.tenant == schedule.tenant and event.kind in SWITCHES]
    return found[-1] if found else None
