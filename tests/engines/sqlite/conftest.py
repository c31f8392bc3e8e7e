"""What the tests of one SQLite file need: other processes, locks held by strangers, and a short lock timeout."""

import multiprocessing
import os
import sqlite3
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.support import stores
from treadle.engines.sqlite import connection

FORK = multiprocessing.get_context("fork")
BROKEN = "BrokenBarrierError"  # only says that another one failed
SHM = Path("/dev/shm")
LONG = 120.0  # seconds after which a neighbour counts as hung


@pytest.fixture(params=["sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine, whatever else the conformance suite runs on."""
    return request.param


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    """A file that is not there yet."""
    with stores.fresh_store("sqlite", tmp_path) as url:
        yield url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file behind `store_url`."""
    return tmp_path / "treadle.db"


@pytest.fixture
def in_ram(tmp_path: Path) -> Iterator[Path]:
    """A directory whose disk never makes anybody wait, where there is one: for tests of locks, not of durability."""
    if not os.access(SHM, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="treadle-", dir=SHM) as directory:
        yield Path(directory)


@pytest.fixture
def plain(path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Opens the file as somebody who has never heard of treadle; begin and commit are his to say."""
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False))
        return opened[-1]

    yield connect
    for stranger in opened:
        stranger.close()


@pytest.fixture
def locked(plain: Callable[[], sqlite3.Connection]) -> Callable[[], AbstractContextManager[sqlite3.Connection]]:
    """`with locked() as stranger:` somebody else holds the file's write lock, and writes nothing."""

    @contextmanager
    def hold() -> Iterator[sqlite3.Connection]:
        stranger = plain()
        stranger.execute("begin immediate")
        try:
            yield stranger
        finally:
            if stranger.in_transaction:
                stranger.execute("rollback")

    return hold


@pytest.fixture
def lock_timeout(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`lock_timeout(0.3)`: the engine gives up on a locked file after this many seconds instead of thirty."""

    def set_timeout(seconds: float) -> None:
        monkeypatch.setattr(connection, "LOCK_TIMEOUT", seconds)

    return set_timeout


@pytest.fixture
def impatient(lock_timeout: Callable[[float], None]) -> None:
    lock_timeout(0.3)


class Neighbour:
    """A forked process that does some work and answers with its value, or with its error."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._mine, theirs = FORK.Pipe()
        self._process = FORK.Process(target=_answer, args=(theirs, work), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def answer(self) -> Any:
        """Wait for what it has to say; its error is ours."""
        value, failure = self.outcome()
        if failure:
            pytest.fail(f"in a process of its own:\n{failure}")
        return value

    def outcome(self) -> tuple[Any, str]:
        """Its value, and the traceback of its error or nothing."""
        if not self._mine.poll(LONG):
            return None, f"process {self.pid} hangs"
        try:
            return self._mine.recv()
        except EOFError:
            return None, f"process {self.pid} died without an answer"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._mine.close()


def _answer(pipe: Connection, work: Callable[[], Any]) -> None:
    try:
        pipe.send((work(), ""))
    except BaseException:
        pipe.send((None, traceback.format_exc()))


@pytest.fixture
def neighbour() -> Iterator[Callable[[Callable[[], Any]], Neighbour]]:
    """Starts work in a process of its own, which does not outlive the test."""
    started: list[Neighbour] = []

    def start(work: Callable[[], Any]) -> Neighbour:
        started.append(Neighbour(work))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def together(neighbour: Callable[[Callable[[], Any]], Neighbour]) -> Callable[..., Sequence[Any]]:
    """`together(8, work)`: work(number, barrier) in eight processes at once; their answers in order."""

    def run(processes: int, work: Callable[[int, Any], Any]) -> Sequence[Any]:
        barrier = FORK.Barrier(processes, timeout=LONG)

        def one(number: int) -> Callable[[], Any]:
            def body() -> Any:
                try:
                    return work(number, barrier)
                except BaseException:
                    barrier.abort()  # the others need not wait for one that failed
                    raise

            return body

        started = [neighbour(one(number)) for number in range(processes)]
        answers, failures = zip(*[each.outcome() for each in started], strict=True)
        if any(failures):
            said = [failure for failure in failures if failure]
            pytest.fail("in a process of its own:\n" + min(said, key=lambda failure: BROKEN in failure))
        return answers

    return run


@pytest.fixture
def stopwatch() -> Callable[[], Callable[[], float]]:
    """`took = stopwatch()`, and later `took()`: seconds since."""

    def start() -> Callable[[], float]:
        began = time.monotonic()
        return lambda: time.monotonic() - began

    return start
