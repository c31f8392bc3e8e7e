"""The demo: 300 jobs, three worker processes, one of them killed in the middle, and nothing lost.

The story is told here; tasks.py has the tasks and the workers' main, crew.py starts and ends the workers,
show.py has what you see.
"""

import itertools
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from treadle.app.settings import Settings
from treadle.app.treadle import Treadle
from treadle.demo import tasks
from treadle.demo.crew import Crew
from treadle.demo.dashboard import Dashboard
from treadle.model import EventKind, Job, Reason, State
from treadle.tasks.task import Task

TICK = 0.1  # seconds between two looks at the store
PATIENCE = 60.0  # seconds until the demo gives up; on an idle machine it needs about ten
PACE = 0.5  # seconds between two jobs that are stored for the dashboard
ROUNDS = 4  # in which the kinds of jobs are stored, so that they mix


class Ending(StrEnum):
    """How a job of the demo ends; every one of them is planned."""

    SUCCEEDED = "succeeded"
    GAVE_UP = "gave_up"
    SPENT = "attempts_spent"
    CANCELLED_WAITING = "cancelled_waiting"
    CANCELLED_RUNNING = "cancelled_running"
    EXPIRED = "expired"

    @property
    def state(self) -> State:
        match self:
            case Ending.SUCCEEDED:
                return State.SUCCEEDED
            case Ending.GAVE_UP | Ending.SPENT:
                return State.FAILED
            case Ending.CANCELLED_WAITING | Ending.CANCELLED_RUNNING | Ending.EXPIRED:
                return State.CANCELLED


class Kind(NamedTuple):
    """Some jobs of one task that should all end alike."""

    task: Task[..., Any]
    calls: list[tuple[Any, ...]]
    ending: Ending = Ending.SUCCEEDED


class HeldJob(NamedTuple):
    """A job that the killed worker held, and where it ended."""

    id: str
    task: str
    killed_at_attempt: int
    attempt: int
    ended: str
    recovered_after: float | None  # seconds from the kill until another worker gave the job back to the queue


class Killed(NamedTuple):
    worker: str
    pid: int
    at: datetime
    held: Sequence[Job]


class Report(NamedTuple):
    """What the store says at the end, against what was expected; `problems` is empty when all is well."""

    seconds: float
    attempts: int
    expected: Mapping[str, int]
    found: Mapping[str, int]
    problems: Sequence[str]
    killed: Killed | None
    held: Sequence[HeldJob]
    waits: Mapping[str, float]  # seconds from the first claim of all to their own, on average: urgent, ordinary jobs
    url: str
    kept: bool
    example: str | None  # the id of a failed job, to look at

    @property
    def slowest(self) -> float | None:
        """Seconds from the kill to the last recovery."""
        return max((job.recovered_after for job in self.held if job.recovered_after is not None), default=None)


class Moment(NamedTuple):
    """What there is to see at one moment."""

    seconds: float
    jobs: Sequence[Job]
    crew: Crew
    expected: Mapping[str, Ending]

    def holding(self) -> Counter[str]:
        """How many jobs each worker holds."""
        return Counter(str(job.worker) for job in self.jobs if job.state is State.RUNNING)

    def done(self) -> bool:
        return all(job.state.final for job in self.jobs)


class Show(Protocol):
    """Somebody who shows the demo."""

    def tell(self, seconds: float, text: str) -> None: ...

    def link(self, text: str) -> None: ...

    def look(self, moment: Moment) -> None: ...


@contextmanager
def prepared(show: Show, *, keep: bool = False, serve: bool = False) -> Iterator["Play"]:
    """The demo in a directory of its own, ready to be played; with `keep` the directory is left there."""
    with _stage(keep) as folder:
        url = f"sqlite:///{folder}/demo.db"
        app = tasks.app
        app.settings = Settings.model_construct(url=url)  # defaults only: no file or variable of yours plays a part
        crew = Crew(folder, url)
        dashboard = Dashboard(folder, url) if serve else None
        try:
            yield Play(app, crew, show, dashboard)
        finally:
            with _undisturbed():
                if dashboard is not None:
                    dashboard.stop()
                crew.stop(timeout=0.0)
                app.close()


class Play:
    """The script: what is done when, and what is seen of it."""

    def __init__(self, app: Treadle, crew: Crew, show: Show, dashboard: Dashboard | None = None) -> None:
        self.app, self.crew, self.show, self.dashboard = app, crew, show, dashboard
        self.expected: dict[str, Ending] = {}
        self.killed: Killed | None = None
        self.recovered = False
        self.asked: str | None = None
        self.began = time.monotonic()

    def run(self, keep: bool) -> Report:
        self._look()
        self._store()
        if self.dashboard is not None:
            self.dashboard.start()
            self.show.link(f"the dashboard is at {self.dashboard.link}")
            self.dashboard.show()
        for _ in range(3):
            self.crew.start()
        pids = ", ".join(str(process.pid) for process in self.crew.processes.values())
        self._tell(f"started 3 workers (pids {pids}), {tasks.SLOTS} slots each, lease {tasks.LEASE:g} s")
        self._cancel_waiting()
        moment = self._look()
        while not moment.done() and moment.seconds < PATIENCE and not self.crew.missing():
            self._cancel_running(moment)
            self._kill(moment)
            self._notice_recovery(moment)
            time.sleep(TICK)
            moment = self._look()
        missing = [f"{name} ended by itself: {self.crew.words(name)}" for name in self.crew.missing()]
        self._tell("every job has ended" if moment.done() else next(iter(missing), "that took too long"))
        if self.dashboard is None or missing:
            self.crew.stop(timeout=5.0)
        return self._report(self._look(), missing, keep)

    def go_on(self) -> None:
        """Store a job now and then, until Ctrl-C: there is something to see in the dashboard."""
        try:
            self._store_for_ever()
        except KeyboardInterrupt:  # that is how it ends
            return

    def _store_for_ever(self) -> None:
        self.app.schedules.create("remind-ada", tasks.remind.name, {"who": "Ada"}, every="1m")
        self.app.schedules.create("morning-export", tasks.await_export.name, {"name": "sales"}, cron="0 7 * * mon-fri")
        for place in itertools.count():
            tasks.send_mail.enqueue(f"user{place}@example.org", spread(place, 0.1, 2.0))
            if place % 5 == 0:
                tasks.render_video.enqueue(f"clip{place}", spread(place, 5.0, 20.0))
            if place % 11 == 0:
                tasks.import_feed.enqueue(f"https://feeds.example/{place}")
            time.sleep(PACE)

    def _tell(self, text: str) -> None:
        self.show.tell(time.monotonic() - self.began, text)

    def _look(self) -> Moment:
        moment = Moment(time.monotonic() - self.began, everything(self.app), self.crew, self.expected)
        self.show.look(moment)
        return moment

    def _store(self) -> None:
        started, kinds = time.monotonic(), plan()
        for turn in range(ROUNDS):
            for kind in kinds:
                for receipt in kind.task.enqueue_many(kind.calls[turn::ROUNDS]):
                    self.expected[receipt.job.id] = kind.ending
        for urgent in tasks.alarm.enqueue_many([(f"door {n}",) for n in range(20)]):
            self.expected[urgent.job.id] = Ending.SUCCEEDED
        took = time.monotonic() - started
        self._tell(f"stored {len(self.expected)} jobs of {len(tasks.app.tasks)} tasks in {took:.2f} s, 20 urgent last")

    def _cancel_waiting(self) -> None:
        """Cancel what waits for later, by hand."""
        waiting = [id for id, ending in self.expected.items() if ending is Ending.CANCELLED_WAITING]
        for id in waiting:
            self.app.cancel(id, actor="demo", reason="shows a cancel before the start")
        self._tell(f"cancelled {len(waiting)} jobs that were due in an hour")

    def _cancel_running(self, moment: Moment) -> None:
        """Ask the one that would run for a minute to stop."""
        [watcher] = [job for job in moment.jobs if job.task == tasks.watch_folder.name]
        if self.asked is None and watcher.state is State.RUNNING:
            self.asked = str(watcher.worker)
            self.app.cancel(watcher.id, actor="demo", reason="shows a cancel while running")
            self._tell(f"asked a running job of {self.asked} to stop")

    def _kill(self, moment: Moment) -> None:
        """Kill the busiest worker once a third of the jobs has ended and the cancelled one is out of the way."""
        ended = sum(job.state.final for job in moment.jobs)
        stopped = all(job.state.final for job in moment.jobs if job.task == tasks.watch_folder.name)
        if self.killed is not None or not stopped or ended * 3 < len(moment.jobs):
            return
        [(name, holding)] = moment.holding().most_common(1) or [("", 0)]
        if holding < tasks.SLOTS // 2:
            return
        pid = self.crew.kill(name)
        at = self.app.engine.now()
        held = [job for job in everything(self.app) if job.state is State.RUNNING and job.worker == name]
        self.killed = Killed(name, pid, at, held)
        self._tell(f"killed {name} (pid {pid}, SIGKILL) holding {len(held)} jobs")
        new = self.crew.start()
        self._tell(f"started {new} (pid {self.crew.processes[new].pid}) in its place")

    def _notice_recovery(self, moment: Moment) -> None:
        killed = self.killed
        if killed is None or self.recovered or moment.holding()[killed.worker]:
            return
        self.recovered = True
        waited = (self.app.engine.now() - killed.at).total_seconds()
        self._tell(f"its leases ran out: all {len(killed.held)} jobs were found after {waited:.1f} s and run again")

    def _report(self, moment: Moment, missing: list[str], keep: bool) -> Report:
        jobs = {job.id: job for job in moment.jobs}
        held = [self._held(job, jobs.get(job.id)) for job in self.killed.held] if self.killed else []
        unplanned = [] if held else ["no worker was killed while it held jobs: the demo has shown too little"]
        return Report(
            seconds=moment.seconds,
            attempts=sum(job.attempt for job in moment.jobs),
            expected=Counter(self.expected.values()),
            found=Counter(ending(job) for job in moment.jobs),
            problems=[*missing, *problems(self.expected, moment.jobs), *unplanned],
            killed=self.killed,
            held=held,
            waits=waits(moment.jobs),
            url=self.app.settings.url,
            kept=keep,
            example=next((job.id for job in moment.jobs if job.state is State.FAILED), None),
        )

    def _held(self, before: Job, after: Job | None) -> HeldJob:
        crashes = [event.at for event in self.app.events(before.id) if event.kind is EventKind.CRASHED] if after else []
        recovered = (crashes[0] - self.killed.at).total_seconds() if crashes and self.killed else None
        attempt, ended = (after.attempt, ending(after)) if after else (before.attempt, "lost")
        return HeldJob(before.id, before.task, before.attempt, attempt, ended, recovered)


def plan() -> list[Kind]:
    """The jobs of the demo, beside the urgent ones, and how each should end."""
    later = tasks.remind.using(run_after="1h")
    return [
        Kind(tasks.send_mail, [(f"user{n}@example.org", spread(n, 0.1, 0.5)) for n in range(110)]),
        Kind(tasks.resize_image, [(f"photo{n}.jpg", spread(n, 0.2, 0.6)) for n in range(80)]),
        Kind(tasks.render_video, [(f"clip{n}", spread(n, 0.8, 1.2)) for n in range(24)]),
        *(Kind(tasks.remind.using(run_after=spread(n, 3.0, 6.0)), [(f"user{n}",)]) for n in range(12)),
        Kind(tasks.call_service, [(f"service{n}", 1 + n % 2) for n in range(16)]),
        Kind(tasks.await_export, [(f"export{n}",) for n in range(8)]),
        Kind(tasks.charge_card, [(f"{n:04}",) for n in range(8)], Ending.GAVE_UP),
        Kind(tasks.import_feed, [(f"https://feeds.example/{n}",) for n in range(6)], Ending.SPENT),
        Kind(tasks.watch_folder, [("/inbox",)], Ending.CANCELLED_RUNNING),
        Kind(later, [(f"user{n}",) for n in range(10)], Ending.CANCELLED_WAITING),
        Kind(tasks.remind.using(queue="unserved", expires_at="2s"), [(f"user{n}",) for n in range(5)], Ending.EXPIRED),
    ]


def ending(job: Job) -> str:
    """How the job ended, in the words of Ending; its state if it has not ended, or not in a way the demo knows."""
    match job.state, job.reason:
        case State.SUCCEEDED, _:
            return Ending.SUCCEEDED
        case State.FAILED, Reason.PERMANENT:
            return Ending.GAVE_UP
        case State.FAILED, Reason.EXHAUSTED:
            return Ending.SPENT
        case State.CANCELLED, Reason.BY_REQUEST:
            return Ending.CANCELLED_RUNNING if job.attempt else Ending.CANCELLED_WAITING
        case State.CANCELLED, Reason.EXPIRED:
            return Ending.EXPIRED
        case state, None:
            return state.value
        case state, reason:
            return f"{state} ({reason})"


def problems(expected: Mapping[str, Ending], jobs: Sequence[Job]) -> list[str]:
    """What differs between the jobs that were stored and those in the store at the end; empty when all is well."""
    found = {job.id: job for job in jobs}
    lost = [id for id in expected if id not in found]
    unknown = [id for id in found if id not in expected]
    wrong = [
        f"job {id} ({found[id].task}) should have ended {wanted} but is {ending(found[id])}"
        for id, wanted in expected.items()
        if id in found and ending(found[id]) != wanted
    ]
    problems_found = [f"{len(lost)} jobs are lost: {', '.join(lost[:3])}"] if lost else []
    problems_found += [f"{len(unknown)} jobs appeared that nobody stored: {', '.join(unknown[:3])}"] if unknown else []
    return problems_found + wrong[:5] + ([f"and {len(wrong) - 5} more like that"] if len(wrong) > 5 else [])


def waits(jobs: Sequence[Job]) -> dict[str, float]:
    """Seconds from the first claim of all to their own, on average, of urgent and of ordinary jobs."""
    claimed = {job.id: job.claimed_at for job in jobs if job.claimed_at is not None and job.attempt == 1}
    first = min(claimed.values(), default=None)
    kinds = {"urgent": (tasks.alarm.name,), "ordinary": (tasks.send_mail.name, tasks.resize_image.name)}
    times = {
        kind: [(claimed[job.id] - first).total_seconds() for job in jobs if job.task in names and job.id in claimed]
        for kind, names in kinds.items()
        if first is not None
    }
    return {kind: sum(waited) / len(waited) for kind, waited in times.items() if waited}


def everything(app: Treadle) -> list[Job]:
    """All jobs of a small store."""
    page = app.find(limit=500)
    jobs = page.jobs
    while page.cursor is not None:
        page = app.find(limit=500, cursor=page.cursor)
        jobs = jobs + page.jobs
    return jobs


def spread(place: int, low: float, high: float) -> float:
    """Numbers between `low` and `high` that look random and are the same every time."""
    return round(low + (high - low) * (place * 0.618034 % 1), 3)


@contextmanager
def _stage(keep: bool) -> Iterator[Path]:
    """A directory for the demo; SIGTERM tidies up as Ctrl-C does."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-demo-"))
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield folder
    except BaseException:
        keep = False
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No other Ctrl-C keeps us from tidying up."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)
