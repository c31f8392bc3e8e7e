"""Idle is said only when a full walk found nothing: an empty answer that is not cut short proves that nothing was due.

Beside thousands of lanes, whatever lies in them.
"""

import pytest

from tests.engines.conformance.crowds import (
    DAY,
    SCENES,
    SCOPES,
    a_wish,
    crowd_of,
    given,
    ids,
    in_lanes,
    paused,
    stored,
    turns_until_idle,
)
from tests.support.making import LEASE, a_job, claim, enqueued, recover
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.values import JobFilter
from treadle.model import State

pytestmark = pytest.mark.slow

every_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)


@every_scene
@pytest.mark.parametrize("thorough", [True, False], ids=["thorough", "ordinary"])
def test_claims_up_to_the_first_that_says_idle_give_every_due_job(engine, clock, scene, thorough):
    takeable, wish = scene(engine, clock, crowd_of(engine))

    turns = turns_until_idle(engine, thorough=thorough, **wish)

    assert given(turns) == ids(takeable)


@every_scene
def test_one_thorough_claim_for_all_there_is_gives_all_or_says_that_there_is_more(engine, clock, scene):
    takeable, wish = scene(engine, clock, crowd_of(engine, 500, size(60, long=100)))

    turn = engine.turn([], a_wish(1_000, thorough=True, **wish))

    assert turn.more or given([turn]) == ids(takeable)
    assert set(given([turn])) <= set(ids(takeable))


STILL = {name: scene for name, scene in SCENES.items() if "pause" not in name and "became" not in name}
"""The scenes in which no clock is moved; what a pause does by that clock, tests/worker/test_many_lanes.py asks."""


@pytest.mark.parametrize("scene", STILL.values(), ids=STILL)
@pytest.mark.parametrize("thorough", [True, False], ids=["thorough", "ordinary"])
def test_idle_is_a_proof_by_the_clock_of_the_store_too(store_url, scene, thorough):
    """Engines may remember from one claim to the next where to go on; one that did so has not looked everywhere."""
    engine = connect(store_url)
    engine.open()
    try:
        takeable, wish = scene(engine, engine, crowd_of(engine, on_dynamodb=size(80, long=150)))

        turns = turns_until_idle(engine, thorough=thorough, **wish)

        assert given(turns) == ids(takeable)
    finally:
        engine.close()


def test_a_claim_of_one_that_comes_back_empty_was_not_cut_short_before_the_only_due_job(engine, clock):
    """However small the claim and wherever the job's lane lies, nobody concludes from the lanes before it."""
    crowd = crowd_of(engine)
    later = in_lanes(clock.now(), crowd, due_at=clock.now() + DAY)
    stored(engine, later)
    for lane in (later[0].lane, later[crowd // 2].lane, later[-1].lane, "", "zzz"):
        only = enqueued(engine, lane=lane)

        assert given(turns_until_idle(engine, limit=1)) == [only.id]


NOTHING = {
    "lanes with future jobs only": lambda now, crowd: in_lanes(now, crowd, due_at=now + DAY),
    "lanes full of an unknown task": lambda now, crowd: in_lanes(now, crowd, task="unknown"),
    "lanes full of unknown tasks": lambda now, crowd: [job.evolve(task=job.lane) for job in in_lanes(now, crowd)],
    "future jobs of an unknown task": lambda now, crowd: in_lanes(now, crowd, task="unknown", due_at=now + DAY),
    **{
        f"lanes behind a pause of {what}": lambda now, crowd, scope=scope: in_lanes(now, crowd // 2, **scope)
        for what, scope in SCOPES.items()
    },
}


@pytest.mark.parametrize("crowd", NOTHING.values(), ids=NOTHING)
def test_a_worker_that_may_take_nothing_hears_so_and_hears_so_at_once_from_then_on(engine, clock, crowd):
    for scope in SCOPES.values():
        paused(engine, **scope)
    jobs = stored(engine, crowd(clock.now(), crowd_of(engine)))
    wish = {"tasks": ["greet", "render"], "queues": ("default", "mail")}

    assert given(turns_until_idle(engine, thorough=True, **wish)) == []

    again = engine.turn([], a_wish(thorough=True, **wish))
    assert (again.jobs, again.more) == ([], False), "they were met already, and nothing has changed"
    assert engine.count(JobFilter(state=State.PENDING)) == {State.PENDING: len(jobs)}


def test_what_becomes_due_after_idle_was_said_is_found_by_the_next_look(engine, clock):
    jobs = stored(engine, in_lanes(clock.now(), crowd_of(engine), due_at=clock.now() + DAY))
    assert given(turns_until_idle(engine, thorough=True)) == []
    clock.advance(days=1)

    assert given(turns_until_idle(engine, thorough=True)) == ids(jobs)


def test_jobs_that_became_due_and_expired_meanwhile_do_not_hide_one_that_is_due(engine, clock):
    now = clock.now()
    stored(engine, in_lanes(now, crowd_of(engine), due_at=now + DAY, expires_at=now + 2 * DAY))
    last = stored(engine, [a_job(now, lane="zzz", due_at=now + 1.5 * DAY)])
    assert given(turns_until_idle(engine)) == []
    clock.advance(days=3)

    assert given(turns_until_idle(engine)) == ids(last)


def test_a_claim_of_any_task_finds_what_was_put_aside_behind_many_tasks_whose_jobs_have_expired(engine, clock):
    now = clock.now()
    stored(engine, [a_job(now, task=f"a{n:03}", expires_at=now + DAY) for n in range(150)])
    job = stored(engine, [a_job(now, task="z")])
    assert given(turns_until_idle(engine, tasks=["another"])) == []
    clock.advance(days=1)

    assert given(turns_until_idle(engine)) == ids(job)


def test_a_worker_that_knows_the_task_finds_what_another_has_put_aside_in_thousands_of_lanes(make_engine, clock):
    stranger, friend = make_engine(), make_engine()
    stranger.migrate()
    jobs = stored(stranger, in_lanes(clock.now(), crowd_of(stranger, 1_000), task="unknown"))
    assert given(turns_until_idle(stranger, tasks=["greet"])) == []

    assert given(turns_until_idle(friend, thorough=True, tasks=["greet", "unknown"])) == ids(jobs)


def test_idle_of_one_engine_counts_what_another_has_stored_meanwhile(make_engine, clock):
    """A place that an engine remembers from its last claim must not hide what lies before it."""
    first, second = make_engine(), make_engine()
    first.migrate()
    jobs = stored(first, in_lanes(clock.now(), crowd_of(first, 300, 60), name="m"))
    half = [one.id for _ in range(3) for one in first.turn([], a_wish(len(jobs) // 6)).claimed]
    jobs += stored(second, in_lanes(clock.now(), 20, name="a") + in_lanes(clock.now(), 20, name="z"))
    jobs += stored(second, [a_job(clock.now())])

    assert sorted(half + given(turns_until_idle(first))) == ids(jobs)


def test_jobs_that_come_back_from_dead_workers_are_not_hidden_by_an_idle_answer(engine, clock):
    jobs = stored(engine, in_lanes(clock.now(), crowd_of(engine, 300, 60)))
    held = [job for _ in range(10) for job in claim(engine, len(jobs) // 10)]
    assert ids(held) == ids(jobs)
    assert turns_until_idle(engine, thorough=True)[-1].jobs == []
    clock.advance(seconds=LEASE)
    for job in (found := engine.expired(limit=1_000)):
        recover(engine, job)
    assert ids(found) == ids(jobs)

    assert given(turns_until_idle(engine, thorough=True)) == ids(jobs)
