"""Workers with the profiles of the seeds: how often they look, how much they run at once, when a job has started."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.seed_profiles import BACKEND, CHAT_SERVER
from tests.support.workbench import Crowd, ended, until, watched, working
from tests.worker.test_policies import Looks
from treadle import Context, State, Treadle

AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench


@any_store
@pytest.mark.covers("000-AC-15.a")
def test_a_runner_of_the_chat_server_with_nothing_to_do_waits_five_seconds(make_app: Callable[..., Treadle]) -> None:
    app = make_app(profile=CHAT_SERVER)
    app.register("work", lambda: None)
    engine = watched(app)
    waits: list[float] = []

    def wait(queues: Any, timeout: float, interrupt: threading.Event) -> bool:
        waits.append(timeout)
        interrupt.wait(60)
        return False

    engine.wait = wait
    with working(app, **AS_SET):
        until(lambda: waits, "an idle runner")
        assert len(engine.turns) <= 2  # it has looked once for its own jobs, and once for those that nobody knows
    assert 3 < waits[0] <= 5  # from when it looked


@any_store
@pytest.mark.covers("000-AC-15.b")
def test_a_job_of_the_chat_server_is_running_with_its_start_when_its_handler_begins(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app(profile=CHAT_SERVER)
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
    app = make_app(profile=CHAT_SERVER)
    job = app.register("work", lambda: None).using(tenant="ada").enqueue()
    looks = Looks(app, monkeypatch)
    assert looks.after(299) == 1
    [held] = claim(app.engine, 1, lease=0.001)
    until(lambda: app.engine.now() > held.lease_until, "the end of the lease")
    looks.engine.expired = app.engine._engine.expired  # type: ignore[attr-defined] # the store's own answer
    assert app.get(job.id).crashes == 0
    looks.after(1)
    assert (app.get(job.id).state, app.get(job.id).crashes) == (State.PENDING, 1)


@any_store
@pytest.mark.covers("002-Q11.a")
@pytest.mark.parametrize(("settings", "at_once"), [({}, 4), ({"concurrency": 2}, 2)])
def test_a_worker_of_the_backend_runs_four_jobs_at_once_or_as_many_as_it_is_told(
    make_app: Callable[..., Treadle], settings: dict[str, int], at_once: int
) -> None:
    app, crowd = make_app(profile=BACKEND, **settings), Crowd()
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
