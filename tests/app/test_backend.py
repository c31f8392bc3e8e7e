"""The backend's decisions and non-goals, the chat server's sweep, the tenant system's gate."""

import asyncio
import os
import re
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import forks, processes
from tests.support.making import claim, start
from tests.support.marks import any_store, postgres_only
from treadle import ConfigError, Job, Reason, Retry, State, Treadle
from treadle.profiles import backend, chat_server, tenant_ops
from treadle.testing import FakeClock, run_until_idle
from treadle.worker.worker import Worker

PATIENCE = 30.0  # seconds after which what should happen will not
T = TypeVar("T")


def until(condition: Callable[[], T], what: str) -> T:
    """The value of a condition once it holds."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)
    return value


@contextmanager
def working(app: Treadle, **options: object) -> Iterator[Worker]:
    """A worker in a thread of its own, asked to stop at the end."""
    worker = app.worker(**{"poll": 0.05, "grace": 20.0, **options})
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def server(make_app: Callable[..., Treadle]) -> Treadle:
    """An app of the backend by the store's own clock."""
    return make_app(clock=None, profile=backend.PROFILE, schedule_interval=1)


# ------------------------------------------------------------------------------------------------ decided


@pytest.mark.covers("002-D2.a")
def test_the_decision_for_our_own_cron_is_on_record_with_the_candidates_and_the_reason() -> None:
    [record] = (processes.ROOT / "docs" / "decisions").glob("0009-*.md")
    text = " ".join(record.read_text("utf-8").split())
    assert all(name in text for name in ("cronsim", "croniter"))  # the candidates
    assert "`cron.py` reads them itself" in text
    assert "wrong" in text  # the reason


@pytest.mark.covers("002-D2.b")
def test_no_scheduler_is_borrowed_only_the_next_time_is_computed() -> None:
    project = tomllib.loads((processes.ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {re.match(r"[\w-]+", line)[0].lower() for line in project["project"]["dependencies"]}
    assert needed == {"pydantic", "pydantic-settings", "rich", "typer", "tzdata"}
    source = (processes.ROOT / "src" / "treadle" / "schedules" / "cron.py").read_text("utf-8")
    imported = set(re.findall(r"^(?:from|import) ([\w]+)", source, re.MULTILINE))
    assert imported <= set(sys.stdlib_module_names) | {"treadle"}
    assert not {"threading", "asyncio", "sched", "time"} & imported  # it waits for nothing and starts nothing


@pytest.mark.covers("002-D3.d")
def test_the_documentation_promises_handlers_at_least_once_and_asks_for_idempotent_ones() -> None:
    for page in ("README.md", "docs/promises.md"):
        text = " ".join((processes.ROOT / page).read_text("utf-8").split())
        assert re.search(r"handlers? runs? at least once", text, re.IGNORECASE), page
        assert not re.search(r"handlers? runs? exactly once", text, re.IGNORECASE), page
    assert "idempoten" in (processes.ROOT / "docs/promises.md").read_text("utf-8")


@postgres_only
@pytest.mark.covers("002-D3.f")
def test_no_schedule_is_finer_than_a_second_and_one_database_is_enough(app: Treadle) -> None:
    app.register("t", lambda: None)
    with pytest.raises(ConfigError, match="the shortest interval is a second"):
        app.schedules.create("n", "t", every=0.5)
    app.schedules.create("n", "t", cron="* * * * *")
    assert {tick.at.second for tick in app.schedules.preview("n", 50)} == {0}
    assert "the shortest is a second" in (processes.ROOT / "docs/schedules.md").read_text("utf-8")
    assert app.settings.listen_url is None  # one URL is all there is to say


def test_the_backend_closes_enqueueing_to_the_users_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(
        "from treadle.profiles import backend\nfrom treadle import Treadle\n"
        "app = Treadle('sqlite:///backend.db', profile=backend.PROFILE)\n"
        "@app.task\ndef stale_session_cleanup() -> None: ...\n"
    )
    command = processes.module("treadle", "enqueue", "stale_session_cleanup", "{}", "--app", "backend:app")
    done = forks.run(command, cwd=tmp_path, env=processes.environment())
    assert done.returncode == 1
    assert "enqueue_allow" in done.stderr
    app = Treadle(f"sqlite:///{tmp_path}/backend.db", profile=backend.PROFILE)
    app.register("stale_session_cleanup", lambda: None).enqueue()  # the built-ins themselves go on
    assert app.count()[State.PENDING] == 1
    app.close()


# ------------------------------------------------------------------------------------ a worker in the same process


@any_store
@pytest.mark.covers("002-D3.b")
def test_worker_and_scheduler_live_in_the_servers_process(server: Treadle) -> None:
    ran: list[int] = []
    server.register("tick", lambda: ran.append(os.getpid()))
    server.schedules.create("often", "tick", every="1s")

    async def serve() -> None:
        async with server.worker(poll=0.05):
            deadline = time.monotonic() + PATIENCE
            while not ran and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert ran
    assert set(ran) == {os.getpid()}


@pytest.mark.covers("002-Q13.a")
@postgres_only
def test_on_shutdown_schedules_stop_then_claiming_then_jobs_are_drained_and_then_it_returns(server: Treadle) -> None:
    started, release, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        started.set()
        release.wait(PATIENCE)
        ended.append(time.monotonic())

    task = server.register("slow", slow)
    server.register("tick", lambda: None, queue="ticks")
    with working(server, concurrency=2) as worker:
        job = task.enqueue()
        assert started.wait(PATIENCE)
        server.schedules.create("often", "tick", every="1s")
        until(lambda: server.schedules.get("often").last_at, "a first tick")
        worker.stop()
        until(lambda: [member for member in server.workers() if member.stopping], "the worker says that it stops")
        before, waiting = server.schedules.get("often"), task.enqueue()
        until(lambda: (server.engine.now() - before.next_at).total_seconds() > 2.5, "two more ticks are due")
        assert server.schedules.get("often") == before  # no schedule fires
        assert server.get(waiting.id).state is State.PENDING  # nothing is claimed
        assert server.get(job.id).state is State.RUNNING  # what runs, runs on
        release.set()
    returned = time.monotonic()
    assert ended[0] < returned
    assert server.get(job.id).state is State.SUCCEEDED
    assert server.get(waiting.id).state is State.PENDING
    assert server.workers() == []


@any_store
@pytest.mark.covers("004-T11.a", "004-T11.b", "004-T05.b")
def test_a_worker_that_is_offline_goes_on_asking_and_processes_nothing(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(clock=None, profile=tenant_ops.PROFILE)
    ran, claims = [], []
    app.register("EMAIL_SEND", lambda: ran.append(True))
    app.pause(everything=True, actor="ops", reason="atlas_online is off")
    turn = app.engine.turn

    def watched(changes: object, claim: object = None, **named: object) -> object:
        answer = turn(changes, claim, **named)
        if claim is not None:
            claims.append(answer.jobs)
        return answer

    monkeypatch.setattr(app.engine, "turn", watched)
    jobs: list[Job] = [app.tasks["EMAIL_SEND"].using(tenant=tenant).enqueue() for tenant in ("acme", "globex")]
    with working(app):
        until(lambda: len(claims) > 5, "a worker that asks")
        assert claims[:5] == [[]] * 5
        assert (ran, app.count()[State.PENDING]) == ([], 2)
        app.resume(everything=True, actor="ops")
        until(lambda: all(app.get(job.id).state is State.SUCCEEDED for job in jobs), "the jobs are run")
    assert ran == [True, True]


# --------------------------------------------------------------------------------------- the chat server's sweep

STALE = "Job timed out (stale claim)"
HALF_AN_HOUR = 1800.0


@postgres_only
@pytest.mark.covers("000-AC-03.a", "000-AC-03.b", "000-AC-03.c")
@pytest.mark.parametrize("begun", [False, True], ids=["claimed", "running"])
def test_what_was_claimed_for_over_half_an_hour_is_swept_and_counted_and_nothing_else(
    make_app: Callable[..., Treadle], clock: FakeClock, begun: bool
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    task = app.register("work", lambda: None).using(tenant="ada")

    def held(**using: object) -> Job:
        task.using(priority=9, **using).enqueue()
        [job] = claim(app.engine, 1, lease=HALF_AN_HOUR)
        return start(app.engine, job, HALF_AN_HOUR) if begun else job

    done = task.enqueue()
    run_until_idle(app)
    stale = [held(), held(retry=Retry(max_attempts=1))]
    clock.advance(minutes=1)
    young, waiting = held(), task.enqueue()
    clock.advance(minutes=28, seconds=59)
    assert app.recover() == 0
    clock.advance(seconds=1)
    assert app.recover() == 2
    again, spent = (app.get(job.id) for job in stale)
    assert (again.state, again.error.message, again.failures) == (State.PENDING, STALE, 1)
    assert (spent.state, spent.reason, spent.finished_at) == (State.FAILED, Reason.CRASHED, clock.now())
    assert spent.error.message == STALE
    assert [app.get(job.id).state for job in (young, waiting, done)] == [
        State.RUNNING, State.PENDING, State.SUCCEEDED,
    ]  # fmt: skip
    assert app.recover() == 0
