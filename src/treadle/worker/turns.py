"""The engine thread of a worker: looks, asks loop.py what to do, does it, and applies what follows.

This thread settles and claims. Decisions are in loop.py; here are the store, the clock and what the other threads hand
over: outcomes, and attempts whose start must be written before it happens.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from treadle.engines.contract import JobStore
from treadle.engines.values import Claim, Lease
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Reason, lifecycle, new_id
from treadle.model.lifecycle import FailedForGood, Outcome, Released, Success
from treadle.tasks.context import StopReason
from treadle.tasks.task import Task, versions_of
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.holdings import Holdings
from treadle.worker.host import Host
from treadle.worker.loop import MAX_BATCH, LoopState, Seen, after, claiming, next_step, sort_starts
from treadle.worker.maintenance import Maintenance
from treadle.worker.observers import Observers
from treadle.worker.orphans import Orphans
from treadle.worker.outcomes import error_from, uncommitted
from treadle.worker.settle_in_transaction import committed
from treadle.worker.steps import (
    Answer,
    BackOff,
    Begin,
    Chores,
    ChoresDone,
    Decide,
    DecideAgain,
    Effect,
    Exit,
    Launch,
    LeaveToLease,
    LoseStart,
    OutcomeLost,
    RefuseResult,
    ReportFailure,
    Rest,
    Rested,
    Settled,
    SettleInstead,
    SettleLater,
    Settling,
    StartsWritten,
    Step,
    StopRefused,
    StopWhenEmpty,
    StoreFailed,
    TakeTurn,
    TurnDone,
    WriteStarts,
)  # fmt: skip

log = logging.getLogger("treadle.worker")


BUG_WAIT = 1.0  # seconds after a step that failed for no fault of the store
MAX_BUGS = 10  # such steps in a row, before the worker stops


class Turns:
    """Takes turns with the store until the worker is drained; `run` is the thread's main."""

    def __init__(
        self,
        engine: JobStore,
        config: WorkerConfig,
        tasks: Mapping[str, Task[Any, Any]],
        host: Host,
        *,
        holdings: Holdings,
        maintenance: Maintenance,
        orphans: Orphans,
        observers: Observers,
        logger: logging.Logger | None = None,
    ) -> None:
        self._engine, self._config, self._tasks, self._host = engine, config, tasks, host
        self._holdings, self._maintenance, self._orphans = holdings, maintenance, orphans
        self._observers = observers
        self._log = logger or log
        self._outcomes: deque[tuple[Attempt, Outcome]] = deque()  # handed over by other threads
        self._requests: deque[Attempt] = deque()  # likewise: whose start must be written first
        self._starting: list[Attempt] = []
        self._state = LoopState()
        self._settling: list[Settling] = []
        self._put_off: list[tuple[float, Attempt, Outcome]] = []  # until when: their rows are locked

    # ----------------------------------------------------------------------- called by the other threads

    def report(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """How an attempt ended. None, or a lost lease: there is nothing to write."""
        if outcome is None or attempt.stop_reason is StopReason.LOST:
            self._holdings.forget(attempt)
        else:
            attempt.ended = True
            self._outcomes.append((attempt, outcome))
        if not self._host.wake.is_set():
            self._host.wake.set()

    def request_start(self, attempt: Attempt) -> None:
        """Write that this attempt starts, then launch it."""
        self._requests.append(attempt)
        self._host.wake.set()

    # ------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Step after step until there is nothing left to do."""
        # A worker that runs until it is idle does what is due by a schedule too: it looks at the schedules first.
        self._state = LoopState(turned_at=time.monotonic(), chores_next=self._host.until_idle)
        failures = 0
        while failures < MAX_BUGS:
            try:
                if not self._take_step():
                    return
                failures = 0
            except Exception:  # a bug of ours: leases are renewed and handlers watched only while this thread lives
                failures += 1
                self._log.exception("a step of the worker failed, next try in %g s", BUG_WAIT)
                time.sleep(BUG_WAIT)
        raise RuntimeError(f"the worker's own steps failed {MAX_BUGS} times in a row; the log says why")

    def _take_step(self) -> bool:
        """Look, decide, do; whether there is more to do."""
        self._host.wake.clear()  # before the look: what comes later wakes the rest that may follow
        seen = self._look()
        step = next_step(self._state, seen, self._config)
        if isinstance(step, Exit):
            if step.problem:
                self._log.error("%s: %d jobs are left to their leases", step.problem, step.left)
            return False
        try:
            if isinstance(step, TakeTurn) and step.room:
                self._state = claiming(self._state, self._new_claim(step), time.monotonic())
            answer = self._perform(step, self._state.claim)
        except Exception as error:
            answer = StoreFailed(error, random.random())  # noqa: S311 - jitter
        try:
            self._state, effects = after(self._state, seen, step, answer, time.monotonic(), self._config)
        except Exception:
            if isinstance(answer, TurnDone):  # written or not, nobody has read it: to write it again is safe
                self._settling = [*answer.settled, *self._settling]
            raise
        for effect in effects:
            try:
                self._apply(effect)
            except Exception:  # a bug of ours: the other outcomes must not be lost with it
                self._log.exception("%s was not done", type(effect).__name__)
        return True

    def _look(self) -> Seen:
        """What there is to do; no call to the store."""
        host, config, now = self._host, self._config, time.monotonic()
        while self._requests:
            self._starting.append(self._requests.popleft())
        return Seen(
            now,
            held=len(self._holdings),
            undecided=len(self._outcomes) + sum(at <= now for at, _, _ in self._put_off),
            settling=len(self._settling),
            starting=self._startable() if self._starting else (),
            abandoned_slots=host.slots.abandoned,
            stopping=host.stopping,
            drained_at=host.drained_at,
            until_idle=host.until_idle,
            loop_closed=host.loop_closed(),
            chores_at=self._maintenance.due_at(stopping=host.stopping),
            presence_is_current=config.fail_unknown and self._maintenance.presence.is_current,
        )

    def _startable(self) -> list[Attempt]:
        isolated = any(attempt.isolated for attempt in self._starting)
        unwritten = isolated and self._holdings.has_unwritten_isolated()
        starts = sort_starts(self._starting, isolated_unwritten=unwritten)
        self._starting = [*starts.ready, *starts.waiting]
        for attempt in starts.given_up:
            self._host.on_loop(self._host.slots.free_lost, attempt)
        return starts.ready

    def _new_claim(self, step: TakeTurn) -> Claim:
        config = self._config
        tasks, versions = tuple(self._tasks), versions_of(self._tasks)
        isolated = self._isolated_tasks()
        left_out = bool(isolated) and self._holdings.has_isolated()
        if left_out:  # they would only wait here, and may start elsewhere
            tasks = tuple(name for name in tasks if name not in isolated)
        claim = Claim(new_id(), config.name, step.room, config.lease, config.queues, config.lanes, tasks, versions)
        if step.orphans:
            return claim._replace(tasks=None, versions={}, unless=self._orphans.known())
        return claim._replace(thorough=step.thorough and not left_out)  # only a look at all of them proves idleness

    def _isolated_tasks(self) -> set[str]:
        return {name for name, task in self._tasks.items() if task.options.isolated}

    # -------------------------------------------------------------------------------------- the steps

    def _perform(self, step: Step, claim: Claim | None) -> Answer:
        match step:
            case TakeTurn():
                return self._take_turn(claim)
            case Decide():
                self._decide()
            case WriteStarts(attempts):
                return self._write_starts(attempts)
            case Chores():
                return ChoresDone(self._maintenance.run_due(stopping=self._host.stopping))
            case Rest(seconds, for_jobs):
                return self._rest(seconds, for_jobs)
            case BackOff(seconds):
                time.sleep(seconds)
            case Exit():
                pass
        return None

    def _take_turn(self, claim: Claim | None) -> TurnDone:
        sent = time.monotonic()
        try:
            turn = self._engine.turn([settling.change for settling in self._settling], claim)
        except EngineUnavailable:
            raise
        except Exception:
            self._decide_plain_ones_anew()
            raise
        self._maintenance.note_latency(time.monotonic() - sent)
        settled, self._settling = self._settling, []
        self._release_late()
        return TurnDone(turn, settled)

    def _decide_plain_ones_anew(self) -> None:
        """A turn was refused as a whole. In the general way a success that cannot be settled fails alone."""
        plain = [settling for settling in self._settling if isinstance(settling.change, Success)]
        self._settling = [settling for settling in self._settling if not isinstance(settling.change, Success)]
        for attempt, outcome, _ in plain:
            attempt.plain = False
            self._outcomes.append((attempt, outcome))

    def _decide(self) -> None:
        """Turn outcomes into changes: a plain success into a Success, every other end by the rules of lifecycle."""
        if self._put_off:
            moment = time.monotonic()
            self._outcomes.extend((attempt, outcome) for at, attempt, outcome in self._put_off if at <= moment)
            self._put_off = [entry for entry in self._put_off if entry[0] > moment]
        now = self._engine.now()
        decided = {settling.attempt for settling in self._settling}
        while self._outcomes and len(self._settling) < MAX_BATCH:
            attempt, outcome = self._outcomes[0]  # taken away when it is decided: to verify one may fail
            ours = attempt in self._holdings and attempt not in decided
            if ours and attempt.settled is not None:
                end = committed(self._engine, attempt, attempt.settled)
                if end.over:
                    self._holdings.forget(attempt)
                    ours = False
                    if end.by_us:
                        self._observers.settled([Settling(attempt, outcome, attempt.settled)], now)
                else:
                    attempt.settled, outcome = None, uncommitted(attempt, outcome, now)
            self._outcomes.popleft()
            if ours:
                decided.add(attempt)
                success = attempt.success(outcome)
                if success is not None:
                    self._settling.append(Settling(attempt, outcome, success))
                else:
                    self._decide_one(attempt, outcome, now)

    def _decide_one(self, attempt: Attempt, outcome: Outcome, now: datetime) -> None:
        """Turn an outcome into a change; one that cannot be is a failure, so that no lease is renewed for ever."""
        noise = random.random()  # noqa: S311 - jitter
        try:
            try:
                change = lifecycle.settle(attempt.job_so_far(), outcome, now, noise=noise)
            except Exception as error:
                self._log.exception("job %s: its outcome cannot be settled", attempt.id)
                outcome = FailedForGood(Reason.INVALID_RESULT, error_from(error, attempt, now))
                change = lifecycle.settle(attempt.job_so_far(), outcome, now, noise=noise)
        except Exception:
            self._log.exception("job %s: left to its lease", attempt.id)
            self._holdings.forget(attempt)
        else:
            self._settling.append(Settling(attempt, outcome, change))

    def _write_starts(self, attempts: Sequence[Attempt]) -> StartsWritten:
        started_at, sent = self._engine.now(), time.monotonic()
        leases = [Lease(attempt.id, attempt.claimed.token, started_at) for attempt in attempts]
        return StartsWritten(self._engine.extend(leases, lease=self._config.lease), started_at, sent)

    def _rest(self, seconds: float, for_jobs: bool) -> Rested:
        if for_jobs:
            hinted = self._engine.wait(self._config.queues, seconds, self._host.wake)
        else:
            hinted = self._host.wake.wait(seconds)
        self._release_late()
        return Rested(hinted, self._host.slots.has_backlog)

    def _release_late(self) -> None:
        if self._host.slots.has_backlog:
            self._host.on_loop(self._host.slots.release_late, not self._host.until_idle)

    # ------------------------------------------------------------------------------------- the effects

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Settled(settled, at):
                self._holdings.forget(*(settling.attempt for settling in settled))
                self._observers.settled(settled, at)
            case Begin():
                self._begin(effect)
            case Launch(attempt, started_at, lease_ends):
                attempt.started_at, attempt.lease_ends, attempt.start_written = started_at, lease_ends, True
                self._starting.remove(attempt)
                self._host.on_loop(self._host.slots.launch, attempt)
            case LoseStart(attempt):
                self._host.request_stop(attempt, StopReason.LOST)
                self._starting.remove(attempt)
                self._host.on_loop(self._host.slots.free_lost, attempt)
            case StopWhenEmpty():
                if not self._holdings:
                    self._host.stop()
            case StopRefused(error):
                self._host.stop(error)
            case ReportFailure(error, wait):
                self._report_failure(error, wait)
            case _:
                self._unsettle(effect)

    def _begin(self, begin: Begin) -> None:
        """Hand claimed jobs to the slots; an orphan that somebody knows by now goes back."""
        now = time.monotonic()
        isolated = self._isolated_tasks()
        attempts = [
            Attempt(one, lease_ends=begin.lease_ends, queued_at=now, isolated_tasks=isolated) for one in begin.claimed
        ]
        self._observers.claimed(begin.claimed)
        for old in self._holdings.add(attempts):
            self._host.request_stop(old, StopReason.LOST)
        if begin.orphans:
            known = self._orphans.known_now(begin.claimed)
            for attempt in attempts:
                if attempt.claimed.task in known:
                    self.report(attempt, Released())
            attempts = [attempt for attempt in attempts if attempt.claimed.task not in known]
        self._host.on_loop(self._host.slots.add, attempts)

    def _unsettle(self, effect: Effect) -> None:
        """An outcome that was not written: a plain success goes the general way from here."""
        if settling := getattr(effect, "settling", None):
            settling.attempt.plain = False
        match effect:
            case OutcomeLost(settling):
                self._log.warning("job %s: its lease was lost, its outcome was refused", settling.attempt.id)
                self._holdings.forget(settling.attempt)
            case DecideAgain(settling, job):
                settling.attempt.job = job or settling.attempt.job
                self._outcomes.append((settling.attempt, settling.outcome))
            case SettleLater(settling, at, lock_wait):
                settling.attempt.lock_wait = lock_wait
                self._put_off.append((at, settling.attempt, settling.outcome))
            case SettleInstead(settling):
                self._settling.append(settling)
            case RefuseResult(settling, why, at):
                error = error_from(ValueError(f"the store refused the outcome: {why}"), settling.attempt, at)
                self._outcomes.append((settling.attempt, FailedForGood(Reason.INVALID_RESULT, error)))
            case LeaveToLease(settling, why):
                self._log.error("job %s: even its refusal is refused (%s): left to its lease", settling.attempt.id, why)
                self._holdings.forget(settling.attempt)
            case _:
                raise TypeError(f"{effect!r} is not an effect of the loop")

    def _report_failure(self, error: Exception, wait: float) -> None:
        if isinstance(error, EngineError):
            self._log.warning("the store did not take the turn, next try in %.1f s: %s", wait, error)
        else:
            self._log.exception("a turn failed, next try in %.1f s", wait, exc_info=error)
        self._maintenance.note_latency(float("inf"))
