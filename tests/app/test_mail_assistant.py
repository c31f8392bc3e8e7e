"""The mail assistant (001) by its profile, on SQLite: its words, its numbers, its pool, its start-up."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.making import claim
from tests.support.workbench import Crowd, ended, idle_waits, until, working
from treadle import Retry, State, Treadle
from treadle.profiles import mail_assistant
from treadle.testing import FakeClock, run_until_idle

AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench


@pytest.fixture(params=["sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the assistant has no other."""
    return request.param


@pytest.fixture
def assistant(make_app: Callable[..., Treadle]) -> Treadle:
    """Its app, with one task that does as it is told."""
    app = make_app(profile=mail_assistant.PROFILE)

    @app.task
    def classify(thread_id: str, fails: bool = False) -> str:
        if fails:
            raise RuntimeError(f"no label for {thread_id}")
        return "needs_response"

    return app


# ------------------------------------------------------------------------------------------- a job, as it is printed


@pytest.mark.covers("001-R20.a", "001-R21.a")
def test_a_fresh_job_is_printed_under_the_names_of_its_table(assistant: Treadle, clock: FakeClock) -> None:
    job = assistant.enqueue("classify", {"thread_id": "t1"}, tenant="ada")
    created = clock.now().isoformat()
    clock.advance(seconds=5)
    assert list(assistant.view(assistant.get(job.id)).items()) == [
        ("id", job.id), ("job_type", "classify"), ("user_id", "ada"), ("payload", {"thread_id": "t1"}),
        ("status", "pending"), ("attempts", 0), ("max_attempts", 3), ("error_message", None), ("created_at", created),
        ("completed_at", None),
    ]  # fmt: skip
    [held] = claim(assistant.engine, 1)
    assert assistant.view(held)["status"] == "running"
    assert [found.id for found in assistant.find(state="running").jobs] == [job.id]


@pytest.mark.covers("001-R20.a", "001-R21.a", "001-R24.a")
def test_a_completed_job_is_printed_so_with_its_time(assistant: Treadle, clock: FakeClock) -> None:
    job = assistant.enqueue("classify", {"thread_id": "t1"}, tenant="ada")
    clock.advance(seconds=5)
    run_until_idle(assistant)
    printed = assistant.view(assistant.get(job.id))
    assert (printed["status"], printed["attempts"], printed["error_message"]) == ("completed", 0, None)
    assert printed["completed_at"] == clock.now().isoformat()
    assert [found.id for found in assistant.find(state="completed").jobs] == [job.id]


@pytest.mark.covers("001-R20.a", "001-R21.a", "001-R24.b", "001-R25.a", "001-R26.a", "001-R26.b")
def test_a_job_that_fails_three_times_is_printed_as_failed_with_its_error(assistant: Treadle, clock: FakeClock) -> None:
    job = assistant.enqueue("classify", {"thread_id": "t1", "fails": True}, tenant="ada")
    printed = [assistant.view(after) for after in run_until_idle(assistant)]
    assert [(line["status"], line["attempts"]) for line in printed] == [("pending", 1), ("pending", 2), ("failed", 3)]
    assert {line["error_message"] for line in printed} == {"no label for t1"}
    assert (printed[2]["id"], printed[2]["completed_at"]) == (job.id, clock.now().isoformat())
    assert assistant.view(assistant.get(job.id)) == printed[2]
    assert [found.id for found in assistant.find(state="failed").jobs] == [job.id]
    clock.advance(days=1)
    assert claim(assistant.engine) == []


@pytest.mark.covers("001-R26.a")
def test_a_job_may_have_a_number_of_attempts_of_its_own(assistant: Treadle) -> None:
    retry = Retry(max_attempts=1)
    job = assistant.enqueue("classify", {"thread_id": "t1", "fails": True}, tenant="ada", retry=retry)
    assert len(run_until_idle(assistant)) == 1
    printed = assistant.view(assistant.get(job.id))
    assert (printed["status"], printed["attempts"], printed["max_attempts"]) == ("failed", 1, 1)


@pytest.mark.covers("001-R23.b")
def test_a_thread_has_one_pending_job_and_a_change_while_that_runs_makes_the_next(assistant: Treadle) -> None:
    classify = assistant.tasks["classify"].using(tenant="ada", key="t1")
    first = classify.enqueue("t1")
    assert classify.enqueue("t1").id == first.id
    claim(assistant.engine, 1)
    second = classify.enqueue("t1")
    assert second.id not in (first.id, classify.using(key="t2").enqueue("t2").id)
    assert assistant.view(assistant.get(first.id))["status"] == "running"


# -------------------------------------------------------------------------------------------------------- its pool


@pytest.mark.covers("001-R27.a")
@pytest.mark.parametrize(("settings", "at_once"), [({}, 3), ({"concurrency": 2}, 2)], ids=["as it is", "configured"])
def test_three_coroutines_run_at_once_or_as_many_as_are_configured(
    make_app: Callable[..., Treadle], settings: dict[str, int], at_once: int
) -> None:
    app, crowd = make_app(clock=None, profile=mail_assistant.PROFILE, **settings), Crowd()
    gate = threading.Event()

    @app.task
    async def draft() -> None:
        with crowd:
            while not gate.is_set():
                await asyncio.sleep(0.005)

    jobs = [draft.enqueue() for _ in range(6)]
    with working(app, **AS_SET):
        until(lambda: crowd.inside == at_once, "a full pool")
        until(lambda: len(app.find(state=State.RUNNING).jobs) == at_once, "as many claims, and no more")
        gate.set()
        ended(app, *jobs)
    assert crowd.most == at_once


@pytest.mark.covers("001-R27.b")
@pytest.mark.parametrize(("settings", "poll"), [({}, 1.0), ({"poll": 7}, 7.0)], ids=["as it is", "configured"])
def test_an_empty_queue_is_asked_again_after_a_second(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], poll: float
) -> None:
    app = make_app(clock=None, profile=mail_assistant.PROFILE, schedules=False, **settings)
    app.register("sync", lambda: None)
    waits, _ = idle_waits(app, monkeypatch, **AS_SET)
    assert poll - 0.9 < waits[0] <= poll


# ----------------------------------------------------------------------------------------------------- its start-up


@pytest.mark.covers("001-R29.a", "001-R16.a")
def test_worker_and_scheduler_start_together_with_the_application(make_app: Callable[..., Treadle]) -> None:
    """Nobody enqueues here: what runs was made by the scheduler that came with the worker."""
    app = make_app(clock=None, profile=mail_assistant.PROFILE, schedule_interval=0.1)
    synced: list[tuple[int, str]] = []

    def active_users() -> list[dict[str, int]]:
        return [{"user_id": 1}, {"user_id": 2}]

    async def sync(user_id: int) -> None:
        synced.append((user_id, threading.current_thread().name))

    app.register("sync", sync)
    app.declare("fallback_sync", "sync", every="1s", for_each=active_users)

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with app.worker(poll=0.05, grace=5):
            yield

    async def serve() -> None:
        async with lifespan():
            while {user for user, _ in synced} != {1, 2}:
                await asyncio.sleep(0.01)

    assert app.schedules.list() == []
    asyncio.run(asyncio.wait_for(serve(), 60))
    assert {thread for _, thread in synced} == {threading.main_thread().name}  # on the application's own loop
    made = app.find(task="sync", limit=500).jobs
    assert {job.schedule for job in made} == {"fallback_sync"}
    assert app.workers() == []
