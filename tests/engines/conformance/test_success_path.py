"""A success that travels as five values is written as the change it stands for: same verdicts, same rows, same events.

Each test runs both ways and says what must be there afterwards; the general way is the specification.
"""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    claimed,
    crashed,
    current,
    enqueued,
    running,
    settle,
    start,
    taken_over,
    traces,
    write,
)
from treadle.engines.values import JobFilter, Lease, Ruling
from treadle.model import EventKind, FollowUp, OnEnd, Progress, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import FailedForGood, Released, Snoozed, Succeeded, Success

HALF = "\ud800"  # half a character, which no database stores


def by_change(job, now, result='{"answer":42}'):
    """The end of an attempt as both halves."""
    return lifecycle.settle(job, Succeeded(result), now)


def by_values(job, now, result='{"answer":42}'):
    """The end of the same attempt as five values."""
    return Success(job.id, job.lease_token or "", job.revision, job.started_at or now, result, lambda: job)


@pytest.fixture(params=[by_change, by_values], ids=["change", "values"])
def end(request):
    return request.param


def started(engine, job):
    """The job as the attempt leaves it: it has begun, and nobody has written that down."""
    return job.evolve(started_at=engine.now())


def begun(engine, **fields):
    """A new job, claimed and begun."""
    return started(engine, running(engine, **fields))


def ruled(engine, *changes):
    return [verdict.ruling for verdict in engine.turn(changes).verdicts]


# ---------------------------------------------------------------------------------------------- it is written

OPTIONS = {
    "plain": {},
    "with options": {
        "tenant": "acme",
        "queue": "mail",
        "lane": "eu",
        "priority": -7,
        "task_version": 3,
        "timeout": 1.5,
    },
    "of a schedule": {"schedule": "every ☃", "retry": Retry(max_attempts=1)},
    "of a trace": {"trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
}


@pytest.mark.parametrize("audit_all", [False, True], ids=["quiet", "everything audited"])
@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
def test_the_job_ends_as_the_lifecycle_says_with_its_event(make_engine, clock, end, fields, audit_all):
    engine = make_engine(audit_all=audit_all)
    job = begun(engine, **fields)
    clock.advance(seconds=3)

    [verdict] = engine.turn([end(job, clock.now())]).verdicts

    change = by_change(job, clock.now())
    assert verdict.ruling is Ruling.APPLIED
    assert current(engine, job) == change.after
    assert [event for event in engine.events(job.id) if event.revision > 1] == [change.event] * audit_all
    assert engine.find(JobFilter(state=State.SUCCEEDED), limit=9).jobs == [change.after]
    assert engine.count(JobFilter()) == {State.SUCCEEDED: 1}


RESULTS = {
    "none": None,
    "null": "null",
    "empty text": '""',
    "its own spacing": '{ "b" : 1,\n\t"a": [1.0, 1e3] }',
    "letters": '"☃ Zoë 🧵"',
    "an escaped half": '"\\ud800"',
    "quotes and backslashes": '"\\\\ \\" \' \\\\\\" $$ %s ? :x"',
    "what arrays are made of": '"},{NULL,\\"NULL\\",;,\\\\N\\t"',
    "the word NULL": '"NULL"',
    "large": '"' + "x" * 200_000 + '"',
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_the_result_is_kept_to_the_letter(engine, clock, end, result):
    job, beside = begun(engine), begun(engine)

    assert ruled(engine, end(job, clock.now(), result), end(beside, clock.now(), "1")) == [Ruling.APPLIED] * 2

    assert current(engine, job) == by_change(job, clock.now(), result).after
    assert current(engine, beside).result_json == "1"


def test_a_job_that_was_written_as_started_keeps_that_time(engine, clock, end):
    job = start(engine, running(engine))
    clock.advance(seconds=5)

    ruled(engine, end(job, clock.now()))

    after = current(engine, job)
    assert after == by_change(job, clock.now()).after
    assert (after.started_at, after.finished_at) == (job.started_at, clock.now())


def test_no_end_is_before_its_start_although_the_clock_of_the_worker_is_ahead(engine, clock, end):
    job = running(engine).evolve(started_at=clock.now() + timedelta(seconds=2))

    ruled(engine, end(job, clock.now()))

    after = current(engine, job)
    assert after.started_at == after.finished_at == clock.now() + timedelta(seconds=2)
    assert after == by_change(job, clock.now()).after


def test_a_job_that_failed_and_crashed_before_keeps_its_counts_and_loses_its_error(engine, clock, end):
    job = running(engine, retry=Retry(max_attempts=9, base=0, jitter=0))
    settle(engine, job, lifecycle.Failed(an_error(clock.now())))
    crashed(engine, clock, claimed(engine, job))
    job = started(engine, claimed(engine, job))

    ruled(engine, end(job, clock.now()))

    after = current(engine, job)
    assert after == by_change(job, clock.now()).after
    assert (after.failures, after.crashes, after.attempt, after.error) == (1, 1, 3, None)


def test_progress_and_cost_that_were_told_before_are_kept(engine, clock, end):
    job = start(engine, running(engine))
    engine.extend([Lease(job.id, job.lease_token, None, Progress(0.5, "half"), 77)], lease=LEASE)
    job = current(engine, job)

    ruled(engine, end(job, clock.now()))

    after = current(engine, job)
    assert after == by_change(job, clock.now()).after
    assert (after.progress, after.cost_micros) == (Progress(0.5, "half"), 77)
    second = timedelta(seconds=1)
    assert engine.costs(since=clock.now() - second, until=clock.now() + second) == {("default", "greet"): 77}


def test_a_renewed_lease_does_not_come_in_its_way(engine, clock, end):
    job = begun(engine)
    clock.advance(seconds=5)
    engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)

    assert ruled(engine, end(job, clock.now())) == [Ruling.APPLIED]
    assert current(engine, job) == by_change(job, clock.now()).after


def test_a_lease_that_is_past_and_that_nobody_recovered_does_not_come_in_its_way(engine, clock, end):
    job = begun(engine)
    clock.advance(seconds=LEASE + 1)

    assert ruled(engine, end(job, clock.now())) == [Ruling.APPLIED]
    assert current(engine, job) == by_change(job, clock.now()).after
    assert engine.expired(limit=10) == []


# --------------------------------------------------------------------------------------- keys and what follows


@pytest.mark.parametrize("scope", Scope)
def test_the_key_of_the_job_is_free_or_held_as_its_scope_says(engine, clock, end, scope):
    until = clock.now() + timedelta(hours=1) if scope is Scope.WINDOW else None
    key = {"key": "k", "key_scope": scope, "key_until": until}
    job = begun(engine, **key)

    ruled(engine, end(job, clock.now()))

    assert current(engine, job) == by_change(job, clock.now()).after
    [rival] = engine.enqueue([a_job(clock.now(), **key)])
    assert rival.created is (scope in (Scope.PENDING, Scope.ACTIVE))
    assert engine.find(JobFilter(key="k"), limit=9).jobs[-1].id == job.id


def test_a_key_that_another_job_has_taken_since_the_claim_stays_with_that_one(engine, clock, end):
    job = begun(engine, key="k", key_scope=Scope.PENDING)
    second = enqueued(engine, key="k", key_scope=Scope.PENDING)

    assert ruled(engine, end(job, clock.now())) == [Ruling.APPLIED]

    [rival] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.PENDING)])
    assert (rival.created, rival.job) == (False, second)


ENDS = {
    "a job and an event": OnEnd(succeeded=FollowUp(event="SENT", task="tell", queue="mail", priority=7, version=3)),
    "an event": OnEnd(succeeded=FollowUp(event="SENT")),
    "nothing, after a success": OnEnd(failed=FollowUp(event="DEAD", task="mourn", queue="mail")),
}


@pytest.mark.parametrize("on_end", ENDS.values(), ids=ENDS)
def test_what_is_to_follow_the_end_follows_it(engine, clock, end, on_end):
    job = begun(engine, on_end=on_end)
    clock.advance(seconds=1)

    assert ruled(engine, end(job, clock.now()), end(begun(engine), clock.now())) == [Ruling.APPLIED] * 2

    change = by_change(job, clock.now())
    assert current(engine, job) == change.after
    assert engine.find(JobFilter(queue="mail"), limit=9).jobs == ([change.follow] if change.follow else [])
    assert engine.events(job.id) == ([change.event] if change.always_audited else [])


# ------------------------------------------------------------------------------------------ it is not written


def unchanged(engine, *changes):
    """The verdicts on these changes, none of which may write anything."""
    before = traces(engine)
    verdicts = engine.turn(changes).verdicts
    assert traces(engine) == before
    return verdicts


@pytest.mark.parametrize("first", [by_change, by_values], ids=["after a change", "after values"])
@pytest.mark.parametrize("audit_all", [False, True], ids=["quiet", "everything audited"])
def test_a_repeated_end_is_known_as_our_own(make_engine, clock, end, first, audit_all):
    engine = make_engine(audit_all=audit_all)
    job = begun(engine)
    ruled(engine, first(job, clock.now()))
    clock.advance(seconds=1)

    [verdict] = unchanged(engine, end(job, clock.now()))

    assert (verdict.ruling, verdict.job) == (Ruling.ALREADY, current(engine, job))


def test_an_end_is_stale_after_a_cancel_request_and_stands_when_decided_again(engine, clock, end):
    job = begun(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    [verdict] = unchanged(engine, end(job, clock.now()))

    assert (verdict.ruling, verdict.job) == (Ruling.STALE, current(engine, job))
    again = started(engine, verdict.job)
    assert ruled(engine, by_change(again, clock.now())) == [Ruling.APPLIED]
    after = current(engine, job)
    assert after == by_change(again, clock.now()).after
    assert (after.state, after.cancel_requested) == (State.SUCCEEDED, True)
    assert [event.kind for event in engine.events(job.id)] == [EventKind.CANCEL_REQUESTED, EventKind.SUCCEEDED]


def recovered(engine, clock):
    job = begun(engine)
    crashed(engine, clock, job)
    return job


def claimed_again(engine, clock):
    first, _ = taken_over(engine, clock)
    return started(engine, first)


def finished_by_another(engine, clock):
    first, second = taken_over(engine, clock)
    settle(engine, second, Succeeded('"the second"'))
    return started(engine, first)


def given_up_by_itself(engine, clock):
    job = begun(engine)
    settle(engine, job, FailedForGood(lifecycle.Reason.PERMANENT, an_error(clock.now())))
    return job


def snoozed_by_itself(engine, clock):
    job = begun(engine)
    settle(engine, job, Snoozed(60))
    return job


def waiting_with_its_token(engine, clock):
    """As it lies there, but for the state."""
    job = snoozed_by_itself(engine, clock)
    return current(engine, job).evolve(state=State.RUNNING, started_at=clock.now())


def released_and_claimed_again(engine, clock):
    job = begun(engine)
    settle(engine, job, Released())
    claimed(engine, job, worker="w2")
    return job


def never_claimed(engine, clock):
    return enqueued(engine).evolve(state=State.RUNNING, started_at=clock.now())


def with_another_token(engine, clock):
    return begun(engine).evolve(lease_token=new_id())


def with_a_token_that_is_odd(engine, clock):
    return begun(engine).evolve(lease_token="{NULL,\"'☃")


def with_a_revision_that_is_ahead(engine, clock):
    job = begun(engine)
    return job.evolve(revision=job.revision + 1)


LOST = {
    "recovered": recovered,
    "claimed again": claimed_again,
    "finished by another": finished_by_another,
    "given up by itself": given_up_by_itself,
    "snoozed by itself": snoozed_by_itself,
    "waiting with its token": waiting_with_its_token,
    "released and claimed again": released_and_claimed_again,
    "never claimed": never_claimed,
    "another token": with_another_token,
    "an odd token": with_a_token_that_is_odd,
    "a revision ahead": with_a_revision_that_is_ahead,
}


@pytest.mark.parametrize("lose", LOST.values(), ids=LOST)
def test_an_end_is_lost_where_the_job_is_somebody_elses_or_not_as_it_was(engine, clock, end, lose):
    job = lose(engine, clock)

    [verdict] = unchanged(engine, end(job, clock.now()))

    assert (verdict.ruling, verdict.job) == (Ruling.LOST, current(engine, job))


def test_the_end_of_a_job_that_is_not_there_is_lost(engine, clock, end):
    job = a_job(clock.now(), state=State.RUNNING, lease_token=new_id(), revision=1, started_at=clock.now())

    [verdict] = unchanged(engine, end(job, clock.now()))

    assert (verdict.ruling, verdict.job) == (Ruling.LOST, None)


def test_two_ends_of_one_job_in_a_turn_are_a_mistake_of_the_caller(engine, clock, end):
    job = begun(engine)

    with pytest.raises(ValueError, match="one change a job"):
        engine.turn([by_values(job, clock.now()), end(job, clock.now())])

    assert current(engine, job).state is State.RUNNING
