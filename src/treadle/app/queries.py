"""Which jobs are meant: by state or a profile's word, task, queue, lane, error, text and time; found page by page."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple

from treadle.app.profile import LABELS, Meaning
from treadle.engines.contract import JobStore, RecordStore
from treadle.engines.values import LISTED, Count, JobFilter, LookedPage, Page
from treadle.errors import InvalidInput, InvalidJob, JobNotFound
from treadle.model import Job, State
from treadle.model.records import Schedule

BY_END = LISTED  # states whose lists are in the order in which jobs ended
LARGEST_PAGE = 500  # that may be asked for
BATCH_SIZE = 500  # jobs that are read at a time
FIRST_BATCH = 50  # jobs that are read at first: nobody knows yet how large they are
MOST_BYTES = 16_000_000  # of payloads and results that a page holds, and about as many are read at a time
FEWEST_DIGITS = 4  # of an id
MOST_CANDIDATES = 5  # ids that an error names
MOST_READ = 10_000  # jobs that one page may read until it is full
MOST_COUNTED = 50_000  # jobs of a state that a surface counts one by one

_EXPIRED: dict[tuple[str, ...] | None, bool] = {("cancelled",): False, ("expired",): True}
"""By which labels of cancelled jobs are meant, what an engine is asked for."""

_HEX = re.compile(f"[0-9a-f]{{{FEWEST_DIGITS},32}}")


class JobPage(LookedPage):
    """A page, and how far it looked for jobs that no store finds by itself: how many it read, and back to when."""


class Selection(NamedTuple):
    """A filter, and what no engine filters by: labels within a state, the last error, the time, a text in the payload.

    The time is that of a job's end, or, of one that has not ended, when it was stored.
    """

    where: JobFilter
    meaning: Meaning | None = None  # None: whatever their state, the newest first
    error: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    fingerprint: str | None = None
    text: str | None = None
    masked: Callable[[Job], Job] | None = None  # with a text: the job as whoever asks may see it

    @property
    def states(self) -> list[State | None]:
        return [None] if self.meaning is None else list(self.meaning)

    @property
    def whole(self) -> bool:
        """Whether the engine's filter says it all."""
        labels = (self.meaning or {}).items()
        return self[2:] == (None,) * 6 and all(
            LABELS[state] == own or self.of(state).expired is not None for state, own in labels
        )

    @property
    def labelled(self) -> bool:
        """Whether it says nothing but labels of pending jobs beside what the engine filters by."""
        return self[2:] == (None,) * 6 and self.meaning is not None and set(self.meaning) == {State.PENDING}

    def of(self, state: State | None) -> JobFilter:
        """The part of it that an engine filters by."""
        labels = (self.meaning or {}).get(state) if state is State.CANCELLED else None
        return self.where._replace(state=state, expired=_EXPIRED.get(labels))

    def fits(self, job: Job, now: datetime) -> bool:
        """Whether a job that the engine found is meant."""
        at = job.finished_at or job.created_at
        return (
            (self.meaning is None or job.label(now) in self.meaning[job.state])
            and (self.since is None or at >= self.since)
            and (self.before is None or at < self.before)
            and self._fits_error(job)
            and (self.text is None or self.text.casefold() in self._shown(job).payload_json.casefold())
        )

    def _shown(self, job: Job) -> Job:
        """The job in which a text is looked for: who may not see a secret cannot guess it letter by letter."""
        return job if self.masked is None else self.masked(job)

    def _fits_error(self, job: Job) -> bool:
        if job.error is None:
            return self.error is None and self.fingerprint is None
        named = self.error is None or _is_error(job.error.type, self.error)
        if not named or self.fingerprint is None:
            return named
        from treadle.model.fingerprint import fingerprint  # noqa: PLC0415 - only operators ask

        return fingerprint(job.error) == self.fingerprint

    def means(self, job: Job, now: datetime) -> bool:
        """Whether a job is meant, whoever found it: by what an engine filters by, and by the rest."""
        wanted = zip(self.where[1:6], (job.task, job.queue, job.tenant, job.key, job.lane), strict=True)
        states = self.meaning is None or job.state in self.meaning
        return states and all(one in (None, there) for one, there in wanted) and self.fits(job, now)

    def passed(self, state: State | None, jobs: Sequence[Job]) -> bool:
        """Whether no job after these can be meant: those that failed or were cancelled come by their ends."""
        end = jobs[-1].finished_at if jobs and state in LISTED else None
        return self.since is not None and end is not None and end < self.since


@contextmanager
def cursor_errors(cursor: str | None) -> Iterator[None]:
    """InvalidJob for a cursor that some engine cannot read."""
    problem = InvalidJob("cursor", f"{cursor!r:.100} is not a valid cursor; take it from the page before")
    if not isinstance(cursor, str | None):
        raise problem
    try:
        yield
    except InvalidInput:
        raise
    except (ValueError, IndexError, OverflowError):
        if cursor is None:
            raise
        raise problem from None


def find(engine: JobStore, wanted: Selection, *, limit: int, cursor: str | None) -> JobPage:
    """The next jobs, state after state in the order of the meaning; a page is full, or the last one.

    Where most jobs are something else, a page may come short after MOST_READ of them, or even empty. So may one of a
    store that looks for these jobs one by one. A page of large jobs comes short after MOST_BYTES.
    """
    states, now = wanted.states, engine.now()
    name, _, rest = (cursor or f"{states[0] or ''}/").partition("/")
    place, at = states.index(State(name) if name else None), rest or None
    found: list[Job] = []
    read, room, size, back_to = 0, MOST_BYTES, FIRST_BATCH, None
    while place < len(states):
        state = states[place]
        size = min(size, limit - len(found) if wanted.whole else MOST_READ - read, BATCH_SIZE)
        page, fitting = _part(engine, wanted, state, at, size, (limit - len(found), room), now)
        found, read, at = found + fitting, read + _looked(page), page.cursor
        short = at is not None and len(page.jobs) < size  # the store itself has looked as far as it does for a page
        room, size = room - sum(map(_size, fitting)), _next_batch(page.jobs)
        back_to = _back_to(page) or back_to
        if at is None or wanted.passed(state, page.jobs):
            place, at = place + 1, None
        enough = len(found) == limit or read >= MOST_READ or room <= 0
        if place < len(states) and (enough or short):
            return JobPage(found, f"{states[place] or ''}/{at or ''}", read, back_to)
    return JobPage(found, None, read, back_to)


def _looked(page: Page) -> int:
    return page.looked if isinstance(page, LookedPage) else len(page.jobs)


def _back_to(page: Page) -> datetime | None:
    """When the last job that it looked at ended or was stored."""
    if isinstance(page, LookedPage) and page.back_to is not None:
        return page.back_to
    last = page.jobs[-1] if page.jobs else None
    return last and ((last.finished_at if last.state in LISTED else None) or last.created_at)


def _part(
    engine: JobStore,
    wanted: Selection,
    state: State | None,
    cursor: str | None,
    size: int,
    room: tuple[int, int],
    now: datetime,
) -> tuple[Page, list[Job]]:
    """A page of an engine, and those of its jobs that are meant; cut where there is no more room: jobs, and bytes."""
    while True:
        page = engine.find(wanted.of(state), limit=size, cursor=cursor)
        places = [place for place, job in enumerate(page.jobs) if wanted.fits(job, now)]
        sizes = accumulate(_size(page.jobs[place]) for place in places)
        kept = min(room[0], 1 + sum(held <= room[1] for held in sizes))  # the last one may be too large for it
        if len(places) <= kept:
            return page, [page.jobs[place] for place in places]
        size = places[kept - 1] + 1


def _size(job: Job) -> int:
    """How much it holds, in characters: near enough to bytes."""
    return len(job.payload_json) + len(job.result_json or "")


def _next_batch(jobs: Sequence[Job]) -> int:
    """How many jobs to read after these, so that they hold MOST_BYTES if they are as large."""
    held = sum(map(_size, jobs))
    return max(1, min(BATCH_SIZE, MOST_BYTES * len(jobs) // held)) if held else BATCH_SIZE


def walk(engine: JobStore, wanted: Selection) -> Iterator[list[Job]]:
    """All jobs that are meant, in batches; those that leave a state meanwhile disturb nothing."""
    now = engine.now()
    for state in wanted.states:
        cursor, size = None, min(FIRST_BATCH, BATCH_SIZE)
        while True:
            page = engine.find(wanted.of(state), limit=size, cursor=cursor)
            size = _next_batch(page.jobs)
            if fitting := [job for job in page.jobs if wanted.fits(job, now)]:
                yield fitting
            if (cursor := page.cursor) is None or wanted.passed(state, page.jobs):
                break


def count(engine: JobStore, wanted: Selection, *, limit: int | None = None) -> dict[State, Count]:
    """How many jobs are meant, by state; what the engine cannot count is read job by job, up to the limit."""
    parts = {state: wanted._replace(meaning={state: labels}) for state, labels in (wanted.meaning or LABELS).items()}
    asked = {state: part.of(state) for state, part in parts.items() if part.whole}
    together = [state for state, where in asked.items() if where.expired is None]
    stored: dict[State, Count] = {}
    if together:
        stored |= engine.count(wanted.of(together[0] if len(together) == 1 else None), limit=limit)
    for state in asked.keys() - together:
        stored |= {state: Count(0), **engine.count(asked[state], limit=limit)}
    return {
        state: stored.get(state, Count(0)) if part.whole else _part_count(engine, part, limit)
        for state, part in parts.items()
    }


def _part_count(engine: JobStore, wanted: Selection, limit: int | None) -> Count:
    """How many jobs of one state are meant; what is read job by job, up to the limit and MOST_READ."""
    if wanted.labelled:
        pending = engine.count(wanted.of(State.PENDING), limit=limit).get(State.PENDING, Count(0))
        return pending.of((wanted.meaning or {})[State.PENDING])
    if limit is None:
        return Count(sum(map(len, walk(engine, wanted))))
    number, looked, cursor = 0, 0, None
    while looked < min(limit, MOST_READ):
        page = find(engine, wanted, limit=BATCH_SIZE, cursor=cursor)
        number, looked, cursor = number + len(page.jobs), looked + page.looked, page.cursor
        if cursor is None:
            return Count(number)
    return Count(number, exact=False)


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
        cursor, here = _next_id(high), list[Job]()
        while True:
            page = engine.find(JobFilter(queue=queue, tenant=tenant), limit=limit, cursor=cursor)
            here, cursor = here + page.jobs, page.cursor
            if cursor is None or cursor <= low or len(here) >= limit:
                break
        found += here
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


def schedule_ids(engine: RecordStore, jobs: Sequence[Job]) -> dict[str, str]:
    """By job, the id of the schedule that made it; none where that is deleted, or a later one has its name."""
    made = {(job.tenant, job.schedule or "") for job in jobs if job.schedule is not None}
    return ids_by_job(jobs, {place: engine.records(Schedule, tenant=place[0], name=place[1]) for place in made})


def ids_by_job(jobs: Sequence[Job], found: Mapping[tuple[str, str], Iterable[Schedule]]) -> dict[str, str]:
    """The same of schedules that are `found` already, by tenant and name."""
    return {
        job.id: schedule.id
        for job in jobs
        for schedule in found.get((job.tenant, job.schedule or ""), ())
        if schedule.created_at <= job.created_at
    }


def _is_error(stored: str, wanted: str) -> bool:
    """A type by its whole name, or by its last part: ValueError, httpx.ReadTimeout, ReadTimeout."""
    return stored == wanted or stored.rpartition(".")[2] == wanted
