"""How long finished jobs are kept, by state and by task; and what they cost while they are."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    running,
    settle,
    write,
)
from treadle.engines.values import Claim, JobFilter, Lease, Retention
from treadle.model import Reason, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Snoozed, Succeeded

DAY = timedelta(days=1)
CROWD = 1_100  # more than an engine looks at in one go


def left(engine):
    """What is there, by task and state."""
    return sorted((job.task, job.state.value) for job in engine.find(JobFilter(), limit=10_000).jobs)


def of_each(engine, *tasks, states=(State.SUCCEEDED, State.FAILED)):
    return [ended(engine, state, task=task) for task in tasks for state in states]


# ------------------------------------------------------------------------------------------------- by task


def test_a_task_may_be_kept_for_a_shorter_time_than_the_others(engine, clock):
    of_each(engine, "greet", "log")
    keep = Retention({State.SUCCEEDED: 7 * DAY, State.FAILED: 7 * DAY}, {"log": {State.SUCCEEDED: DAY}})
    clock.advance(days=1, microseconds=1)

    assert engine.prune(keep, limit=100) == 1
    assert left(engine) == [("greet", "failed"), ("greet", "succeeded"), ("log", "failed")]
    clock.advance(days=6)
    assert engine.prune(keep, limit=100) == 3


def test_a_task_may_be_kept_for_a_longer_time_than_the_others(engine, clock):
    of_each(engine, "greet", "bill")
    keep = Retention({State.SUCCEEDED: DAY, State.FAILED: DAY}, {"bill": {State.SUCCEEDED: 7 * DAY}})
    clock.advance(days=1, microseconds=1)

    assert engine.prune(keep, limit=100) == 3
    assert left(engine) == [("bill", "succeeded")]
    clock.advance(days=6)
    assert engine.prune(keep, limit=100) == 1


def test_only_jobs_of_some_tasks_may_be_meant_and_all_others_stay(engine, clock):
    of_each(engine, "greet", "bill", "log")
    ages = {State.SUCCEEDED: DAY, State.FAILED: DAY}
    keep = Retention(ages, {"bill": {State.SUCCEEDED: None}, "log": {State.FAILED: DAY}}, frozenset(("greet", "bill")))
    clock.advance(days=30)

    assert engine.prune(keep._replace(only=frozenset(("another",))), limit=100) == 0
    assert engine.prune(keep, limit=100) == 3
    assert left(engine) == [("bill", "succeeded"), ("log", "failed"), ("log", "succeeded")]
    assert engine.prune(keep._replace(only=None), limit=100) == 2


def test_a_task_may_be_kept_for_ever(engine, clock):
    of_each(engine, "greet", "bill")
    keep = Retention({State.SUCCEEDED: DAY, State.FAILED: DAY}, {"bill": {State.SUCCEEDED: None}})
    clock.advance(days=10_000)

    assert engine.prune(keep, limit=100) == 3
    assert left(engine) == [("bill", "succeeded")]
    assert engine.prune(keep, limit=100) == 0


def test_of_states_that_are_not_named_only_the_named_task_goes(engine, clock):
    of_each(engine, "greet", "log")
    clock.advance(days=2)

    assert engine.prune(Retention(tasks={"log": {State.FAILED: DAY}}), limit=100) == 1
    assert left(engine) == [("greet", "failed"), ("greet", "succeeded"), ("log", "succeeded")]


def test_every_task_may_have_a_time_of_its_own(engine, clock):
    of_each(engine, "a", "b", "c", "d", states=[State.SUCCEEDED])
    ages = {"a": DAY, "b": 2 * DAY, "c": 3 * DAY}
    keep = Retention({State.SUCCEEDED: 4 * DAY}, {task: {State.SUCCEEDED: age} for task, age in ages.items()})
    clock.advance(microseconds=1)

    for task in "abcd":
        assert engine.prune(keep, limit=100) == 0
        clock.advance(days=1)
        assert left(engine)[0] == (task, "succeeded")
        assert engine.prune(keep, limit=100) == 1
    assert left(engine) == []


def test_a_task_kept_for_no_time_at_all_goes_at_once(engine, clock):
    of_each(engine, "greet", "log")
    clock.advance(microseconds=1)

    assert engine.prune(Retention(tasks={"log": dict.fromkeys(State, timedelta(0))}), limit=100) == 2
    assert left(engine) == [("greet", "failed"), ("greet", "succeeded")]


def test_a_time_longer_than_the_calendar_keeps_for_ever(engine, clock):
    of_each(engine, "greet", "bill")
    keep = Retention({State.SUCCEEDED: timedelta.max}, {"bill": {State.FAILED: timedelta.max}})
    clock.advance(days=10_000)

    assert engine.prune(keep, limit=100) == 0


def test_no_more_jobs_go_than_the_limit_says_over_all_rules(engine, clock):
    of_each(engine, *["greet"] * 4, *["log"] * 4)
    keep = Retention(dict.fromkeys(State, DAY), {"log": dict.fromkeys(State, timedelta(hours=1))})
    clock.advance(days=2)

    deleted = [engine.prune(keep, limit=5) for _ in range(5)]

    assert deleted == [5, 5, 5, 1, 0]
    assert left(engine) == []


def test_a_key_that_is_held_keeps_a_job_whatever_its_task_says(engine, clock):
    until = clock.now() + 3 * DAY
    job = ended(engine, State.SUCCEEDED, task="log", key="k", key_scope=Scope.WINDOW, key_until=until)
    keep = Retention({State.SUCCEEDED: 30 * DAY}, {"log": {State.SUCCEEDED: DAY}})
    clock.advance(days=2)

    assert engine.prune(keep, limit=100) == 0
    assert current(engine, job) == job
    clock.advance(days=1)
    assert engine.prune(keep, limit=100) == 1


def test_a_job_that_ran_again_is_kept_from_its_last_end_on(engine, clock):
    job = ended(engine, State.FAILED, task="log")
    keep = Retention({}, {"log": {State.FAILED: DAY, State.SUCCEEDED: DAY}})
    clock.advance(hours=23)
    write(engine, lifecycle.retry(job, clock.now(), actor="ann"))
    settle(engine, claimed(engine, job), Succeeded("1"))
    clock.advance(hours=23)

    assert engine.prune(keep, limit=100) == 0
    clock.advance(hours=2)
    assert engine.prune(keep, limit=100) == 1


# ------------------------------------------------------------------------------------------------ in a crowd


def crowd(engine, task, number, step):
    """So many succeeded jobs of a task; with a step of time between every hundred of them."""
    for _ in range(number // 100):
        engine.enqueue([a_job(engine.now(), task=task) for _ in range(100)])
        jobs = claim(engine, 100, tasks=[task])
        engine.turn([lifecycle.settle(job, Succeeded(), engine.now()) for job in jobs])
        step()


STEPS = {"in one instant": lambda clock: None, "over hours": lambda clock: clock.advance(minutes=7)}


def emptied(engine, keep, limit=100):
    """How many jobs went, over as many calls as upkeep makes in a while."""
    return sum(engine.prune(keep, limit=limit) for _ in range(10))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "age"), list(zip(STEPS.values(), (None, 900 * DAY), strict=True)), ids=STEPS)
def test_old_jobs_behind_many_that_are_kept_are_found(engine, clock, step, age):
    crowd(engine, "bill", CROWD, lambda: step(clock))
    of_each(engine, *["greet"] * 5, states=[State.SUCCEEDED])
    keep = Retention({State.SUCCEEDED: DAY}, {"bill": {State.SUCCEEDED: age}})
    clock.advance(days=2)

    assert emptied(engine, keep) == 5
    assert engine.count(JobFilter()) == {State.SUCCEEDED: CROWD}
    of_each(engine, *["greet"] * 3, states=[State.SUCCEEDED])
    clock.advance(days=2)
    assert emptied(engine, keep) == 3


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_task_kept_shorter_is_found_behind_many_others(engine, clock, step):
    crowd(engine, "bill", CROWD, lambda: step(clock))
    of_each(engine, *["log"] * 5, states=[State.SUCCEEDED])
    keep = Retention({State.SUCCEEDED: 900 * DAY}, {"log": {State.SUCCEEDED: DAY}})
    clock.advance(days=2)

    assert emptied(engine, keep) == 5
    assert engine.count(JobFilter()) == {State.SUCCEEDED: CROWD}


@pytest.mark.slow
def test_those_that_were_kept_go_when_their_time_has_come_or_is_made_shorter(engine, clock):
    crowd(engine, "bill", CROWD, lambda: clock.advance(seconds=1))
    long = Retention({State.SUCCEEDED: DAY}, {"bill": {State.SUCCEEDED: 7 * DAY}})
    clock.advance(days=2)
    assert emptied(engine, long) == 0

    assert emptied(engine, Retention({State.SUCCEEDED: DAY}, {"bill": {State.SUCCEEDED: DAY}}), limit=50) == 500
    clock.advance(days=6)
    assert emptied(engine, long, limit=200) == CROWD - 500


# --------------------------------------------------------------------------------------------------- costs


def spent(engine, micros, state=State.SUCCEEDED, **fields):
    """A job that has cost so many millionths and ended."""
    return end(engine, running(engine, **fields), micros, state)


def end(engine, job, micros, state=State.SUCCEEDED):
    """Let the holder tell what the job has cost so far, and end it."""
    engine.extend([Lease(job.id, job.lease_token, cost_micros=micros)], lease=LEASE)
    failure = FailedForGood(Reason.PERMANENT, an_error(engine.now()))
    outcome = Succeeded("1") if state is State.SUCCEEDED else failure
    settle(engine, job.evolve(cost_micros=micros), outcome)
    return current(engine, job)


def costs(engine, **wish):
    now = engine.now()
    return engine.costs(**{"since": now - DAY, "until": now + DAY, **wish})


def test_costs_are_summed_by_tenant_and_task(engine):
    for tenant, task, micros in [("acme", "a", 5), ("acme", "a", 7), ("acme", "b", 11), ("zeta", "a", 13)]:
        spent(engine, micros, tenant=tenant, task=task)

    assert costs(engine) == {("acme", "a"): 12, ("acme", "b"): 11, ("zeta", "a"): 13}
    assert costs(engine, tenant="acme") == {("acme", "a"): 12, ("acme", "b"): 11}
    assert costs(engine, tenant="nobody") == {}


def test_jobs_that_cost_nothing_are_left_out(engine):
    ended(engine, State.SUCCEEDED)
    ended(engine, State.FAILED, task="other")

    assert costs(engine) == {}


def test_jobs_cost_whatever_way_they_ended(engine, clock):
    spent(engine, 5)
    spent(engine, 7, State.FAILED)
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, cost_micros=11)], lease=LEASE)
    settle(engine, job.evolve(cost_micros=11), Snoozed(0.0))
    write(engine, lifecycle.cancel(current(engine, job), clock.now(), actor="ann"))

    assert costs(engine) == {("default", "greet"): 23}


def test_costs_are_of_jobs_that_ended_from_the_first_moment_on_and_before_the_last(engine, clock):
    start = clock.now()
    for micros in (1, 10, 100):
        spent(engine, micros)
        clock.advance(hours=1)

    hour = timedelta(hours=1)
    microsecond = timedelta(microseconds=1)
    assert costs(engine, since=start, until=start + 2 * hour) == {("default", "greet"): 11}
    assert costs(engine, since=start + microsecond, until=start + 2 * hour + microsecond) == {("default", "greet"): 110}
    assert costs(engine, since=start + 2 * hour, until=start + 2 * hour) == {}
    assert costs(engine, since=start - DAY, until=start) == {}


def test_a_job_that_has_not_ended_counts_when_it_has(engine, clock):
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, cost_micros=5)], lease=LEASE)
    assert costs(engine) == {}
    settle(engine, job.evolve(cost_micros=5), Failed(an_error(clock.now()), 0.0))

    assert costs(engine) == {}
    end(engine, claimed(engine, job), 9)
    assert costs(engine) == {("default", "greet"): 9}


def test_a_job_that_is_retried_counts_once_at_its_last_end(engine, clock):
    first_day = clock.now()
    failed = spent(engine, 5, State.FAILED)
    clock.advance(days=3)
    write(engine, lifecycle.retry(failed, clock.now(), actor="ann"))

    assert costs(engine, since=first_day - DAY) == {}
    end(engine, claimed(engine, failed), 12)
    assert costs(engine, since=first_day - DAY) == costs(engine) == {("default", "greet"): 12}


def test_large_sums_are_exact(engine):
    for _ in range(3):
        spent(engine, 2**53 + 1)

    assert costs(engine) == {("default", "greet"): 3 * (2**53 + 1)}


def test_the_costs_of_many_jobs_are_summed(engine, clock):
    engine.enqueue([a_job(clock.now(), tenant=f"t{number % 3}", retry=Retry()) for number in range(300)])
    jobs = engine.turn([], Claim(token=new_id(), worker="w1", limit=300, lease=LEASE)).jobs
    engine.turn([lifecycle.settle(job.evolve(cost_micros=7), Succeeded(), clock.now()) for job in jobs])

    assert costs(engine) == {(f"t{number}", "greet"): 700 for number in range(3)}


def test_jobs_of_two_days_are_told_apart(engine, clock):
    midnight = (clock.now() + DAY).replace(hour=0, minute=0, second=0, microsecond=0)
    clock.advance(seconds=(midnight - clock.now()).total_seconds() - 1)
    enqueued(engine)
    spent(engine, 5, task="late")
    clock.advance(seconds=1)
    spent(engine, 7, task="early")

    assert engine.costs(since=midnight - DAY, until=midnight) == {("default", "late"): 5}
    assert engine.costs(since=midnight, until=midnight + DAY) == {("default", "early"): 7}
