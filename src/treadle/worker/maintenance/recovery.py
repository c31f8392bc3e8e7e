"""Leases that ran out and jobs that expired: requeued or ended by any worker that finds them.

There is no leader: recovery is an ordinary fenced change, so any number of workers may try the same one.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from treadle.engines.contract import JobStore
from treadle.engines.values import Ruling, Verdict
from treadle.errors import EngineUnavailable
from treadle.model import Change, Job, State, lifecycle
from treadle.worker.config import SWEEP, WorkerConfig

log = logging.getLogger("treadle.maintenance")

RECOVERY_BATCH = 200

LeaseKey = tuple[str, str | None, datetime | None]
"""A lease as it was read: job id, token, end."""


class Recovery:
    """Finds leases that are past; `run_due` is called between the turns of a worker.

    A holder that could not renew because the store was silent gets one renewal period before its lease counts as lost.
    """

    def __init__(
        self,
        engine: JobStore,
        config: WorkerConfig,
        *,
        holds: Callable[[Job], bool],
        recovered: Callable[[Change], None] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        """`holds` says whether the worker itself holds a job's lease; `recovered` hears of jobs that were recovered."""
        self.due_at = 0.0
        self._engine = engine
        self._config = config
        self._lease = config.lease
        self._logger = logger
        self._holds = holds
        self._recovered = recovered
        self._looked: tuple[datetime, float] | None = None  # when we last looked, by both clocks
        self._silent = False  # the store did not answer lately
        self._slow = False  # or took its time
        self._past: dict[LeaseKey, float] = {}  # what slow looks found, and since when
        self._spared: dict[tuple[str, str | None], float] = {}  # leases whose row was locked, and until when

    def note_latency(self, seconds: float) -> None:
        """The store took so long to answer, or did not answer at all (infinity): nobody could renew meanwhile."""
        if seconds > self._lease / 2:
            self._silent = True
        elif seconds > self._lease / 3:
            self._slow = True

    def run_due(self) -> None:
        """Recover what is past, if it is time to look."""
        now = time.monotonic()
        if now >= self.due_at:
            self.due_at = now + self._interval()
            while self.recover() == RECOVERY_BATCH:
                pass

    def recover(self) -> int:
        """Requeue or end the jobs whose lease or time to live has run out; how many it was."""
        asked = time.monotonic()
        try:
            found = self._engine.expired(limit=RECOVERY_BATCH)
        except EngineUnavailable:
            self._silent = True
            return 0
        found = [job for job in self._overdue(found, asked) if self._ours_to_recover(job, asked)]
        done, busy = recover(
            self._engine,
            found,
            actor=self._config.name,
            message=self._config.crash_message,
            count_claims=self._config.count_claims,
            recovered=self._recovered,
            logger=self._logger,
        )
        for job in busy:  # its holder could not renew either, and needs time when it can
            self._spared[job.id, job.lease_token] = time.monotonic() + self._lease / 2
        return done

    def _overdue(self, found: list[Job], asked: float) -> list[Job]:
        """Of jobs whose lease is past, those whose holders had the time to renew.

        A slow store is not a silent one: whoever did not renew from one slow look to the next had the time to.
        Without this nothing is ever recovered from a store that is always slow.
        """
        known, self._past = self._past, {}
        silent = self._clock_jumped() or self._silent
        if not (silent or self._slow or time.monotonic() - asked > self._lease / 6):
            return found
        self._silent = self._slow = False
        self.due_at = time.monotonic() + self._lease / 2  # a renewal period, and a margin
        leases = [(job.id, job.lease_token, job.lease_until) for job in found]
        self._past = {lease: asked if silent else known.get(lease, asked) for lease in leases}
        since = asked - self._lease / 2
        return [job for job, lease in zip(found, leases, strict=True) if self._past[lease] <= since]

    def _ours_to_recover(self, job: Job, asked: float) -> bool:
        spared = self._spared = {lease: until for lease, until in self._spared.items() if until > asked}
        if self._holds(job) or (job.id, job.lease_token) in spared:
            return False
        return self._config.end_expired or job.state is State.RUNNING

    def _interval(self) -> float:
        """Seconds until the next look for leases that ran out: spread a little, and often enough for a short lease."""
        if self._config.sweep > SWEEP:
            return self._config.sweep
        return min(self._config.sweep, self._lease / 4) * random.uniform(0.5, 1.0)  # noqa: S311

    def _clock_jumped(self) -> bool:
        """Whether the clock has jumped ahead since the last look: then leases look past that their holders keep."""
        last, self._looked = self._looked, (self._engine.now(), time.monotonic())
        if last is None:
            return False
        wall, real = (self._looked[0] - last[0]).total_seconds(), self._looked[1] - last[1]
        return wall - real > self._lease / 3


def recover_leases(
    engine: JobStore,
    *,
    actor: str,
    message: str = "",
    count_claims: bool = False,
    logger: logging.Logger | None = None,
) -> int:
    """Requeue or end every job whose lease has run out, but for those that are locked; how many it was."""
    total = 0
    while found := [job for job in engine.expired(limit=RECOVERY_BATCH) if job.state is State.RUNNING]:
        done, _ = recover(engine, found, actor=actor, message=message, count_claims=count_claims, logger=logger)
        if not done:
            break
        total += done
    return total


def recover(
    engine: JobStore,
    found: Sequence[Job],
    *,
    actor: str,
    message: str = "",
    count_claims: bool = False,
    recovered: Callable[[Change], None] | None = None,
    logger: logging.Logger | None = None,
) -> tuple[int, list[Job]]:
    """Requeue or end these jobs, whose lease or time to live has run out; how many it was, and which ones are locked.

    `message` is said of a lease that ran out, instead of our own words; with `count_claims` it has spent an attempt.
    """
    if not found:
        return 0, []
    logger, now = logger or log, engine.now()
    recovered = recovered or partial(_log_recovered, logger)
    changes = []
    for job in found:
        try:
            changes.append(_change_of(job, now, actor, message, count_claims))
        except Exception:  # it was written by somebody else: the others must not wait for it
            logger.exception("job %s (%s) cannot be recovered", job.id, job.task)
    first = _write(engine, changes, recovered)
    fallbacks, refused = [], []
    for change, verdict in first.refused:
        fallback = lifecycle.fallback(change, verdict.holder, verdict.why, now)
        if fallback is None:
            refused.append((change, verdict))
        else:
            fallbacks.append(fallback)
    second = _write(engine, fallbacks, recovered)
    for change, verdict in (*refused, *second.refused):
        logger.error("job %s (%s) cannot be recovered: %s", change.before.id, change.before.task, verdict.why)
    return first.done + second.done, [*first.busy, *second.busy]


class _Written(NamedTuple):
    """What became of changes: how many were applied, whose rows are locked, and what the store will not take."""

    done: int
    busy: list[Job]
    refused: list[tuple[Change, Verdict]]


def _write(engine: JobStore, changes: Sequence[Change], recovered: Callable[[Change], None]) -> _Written:
    done, busy, refused = 0, [], []
    for change, verdict in zip(changes, engine.turn(changes).verdicts if changes else (), strict=True):
        match verdict.ruling:
            case Ruling.APPLIED:
                done += 1
                recovered(change)
            case Ruling.BUSY:
                busy.append(change.before)
            case Ruling.REFUSED:
                refused.append((change, verdict))
            case Ruling.ALREADY | Ruling.STALE | Ruling.LOST:  # it was renewed, settled or recovered by another
                pass
    return _Written(done, busy, refused)


def _log_recovered(logger: logging.Logger, change: Change) -> None:
    logger.warning("job %s (%s): %s", change.before.id, change.before.task, change.note or change.kind)


def _change_of(job: Job, now: datetime, actor: str, message: str, count_claims: bool) -> Change:
    if job.state is State.RUNNING:
        return lifecycle.crash(job, now, actor=actor, message=message, count_claims=count_claims)
    return lifecycle.expire(job, now, actor=actor)
