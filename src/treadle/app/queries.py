"""Lists and counts of jobs by a profile's words."""

from datetime import datetime

from treadle.app.profile import LABELS, Meaning
from treadle.engines.contract import JobStore
from treadle.engines.values import JobFilter, Page
from treadle.model import State

LARGEST_PAGE = 500


def find(engine: JobStore, where: JobFilter, meaning: Meaning, *, limit: int, cursor: str | None) -> Page:
    """The next jobs of one of these states, in the order of `meaning`; no page is empty but the last.

    Of a word that is narrower than a state a page may be short: the rest of what the engine gave was something else.
    """
    states, now = list(meaning), engine.now()
    name, _, rest = (cursor or f"{states[0]}/").partition("/")
    place, at = states.index(State(name)), rest or None
    while True:
        state = states[place]
        page = engine.find(_only(where, state), limit=limit, cursor=at)
        jobs, at = [job for job in page.jobs if job.label(now) in meaning[state]], page.cursor
        if at is None:
            place += 1
        if place == len(states):
            return Page(jobs, None)
        if jobs:
            return Page(jobs, f"{states[place]}/{at or ''}")


def count(engine: JobStore, where: JobFilter, meaning: Meaning) -> dict[State, int]:
    """How many jobs there are of each of these states; one that a word means only a part of is read job by job."""
    stored, now = engine.count(where), engine.now()
    return {
        state: stored.get(state, 0) if labels == LABELS[state] else _walked(engine, where, state, labels, now)
        for state, labels in meaning.items()
    }


def _walked(engine: JobStore, where: JobFilter, state: State, labels: tuple[str, ...], now: datetime) -> int:
    number, cursor = 0, None
    while True:
        page = engine.find(_only(where, state), limit=LARGEST_PAGE, cursor=cursor)
        number += sum(job.label(now) in labels for job in page.jobs)
        if (cursor := page.cursor) is None:
            return number


def _only(where: JobFilter, state: State) -> JobFilter:
    return JobFilter(state, *where[1:])
