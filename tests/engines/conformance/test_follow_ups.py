"""What follows the end of a job: a change, its named line and the job it brings about are one atom."""

import sqlite3
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest

from tests.support.making import (
    LEASE,
    OUTCOMES,
    a_job,
    an_error,
    claim,
    claimed,
    current,
    enqueued,
    every_outcome,
    insisted,
    race,
    running,
    settle,
    several,
    start,
    taken_over,
    write,
)
from tests.support.marks import sql_stores
from treadle.engines.scripts import drive
from treadle.engines.values import Claim, JobFilter, Ruling
from treadle.model import EventKind, FollowUp, OnEnd, Reason, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Released, Succeeded

SENT = FollowUp(event="EMAIL_SENT", task="tell", queue="mail", priority=7, version=3)
DEAD = FollowUp(event="JOB_EXHAUSTED_RETRIES", task="mourn")
ENDS = OnEnd(succeeded=SENT, failed=DEAD)
ROUNDS = 50
WHOLE = FollowUp("☃ 'x'", "tell", "mail", "lane", -3, 2, Retry(7, 0.5, None, 0.25), 1.5, ["job_id", "☃"])


def followed(job, now, outcome=None, **follow):
    """The end of an attempt, and a job of task `tell` to be stored with it."""
    change = lifecycle.settle(job, outcome or Succeeded("1"), now)
    return change._replace(follow=a_job(now, task="tell", queue="mail", **follow))


def waiting(engine):
    """What has been stored for the queue of follow-ups."""
    return engine.find(JobFilter(queue="mail"), limit=100).jobs


# ---------------------------------------------------------------------------------------------- it is kept


@pytest.mark.parametrize("ends", [None, OnEnd(), OnEnd(succeeded=SENT), OnEnd(failed=WHOLE), ENDS])
def test_a_job_keeps_its_schedule_and_what_is_to_follow_all_its_life(engine, clock, ends):
    job = enqueued(engine, on_end=ends, schedule="every ☃ minute", retry=Retry(max_attempts=1))
    kept = ("every ☃ minute", ends)

    def told(job):
        return job.schedule, job.on_end

    assert told(job) == told(current(engine, job)) == kept
    write(engine, lifecycle.replace(job, a_job(clock.now(), retry=job.retry), clock.now(), actor="producer"))
    held = claimed(engine, job)
    assert told(held) == kept
    settle(engine, held, Failed(an_error(clock.now())))
    assert told(current(engine, job)) == kept
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))
    assert told(claimed(engine, job)) == kept
    assert told(engine.find(JobFilter(task="greet"), limit=1).jobs[0]) == kept


# --------------------------------------------------------------------------------------------- both or neither


def test_a_change_with_a_follow_up_stores_both(engine, clock):
    job = running(engine)
    change = followed(job, clock.now(), tenant="acme", priority=3, payload_json='{"☃":1}')

    assert write(engine, change).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.SUCCEEDED
    assert waiting(engine) == [change.follow]
    [got] = claim(engine, queues=["mail"])
    assert (got.id, got.tenant, got.payload) == (change.follow.id, "acme", {"☃": 1})


def test_a_follow_up_arrives_by_the_stores_clock(engine, clock):
    job = running(engine)
    change = followed(job, clock.now() - timedelta(minutes=1))
    write(engine, change)

    assert waiting(engine) == [change.follow.evolve(created_at=clock.now(), due_at=clock.now())]


def test_the_end_of_a_job_tells_the_task_that_follows(engine, clock):
    job = running(engine, on_end=ENDS, tenant="acme")
    settle(engine, job, Succeeded("1"))

    [follow] = claim(engine, queues=["mail"])
    assert (follow.task, follow.task_version, follow.priority, follow.tenant) == ("tell", 3, 7, "acme")
    assert follow.payload == {"job_id": job.id, "task": "greet", "state": "succeeded", "reason": None, "error": None}


def test_a_follow_up_in_a_crowd_belongs_to_its_own_change(engine, clock):
    jobs = [running(engine) for _ in range(25)]
    changes = [followed(job, clock.now(), payload_json=f'"{job.id}"') for job in jobs[:20]]
    changes += [lifecycle.settle(job, Succeeded(), clock.now()) for job in jobs[20:]]

    verdicts = engine.turn(changes).verdicts

    assert {verdict.ruling for verdict in verdicts} == {Ruling.APPLIED}
    assert sorted(follow.payload for follow in waiting(engine)) == sorted(job.id for job in jobs[:20])


@pytest.mark.parametrize("way", OUTCOMES)
def test_a_follow_up_comes_with_whatever_a_holder_writes(engine, clock, way):
    change = followed(running(engine), clock.now(), every_outcome(clock.now())[way])

    assert write(engine, change).ruling is Ruling.APPLIED
    assert waiting(engine) == [change.follow]


def by_operators(engine, clock):
    """Changes that no holder makes."""
    now, held = clock.now(), running(engine, queue="q1")
    failed = running(engine, queue="q2")
    settle(engine, failed, FailedForGood(Reason.PERMANENT, an_error(now)))
    return {
        "cancel": lifecycle.cancel(enqueued(engine, queue="q3"), now, actor="ann"),
        "request": lifecycle.cancel(held, now, actor="ann"),
        "expire": lifecycle.expire(enqueued(engine, queue="q4"), now, actor="upkeep"),
        "retry": lifecycle.retry(current(engine, failed), now, actor="ann"),
        "replace": lifecycle.replace(enqueued(engine, queue="q5"), a_job(now, queue="q5"), now, actor="producer"),
    }


@pytest.mark.parametrize("way", ["cancel", "request", "expire", "retry", "replace"])
def test_a_follow_up_comes_with_what_operators_and_upkeep_do(engine, clock, way):
    change = by_operators(engine, clock)[way]._replace(follow=a_job(clock.now(), queue="mail"), always_audited=True)

    assert write(engine, change).ruling is Ruling.APPLIED
    assert waiting(engine) == [change.follow]
    assert engine.events(change.before.id)[-1].kind is change.kind


def test_a_crash_that_ends_a_job_is_followed(engine, clock):
    job = start(engine, running(engine, retry=Retry(max_attempts=1), on_end=OnEnd(failed=SENT)))
    clock.advance(seconds=LEASE)
    [seen] = engine.expired(limit=10)

    assert write(engine, lifecycle.crash(seen, clock.now(), actor="reaper")).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.FAILED
    assert [follow.payload["state"] for follow in waiting(engine)] == ["failed"]
    assert [line.note.partition(":")[0] for line in engine.events(job.id)] == ["EMAIL_SENT"]


def test_a_change_that_is_not_applied_is_followed_by_nothing(engine, clock):
    first, second = taken_over(engine, clock, key="k", key_scope=Scope.PENDING)
    enqueued(engine, key="k", key_scope=Scope.PENDING)
    asked = running(engine, queue="other")
    write(engine, lifecycle.cancel(asked, clock.now(), actor="ann"))
    now = clock.now()
    refused = {
        "a zombie": (followed(first, now), Ruling.LOST),
        "a stale holder": (followed(asked, now, Failed(an_error(now))), Ruling.STALE),
        "a taken key": (followed(second, now, Failed(an_error(now))), Ruling.REFUSED),
        "a bad value": (followed(second, now, Succeeded('"\ud800"')), Ruling.REFUSED),
        "an early reaper": (
            lifecycle.crash(second, now, actor="r")._replace(follow=a_job(now, queue="mail")),
            Ruling.LOST,
        ),
    }

    for who, (change, ruling) in refused.items():
        assert write(engine, change).ruling is ruling, who
        assert waiting(engine) == [], who
        assert engine.get([change.follow.id]) == [None], who


def test_a_change_whose_follow_up_no_store_takes_is_refused_with_it(engine, clock):
    job = running(engine)
    bad = followed(job, clock.now(), FailedForGood(Reason.PERMANENT, an_error(clock.now())), payload_json='"\ud800"')

    assert write(engine, bad).ruling is Ruling.REFUSED
    assert current(engine, job) == job
    assert (waiting(engine), engine.events(job.id)) == ([], [])
    assert write(engine, bad._replace(follow=None)).ruling is Ruling.APPLIED


def test_a_bad_follow_up_does_not_take_its_neighbours_along(engine, clock):
    jobs = [running(engine) for _ in range(7)]
    changes = [followed(job, clock.now()) for job in jobs]
    changes[3] = followed(jobs[3], clock.now(), payload_json='"\ud800"')

    rulings = [verdict.ruling for verdict in engine.turn(changes).verdicts]

    assert rulings == [Ruling.REFUSED if place == 3 else Ruling.APPLIED for place in range(7)]
    assert len(waiting(engine)) == 6
    assert current(engine, jobs[3]) == jobs[3]


# ---------------------------------------------------------------------------------------------- only once


def test_a_change_sent_again_because_its_answer_was_lost_stores_no_second_follow_up(engine, clock):
    job = running(engine)
    change = followed(job, clock.now())
    write(engine, change)

    for again in (change, change._replace(follow=change.follow.evolve(id=new_id()))):
        assert write(engine, again).ruling is Ruling.ALREADY
        assert waiting(engine) == [change.follow]


def test_a_change_sent_again_after_its_follow_up_has_run_brings_it_not_back(engine, clock):
    job = running(engine, on_end=ENDS)
    change = lifecycle.settle(job, Succeeded("1"), clock.now())
    write(engine, change)
    [follow] = claim(engine, queues=["mail"])
    settle(engine, follow, Succeeded("2"))

    assert write(engine, change).ruling is Ruling.ALREADY
    assert [found.state for found in waiting(engine)] == [State.SUCCEEDED]


def test_a_whole_turn_repeated_stores_no_second_follow_up(engine, clock):
    jobs = [running(engine, on_end=ENDS) for _ in range(5)]
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in jobs]
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=LEASE, queues=["mail"])
    engine.turn(changes, wish)

    again = engine.turn(changes, wish)

    assert {verdict.ruling for verdict in again.verdicts} == {Ruling.ALREADY}
    assert len(waiting(engine)) == 5


@pytest.mark.parametrize("state", ["waiting", "finished"])
def test_a_follow_up_that_is_there_already_stays_as_it_is(engine, clock, state):
    there = enqueued(engine, queue="mail", payload_json='"first"')
    if state == "finished":
        settle(engine, claimed(engine, there), Succeeded("1"))
        there = current(engine, there)
    change = followed(running(engine), clock.now(), id=there.id, payload_json='"second"')

    assert write(engine, change).ruling is Ruling.APPLIED
    assert waiting(engine) == [there]


def test_a_job_that_is_retried_and_fails_again_is_followed_again(engine, clock):
    job = running(engine, on_end=OnEnd(failed=SENT), retry=Retry(max_attempts=1))
    settle(engine, job, Failed(an_error(clock.now(), "first")))
    write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann"))
    settle(engine, claimed(engine, job), Failed(an_error(clock.now(), "second")))

    assert sorted(follow.payload["error"] for follow in waiting(engine)) == ["first", "second"]


def test_of_a_follow_up_and_an_enqueue_of_one_id_at_once_there_is_one_job(make_engine, clock):
    engines = several(make_engine, 2)
    for _ in range(ROUNDS):
        change = followed(running(engines[0]), clock.now())
        acts = [lambda change=change: insisted(lambda: write(engines[0], change)).ruling]
        acts.append(lambda change=change: engines[1].enqueue([change.follow])[0].job.id)
        ruling, id_ = race(2, lambda at, acts=acts: acts[at]())

        assert (ruling, id_) == (Ruling.APPLIED, change.follow.id)
        [got] = claim(engines[0], queues=["mail"])
        assert got.id == change.follow.id


# -------------------------------------------------------------------------------------------------- the lines


def test_a_named_event_is_in_the_trail_at_the_default_level(engine, clock):
    told, untold = running(engine, on_end=ENDS), running(engine, on_end=OnEnd(succeeded=FollowUp(task="tell")))
    settle(engine, told, Succeeded("1"))
    settle(engine, untold, Succeeded("1"))

    assert [(line.kind, line.note) for line in engine.events(told.id)] == [(EventKind.SUCCEEDED, "EMAIL_SENT")]
    assert engine.events(untold.id) == []


@pytest.mark.parametrize("outcome", [Succeeded("1"), Released()], ids=["success", "release"])
@pytest.mark.parametrize("always_audited", [True, False])
def test_a_loud_change_leaves_its_line_at_every_level_and_a_quiet_one_by_its_kind(
    engine, clock, outcome, always_audited
):
    change = lifecycle.settle(running(engine), outcome, clock.now())._replace(
        always_audited=always_audited, note="named"
    )
    write(engine, change)

    assert [line.note for line in engine.events(change.before.id)] == ["named"] * always_audited


def test_a_loud_change_among_quiet_ones_speaks_for_itself_alone(engine, clock):
    changes = [lifecycle.settle(running(engine), Succeeded("1"), clock.now()) for _ in range(6)]
    changes[2] = changes[2]._replace(always_audited=True)
    engine.turn(changes)

    assert [len(engine.events(change.before.id)) for change in changes] == [0, 0, 1, 0, 0, 0]


def test_a_loud_change_that_is_not_applied_or_only_repeated_leaves_no_line(engine, clock):
    first, second = taken_over(engine, clock, on_end=ENDS)
    trail = engine.events(first.id)
    write(engine, lifecycle.settle(first, Succeeded("1"), clock.now()))

    assert engine.events(first.id) == trail
    change = lifecycle.settle(second, Succeeded("2"), clock.now())
    write(engine, change)
    write(engine, change)
    assert [line.kind for line in engine.events(first.id)] == [*(line.kind for line in trail), EventKind.SUCCEEDED]


def test_on_request_a_follow_up_has_a_first_line_of_its_own(make_engine, clock):
    engine = make_engine(audit_all=True)
    change = followed(running(engine), clock.now())
    write(engine, change)

    assert [line.kind for line in engine.events(change.follow.id)] == [EventKind.ENQUEUED]


# ----------------------------------------------------------------------------------- in the caller's transaction


@contextmanager
def transaction(url):
    """The application's own connection to a SQL store, and how it runs a statement of ours."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("begin immediate")
            yield connection, lambda sql, text: connection.execute(sql, (text,)).fetchall()
        return
    with closing(psycopg.connect(url.partition("?")[0])) as connection:
        cursor = psycopg.RawCursor(connection)

        def execute(sql, text):
            cursor.execute(sql, [text])
            return cursor.fetchall() if cursor.description else []

        yield connection, execute


@sql_stores
def test_a_change_in_the_callers_transaction_stores_its_follow_up_with_the_commit(engine, store_url, clock):
    job = running(engine, on_end=ENDS)
    change = lifecycle.settle(job, Succeeded("1"), clock.now())

    with transaction(store_url) as (connection, execute):
        assert drive(engine.settle_script(change), execute).ruling is Ruling.APPLIED
        connection.commit()

    assert current(engine, job).state is State.SUCCEEDED
    assert waiting(engine) == [change.follow]
    assert [line.note for line in engine.events(job.id)] == ["EMAIL_SENT"]
    assert write(engine, change).ruling is Ruling.ALREADY
    assert waiting(engine) == [change.follow]


@sql_stores
def test_a_change_whose_transaction_is_undone_leaves_no_follow_up(engine, store_url, clock):
    job = running(engine, on_end=ENDS)
    change = lifecycle.settle(job, Succeeded("1"), clock.now())

    with transaction(store_url) as (connection, execute):
        assert drive(engine.settle_script(change), execute).ruling is Ruling.APPLIED
        connection.rollback()

    assert current(engine, job) == job
    assert (waiting(engine), engine.events(job.id)) == ([], [])


@sql_stores
def test_a_zombies_change_in_a_transaction_is_followed_by_nothing(engine, store_url, clock):
    first, second = taken_over(engine, clock, on_end=ENDS)

    with transaction(store_url) as (connection, execute):
        change = lifecycle.settle(first, Succeeded("1"), clock.now())
        assert drive(engine.settle_script(change), execute).ruling is Ruling.LOST
        connection.commit()

    assert current(engine, second) == second
    assert waiting(engine) == []
