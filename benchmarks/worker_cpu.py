"""What a job costs a worker in CPU, outside the store: microseconds on the loop's thread and on the engine's thread.

python -m benchmarks.worker_cpu [async|def] [sqlite]

By default the store is a stub that gives plain jobs and takes what it is told, so that the figures are the worker's
alone. With `sqlite`, a real file; what a thread does inside `turn` is not counted, and is printed beside.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

from treadle import Treadle
from treadle.engines.values import APPLIED, Claim, ClaimedJob, Turn
from treadle.model import Job, lifecycle, new_id

JOBS, ROUNDS = 20_000, 5
PAYLOAD = {"user_id": 12345, "template": "welcome", "locale": "en"}
ANSWER = 0.005  # seconds that the stub takes for a turn, as a server would: so batches are as large as with one
MEMORY = Path("/dev/shm")  # noqa: S108 - a file there is never written to a disk


class Cost(NamedTuple):
    """Microseconds a job."""

    loop: float  # CPU of the event loop's thread
    engine: float  # CPU of the engine's thread, outside `turn`
    turn: float  # CPU inside `turn`
    process: float  # CPU of the whole process, outside `turn`
    switches: float  # how often a thread gave its core away, a job
    batch: float  # jobs a turn


class Metered:
    """An engine whose turns are metered; `finished` is called when all jobs are settled."""

    def __init__(self, turn: Callable[..., Turn], finished: Callable[[], None]) -> None:
        self._turn, self._finished = turn, finished
        self.settled, self.turns, self.inside, self.began, self.ended = 0, 0, 0.0, 0.0, 0.0

    def __call__(self, changes: Sequence[Any], claim: Claim | None = None, **options: Any) -> Turn:
        entered = time.thread_time()
        self.began = self.began or entered
        answer = self._turn(changes, claim, **options)
        left = time.thread_time()
        self.inside += left - entered
        self.settled += len(changes)
        self.turns += 1
        if self.settled >= JOBS and not self.ended:
            self.ended = left
            self._finished()
        return answer


def stub(jobs: list[ClaimedJob]) -> Callable[..., Turn]:
    """A store that only gives these and takes everything."""

    def turn(changes: Sequence[Any], claim: Claim | None = None, **_: Any) -> Turn:
        time.sleep(ANSWER)
        given = jobs[-claim.limit :] if claim is not None else []
        del jobs[len(jobs) - len(given) :]
        return Turn([APPLIED] * len(changes), given, datetime.now(UTC))

    return turn


def claimed(task: str, payload_json: str) -> ClaimedJob:
    now = datetime.now(UTC)
    job = Job(new_id(), task, payload_json, now, now)
    return ClaimedJob.of(lifecycle.claim(job, now, worker="w", token="t", lease=300.0).after)  # noqa: S106


async def drained(app: Treadle, turn: Callable[..., Turn]) -> Cost:
    """Let a worker drain the store."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    meter = Metered(turn, lambda: loop.call_soon_threadsafe(done.set))
    app.engine.turn = meter  # type: ignore[method-assign]
    began, process, switches = time.thread_time(), time.process_time(), getrusage(RUSAGE_SELF)
    async with app.worker(lease=300.0):
        await done.wait()
        on_loop, whole, after = time.thread_time() - began, time.process_time() - process, getrusage(RUSAGE_SELF)
    engine = meter.ended - meter.began - meter.inside
    parts = (part / JOBS * 1e6 for part in (on_loop, engine, meter.inside, whole - meter.inside))
    switched = after.ru_nvcsw - switches.ru_nvcsw + after.ru_nivcsw - switches.ru_nivcsw
    return Cost(*parts, switched / JOBS, JOBS / meter.turns)


def one_round(handler: str, real: bool) -> Cost:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        app = Treadle(f"sqlite:///{folder}/work.db")

        async def on_loop(user_id: int, template: str, locale: str) -> None: ...

        def in_thread(user_id: int, template: str, locale: str) -> None: ...

        task = app.register("noop", on_loop if handler == "async" else in_thread)
        app.migrate()
        if real:
            for _ in range(0, JOBS, 1000):
                task.enqueue_many([PAYLOAD] * 1000)
            turn: Callable[..., Turn] = app.engine.turn
        else:
            turn = stub([claimed("noop", task.payload.encode((), PAYLOAD)) for _ in range(JOBS)])
        gc.freeze()  # what the store holds is not the worker's to look through
        cost = asyncio.run(drained(app, turn))
        app.close()
        return cost


def main(handler: str = "async", store: str = "stub") -> None:
    rounds = [one_round(handler, store == "sqlite") for _ in range(ROUNDS)]
    print(f"Python {sys.version.split()[0]}, {handler} handlers, {store}: CPU us a job, median of {ROUNDS} (spread)")
    for name in Cost._fields:
        values = [getattr(cost, name) for cost in rounds]
        print(f"  {name:8} {statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
