"""What any worker does between claims: recover leases that ran out, expire jobs, fire schedules, keep the house.

There is no leader: every act is an ordinary fenced change, so any number of workers may try the same one.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from treadle.engines.contract import Engine
from treadle.engines.values import Ruling
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Change, Job, State, lifecycle
from treadle.schedules.firing import Scheduler
from treadle.worker.config import SWEEP, WorkerConfig
from treadle.worker.maintenance.housekeeping import Housekeeping

log = logging.getLogger("treadle.upkeep")

BATCH = 200


class Upkeep:
    """The chores of one worker; `tick` is called between its turns and does what is due."""

    def __init__(
        self,
        engine: Engine,
        config: WorkerConfig,
        *,
        holds: Callable[[Job], bool],
        scheduler: Scheduler,
        housekeeping: Housekeeping,
        logger: logging.Logger | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.housekeeping = housekeeping
        self._engine = engine
        self._config = config
        self._lease = config.lease
        self._logger = logger
        self._holds = holds  # whether the worker itself holds this lease
        self._seen: tuple[datetime, float] | None = None  # the time when we last looked, by both clocks
        self._recover_at = 0.0
        self._silent = False  # the store did not answer lately
        self._slow = False  # or took its time
        self._past: dict[tuple[str, str | None, datetime | None], float] = {}  # what slow looks found, and since when
        self._spared: dict[tuple[str, str | None], float] = {}  # leases whose row was locked, and until when

    def heard(self, silence: float) -> None:
        """The store took `silence` seconds to answer, or did not answer at all (infinity).

        While it was silent nobody could renew: when it is over, the holders get one renewal period before their leases
        count as lost.
        """
        if silence > self._lease / 2:
            self._silent = True
        elif silence > self._lease / 3:
            self._slow = True

    def tick(self) -> bool:
        """Do the chores that are due; whether there is a new job."""
        now = time.monotonic()
        if now >= self._recover_at:
            self._recover_at = now + self._period()
            while self.recover() == BATCH:
                pass
        begun = time.monotonic()
        made = self.fire()
        self.housekeeping.tick()
        self.heard(time.monotonic() - begun)  # a store that kept us waiting kept the holders of leases waiting too
        return made

    def fire(self) -> bool:
        """Fire the schedules that are due; whether that made a job. What goes wrong there stays there."""
        try:
            return self.scheduler.tick()
        except EngineError as error:
            (self._logger or log).warning("schedules were not looked at: %s", error)
        except Exception:
            (self._logger or log).exception("schedules were not looked at")
        return False

    def recover(self) -> int:
        """Requeue or end the jobs whose lease or time to live has run out; how many it was."""
        asked = time.monotonic()
        try:
            found = self._engine.expired(limit=BATCH)
        except EngineUnavailable:
            self._silent = True
            return 0
        known, self._past = self._past, {}
        silent = self._stepped() or self._silent
        if silent or self._slow or time.monotonic() - asked > self._lease / 6:
            self._silent = self._slow = False
            self._recover_at = time.monotonic() + self._lease / 2  # a renewal period, and a margin
            # A slow store is not a silent one: who did not renew from one slow look to the next had the time to.
            # Without this nothing is ever recovered from a store that is always slow.
            leases = [(job.id, job.lease_token, job.lease_until) for job in found]
            self._past = {lease: asked if silent else known.get(lease, asked) for lease in leases}
            since = asked - self._lease / 2
            found = [job for job, lease in zip(found, leases, strict=True) if self._past[lease] <= since]
        spared = self._spared = {lease: until for lease, until in self._spared.items() if until > asked}
        found = [job for job in found if not self._holds(job) and (job.id, job.lease_token) not in spared]
        if not self._config.end_expired:
            found = [job for job in found if job.state is State.RUNNING]
        done, busy = recover(
            self._engine,
            found,
            actor=self._config.name,
            message=self._config.crash_message,
            count_claims=self._config.count_claims,
            logger=self._logger,
        )
        for job in busy:  # its holder could not renew either, and needs time when it can
            spared[job.id, job.lease_token] = time.monotonic() + self._lease / 2
        return done

    def _period(self) -> float:
        """Seconds until the next look for leases that ran out: spread a little, and often enough for a short lease."""
        if self._config.sweep > SWEEP:
            return self._config.sweep
        return min(self._config.sweep, self._lease / 4) * random.uniform(0.5, 1.0)  # noqa: S311

    def _stepped(self) -> bool:
        """Whether the clock has jumped ahead since the last look: then leases look past that their holders keep."""
        last, self._seen = self._seen, (self._engine.now(), time.monotonic())
        if last is None:
            return False
        wall, real = (self._seen[0] - last[0]).total_seconds(), self._seen[1] - last[1]
        return wall - real > self._lease / 3


def recover_leases(
    engine: Engine,
    *,
    actor: str,
    message: str = "",
    count_claims: bool = False,
    logger: logging.Logger | None = None,
) -> int:
    """Requeue or end every job whose lease has run out, but for those that are locked; how many it was."""
    total = 0
    while found := [job for job in engine.expired(limit=BATCH) if job.state is State.RUNNING]:
        done, _ = recover(engine, found, actor=actor, message=message, count_claims=count_claims, logger=logger)
        if not done:
            break
        total += done
    return total


def recover(
    engine: Engine,
    found: Sequence[Job],
    *,
    actor: str,
    message: str = "",
    count_claims: bool = False,
    logger: logging.Logger | None = None,
) -> tuple[int, list[Job]]:
    """Requeue or end these jobs, whose lease or time to live has run out; how many it was, and which ones are locked.

    `message` is said of a lease that ran out, instead of our own words; with `count_claims` it has spent an attempt.
    """
    if not found:
        return 0, []
    now = engine.now()
    changes = []
    for job in found:
        try:
            changes.append(_over(job, now, actor, message, count_claims))
        except Exception:  # it was written by somebody else: the others must not wait for it
            (logger or log).exception("job %s (%s) cannot be recovered", job.id, job.task)
    done, busy, others = 0, [], []
    for change, verdict in zip(changes, engine.turn(changes).verdicts, strict=True):
        if verdict.ruling is Ruling.REFUSED:
            other = lifecycle.fallback(change, verdict.holder, verdict.why, now)
            others += [other] if other is not None else []
        elif verdict.ruling is Ruling.APPLIED:
            done += 1
            (logger or log).warning("job %s (%s): %s", change.before.id, change.before.task, change.note or change.kind)
        elif verdict.ruling is Ruling.BUSY:
            busy.append(change.before)
    if others:
        engine.turn(others)
    return done + len(others), busy


def _over(job: Job, now: datetime, actor: str, message: str, count_claims: bool) -> Change:
    if job.state is State.RUNNING:
        return lifecycle.crash(job, now, actor=actor, message=message, count_claims=count_claims)
    return lifecycle.expire(job, now, actor=actor)
