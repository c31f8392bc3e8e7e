"""A worker that waits: woken by its own process at once, by another within a poll interval, else at its timeout."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.making import claim, enqueued, race, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.sqlite import engine as sqlite_engine
from treadle.engines.sqlite import watching
from treadle.engines.values import Claim
from treadle.model import lifecycle, new_id
from treadle.model.lifecycle import Released
from treadle.testing import FakeClock

AGES = 60.0
PAUSE = 2.0  # between two tries to wake a thread that may not have been asleep yet


class Sleeper:
    """A thread inside engine.wait; knows when it woke."""

    def __init__(self, engine: Engine) -> None:
        self.woke_at = 0.0
        self._awake = threading.Event()
        self._engine = engine
        self._thread = threading.Thread(target=self._sleep, daemon=True)
        self._thread.start()

    def _sleep(self) -> None:
        self._engine.wait(["default"], AGES)
        self.woke_at = time.monotonic()
        self._awake.set()

    def woken_by(self, act: Callable[[], float]) -> float:
        """Act until it wakes; seconds from the last act, which says when it was done, to its waking."""
        done_at = act()
        while not self._awake.wait(PAUSE):
            done_at = act()
        self._thread.join()
        return self.woke_at - done_at


def quickest(engine: Engine, act: Callable[[], float]) -> float:
    """The shortest of three times from act to waking: a machine that is busy now and then proves nothing."""
    return min(Sleeper(engine).woken_by(act) for _ in range(3))


def done(act: Callable[[], object]) -> float:
    act()
    return time.monotonic()


@pytest.fixture(params=["sqlite://", "file"])
def any_engine(request: pytest.FixtureRequest, store_url: str, clock: FakeClock) -> Iterator[Engine]:
    engine = connect(store_url if request.param == "file" else request.param, clock=clock.now)
    enqueued(engine)
    yield engine
    engine.close()


def test_an_enqueue_in_this_process_wakes_at_once(any_engine: Engine) -> None:
    assert quickest(any_engine, lambda: done(lambda: enqueued(any_engine))) < 0.2


def test_a_job_given_back_in_this_process_wakes_at_once(any_engine: Engine) -> None:
    def give_back() -> None:
        [job] = claim(any_engine, 1)
        settle(any_engine, job, Released())

    assert quickest(any_engine, lambda: done(give_back)) < 0.2


def test_an_enqueue_wakes_everybody_who_waits(any_engine: Engine) -> None:
    for sleeper in [Sleeper(any_engine) for _ in range(5)]:
        assert sleeper.woken_by(lambda: done(lambda: enqueued(any_engine))) < PAUSE


def test_an_enqueue_in_another_process_wakes_within_a_fifth_of_a_second(
    engine: Engine, store_url: str, clock: FakeClock, neighbour: Callable[..., Any]
) -> None:
    enqueued(engine)
    told, ask = os.pipe()
    answer, tell = os.pipe()

    def enqueue_when_told() -> None:
        other = connect(store_url, clock=clock.now)
        other.get(["none"])
        while os.read(told, 1) == b"!":
            enqueued(other)
            os.write(tell, f"{time.monotonic():020.6f}".encode())
        other.close()

    process = neighbour(enqueue_when_told)

    def act() -> float:
        os.write(ask, b"!")
        return float(os.read(answer, 20))

    assert quickest(engine, act) < 0.2
    os.write(ask, b".")
    process.answer()


# ------------------------------------------------------------------- told by the system, not by a regular look


@pytest.fixture
def no_regular_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_engine, "POLL_INTERVAL", AGES)
    monkeypatch.setattr(watching, "LONGEST_COMMIT", 5.0)  # on a busy machine a commit may take its time


def enqueue_from_outside(url: str, clock: FakeClock) -> float:
    """As another process would: on connections that this engine knows nothing of."""
    other = connect(url, clock=clock.now)
    enqueued(other)
    other.close()
    return time.monotonic()


@pytest.mark.usefixtures("no_regular_look")
def test_the_system_tells_of_what_others_write(engine: Engine, store_url: str, clock: FakeClock) -> None:
    enqueued(engine)
    for _ in range(3):
        assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE


@pytest.mark.usefixtures("no_regular_look")
def test_a_log_that_was_deleted_and_made_anew_is_watched_too(engine: Engine, store_url: str, clock: FakeClock) -> None:
    enqueued(engine)
    assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE
    engine.file.close()  # the last to close deletes the log
    assert not os.path.exists(f"{engine.file.path}-wal")
    assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE


@pytest.mark.usefixtures("no_regular_look")
def test_the_child_of_a_fork_has_a_watch_of_its_own(
    engine: Engine, store_url: str, clock: FakeClock, neighbour: Callable[..., Any]
) -> None:
    enqueued(engine)
    assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE
    child = neighbour(lambda: Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE)
    assert child.answer()
    assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "treadle-watch"]


def test_the_watch_ends_with_the_engine_and_begins_again_with_the_next_wait(engine: Engine) -> None:
    enqueued(engine)
    for _ in range(2):
        engine.wait(["default"], 0.05)
        assert len(watchers()) == 1
        engine.close()
        assert watchers() == []


def test_the_watch_ends_when_nobody_waits_for_a_while(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LINGER", 0.01)
    enqueued(engine)
    engine.wait(["default"], 0.05)
    for thread in watchers():
        thread.join(AGES)
    assert watchers() == []
    engine.wait(["default"], 0.05)


def test_where_the_system_tells_nothing_the_regular_look_does(
    engine: Engine, store_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "open_source", lambda _: None)
    enqueued(engine)
    assert Sleeper(engine).woken_by(lambda: enqueue_from_outside(store_url, clock)) < PAUSE
    assert watchers() == []


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_without_news_the_wait_ends_at_its_timeout(
    any_engine: Engine, timeout: float, stopwatch: Callable[[], Callable[[], float]]
) -> None:
    took = stopwatch()
    any_engine.wait(["default"], timeout)
    assert timeout <= took() < timeout + 2.0


def test_reading_wakes_nobody(engine: Engine, stopwatch: Callable[[], Callable[[], float]]) -> None:
    job = enqueued(engine)
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            engine.get([job.id])
            engine.expired(limit=10)

    reader = threading.Thread(target=read)
    reader.start()
    took = stopwatch()
    engine.wait(["default"], 0.3)
    enough.set()
    reader.join()
    assert took() >= 0.3


def test_a_write_between_a_claim_and_the_wait_is_not_missed(any_engine: Engine) -> None:
    claim(any_engine)

    race(1, lambda _: enqueued(any_engine))

    assert any_engine.wait(["default"], 0.0)
    assert not any_engine.wait(["default"], 0.0)  # it has been noticed once


def test_a_write_between_a_claim_that_found_nothing_and_the_wait_is_not_missed(engine: Engine) -> None:
    assert claim(engine) == []

    race(1, lambda _: enqueued(engine))

    assert engine.wait(["default"], 0.0)


def test_a_turn_that_settles_and_claims_does_not_wake_itself(any_engine: Engine) -> None:
    [job] = claim(any_engine)
    settled = lifecycle.settle(job, Released(), any_engine.now())

    any_engine.turn([settled], Claim(new_id(), "w1", 10, 30.0))

    assert not any_engine.wait(["default"], 0.0)


def test_a_write_between_a_turn_that_settles_and_the_wait_is_not_missed(any_engine: Engine) -> None:
    [job] = claim(any_engine)
    any_engine.turn([lifecycle.settle(job, Released(), any_engine.now())], Claim(new_id(), "w1", 10, 30.0))

    race(1, lambda _: enqueued(any_engine))

    assert any_engine.wait(["default"], 0.0)


def test_a_locked_file_does_not_disturb_who_waits(engine: Engine, locked: Callable[..., Any]) -> None:
    enqueued(engine)
    with locked():
        engine.wait(["default"], 0.1)
