"""The processes of a run: workers whose handlers leave traces, and a producer that keeps them busy.

Their notes, after what and when:
    start, end, broke   job, attempt, token                        a handler begins, returns, raises or is stopped
    claim               job, attempt, token
    settle              job, attempt, revision, what, fence, outcome   of the change, as the store answered
    unanswered          job, revision                              of a change; it may have been written all the same
    extend              job, token, renewal, lease                 as the store answered; `when` is before it was asked
    intend              job, task                                  about to be enqueued
    ack                 job, job in the receipt, created, why it was refused
    cancel              job
"""

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.chaos.notes import Notebook
from tests.support.making import unstored
from treadle import Context, EngineUnavailable, GiveUp, NotPossible, Retry, Snooze, Treadle
from treadle.engines.contract import Engine
from treadle.engines.values import Lease, RenewalResult, Turn
from treadle.model import Job, new_id

PATIENT = Retry(max_attempts=1000, base=0.05, cap=0.2, jitter=0.05)  # no run is so unlucky as to spend it
SLOTS = 3
BACKLOG = 30  # pending jobs below which the producer makes more
POISON_PERIOD = 4.0  # seconds between two poison jobs
POISONED = 66  # exit code of a process that a poison job ended
SHARES = {
    "plain": 30,
    "coroutine": 30,
    "stepwise": 12,
    "long": 3,
    "flaky": 8,
    "slow": 6,
    "slow_coroutine": 4,
    "sleepy": 4,
    "keyed": 6,
    "fragile": 4,
    "hopeless": 1,
    "unwanted": 5,
}  # fmt: skip
STEPS = 5
CENT = 10_000


class Crew(NamedTuple):
    """What every process of a run knows."""

    url: Callable[[str], str]  # the store, for the process of this name
    folder: Path
    lease: float
    seed: int

    def prepare(self) -> None:
        """Load what a worker needs, once, before the forks; leaves nothing open."""
        app = make_app(self.url("prepare"), print)
        app.worker()
        app.close()

    def work(self, name: str) -> None:
        """Be a worker until SIGTERM."""
        note = Notebook(self.folder / f"{name}.jsonl").note
        log = logging.FileHandler(self.folder / f"{name}.log", delay=True)
        log.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[log])
        app = make_app(self.url(name), note)
        app._store.engine = Recorder(app.engine, note)  # type: ignore[misc, assignment]
        app.run_worker(name=name, concurrency=SLOTS, lease=self.lease, grace=0.5, poll=0.05)

    def produce(self, name: str) -> None:
        """Keep the workers busy until the file `enough` appears; last, some poison with its neighbours."""
        note = Notebook(self.folder / f"{name}.jsonl").note
        producer = Producer(make_app(self.url(name), note), note, Random(f"{self.seed}/{name}"))
        while not (self.folder / "enough").exists():
            producer.turn()
        producer.part()


# --------------------------------------------------------------------------------------------- the workers


class Recorder:
    """An engine that writes down what the store answered to a worker."""

    def __init__(self, engine: Engine, note: Any) -> None:
        self._engine = engine
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def turn(self, changes: Any, claim: Any = None, **more: Any) -> Turn:
        try:
            answer = self._engine.turn(changes, claim, **more)
        except EngineUnavailable:
            for change in changes:
                self._note("unanswered", time.time(), change.before.id, change.after.revision)
            raise
        now = time.time()
        for change, verdict in zip(changes, answer.verdicts, strict=True):
            job, fence, outcome = change.before, change.fence.value, verdict.ruling.value
            self._note("settle", now, job.id, job.attempt, change.after.revision, change.kind, fence, outcome)
        for job in answer.jobs:
            self._note("claim", now, job.id, job.attempt, job.lease_token)
        return answer

    def extend(self, holds: list[Lease], *, lease: float, **more: Any) -> list[RenewalResult]:
        asked = time.time()
        answer = self._engine.extend(holds, lease=lease, **more)
        for hold, held in zip(holds, answer, strict=True):
            self._note("extend", asked, hold.job_id, hold.token, held.renewal.value, lease)
        return answer


def make_app(url: str, note: Any) -> Treadle:
    """The app of a run; nothing is opened yet."""
    app = Treadle(url, audit="everything")

    @contextmanager
    def traced(ctx: Context) -> Iterator[str]:
        """Leaves the traces of a handler; gives the signature it puts on its result and progress."""
        who = (ctx.job.id, ctx.attempt, ctx.job.lease_token)
        signature = f"{ctx.job.worker}/{ctx.attempt}"
        note("start", time.time(), *who)
        try:
            ctx.progress(0, signature)
            yield signature
        except BaseException:
            note("broke", time.time(), *who)
            raise
        note("end", time.time(), *who)

    @app.task(retry=PATIENT)
    def plain(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            time.sleep(seconds)
        return signature

    @app.task(retry=PATIENT)
    async def coroutine(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            await asyncio.sleep(seconds)
        return signature

    @app.task(retry=PATIENT)
    def stepwise(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            for step in range(1, STEPS + 1):
                time.sleep(seconds / STEPS)
                ctx.progress(step / STEPS, signature)
                ctx.add_cost(CENT)
        return signature

    @app.task(retry=PATIENT)
    async def long(ctx: Context, seconds: float) -> str:  # lives on renewals
        with traced(ctx) as signature:
            for step in range(1, STEPS + 1):
                await asyncio.sleep(seconds)
                ctx.progress(step / STEPS, signature)
        return signature

    @app.task(retry=PATIENT)
    def flaky(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            time.sleep(seconds)
            if ctx.job.failures == 0:
                raise OSError("the first time always fails")
        return signature

    @app.task(retry=PATIENT, timeout=0.2)
    def slow(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            while ctx.job.failures == 0 and not ctx.cancelled:
                time.sleep(0.01)
            time.sleep(seconds / 8)
            if ctx.cancelled:
                raise TimeoutError("too slow")
        return signature

    @app.task(retry=PATIENT, timeout=0.2)
    async def slow_coroutine(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            await asyncio.sleep(60 if ctx.job.failures == 0 else seconds / 8)
        return signature

    @app.task(retry=PATIENT)
    async def sleepy(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            if ctx.attempt == 1:
                raise Snooze(seconds)
            await asyncio.sleep(seconds)
        return signature

    @app.task(retry=PATIENT, unique="active")
    def keyed(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            time.sleep(seconds)
        return signature

    @app.task(retry=Retry(max_attempts=1))
    def fragile(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            time.sleep(seconds)
        return signature

    @app.task(retry=PATIENT)
    async def hopeless(ctx: Context, seconds: float) -> str:
        with traced(ctx):
            raise GiveUp("no use")

    @app.task(retry=PATIENT)
    def unwanted(ctx: Context, seconds: float) -> str:
        with traced(ctx) as signature:
            time.sleep(seconds)
            if ctx.job.failures == 0:  # after a cancel request this must be the end
                raise OSError("the first time always fails")
        return signature

    @app.task
    def poison(ctx: Context, seconds: float) -> None:
        with traced(ctx):
            time.sleep(seconds / 4)
            os._exit(POISONED)

    @app.task
    async def poison_coroutine(ctx: Context, seconds: float) -> None:
        with traced(ctx):
            await asyncio.sleep(seconds / 4)
            os.kill(os.getpid(), signal.SIGKILL)

    return app


# --------------------------------------------------------------------------------------------- the producer


class Producer:
    """Enqueues in batches, repeats itself, and changes its mind about some."""

    def __init__(self, app: Treadle, note: Any, random: Random) -> None:
        self._app = app
        self._note = note
        self._random = random
        self._made: deque[Job] = deque(maxlen=200)
        self._poison_at = time.monotonic() + POISON_PERIOD / 2

    def turn(self) -> None:
        """Make a batch if there is room for one; cancel some jobs, most of them while they run."""
        running = self._patiently(lambda: self._app.find(state="running", task="unwanted", limit=20)).jobs
        for job in running:
            if not job.cancel_requested and self._random.random() < 0.1:
                self._cancel(job.id)
        if len(self._patiently(lambda: self._app.find(state="pending", limit=BACKLOG)).jobs) == BACKLOG:
            time.sleep(0.02)
            return
        tasks = self._random.choices(list(SHARES), list(SHARES.values()), k=self._random.randint(1, 12))
        batch = [self._job(task) for task in tasks]
        if time.monotonic() > self._poison_at:
            self._poison_at = time.monotonic() + POISON_PERIOD
            batch.append(self._poison(self._random.choice((1, 2, 2, 3))))
        if self._made and self._random.random() < 0.5:
            batch += self._random.choices(self._made, k=self._random.randint(1, 3))
        self._submit(batch)

    def part(self) -> None:
        """The last batch, worked on when no more faults come from outside: poison of each budget, and neighbours."""
        self._submit([self._poison(1), self._poison(2), self._poison(3), *(self._job("plain") for _ in range(20))])

    def _job(self, task: str, **options: Any) -> Job:
        if task == "keyed":
            options["key"] = f"key {self._random.randrange(6)}"
        return unstored(self._app.tasks[task].using(id=new_id(), **options), round(self._random.uniform(0.05, 0.4), 3))

    def _poison(self, max_attempts: int) -> Job:
        task = self._random.choice(("poison", "poison_coroutine"))
        return self._job(task, retry=Retry(max_attempts=max_attempts))

    def _submit(self, batch: list[Job]) -> None:
        for job in batch:
            self._note("intend", time.time(), job.id, job.task)
        receipts = self._patiently(lambda: self._app.engine.enqueue(batch))
        for job, receipt in zip(batch, receipts, strict=True):
            self._note("ack", time.time(), job.id, receipt.job.id, receipt.created, receipt.refused)
            if receipt.created:
                self._made.append(job)
                if job.task == "unwanted" and self._random.random() < 0.2:
                    self._cancel(job.id)

    def _cancel(self, job_id: str) -> None:
        self._note("cancel", time.time(), job_id)
        with suppress(NotPossible):  # it has ended
            self._patiently(lambda: self._app.cancel(job_id, actor="producer", reason="changed its mind"))

    @staticmethod
    def _patiently(act: Any) -> Any:
        """A frozen worker may hold the file for a while, or the server be down; repeating is safe."""
        while True:
            try:
                return act()
            except EngineUnavailable:
                time.sleep(0.05)
