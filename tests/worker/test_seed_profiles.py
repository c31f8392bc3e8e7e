"""Workers with the profiles of the seeds: how often they look, how much they run at once, when a job has started."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.workbench import Crowd, ended, idle_waits, until, working
from tests.worker.test_policies import Looks
from treadle import Context, State, Treadle
from treadle.profiles import backend, chat_server
from treadle.testing import FakeClock

AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench


@any_store
@pytest.mark.covers("000-AC-15.a")
def test_a_runner_of_the_chat_server_with_nothing_to_do_waits_five_seconds(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    app.register("work", lambda: None)
    waits, engine = idle_waits(app, monkeypatch, **AS_SET)
    assert 3 < waits[0] <= 5  # from when it looked
    assert len(engine.turns) <= 2  # it has looked once for its own jobs, and once for those that nobody knows


@any_store
@pytest.mark.covers("000-AC-15.b")
def test_a_job_of_the_chat_server_is_running_with_its_start_when_its_handler_begins(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    seen: list[dict[str, Any]] = []

    @app.task
    async def work(ctx: Context) -> None:
        seen.append(app.view(app.get(ctx.job.id)))

    with working(app, **AS_SET):
        [job] = ended(app, work.using(tenant="ada").enqueue())
    assert job.state is State.SUCCEEDED
    assert (seen[0]["status"], seen[0]["started_at"]) == ("running", job.started_at.isoformat())


@any_store
@pytest.mark.covers("000-AC-16.a")
def test_a_runner_of_the_chat_server_sweeps_stale_jobs_every_five_minutes(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    app = make_app(profile=chat_server.PROFILE, clock=clock)
    job = app.register("work", lambda: None).using(tenant="ada").enqueue()
    claim(app.engine, 1, lease=1800.0)
    looks = Looks(app, monkeypatch)
    looks.engine.expired = lambda **named: [looks._expired(), *app.engine._engine.expired(**named)][1:]  # type: ignore[attr-defined]
    assert looks.count == 1
    for sweep in range(2, 7):
        clock.advance(seconds=300)
        assert (looks.after(299), looks.after(1)) == (sweep - 1, sweep)
    assert app.view(app.get(job.id))["status"] == "claimed"  # for 25 minutes
    clock.advance(seconds=300)
    looks.after(300)
    printed = app.view(app.get(job.id))
    assert (printed["status"], printed["error"]) == ("pending", "Job timed out (stale claim)")


@any_store
@pytest.mark.covers("002-Q11.a")
@pytest.mark.parametrize(("settings", "at_once"), [({}, 4), ({"concurrency": 2}, 2)])
def test_a_worker_of_the_backend_runs_four_jobs_at_once_or_as_many_as_it_is_told(
    make_app: Callable[..., Treadle], settings: dict[str, int], at_once: int
) -> None:
    app, crowd = make_app(profile=backend.PROFILE, **settings), Crowd()
    gate = threading.Event()

    def work() -> None:
        with crowd:
            assert gate.wait(60)

    jobs = [app.register("work", work).enqueue() for _ in range(6)]
    with working(app, **AS_SET):
        until(lambda: crowd.inside == at_once, "a full house")
        until(lambda: len(app.find(state=State.RUNNING).jobs) == at_once, "as many claims")
        gate.set()
        ended(app, *jobs)
    assert crowd.most == at_once
