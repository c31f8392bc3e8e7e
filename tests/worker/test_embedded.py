"""A worker inside somebody's application: beside other coroutines, in a thread, two in one process."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.workbench import ended, until, working
from treadle import Context, Retry, State, Treadle


def test_a_worker_lives_beside_the_coroutines_of_an_application(app: Treadle) -> None:
    @app.task
    async def greet(name: str) -> str:
        await asyncio.sleep(0.01)
        return f"hello {name}"

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with app.worker(poll=0.05, grace=5):
            yield

    async def serve(n: int) -> str:
        """A request: it enqueues, waits and answers."""
        job = await greet.aenqueue(f"{n}")
        while not (now := await asyncio.to_thread(app.get, job.id)).state.final:
            await asyncio.sleep(0.01)
        return str(now.result)

    async def main() -> list[str]:
        async with lifespan():
            return list(await asyncio.gather(*(serve(n) for n in range(10))))

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [f"hello {n}" for n in range(10)]


def test_nothing_of_a_worker_is_left_when_its_block_ends(app: Treadle) -> None:
    tick = app.register("tick", lambda: None)

    async def main() -> set[str]:
        before = asyncio.all_tasks()
        async with app.worker(poll=0.05):
            job = tick.enqueue()
            while not app.get(job.id).state.final:
                await asyncio.sleep(0.005)
        assert asyncio.all_tasks() == before
        return {thread.name for thread in threading.enumerate()}

    others = {thread.name for thread in threading.enumerate()}
    names = asyncio.run(asyncio.wait_for(main(), 60))
    assert not (names - others) & {"treadle-engine", "treadle-renewal"}


def test_a_worker_runs_in_a_thread_of_a_synchronous_application(app: Treadle) -> None:
    worker = app.worker(poll=0.05)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        [job] = ended(app, app.register("late", lambda: "registered while it runs").enqueue())
        assert job.result == "registered while it runs"
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()


def test_run_worker_works_in_a_thread_too(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = app.worker
    monkeypatch.setattr(app, "worker", lambda **options: made.append(make(**options)) or made[-1])
    tick = app.register("tick", lambda: "ran")
    thread = threading.Thread(target=app.run_worker, kwargs={"poll": 0.05, "concurrency": 2})
    thread.start()
    try:
        [job] = ended(app, tick.enqueue())
    finally:
        until(lambda: made, "the worker")[0].stop()
        thread.join(30)
    assert (job.result, made[0].config.concurrency) == ("ran", 2)


def test_two_workers_of_one_app_share_a_process_and_its_jobs(app: Treadle) -> None:
    seen: set[str | None] = set()

    @app.task
    def work(ctx: Context, n: int) -> int:
        if ctx.job.queue == "all":  # however slow one of them is, the other does not do it all
            seen.add(ctx.job.worker)
            until(lambda: len(seen) == 2, "a job in the other worker")
        return n

    with working(app, name="w1", queues=["one", "all"]), working(app, name="w2", queues=["two", "all"]):
        ended(app, work.using(queue="one").enqueue(0), work.using(queue="two").enqueue(0))  # both are up
        done = ended(app, *(work.using(queue="all").enqueue(n) for n in range(40)))
    assert {job.worker for job in done} == {"w1", "w2"}
    assert [job.result for job in done] == list(range(40))
    assert {(job.failures, job.crashes) for job in done} == {(0, 0)}


def test_two_workers_in_one_loop_do_not_disturb_each_other(app: Treadle) -> None:
    @app.task
    async def work() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async def main() -> None:
        async with app.worker(name="outer", poll=0.05, queues=["a", "all"]):
            async with app.worker(name="inner", poll=0.05, queues=["b", "all"]):
                jobs = [work.using(queue=queue).enqueue() for queue in ("a", "b", "all", "all")]
                while app.count()[State.SUCCEEDED] < 4:
                    await asyncio.sleep(0.005)
            assert app.get(jobs[0].id).worker == "outer"
            assert app.get(jobs[1].id).worker == "inner"
            last = work.using(queue="all").enqueue()
            while not app.get(last.id).state.final:  # the outer one goes on
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def thrown_away() -> Iterator[None]:
    """What a test has left in a closed loop goes with the test, not in the middle of another."""
    yield
    gc.collect()


@pytest.mark.usefixtures("thrown_away")
@pytest.mark.filterwarnings("ignore:coroutine 'CoroutineExecutor._run' was never awaited:RuntimeWarning")
@pytest.mark.covers("001-R30.a")
def test_the_loop_of_the_application_may_end_without_asking_the_worker(make_app: Callable[..., Treadle]) -> None:
    """The host forgot `async with` and closed its loop: the jobs are found by others, and nothing hangs."""
    careless, careful = make_app(), make_app()
    started = threading.Event()

    async def work() -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    worker = careless.worker(lease=0.6, poll=0.05, name="careless")

    async def main() -> None:
        await worker.__aenter__()
        while not started.is_set():
            await asyncio.sleep(0.005)

    careless.register("work", work, retry=Retry(base=0, jitter=0))
    careful.register("work", lambda: "careful")
    job = careless.tasks["work"].enqueue()
    asyncio.run(asyncio.wait_for(main(), 60))
    try:
        with working(careful, lease=0.6, name="careful"):
            [job] = ended(careful, job)
        until(lambda: not worker._thread.is_alive(), "the end of its engine thread")
    finally:  # should it still hold on to the job, no other test shall suffer
        worker._renewal.stop()
        worker._host.stopping, worker._host.drained_at = True, 0.0
        worker._host.wake.set()
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "careful", "careful")
