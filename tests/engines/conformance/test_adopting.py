"""A job of another table comes with its past: whole, once, with all that an engine keeps beside such a job."""

from datetime import timedelta

import pytest

from tests.support.making import (
    a_job,
    an_error,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    race,
    recover,
    running,
    settle,
    several,
    traces,
    write,
)
from treadle.engines.values import Claim, JobFilter, Retention, Ruling
from treadle.model import EventKind, Reason, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded

TABLE = "table jobs_before"


def with_a_past(engine, state, **fields):
    """A job as another table may have it: made an hour ago, in this state."""
    now = engine.now()
    made = now - timedelta(hours=1)
    begun = {"attempt": 2, "failures": 1, "error": an_error(made), "claimed_at": made + timedelta(minutes=1)}
    past = {
        State.PENDING: {"failures": 1, "attempt": 1, "error": an_error(made)},
        State.RUNNING: {
            **begun,
            "started_at": made + timedelta(minutes=2),
            "worker": "old-runner",
            "lease_until": made + timedelta(minutes=31),
            "lease_token": new_id(),
        },
    }
    end = {**begun, "started_at": made + timedelta(minutes=2), "finished_at": made + timedelta(minutes=3)}
    past[State.SUCCEEDED] = {**end, "error": None, "result_json": '{"sent":7}'}
    past[State.FAILED] = {**end, "reason": Reason.EXHAUSTED, "failures": 2}
    past[State.CANCELLED] = {**end, "reason": Reason.BY_REQUEST}
    given = {"created_at": made, "due_at": made, "tenant": "acme", "retry": Retry(max_attempts=4), "state": state}
    return a_job(now, **{**given, **past[state], **fields})


def adopt(engine, *jobs, at=None):
    """The verdicts, in order."""
    changes = [lifecycle.adopt(job, at or engine.now(), actor="import", note=TABLE) for job in jobs]
    return engine.turn(changes).verdicts


def adopted(engine, state, **fields):
    job = with_a_past(engine, state, **fields)
    assert [verdict.ruling for verdict in adopt(engine, job)] == [Ruling.APPLIED]
    return current(engine, job)


@pytest.mark.parametrize("state", list(State))
def test_a_job_of_every_state_is_kept_as_it_came(engine, clock, state):
    job = with_a_past(engine, state, payload_json='{"name": "Ada \u2764"}', cost_micros=70_000)
    at = clock.now() - timedelta(minutes=20)

    assert [verdict.ruling for verdict in adopt(engine, job, at=at)] == [Ruling.APPLIED]

    assert current(engine, job) == job.evolve(revision=1)
    [event] = engine.events(job.id)
    assert (event.kind, event.at, event.actor, event.note) == (EventKind.IMPORTED, at, "import", TABLE)
    assert (event.revision, event.tenant) == (1, "acme")


@pytest.mark.parametrize("state", list(State))
def test_a_job_comes_once_however_often_it_is_adopted(engine, clock, state):
    job = adopted(engine, state)
    before = traces(engine)

    [verdict] = adopt(engine, job.evolve(revision=0, payload_json='{"other":1}'), at=clock.now())

    assert (verdict.ruling, verdict.job) == (Ruling.LOST, job)
    assert traces(engine) == before


def test_a_job_that_has_moved_on_is_not_brought_back(engine, clock):
    job = with_a_past(engine, State.PENDING)
    adopt(engine, job, at=job.created_at)
    settle(engine, claimed(engine, job), Succeeded("1"))
    done, before = current(engine, job), traces(engine)

    [verdict] = adopt(engine, job, at=job.created_at)

    assert (verdict.ruling, verdict.job, traces(engine)) == (Ruling.LOST, done, before)


def test_a_job_that_was_pruned_meanwhile_does_not_come_again(engine, clock):
    job = with_a_past(engine, State.SUCCEEDED)
    adopt(engine, job, at=job.finished_at)
    assert engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10) == 1

    [verdict] = adopt(engine, job, at=job.finished_at)

    assert (verdict.ruling, verdict.job) == (Ruling.LOST, None)
    assert engine.get([job.id]) == [None]


def test_an_enqueued_job_with_this_id_stays_as_it_is(engine):
    job = enqueued(engine)

    [verdict] = adopt(engine, with_a_past(engine, State.FAILED, id=job.id))

    assert (verdict.ruling, verdict.job, current(engine, job)) == (Ruling.LOST, job, job)


def test_adopted_jobs_wait_in_their_lanes_and_are_claimed_in_order(engine, clock):
    later = clock.now() + timedelta(minutes=5)
    late = adopted(engine, State.PENDING, lane="mail", due_at=later)
    urgent = adopted(engine, State.PENDING, priority=7, failures=0)
    first = adopted(engine, State.PENDING)
    lane = adopted(engine, State.PENDING, lane="mail")

    assert [job.id for job in claim(engine, lanes=[""])] == [urgent.id, first.id]
    assert [job.id for job in claim(engine)] == [lane.id]
    clock.advance(minutes=6)
    assert [job.id for job in claim(engine)] == [late.id]


def test_a_running_job_is_taken_back_when_its_lease_is_past_and_not_before(engine, clock):
    young = adopted(engine, State.RUNNING, lease_until=clock.now() + timedelta(minutes=5))
    old = adopted(engine, State.RUNNING)

    assert [job.id for job in engine.expired(limit=10)] == [old.id]
    assert recover(engine, old).ruling is Ruling.APPLIED
    assert (current(engine, old).state, current(engine, young)) == (State.PENDING, young)
    settle(engine, again := claimed(engine, old), Succeeded())
    assert again.attempt == old.attempt + 1
    clock.advance(minutes=6)
    assert [job.id for job in engine.expired(limit=10)] == [young.id]


def test_nobody_holds_the_token_of_an_adopted_job(engine):
    job = adopted(engine, State.RUNNING)

    assert engine.turn([], Claim(new_id(), "w1", 10, 30.0)).jobs == []
    assert settle(engine, job.evolve(lease_token=new_id()), Succeeded()).ruling is Ruling.LOST


def test_a_pending_job_past_its_expiry_is_found_as_such(engine, clock):
    job = adopted(engine, State.PENDING, expires_at=clock.now() - timedelta(minutes=1))

    assert [found.id for found in engine.expired(limit=10)] == [job.id]
    assert claim(engine) == []


def test_lists_counts_and_costs_have_the_adopted_jobs(engine, clock):
    jobs = {state: adopted(engine, state, cost_micros=30_000) for state in State}
    since = clock.now() - timedelta(days=1)

    for state, job in jobs.items():
        assert [found.id for found in engine.find(JobFilter(state=state), limit=10).jobs] == [job.id]
    assert engine.count(JobFilter()) == dict.fromkeys(State, 1)
    tallied = {tally.state: tally.number for tally in engine.tally(since=since, limit=100)}
    assert tallied == dict.fromkeys(State, 1)
    assert engine.costs(since=since, until=clock.now()) == {("acme", "greet"): 90_000}


def test_a_failed_job_is_retried_by_an_operator_as_any_other(engine, clock):
    job = adopted(engine, State.FAILED)

    assert write(engine, lifecycle.retry(job, clock.now(), actor="ann")).ruling is Ruling.APPLIED

    settle(engine, claimed(engine, job), Succeeded("1"))
    assert current(engine, job).state is State.SUCCEEDED
    assert engine.find(JobFilter(state=State.FAILED), limit=10).jobs == []


@pytest.mark.parametrize(
    ("scope", "state", "holds"),
    [
        (Scope.PENDING, State.PENDING, True),
        (Scope.PENDING, State.RUNNING, False),
        (Scope.ACTIVE, State.RUNNING, True),
        (Scope.ACTIVE, State.SUCCEEDED, False),
        (Scope.WINDOW, State.SUCCEEDED, True),
        (Scope.EVER, State.FAILED, True),
    ],
)
def test_an_adopted_job_holds_its_key_as_long_as_one_that_was_enqueued(engine, clock, scope, state, holds):
    until = clock.now() + timedelta(hours=1) if scope is Scope.WINDOW else None
    key = {"key": "thread-7", "key_scope": scope, "key_until": until, "tenant": "acme"}
    job = adopted(engine, state, **key)

    [receipt] = engine.enqueue([a_job(clock.now(), **key)])

    assert (receipt.created, receipt.job.id == job.id) == (not holds, holds)


def test_of_two_that_want_one_key_one_comes_and_the_other_is_refused(engine, clock):
    key = {"key": "thread-7", "key_scope": Scope.EVER}
    jobs = [with_a_past(engine, State.SUCCEEDED, **key) for _ in range(2)]

    verdicts = adopt(engine, *jobs, at=clock.now())

    assert sorted(verdict.ruling.value for verdict in verdicts) == ["applied", "refused"]
    [(late, verdict)] = [pair for pair in zip(jobs, verdicts, strict=True) if pair[1].ruling is Ruling.REFUSED]
    assert "thread-7" in verdict.why
    assert (engine.get([late.id]), engine.events(late.id)) == ([None], [])


def test_a_job_whose_key_is_another_ones_by_now_is_still_known_as_come(engine, clock):
    key = {"key": "thread-7", "key_scope": Scope.ACTIVE}
    job = with_a_past(engine, State.PENDING, tenant="default", **key)
    adopt(engine, job, at=job.created_at)
    settle(engine, claimed(engine, job), Succeeded("1"))
    other = enqueued(engine, **key)

    assert adopt(engine, job, at=job.created_at)[0].ruling is Ruling.LOST
    assert current(engine, other).state is State.PENDING
    clock.advance(seconds=1)
    assert engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10) == 1
    assert adopt(engine, job, at=job.created_at)[0].ruling is not Ruling.APPLIED
    assert engine.get([job.id]) == [None]


def test_a_key_whose_window_is_over_keeps_no_adopted_job_away(engine, clock):
    key = {"key": "thread-7", "key_scope": Scope.WINDOW, "tenant": "acme"}
    enqueued(engine, **key, key_until=clock.now() + timedelta(minutes=1))
    clock.advance(minutes=2)

    job = adopted(engine, State.SUCCEEDED, **key, key_until=clock.now() + timedelta(minutes=1))

    assert not engine.enqueue([a_job(clock.now(), **key, key_until=clock.now() + timedelta(hours=1))])[0].created
    assert current(engine, job) == job


def test_one_bad_value_does_not_keep_the_others_from_coming(engine):
    jobs = [with_a_past(engine, State.SUCCEEDED) for _ in range(9)]
    jobs[4] = jobs[4].evolve(result_json='"\ud800"')

    verdicts = adopt(engine, *jobs)

    assert [verdict.ruling for verdict in verdicts] == [Ruling.APPLIED] * 4 + [Ruling.REFUSED] + [Ruling.APPLIED] * 4
    assert verdicts[4].why
    assert [job is None for job in engine.get([job.id for job in jobs])] == [place == 4 for place in range(9)]


def test_a_large_payload_result_and_error_come_whole(engine):
    text = '"' + "x" * 300_000 + '"'
    job = with_a_past(
        engine, State.FAILED, payload_json=text, result_json=text, error=an_error(engine.now(), "e" * 9000)
    )

    adopt(engine, job)

    assert current(engine, job) == job.evolve(revision=1)


def test_a_turn_can_adopt_and_settle(engine, clock):
    held, job = running(engine), with_a_past(engine, State.FAILED)
    changes = [lifecycle.adopt(job, clock.now(), actor="import"), lifecycle.settle(held, Succeeded(), clock.now())]

    assert [verdict.ruling for verdict in engine.turn(changes).verdicts] == [Ruling.APPLIED] * 2
    assert (current(engine, held).state, current(engine, job).state) == (State.SUCCEEDED, State.FAILED)


def test_importers_that_race_bring_each_job_once(make_engine, clock):
    engines = several(make_engine, 4)
    jobs = [with_a_past(engines[0], state) for state in State for _ in range(6)]

    answers = race(4, lambda place: adopt(engines[place], *jobs, at=clock.now()))

    for verdicts in zip(*answers, strict=True):
        assert [verdict.ruling for verdict in verdicts].count(Ruling.APPLIED) == 1
    assert engines[0].get([job.id for job in jobs]) == [job.evolve(revision=1) for job in jobs]
    assert [len(engines[0].events(job.id)) for job in jobs] == [1] * len(jobs)


def test_what_ended_long_ago_is_pruned_as_any_other(engine, clock):
    ended(engine, State.SUCCEEDED)
    job = adopted(engine, State.SUCCEEDED)

    assert engine.prune(Retention({State.SUCCEEDED: timedelta(minutes=30)}), limit=10) == 1
    assert engine.get([job.id]) == [None]
