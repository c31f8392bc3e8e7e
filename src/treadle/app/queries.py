"""Which jobs are meant: by state or a profile's word, task, queue, tenant, key, error and time; found page by page."""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.app.profile import LABELS, Meaning
from treadle.engines.contract import JobStore
from treadle.engines.values import LISTED, JobFilter, Page
from treadle.errors import InvalidJob, JobNotFound
from treadle.model import Job, State

LARGEST_PAGE = 500  # that may be asked for
BATCH_SIZE = 500  # jobs that are read at a time
FEWEST_DIGITS = 4  # of an id
MOST_CANDIDATES = 5  # ids that an error names
MOST_READ = 10_000  # jobs that one page may read until it is full

_HEX = re.compile(f"[0-9a-f]{{{FEWEST_DIGITS},32}}")


class Selection(NamedTuple):
    """A filter, and what no engine filters by: labels within a state, the type of the last error, and the time.

    The time is that of a job's end, or, of one that has not ended, when it was stored.
    """

    where: JobFilter
    meaning: Meaning | None = None  # None: whatever their state, the newest first
    error: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def states(self) -> list[State | None]:
        return [None] if self.meaning is None else list(self.meaning)

    @property
    def whole(self) -> bool:
        """Whether the engine's filter says it all."""
        labels = (self.meaning or {}).items()
        return self[2:] == (None, None, None) and all(LABELS[state] == own for state, own in labels)

    def of(self, state: State | None) -> JobFilter:
        """The part of it that an engine filters by."""
        return JobFilter(state, *self.where[1:])

    def fits(self, job: Job, now: datetime) -> bool:
        """Whether a job that the engine found is meant."""
        at = job.finished_at or job.created_at
        return (
            (self.meaning is None or job.label(now) in self.meaning[job.state])
            and (self.error is None or (job.error is not None and _is_error(job.error.type, self.error)))
            and (self.since is None or at >= self.since)
            and (self.before is None or at < self.before)
        )

    def means(self, job: Job, now: datetime) -> bool:
        """Whether a job is meant, whoever found it: by what an engine filters by, and by the rest."""
        wanted = zip(self.where[1:], (job.task, job.queue, job.tenant, job.key), strict=True)
        states = self.meaning is None or job.state in self.meaning
        return states and all(one in (None, there) for one, there in wanted) and self.fits(job, now)

    def passed(self, state: State | None, jobs: Sequence[Job]) -> bool:
        """Whether no job after these can be meant: those that failed or were cancelled come by their ends."""
        end = jobs[-1].finished_at if jobs and state in LISTED else None
        return self.since is not None and end is not None and end < self.since


def find(engine: JobStore, wanted: Selection, *, limit: int, cursor: str | None) -> Page:
    """The next jobs, state after state in the order of the meaning; a page is full, or the last one.

    Where most jobs are something else, a page may come short after MOST_READ of them; it is empty only at the end.
    """
    states, now = wanted.states, engine.now()
    name, _, rest = (cursor or f"{states[0] or ''}/").partition("/")
    place, at = states.index(State(name) if name else None), rest or None
    found: list[Job] = []
    read = 0
    while place < len(states):
        state = states[place]
        page, fitting = _part(engine, wanted, state, at, limit - len(found), now)
        found, read, at = found + fitting, read + len(page.jobs), page.cursor
        if at is None or wanted.passed(state, page.jobs):
            place, at = place + 1, None
        if place < len(states) and (len(found) == limit or (found and read >= MOST_READ)):
            return Page(found, f"{states[place] or ''}/{at or ''}")
    return Page(found, None)


def _part(
    engine: JobStore, wanted: Selection, state: State | None, cursor: str | None, room: int, now: datetime
) -> tuple[Page, list[Job]]:
    """A page of an engine, and those of its jobs that are meant; cut where there is no more room."""
    size = room if wanted.whole else BATCH_SIZE
    while True:
        page = engine.find(wanted.of(state), limit=size, cursor=cursor)
        places = [place for place, job in enumerate(page.jobs) if wanted.fits(job, now)]
        if len(places) <= room:
            return page, [page.jobs[place] for place in places]
        size = places[room - 1] + 1


def walk(engine: JobStore, wanted: Selection) -> Iterator[list[Job]]:
    """All jobs that are meant, in batches; those that leave a state meanwhile disturb nothing."""
    now = engine.now()
    for state in wanted.states:
        cursor = None
        while True:
            page = engine.find(wanted.of(state), limit=BATCH_SIZE, cursor=cursor)
            if fitting := [job for job in page.jobs if wanted.fits(job, now)]:
                yield fitting
            if (cursor := page.cursor) is None or wanted.passed(state, page.jobs):
                break


def count(engine: JobStore, wanted: Selection) -> dict[State, int]:
    """How many jobs are meant, by state; what the engine cannot count is read job by job."""
    parts = {state: wanted._replace(meaning={state: labels}) for state, labels in (wanted.meaning or LABELS).items()}
    stored = engine.count(wanted.where) if any(part.whole for part in parts.values()) else {}
    return {
        state: stored.get(state, 0) if part.whole else sum(map(len, walk(engine, part)))
        for state, part in parts.items()
    }


def resolve_id(engine: JobStore, prefix: str, tenant: str | None, queues: Collection[str] | None = None) -> str:
    """The id of the one job that begins so, dashes or not; maybe only one tenant's, or one on these queues.

    A whole id is not looked for.
    """
    meant = _id_range(prefix)
    if meant is None:
        raise InvalidJob(
            "id", f"{prefix!r} is not a job id (a UUID), nor the first {FEWEST_DIGITS} digits or more of one"
        )
    low, high = meant
    if low == high:
        return low
    ids = [job.id for job in find_by_prefix(engine, prefix, tenant, limit=MOST_CANDIDATES + 1, queues=queues)]
    if not ids:
        raise JobNotFound(str(prefix))
    if len(ids) > 1:
        more = " and others" if len(ids) > MOST_CANDIDATES else ""
        raise InvalidJob(
            "id", f"{prefix!r} fits several jobs: {', '.join(ids[:MOST_CANDIDATES])}{more}; give more digits"
        )
    return ids[0]


def find_by_prefix(
    engine: JobStore, prefix: str, tenant: str | None, *, limit: int, queues: Collection[str] | None = None
) -> list[Job]:
    """The newest jobs whose ids begin so, dashes or not; none where these are not the digits of an id."""
    meant = _id_range(prefix)
    if meant is None:
        return []
    low, high = meant
    if low == high:
        return [job for job in engine.get([low]) if job is not None and tenant in (None, job.tenant)]
    found: list[Job] = []
    for queue in [None] if queues is None else queues:
        found += engine.find(JobFilter(queue=queue, tenant=tenant), limit=limit, cursor=_next_id(high)).jobs
    return sorted((job for job in found if job.id >= low), key=lambda job: job.id, reverse=True)[:limit]


def _id_range(prefix: str) -> tuple[str, str] | None:
    """The lowest and the highest id that begin so; None if no id does."""
    digits = str(prefix).lower().replace("-", "")
    if not _HEX.fullmatch(digits):
        return None
    return _dashed(digits.ljust(32, "0")), _dashed(digits.ljust(32, "f"))


def _next_id(id: str) -> str | None:
    """The id right above: a page begins below its cursor, and this one shall be on it. None if there is none above."""
    number = int(id.replace("-", ""), 16) + 1
    return _dashed(f"{number:032x}") if number < 1 << 128 else None


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _is_error(stored: str, wanted: str) -> bool:
    """A type by its whole name, or by its last part: ValueError, httpx.ReadTimeout, ReadTimeout."""
    return stored == wanted or stored.rpartition(".")[2] == wanted
