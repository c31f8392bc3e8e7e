"""Promise 3, field by field: what a claim writes is what lifecycle.claim says, on every engine."""

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
    running,
    settle,
    start,
    write,
)
from treadle.engines.values import Claim, Lease
from treadle.model import FollowUp, OnEnd, Progress, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Released, Snoozed
from treadle.model.records import Pause

TOKEN, WORKER, SECONDS = "t-7", "w-7", 300.0
SOON = Retry(max_attempts=9, base=0, jitter=0)


def with_every_option(engine, clock):
    return enqueued(
        engine,
        tenant="acme",
        lane="eu",
        priority=7,
        task_version=3,
        retry=Retry(max_attempts=4, base=2.5, cap=60.0, jitter=0.1),
        timeout=12.5,
        expires_at=clock.now() + timedelta(hours=1),
        key="k",
        key_scope=Scope.ACTIVE,
        schedule="nightly",
        on_end=OnEnd(succeeded=FollowUp(event="done"), failed=FollowUp(task="tell")),
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1",
    )


def after_a_failure(engine, clock):
    job = start(engine, running(engine, retry=SOON))
    engine.extend([Lease(job.id, job.lease_token, None, Progress(0.5, "half"), 77)], lease=LEASE)
    settle(engine, current(engine, job), Failed(an_error(clock.now())))
    return job


def after_a_crash(engine, clock):
    return crashed(engine, clock, start(engine, running(engine, retry=SOON)))


def after_a_retry(engine, clock):
    job = ended(engine, State.FAILED)
    write(engine, lifecycle.retry(job, clock.now(), actor="ann"))
    return job


def after_a_replace(engine, clock):
    job = enqueued(engine)
    write(engine, lifecycle.replace(job, a_job(clock.now(), payload_json="[1]"), clock.now(), actor="ann"))
    return job


def parked_by_task(engine, clock):
    job = enqueued(engine, task="render")
    assert claim(engine, tasks=["greet"]) == []
    return job


def parked_behind_a_pause(engine, clock):
    pause = Pause(tenant="acme", at=clock.now())
    job = enqueued(engine, tenant="acme")
    assert engine.save(pause, before=None).done
    assert claim(engine) == []
    assert engine.drop(pause)
    return job


def given_back(engine, outcome):
    job = running(engine)
    settle(engine, job, outcome)
    return job


LIVES = {
    "new": lambda engine, clock: enqueued(engine),
    "with every option": with_every_option,
    "with a key until it is claimed": lambda engine, clock: enqueued(engine, key="k", key_scope=Scope.PENDING),
    "after a failure": after_a_failure,
    "after a crash": after_a_crash,
    "after a snooze": lambda engine, clock: given_back(engine, Snoozed(0)),
    "after a release": lambda engine, clock: given_back(engine, Released()),
    "after an operator's retry": after_a_retry,
    "after a replace": after_a_replace,
    "parked by task": parked_by_task,
    "parked behind a pause": parked_behind_a_pause,
}


@pytest.mark.parametrize("live", LIVES.values(), ids=LIVES)
def test_a_claim_writes_what_the_lifecycle_says_in_every_field(make_engine, clock, live):
    engine = make_engine(audit_all=True)
    before = current(engine, live(engine, clock))
    clock.advance(seconds=7)

    turn = engine.turn([], Claim(TOKEN, WORKER, 1, SECONDS))

    wanted = lifecycle.claim(before, turn.now, worker=WORKER, token=TOKEN, lease=SECONDS)
    assert turn.now == clock.now()
    assert [job._asdict() for job in turn.jobs] == [wanted.after._asdict()]
    assert current(engine, before) == wanted.after
    assert engine.events(before.id)[-1] == wanted.event


def test_of_many_jobs_in_one_claim_each_is_written_as_the_lifecycle_says(engine, clock):
    before = [current(engine, after_a_failure(engine, clock))]
    before += [enqueued(engine, lane=lane, tenant=tenant) for lane in ("", "eu") for tenant in ("acme", "umbrella")]

    turn = engine.turn([], Claim(TOKEN, WORKER, 10, SECONDS))

    wanted = [lifecycle.claim(job, turn.now, worker=WORKER, token=TOKEN, lease=SECONDS).after for job in before]
    assert {job.id: job for job in turn.jobs} == {job.id: job for job in wanted}
    assert engine.get([job.id for job in before]) == wanted


def test_a_key_that_is_held_until_the_claim_is_free_after_it(engine):
    job = enqueued(engine, key="k", key_scope=Scope.PENDING)
    claimed(engine, job)

    assert enqueued(engine, id=new_id(), key="k", key_scope=Scope.PENDING).id != job.id
