"""The words of the worker's loop: steps, the answers to them, and the effects that follow. Values only; see loop.py."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.values import Claim, ClaimedJob, RenewalResult, Turn
from treadle.model import Change, Job
from treadle.model.lifecycle import Outcome, Success
from treadle.worker.attempt import Attempt


class Settling(NamedTuple):
    """An outcome on its way to the store."""

    attempt: Attempt
    outcome: Outcome
    change: Change | Success


# ------------------------------------------------------------------------------------------------- steps


class Exit(NamedTuple):
    """End the thread; `problem` says why jobs are left to their leases, if they are."""

    problem: str = ""
    left: int = 0


class BackOff(NamedTuple):
    """Do nothing for so long: the store failed."""

    seconds: float


class Chores(NamedTuple):
    """Do the maintenance that is due."""


class Decide(NamedTuple):
    """Turn the outcomes so far into changes."""


class WriteStarts(NamedTuple):
    """Write that these attempts start, then let them."""

    attempts: Sequence[Attempt]


class TakeTurn(NamedTuple):
    """Settle what has ended and claim: the `claim` that was not answered, or a new one for up to `room` jobs."""

    claim: Claim | None = None
    room: int = 0
    orphans: bool = False  # the new claim is for jobs that no live worker knows
    thorough: bool = False  # the new claim looks everywhere: the worker stops if it finds nothing


class Rest(NamedTuple):
    """Wait for an outcome or the next chore; with `for_jobs`, for a hint of new jobs too."""

    seconds: float
    for_jobs: bool = False


Step = Exit | BackOff | Chores | Decide | WriteStarts | TakeTurn | Rest


# ------------------------------------------------------------------------------------------------ answers


class TurnDone(NamedTuple):
    """The store has answered a turn."""

    turn: Turn
    settled: Sequence[Settling]


class StartsWritten(NamedTuple):
    """The store has answered the starts; `sent` is when it was asked."""

    results: Sequence[RenewalResult]
    started_at: datetime
    sent: float


class ChoresDone(NamedTuple):
    made_jobs: bool


class Rested(NamedTuple):
    """`hinted`: there may be something to claim; `backlog`: claimed jobs wait for a slot."""

    hinted: bool
    backlog: bool


class StoreFailed(NamedTuple):
    """The step raised; `noise` from 0 to 1 spreads the workers' next tries."""

    error: Exception
    noise: float = 1.0


Answer = TurnDone | StartsWritten | ChoresDone | Rested | StoreFailed | None


# ------------------------------------------------------------------------------------------------ effects


class Settled(NamedTuple):
    """These outcomes are written: hold their jobs no longer. `at` is the store's time."""

    settled: Sequence[Settling]
    at: datetime


class OutcomeLost(NamedTuple):
    """The lease was lost, and the outcome was refused."""

    settling: Settling


class DecideAgain(NamedTuple):
    """The job has moved on, and is still ours: decide anew on `job`."""

    settling: Settling
    job: Job | None


class SettleLater(NamedTuple):
    """The row is locked by somebody's open transaction: try again at `at`, after a `lock_wait`."""

    settling: Settling
    at: float
    lock_wait: float


class SettleInstead(NamedTuple):
    """What was decided is refused, and this is written instead."""

    settling: Settling


class RefuseResult(NamedTuple):
    """The store does not take the outcome's value: the job fails, and says why. `at` is the store's time."""

    settling: Settling
    why: str
    at: datetime


class LeaveToLease(NamedTuple):
    """Even the refusal is refused."""

    settling: Settling
    why: str


class Begin(NamedTuple):
    """These jobs are claimed: let them run. `lease_ends` counts from before the claim was sent."""

    claimed: Sequence[ClaimedJob]
    lease_ends: float
    orphans: bool = False  # claimed because no live worker knew them


class Launch(NamedTuple):
    """Its start is written: let it run."""

    attempt: Attempt
    started_at: datetime
    lease_ends: float


class LoseStart(NamedTuple):
    """Its lease was lost before it started."""

    attempt: Attempt


class StopWhenEmpty(NamedTuple):
    """Nothing is due: stop, if nothing is held either."""


class StopRefused(NamedTuple):
    """The store refuses a worker run with until_idle, or is gone for long: nobody waits for rights, or for ever."""

    error: Exception


class ReportFailure(NamedTuple):
    """The store failed; the next try comes in `wait` seconds."""

    error: Exception
    wait: float


Effect = (
    Settled
    | OutcomeLost
    | DecideAgain
    | SettleLater
    | SettleInstead
    | RefuseResult
    | LeaveToLease
    | Begin
    | Launch
    | LoseStart
    | StopWhenEmpty
    | StopRefused
    | ReportFailure
)
