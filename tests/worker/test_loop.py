"""The worker's loop without a thread: what it does next, and what follows from each answer."""

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from tests.support.making import a_job, an_error
from treadle.engines.values import Claim, ClaimedJob, Renewal, RenewalResult, Ruling, Turn, Verdict
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import Job, Reason, Retry, Scope, lifecycle
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.loop import (
    CLAIM_AHEAD,
    EXIT_TIMEOUT,
    HELD_REST,
    LOCKED_ROW,
    MAX_BATCH,
    ORPHAN_INTERVAL,
    LoopState,
    Seen,
    after,
    after_verdicts,
    claiming,
    next_step,
    rate_after,
    sort_starts,
)  # fmt: skip
from treadle.worker.steps import (
    Answer,
    BackOff,
    Begin,
    Chores,
    ChoresDone,
    Decide,
    DecideAgain,
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
    StopRefused,
    StopWhenEmpty,
    StoreFailed,
    TakeTurn,
    TurnDone,
    WriteStarts,
)  # fmt: skip

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = WorkerConfig("w1", concurrency=10, lease=30.0, poll=1.0, sweep=1.0)
FAILING = CONFIG._replace(fail_unknown=True)
FAR = 10_000.0  # when nothing is due for long


def seen(now: float = 100.0, **fields: object) -> Seen:
    return Seen(**{"now": now, "chores_at": FAR, **fields})


def held(number: int = 1, **fields: object) -> Job:
    """A job that this worker holds."""
    job = a_job(NOW, **fields)
    return lifecycle.claim(job, NOW, worker="w1", token=f"token-{number}", lease=30.0).after


def an_attempt(**fields: object) -> Attempt:
    return Attempt(ClaimedJob.of(held(**fields)), lease_ends=130.0, queued_at=100.0)


def settling(outcome: object = None, **fields: object) -> Settling:
    attempt = an_attempt(**fields)
    outcome = outcome or Succeeded("1")
    return Settling(attempt, outcome, lifecycle.settle(attempt.job, outcome, NOW))


def plain_settling() -> Settling:
    attempt, outcome = an_attempt(), Succeeded("1")
    attempt.started_at = NOW
    success = attempt.success(outcome)
    assert success is not None
    return Settling(attempt, outcome, success)


def a_claim(limit: int = 5, **fields: object) -> Claim:
    return Claim("token", "w1", limit, 30.0, **fields)


# ---------------------------------------------------------------------------------------------- what comes next

STEPS = {
    "a closed loop ends the thread and says what it leaves": (
        LoopState(), seen(held=3, loop_closed=True), Exit("the event loop was closed under the worker", 3)
    ),
    "a closed loop is no problem once the worker is drained": (
        LoopState(), seen(loop_closed=True, drained_at=99.0), Exit()
    ),
    "a drained worker that holds nothing ends": (LoopState(), seen(stopping=True, drained_at=100.0), Exit()),
    "a drained worker that still holds a job goes on": (
        LoopState(), seen(held=1, settling=1, stopping=True, drained_at=100.0), TakeTurn()
    ),
    "a drained worker whose claim was not answered asks once more, for it may hold jobs": (
        LoopState(claim=a_claim()), seen(stopping=True, drained_at=100.0), TakeTurn(a_claim())
    ),
    "a drained worker with an outcome in its hands goes on": (
        LoopState(), seen(undecided=1, stopping=True, drained_at=100.0), Decide()
    ),
    "a drained worker gives up a silent store in the end": (
        LoopState(), seen(now=100.1 + EXIT_TIMEOUT, held=2, stopping=True, drained_at=100.0),
        Exit("the store did not answer", 2),
    ),
    "it waits for the store until the very end": (
        LoopState(retry_at=200.0), seen(now=100.0 + EXIT_TIMEOUT, held=2, stopping=True, drained_at=100.0),
        BackOff(200.0 - 100.0 - EXIT_TIMEOUT),
    ),
    "a store that failed is left alone": (LoopState(retry_at=100.5), seen(undecided=1, settling=1), BackOff(0.5)),
    "chores come after a turn, if they are due": (LoopState(chores_next=True), seen(chores_at=100.0), Chores()),
    "chores that are not due do not come": (LoopState(chores_next=True), seen(), TakeTurn(None, 10)),
    "chores do not come twice without a turn": (LoopState(), seen(chores_at=0.0), TakeTurn(None, 10)),
    "chores come before a turn, so that load does not starve them": (
        LoopState(chores_next=True), seen(chores_at=99.0, settling=5), Chores()
    ),
    "outcomes are decided first": (LoopState(), seen(undecided=1, held=1), Decide()),
    "a full batch is written before more is decided": (
        LoopState(), seen(undecided=1, held=MAX_BATCH + 1, settling=MAX_BATCH), TakeTurn(None, 9)
    ),
    "a claim without an answer is repeated": (LoopState(claim=a_claim()), seen(), TakeTurn(a_claim())),
    "it is repeated by a worker that stops, which must know its jobs": (
        LoopState(claim=a_claim()), seen(stopping=True), TakeTurn(a_claim())
    ),
    "an idle worker claims for all its slots": (LoopState(), seen(), TakeTurn(None, 10)),
    "what is held takes a slot": (LoopState(), seen(held=4), TakeTurn(None, 6)),
    "what this turn settles frees one": (LoopState(), seen(held=4, settling=3), TakeTurn(None, 9)),
    "an abandoned slot is no room": (LoopState(), seen(abandoned_slots=2), TakeTurn(None, 8)),
    "a fast worker claims a little ahead": (LoopState(rate=100.0), seen(), TakeTurn(None, 10 + int(100 * CLAIM_AHEAD))),
    "never more than a batch": (LoopState(rate=1e9), seen(), TakeTurn(None, MAX_BATCH)),
    "a full worker only settles": (LoopState(), seen(held=12, settling=1), TakeTurn(None, 0)),
    "a full worker rests": (LoopState(), seen(held=10), Rest(HELD_REST)),
    "after a short claim it rests, and listens for jobs": (
        LoopState(rest_until=100.7), seen(), Rest(pytest.approx(0.7), for_jobs=True)
    ),
    "a turn that settles claims as well": (
        LoopState(rest_until=200.0), seen(held=1, settling=1), TakeTurn(None, 10)
    ),
    "a worker that stops claims nothing": (LoopState(), seen(stopping=True), Rest(1.0)),
    "a worker that stops settles": (LoopState(), seen(stopping=True, held=1, settling=1), TakeTurn(None, 0)),
    "a worker that stops does not listen for jobs": (LoopState(rest_until=200.0), seen(stopping=True), Rest(1.0)),
    "it wakes in time for its chores": (LoopState(rest_until=200.0), seen(chores_at=100.25), Rest(0.25, for_jobs=True)),
    "it does not rest longer than a poll": (LoopState(rest_until=200.0), seen(), Rest(1.0, for_jobs=True)),
    "what waits for a slot is looked at more often": (
        LoopState(rest_until=200.0), seen(held=1), Rest(HELD_REST, for_jobs=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "look", "step"), STEPS.values(), ids=STEPS)
def test_the_next_step(state: LoopState, look: Seen, step: object) -> None:
    found = next_step(state, look, CONFIG)
    assert (type(found), found) == (type(step), step)  # two steps without fields are equal tuples


def test_a_batch_setting_bounds_a_claim() -> None:
    assert next_step(LoopState(), seen(), CONFIG._replace(batch=3)) == TakeTurn(None, 3)


def test_starts_are_written_before_the_turn() -> None:
    attempt = an_attempt()
    assert next_step(LoopState(), seen(starting=[attempt], held=1), CONFIG) == WriteStarts([attempt])


def test_a_start_whose_row_is_locked_is_tried_again_after_the_next_turn_and_not_before() -> None:
    locked, fresh = an_attempt(), an_attempt()
    state = LoopState(locked=frozenset([locked]))
    assert next_step(state, seen(starting=[locked], held=1), CONFIG) == TakeTurn(None, 9)
    assert next_step(state, seen(starting=[locked, fresh], held=2), CONFIG) == WriteStarts([fresh])
    rested, _ = after(state, seen(), Rest(1.0), Rested(hinted=False, backlog=False), 101.0, CONFIG)
    assert next_step(rested, seen(starting=[locked], held=1), CONFIG) == WriteStarts([locked])


ORPHANS = {
    "an idle worker that may trust the list looks for orphans": (LoopState(idle=True), {}, FAILING, True),
    "a busy one does not": (LoopState(idle=False), {}, FAILING, False),
    "not before its time": (LoopState(idle=True, orphans_at=100.1), {}, FAILING, False),
    "not while the list of workers is not to be believed": (
        LoopState(idle=True), {"presence_is_current": False}, FAILING, False
    ),
    "not where unknown jobs are left alone": (LoopState(idle=True), {}, CONFIG, False),
}  # fmt: skip


@pytest.mark.parametrize(("state", "look", "config", "wanted"), ORPHANS.values(), ids=ORPHANS)
def test_when_orphans_are_looked_for(state: LoopState, look: dict, config: WorkerConfig, wanted: bool) -> None:
    step = next_step(state, seen(**{"presence_is_current": True, **look}), config)
    assert step == TakeTurn(None, 10, wanted)


# ------------------------------------------------------------------------------------------------ what follows


def answered(state: LoopState, answer: Answer, step: object = None, now: float = 101.0, **look: object) -> tuple:
    return after(state, seen(**look), TakeTurn() if step is None else step, answer, now, FAILING)


def a_turn(jobs: Sequence[Job] = (), verdicts: Sequence[Verdict] = ()) -> Turn:
    return Turn(list(verdicts), [ClaimedJob.of(job) for job in jobs], NOW)


def test_a_claim_is_remembered_before_it_is_sent_and_forgotten_when_it_is_answered() -> None:
    state = claiming(LoopState(), a_claim(), 100.0)
    assert (state.claim, state.claim_sent) == (a_claim(), 100.0)
    state, _ = answered(state, TurnDone(a_turn(), []))
    assert state.claim is None


def test_a_claim_for_orphans_puts_off_the_next_one() -> None:
    assert claiming(LoopState(), a_claim(unless=("known",)), 100.0).orphans_at == 100.0 + ORPHAN_INTERVAL
    assert claiming(LoopState(orphans_at=7.0), a_claim(), 100.0).orphans_at == 7.0


def test_leases_count_from_before_the_claim_was_sent() -> None:
    turn = a_turn([held()])
    _, effects = answered(claiming(LoopState(), a_claim(), 100.0), TurnDone(turn, []), now=120.0)
    assert effects == [Begin(turn.claimed, 130.0)]


def test_a_failed_turn_keeps_its_claim_and_when_it_was_sent() -> None:
    state = claiming(LoopState(), a_claim(), 100.0)
    failed, _ = answered(state, StoreFailed(EngineUnavailable("gone")))
    assert (failed.claim, failed.claim_sent) == (state.claim, 100.0)


def test_a_short_claim_is_followed_by_a_rest_and_a_full_one_is_not() -> None:
    state = claiming(LoopState(rest_until=500.0), a_claim(limit=2), 100.0)
    short, _ = answered(state, TurnDone(a_turn([held()]), []))
    full, _ = answered(state, TurnDone(a_turn([held(), held()]), []))
    assert (short.rest_until, short.idle) == (101.0 + FAILING.poll, True)
    assert (full.rest_until, full.idle) == (0.0, False)


def test_where_orphans_are_due_a_short_claim_is_followed_by_a_look_for_them() -> None:
    state = claiming(LoopState(), a_claim(limit=2), 100.0)
    short, _ = answered(state, TurnDone(a_turn(), []), presence_is_current=True)
    assert next_step(short, seen(101.0, presence_is_current=True), FAILING) == TakeTurn(None, 10, True)


def test_a_claim_of_orphans_does_not_make_the_worker_idle() -> None:
    state = claiming(LoopState(idle=True), a_claim(unless=("known",)), 100.0)
    turn = a_turn([held()])
    done, effects = answered(state, TurnDone(turn, []), presence_is_current=True)
    assert not done.idle
    assert effects == [Begin(turn.claimed, 130.0, orphans=True)]


def test_a_turn_that_only_settles_says_nothing_about_jobs_that_are_due() -> None:
    state, effects = answered(LoopState(rest_until=500.0, idle=True), TurnDone(a_turn(), []), until_idle=True)
    assert (state.rest_until, state.idle, effects) == (500.0, True, [])


UNTIL_IDLE = {
    "the first claim is an ordinary one": (LoopState(), {}, TakeTurn(None, 10)),
    "a claim after one that found too little looks everywhere": (
        LoopState(idle=True), {}, TakeTurn(None, 10, thorough=True)
    ),
    "so does the one that comes with the last outcome": (
        LoopState(idle=True, rest_until=500.0), {"held": 1, "settling": 1}, TakeTurn(None, 10, thorough=True)
    ),
    "a turn without a claim does not": (LoopState(idle=True), {"held": 12, "settling": 1}, TakeTurn(None, 0)),
}  # fmt: skip


@pytest.mark.parametrize(("state", "look", "step"), UNTIL_IDLE.values(), ids=UNTIL_IDLE)
def test_a_worker_that_runs_until_idle_looks_everywhere_only_when_there_seems_to_be_nothing(
    state: LoopState, look: dict, step: TakeTurn
) -> None:
    assert next_step(state, seen(until_idle=True, **look), CONFIG) == step
    assert next_step(state, seen(**look), CONFIG) == step._replace(thorough=False)


def test_a_worker_that_runs_until_idle_stops_after_a_claim_that_looked_everywhere_and_found_nothing() -> None:
    state = claiming(LoopState(), a_claim(thorough=True), 100.0)
    [stop] = answered(state, TurnDone(a_turn(), []), until_idle=True)[1]
    assert isinstance(stop, StopWhenEmpty)
    assert [type(one) for one in answered(state, TurnDone(a_turn([held()]), []), until_idle=True)[1]] == [Begin]


def test_a_worker_that_runs_until_idle_goes_on_at_once_from_a_claim_that_did_not_look_everywhere() -> None:
    state = claiming(LoopState(rest_until=500.0), a_claim(), 100.0)
    for jobs in ([], [held()]):
        short, effects = answered(state, TurnDone(a_turn(jobs), []), until_idle=True)
        assert (short.rest_until, short.idle) == (0.0, True)
        assert not any(isinstance(effect, StopWhenEmpty) for effect in effects)


def test_a_worker_that_runs_until_idle_rests_after_it_has_looked_everywhere() -> None:
    """Its jobs still run: it must not look everywhere without a pause."""
    state = claiming(LoopState(), a_claim(thorough=True), 100.0)
    short, _ = answered(state, TurnDone(a_turn(), []), until_idle=True, held=3)
    assert (short.rest_until, short.idle) == (101.0 + FAILING.poll, True)


def test_a_claim_of_orphans_does_not_end_a_worker_that_runs_until_idle() -> None:
    state = LoopState(idle=True)
    look = seen(until_idle=True, presence_is_current=True)
    assert next_step(state, look, FAILING) == TakeTurn(None, 10, orphans=True)
    state = claiming(state, a_claim(unless=("known",)), 100.0)
    state, effects = answered(state, TurnDone(a_turn(), []), until_idle=True, presence_is_current=True)
    assert effects == []
    assert next_step(state, look._replace(now=101.0), FAILING) == TakeTurn(None, 10)


def test_a_claim_that_was_cut_short_is_followed_by_another_at_once_and_does_not_end_a_worker() -> None:
    state = claiming(LoopState(rest_until=500.0), a_claim(limit=2, thorough=True), 100.0)
    cut, effects = answered(state, TurnDone(a_turn()._replace(more=True), []), until_idle=True)
    assert (cut.rest_until, cut.idle, effects) == (0.0, False, [])


def test_a_turn_ends_a_row_of_failures_and_lets_the_chores_come() -> None:
    state, _ = answered(LoopState(failures=3, locked=frozenset([an_attempt()])), TurnDone(a_turn(), []))
    assert (state.failures, state.locked, state.chores_next, state.turned_at) == (0, frozenset(), True, 101.0)


def test_the_rate_rises_with_what_is_settled_and_forgets() -> None:
    once = rate_after(0.0, 100, 0.5)
    assert 100 < once < 200
    assert rate_after(once, 0, 5.0) < 1.0
    assert rate_after(0.0, 2, 1e-9) < 10  # two that end together are not a stream of thousands


def test_a_rest_is_cut_short_by_a_hint_and_a_backlog_says_that_jobs_take_longer() -> None:
    state = LoopState(rest_until=500.0, rate=80.0)
    hinted, _ = answered(state, Rested(hinted=True, backlog=False), Rest(1.0))
    late, _ = answered(state, Rested(hinted=False, backlog=True), Rest(1.0))
    assert (hinted.rest_until, hinted.rate, hinted.chores_next) == (0.0, 80.0, True)
    assert (late.rest_until, late.rate, late.chores_next) == (500.0, 0.0, True)


def test_chores_that_made_a_job_end_the_rest() -> None:
    state = LoopState(rest_until=500.0, chores_next=True)
    assert answered(state, ChoresDone(made_jobs=True), Chores())[0] == LoopState(rest_until=0.0)
    assert answered(state, ChoresDone(made_jobs=False), Chores())[0] == LoopState(rest_until=500.0)


def test_the_store_is_asked_less_and_less_often_while_it_fails() -> None:
    state, waits = LoopState(), []
    for _ in range(12):
        state, [report] = answered(state, StoreFailed(EngineUnavailable("gone"), noise=1.0))
        waits.append(report.wait)
        assert state.retry_at == 101.0 + report.wait
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (pytest.approx(0.1), 5.0)


def test_a_store_that_refuses_is_asked_less_often_than_one_that_is_gone() -> None:
    _, [gone] = answered(LoopState(), StoreFailed(EngineUnavailable("gone")))
    _, [refused] = answered(LoopState(), StoreFailed(EngineError("no rights")))
    assert refused.wait > gone.wait


def test_noise_spreads_the_tries_over_half_of_the_wait() -> None:
    waits = [answered(LoopState(), StoreFailed(EngineUnavailable("gone"), noise))[1][0].wait for noise in (0.0, 1.0)]
    assert waits[0] == waits[1] / 2


def test_after_a_failure_every_worker_gets_the_time_to_say_that_it_is_alive() -> None:
    state, [report] = answered(LoopState(), StoreFailed(EngineUnavailable("gone")))
    assert state.orphans_at > 101.0 + report.wait + 3 * FAILING.heartbeat


@pytest.mark.parametrize(
    ("failures", "error", "until_idle", "stops"),
    [
        (1, EngineError("no rights"), True, True),
        (0, EngineError("no rights"), True, False),
        (1, EngineError("no rights"), False, False),
        (9, EngineUnavailable("gone"), True, False),
        (9, ValueError("a bug"), True, False),
    ],
)
def test_a_worker_that_shall_end_by_itself_does_not_wait_for_rights(
    failures: int, error: Exception, until_idle: bool, stops: bool
) -> None:
    state = LoopState(failures=failures, failing_since=100.0)
    _, effects = answered(state, StoreFailed(error), until_idle=until_idle)
    assert isinstance(effects[0], ReportFailure)
    assert effects[1:] == ([StopRefused(error)] if stops else [])


@pytest.mark.parametrize(("until_idle", "minutes", "stops"), [(True, 2, True), (True, 0.5, False), (False, 60, False)])
def test_a_worker_that_runs_until_idle_does_not_wait_for_ever_for_a_store_that_is_gone(
    until_idle: bool, minutes: float, stops: bool
) -> None:
    """A step of CI, or a line of a crontab, would hang."""
    gone = EngineUnavailable("gone")
    state, [_] = answered(LoopState(), StoreFailed(gone), until_idle=until_idle)
    began = state.failing_since
    state, effects = after(
        state, seen(until_idle=until_idle), TakeTurn(), StoreFailed(gone), began + 60 * minutes, FAILING
    )
    assert effects[1:] == ([StopRefused(gone)] if stops else [])
    assert state.failing_since == began


def test_chores_that_failed_are_not_repeated_before_the_jobs() -> None:
    failed, _ = answered(LoopState(chores_next=True), StoreFailed(ValueError("a bug")), Chores())
    other, _ = answered(LoopState(chores_next=True), StoreFailed(ValueError("a bug")), TakeTurn())
    assert (failed.chores_next, other.chores_next) == (False, True)


# ------------------------------------------------------------------------------------------------- the verdicts

VERDICTS = {
    Ruling.APPLIED: lambda one: Settled([one], NOW),
    Ruling.ALREADY: lambda one: Settled([one], NOW),
    Ruling.LOST: OutcomeLost,
    Ruling.STALE: lambda one: DecideAgain(one, None),
    Ruling.BUSY: lambda one: SettleLater(one, 100.0 + LOCKED_ROW.first, LOCKED_ROW.first),
    Ruling.REFUSED: lambda one: RefuseResult(one, "too long", NOW),
}


@pytest.mark.parametrize("ruling", Ruling)
@pytest.mark.parametrize("plain", [True, False])
def test_every_ruling_has_its_effect(ruling: Ruling, plain: bool) -> None:
    one = plain_settling() if plain else settling()
    [effect] = after_verdicts([one], [Verdict(ruling, why="too long")], NOW, 100.0)
    assert effect == VERDICTS[ruling](one)


def test_a_stale_outcome_is_decided_again_on_the_job_as_it_is() -> None:
    one = settling()
    newer = one.attempt.job.evolve(cancel_requested=True, revision=9)
    assert after_verdicts([one], [Verdict(Ruling.STALE, newer)], NOW, 100.0) == [DecideAgain(one, newer)]


def test_a_locked_row_is_tried_less_and_less_often_up_to_a_second() -> None:
    one, waits = settling(), []
    for _ in range(8):
        [later] = after_verdicts([one], [Verdict(Ruling.BUSY)], NOW, 100.0)
        one.attempt.lock_wait = later.lock_wait
        waits.append(later.lock_wait)
        assert later.at == 100.0 + later.lock_wait
    assert waits[:3] == [0.02, 0.04, 0.08]
    assert waits[-1] == 1.0


def test_a_refusal_that_is_refused_is_left_to_its_lease() -> None:
    one = settling(FailedForGood(Reason.INVALID_RESULT, an_error(NOW)))
    assert after_verdicts([one], [Verdict(Ruling.REFUSED, why="no")], NOW, 100.0) == [LeaveToLease(one, "no")]


def test_a_retry_whose_key_is_taken_ends_instead() -> None:
    job = a_job(NOW, key="k", key_scope=Scope.PENDING, retry=Retry(max_attempts=3))
    job = lifecycle.claim(job, NOW, worker="w1", token="t", lease=30.0).after
    attempt = Attempt(ClaimedJob.of(job), lease_ends=1, queued_at=0)
    outcome = Failed(an_error(NOW))
    one = Settling(attempt, outcome, lifecycle.settle(attempt.job, outcome, NOW))
    [effect] = after_verdicts([one], [Verdict(Ruling.REFUSED, holder="other", why="key 'k' is taken")], NOW, 100.0)
    assert isinstance(effect, SettleInstead)
    assert (effect.settling.attempt, effect.settling.change.after.state.final) == (attempt, True)


def test_what_was_written_is_told_together_and_nothing_is_dropped() -> None:
    settled = [settling() for _ in range(6)]
    verdicts = [Verdict(ruling, why="no") for ruling in Ruling]
    effects = after_verdicts(settled, verdicts, NOW, 100.0)
    told = [one for effect in effects for one in (effect.settled if isinstance(effect, Settled) else [effect.settling])]
    assert len(effects) == 5
    assert sorted(map(id, told)) == sorted(map(id, settled))


# --------------------------------------------------------------------------------------------------- the starts


def starts_written(*renewals: Renewal) -> StartsWritten:
    return StartsWritten([RenewalResult("job", renewal) for renewal in renewals], NOW, 100.0)


def test_a_start_that_is_written_is_launched_with_a_lease_from_before_it_was_sent() -> None:
    attempt = an_attempt()
    _, effects = answered(LoopState(), starts_written(Renewal.RENEWED), WriteStarts([attempt]))
    assert effects == [Launch(attempt, NOW, 130.0)]


def test_a_start_whose_lease_is_lost_frees_its_slot() -> None:
    attempt = an_attempt()
    state, effects = answered(LoopState(), starts_written(Renewal.LOST), WriteStarts([attempt]))
    assert (effects, state.locked) == ([LoseStart(attempt)], frozenset())


@pytest.mark.parametrize("renewal", [Renewal.BUSY, Renewal.MISSED])
def test_a_start_that_could_not_be_written_waits(renewal: Renewal) -> None:
    attempt, before = an_attempt(), an_attempt()
    state, effects = answered(LoopState(locked=frozenset([before])), starts_written(renewal), WriteStarts([attempt]))
    assert (effects, state.locked) == ([], frozenset([before, attempt]))


def test_an_isolated_job_waits_while_the_end_of_another_is_not_written_and_its_neighbours_do_not() -> None:
    isolated, once, lost = an_attempt(crashes=1), an_attempt(retry=Retry(1)), an_attempt()
    lost.request_stop(StopReason.LOST)
    assert sort_starts([isolated, once, lost], isolated_unwritten=True) == ([lost], [once], [isolated])
    assert sort_starts([isolated, once], isolated_unwritten=False) == ([], [isolated, once], [])


# ------------------------------------------------------------------------------------------------- a random walk


class Walk:
    """A worker of values: it performs steps on a store that fails, forgets and answers at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state, self.now = LoopState(), 100.0
        self.held: dict[str, Attempt] = {}
        self.outcomes: list[tuple[Attempt, object]] = []
        self.settling: list[Settling] = []
        self.put_off: list[tuple[float, Attempt, object]] = []
        self.stored: dict[str, str] = {}  # job id -> the token that holds it, until it is settled
        self.tokens: dict[str, list[Job]] = {}  # what each token was given
        self.written: set[int] = set()
        self.drained_at = math.inf
        self.steps = 0

    def look(self) -> Seen:
        due = sum(at <= self.now for at, *_ in self.put_off)
        return Seen(
            self.now, held=len(self.held), undecided=len(self.outcomes) + due, settling=len(self.settling),
            stopping=self.drained_at < math.inf, drained_at=self.drained_at,
            chores_at=self.now if self.random.random() < 0.1 else FAR,
        )  # fmt: skip

    def step(self) -> Exit | None:
        self.steps += 1
        look = self.look()
        step = next_step(self.state, look, CONFIG)
        if isinstance(step, Exit):
            return step
        if isinstance(step, TakeTurn) and step.room:
            assert self.state.claim is None, "a claim was dropped without an answer"
            claim = Claim(f"token-{len(self.tokens)}", "w1", step.room, 30.0)
            assert claim.token not in self.tokens
            self.tokens[claim.token] = []
            self.state = claiming(self.state, claim, self.now)
        answer = self.perform(step)
        self.now += self.random.random() / 10
        self.state, effects = after(self.state, look, step, answer, self.now, CONFIG)
        for effect in effects:
            self.apply(effect)
        self.end_some()
        return None

    def perform(self, step: object) -> Answer:
        fails = self.random.random() < 0.15
        match step:
            case TakeTurn():
                if fails and self.random.random() < 0.5:  # not even done
                    return StoreFailed(EngineUnavailable("gone"), 0.0)
                turn = self.turn(self.state.claim)
                if fails:  # done, and its answer is lost
                    return StoreFailed(EngineUnavailable("gone"), 0.0)
                settled, self.settling = self.settling, []
                return TurnDone(turn, settled)
            case Decide():
                self.outcomes += [(attempt, outcome) for at, attempt, outcome in self.put_off if at <= self.now]
                self.put_off = [entry for entry in self.put_off if entry[0] > self.now]
                while self.outcomes and len(self.settling) < MAX_BATCH:
                    attempt, outcome = self.outcomes.pop(0)
                    change = attempt.success(outcome) or lifecycle.settle(attempt.job_so_far(), outcome, NOW)
                    self.settling.append(Settling(attempt, outcome, change))
                return None
            case Rest(seconds, _):
                self.now += seconds
                return Rested(hinted=self.random.random() < 0.3, backlog=False)
            case BackOff(seconds):
                self.now += seconds
                return None
            case Chores():
                return StoreFailed(EngineError("no"), 0.0) if fails else ChoresDone(self.random.random() < 0.5)
        raise AssertionError(step)

    def turn(self, claim: Claim | None) -> Turn:
        verdicts = [self.verdict(one) for one in self.settling]
        jobs = []
        if claim is not None:
            if not self.tokens[claim.token]:
                for _ in range(self.random.randint(0, claim.limit)):
                    job = lifecycle.claim(a_job(NOW), NOW, worker="w1", token=claim.token, lease=30.0).after
                    self.stored[job.id] = claim.token
                    self.tokens[claim.token].append(job)
            jobs = self.tokens[claim.token]
        return Turn(verdicts, [ClaimedJob.of(job) for job in jobs], NOW)

    def verdict(self, one: Settling) -> Verdict:
        job = one.attempt.job
        if self.stored.get(job.id) != job.lease_token:
            return Verdict(Ruling.ALREADY if id(one.attempt) in self.written else Ruling.LOST)
        if self.random.random() < 0.2:
            return Verdict(Ruling.BUSY)
        if self.random.random() < 0.1:
            return Verdict(Ruling.STALE, job)
        del self.stored[job.id]
        self.written.add(id(one.attempt))
        return Verdict(Ruling.APPLIED)

    def apply(self, effect: object) -> None:
        match effect:
            case Settled(settled, _):
                for one in settled:
                    assert id(one.attempt) in self.written, "forgotten, and not written"
                    del self.held[one.attempt.job.id]
            case Begin(claimed, _, _):
                for job in claimed:
                    assert job.id not in self.held, "a job was begun twice"
                    self.held[job.id] = Attempt(job, lease_ends=0, queued_at=0)
                    self.held[job.id].started_at = NOW
            case DecideAgain(one, job):
                one.attempt.job = job
                self.outcomes.append((one.attempt, one.outcome))
            case SettleLater(one, at, lock_wait):
                one.attempt.lock_wait = lock_wait
                self.put_off.append((at, one.attempt, one.outcome))
            case ReportFailure():
                pass
            case _:
                raise AssertionError(effect)

    def end_some(self) -> None:
        for attempt in self.held.values():
            if not attempt.ended and self.random.random() < 0.4:
                attempt.ended = True
                self.outcomes.append((attempt, Succeeded("1")))


@pytest.mark.parametrize("seed", range(60))
def test_no_outcome_is_dropped_no_token_claims_twice_and_an_exit_says_what_it_leaves(seed: int) -> None:
    walk = Walk(seed)
    while walk.steps < 400:
        assert walk.step() is None, "it ended, and nobody asked it to"
        on_the_way = [attempt for attempt, _ in walk.outcomes] + [one.attempt for one in walk.settling]
        on_the_way += [attempt for _, attempt, _ in walk.put_off]
        ended = [attempt for attempt in walk.held.values() if attempt.ended]
        assert sorted(map(id, on_the_way)) == sorted(map(id, ended)), "an outcome was dropped, or stands twice"
    claimed = {job.id for jobs in walk.tokens.values() for job in jobs}
    assert claimed
    assert claimed >= walk.held.keys()
    for attempt in walk.held.values():
        attempt.ended or walk.outcomes.append((attempt, Succeeded("1")))
        attempt.ended = True
    walk.drained_at = walk.now
    while (end := walk.step()) is None:
        assert walk.steps < 2000
    assert end.left == len(walk.held)
    assert bool(end.problem) == bool(walk.held)
