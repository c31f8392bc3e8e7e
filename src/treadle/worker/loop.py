"""What the engine thread does next, and what follows from the answer. Pure: no clock, no thread, no engine.

    look ──► next_step ──► Exit | BackOff | Chores | Decide | WriteStarts | TakeTurn | Rest
     ▲                                      │
     │                               turns.py does it
     └── effects ◄── after ◄── TurnDone | StartsWritten | ChoresDone | Rested | StoreFailed

One step settles what has ended and claims what there is room for: `TakeTurn`. While it is under way outcomes pile up,
so batches grow under load and shrink to one when idle. The other steps come between two turns: starts that must be
written before they happen, the chores that are due, a rest when there is nothing to do. A claim keeps its token until
it is answered, so a turn that failed is repeated and claims no second time.

Times are seconds on the monotonic clock. `turns.py` is the thread that looks, performs the steps and applies effects.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.values import Claim, Renewal, Ruling, Verdict
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Reason, lifecycle
from treadle.model.backoff import Backoff
from treadle.model.lifecycle import FailedForGood
from treadle.model.records import missed_after
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
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

MAX_BATCH = 500  # changes in a turn, and jobs in a claim
CLAIM_AHEAD = 0.2  # seconds of work that is claimed before there is a free slot for it
RATE_MEMORY = 0.5  # seconds over which the rate of jobs is remembered
HELD_REST = 0.25  # seconds between two looks at jobs that wait for a slot
ORPHAN_INTERVAL = 2.0  # seconds between two looks for jobs that no live worker knows, if those are to fail
IDLE_TIMEOUT = 60.0  # seconds that a worker that runs until it is idle waits for a store that does not answer
EXIT_TIMEOUT = 10.0  # seconds to settle what is left at the end, if the store does not answer
UNAVAILABLE_BACKOFF, REFUSED_BACKOFF = Backoff(0.05, 5.0), Backoff(0.5, 5.0)
LOCKED_ROW = Backoff(0.02, 1.0)


class LoopState(NamedTuple):
    """What survives from one step to the next."""

    claim: Claim | None = None  # sent and not answered: it is repeated with the same token
    claim_sent: float = 0.0  # when it was first sent: the leases it gives count from then
    rest_until: float = 0.0  # the last claim found less than there was room for
    retry_at: float = 0.0  # the store failed
    failures: int = 0  # since the last turn that was answered
    failing_since: float = 0.0  # when the first of them was
    rate: float = 0.0  # jobs settled a second, lately
    turned_at: float = 0.0  # when the last turn was answered
    idle: bool = False  # the last claim of known tasks found less than there was room for
    orphans_at: float = 0.0  # when to look again for jobs that no live worker knows
    locked: frozenset[Attempt] = frozenset()  # starts whose rows were locked when they were tried since the last turn
    chores_next: bool = False  # a turn or a rest has passed since the last chores


class Seen(NamedTuple):
    """One look at the worker: what the next step is decided on."""

    now: float
    held: int = 0
    undecided: int = 0  # outcomes that are not changes yet
    settling: int = 0  # changes to be written by the next turn
    starting: Sequence[Attempt] = ()  # whose start may be written now
    abandoned_slots: int = 0
    stopping: bool = False
    drained_at: float = math.inf  # when the slots were empty, or given up
    until_idle: bool = False
    loop_closed: bool = False
    chores_at: float = 0.0
    presence_is_current: bool = False  # the list of live workers can be believed


def next_step(state: LoopState, seen: Seen, config: WorkerConfig) -> Step:
    """What to do now."""
    if (end := _exit(state, seen)) is not None:
        return end
    if seen.now < state.retry_at:
        return BackOff(state.retry_at - seen.now)
    if state.chores_next and seen.now >= seen.chores_at:
        return Chores()
    if seen.undecided and seen.settling < MAX_BATCH:
        return Decide()
    if starts := [attempt for attempt in seen.starting if attempt not in state.locked]:
        return WriteStarts(starts)
    if state.claim is not None:
        return TakeTurn(state.claim)
    room = _room(state, seen, config)
    if room > 0 or seen.settling:
        if room > 0 and _orphans_due(state, seen, config):
            return TakeTurn(None, room, orphans=True)
        return TakeTurn(None, room, thorough=room > 0 and seen.until_idle and state.idle)
    return _rest(state, seen, config)


def _exit(state: LoopState, seen: Seen) -> Exit | None:
    """Whether it is over. A claim without an answer may have given us jobs: they are asked for, and go back."""
    drained = seen.drained_at <= seen.now
    if seen.loop_closed and not drained:
        return Exit("the event loop was closed under the worker", seen.held)
    if drained and not seen.held and not seen.undecided and state.claim is None:
        return Exit()
    if seen.now > seen.drained_at + EXIT_TIMEOUT:
        return Exit("the store did not answer", seen.held)
    return None


def _room(state: LoopState, seen: Seen, config: WorkerConfig) -> int:
    """How many jobs to claim: as many as will start within a fraction of a second.

    A turn that settles claims as well: what its handlers enqueued gave a hint when nobody listened.
    """
    if seen.stopping or (seen.now < state.rest_until and not seen.settling):
        return 0
    capacity = config.concurrency - seen.abandoned_slots + int(state.rate * CLAIM_AHEAD)
    return max(0, min(config.batch or MAX_BATCH, MAX_BATCH, capacity - seen.held + seen.settling))


def _orphans_due(state: LoopState, seen: Seen, config: WorkerConfig) -> bool:
    """Whether to look for jobs that no live worker knows: only when nothing else is due."""
    return config.fail_unknown and state.idle and seen.now >= state.orphans_at and seen.presence_is_current


def _rest(state: LoopState, seen: Seen, config: WorkerConfig) -> Rest:
    longest = HELD_REST if seen.held else min(config.poll, config.sweep)  # chores do not wait for the poll
    longest = min(longest, max(0.0, seen.chores_at - seen.now))
    left = state.rest_until - seen.now
    if left > 0 and not seen.stopping:
        return Rest(min(left, longest), for_jobs=True)
    return Rest(longest)


def claiming(state: LoopState, claim: Claim, now: float) -> LoopState:
    """The state with a new claim on its way; said before it is sent, so that a lost answer is asked for again."""
    orphans_at = now + ORPHAN_INTERVAL if claim.unless else state.orphans_at
    return state._replace(claim=claim, claim_sent=now, orphans_at=orphans_at)


def after(
    state: LoopState, seen: Seen, step: Step, answer: Answer, now: float, config: WorkerConfig
) -> tuple[LoopState, list[Effect]]:
    """What the answer to a step changes, and what is to be done about it."""
    match answer:
        case StoreFailed():
            return _after_failure(state, seen, step, answer, now, config)
        case TurnDone():
            return _after_turn(state, seen, answer, now, config)
        case StartsWritten() if isinstance(step, WriteStarts):
            return _after_starts(state, step, answer, config)
        case ChoresDone(made_jobs):
            return state._replace(chores_next=False, rest_until=0.0 if made_jobs else state.rest_until), []
        case Rested(hinted, backlog):
            rest_until = 0.0 if hinted else state.rest_until
            rate = 0.0 if backlog else state.rate  # jobs take longer than thought
            return state._replace(rest_until=rest_until, rate=rate, locked=frozenset(), chores_next=True), []
        case _:
            return state, []


def _after_failure(
    state: LoopState, seen: Seen, step: Step, failed: StoreFailed, now: float, config: WorkerConfig
) -> tuple[LoopState, list[Effect]]:
    """Wait a little longer each time, and take the same step again."""
    failures = state.failures + 1
    backoff = UNAVAILABLE_BACKOFF if isinstance(failed.error, EngineUnavailable) else REFUSED_BACKOFF
    wait = backoff.delay(failures) * (0.5 + failed.noise / 2)
    effects: list[Effect] = [ReportFailure(failed.error, wait)]
    refused = isinstance(failed.error, EngineError) and not isinstance(failed.error, EngineUnavailable)
    since = state.failing_since if state.failures else now
    if seen.until_idle and ((refused and failures > 1) or now - since > IDLE_TIMEOUT):
        effects.append(StopRefused(failed.error))
    changed = state._replace(
        failures=failures,
        failing_since=since,
        retry_at=now + wait,
        # No worker could say that it is alive: all of them get the time for it.
        orphans_at=now + wait + missed_after(config.heartbeat),
        chores_next=state.chores_next and not isinstance(step, Chores),
    )
    return changed, effects


def _after_turn(
    state: LoopState, seen: Seen, done: TurnDone, now: float, config: WorkerConfig
) -> tuple[LoopState, list[Effect]]:
    effects: list[Effect] = list(after_verdicts(done.settled, done.turn.verdicts, done.turn.now, now))
    changed = state._replace(
        failures=0,
        rate=rate_after(state.rate, len(done.settled), now - state.turned_at),
        turned_at=now,
        locked=frozenset(),
        chores_next=True,
    )
    if (claim := state.claim) is None:
        return changed, effects
    orphans = bool(claim.unless)
    if done.turn.claimed:
        effects.append(Begin(done.turn.claimed, state.claim_sent + config.lease, orphans))
    if claim.thorough and not done.turn.claimed and not done.turn.more:
        effects.append(StopWhenEmpty())
    short = len(done.turn.claimed) < claim.limit and not done.turn.more
    changed = changed._replace(claim=None, idle=short and not orphans)
    if not short or (seen.until_idle and not claim.thorough):  # the claim that looks everywhere comes at once
        return changed._replace(rest_until=0.0), effects
    if _orphans_due(changed, seen._replace(now=now), config):
        return changed, effects
    return changed._replace(rest_until=now + config.poll), effects


def rate_after(rate: float, settled: int, elapsed: float) -> float:
    """Jobs settled a second, over the last moments: two that end together are not a stream of thousands."""
    weight = 1.0 - math.exp(-elapsed / RATE_MEMORY)
    return rate + (settled / max(elapsed, 1e-6) - rate) * weight


def after_verdicts(
    settled: Sequence[Settling], verdicts: Sequence[Verdict], store_now: datetime, now: float
) -> list[Effect]:
    """What the store said to each change; those that were written come first, together."""
    written, effects = [], []
    for settling, verdict in zip(settled, verdicts, strict=True):
        if verdict.ruling is Ruling.APPLIED or verdict.ruling is Ruling.ALREADY:
            written.append(settling)
        else:
            effects.append(_after_verdict(settling, verdict, store_now, now))
    return [Settled(written, store_now), *effects] if written else effects


def _after_verdict(settling: Settling, verdict: Verdict, store_now: datetime, now: float) -> Effect:
    """What follows from a change that was not written."""
    match verdict.ruling:
        case Ruling.STALE:
            return DecideAgain(settling, verdict.job)
        case Ruling.BUSY:  # less and less often
            lock_wait = min(LOCKED_ROW.longest, max(LOCKED_ROW.first, 2 * settling.attempt.lock_wait))
            return SettleLater(settling, now + lock_wait, lock_wait)
        case Ruling.REFUSED:
            return _after_refusal(settling, verdict, store_now)
        case _:
            return OutcomeLost(settling)


def _after_refusal(settling: Settling, verdict: Verdict, store_now: datetime) -> Effect:
    attempt, outcome, change = settling
    [whole] = lifecycle.whole([change], store_now)
    other = lifecycle.fallback(whole, verdict.holder, verdict.why, store_now)
    if other is not None:
        return SettleInstead(Settling(attempt, outcome, other))
    if isinstance(outcome, FailedForGood) and outcome.reason is Reason.INVALID_RESULT:
        return LeaveToLease(settling, verdict.why)
    return RefuseResult(settling, verdict.why, store_now)


def _after_starts(
    state: LoopState, step: WriteStarts, written: StartsWritten, config: WorkerConfig
) -> tuple[LoopState, list[Effect]]:
    effects: list[Effect] = []
    locked = set(state.locked)
    for attempt, result in zip(step.attempts, written.results, strict=True):
        match result.renewal:
            case Renewal.RENEWED:
                effects.append(Launch(attempt, written.started_at, written.sent + config.lease))
            case Renewal.LOST:
                effects.append(LoseStart(attempt))
            case Renewal.BUSY | Renewal.MISSED:
                locked.add(attempt)
    return state._replace(locked=frozenset(locked)), effects


class Starts(NamedTuple):
    """Attempts whose start must be written before it happens, by what can be done about them now."""

    given_up: list[Attempt]  # their leases were lost meanwhile: their slots are free again
    ready: list[Attempt]
    waiting: list[Attempt]


def sort_starts(starting: Sequence[Attempt], *, isolated_unwritten: bool) -> Starts:
    """Sort them. Until the end of the last isolated one is written the next one waits: it could take that job along."""
    starts = Starts([], [], [])
    for attempt in starting:
        if attempt.stop_reason is StopReason.LOST:
            starts.given_up.append(attempt)
        elif attempt.isolated and isolated_unwritten:
            starts.waiting.append(attempt)
        else:
            starts.ready.append(attempt)
    return starts
