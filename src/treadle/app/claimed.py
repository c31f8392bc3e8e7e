"""A job that your own code has claimed, without a worker: work on it, keep its lease, and say how it ended."""

import random
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from treadle.engines.values import Lease, Renewal, Ruling
from treadle.errors import EngineUnavailable, GiveUp, InvalidJob, LeaseLost, NotPossible
from treadle.model import MESSAGE_CAP, Job, JobError, Reason, clean, json_text, lifecycle
from treadle.model.backoff import lock_waits
from treadle.model.clock import Duration, seconds
from treadle.tasks.context import Context, StopReason
from treadle.tasks.faces import async_face

if TYPE_CHECKING:
    from treadle.app.settings import Settings
    from treadle.engines.contract import Engine
    from treadle.worker.attempt import Attempt


class Claimed:
    """A job that you hold until `lease_until`: `app.claim()` gives it to you.

    Every write is fenced: once the lease has passed on, or the job was settled, it raises LeaseLost and changes
    nothing. Whoever does not settle it in time has crashed: another claim gets it.

    >>> from treadle import Treadle
    >>> app = Treadle("sqlite:///:memory:")
    >>> job = app.enqueue("resize", {"image": 7}, checked=False)
    >>> [held] = app.claim(lease="5m")
    >>> held.job.payload
    {'image': 7}
    >>> held.succeed({"width": 640}).state
    <State.SUCCEEDED: 'succeeded'>
    """

    def __init__(self, engine: "Engine", settings: "Settings", attempt: "Attempt", context: Context) -> None:
        self.context = context
        self.lease_until = attempt.job.lease_until or engine.now()
        self._engine = engine
        self._settings = settings
        self._attempt = attempt

    context: Context
    """What a handler is given: `once`, `log`, `cancelled`; `progress` and `add_cost`, which `extend` writes."""

    lease_until: datetime
    """Until when the job is yours, unless you extend it; in the store's time."""

    @property
    def job(self) -> Job:
        """The job, as it is as far as you know."""
        return self._attempt.job_so_far()

    @property
    def token(self) -> str:
        """What says that it is yours: a new one for each claim."""
        return self._attempt.claimed.token

    def __repr__(self) -> str:
        return f"<Claimed {self.job.id} ({self.job.task}) until {self.lease_until:%H:%M:%S}>"

    # ---------------------------------------------------------------------------------- while you work

    def start(self) -> None:
        """Write down that the work begins: from here on a crash counts as one of the job's."""
        if self._attempt.started_at is None:
            self._attempt.started_at = self._engine.now()
        self.extend()

    def extend(self, lease: Duration | None = None) -> bool:
        """Hold it for another `lease` from now on, and write progress and cost; whether you should go on.

        False means that somebody has asked to cancel the job: stop, and settle it as you like.
        """
        if lease is not None:
            from treadle.app.settings import changed  # noqa: PLC0415 - loaded by whoever has claimed a job

            self._settings = changed(self._settings, {"lease": lease})
        attempt = self._attempt
        for wait in lock_waits():
            renewal = Lease(attempt.id, self.token, attempt.started_at, attempt.progress, attempt.cost_micros)
            now = self._engine.now()
            [answer] = self._engine.extend([renewal], lease=self._settings.lease)
            if answer.renewal is Renewal.RENEWED:
                self.lease_until = now + timedelta(
                    seconds=self._settings.lease
                )  # from before the call: never later than the store's
                if answer.cancel_requested:
                    attempt.request_stop(StopReason.CANCEL)
                return not answer.cancel_requested
            if answer.renewal is Renewal.LOST:
                raise self._lost()
            time.sleep(wait)
        raise EngineUnavailable(f"job {attempt.id} is locked by an open transaction: it was not extended; try again")

    # ------------------------------------------------------------------------------------ how it ended

    def succeed(self, result: Any = None, *, tx: Any = None) -> Job:
        """End it as succeeded; the job afterwards. With `tx` in your own transaction, as `ctx.settle(tx)` does."""
        if tx is not None:
            self.context.settle(tx, result)
            assert self._attempt.settled is not None  # noqa: S101 - for type checkers
            return self._attempt.settled.after
        return self._settle(lifecycle.Succeeded(None if result is None else json_text(result, "result")))

    def fail(self, error: BaseException | str, *, retry: bool = True, after: Duration | None = None) -> Job:
        """Say that it failed. It runs again after its backoff, or `after` this long, while it has attempts left.

        Without `retry` it ends here, failed for good.
        """
        if not retry and after is not None:
            raise InvalidJob("after", "belongs to a retry; leave out one of after and retry=False")
        if isinstance(error, str):
            now = self._engine.now().isoformat()
            text = clean(self._attempt.conceal(error), MESSAGE_CAP)
            what = JobError("Error", text, "", self._attempt.claimed.attempt, now)
        elif isinstance(error, BaseException):
            from treadle.worker.outcomes import error_from  # noqa: PLC0415

            what = error_from(error, self._attempt, self._engine.now())
        else:
            raise InvalidJob("error", f"{error!r:.100} must be an exception or a text")
        if not retry or isinstance(error, GiveUp):
            return self._settle(lifecycle.FailedForGood(Reason.PERMANENT, what))
        return self._settle(lifecycle.Failed(what, None if after is None else seconds(after, "after")))

    def snooze(self, delay: Duration) -> Job:
        """Put it back for a while; spends no attempt."""
        return self._settle(lifecycle.Snoozed(seconds(delay, "delay")))

    def release(self) -> Job:
        """Give it back as it was, for whoever claims it next; spends no attempt."""
        return self._settle(lifecycle.Released())

    def cancel(self, why: str = "cancelled by its holder") -> Job:
        """End it as cancelled."""
        return self._settle(lifecycle.Stopped(clean(self._attempt.conceal(str(why)), MESSAGE_CAP)))

    # ---------------------------------------------------------------------------------- for async code

    astart = async_face(start)
    aextend = async_face(extend)
    asucceed = async_face(succeed)
    afail = async_face(fail)
    asnooze = async_face(snooze)
    arelease = async_face(release)
    acancel = async_face(cancel)

    def _settle(self, outcome: lifecycle.Outcome) -> Job:
        """Write how it ended, on the job as it is; a write whose answer was lost is known as our own."""
        trouble: EngineUnavailable | None = None
        noise = random.random()  # noqa: S311 - jitter
        change = lifecycle.settle(self.job, outcome, self._engine.now(), noise=noise)
        for wait in lock_waits():
            try:
                [verdict] = self._engine.turn([change]).verdicts
            except EngineUnavailable as error:
                trouble = error
                time.sleep(wait)
                continue
            match verdict.ruling:
                case Ruling.APPLIED | Ruling.ALREADY:
                    return change.after
                case Ruling.STALE if verdict.job is not None:
                    self._attempt.job = verdict.job
                    change = lifecycle.settle(self.job, outcome, self._engine.now(), noise=noise)
                case Ruling.LOST:
                    raise self._lost()
                case Ruling.REFUSED:
                    instead = lifecycle.fallback(change, verdict.holder, verdict.why, self._engine.now())
                    if instead is None:
                        raise NotPossible(f"job {change.id}: {verdict.why}")
                    change = instead
                case _:
                    time.sleep(wait)
        raise trouble or EngineUnavailable(f"job {change.id} is locked by an open transaction: try again")

    def _lost(self) -> LeaseLost:
        self._attempt.request_stop(StopReason.LOST)
        return LeaseLost(f"job {self._attempt.id} is no longer yours: its lease ran out, or it was settled before")
