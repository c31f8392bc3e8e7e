"""What the tests of workers share: waiting for a condition, a worker in a thread or a process, counting who is busy."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support import forks, processes
from treadle import Job, State, Treadle
from treadle.engines.contract import Engine
from treadle.errors import EngineUnavailable
from treadle.worker import maintenance
from treadle.worker.worker import Worker

T = TypeVar("T")

"""Marks a test of what a worker does by itself, with handlers, slots and threads: the quickest engine is enough."""

PATIENCE = 30.0  # seconds after which what should happen will not: the machine may be busy, the test is not
QUICK = {"lease": 3.0, "grace": 0.5, "poll": 0.05, "concurrency": 3}


def until(condition: Callable[[], T], what: str | Callable[[], str], within: float = PATIENCE) -> T:
    """Wait for a condition; its value, or an AssertionError saying what did not happen."""
    deadline, pause = time.monotonic() + within, 0.005
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within:g} s: {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.025)  # to ask a store two hundred times a second keeps the others from it


def ended(app: Treadle, *jobs: Job, within: float = PATIENCE) -> list[Job]:
    """These jobs, once they have all ended."""

    def look() -> list[Job]:
        found = [app.get(job.id) for job in jobs]
        return found if all(job.state.final for job in found) else []

    return until(look, lambda: f"the end of {[app.get(job.id) for job in jobs]}", within)


def in_state(app: Treadle, job: Job, **fields: object) -> Job:
    """The job, once these fields of it are so."""

    def look() -> Job | None:
        now = app.get(job.id)
        return now if all(getattr(now, name) == value for name, value in fields.items()) else None

    return until(look, lambda: f"{fields}, but {app.get(job.id)}")  # type: ignore[return-value]


@contextmanager
def working(app: Treadle, **options: Any) -> Iterator[Worker]:
    """A worker with `run` in a thread of its own, asked to stop at the end; an error of it is the test's."""
    worker = app.worker(**{**QUICK, **options})
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    # A daemon, so that a worker that does not stop fails its test and not the whole run.
    thread = threading.Thread(target=run, name=f"run-{worker.config.name}", daemon=True)
    thread.start()
    worker.thread = thread  # type: ignore[attr-defined]
    try:
        yield worker
    finally:
        if thread.is_alive():
            worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the worker does not stop"
    if errors:
        raise errors[0]


class Process:
    """A worker in a process of its own (worker_process.py), which leaves marks in a folder."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        words = url, folder, json.dumps({**QUICK, **options})
        command, place = processes.module("tests.support.worker_process", *words), processes.environment()
        self.process = forks.Popen(command, env=place, stderr=subprocess.PIPE, text=True)

    def marked(self, mark: str) -> Path:
        """The mark, once it is there."""
        path = self.folder / mark
        until(lambda: path.exists() or self.process.poll() is not None, f"the mark {mark}")
        assert path.exists(), f"the process ended with {self.process.returncode}: {self._said()}"
        return path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self, within: float = PATIENCE) -> int:
        """How it ended, within so many seconds."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process still runs after {within:g} s") from None

    def _said(self) -> str:
        return self.process.stderr.read() if self.process.stderr else ""

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


class Crowd:
    """Counts who is inside at once: `with crowd:`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


class Watched:
    """An engine whose calls can be watched, cut off or made to fail; everything else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cut = threading.Event()  # renewals do not reach the store while this is set
        self.turns: list[tuple[float, float]] = []  # when each began and ended
        self.extends = 0
        self.failing: list[Exception] = []  # raised by the next turns, one each

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def extend(self, *arguments: Any, **named: Any) -> Any:
        if self.cut.is_set():
            raise EngineUnavailable("the store does not answer")
        self.extends += 1
        return self._engine.extend(*arguments, **named)

    def turn(self, *arguments: Any, **named: Any) -> Any:
        if self.failing:
            raise self.failing.pop(0)
        began = time.monotonic()
        answer = self._engine.turn(*arguments, **named)
        self.turns.append((began, time.monotonic()))
        return answer


def watched(app: Treadle) -> Watched:
    """The app's engine, watched from now on."""
    app._store.engine = engine = Watched(app.engine)  # type: ignore[misc, assignment]
    return engine


def idle_waits(app: Treadle, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[float], Watched]:
    """How long a worker with nothing to do waits before it looks again, and the engine that it asked.

    Its seldom chores are put off, because each of them would cut a wait short.
    """
    monkeypatch.setattr(maintenance, "_first_delay", lambda name, _: 0.0 if name == "heartbeat" else 3600.0)
    engine, waits = watched(app), []

    def wait(queues: Any, timeout: float, interrupt: threading.Event) -> bool:
        waits.append(timeout)
        interrupt.wait(60)
        return False

    engine.wait = wait  # type: ignore[method-assign]
    with working(app, **options):
        until(lambda: waits, "an idle worker")
    return waits, engine


def all_in(app: Treadle, state: State) -> list[Job]:
    return app.find(state=state, limit=500).jobs


class Noted:
    """An engine that notes when a claim is sent and how often leases were looked over; else the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.claiming = threading.Event()
        self.answering = threading.Event()  # cleared, the store lets those who claim wait
        self.answering.set()
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def turn(self, changes: Any, claim: Any = None, **named: Any) -> Any:
        if claim is not None:
            self.claiming.set()
            assert self.answering.wait(60)
        return self._engine.turn(changes, claim, **named)

    def expired(self, **named: Any) -> Any:
        found = self._engine.expired(**named)
        self.looks += 1
        return found

    def looked_over(self, times: int) -> None:
        """Wait until the leases were looked over so many times more."""
        goal = self.looks + times
        until(lambda: self.looks >= goal, f"{times} more looks at the leases")


def noted(app: Treadle) -> Noted:
    """The app's engine, noted from now on."""
    app._store.engine = engine = Noted(app.engine)  # type: ignore[misc, assignment]
    return engine
