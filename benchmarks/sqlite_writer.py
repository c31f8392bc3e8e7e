"""One writer connection a process: behind a lock, or in a thread of its own? Four threads enqueue one job at a time."""

import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from treadle.engines import connect
from treadle.model import Job, new_id
from treadle.model.clock import SystemClock

THREADS, CALLS, ROUNDS = 4, 300, 5


def drive(call: Callable[[Job], object], now) -> float:
    def work() -> None:
        for _ in range(CALLS):
            call(Job(new_id(), "noop", "{}", now, now))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * CALLS / (time.perf_counter() - start)


def by_thread(engine) -> tuple[Callable[[Job], object], Callable[[], None]]:
    """The same calls, handed to one thread and waited for."""
    calls: queue.SimpleQueue = queue.SimpleQueue()

    def serve() -> None:
        while (item := calls.get()) is not None:
            job, future = item
            future.set_result(engine.enqueue([job]))

    server = threading.Thread(target=serve)
    server.start()

    def call(job: Job) -> object:
        future: Future = Future()
        calls.put((job, future))
        return future.result()

    return call, lambda: (calls.put(None), server.join())


def main() -> None:
    figures: dict[str, list[float]] = {"lock": [], "thread": []}
    for synchronous in ("full", "normal"):
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder)}/bench.db?synchronous={synchronous}"
                engine = connect(url, clock=SystemClock().now)
                engine.migrate()
                figures["lock"].append(drive(lambda job, engine=engine: engine.enqueue([job]), engine.now()))
                call, stop = by_thread(engine)
                figures["thread"].append(drive(call, engine.now()))
                stop()
                engine.close()
        for name, rates in figures.items():
            spread = f"({min(rates):,.0f}-{max(rates):,.0f})"
            print(f"{synchronous:7}{name:8}{statistics.median(rates):8,.0f} calls/s  {spread}")
            rates.clear()


if __name__ == "__main__":
    main()
