"""A SQLite file that is merely locked: nobody can take a job then, so nobody gives one up, or steals one after."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.workbench import Watched, ended, until, watched, working
from treadle import Context, State, Treadle


@pytest.fixture
def locked(tmp_path: Path) -> Callable[[], object]:
    """`with locked():` somebody else holds the file's write lock, and writes nothing."""

    @contextmanager
    def hold() -> Iterator[None]:
        stranger = sqlite3.connect(tmp_path / "treadle.db", timeout=30, isolation_level=None)
        try:
            stranger.execute("begin immediate")
            yield
            stranger.execute("rollback")
        finally:
            stranger.close()

    return hold


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_is_not_given_up_and_not_stolen_when_the_file_is_locked_for_longer_than_its_lease(
    make_app: Callable[..., Treadle], locked: Callable[[], object], kind: str
) -> None:
    lease, rounds = 2.0, 1
    started, done = threading.Event(), threading.Event()
    runs: list[int] = []
    interrupted: list[int] = []

    def plain(ctx: Context) -> str:
        runs.append(ctx.attempt)
        started.set()
        while not done.is_set():
            if ctx.cancelled:
                interrupted.append(ctx.attempt)
                return "given up"
            time.sleep(0.005)
        return "once"

    async def on_the_loop(ctx: Context) -> str:
        runs.append(ctx.attempt)
        started.set()
        try:
            while not done.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            interrupted.append(ctx.attempt)
            raise
        return "once"

    holder, other = make_app(), make_app()
    for each in (holder, other):
        each.register("work", plain if kind == "plain" else on_the_loop)
    job = holder.tasks["work"].enqueue()
    with working(holder, lease=lease, name="holder"):
        assert started.wait(30)
        with working(other, lease=lease, name="other"):
            for _ in range(rounds):
                before = holder.get(job.id).lease_until
                with locked():
                    time.sleep(2 * lease)  # the spell itself: longer than a lease
                until(lambda before=before: holder.get(job.id).lease_until != before, "a renewal after the spell")
            done.set()
            [job] = ended(holder, job)
    assert interrupted == []
    assert runs == [1]
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "once", "holder")
    assert (job.attempt, job.crashes) == (1, 0)


def test_an_outcome_reached_while_the_file_is_locked_is_written_once_it_is_free(
    app: Treadle, locked: Callable[[], object]
) -> None:
    started, done, ending = threading.Event(), threading.Event(), threading.Event()

    def work(ctx: Context) -> int:
        started.set()
        assert done.wait(30)
        ending.set()
        return ctx.attempt

    job = app.register("work", work).enqueue()
    lease = 1.0
    with working(app, lease=lease):
        assert started.wait(30)
        with locked():
            done.set()
            assert ending.wait(30)
            time.sleep(2 * lease)
            assert app.get(job.id).state is State.RUNNING
        [job] = ended(app, job)
    assert (job.state, job.result, job.attempt, job.crashes) == (State.SUCCEEDED, 1, 1, 0)


def test_an_idle_worker_does_not_wait_for_the_write_lock(
    app: Treadle, locked: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    tick = app.register("tick", lambda: None)
    engine: Watched = watched(app)
    with working(app):
        ended(app, tick.enqueue())
        with locked():
            until(lambda: len(engine.turns) > 3, "it is idle")
            seen, began = len(engine.turns), time.monotonic()
            until(lambda: time.monotonic() - began > 1.0 and len(engine.turns) > seen + 3, "it goes on asking")
            assert all(end - start < 0.9 for start, end in engine.turns[seen:])
        ended(app, tick.enqueue())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
