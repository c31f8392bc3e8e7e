"""A claim that names its lanes sees all of their jobs, and those of no other; and nothing is lost among many lanes."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.engines.conformance.crowds import (
    DAY,
    SCOPES,
    a_wish,
    by_urgency,
    crowd_of,
    given,
    ids,
    in_lanes,
    paused,
    resumed,
    stored,
    turns_until_idle,
)
from tests.support.making import a_job, race, several
from treadle.engines.values import JobFilter, Ruling
from treadle.model import State, lifecycle
from treadle.model.lifecycle import Released, Succeeded, Success

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
NAMED = ("lane00010", "lane00020")


@pytest.fixture
def crowded(engine, clock):
    """A store with a due and a future job in each of a crowd of lanes."""
    crowd = crowd_of(engine, 1_000, 100)
    stored(engine, in_lanes(clock.now(), crowd, priority=9))
    stored(engine, in_lanes(clock.now(), crowd, due_at=clock.now() + DAY, priority=9))
    assert len(given(turns_until_idle(engine, lanes=NAMED))) == 2
    return engine


def in_named(now, number, **fields):
    return [a_job(now, **{"lane": NAMED[n % 2], "priority": n % 3, **fields}) for n in range(number)]


def test_named_lanes_give_their_own_jobs_and_no_others(crowded, clock):
    jobs = stored(crowded, in_named(clock.now(), 30))

    assert given(turns_until_idle(crowded, lanes=NAMED)) == ids(jobs)


def test_named_lanes_give_their_future_jobs_when_they_are_due_and_in_order(crowded, clock):
    now = clock.now()
    jobs = stored(crowded, (job.evolve(due_at=now + HOUR) for job in in_named(now, 30, lane=NAMED[0])))
    assert given(turns_until_idle(crowded, lanes=NAMED)) == []
    clock.advance(hours=1)

    turns = turns_until_idle(crowded, lanes=NAMED, limit=7)

    assert [one.id for turn in turns for one in turn.claimed] == by_urgency(jobs)


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_named_lanes_give_what_a_pause_held_back_once_it_is_over(crowded, clock, scope):
    wish = {"lanes": NAMED, "queues": ("mail", "default")}
    pause = paused(crowded, **scope)
    jobs = stored(crowded, in_named(clock.now(), 30, **scope))
    jobs += stored(crowded, in_named(clock.now(), 30, **scope, due_at=clock.now() + HOUR))
    assert given(turns_until_idle(crowded, **wish)) == []
    clock.advance(hours=1)
    assert given(turns_until_idle(crowded, **wish)) == []
    resumed(crowded, pause)

    assert given(turns_until_idle(crowded, **wish)) == ids(jobs)


def test_named_lanes_give_what_others_put_aside_to_whoever_knows_the_task(crowded, clock):
    jobs = stored(crowded, in_named(clock.now(), 30, task="unknown"))
    jobs += stored(crowded, in_named(clock.now(), 30, task="unknown", due_at=clock.now() + HOUR))
    assert given(turns_until_idle(crowded, lanes=NAMED, tasks=["greet"])) == []
    clock.advance(hours=1)
    assert given(turns_until_idle(crowded, lanes=NAMED, tasks=["greet"])) == []

    assert given(turns_until_idle(crowded, lanes=NAMED)) == ids(jobs)


def test_a_claim_of_any_task_in_a_named_lane_finds_what_was_put_aside_behind_many_tasks_of_other_lanes(engine, clock):
    stored(engine, [a_job(clock.now(), lane="other", task=f"a{n:03}") for n in range(150)])
    job = stored(engine, [a_job(clock.now(), lane="mine", task="z")])
    assert given(turns_until_idle(engine, tasks=["another"])) == []

    assert given(engine.turn([], a_wish(lanes=["mine"])) for _ in range(2)) == ids(job)


def test_a_claim_of_many_named_lanes_sees_each_of_them(crowded):
    named = [f"lane{n:05}" for n in range(0, crowd_of(crowded, 1_000, 100), 2) if f"lane{n:05}" not in NAMED]

    got = [one.job().lane for turn in turns_until_idle(crowded, lanes=named) for one in turn.claimed]

    assert sorted(got) == named


# --------------------------------------------------------------------------------------------- nothing twice

RACERS = 4


def worked(engine, place):
    """A worker that claims and settles until it finds nothing; how often it was given each job.

    Some jobs it gives back once, some it ends in the short way, some by a whole change.
    """
    seen, held = Counter(), []
    while True:
        now = engine.now()
        changes = [_end(job, now, at) for at, job in enumerate(held)]
        answer = engine.turn(changes, a_wish(10, worker=f"w{place}", thorough=not held))
        rulings = [verdict.ruling for verdict in answer.verdicts]
        assert set(rulings) <= {Ruling.APPLIED, Ruling.BUSY}, f"somebody else had the same job: {rulings}"
        busy = [job for job, ruling in zip(held, rulings, strict=True) if ruling is Ruling.BUSY]
        seen.update(one.id for one in answer.claimed)
        if not held and not answer.claimed and not answer.more:
            return seen
        held = busy + answer.jobs


def _end(job, now, at):
    if at % 5 == 0 and job.attempt == 1:
        return lifecycle.settle(job, Released(), now)
    if at % 2:
        return lifecycle.settle(job, Succeeded("1"), now)
    return Success(job.id, job.lease_token, job.revision, now, "1", lambda: job.evolve(started_at=now))


def test_four_workers_beside_hundreds_of_lanes_take_every_job_and_none_twice(make_engine, clock):
    engines = several(make_engine, RACERS)
    lanes = crowd_of(engines[0], 500, 100)
    jobs = stored(engines[0], in_lanes(clock.now(), lanes))
    jobs += stored(engines[0], (a_job(clock.now(), lane="long") for _ in range(lanes // 5)))
    jobs += stored(engines[0], (a_job(clock.now()) for _ in range(lanes // 5)))

    seen = sum(race(RACERS, lambda place: worked(engines[place], place)), Counter())

    # One who gave a job back may have heard "nothing" while another held what was left; nobody else is there now.
    seen += worked(engines[0], RACERS)
    assert sorted(seen) == ids(jobs)
    after = engines[0].get([job.id for job in jobs])
    assert Counter(job.state for job in after) == {State.SUCCEEDED: len(jobs)}
    assert {job.id: job.attempt for job in after} == dict(seen), "each claim was one attempt, and each was told"
    assert engines[0].count(JobFilter()) == {State.SUCCEEDED: len(jobs)}


def test_four_threads_of_one_engine_beside_hundreds_of_lanes_take_every_job_and_none_twice(engine, clock):
    jobs = stored(engine, in_lanes(clock.now(), crowd_of(engine, 500, 100)))

    seen = sum(race(RACERS, lambda place: worked(engine, place)), Counter())

    seen += worked(engine, RACERS)
    assert sorted(seen) == ids(jobs)
    assert {job.id: job.attempt for job in engine.get(sorted(seen))} == dict(seen)
