"""The three measurements: how fast jobs are drained, how fast they are enqueued, how soon an idle worker starts one."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from treadle import State, Treadle
from treadle.bench.meter import percentile
from treadle.bench.places import BenchPlace
from treadle.bench.processes import MeasuredProcess, wait_for
from treadle.bench.twins import PAYLOAD
from treadle.bench.work import Order, make_twin

TIMEOUT = 60.0  # seconds without a job after which a run is given up
STEP = 1000  # jobs of a call while a store is filled
RATE = 50.0  # jobs a second while pickup is measured: the queue is idle between two of them

Notice = Callable[[int], None]


class Drained(NamedTuple):
    """A drain: seconds from the first job's start until the store says that no job is left."""

    jobs: int
    seconds: float
    cpu: float  # microseconds a job, of all workers together
    reports: Sequence[dict[str, Any]]
    cut: bool = False  # whether the limit of its time came first

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds


def drain(
    order: Order,
    jobs: int,
    *,
    workers: int = 1,
    settled: Callable[[], bool],
    limit: float = math.inf,
    notice: Notice = lambda _: None,
    begun: Notice = lambda _: None,
    ended: Notice = lambda _: None,
    start: Callable[[Order], MeasuredProcess] = MeasuredProcess,
) -> Drained:
    """Let workers run the jobs that are stored. `begun` is called when the first ran, `ended` when all are settled,
    each with the number that has run.

    After `limit` seconds it is cut: what ran until then is what counts.
    """
    with ExitStack() as stack:
        crew = [stack.enter_context(start(order)) for _ in range(workers)]

        def any_ran() -> bool:
            return any(process.first for process in crew)

        def left() -> int:
            ran = sum(process.ran for process in crew)
            notice(ran)
            return jobs - ran

        def over() -> bool:
            return time.monotonic() > deadline

        wait_for(any_ran, crew, TIMEOUT, "the first job")
        begun(sum(process.ran for process in crew))
        deadline = time.monotonic() + limit
        wait_for(lambda: left() <= 0 or over(), crew, TIMEOUT, "the jobs to run")
        cut = left() > 0
        wait_for(lambda: cut or settled(), crew, TIMEOUT, "the jobs to be settled")
        end = time.time()
        ended(sum(process.ran for process in crew))
        for process in crew:
            process.stop()
        reports = [process.finished() for process in crew]
    first = min(report["first"] for report in reports if report["ran"])
    spent = [process.cpu for process in crew]
    cpu = sum(seconds for seconds, _ in spent) / max(1, sum(ran for _, ran in spent)) * 1e6
    return Drained(jobs if not cut else sum(report["ran"] for report in reports), end - first, cpu, reports, cut)


def drain_treadle(place: BenchPlace, jobs: int, order: Order, notice: Notice, filled: Notice) -> Drained:
    """Fill treadle's tables through the app and let one worker drain them."""
    with Treadle(place.url) as app:
        task = app.register("noop", _noop)
        for stored, size in steps(jobs):
            task.enqueue_many([PAYLOAD] * size)
            filled(stored)

        def settled() -> bool:
            return not app.find(state=State.RUNNING, limit=1).jobs

        drained = drain(order, jobs, settled=settled, notice=notice)
        succeeded = app.count(task="noop")[State.SUCCEEDED]
    if succeeded != jobs:
        raise AssertionError(f"{succeeded:,} of {jobs:,} jobs succeeded")
    return drained


def drain_twin(place: BenchPlace, jobs: int, notice: Notice) -> Drained:
    """The same of bare SQL."""
    twin = make_twin(place.twin or {})
    try:
        twin.create()
        twin.fill(jobs)
        return drain(Order("worker", twin=place.twin), jobs, settled=lambda: not twin.open_jobs(), notice=notice)
    finally:
        twin.close()


def enqueue(order: Order, notice: Notice = lambda _: None) -> dict[str, Any]:
    """Let a process enqueue; its report, with `seconds` and the CPU seconds it `spent`."""
    with MeasuredProcess(order) as process:

        def done() -> bool:
            notice(process.ran)
            return process.result is not None

        wait_for(done, [process], TIMEOUT, "the next job to be stored")
        return process.finished()


def latency(
    worker: Order,
    pace: Order,
    notice: Notice = lambda _: None,
    start: Callable[[Order], MeasuredProcess] = MeasuredProcess,
) -> list[float]:
    """Milliseconds from just before the enqueue to the start of the handler, of jobs that find an idle worker."""
    with start(worker) as process:
        wait_for(lambda: process.ready is not None, [process], TIMEOUT, "the worker")
        time.sleep(1.0)  # it listens, and has looked once

        with start(pace._replace(jobs=5)) as warm:
            warm.finished()  # connections are open, caches filled
        wait_for(lambda: process.ran >= 5, [process], TIMEOUT, "the first jobs")
        with start(pace) as sender:

            def done() -> bool:
                notice(process.ran - 5)
                return process.ran >= pace.jobs + 5

            wait_for(done, [process, sender], TIMEOUT, "the jobs to start")
            sender.finished()
        process.stop()
        return [wait * 1000 for wait in process.finished()["waits"][5:]]


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99, by the names of the JSON."""
    return {f"p{share}_ms": round(percentile(milliseconds, share / 100), 3) for share in (50, 95, 99)}


def steps(jobs: int) -> Iterator[tuple[int, int]]:
    """How many are stored after each call, and how many that call stores."""
    for start in range(0, jobs, STEP):
        size = min(STEP, jobs - start)
        yield start + size, size


def _noop(user_id: int, template: str, locale: str) -> None:
    """Only enqueued here; the worker is another process."""
