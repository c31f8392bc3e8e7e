"""The worker: claims jobs, runs them, settles them.

Three threads share the work. The engine thread takes turns with the store: everything settled since the last turn goes
in, as many jobs as there is room for come out; outcomes that arrive meanwhile wait for the next turn, so batches grow
under load and shrink to one when idle. The event loop's thread fills the slots. The keeper renews the leases.
"""

import asyncio
import logging
import math
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from treadle.engines.contract import Engine
from treadle.engines.values import Claim, Lease, Renewal, Ruling, Verdict
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Change, Job, Reason, State, lifecycle, new_id
from treadle.model.lifecycle import Outcome, Refused, Released
from treadle.model.records import Schedule, WorkerInfo, silence
from treadle.schedules.firing import Scheduler
from treadle.tasks.context import StopReason
from treadle.tasks.task import Task
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.maintenance.housekeeping import Housekeeping
from treadle.worker.maintenance.presence import Presence
from treadle.worker.maintenance.recovery import Upkeep
from treadle.worker.outcomes import error_from, uncommitted
from treadle.worker.settle import committed
from treadle.worker.slots import Slots

log = logging.getLogger("treadle.worker")

LARGEST_BATCH = 500
AHEAD = 0.2  # seconds of work claimed before there is a free slot for it
PACE_MEMORY = 0.5  # seconds over which the pace of jobs is remembered
GLANCE = 0.25  # seconds between two looks at jobs that wait for a slot
ORPHANS = 2.0  # seconds between two looks for jobs that no live worker knows, if those are to fail
LAST_WORDS = 10.0  # seconds to settle what is left at the end, if the store does not answer


class Settling(NamedTuple):
    """An outcome on its way to the store."""

    attempt: Attempt
    outcome: Outcome
    change: Change


class Worker:
    """Runs the jobs of these tasks until it is told to stop: `async with worker:`, or `worker.run()`."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        config: WorkerConfig,
        logger: logging.Logger | None = None,
        *,
        declared: Sequence[Schedule] = (),
    ) -> None:
        self.config = config
        self.exhausted = False  # whether it stopped by itself: too many handlers that never end
        self._engine = engine
        self._tasks = tasks
        self._logger, self._log = logger, logger or log
        self._membership = Presence(engine, config, self._versions, lambda: len(self._held))
        self._upkeep = Upkeep(
            engine,
            config,
            holds=self._holds,
            scheduler=Scheduler(
                engine, config.name, declared, interval=config.tick, enabled=config.schedules, logger=logger
            ),
            housekeeping=Housekeeping(engine, config, tasks, self._membership.beat, logger),
            logger=logger,
        )
        self._keeper = Heartbeat(
            engine, config.lease, held=self._kept, tell=self._request_stop, heard=self._upkeep.heard, logger=logger
        )
        self._held: dict[str, Attempt] = {}  # by job id: claimed and not yet settled
        self._holding = threading.Lock()
        self._outcomes: deque[tuple[Attempt, Outcome]] = deque()
        self._settling: list[Settling] = []
        self._put_off: list[tuple[float, Attempt, Outcome]] = []  # until when, for their rows are locked
        self._starting: deque[Attempt] = deque()  # whose start must be written before it happens
        self._wake = threading.Event()
        self._stopping = False
        self._drained = False
        self._until_idle = False
        self._refusal: Exception | None = None  # why the store will have nothing of a worker that shall end
        self._rate = 0.0  # jobs settled a second, lately
        self._orphans_at = 0.0  # when to look again for jobs that no live worker knows
        self._idle = False  # the last claim of ours found less than there was room for
        self._asked = threading.Event()
        self._bell: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ----------------------------------------------------------------------------------- start and stop

    def run(self, *, until_idle: bool = False) -> None:
        """Work in this thread until `stop`, SIGTERM or SIGINT; a second signal releases at once what still runs.

        With `until_idle`, also stop when nothing is due and nothing runs, and raise if the store refuses the worker.
        """
        self._until_idle = until_idle
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._run())
            loop.run_until_complete(loop.shutdown_asyncgens())
            if self._refusal is not None:
                raise self._refusal
        finally:
            # Not asyncio.run, which waits for every task: a handler that will not stop must not keep the process.
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined] # abandoned on purpose
            loop.close()

    def stop(self) -> None:
        """Ask a worker that was started with `run` to stop; safe from any thread and from a signal handler."""
        self._asked.set()
        if self._loop is not None and self._bell is not None:
            self._on_loop(self._bell.set)

    async def _run(self) -> None:
        self._bell = bell = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        async with self:
            while not self._asked.is_set():
                await bell.wait()

    def _signalled(self) -> None:
        if self._asked.is_set():
            self._log.warning("second signal: what still runs is released")
            self._hurry.set()
        self.stop()

    async def __aenter__(self) -> Self:
        for task in self._tasks.values():
            task.payload  # noqa: B018 - a handler that cannot be called is an error now, not at its first job
        config, self._loop, self._hurry = self.config, asyncio.get_running_loop(), asyncio.Event()
        self._slots = Slots(
            self._engine,
            self._tasks,
            config=config,
            loop=self._loop,
            report=self._report,
            clear=self._clear,
            exhausted=self._give_in,
            logger=self._logger,
        )
        await asyncio.to_thread(self._open)
        self._turning = threading.Thread(target=self._serve, name="treadle-engine", daemon=True)
        self._keeper.start()
        self._turning.start()
        self._log.info("worker %s: queues %s, %d slots", config.name, ", ".join(config.queues), config.concurrency)
        for task in self._tasks.values():
            if task.options.queue not in config.queues:
                self._log.info(
                    "task %s goes to queue %s, which this worker does not serve", task.name, task.options.queue
                )
            for follow in task.options.on_end or ():
                if follow is not None and follow.task and follow.task not in self._tasks:
                    self._log.warning("task %s is followed by task %s, which is not known here", task.name, follow.task)
        return self

    def _open(self) -> None:
        try:
            self._engine.open()
        except EngineUnavailable as error:  # it may come yet: the engine thread goes on trying
            self._log.warning("the store is not there yet: %s", error)

    async def __aexit__(self, *_: object) -> None:
        """Stop claiming, let handlers finish for the grace time, release the rest unburnt."""
        self._stopping = True
        self._slots.close()
        if self._slots.running:
            self._log.info("stopping: %d jobs may run for %g s more", len(self._slots.running), self.config.grace)
        try:
            await self._slots.drain(self.config.grace, self._hurry)
        finally:  # also when the host gives up waiting: what runs is released, not failed
            self._slots.abandon_all()
            self._drained = True
            self._wake.set()
        await asyncio.to_thread(self._turning.join)
        self._log.info("worker %s stopped", self.config.name)

    def _give_in(self) -> None:
        """Too many slots are lost to handlers that never end: only a new process gets them back."""
        self.exhausted = True
        self._stopping = True
        self._slots.close()
        self.stop()

    # ------------------------------------------------------------------------ said to the engine thread

    def _report(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """How an attempt ended. None, or a lost lease: there is nothing to write."""
        if outcome is None or attempt.stop_reason is StopReason.LOST:
            self._forget(attempt)
        else:
            attempt.ended = True
            self._outcomes.append((attempt, outcome))
        self._wake.set()

    def _forget(self, attempt: Attempt) -> None:
        """Hold it no longer; its job may be held anew by now, by a later attempt."""
        with self._holding:
            if self._held.get(attempt.job.id) is attempt:
                del self._held[attempt.job.id]

    def _kept(self) -> list[Attempt]:
        """What the keeper must renew: nothing any more, once the host has closed the loop that the handlers ran on."""
        return [] if self._loop is None or self._loop.is_closed() else list(self._held.values())

    def _holds(self, job: Job) -> bool:
        """Whether this very worker holds this very lease: what it runs has not crashed, whatever the clock says."""
        attempt = self._held.get(job.id)
        return attempt is not None and attempt.job.lease_token == job.lease_token

    def _clear(self, attempt: Attempt) -> None:
        self._starting.append(attempt)
        self._wake.set()

    def _request_stop(self, attempt: Attempt, why: StopReason) -> None:
        """Ask a handler to stop; a lost job is forgotten here and now, for its writes would be refused."""
        if why is StopReason.LOST:
            self._forget(attempt)
            self._wake.set()
            if attempt.settled:  # by the handler, in its own transaction: it need not be stopped for that
                return
        attempt.request_stop(why)
        self._on_loop(self._slots.interrupt, attempt)

    def _on_loop(self, call: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the host closed its loop under us: the engine thread will see it
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[union-attr]

    # --------------------------------------------------------------------------------- the engine thread

    def _serve(self) -> None:
        try:
            self._upkeep.housekeeping.tick()  # say that we are here before the first job is ours
            self._take_turns()
        finally:
            self._keeper.stop()
            with suppress(EngineError):
                self._membership.leave()

    def _take_turns(self) -> None:
        claim: Claim | None = None  # kept until it is answered: a repeated token claims no second time
        claimed = 0.0  # when it was first sent: the leases it gives may count from then
        rest_until, failures = 0.0, 0
        give_up_at = float("inf")
        last = time.monotonic()
        last_tick: bool | None = None
        while True:
            self._wake.clear()
            if self._loop is None or (self._loop.is_closed() and not self._drained):
                self._log.error(
                    "the event loop was closed under the worker: %d jobs are left to their leases", len(self._held)
                )
                return
            try:
                if self._drained:
                    give_up_at = min(give_up_at, time.monotonic() + LAST_WORDS)
                    if not self._held and not self._outcomes:
                        return  # not before: a claim may have been answered just now, and its jobs go back
                if self._until_idle and last_tick is None:  # what is due by a schedule is to be done too
                    last_tick = self._upkeep.fire()
                self._decide()
                self._write_starts()
                # A turn that settles claims as well: what its handlers enqueued gave a hint when nobody listened.
                if claim is None and (self._settling or time.monotonic() >= rest_until):
                    claim, claimed = self._wish(), time.monotonic()
                if self._settling or claim is not None:
                    sent = time.monotonic()
                    turn = self._engine.turn([settling.change for settling in self._settling], claim)
                    self._upkeep.heard(time.monotonic() - sent)
                    failures = 0
                    self._pace(len(self._settling), time.monotonic() - last)
                    last = time.monotonic()
                    settled, self._settling = self._settling, []
                    for settling, verdict in zip(settled, turn.verdicts, strict=True):
                        self._heed(settling, verdict)
                    if claim is not None:
                        short = len(turn.jobs) < claim.limit
                        self._idle = short and not claim.unless  # then a look for orphans follows, if it is time
                        if short and not self._orphans_due:
                            rest_until = time.monotonic() + self.config.poll
                        jobs = self._orphans(turn.jobs, claimed) if claim.unless else turn.jobs
                        claim = None
                        self._take(jobs, claimed)
                        if self._until_idle and not self._held:
                            self.stop()
                elif self._rest(rest_until - time.monotonic()):
                    rest_until = 0.0
                if self._slots.crowded:
                    self._on_loop(self._slots.release_late)
                if self._stopping:
                    self._membership.stopping()
                elif self._upkeep.tick():
                    rest_until = 0.0
            except Exception as error:
                failures += 1
                refused = isinstance(error, EngineError) and not isinstance(error, EngineUnavailable)
                if self._until_idle and refused and failures > 1:  # nobody waits for rights to be granted
                    self._refusal = error
                    self.stop()
                self._stumble(error, failures)
            if time.monotonic() > give_up_at:
                self._log.error("the store did not answer: %d jobs are left to their leases", len(self._held))
                return

    def _wish(self) -> Claim | None:
        """A claim for as many jobs as will start within a fraction of a second."""
        config = self.config
        capacity = config.concurrency - self._slots.lost + int(self._rate * AHEAD)
        room = min(config.batch or LARGEST_BATCH, LARGEST_BATCH, capacity - len(self._held) + len(self._settling))
        if room <= 0 or self._stopping:
            return None
        wish = Claim(
            new_id(), config.name, room, config.lease, config.queues, config.lanes, tuple(self._tasks), self._versions()
        )
        if self._orphans_due:  # only when nothing else is due: such a claim puts away all that it does not take
            self._orphans_at = time.monotonic() + ORPHANS
            return wish._replace(tasks=None, versions={}, unless=self._known_to_somebody())
        return wish

    @property
    def _orphans_due(self) -> bool:
        due = self.config.fail_unknown and self._idle and time.monotonic() >= self._orphans_at
        return due and self._membership.sure

    def _versions(self) -> dict[str, int]:
        return {task.name: task.options.version for task in self._tasks.values()}

    def _known_to_somebody(self) -> tuple[str, ...]:
        """The tasks that some live worker runs: jobs of any other are failed by whoever meets them."""
        now = self._engine.now()
        alive = [member for member in self._engine.records(WorkerInfo) if member.alive(now)]
        return tuple({*self._tasks, *(task for member in alive for task in member.tasks)})

    def _orphans(self, jobs: list[Job], sent: float) -> list[Job]:
        """Of jobs that nobody knew when the claim was made, those that nobody knows now; the others go back."""
        known = set(self._known_to_somebody()) if jobs else set()
        for job in jobs:
            if job.task in known:
                attempt = Attempt(job, lease_ends=sent + self.config.lease, queued_at=time.monotonic())
                with self._holding:
                    self._held[job.id] = attempt
                self._report(attempt, Released())
        return [job for job in jobs if job.task not in known]

    def _take(self, jobs: list[Job], sent: float) -> None:
        """Hand claimed jobs to the slots; their leases count from before the claim was first sent."""
        if jobs:
            now = time.monotonic()
            attempts = [Attempt(job, lease_ends=sent + self.config.lease, queued_at=now) for job in jobs]
            for attempt in attempts:
                if (old := self._held.get(attempt.job.id)) is not None:
                    self._request_stop(old, StopReason.LOST)
                with self._holding:
                    self._held[attempt.job.id] = attempt
            self._on_loop(self._slots.add, attempts)

    def _pace(self, settled: int, elapsed: float) -> None:
        """Learn how fast jobs end, over the last moments: two that end together are no stream of thousands."""
        weight = 1.0 - math.exp(-elapsed / PACE_MEMORY)
        self._rate += (settled / max(elapsed, 1e-6) - self._rate) * weight

    def _rest(self, rest: float) -> bool:
        """Wait for an outcome, a hint, or the next chore; whether there may be something to claim."""
        patience = GLANCE if self._held else min(self.config.poll, self.config.sweep)  # chores do not wait for the poll
        if not self._stopping:
            patience = min(patience, self._upkeep.scheduler.wait())
        if rest > 0 and not self._stopping:
            hinted = self._engine.wait(self.config.queues, min(rest, patience), self._wake)
        else:
            hinted = self._wake.wait(patience)
        if self._slots.crowded:
            self._rate = 0.0  # jobs take longer than thought
        return hinted

    def _decide(self) -> None:
        """Turn the outcomes so far into changes."""
        moment = time.monotonic()
        self._outcomes.extend((attempt, outcome) for at, attempt, outcome in self._put_off if at <= moment)
        self._put_off = [entry for entry in self._put_off if entry[0] > moment]
        now = self._engine.now()
        decided = {settling.attempt for settling in self._settling}
        while self._outcomes and len(self._settling) < LARGEST_BATCH:
            attempt, outcome = self._outcomes[0]
            ours = self._held.get(attempt.job.id) is attempt and attempt not in decided
            if ours and attempt.settled:
                outcome = self._verified(attempt, outcome)
                if attempt.settled:
                    self._forget(attempt)
                    ours = False
            self._outcomes.popleft()
            if not ours:
                continue
            decided.add(attempt)
            noise = random.random()  # noqa: S311 - jitter
            change = lifecycle.settle(attempt.job_so_far(), outcome, now, noise=noise)
            self._settling.append(Settling(attempt, outcome, change))

    def _verified(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """What the handler wrote with ctx.settle stands if its transaction was committed; else the attempt failed."""
        if committed(self._engine, attempt):
            return outcome
        attempt.settled = False
        return uncommitted(attempt, outcome, self._engine.now())

    def _heed(self, settling: Settling, verdict: Verdict) -> None:
        """What the store said to one change."""
        attempt, outcome, change = settling
        match verdict.ruling:
            case Ruling.APPLIED | Ruling.ALREADY:
                self._forget(attempt)
                self._tell_of(change)
            case Ruling.LOST:
                self._log.warning("job %s: its lease was lost, its outcome was refused", attempt.job.id)
                self._forget(attempt)
            case Ruling.STALE:
                attempt.job = verdict.job or attempt.job
                self._outcomes.append((attempt, outcome))
            case Ruling.BUSY:  # by somebody's open transaction: try again, less and less often
                attempt.pause = min(1.0, max(0.02, 2 * attempt.pause))
                self._put_off.append((time.monotonic() + attempt.pause, attempt, outcome))
            case Ruling.REFUSED if other := lifecycle.fallback(change, verdict.holder, verdict.why, self._engine.now()):
                self._settling.append(Settling(attempt, outcome, other))
            case Ruling.REFUSED if isinstance(outcome, Refused) and outcome.reason is Reason.INVALID_RESULT:
                self._log.error(
                    "job %s: even its refusal is refused (%s): left to its lease", attempt.job.id, verdict.why
                )
                self._forget(attempt)
            case Ruling.REFUSED:
                why = ValueError(f"the store refused the outcome: {verdict.why}")
                refused = Refused(Reason.INVALID_RESULT, error_from(why, attempt, self._engine.now()))
                self._outcomes.append((attempt, refused))

    def _write_starts(self) -> None:
        """Write that these attempts start, then let them; one whose row is locked waits for the next time."""
        attempts = [self._starting.popleft() for _ in range(len(self._starting))]
        given_up = [
            attempt for attempt in attempts if attempt.stop_reason is StopReason.LOST
        ]  # meanwhile: not held any more
        attempts = [attempt for attempt in attempts if attempt.stop_reason is not StopReason.LOST]
        for attempt in given_up:
            self._on_loop(self._slots.launch, attempt)  # which frees its slot
        # Until the last suspect's end is written, the next one could take it along, and it would pay for that.
        waiting = [attempt for attempt in attempts if attempt.job.suspect and self._suspect_unwritten()]
        attempts = [attempt for attempt in attempts if attempt not in waiting]
        self._starting.extend([*attempts, *waiting])  # they stay there until the store has answered
        if not attempts:
            return
        started_at, sent = self._engine.now(), time.monotonic()
        holds = [Lease(attempt.job.id, attempt.job.lease_token or "", started_at) for attempt in attempts]
        for attempt, held in zip(attempts, self._engine.extend(holds, lease=self.config.lease), strict=True):
            self._starting.popleft()
            match held.renewal:
                case Renewal.BUSY | Renewal.MISSED:
                    self._starting.append(attempt)
                    continue
                case Renewal.RENEWED:
                    attempt.started_at, attempt.lease_ends = started_at, sent + self.config.lease
                case Renewal.LOST:
                    self._request_stop(attempt, StopReason.LOST)
            self._on_loop(self._slots.launch, attempt)

    def _suspect_unwritten(self) -> bool:
        """Whether a suspect has ended, and the store does not know yet."""
        return any(held.ended and held.started_at and held.job.suspect for held in tuple(self._held.values()))

    def _stumble(self, error: Exception, failures: int) -> None:
        """A turn failed: wait a little longer each time, with jitter, and take the same turn again."""
        patient = isinstance(error, EngineUnavailable)
        wait = min(5.0, (0.05 if patient else 0.5) * 2 ** min(failures, 7)) * random.uniform(0.5, 1.0)  # noqa: S311
        if isinstance(error, EngineError):
            self._log.warning("the store did not take the turn, next try in %.1f s: %s", wait, error)
        else:
            self._log.exception("a turn failed, next try in %.1f s", wait, exc_info=error)
        self._upkeep.heard(float("inf"))
        # Nobody could say that it is alive: give them all the time for it.
        self._orphans_at = time.monotonic() + wait + silence(self.config.beat)
        time.sleep(wait)

    def _tell_of(self, change: Change) -> None:
        """A line in the log about an attempt that ended: loud if it failed."""
        job, error = change.after, change.after.error
        if not change.kind.noteworthy:
            self._log.debug("job %s (%s) %s on attempt %d", job.id, job.task, change.kind, job.attempt)
            return
        why = f"{error.type}: {error.message}" if error is not None else change.note
        again = f"; due again at {job.due_at:%H:%M:%S} UTC" if job.state is State.PENDING else ""
        counted = f"{job.failures} of {job.max_attempts} attempts spent"
        self._log.warning("job %s (%s) %s, %s: %s%s", job.id, job.task, change.kind, counted, why, again)
