"""What the scenarios measure: one function each, from a place, a side and a size to figures."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.peers import Peer
from benchmarks.requests import ServerUnderLoad
from benchmarks.scenarios import CROWDS, LATER, Side
from benchmarks.stores import StorePlace, spent
from treadle import State
from treadle.bench import measure
from treadle.bench.meter import percentile
from treadle.bench.processes import MeasuredProcess, wait_for
from treadle.bench.twins import PAYLOAD
from treadle.bench.work import Order
from treadle.engines.values import Claim
from treadle.model import new_id

Figures = dict[str, float]
CLAIMED = 20  # jobs of a measured claim
LIMIT = 60.0  # seconds after which a drain is cut: something is wrong, and the figure shows it


class Run(NamedTuple):
    """One run of one side."""

    place: StorePlace
    side: Side
    jobs: int
    crowd: int
    first: bool  # whether the place is new
    peer: Peer | None = None

    def order(self, role: str, **more: Any) -> Order:
        known = {name: self.side[name] for name in ("handler", "how", "busy") if name in self.side}
        where = {"twin": self.place.twin_place} if self.side.get("bare") else {"url": self.place.url}
        return Order(role, **{**known, **where, **more})

    @property
    def start(self) -> Callable[[Order], MeasuredProcess]:
        return MeasuredProcess if self.peer is None else partial(self.peer.start, place=self.place)


def drain(run: Run) -> Figures:
    """Workers drain what is stored: jobs a second, CPU a job of workers and server, what the server wrote."""
    place, side = run.place, run.side
    stays = "backlog" in side or side.get("crowd") == "another tenant"  # something is left to run at the end
    if run.first:
        _surround(run)
    _fill(run)
    costs: list[dict[str, float]] = []

    def note(ran: int) -> None:
        costs.append({**place.costs(), "ran": ran})

    commits = place.commits()
    drained = measure.drain(
        run.order(
            "worker", settings={"queues": ["default", "paused"]} if side.get("crowd") == "a paused queue" else None
        ),
        run.jobs,
        workers=side.get("workers", 1),
        settled=(lambda: True) if stays else partial(_settled, run),
        limit=LIMIT,
        begun=note,
        ended=note,
        start=run.start,
    )
    ran = sum(report["ran"] for report in drained.reports)
    begin = min(report["first"] for report in drained.reports if report["ran"])
    seconds = max(report["last"] for report in drained.reports) - begin if stays or drained.cut else drained.seconds
    found = {"jobs_per_second": ran / seconds, "worker_cpu_us": drained.cpu}
    found |= _costs_a_job(costs[0] | commits, costs[1] | place.commits(), run.jobs)
    found["cut"] = float(drained.cut)
    found["rss_mb"] = max(report["rss"] for report in drained.reports) / 1e6
    if run.peer is None and not side.get("bare"):
        found |= place.state()
        _check(run, ran, stays or drained.cut)
    return found


def enqueue(run: Run) -> Figures:
    """One process enqueues: calls a second, CPU a job, milliseconds a call, and how much memory it took."""
    _prepared(run)
    before = run.place.commits() | run.place.costs()
    with run.start(run.order("enqueue", jobs=run.jobs)) as process:
        wait_for(lambda: process.result is not None, [process], measure.TIMEOUT * 5, "the jobs to be stored")
        after = run.place.costs()
        report = process.finished()
    found = {"jobs_per_second": run.jobs / report["seconds"], "client_cpu_us": report["spent"] / run.jobs * 1e6}
    found |= _costs_a_job(before, after | run.place.commits(), run.jobs) | {"grew_mb": report.get("grew", 0) / 1e6}
    if run.side.get("how") != "bulk":
        found |= measure.percentiles([wait * 1000 for wait in report["waits"]])
    return found


def latency(run: Run) -> Figures:
    """Milliseconds from just before the enqueue to the start of the handler, on an idle queue."""
    _prepared(run)
    if run.side.get("embedded"):
        with run.start(run.order("embedded", jobs=run.jobs, rate=measure.RATE)) as process:
            wait_for(lambda: process.result is not None, [process], measure.TIMEOUT, "the jobs to run")
            waits = [wait * 1000 for wait in process.finished()["waits"]]
    else:
        pace = run.order("pace", jobs=run.jobs, rate=measure.RATE)
        waits = measure.latency(run.order("worker"), pace, start=run.start)
    return {**measure.percentiles(waits), **_distribution(waits)}


def open_loop(run: Run) -> Figures:
    """Jobs arrive at a rate that nobody holds back: how long they wait, and whether a backlog grows."""
    found, _ = _paced(run, senders=2, step=1)
    return found


def served(run: Run) -> Figures:
    """The open loop beside a crowd, while clients ask a server about it: how long do jobs and answers wait?"""
    _surround(run)
    run.place.analyze()
    if "pause" not in run.side:
        return _paced(run, senders=2, step=1)[0]
    with ServerUnderLoad(run.place, pause=run.side["pause"]) as server:
        found, _ = _paced(run, senders=2, step=1)
    return {**found, **server.figures()}


def soak(run: Run) -> Figures:
    """A steady load for minutes: is the end as good as the beginning, and how large does the hot table get?"""
    sizes: list[float] = []

    def look() -> None:
        sizes.append(run.place.state()["hot_table_bytes"])

    found, reports = _paced(run, senders=1, step=40, each_second=look)
    waits = sorted(
        (start, wait) for report in reports for start, wait in zip(report["starts"], report["waits"], strict=True)
    )
    quarter = max(1, len(waits) // 4)
    early, late = waits[:quarter], waits[-quarter:]
    for name, part in (("first", early), ("last", late)):
        span = max(part[-1][0] - part[0][0], 1e-6)
        found[f"{name}_quarter_p50_ms"] = percentile([wait for _, wait in part], 0.5) * 1000
        found[f"{name}_quarter_samples_per_second"] = len(part) / span
    found["last_over_first"] = found["last_quarter_samples_per_second"] / found["first_quarter_samples_per_second"]
    found["hot_table_mb_most"] = max(sizes, default=0.0) / 1e6
    return found


def claim(run: Run) -> Figures:
    """Milliseconds of a claim of 20 jobs, straight from the engine."""
    lanes = run.side["lanes"] or run.crowd
    row = {"lane": f"'lane ' || n % {lanes}"}
    if run.side.get("later"):
        run.place.fill(run.crowd, {**row, "due_at": LATER})
        run.place.fill(run.jobs * CLAIMED * 2)
    else:
        run.place.fill(max(run.crowd, run.jobs * CLAIMED * 2), row)
    return _claims(run.place, run.jobs)


def pinned(run: Run) -> Figures:
    """A transaction that stays open keeps every dead row alive: what do claims cost after so many jobs?"""
    place = run.place
    place.fill(60 * CLAIMED)
    before = _claims(place, 50)
    with psycopg.connect(place.server) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_xact_id()")
        place.fill(run.jobs)
        drained = measure.drain(run.order("worker"), run.jobs, settled=lambda: True)
        place.fill(60 * CLAIMED)
        after = _claims(place, 50)
        state = place.state()
    times = after["claim_p50_ms"] / before["claim_p50_ms"]
    return {**after, "before_p50_ms": before["claim_p50_ms"], "times": times, "jobs_per_second": drained.rate, **state}


def memory(run: Run) -> Figures:
    """The most memory of a worker beside a large backlog."""
    run.place.fill(run.crowd)
    drained = measure.drain(run.order("worker"), run.jobs, settled=lambda: True)
    return {"rss_mb": drained.reports[0]["rss"] / 1e6}


def busy(run: Run) -> Figures:
    """Workers with short jobs: how many settles found their row locked, how often somebody waited for a lock."""
    run.place.fill(run.jobs)
    before = run.place.costs() | run.place.commits()
    start = partial(MeasuredProcess, command=(sys.executable, str(Path(__file__).with_name("counting_worker.py"))))
    drained = measure.drain(
        run.order("worker"), run.jobs, workers=run.side["workers"], settled=partial(_settled, run), start=start
    )
    used = spent(before, run.place.costs() | run.place.commits())
    met = sum(report.get("busy", 0) for report in drained.reports)
    return {
        "jobs_per_second": drained.rate,
        "busy_settles": met,
        "busy_share": met / run.jobs,
        "deadlocks": used["deadlocks"],
        "lock_waits_over_50_ms": used["lock_waits"],
    }


def import_time(run: Run) -> Figures:
    """CPU milliseconds of an import in a new Python; the median of eleven."""
    script = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    command = [sys.executable, "-c", script.format(run.side["module"])]
    times = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(11)]
    return {"import_ms": statistics.median(times) * 1000}


# ------------------------------------------------------------------------------------------------ their parts


def _prepared(run: Run) -> StorePlace:
    if run.side.get("bare") and run.first:
        run.place.twin.create()
    if run.peer is not None and run.first:
        run.peer.set_up(run.place)
    return run.place


def _surround(run: Run) -> None:
    """Put beside the jobs what the side asks for."""
    _prepared(run)
    place, side = run.place, run.side
    if name := side.get("crowd"):
        place.fill(run.crowd, CROWDS[name])
        if name == "a paused queue":
            place.app.pause(queue="paused", reason="a crowd")
    match side.get("lanes_by"):
        case "enqueue":
            for number in range(run.crowd):
                place.task.using(lane=f"lane {number}", run_after="1h").enqueue(*PAYLOAD.values())
        case "retries":
            place.fill(run.crowd, {"lane": "'lane ' || n"}, task="failing")
            measure.drain(run.order("worker"), run.crowd, settled=partial(_settled, run), limit=LIMIT)


def _fill(run: Run) -> None:
    if run.peer is not None:
        run.peer.fill(run.place, run.jobs)
    elif run.side.get("bare"):
        run.place.twin.fill(run.jobs)
    else:
        run.place.fill(run.side.get("backlog", run.jobs), run.side.get("row"))


def _settled(run: Run) -> bool:
    if run.peer is not None:
        return run.peer.settled(run.place)
    if run.side.get("bare"):
        return not run.place.twin.open_jobs()
    tasks = ("noop", "failing") if run.side.get("lanes_by") else ("noop",)
    return not any(run.place.app.find(state=State.RUNNING, task=task, limit=1).jobs for task in tasks)


def _check(run: Run, ran: int, stays: bool) -> None:
    """No figure of a run that lost a job, or ran one twice."""
    if not stays and ran != run.jobs:
        raise AssertionError(f"{ran:,} jobs ran, but {run.jobs:,} were stored")


def _costs_a_job(before: Figures, after: Figures, jobs: int) -> Figures:
    """Server CPU and what it wrote, a job; of a drain, of the jobs that ran between the two looks."""
    used = spent(before, after)
    if "wal" not in used:
        return {}
    seen = max(1, used.get("ran", jobs))
    return {
        "server_cpu_us": used["server_cpu"] / seen * 1e6,
        "wal_bytes_a_job": used["wal"] / seen,
        "commits_a_job": used["commits"] / jobs,
        "deadlocks": used["deadlocks"],
        "lock_waits_over_50_ms": used["lock_waits"],
    }


def _paced(
    run: Run, *, senders: int, step: int, each_second: Callable[[], None] = lambda: None
) -> tuple[Figures, list[dict[str, Any]]]:
    """Senders at an even rate, and workers beside them; the waits, and the backlog as it was each second."""
    rate, backlog = run.side["rate"], [0]
    with ExitStack() as stack:
        workers = [stack.enter_context(run.start(run.order("worker"))) for _ in range(run.side.get("workers", 1))]
        wait_for(lambda: all(one.ready for one in workers), workers, measure.TIMEOUT, "the workers")
        time.sleep(1.0)  # they listen, and have looked once
        pace = run.order("pace", jobs=run.jobs // senders, rate=rate / senders, step=step)
        sending = [stack.enter_context(run.start(pace)) for _ in range(senders)]
        sent = run.jobs // senders * senders
        look_at = time.monotonic() + 1

        def done() -> bool:
            nonlocal look_at
            if time.monotonic() >= look_at:
                look_at += 1
                backlog.append(sum(one.ran for one in sending) * step - sum(one.ran for one in workers))
                each_second()
            return sum(one.ran for one in workers) >= sent

        wait_for(done, workers, measure.TIMEOUT, "the jobs to run")
        late = max(one.finished()["seconds"] for one in sending) - sent / rate
        for one in workers:
            one.stop()
        reports = [one.finished() for one in workers]
    waits = [wait * 1000 for report in reports for wait in report["waits"]]
    found = {
        **measure.percentiles(waits),
        **_distribution(waits),
        "backlog_most": max(backlog),
        "backlog_last": backlog[-1],
    }
    cpu = sum(one.cpu[0] for one in workers) / sent * 1e6
    return {**found, "worker_cpu_us": cpu, "sender_late_seconds": max(0.0, late)}, reports


def _claims(place: StorePlace, number: int) -> Figures:
    times = []
    for _ in range(number + 5):
        started, missing, thorough = time.perf_counter(), CLAIMED, False
        while missing:  # a claim may give fewer, and is asked again; if it gave none, it must look everywhere
            wanted = Claim(new_id(), "benchmark", missing, 600.0, tasks=["noop"], thorough=thorough)
            answer = place.app.engine.turn([], wanted)
            missing -= len(answer.claimed)
            if (thorough and not answer.claimed) or time.perf_counter() - started > LIMIT:
                raise AssertionError(f"{missing} of {CLAIMED} jobs were not claimed")
            thorough = not answer.claimed
        times.append((time.perf_counter() - started) * 1000)
    counted = times[5:]  # the first ones open connections and fill caches
    return {"claim_p50_ms": percentile(counted, 0.5), "claim_p95_ms": percentile(counted, 0.95)}


def _distribution(waits: Sequence[float]) -> Figures:
    """Every twentieth of the waits, for a plot."""
    return {f"d{share:02}": percentile(waits, share / 100) for share in range(5, 100, 5)}
