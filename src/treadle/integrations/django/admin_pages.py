"""What the pages of the admin show: plain values, read from the app."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from treadle.app.queries import find_by_prefix
from treadle.integrations.django import app
from treadle.model import Job, State
from treadle.model.records import ANY, Pause

PAGE = 50  # jobs
FILTERS = ("state", "task", "queue")


class JobRow(NamedTuple):
    """A line of the list."""

    job: Job
    label: str

    @property
    def error(self) -> str:
        """What went wrong last, short enough for a line."""
        error = self.job.error
        return "" if error is None else f"{error.type.rpartition('.')[2]}: {error.message}"[:120]


class Choice(NamedTuple):
    """One value of a filter, and where it leads."""

    name: str
    query: str
    selected: bool


class JobList:
    """A page of the list: which jobs the query string asks for, and what else one may ask for."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.query = {name: query[name] for name in FILTERS if query.get(name)}
        self.search = query.get("q", "").strip()
        self.cursor = query.get("cursor") or None
        self.rows: list[JobRow] = []
        self.next = ""  # the query string of the next page
        self.more = False  # a search found more than a page
        self.looked = 0  # jobs among which there is none with this key, if there are more

    def read(self) -> None:
        """Read the jobs; by key, id or the first digits of one, if that is searched for."""
        if self.search:
            found, cursor = self._found(), None
            jobs, self.more = found[:PAGE], len(found) > PAGE
        else:
            jobs, cursor = app.find(**self.query, limit=PAGE, cursor=self.cursor)
        now = app.engine.now()
        self.rows = [JobRow(app.masked(job), job.label(now)) for job in jobs]
        self.next = self._link(cursor=cursor) if cursor else ""

    def _found(self) -> list[Job]:
        """One job more than a page has, if there are so many; keys come first, because they fit as a whole."""
        by_key = app.find(key=self.search, limit=PAGE + 1)
        self.looked = by_key.looked if by_key.cursor and not by_key.jobs else 0
        by_id = find_by_prefix(app.engine, self.search, None, limit=PAGE + 1)
        return list({job.id: job for job in (*by_key.jobs, *by_id)}.values())

    @property
    def first(self) -> str:
        """The query string of the first page."""
        return self._link()

    @property
    def filters(self) -> Iterator[tuple[str, list[Choice]]]:
        """Each filter with its choices."""
        tasks = sorted({*app.tasks, *(row.job.task for row in self.rows)})
        values = {"state": [state.value for state in State], "task": tasks, "queue": known_queues()}
        for name, found in values.items():
            chosen = self.query.get(name)
            every = Choice("All", self._link(**{name: ""}), chosen is None)
            yield name, [every, *(Choice(one, self._link(**{name: one}), one == chosen) for one in found)]

    def _link(self, **changes: str) -> str:
        wanted = {**self.query, **changes}
        return "?" + urlencode({name: value for name, value in wanted.items() if value})


class QueueRow(NamedTuple):
    """A queue: how many jobs it has by state, and its pause."""

    name: str
    pending: int
    running: int
    failed: int
    pause: Pause | None


def known_queues() -> list[str]:
    """The queues that the code, the settings, a pause or a worker names."""
    named = {task.options.queue for task in app.tasks.values()} | set(app.settings.queues)
    named |= {pause.queue for pause in app.pauses() if pause.queue != ANY}
    return sorted(named.union(*(worker.queues for worker in app.workers())))


def queue_rows() -> tuple[list[QueueRow], list[Pause]]:
    """Every queue; and the pauses that are of something else than a queue."""
    pauses = app.pauses()
    whole = {pause.queue: pause for pause in pauses if pause.queue != ANY and (pause.tenant, pause.task) == (ANY, ANY)}
    rows = []
    for name in known_queues():
        has = app.count(queue=name)
        rows.append(QueueRow(name, has[State.PENDING], has[State.RUNNING], has[State.FAILED], whole.get(name)))
    return rows, [pause for pause in pauses if pause not in whole.values()]


def facts_of(job: Job) -> Iterator[tuple[str, Any]]:
    """The fields of a job that say something, under the names that people read."""
    yield "Id", job.id
    yield "Queue", f"{job.queue}, lane {job.lane}" if job.lane else job.queue
    yield "Priority", job.priority
    yield "Attempts", f"{job.attempt}; {job.failures} of {job.max_attempts} failed"
    optional = {
        "Tenant": None if job.tenant == "default" else job.tenant,
        "Key": job.key,
        "Schedule": job.schedule,
        "Timeout": None if job.timeout is None else f"{job.timeout:g} s",
        "Reason": job.reason,
        "Worker": job.worker,
        "Progress": None if job.progress is None else f"{job.progress.fraction:.0%} {job.progress.note}".strip(),
    }
    times = {
        "Enqueued": job.created_at,
        "Due": job.due_at if job.due_at > job.created_at else None,
        "Expires": job.expires_at,
        "Started": job.started_at,
        "Finished": job.finished_at,
    }
    yield from ((name, value) for name, value in {**optional, **times}.items() if value is not None)
