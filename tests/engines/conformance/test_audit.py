"""Promise 12: the audit line is in the same atom as the change it records, and says who."""

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
from treadle.engines.values import Claim, Lease, Ruling
from treadle.model import Event, EventKind, Progress, Reason, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Released, Snoozed, Stopped, Succeeded


def story(engine, job):
    """What the audit trail tells of a job."""
    return [event.kind for event in engine.events(job.id)]


@pytest.mark.covers("001-R36.a", "004-T12.a")
def test_a_line_names_who_did_what_to_which_job_when_and_why(engine, clock):
    job = enqueued(engine, tenant="acme")
    clock.advance(seconds=3)

    write(engine, lifecycle.cancel(job, clock.now(), actor="ann@example.org", note="wrong customer ☃"))

    assert engine.events(job.id) == [
        Event(job.id, 1, clock.now(), EventKind.CANCELLED, "ann@example.org", "wrong customer ☃", "acme")
    ]


def test_routine_leaves_no_line_by_default(engine, clock):
    job = running(engine)
    settle(engine, job, Snoozed(0))
    settle(engine, claimed(engine, job), Released())
    write(engine, lifecycle.replace(current(engine, job), a_job(clock.now()), clock.now(), actor="enqueue"))
    settle(engine, claimed(engine, job), Succeeded())

    assert engine.events(job.id) == []


@pytest.mark.covers("001-R36.a")
def test_failures_and_acts_of_operators_leave_a_line_by_default(engine, clock):
    job = running(engine, retry=Retry(max_attempts=2, base=0, jitter=0))
    settle(engine, job, Failed(an_error(clock.now(), "first")))
    crashed(engine, clock, claimed(engine, job))
    settle(engine, claimed(engine, job), Failed(an_error(clock.now(), "last")))
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))
    held = claimed(engine, job)
    write(engine, lifecycle.cancel(held, clock.now(), actor="bob", note="stop"))
    settle(engine, current(engine, job), Stopped("as asked"))

    told = [(event.kind, event.actor, event.note) for event in engine.events(job.id)]

    assert told == [
        (EventKind.RETRYING, "w1", "first"),
        (EventKind.CRASHED, "reaper", "the lease of worker w1 ran out on attempt 2"),
        (EventKind.FAILED, "w1", "last"),
        (EventKind.RETRIED, "ann", ""),
        (EventKind.CANCEL_REQUESTED, "bob", "stop"),
        (EventKind.CANCELLED, "w1", "as asked"),
    ]


def test_expiry_and_superseding_leave_a_line_by_default(engine, clock):
    expired, held = enqueued(engine, queue="other"), running(engine, key="k", key_scope=Scope.PENDING)
    enqueued(engine, key="k", key_scope=Scope.PENDING)
    write(engine, lifecycle.expire(expired, clock.now(), actor="upkeep"))
    write(engine, lifecycle.supersede(lifecycle.settle(held, Released(), clock.now()), clock.now()))

    assert story(engine, expired) == [EventKind.EXPIRED]
    assert story(engine, held) == [EventKind.SUPERSEDED]


@pytest.mark.covers("004-T12.a", "001-R36.a")
def test_on_request_every_transition_leaves_a_line_and_the_chain_has_no_gap(make_engine, clock):
    engine = make_engine(audit_all=True)
    job = running(engine, retry=Retry(max_attempts=9, base=0, jitter=0))
    settle(engine, job, Snoozed(0))
    newer = a_job(clock.now(), retry=job.retry)
    write(engine, lifecycle.replace(current(engine, job), newer, clock.now(), actor="enqueue"))
    settle(engine, claimed(engine, job), Released())
    settle(engine, claimed(engine, job), Failed(an_error(clock.now())))
    crashed(engine, clock, start(engine, claimed(engine, job)))
    settle(engine, claimed(engine, job), FailedForGood(Reason.PERMANENT, an_error(clock.now())))
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))
    held = claimed(engine, job, worker="w9")
    write(engine, lifecycle.cancel(held, clock.now(), actor="bob"))
    settle(engine, current(engine, job), Succeeded())

    events = engine.events(job.id)

    assert [event.kind for event in events] == [
        EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SNOOZED, EventKind.REPLACED, EventKind.CLAIMED,
        EventKind.RELEASED, EventKind.CLAIMED,
        EventKind.RETRYING, EventKind.CLAIMED, EventKind.CRASHED, EventKind.CLAIMED, EventKind.FAILED,
        EventKind.RETRIED, EventKind.CLAIMED,
        EventKind.CANCEL_REQUESTED, EventKind.SUCCEEDED,
    ]  # fmt: skip
    assert [event.revision for event in events] == list(range(current(engine, job).revision + 1))
    assert {event.tenant for event in events} == {"default"}
    assert [event.actor for event in events][-3:] == ["w9", "bob", "w9"]
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_job_claimed_in_a_crowd_has_a_line_of_its_own(make_engine, clock):
    engine = make_engine(audit_all=True)
    jobs = [receipt.job for receipt in engine.enqueue([a_job(clock.now()) for _ in range(50)])]

    turn = engine.turn([], Claim(token=new_id(), worker="w1", limit=50, lease=LEASE))
    engine.turn([lifecycle.settle(job, Succeeded(), clock.now()) for job in turn.jobs])

    for job in jobs:
        assert story(engine, job) == [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SUCCEEDED]


def test_renewals_progress_and_cost_leave_no_line_even_on_request(make_engine, clock):
    engine = make_engine(audit_all=True)
    job = running(engine)

    engine.extend([Lease(job.id, job.lease_token, clock.now(), Progress(0.5), 10)], lease=LEASE)

    assert story(engine, job) == [EventKind.ENQUEUED, EventKind.CLAIMED]


@pytest.mark.parametrize("audit_all", [False, True], ids=["by default", "on request"])
def test_a_refused_change_leaves_no_line(make_engine, clock, audit_all):
    engine = make_engine(audit_all=audit_all)
    first, second = taken_over(engine, clock, key="k", key_scope=Scope.PENDING)
    enqueued(engine, key="k", key_scope=Scope.PENDING)
    before = traces(engine)
    now = clock.now()

    refused = {
        "a zombie": lifecycle.settle(first, FailedForGood(Reason.PERMANENT, an_error(now)), now),
        "an early reaper": lifecycle.crash(second.evolve(started_at=now, crashes=9, failures=9), now, actor="reaper"),
        "a late operator": lifecycle.cancel(first.evolve(state=State.PENDING), now, actor="ann"),
        "a taken key": lifecycle.settle(second, Failed(an_error(now)), now),
        "a bad value": lifecycle.settle(second, FailedForGood(Reason.PERMANENT, an_error(now, "half: \ud800")), now),
    }

    for who, change in refused.items():
        assert write(engine, change).ruling in (Ruling.LOST, Ruling.REFUSED), who
        assert traces(engine) == before, who


def test_a_repeated_write_or_enqueue_or_claim_leaves_no_second_line(make_engine, clock):
    engine = make_engine(audit_all=True)
    job = enqueued(engine)
    engine.enqueue([job])
    wish = Claim(token=new_id(), worker="w1", limit=1, lease=LEASE)
    [held] = engine.turn([], wish).jobs
    engine.turn([], wish)
    change = lifecycle.settle(held, Failed(an_error(clock.now())), clock.now())
    write(engine, change)
    write(engine, change)

    assert story(engine, job) == [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.RETRYING]


def test_a_request_answered_with_an_older_job_leaves_no_line(make_engine, clock):
    engine = make_engine(audit_all=True)
    first = enqueued(engine, key="k", key_scope=Scope.EVER)
    second = a_job(clock.now(), key="k", key_scope=Scope.EVER)

    engine.enqueue([second])

    assert story(engine, first) == [EventKind.ENQUEUED]
    assert engine.events(second.id) == []


def test_the_trail_of_a_job_that_never_was_is_empty(engine):
    assert engine.events(new_id()) == []


def test_the_trail_of_one_job_holds_no_line_of_another(engine, clock):
    one, two = enqueued(engine), enqueued(engine)
    write(engine, lifecycle.cancel(one, clock.now(), actor="ann"))
    write(engine, lifecycle.cancel(two, clock.now(), actor="bob"))

    assert [event.actor for event in engine.events(one.id)] == ["ann"]
    assert [event.actor for event in engine.events(two.id)] == ["bob"]


@pytest.mark.parametrize("latest", [1, 3, 6, 7])
def test_the_last_lines_of_a_job_are_read_without_the_others(engine, clock, latest):
    job = enqueued(engine)
    for _ in range(3):
        write(engine, lifecycle.cancel(current(engine, job), clock.now(), actor="ann"))
        write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))

    lines = engine.events(job.id)
    assert len(lines) == 6
    assert engine.events(job.id, latest=latest) == lines[-latest:]
    assert engine.events("nobody", latest=latest) == engine.events(new_id(), latest=latest) == []
