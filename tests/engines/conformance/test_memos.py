"""What a job remembers: written by its holder alone, kept over attempts, and gone with the job."""

from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    OUTCOMES,
    an_error,
    claimed,
    current,
    ended,
    enqueued,
    every_outcome,
    race,
    running,
    settle,
    taken_over,
    traces,
    write,
)
from treadle.engines.values import Lease, Renewal, Retention
from treadle.model import Progress, State, lifecycle
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.memo import MEMO_CAP, Memo, MemoState


def a_memo(engine, name="mail", state=MemoState.DONE, value_json='{"id":7}', attempt=1):
    now = engine.now()
    return Memo(name, "once", state, attempt, now - timedelta(seconds=3), now, value_json)


def remember(engine, job, *memos, lease=LEASE, **told):
    [answer] = engine.extend([Lease(job.id, job.lease_token, memos=memos, **told)], lease=lease)
    return answer


def insisted(act):
    """The answer once nobody else's write is in the way."""
    while (answer := act()).renewal in (Renewal.BUSY, Renewal.MISSED):
        pass
    return answer


def test_a_memo_is_read_as_it_was_written(engine):
    job = running(engine)
    begun = a_memo(engine, "first", MemoState.BEGUN, None)
    done = a_memo(engine, "zweite Mail \u2709", value_json='{"to":"ada \u2764","n":[1,2.5,null,"\\n"]}')

    assert remember(engine, job, done, begun).renewal is Renewal.RENEWED

    assert engine.memos(job.id) == [begun, done]
    assert engine.memos(enqueued(engine).id) == []


def test_a_memo_comes_with_the_renewal_of_its_lease(engine, clock):
    job = running(engine)

    answer = remember(engine, job, a_memo(engine), lease=600, progress=Progress(0.5, "half"), started_at=clock.now())

    seen = current(engine, job)
    assert answer.renewal is Renewal.RENEWED
    assert seen.lease_until - clock.now() == timedelta(seconds=600)
    assert (seen.progress, seen.started_at, seen.revision) == (Progress(0.5, "half"), clock.now(), job.revision)


def test_memos_of_several_jobs_are_written_by_one_call(engine):
    jobs = [running(engine) for _ in range(3)]
    memos = [a_memo(engine, f"mail {number}") for number in range(3)]
    leases = [Lease(job.id, job.lease_token, memos=memos[:number]) for number, job in enumerate(jobs)]

    assert [answer.renewal for answer in engine.extend(leases, lease=LEASE)] == [Renewal.RENEWED] * 3

    assert [engine.memos(job.id) for job in jobs] == [[], memos[:1], memos[:2]]


def test_a_memo_that_is_not_done_changes(engine):
    job = running(engine)
    for state in (MemoState.BEGUN, MemoState.UNDONE, MemoState.BEGUN, MemoState.PARKED, MemoState.BEGUN):
        remember(engine, job, memo := a_memo(engine, state=state, value_json=None))
        assert engine.memos(job.id) == [memo]
    remember(engine, job, done := a_memo(engine))
    assert engine.memos(job.id) == [done]


@pytest.mark.parametrize("state", MemoState)
def test_a_memo_that_is_done_never_changes(engine, clock, state):
    job = running(engine)
    remember(engine, job, done := a_memo(engine))
    clock.advance(seconds=1)

    answer = remember(engine, job, a_memo(engine, state=state, value_json="2"), other := a_memo(engine, "other"))

    assert answer.renewal is Renewal.RENEWED
    assert engine.memos(job.id) == [done, other]
    assert current(engine, job).lease_until == clock.now() + timedelta(seconds=LEASE)


def test_a_memo_that_is_written_twice_is_there_once(engine):
    job, memo = running(engine), a_memo(engine)

    assert [remember(engine, job, memo).renewal for _ in range(2)] == [Renewal.RENEWED] * 2

    assert engine.memos(job.id) == [memo]


def test_the_zombies_memo_leaves_no_trace(engine, clock):
    first, second = taken_over(engine, clock)
    before = traces(engine)

    assert remember(engine, first, a_memo(engine, value_json='"a zombie"')).renewal is Renewal.LOST

    assert engine.memos(first.id) == []
    assert traces(engine) == before
    assert remember(engine, second, mine := a_memo(engine)).renewal is Renewal.RENEWED
    assert remember(engine, first, a_memo(engine, "late")).renewal is Renewal.LOST
    assert engine.memos(first.id) == [mine]


@pytest.mark.parametrize("name", OUTCOMES)
def test_nobody_remembers_anything_after_the_attempt(engine, clock, name):
    job = running(engine)
    remember(engine, job, memo := a_memo(engine))
    settle(engine, job, every_outcome(clock.now())[name])

    assert remember(engine, job, a_memo(engine, "late")).renewal is Renewal.LOST

    assert engine.memos(job.id) == [memo]


def test_a_zombie_beside_a_holder_keeps_nobodys_memo_back(engine, clock):
    first, second = taken_over(engine, clock)
    leases = [Lease(job.id, job.lease_token, memos=[a_memo(engine, str(job.attempt))]) for job in (first, second)]

    answers = engine.extend(leases, lease=LEASE)

    assert [answer.renewal for answer in answers] == [Renewal.LOST, Renewal.RENEWED]
    assert [memo.name for memo in engine.memos(first.id)] == ["2"]


def test_the_next_attempt_finds_what_the_one_before_has_kept(engine, clock):
    job = running(engine)
    remember(engine, job, memo := a_memo(engine))
    settle(engine, job, Failed(an_error(clock.now()), 0.0))

    again = claimed(engine, job)

    assert again.attempt == 2
    assert engine.memos(again.id) == [memo]


def test_whoever_renews_hears_of_a_cancel_request(engine):
    job = running(engine)
    write(engine, lifecycle.cancel(job, engine.now(), actor="ada"))

    assert remember(engine, job, a_memo(engine)).cancel_requested
    assert [memo.name for memo in engine.memos(job.id)] == ["mail"]


@pytest.mark.parametrize("size", [70_000, MEMO_CAP])
def test_a_large_memo_comes_back_whole(engine, size):
    job, value = running(engine), '"' + "x" * (size - 2) + '"'

    remember(engine, job, a_memo(engine, value_json=value))

    assert engine.memos(job.id)[0].value_json == value


def test_the_longest_name_is_stored(engine):
    job, name = running(engine), "\u2764" * 66 + "ab"
    assert len(name.encode()) == 200

    remember(engine, job, memo := a_memo(engine, name))

    assert engine.memos(job.id) == [memo]


def test_a_pruned_job_takes_its_memos_along(engine, clock):
    kept, gone = (running(engine, task=task) for task in ("kept", "gone"))
    for job in (kept, gone):
        remember(engine, job, a_memo(engine, "a"), a_memo(engine, "b"))
        settle(engine, job, Succeeded())
    clock.advance(days=8)

    pruned = engine.prune(Retention({State.SUCCEEDED: timedelta(days=7)}, only=frozenset(["gone"])), limit=10)

    assert pruned == 1
    assert engine.memos(gone.id) == []
    assert [memo.name for memo in engine.memos(kept.id)] == ["a", "b"]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_a_job_that_has_ended_keeps_its_memos(engine, state):
    job = running(engine)
    remember(engine, job, memo := a_memo(engine))
    settle(engine, job, Succeeded())

    assert engine.memos(job.id) == [memo]
    assert engine.memos(ended(engine, state).id) == []


def test_a_deleted_job_takes_its_memos_along(engine):
    waiting, over, other = (running(engine, task=task) for task in ("waiting", "over", "other"))
    for job in (waiting, over, other):
        remember(engine, job, a_memo(engine, "a"), a_memo(engine, "b"))
    settle(engine, waiting, lifecycle.Released())
    settle(engine, over, Succeeded())
    for job in (waiting, over):
        write(engine, lifecycle.delete(current(engine, job), engine.now(), actor="ada"))

    assert [len(engine.memos(job.id)) for job in (waiting, over, other)] == [0, 0, 2]


def test_of_two_tries_at_a_memo_one_is_kept_whole(engine):
    job = running(engine)
    memos = [a_memo(engine, value_json=str(number)) for number in range(8)]

    race(8, lambda number: insisted(lambda: remember(engine, job, memos[number])))

    [kept] = engine.memos(job.id)
    assert kept in memos
