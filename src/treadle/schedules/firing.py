"""Makes jobs of schedules, in any number of workers at once: a tick and its job are one compare-and-set.

There is no leader. Every worker looks for schedules that are due and tries to fire them; the first one does.
"""

import logging
import time
from collections.abc import Sequence
from datetime import datetime

from treadle.edits import Act, AuditedRecords, put
from treadle.engines.values import Receipt
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import EventKind, Job, checked, new_id
from treadle.model.records import Schedule
from treadle.schedules.declared import reconcile
from treadle.schedules.retirement import Retirement
from treadle.schedules.rules import LATE_AFTER, firing, job_of

log = logging.getLogger("treadle.scheduler")

DUE_BATCH = 200
CATCH_UP_LIMIT = 200  # ticks of one schedule that are made up for before its neighbours come
LONGEST_RUN = 0.2  # seconds after which the jobs come first again


class Scheduler:
    """The schedules' part of one worker; `run_due` is called between its turns."""

    def __init__(
        self,
        engine: AuditedRecords,
        actor: str,
        declared: Sequence[Schedule] | None = None,
        *,
        interval: float = 1.0,
        enabled: bool = True,
        disable_gone: bool = True,
        logger: logging.Logger | None = None,
    ) -> None:
        """`actor` is named in the audit trail; `interval` is the time in seconds between two looks.

        `declared` is all that the code declares, None if that is not known. With `disable_gone`, what it no longer
        declares is disabled.
        """
        self._engine = engine
        self._actor = actor
        self._interval = interval
        self._all_declared = declared or ()
        self._declared: Sequence[Schedule] = self._all_declared  # those that are not in the store yet
        self._log = logger or log
        self._retirement: Retirement | None = None
        if declared is not None:
            self._retirement = Retirement(engine, actor, declared, disable=disable_gone, logger=self._log)
        self._late = max(LATE_AFTER, 2 * interval)
        self._look_at = 0.0 if enabled else float("inf")
        self._made = False
        self._bounded: dict[tuple[str, str], datetime | None] = {}  # what each missed was bounded up to this tick

    @property
    def due_at(self) -> float:
        """When there is something to do, on the monotonic clock."""
        return self._look_at

    def bring_again(self) -> None:
        """Bring all that the code declares into the store once more: it may not be the one that had it."""
        self._declared = self._all_declared

    def run_due(self) -> bool:
        """Fire what is due; whether that made a job."""
        if time.monotonic() < self._look_at:
            return False
        self._made = False
        self._look_at = time.monotonic() + self._interval  # if it fails, not again at once
        self._declared = [wanted for wanted in self._declared if not self._brought(wanted)]
        if self._retirement is not None and not self._declared:  # a new name is there before its old one goes
            self._retirement.run_due()
        asked = time.monotonic()
        found = self._engine.due(limit=DUE_BATCH, ahead=self._interval)
        self._look_at = asked + (0.0 if len(found) == DUE_BATCH else self._interval)
        until = time.monotonic() + LONGEST_RUN
        for place, schedule in enumerate(found):
            if place and time.monotonic() > until:  # the jobs come first; go on after a turn, but not before the first
                self._look_at = 0.0
                break
            try:
                next_at = self.fire(schedule, until=until)
            except EngineUnavailable:
                raise
            except EngineError as error:  # of this one: its neighbours go on
                self._log.warning("schedule %s was not fired: %s", schedule.name, error)
                continue
            if next_at is not None:  # soon: be there in time
                soon = (next_at - self._engine.now()).total_seconds()
                self._look_at = min(self._look_at, time.monotonic() + max(0.0, soon))
        return self._made

    def _brought(self, wanted: Schedule) -> bool:
        """Bring what code declares into the store; False if that must be tried again, which stops nothing else."""
        try:
            if reconcile(self._engine, wanted, actor=self._actor):
                self._log.info("schedule %s: brought up to date with the code", wanted.name)
        except EngineError as error:
            self._log.warning("schedule %s: not brought up to date with the code yet: %s", wanted.name, error)
            return False
        return True

    def fire(self, schedule: Schedule, *, until: float = float("inf")) -> datetime | None:
        """Make the jobs of this schedule that are due; when it is due again, None if somebody else sees to it.

        `until` is when to stop, on the monotonic clock: there may be many.
        """
        try:
            for _ in range(CATCH_UP_LIMIT):
                now = self._engine.now()
                counted = self._bounded.get((schedule.tenant, schedule.name)) == schedule.next_at
                due = firing(schedule, now, late=self._late, counted=counted)
                if due is None:
                    return schedule.next_at
                job = checked(job_of(schedule, due.tick, now)) if due.tick is not None else None
                after = schedule.evolve(next_at=due.next_at, updated_at=now, revision=schedule.revision + 1)
                if job is not None:
                    after = after.evolve(last_at=due.tick, last_job=job.id)
                saved = self._engine.save(after, before=schedule, job=job)
                if not saved.done:
                    return None
                if job is not None and saved.receipt is not None and not saved.receipt.created:
                    after = self._not_made(schedule, after, job, saved.receipt)
                self._made |= job is not None
                self._bounded[schedule.tenant, schedule.name] = after.next_at
                schedule = after
                if time.monotonic() > until:
                    break
        except EngineError:
            raise
        except Exception as error:  # another program wrote it into the table: we would have refused it
            self._disable(schedule, error)
            return None
        return schedule.next_at

    def _not_made(self, before: Schedule, after: Schedule, job: Job, receipt: Receipt) -> Schedule:
        """The tick is over, but not by this job: its key is taken, or somebody else has a job of its very id."""
        first = receipt.job
        if not receipt.refused and first.id == job.id and (first.tenant, first.schedule) != (job.tenant, job.schedule):
            other = job.evolve(id=new_id())
            again = after.evolve(last_job=other.id, revision=after.revision + 1)
            saved = self._engine.save(again, before=after, job=other)
            if saved.done and saved.receipt is not None and saved.receipt.created:
                return again
            after = again if saved.done else after
        return self._skipped(before, after, receipt.refused or f"job {first.id}")

    def _skipped(self, before: Schedule, after: Schedule, why: str) -> Schedule:
        """The tick is over, but it made no job: say so, and let the last job be the one before."""
        self._log.info("schedule %s: its run for %s was skipped: %s", after.name, after.last_at, why)
        skipped = after.evolve(last_at=before.last_at, last_job=before.last_job, revision=after.revision + 1)
        return skipped if self._engine.save(skipped, before=after).done else after

    def _disable(self, schedule: Schedule, error: Exception) -> None:
        now = self._engine.now()
        why = f"disabled, because it cannot be read: {error}"
        after = schedule.evolve(enabled=False, updated_at=now)
        if put(self._engine, after, schedule, Act(EventKind.DISABLED, now, self._actor, why)) is not None:
            self._log.error("schedule %s: %s", schedule.name, why)
