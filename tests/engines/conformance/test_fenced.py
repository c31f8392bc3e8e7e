"""Promise 4: every writer names what it saw; one who comes too late is refused and leaves no trace."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    OUTCOMES,
    a_job,
    an_error,
    as_if_holding,
    claim,
    claimed,
    crashed,
    current,
    enqueued,
    every_outcome,
    insisted,
    race,
    recover,
    running,
    settle,
    several,
    taken_over,
    traces,
    write,
)
from treadle.engines.values import Claim, Lease, Renewal, RenewalResult, Ruling
from treadle.model import EventKind, Progress, Reason, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Succeeded

# ------------------------------------------------------------------------------------------- the zombie


@pytest.mark.covers("003-S22.b")
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_zombie_cannot_settle_a_job_claimed_again(engine, clock, name):
    first, second = taken_over(engine, clock)
    before = traces(engine)

    verdict = settle(engine, first, every_outcome(clock.now())[name])

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == second
    assert traces(engine) == before
    assert settle(engine, second, Succeeded()).ruling is Ruling.APPLIED


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_zombie_cannot_settle_a_job_that_was_recovered_and_waits(engine, clock, name):
    job = running(engine)
    waiting = crashed(engine, clock, job)
    before = traces(engine)

    verdict = settle(engine, job, every_outcome(clock.now())[name])

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == waiting
    assert traces(engine) == before


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_zombie_cannot_settle_a_job_that_somebody_else_finished(engine, clock, name):
    first, second = taken_over(engine, clock)
    settle(engine, second, Succeeded('"the second"'))
    before = traces(engine)

    verdict = settle(engine, first, every_outcome(clock.now())[name])

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == current(engine, first)
    assert traces(engine) == before


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE])
def test_a_zombie_neither_frees_nor_takes_a_key(engine, clock, scope, name):
    first, second = taken_over(engine, clock, key="k", key_scope=scope)
    before = traces(engine)

    settle(engine, first, every_outcome(clock.now())[name])

    assert traces(engine) == before
    [rival] = engine.enqueue([a_job(clock.now(), key="k", key_scope=scope)])
    assert rival.created == (scope is Scope.PENDING)  # at a claim the pending scope has let go, active has not
    assert settle(engine, second, Succeeded()).ruling is Ruling.APPLIED


def test_a_zombie_whose_key_has_passed_on_is_refused_too(engine, clock):
    first, _ = taken_over(engine, clock, key="k", key_scope=Scope.PENDING)
    enqueued(engine, key="k", key_scope=Scope.PENDING)
    before = traces(engine)

    verdict = settle(engine, first, Snoozed(5))

    assert verdict.ruling in (Ruling.LOST, Ruling.REFUSED)
    assert traces(engine) == before


@pytest.mark.covers("003-S22.b")
def test_a_zombies_renewal_and_progress_are_refused(engine, clock):
    first, second = taken_over(engine, clock)
    before = traces(engine)
    clock.advance(seconds=1)

    held = engine.extend([Lease(first.id, first.lease_token, clock.now(), Progress(0.9, "mine"), 5)], lease=3600)

    assert held == [RenewalResult(first.id, Renewal.LOST, False)]
    assert traces(engine) == before
    assert current(engine, second).lease_until == second.lease_until


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_renewal_after_the_own_settle_is_refused(engine, clock, name):
    job = running(engine)
    settle(engine, job, every_outcome(clock.now())[name])
    before = traces(engine)

    held = engine.extend([Lease(job.id, job.lease_token, progress=Progress(1.0))], lease=LEASE)

    assert held == [RenewalResult(job.id, Renewal.LOST)]
    assert traces(engine) == before


def test_renewals_are_answered_in_order_and_one_that_is_lost_does_not_disturb_the_others(engine, clock):
    first, _ = taken_over(engine, clock)
    other, another = running(engine), running(engine)
    clock.advance(seconds=10)
    holds = [Lease(other.id, other.lease_token), Lease(first.id, first.lease_token), Lease(new_id(), "nobody")]

    held = engine.extend([*holds, Lease(another.id, another.lease_token)], lease=100)

    assert [answer.job_id for answer in held] == [other.id, first.id, holds[2].job_id, another.id]
    renewed, lost = Renewal.RENEWED, Renewal.LOST
    assert [answer.renewal for answer in held] == [renewed, lost, lost, renewed]
    assert current(engine, other).lease_until == clock.now() + timedelta(seconds=100)
    assert current(engine, another).lease_until == clock.now() + timedelta(seconds=100)
    assert engine.extend([], lease=100) == []


def test_a_worker_that_claimed_its_own_lost_job_again_hears_that_the_old_attempt_is_lost(engine, clock):
    first, second = taken_over(engine, clock)
    old = Lease(first.id, first.lease_token, progress=Progress(0.9, "old"))
    new = Lease(second.id, second.lease_token, progress=Progress(0.1, "new"))

    for holds, answers in (
        ([old, new], [Renewal.LOST, Renewal.RENEWED]),
        ([new, old], [Renewal.RENEWED, Renewal.LOST]),
    ):
        assert [held.renewal for held in engine.extend(holds, lease=LEASE)] == answers
    assert current(engine, second).progress == Progress(0.1, "new")


def test_a_token_is_good_for_its_own_job_only(engine, clock):
    mine, other = running(engine), running(engine)
    before = traces(engine)
    borrowed = other.evolve(lease_token=mine.lease_token)

    assert settle(engine, borrowed, Succeeded()).ruling is Ruling.LOST
    assert engine.extend([Lease(other.id, mine.lease_token)], lease=LEASE)[0].renewal is Renewal.LOST
    assert traces(engine) == before


def test_the_token_of_another_job_takes_no_key(engine, clock):
    mine, other = running(engine), running(engine, key="k", key_scope=Scope.PENDING)
    before = traces(engine)

    assert settle(engine, other.evolve(lease_token=mine.lease_token), Snoozed(5)).ruling is Ruling.LOST

    assert traces(engine) == before
    [rival] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.PENDING)])
    assert rival.created


# ------------------------------------------------------------------------------------------- the holder


@pytest.mark.covers("000-AC-26.c", "000-AC-28", "000-AC-26.d")
def test_a_holder_can_settle_right_after_it_extended_its_lease(engine, clock):
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, started_at=clock.now(), progress=Progress(0.1))], lease=300)
    assert current(engine, job).started_at == clock.now()

    verdict = settle(engine, job, Succeeded('"ok"'))

    assert verdict.ruling is Ruling.APPLIED
    assert current(engine, job).state is State.SUCCEEDED
    assert current(engine, job).result == "ok"


def test_a_holder_whose_lease_has_passed_may_still_settle_while_nobody_took_the_job(engine, clock):
    job = running(engine)
    clock.advance(hours=1)

    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


def test_a_holder_whose_lease_has_passed_may_still_renew_while_nobody_took_the_job(engine, clock):
    job = running(engine)
    clock.advance(hours=1)

    assert engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)[0].renewal is Renewal.RENEWED
    assert engine.expired(limit=10) == []


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_settle_repeated_is_known_as_the_same_write(engine, clock, name):
    job = running(engine)
    change = lifecycle.settle(job, every_outcome(clock.now())[name], clock.now())
    assert write(engine, change).ruling is Ruling.APPLIED
    before = traces(engine)
    clock.advance(seconds=1)

    verdict = write(engine, change)

    assert verdict.ruling is Ruling.ALREADY
    assert verdict.job == current(engine, job) == change.after
    assert traces(engine) == before


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("scope", Scope)
def test_a_settle_of_a_keyed_job_repeated_is_known_as_the_same_write(engine, clock, scope, name):
    until = clock.now() + timedelta(days=1) if scope is Scope.WINDOW else None
    job = running(engine, key="k", key_scope=scope, key_until=until)
    change = lifecycle.settle(job, every_outcome(clock.now())[name], clock.now())
    assert write(engine, change).ruling is Ruling.APPLIED
    before = traces(engine)

    assert write(engine, change).ruling is Ruling.ALREADY
    assert traces(engine) == before


@pytest.mark.parametrize("outcome", [Released(), Snoozed(0.0)], ids=["release", "snooze"])
def test_a_reapers_requeue_is_never_taken_for_the_old_holders_own(engine, clock, outcome):
    job = running(engine)
    clock.advance(seconds=LEASE)
    change = lifecycle.settle(job, outcome, clock.now())
    assert recover(engine, job).ruling is Ruling.APPLIED
    waiting = current(engine, job)
    assert (waiting.state, waiting.revision) == (change.after.state, change.after.revision)

    assert write(engine, change).ruling is Ruling.LOST
    assert current(engine, job) == waiting


def test_another_holders_same_ending_is_never_taken_for_ones_own(engine, clock):
    first, second = taken_over(engine, clock)
    settle(engine, second, Succeeded("1"))

    # the first holder's change, as it would look had it seen every revision but not the other's token
    late = lifecycle.settle(second.evolve(lease_token=first.lease_token), Succeeded("1"), clock.now())

    assert write(engine, late).ruling is Ruling.LOST


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_holders_change_without_a_token_matches_nothing(engine, clock, name):
    outcome = every_outcome(clock.now())[name]
    held, waiting = running(engine), enqueued(engine)
    before = traces(engine)

    for job in (held.evolve(lease_token=None), held.evolve(lease_token=""), waiting):
        assert write(engine, as_if_holding(job, outcome, clock.now())).ruling is Ruling.LOST
    assert traces(engine) == before


def test_a_change_without_a_token_is_never_taken_for_a_write_that_was_made(engine, clock):
    held = running(engine)
    crashed(engine, clock, held)
    replaced = enqueued(engine)
    write(engine, lifecycle.replace(replaced, a_job(clock.now()), clock.now(), actor="ann"))

    for job in (held.evolve(lease_token=None), replaced):
        assert write(engine, as_if_holding(job, Released(), clock.now())).ruling is Ruling.LOST


@pytest.mark.parametrize("first", [Released(), Snoozed(60.0)], ids=["release", "snooze"])
def test_a_holders_change_needs_a_running_job_though_the_settled_row_keeps_its_token(engine, clock, first):
    job = running(engine)
    settle(engine, job, first)
    waiting = current(engine, job)
    assert waiting.lease_token == job.lease_token
    before = traces(engine)

    for name, outcome in every_outcome(clock.now()).items():
        assert write(engine, as_if_holding(waiting, outcome, clock.now())).ruling is Ruling.LOST, name
        assert traces(engine) == before


def test_a_settle_of_a_job_that_no_longer_exists_is_lost(engine, clock):
    ghost = a_job(clock.now(), state=State.RUNNING, lease_token="t", worker="w", lease_until=clock.now(), revision=1)

    verdict = settle(engine, ghost, Succeeded())

    assert verdict.ruling is Ruling.LOST
    assert verdict.job is None
    assert engine.get([ghost.id]) == [None]


# ------------------------------------------------------------------------------------------- the reaper


def test_a_reaper_cannot_take_a_job_whose_lease_was_renewed_since_it_looked(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE)
    [seen] = engine.expired(limit=10)
    engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)
    before = traces(engine)

    verdict = recover(engine, seen)

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == current(engine, job)
    assert traces(engine) == before
    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


def test_a_reaper_cannot_act_on_another_lease_than_the_one_it_saw_even_if_that_is_past_too(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE)
    [seen] = engine.expired(limit=10)
    engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)
    clock.advance(seconds=LEASE * 2)

    assert recover(engine, seen).ruling is Ruling.LOST
    assert current(engine, job).state is State.RUNNING


def test_a_reaper_cannot_act_on_another_holder_than_the_one_it_saw(engine, clock):
    first, second = taken_over(engine, clock)
    clock.advance(seconds=LEASE)

    stale = second.evolve(lease_token=first.lease_token)

    assert recover(engine, stale).ruling is Ruling.LOST
    assert recover(engine, first).ruling is Ruling.LOST
    assert current(engine, second) == second


def test_a_reaper_is_refused_before_the_end_of_the_lease_by_the_stores_clock(engine, clock):
    job = running(engine)
    ahead = clock.now() + timedelta(hours=1)  # a reaper whose own clock runs an hour ahead
    clock.advance(seconds=LEASE, microseconds=-1)

    assert write(engine, lifecycle.crash(job, ahead, actor="reaper")).ruling is Ruling.LOST
    assert current(engine, job) == job
    clock.advance(microseconds=1)
    assert recover(engine, job).ruling is Ruling.APPLIED


def test_a_reaper_cannot_take_a_job_that_was_settled_since_it_looked(engine, clock):
    for outcome in every_outcome(clock.now()).values():
        job = running(engine)
        clock.advance(seconds=LEASE)
        [seen] = engine.expired(limit=10)
        settle(engine, job, outcome)
        settled = current(engine, job)

        assert recover(engine, seen).ruling is Ruling.LOST
        assert current(engine, job) == settled
        clock.advance(hours=1)
        claim(engine, lease=1e6)  # out of the way of the next round


def test_a_reaper_cannot_requeue_over_a_cancel_request_it_has_not_seen(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE)
    [seen] = engine.expired(limit=10)
    write(engine, lifecycle.cancel(current(engine, job), clock.now(), actor="ann"))

    verdict = recover(engine, seen)

    assert verdict.ruling is Ruling.LOST
    assert recover(engine, verdict.job).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.CANCELLED


def test_of_two_reapers_one_recovers_the_job(engine, clock):
    job = running(engine)
    clock.advance(seconds=LEASE)
    [seen] = engine.expired(limit=10)

    assert recover(engine, seen, actor="one").ruling is Ruling.APPLIED
    assert recover(engine, seen, actor="two").ruling is Ruling.LOST
    assert current(engine, job).crashes == 1


def test_of_racing_reapers_one_recovers_the_job(make_engine, clock):
    engines = several(make_engine, 6)
    jobs = [running(engines[0]) for _ in range(5)]
    clock.advance(seconds=LEASE)

    for job in jobs:
        outcomes = race(6, lambda at, job=job: insisted(lambda: recover(engines[at], job, actor=f"r{at}")).ruling)

        assert sorted(outcome.value for outcome in outcomes) == ["applied"] + ["lost"] * 5
        assert current(engines[0], job).crashes == 1
        assert len(engines[0].events(job.id)) == 1


@pytest.mark.covers("003-S13.b")
def test_a_wrong_clock_cannot_let_two_holders_settle_one_job(engine, clock):
    first = running(engine)
    ahead = clock.now() + timedelta(hours=1)
    engine.turn([lifecycle.crash(first, ahead, actor="reaper")], now=ahead)  # the store itself believes it is later
    second = claimed(engine, first, worker="w2", now=ahead)

    outcomes = [settle(engine, job, Succeeded(f'"{job.worker}"')).ruling for job in (first, second, first)]

    assert outcomes == [Ruling.LOST, Ruling.APPLIED, Ruling.LOST]
    assert current(engine, first).result == "w2"


# ------------------------------------------------------------------------------------ the cancel request


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name not in ("success", "stop")])
def test_a_cancel_request_is_never_buried_by_a_retry(engine, clock, name):
    job = running(engine)
    outcome = every_outcome(clock.now())[name]
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann", note="wrong customer"))

    verdict = settle(engine, job, outcome)

    assert verdict.ruling is Ruling.STALE
    assert verdict.job == current(engine, job) == job.evolve(cancel_requested=True, revision=job.revision + 1)
    assert settle(engine, verdict.job, outcome).ruling is Ruling.APPLIED
    ended = current(engine, job)
    assert (ended.state, ended.reason) == (State.CANCELLED, Reason.BY_REQUEST)


def test_a_success_after_a_cancel_request_stays_a_success(engine, clock):
    job = running(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    verdict = settle(engine, job, Succeeded("1"))

    assert verdict.ruling is Ruling.STALE
    assert settle(engine, verdict.job, Succeeded("1")).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.SUCCEEDED


def test_a_cancel_request_reaches_the_holder_with_its_next_renewal(engine, clock):
    job, other = running(engine), running(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    held = engine.extend([Lease(job.id, job.lease_token), Lease(other.id, other.lease_token)], lease=LEASE)

    assert held == [RenewalResult(job.id, Renewal.RENEWED, True), RenewalResult(other.id, Renewal.RENEWED, False)]


def test_a_cancel_request_meets_whoever_holds_the_job_now(engine, clock):
    first, second = taken_over(engine, clock)

    verdict = write(engine, lifecycle.cancel(first, clock.now(), actor="ann"))

    assert verdict.ruling is Ruling.APPLIED
    assert current(engine, first) == second.evolve(cancel_requested=True, revision=second.revision + 1)
    assert [event.revision for event in engine.events(first.id)][-1] == second.revision + 1


def test_cancel_requests_names_the_running_jobs_that_were_asked_to_stop(engine, clock):
    asked, untouched, done, again = (running(engine) for _ in range(4))
    waiting = enqueued(engine)
    for job in (asked, done):
        write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
    settle(engine, current(engine, done), Succeeded("1"))
    settle(engine, again, Released())
    ids = [job.id for job in (asked, untouched, done, again, waiting)]

    assert engine.cancel_requests(ids) == {asked.id}
    assert engine.cancel_requests([untouched.id, "01920000-0000-7000-8000-000000000000"]) == set()
    assert engine.cancel_requests([]) == set()


def test_the_flag_of_a_cancel_request_never_falls(engine, clock):
    job = running(engine)
    for actor in ("ann", "bob"):
        assert write(engine, lifecycle.cancel(job, clock.now(), actor=actor)).ruling is Ruling.APPLIED
    engine.extend([Lease(job.id, job.lease_token, clock.now(), Progress(0.5), 3)], lease=LEASE)

    found = current(engine, job)

    assert found.cancel_requested
    assert found.revision == job.revision + 2
    assert [event.actor for event in engine.events(job.id)] == ["ann", "bob"]


@pytest.mark.parametrize("outcome", [Released(), Succeeded()], ids=["waits again", "finished"])
def test_a_cancel_request_for_a_job_that_no_longer_runs_is_answered_with_the_job(engine, clock, outcome):
    job = running(engine)
    settle(engine, job, outcome)
    settled = current(engine, job)

    verdict = write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == settled
    assert current(engine, job) == settled
    assert engine.events(job.id) == []


# ------------------------------------------------------------------------- operators, expiry and replace


def came_back(engine, job):
    """The same job, pending again, two revisions later."""
    settle(engine, claimed(engine, job), Released())
    return current(engine, job)


OPERATORS = {
    "cancel": lambda job, now: lifecycle.cancel(job, now, actor="ann"),
    "expiry": lambda job, now: lifecycle.expire(job, now, actor="upkeep"),
    "replace": lambda job, now: lifecycle.replace(job, a_job(now, payload_json='"new"'), now, actor="enqueue"),
}


@pytest.mark.parametrize("act", OPERATORS.values(), ids=OPERATORS)
def test_an_operator_cannot_act_on_a_pending_job_by_an_old_revision(engine, clock, act):
    seen = enqueued(engine)
    now_waiting = came_back(engine, seen)
    before = traces(engine)

    verdict = write(engine, act(seen, clock.now()))

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == now_waiting
    assert traces(engine) == before
    assert write(engine, act(now_waiting, clock.now())).ruling is Ruling.APPLIED


@pytest.mark.parametrize("act", OPERATORS.values(), ids=OPERATORS)
def test_an_operator_cannot_end_or_edit_a_job_that_was_claimed_since_it_looked(engine, clock, act):
    seen = enqueued(engine)
    held = claimed(engine, seen)
    before = traces(engine)

    assert write(engine, act(seen, clock.now())).ruling is Ruling.LOST
    assert traces(engine) == before
    assert settle(engine, held, Succeeded()).ruling is Ruling.APPLIED


def test_an_operators_retry_by_an_old_revision_is_refused(engine, clock):
    job = running(engine)
    refusal = FailedForGood(Reason.PERMANENT, an_error(clock.now()))
    settle(engine, job, refusal)
    seen = current(engine, job)
    write(engine, lifecycle.retry(seen, clock.now(), actor="ann"))
    settle(engine, claimed(engine, job), refusal)
    failed_again = current(engine, job)
    before = traces(engine)

    verdict = write(engine, lifecycle.retry(seen, clock.now(), actor="bob"))

    assert verdict.ruling is Ruling.LOST
    assert verdict.job == failed_again
    assert traces(engine) == before


def test_of_racing_operators_one_retries_the_job(make_engine, clock):
    engines = several(make_engine, 4)
    job = running(engines[0])
    settle(engines[0], job, FailedForGood(Reason.PERMANENT, an_error(clock.now())))
    failed = current(engines[0], job)

    def retry(at):
        return insisted(lambda: write(engines[at], lifecycle.retry(failed, clock.now(), actor=f"o{at}"))).ruling

    outcomes = race(4, retry)

    assert sorted(outcome.value for outcome in outcomes) == ["applied"] + ["lost"] * 3
    assert [event.kind for event in engines[0].events(job.id)] == [EventKind.FAILED, EventKind.RETRIED]


# ---------------------------------------------------------------------------------------------- the turn


def test_two_changes_of_one_job_in_one_turn_are_a_mistake_and_write_nothing(engine, clock):
    job, other, waiting = running(engine), running(engine), enqueued(engine)
    before = traces(engine)
    changes = [
        lifecycle.settle(other, Succeeded(), clock.now()),
        lifecycle.settle(job, Succeeded(), clock.now()),
        lifecycle.cancel(job, clock.now(), actor="ann"),
    ]

    with pytest.raises(ValueError, match="one change a job"):
        engine.turn(changes, Claim(token=new_id(), worker="w1", limit=1, lease=LEASE))

    assert traces(engine) == before
    assert current(engine, waiting).state is State.PENDING


def test_a_turn_answers_in_order_and_a_refused_change_does_not_hold_up_its_neighbours(engine, clock):
    zombie, _ = taken_over(engine, clock)
    done, asked, failed, waiting = running(engine), running(engine), running(engine), enqueued(engine)
    write(engine, lifecycle.cancel(asked, clock.now(), actor="ann"))
    now = clock.now()
    repeated = lifecycle.settle(failed, Failed(an_error(now)), now)
    write(engine, repeated)

    turn = engine.turn(
        [
            lifecycle.settle(zombie, Succeeded(), now),
            lifecycle.settle(done, Succeeded(), now),
            lifecycle.settle(asked, Snoozed(5), now),
            repeated,
            lifecycle.cancel(waiting, now, actor="ann"),
        ]
    )

    assert [verdict.ruling for verdict in turn.verdicts] == [
        Ruling.LOST, Ruling.APPLIED, Ruling.STALE, Ruling.ALREADY, Ruling.APPLIED,
    ]  # fmt: skip
    assert current(engine, done).state is State.SUCCEEDED
    assert current(engine, waiting).state is State.CANCELLED


def test_of_a_holder_and_a_reaper_that_race_one_writes(make_engine, clock):
    engines = several(make_engine, 2)
    for _ in range(10):
        job = running(engines[0], retry=Retry(max_attempts=3))
        clock.advance(seconds=LEASE)
        acts = (
            lambda job=job: insisted(lambda: settle(engines[0], job, Succeeded("1"))).ruling,
            lambda job=job: insisted(lambda: recover(engines[1], job)).ruling,
        )

        outcomes = race(2, lambda place, acts=acts: acts[place]())

        assert sorted(outcome.value for outcome in outcomes) == ["applied", "lost"]
        found = current(engines[0], job)
        settled = outcomes[0] is Ruling.APPLIED
        assert (found.state, found.crashes) == ((State.SUCCEEDED, 0) if settled else (State.PENDING, 1))
        claim(engines[0], lease=1e6)
