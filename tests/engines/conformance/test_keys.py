"""Promise 10: dedupe is a constraint, not a check. Racers get the same job back."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    claim,
    claimed,
    crashed,
    current,
    ended,
    enqueued,
    every_outcome,
    race,
    recover,
    running,
    settle,
    several,
    taken_over,
    traces,
    write,
)
from treadle.engines.values import JobFilter, Lease, Retention, Ruling
from treadle.errors import NotPossible
from treadle.model import EventKind, JobError, Reason, Retry, Scope, State, lifecycle
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Stopped, Succeeded

BACK_TO_WAITING = {
    "failure": Failed(JobError("E", "boom", "", 1, ""), 0.0),
    "snooze": Snoozed(0.0),
    "release": Released(),
}


def keyed(scope, clock, key="thread-7", hours=24, **fields):
    """The fields of a request with a key."""
    until = clock.now() + timedelta(hours=hours) if scope is Scope.WINDOW else None
    return {"key": key, "key_scope": scope, "key_until": until, **fields}


def ask(engine, clock, scope, **fields):
    """Enqueue one more job with the key; the receipt."""
    [receipt] = engine.enqueue([a_job(clock.now(), **keyed(scope, clock, **fields))])
    return receipt


# ------------------------------------------------------------------------------------------- the scopes


@pytest.mark.covers("001-R23.b", "002-D5.b")
@pytest.mark.parametrize("scope", Scope)
def test_a_second_request_with_the_key_is_answered_with_the_first_job(engine, clock, scope):
    first = enqueued(engine, payload_json='"first"', **keyed(scope, clock))

    second = ask(engine, clock, scope, payload_json='"second"', priority=9)

    assert not second.created
    assert second.job == first
    assert engine.find(JobFilter(), limit=10).jobs == [first]


@pytest.mark.covers("002-D5.b")
def test_jobs_without_a_key_are_never_compared(engine, clock):
    receipts = engine.enqueue([a_job(clock.now()) for _ in range(3)])

    assert all(receipt.created for receipt in receipts)


@pytest.mark.parametrize("scope", Scope)
def test_tenants_and_tasks_and_other_keys_do_not_meet(engine, clock, scope):
    jobs = [
        a_job(clock.now(), **keyed(scope, clock, key=key, tenant=tenant, task=task))
        for key in ("a", "b")
        for tenant in ("acme", "umbrella")
        for task in ("mail", "sync")
    ]

    assert all(receipt.created for receipt in engine.enqueue(jobs))
    again = engine.enqueue([job.evolve(id=a_job(clock.now()).id) for job in jobs])
    assert [receipt.job.id for receipt in again] == [job.id for job in jobs]


def test_keys_that_could_be_pasted_together_alike_do_not_meet(engine, clock):
    parts = [("a", "b", "c:d"), ("a", "b:c", "d"), ("a:b", "c", "d"), ("a#b", "c", "d"), ("a", "b#c", "d")]
    jobs = [
        a_job(clock.now(), **keyed(Scope.EVER, clock, key=key, tenant=tenant, task=task)) for tenant, task, key in parts
    ]

    assert all(receipt.created for receipt in engine.enqueue(jobs))


def test_the_queue_is_no_part_of_the_key(engine, clock):
    first = enqueued(engine, queue="mail", **keyed(Scope.ACTIVE, clock))

    assert ask(engine, clock, Scope.ACTIVE, queue="other", lane="x").job == first


def test_the_pending_scope_lets_go_at_the_claim(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))

    receipt = ask(engine, clock, Scope.PENDING)

    assert receipt.created
    assert receipt.job.id != held.id
    assert not ask(engine, clock, Scope.PENDING).created


@pytest.mark.parametrize("name", BACK_TO_WAITING)
def test_the_pending_scope_takes_its_key_again_when_the_job_waits_again(engine, clock, name):
    held = running(engine, **keyed(Scope.PENDING, clock))

    assert settle(engine, held, BACK_TO_WAITING[name]).ruling is Ruling.APPLIED

    receipt = ask(engine, clock, Scope.PENDING)
    assert not receipt.created
    assert receipt.job == current(engine, held)


def test_the_pending_scope_takes_its_key_again_when_a_crashed_job_is_recovered(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))

    crashed(engine, clock, held)

    assert ask(engine, clock, Scope.PENDING).job.id == held.id


def test_the_pending_scope_lets_go_when_a_waiting_job_is_cancelled_or_expires(engine, clock):
    for end in (lifecycle.cancel, lifecycle.expire):
        job = enqueued(engine, **keyed(Scope.PENDING, clock))

        write(engine, end(job, clock.now(), actor="ann"))

        assert ask(engine, clock, Scope.PENDING).created
        settle(engine, claim(engine)[0], Succeeded())


def test_the_active_scope_holds_while_the_job_runs_and_waits_again(engine, clock):
    job = enqueued(engine, **keyed(Scope.ACTIVE, clock))
    held = claimed(engine, job)
    assert ask(engine, clock, Scope.ACTIVE).job == held
    settle(engine, held, Snoozed(60))
    assert ask(engine, clock, Scope.ACTIVE).job.id == job.id
    clock.advance(seconds=60)
    crashed(engine, clock, claimed(engine, job))

    receipt = ask(engine, clock, Scope.ACTIVE)

    assert not receipt.created
    assert receipt.job == current(engine, job)


@pytest.mark.parametrize(
    "end",
    [
        Succeeded(),
        FailedForGood(Reason.PERMANENT, JobError("E", "boom", "", 1, "")),
        Stopped("enough"),
        "cancel",
        "expire",
        "crash",
    ],
    ids=["success", "failure", "stop", "cancel", "expire", "crash"],
)
def test_the_active_scope_lets_go_at_any_end(engine, clock, end):
    job = enqueued(engine, retry=Retry(max_attempts=1), **keyed(Scope.ACTIVE, clock))
    match end:
        case "cancel":
            write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
        case "expire":
            write(engine, lifecycle.expire(job, clock.now(), actor="upkeep"))
        case "crash":
            held = claimed(engine, job).evolve(started_at=clock.now())
            clock.advance(seconds=LEASE)
            recover(engine, held)
        case FailedForGood(reason, _):
            settle(engine, claimed(engine, job), FailedForGood(reason, an_error(clock.now())))
        case outcome:
            settle(engine, claimed(engine, job), outcome)
    assert current(engine, job).state.final

    receipt = ask(engine, clock, Scope.ACTIVE)

    assert receipt.created
    assert receipt.job.id != job.id


@pytest.mark.parametrize("state", [None, *(state for state in State if state.final)])
def test_a_window_holds_until_its_time_is_over_whatever_becomes_of_the_job(engine, clock, state):
    fields = keyed(Scope.WINDOW, clock, hours=24)
    job = enqueued(engine, **fields) if state is None else ended(engine, state, **fields)

    clock.advance(hours=24, microseconds=-1)
    assert ask(engine, clock, Scope.WINDOW).job == job
    clock.advance(microseconds=1)
    receipt = ask(engine, clock, Scope.WINDOW)

    assert receipt.created
    assert receipt.job.id != job.id
    assert not ask(engine, clock, Scope.WINDOW).created


@pytest.mark.parametrize("state", [state for state in State if state.final])
def test_the_ever_scope_is_kept_after_the_end(engine, clock, state):
    job = ended(engine, state, **keyed(Scope.EVER, clock))
    clock.advance(days=10_000)

    receipt = ask(engine, clock, Scope.EVER)

    assert not receipt.created
    assert receipt.job == job


def test_a_key_is_one_whatever_scope_the_second_request_names(engine, clock):
    first = enqueued(engine, **keyed(Scope.ACTIVE, clock))

    for scope in Scope:
        assert ask(engine, clock, scope).job == first


# --------------------------------------------------------------------------------------------- in bulk


@pytest.mark.parametrize("scope", Scope)
def test_the_same_key_twice_in_one_call_makes_one_job(engine, clock, scope):
    jobs = [a_job(clock.now(), **keyed(scope, clock, key=key)) for key in ("x", "y", "x", "x", "z")]

    receipts = engine.enqueue(jobs)

    assert [receipt.created for receipt in receipts] == [True, True, False, False, True]
    assert [receipt.job for receipt in receipts] == [jobs[at] for at in (0, 1, 0, 0, 4)]
    assert engine.count(JobFilter()) == {State.PENDING: 3}


def test_a_call_mixes_taken_free_and_absent_keys(engine, clock):
    taken = enqueued(engine, **keyed(Scope.ACTIVE, clock, key="taken"))
    jobs = [a_job(clock.now(), **fields) for fields in (
        {}, keyed(Scope.ACTIVE, clock, key="taken"), keyed(Scope.ACTIVE, clock, key="free"), {},
    )]  # fmt: skip

    receipts = engine.enqueue(jobs)

    assert [receipt.created for receipt in receipts] == [True, False, True, True]
    assert receipts[1].job == taken


def test_a_request_repeated_by_id_finds_its_own_job_though_its_key_has_passed_on(engine, clock):
    mine = running(engine, **keyed(Scope.PENDING, clock))
    theirs = ask(engine, clock, Scope.PENDING).job

    [again] = engine.enqueue([a_job(clock.now(), id=mine.id, **keyed(Scope.PENDING, clock))])

    assert (again.created, again.job) == (False, mine)
    assert ask(engine, clock, Scope.PENDING).job == theirs


# ------------------------------------------------------------------------------------------------ races


@pytest.mark.covers("001-R32.a", "001-R23.b")
@pytest.mark.parametrize("scope", Scope)
def test_eight_racers_with_one_key_all_get_the_same_job(make_engine, clock, scope):
    engines = several(make_engine, 4)

    for round_ in range(5):
        fields = keyed(scope, clock, key=f"round {round_}")
        receipts = race(8, lambda at, fields=fields: engines[at % 4].enqueue([a_job(clock.now(), **fields)])[0])

        assert sorted(receipt.created for receipt in receipts) == [False] * 7 + [True]
        assert len({receipt.job.id for receipt in receipts}) == 1
    assert engines[0].count(JobFilter()) == {State.PENDING: 5}


def test_racers_in_bulk_make_one_job_a_key(make_engine, clock):
    engines = several(make_engine, 4)

    def enqueue(place):
        keys = [f"k{(place * 3 + number) % 20}" for number in range(20)]
        jobs = [a_job(clock.now(), **keyed(Scope.ACTIVE, clock, key=key)) for key in keys]
        return {key: receipt.job.id for key, receipt in zip(keys, engines[place].enqueue(jobs), strict=True)}

    answers = race(4, enqueue)

    assert all(answer == answers[0] for answer in answers)
    assert engines[0].count(JobFilter()) == {State.PENDING: 20}


# ---------------------------------------------------------------------------------- when the key is taken


@pytest.mark.parametrize("name", BACK_TO_WAITING)
def test_a_job_that_would_wait_again_gives_way_to_the_one_that_took_its_key(engine, clock, name):
    held = running(engine, **keyed(Scope.PENDING, clock))
    newer = ask(engine, clock, Scope.PENDING).job
    change = lifecycle.settle(held, BACK_TO_WAITING[name], clock.now())

    verdict = write(engine, change)

    assert verdict.ruling is Ruling.REFUSED
    assert verdict.holder == newer.id
    assert verdict.why
    assert current(engine, held) == held
    assert engine.events(held.id) == []

    assert write(engine, lifecycle.supersede(change, clock.now())).ruling is Ruling.APPLIED
    after = current(engine, held)
    assert (after.state, after.reason) == (State.CANCELLED, Reason.SUPERSEDED)
    assert after.finished_at == clock.now()
    assert [event.kind for event in engine.events(held.id)] == [EventKind.SUPERSEDED]
    assert ask(engine, clock, Scope.PENDING).job == newer


def test_a_superseded_failure_keeps_its_count_and_its_error(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))
    ask(engine, clock, Scope.PENDING)
    change = lifecycle.settle(held, Failed(an_error(clock.now())), clock.now())
    write(engine, change)

    write(engine, lifecycle.supersede(change, clock.now()))

    after = current(engine, held)
    assert (after.failures, after.error, after.worker) == (1, an_error(clock.now()), "w1")


def test_a_crashed_job_gives_way_to_the_one_that_took_its_key(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))
    newer = ask(engine, clock, Scope.PENDING).job
    clock.advance(seconds=LEASE)
    change = lifecycle.crash(held, clock.now(), actor="reaper")

    verdict = write(engine, change)

    assert (verdict.ruling, verdict.holder) == (Ruling.REFUSED, newer.id)
    assert write(engine, lifecycle.supersede(change, clock.now())).ruling is Ruling.APPLIED
    after = current(engine, held)
    assert (after.state, after.reason, after.crashes) == (State.CANCELLED, Reason.SUPERSEDED, 1)


def test_superseding_keeps_the_fence_of_the_change_it_stands_for(engine, clock):
    first, second = taken_over(engine, clock, **keyed(Scope.PENDING, clock))
    ask(engine, clock, Scope.PENDING)
    change = lifecycle.settle(first, Released(), clock.now())

    assert write(engine, lifecycle.supersede(change, clock.now())).ruling is Ruling.LOST
    assert current(engine, second) == second


def test_a_reaper_cannot_supersede_a_job_whose_lease_was_renewed_since_it_looked(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))
    ask(engine, clock, Scope.PENDING)
    clock.advance(seconds=LEASE)
    change = lifecycle.crash(held, clock.now(), actor="reaper")
    assert write(engine, change).ruling is Ruling.REFUSED
    engine.extend([Lease(held.id, held.lease_token)], lease=LEASE)

    assert write(engine, lifecycle.supersede(change, clock.now())).ruling is Ruling.LOST
    assert settle(engine, held, Succeeded()).ruling is Ruling.APPLIED


def test_a_settle_that_finishes_needs_no_key_though_another_job_has_it(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))
    newer = ask(engine, clock, Scope.PENDING).job

    assert settle(engine, held, Succeeded()).ruling is Ruling.APPLIED
    assert ask(engine, clock, Scope.PENDING).job == newer


@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE])
def test_an_operators_retry_is_refused_while_another_job_has_the_key(engine, clock, scope):
    failed = ended(engine, State.FAILED, **keyed(scope, clock))
    newer = ask(engine, clock, scope).job
    before = traces(engine)

    verdict = write(engine, lifecycle.retry(failed, clock.now(), actor="ann"))

    assert (verdict.ruling, verdict.holder) == (Ruling.REFUSED, newer.id)
    assert traces(engine) == before
    settle(engine, claimed(engine, newer), Succeeded())
    assert write(engine, lifecycle.retry(failed, clock.now(), actor="ann")).ruling is Ruling.APPLIED


@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE])
def test_an_operators_retry_takes_the_key_again(engine, clock, scope):
    failed = ended(engine, State.FAILED, **keyed(scope, clock))

    write(engine, lifecycle.retry(failed, clock.now(), actor="ann"))

    receipt = ask(engine, clock, scope)
    assert not receipt.created
    assert receipt.job == current(engine, failed)


@pytest.mark.parametrize("scope", [Scope.WINDOW, Scope.EVER])
def test_an_operators_retry_of_a_job_that_still_has_its_key_is_not_in_its_own_way(engine, clock, scope):
    failed = ended(engine, State.FAILED, **keyed(scope, clock))

    assert write(engine, lifecycle.retry(failed, clock.now(), actor="ann")).ruling is Ruling.APPLIED
    assert ask(engine, clock, scope).job == current(engine, failed)


def test_of_two_jobs_of_one_key_that_would_wait_again_in_one_turn_one_does(engine, clock):
    first = running(engine, **keyed(Scope.PENDING, clock))
    second = claimed(engine, ask(engine, clock, Scope.PENDING).job)

    turn = engine.turn([lifecycle.settle(job, Snoozed(5), clock.now()) for job in (first, second)])

    assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.APPLIED, Ruling.REFUSED]
    assert turn.verdicts[1].holder == first.id
    assert current(engine, second) == second


@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE])
def test_a_rejected_write_never_frees_a_key(engine, clock, scope):
    job = enqueued(engine, **keyed(scope, clock))
    settle(engine, claimed(engine, job), Released())
    waiting = current(engine, job)

    for late in (lifecycle.cancel(job, clock.now(), actor="ann"), lifecycle.expire(job, clock.now(), actor="upkeep")):
        assert write(engine, late).ruling is Ruling.LOST

    assert ask(engine, clock, scope).job == waiting


def test_a_rejected_settle_never_frees_an_active_key(engine, clock):
    first, second = taken_over(engine, clock, **keyed(Scope.ACTIVE, clock))

    for outcome in every_outcome(clock.now()).values():
        settle(engine, first, outcome)

        assert ask(engine, clock, Scope.ACTIVE).job == second


# ---------------------------------------------------------------------------------------------- replace


def test_replace_edits_the_waiting_job_in_place(engine, clock):
    job = enqueued(engine, payload_json='"old"', **keyed(Scope.PENDING, clock))
    clock.advance(seconds=5)
    new = a_job(
        clock.now(),
        payload_json='"new"',
        due_at=clock.now() + timedelta(hours=1),
        priority=7,
        queue="other",
        lane="l",
        task_version=2,
        timeout=9.0,
        expires_at=clock.now() + timedelta(hours=2),
        retry=Retry(max_attempts=2, base=1, cap=None, jitter=0),
        **keyed(Scope.PENDING, clock),
    )
    change = lifecycle.replace(job, new, clock.now(), actor="enqueue")

    assert write(engine, change).ruling is Ruling.APPLIED

    after = current(engine, job)
    assert after == change.after
    assert (after.id, after.created_at, after.revision) == (job.id, job.created_at, 1)
    assert (after.payload, after.due_at, after.priority) == ("new", new.due_at, 7)
    assert (after.queue, after.lane, after.task_version) == ("other", "l", 2)
    assert (after.timeout, after.expires_at, after.retry) == (9.0, new.expires_at, new.retry)
    assert engine.count(JobFilter()) == {State.PENDING: 1}
    assert ask(engine, clock, Scope.PENDING).job == after
    assert claim(engine, queues=["default", "other"]) == []
    clock.advance(hours=1)
    assert [got.payload for got in claim(engine, queues=["default", "other"])] == ["new"]


def test_replace_without_a_due_time_makes_the_job_due_now(engine, clock):
    job = enqueued(engine, due_at=clock.now() + timedelta(days=1), **keyed(Scope.PENDING, clock))
    clock.advance(seconds=5)

    write(engine, lifecycle.replace(job, a_job(clock.now()), clock.now(), actor="enqueue"))

    assert current(engine, job).due_at == clock.now()


def test_replace_keeps_the_history_of_a_job_that_waits_for_its_retry(engine, clock):
    held = running(engine, **keyed(Scope.PENDING, clock))
    settle(engine, held, Failed(an_error(clock.now())))
    waiting = current(engine, held)

    write(engine, lifecycle.replace(waiting, a_job(clock.now(), payload_json='"new"'), clock.now(), actor="enqueue"))

    after = current(engine, held)
    assert (after.payload, after.failures, after.attempt, after.error) == ("new", 1, 1, waiting.error)


def test_replace_is_refused_if_the_job_was_claimed_meanwhile(engine, clock):
    job = enqueued(engine, payload_json='"old"', **keyed(Scope.ACTIVE, clock))
    change = lifecycle.replace(job, a_job(clock.now(), payload_json='"new"'), clock.now(), actor="enqueue")
    held = claimed(engine, job)

    verdict = write(engine, change)

    assert (verdict.ruling, verdict.job) == (Ruling.LOST, held)
    assert current(engine, job) == held
    with pytest.raises(NotPossible, match="only a pending job"):
        lifecycle.replace(held, a_job(clock.now()), clock.now(), actor="enqueue")


# ------------------------------------------------------------------------------------------------ prune


def test_prune_keeps_jobs_whose_key_is_still_held(engine, clock):
    window = ended(engine, State.SUCCEEDED, **keyed(Scope.WINDOW, clock, key="w", hours=100))
    ever = ended(engine, State.SUCCEEDED, **keyed(Scope.EVER, clock, key="e"))
    active = ended(engine, State.SUCCEEDED, **keyed(Scope.ACTIVE, clock, key="a"))
    ids = [job.id for job in (window, ever, active)]
    clock.advance(hours=99)

    assert engine.prune(Retention({State.SUCCEEDED: timedelta(hours=1)}), limit=10) == 1
    assert engine.get(ids) == [window, ever, None]
    clock.advance(hours=1)
    assert engine.prune(Retention({State.SUCCEEDED: timedelta(hours=1)}), limit=10) == 1
    assert engine.get(ids) == [None, ever, None]
    assert ask(engine, clock, Scope.EVER, key="e").job == ever
    assert ask(engine, clock, Scope.WINDOW, key="w").created


@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE])
def test_a_finished_job_enqueued_again_by_its_id_does_not_take_its_key_back(engine, clock, scope):
    first = enqueued(engine, key="k", key_scope=scope)
    [running_job] = claim(engine)
    settle(engine, running_job, Succeeded())

    [repeated] = engine.enqueue([a_job(clock.now(), id=first.id, key="k", key_scope=scope)])
    [second] = engine.enqueue([a_job(clock.now(), key="k", key_scope=scope)])

    assert not repeated.created
    assert second.created


def test_an_operators_retry_that_comes_too_late_takes_no_key(engine, clock):
    seen = ended(engine, State.FAILED, key="k", key_scope=Scope.ACTIVE)
    write(engine, lifecycle.retry(seen, clock.now(), actor="ann"))
    settle(engine, claimed(engine, seen), Succeeded())
    before = traces(engine)

    assert write(engine, lifecycle.retry(seen, clock.now(), actor="bob")).ruling is Ruling.LOST
    assert traces(engine) == before
    [receipt] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)])
    assert receipt.created
