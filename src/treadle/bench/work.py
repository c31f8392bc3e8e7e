"""The process that is measured: `python -m treadle.bench.work`, with an order on its standard input.

It works until that input is closed, and reports as meter.py says. The URL comes that way too: other users of the
machine can read a command line.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from treadle import Retry, Treadle
from treadle.bench.meter import Meter, first_line, resident, stop_when_told, tell
from treadle.bench.twins import PAYLOAD, PAYLOAD_JSON, BarePostgres, BareSqlite, Twin
from treadle.errors import TreadleError

WARM_UP = 3  # calls that are not counted: they open connections and fill caches


class Order(NamedTuple):
    """What a process is to do. `twin` says where bare SQL has its table, and that it is what is measured."""

    role: str  # worker, enqueue, pace, embedded
    url: str = ""
    listen_url: str | None = None
    twin: dict[str, str] | None = None
    handler: str = "async"  # async or def
    how: str = "one"  # of an enqueue: one, bulk, key_new, key_taken
    jobs: int = 0
    rate: float = 0.0  # of a pace: jobs a second
    step: int = 1  # of a pace: jobs a call
    busy: float = 0.0  # seconds a handler takes
    settings: dict[str, Any] | None = None


def main() -> None:
    order = Order(**json.loads(first_line()))
    try:
        if order.twin is not None:
            ROLES[f"bare {order.role}"](order, make_twin(order.twin))
        else:
            with Treadle(order.url, listen_url=order.listen_url, **(order.settings or {})) as app:
                ROLES[order.role](order, app)
    except TreadleError as error:
        tell(error=str(error), kind=type(error).__name__)
        sys.exit(1)


def make_twin(place: dict[str, str]) -> Twin:
    """The twin at this place: a schema of PostgreSQL, or a file."""
    return BarePostgres(place["url"], place["schema"]) if "schema" in place else BareSqlite(Path(place["path"]))


def register(app: Treadle, order: Order, meter: Meter) -> None:
    """The tasks of a measured worker: one that does nothing, one that says how long it waited, one that fails."""
    mark, now, busy = meter.mark, time.time, order.busy

    async def noop(user_id: int, template: str, locale: str) -> None:  # noqa: ARG001
        mark(now())

    def plain(user_id: int, template: str, locale: str) -> None:  # noqa: ARG001
        mark(now())
        if busy:
            time.sleep(busy)

    async def sent(at: float) -> None:
        meter.mark_sent(at)

    async def failing(user_id: int, template: str, locale: str) -> None:  # noqa: ARG001
        mark(now())
        raise RuntimeError("on purpose")

    app.register("noop", noop if order.handler == "async" else plain)
    app.register("sent", sent)
    app.register("failing", failing, retry=Retry(base=3600, jitter=0))


def work(order: Order, app: Treadle) -> None:
    """A worker at its defaults, or with the order's settings."""
    meter = Meter()
    register(app, order, meter)
    worker = app.worker()
    stop_when_told(worker.stop)
    meter.begin()
    worker.run()
    meter.end()


def enqueue(order: Order, app: Treadle) -> None:
    """Enqueue so many jobs, and say how long it took."""
    meter = Meter()
    register(app, order, meter)
    noop, mark, now = app.tasks["noop"], meter.mark, time.time
    arguments = tuple(PAYLOAD.values())
    for number in range(WARM_UP):
        noop.using(key=f"warm-up {number}").enqueue(*arguments)
        noop.enqueue(*arguments)
    noop.using(key="taken").enqueue(*arguments)

    def bulk() -> Iterator[dict[str, Any]]:
        for _ in range(order.jobs):
            mark(now())
            yield PAYLOAD

    started = _start(meter)
    match order.how:
        case "bulk":
            noop.enqueue_many(bulk())
        case "key_new":
            for number in range(order.jobs):
                noop.using(key=f"key {number}").enqueue(*arguments)
                mark(now())
        case "key_taken":
            for _ in range(order.jobs):
                noop.using(key="taken").enqueue(*arguments)
                mark(now())
        case _:
            for _ in range(order.jobs):
                noop.enqueue(*arguments)
                mark(now())
    _finish(meter, started)


def pace(order: Order, app: Treadle) -> None:
    """Enqueue jobs at an even rate, whatever becomes of them; each carries the moment when it was sent."""
    meter = Meter()
    register(app, order, meter)
    sent = app.tasks["sent"]
    app.open()

    def send(step: int) -> None:
        if step == 1:
            sent.enqueue(time.time())
        else:
            sent.enqueue_many([(time.time(),)] * step)
        meter.mark(time.time())

    started = _start(meter)
    _evenly(order, send)
    _finish(meter, started)


def embedded(order: Order, app: Treadle) -> None:
    """A worker and whoever enqueues in one process."""
    meter = Meter()
    register(app, order, meter)
    worker = app.worker()
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    sent = app.tasks["sent"]
    sent.enqueue(time.time())
    _until(lambda: len(meter.waits) > 0)
    del meter.waits[:], meter.starts[:]
    meter.begin()
    _evenly(order, lambda _: sent.enqueue(time.time()))
    _until(lambda: len(meter.waits) >= order.jobs)
    worker.stop()
    thread.join()
    meter.end()


def bare_work(order: Order, twin: Twin) -> None:
    """The twin's worker."""
    meter, stopped = Meter(), threading.Event()
    stop_when_told(stopped.set)
    meter.begin()
    mark, now = meter.mark, time.time

    def handle(payload: dict[str, Any]) -> None:
        if "at" in payload:
            meter.mark_sent(payload["at"])
        else:
            mark(now())
            if order.busy:
                time.sleep(order.busy)

    twin.work(handle, stopped.is_set)
    meter.end()


def bare_enqueue(order: Order, twin: Twin) -> None:
    """Insert so many jobs into the twin's table."""
    meter = Meter()
    for _ in range(WARM_UP):
        twin.insert(PAYLOAD_JSON)
    started = _start(meter)
    if order.how == "bulk":
        twin.fill(order.jobs)
        meter.starts.extend([time.time()] * order.jobs)
    else:
        for _ in range(order.jobs):
            twin.insert(PAYLOAD_JSON)
            meter.mark(time.time())
    _finish(meter, started)


def bare_pace(order: Order, twin: Twin) -> None:
    """Insert jobs at an even rate."""
    meter = Meter()
    started = _start(meter)

    def send(step: int) -> None:
        for _ in range(step):
            twin.insert(json.dumps({"at": time.time()}))
        meter.mark(time.time())

    _evenly(order, send)
    _finish(meter, started)


ROLES: dict[str, Any] = {
    "worker": work,
    "enqueue": enqueue,
    "pace": pace,
    "embedded": embedded,
    "bare worker": bare_work,
    "bare enqueue": bare_enqueue,
    "bare pace": bare_pace,
}


class Started(NamedTuple):
    """When a measured stretch began, and what had been used by then."""

    wall: float
    cpu: float
    memory: int
    stopped: threading.Event
    reported: threading.Event


def _start(meter: Meter) -> Started:
    stopped, reported = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        if not reported.is_set():
            os._exit(1)  # whoever started us is gone, or has seen enough

    stop_when_told(stop)
    meter.begin()
    return Started(time.perf_counter(), time.process_time(), resident(), stopped, reported)


def _finish(meter: Meter, started: Started) -> None:
    """Report, and stay until we are told to stop: the server's process that served us is still to be looked at."""
    seconds, spent = time.perf_counter() - started.wall, time.process_time() - started.cpu
    grew = resident() - started.memory
    started.reported.set()
    meter.waits.extend(after - moment for moment, after in pairwise(meter.starts))  # how long each call took
    meter.end(seconds=seconds, spent=spent, grew=grew)
    started.stopped.wait()


def _evenly(order: Order, send: Any) -> None:
    begin = time.perf_counter()
    for number in range(0, order.jobs, order.step):
        if (early := begin + number / order.rate - time.perf_counter()) > 0:
            time.sleep(early)
        send(min(order.step, order.jobs - number))


def _until(done: Any, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not done() and time.monotonic() < deadline:
        time.sleep(0.005)


if __name__ == "__main__":
    main()
