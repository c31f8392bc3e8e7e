"""Beside thousands of lanes: lanes take turns, each gives its jobs in order, and what becomes due is given at once."""

import random
from collections import Counter
from datetime import timedelta

import psycopg
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
from tests.support.making import a_job, an_error, claim, write
from tests.support.marks import postgres_only, sql_stores
from treadle.engines.values import JobFilter, Ruling
from treadle.model import Retry, lifecycle
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
AT_ONCE = 5  # claims within which a due job is given where no other may be taken; each before says that there is more


def claims_until(engine, wanted, most, **wish):
    """How many claims it took until all of these jobs were given; what else they gave is ended at once."""
    missing, done = {job.id for job in wanted}, []
    for number in range(1, most + 1):
        turn = engine.turn(done, a_wish(**wish))
        missing -= {one.id for one in turn.claimed}
        if not missing:
            return number
        done = [lifecycle.settle(job, Succeeded(), engine.now()) for job in turn.jobs]
    raise AssertionError(f"{len(missing)} of {len(wanted)} jobs were not given by {most} claims")


# --------------------------------------------------------------------------------------------- they take turns


@pytest.mark.parametrize("priority", [0, 9], ids=["alike", "more urgent"])
@pytest.mark.parametrize("limit", [1, 20])
def test_a_lane_with_thousands_of_jobs_does_not_starve_lanes_with_one_each(engine, clock, limit, priority):
    check_turns(engine, clock, limit, priority)


@sql_stores  # on DynamoDB lanes that share a range share a turn (docs/dynamodb.md)
@pytest.mark.parametrize("priority", [0, 9], ids=["alike", "more urgent"])
@pytest.mark.parametrize("limit", [1, 20])
def test_nor_does_it_starve_lanes_that_were_there_before_it(engine, clock, limit, priority):
    lanes = crowd_of(engine, 200, 100) if limit > 1 else 30
    stored(engine, in_lanes(clock.now(), lanes))
    claims_until(engine, engine.find(JobFilter(), limit=lanes).jobs, lanes)
    check_turns(engine, clock, limit, priority)


def check_turns(engine, clock, limit, priority):
    """A claim of n serves n lanes, so a round takes lanes / n claims; one round may pass before a lane's turn."""
    lanes = crowd_of(engine, 200, 100) if limit > 1 else 30
    stored(engine, (a_job(clock.now(), lane="lane00010x", priority=priority) for _ in range(crowd_of(engine, 5_000))))
    small = stored(engine, in_lanes(clock.now(), lanes))

    claims_until(engine, small, 2 * (lanes // limit + 1) + 2, limit=limit)


def test_lanes_with_backlogs_get_equal_shares(engine, clock):
    lanes, each = crowd_of(engine, 40, 20), 20
    stored(engine, (a_job(clock.now(), lane=f"l{n % lanes}") for n in range(lanes * each)))

    served = Counter(job.lane for _ in range(lanes) for job in claim(engine, 10))

    assert len(served) == lanes
    assert max(served.values()) <= 2 * 10, f"ten each would be equal: {served}"


@pytest.mark.parametrize("place", ["", "lane00007x", "lane00050x", "zzz"], ids=["no name", "first", "middle", "last"])
@pytest.mark.parametrize("wakes", [True, False], ids=["becomes due", "is new"])
def test_a_lane_that_gets_a_job_beside_backlogged_ones_has_its_turn_within_a_round(engine, clock, place, wakes):
    lanes = crowd_of(engine, 400, 60)
    for _ in range(3):
        stored(engine, in_lanes(clock.now(), lanes))
    ours = [a_job(clock.now(), lane=place, due_at=clock.now() + wakes * HOUR)]
    stored(engine, ours if wakes else [])
    claim(engine, 20)
    clock.advance(hours=1)
    stored(engine, [] if wakes else ours)

    claims_until(engine, ours, 2 * (lanes // 20 + 1) + 2, limit=20)


# -------------------------------------------------------------------------------- what becomes due comes at once


@pytest.mark.parametrize("lane", ["", "lane00000", "lane00100", "lane00100x", "zzz"])
def test_a_job_that_becomes_due_beside_thousands_of_future_ones_is_given_at_once(engine, clock, lane):
    stored(engine, in_lanes(clock.now(), crowd_of(engine), due_at=clock.now() + DAY, priority=9))
    soon = stored(engine, [a_job(clock.now(), lane=lane, due_at=clock.now() + HOUR)])
    assert given(turns_until_idle(engine)) == []
    clock.advance(hours=1)

    turns = turns_until_idle(engine)

    assert given(turns[:AT_ONCE]) == ids(soon)


def test_a_job_that_is_stored_beside_thousands_of_future_ones_is_given_at_once(engine, clock):
    stored(engine, in_lanes(clock.now(), crowd_of(engine), due_at=clock.now() + DAY, priority=9))
    for lane in ("", "lane00000", "lane00100", "new"):
        [job] = stored(engine, [a_job(clock.now(), lane=lane)])

        assert given(engine.turn([], a_wish(5)) for _ in range(2)) == [job.id]


def test_a_job_that_comes_back_beside_thousands_of_future_ones_is_given_again_at_once(engine, clock):
    stored(engine, in_lanes(clock.now(), crowd_of(engine), due_at=clock.now() + DAY, priority=9))
    stored(engine, [a_job(clock.now(), lane="lane00003", retry=Retry(max_attempts=9))])
    for outcome in (Released(), Snoozed(60.0), Failed(an_error(clock.now()), 60.0)):
        [job] = turns_until_idle(engine)[0].jobs
        engine.turn([lifecycle.settle(job, outcome, clock.now())])
        clock.advance(seconds=60)

    assert given(turns_until_idle(engine)[:AT_ONCE]) == [job.id]


# ------------------------------------------------------------------------------------- each lane keeps its order

PRIORITIES = (5, 0, -3)
MINE = "lane00042x"


def mixed(now, number, seed=1, **fields):
    """Jobs of several priorities and due times within the next hour, in no order."""
    dice = random.Random(seed)
    return [
        a_job(now, **{"priority": dice.choice(PRIORITIES), "due_at": now + timedelta(seconds=dice.randint(1, 3_000))})
        .evolve(**fields)
        for _ in range(number)
    ]  # fmt: skip


def by_enqueue(engine, clock, url, number):
    return stored(engine, mixed(clock.now(), number, lane=MINE))


def by_retry_and_snooze(engine, clock, url, number):
    now = clock.now()
    waiting = mixed(now, number, lane=MINE, retry=Retry(max_attempts=9))
    stored(engine, (job.evolve(due_at=now) for job in waiting))
    delays = {job.id: (job.due_at - now).total_seconds() for job in waiting}
    held = claim(engine, number, lanes=[MINE])
    failed = [lifecycle.settle(job, Failed(an_error(now), delays[job.id]), now) for job in held[::2]]
    snoozed = [lifecycle.settle(job, Snoozed(delays[job.id]), now) for job in held[1::2]]
    engine.turn(failed + snoozed)
    return waiting


def by_replace(engine, clock, url, number):
    now = clock.now()
    waiting = mixed(now, number, lane=MINE)
    old = [job.evolve(lane="elsewhere" if n % 2 else MINE, priority=1, due_at=now) for n, job in enumerate(waiting)]
    pairs = zip(stored(engine, old), waiting, strict=True)
    changes = [lifecycle.replace(job, new, now, actor="producer") for job, new in pairs]
    assert {verdict.ruling for verdict in engine.turn(changes).verdicts} == {Ruling.APPLIED}
    return waiting


def by_an_operator(engine, clock, url, number):
    """Cancelled and retried: due from then on, in the order in which that happened."""
    jobs = stored(engine, (job.evolve(due_at=clock.now()) for job in mixed(clock.now(), number, lane=MINE)))
    engine.turn([lifecycle.cancel(job, clock.now(), actor="ann") for job in jobs])
    for job in engine.get([job.id for job in jobs]):
        clock.advance(seconds=1)
        write(engine, lifecycle.retry(job, clock.now(), actor="ann"))
    return engine.get([job.id for job in jobs])


def by_plain_sql(engine, clock, url, number):
    server, _, schema = url.partition("?schema=")
    jobs = mixed(clock.now(), number, lane=MINE)
    rows = [(job.id, job.lane, job.priority, job.due_at) for job in jobs]
    with psycopg.connect(server) as connection, connection.cursor() as cursor:
        insert = f"insert into {schema}.jobs (id, task, lane, priority, due_at) values (%s, 'greet', %s, %s, %s)"
        cursor.executemany(insert, rows)
    return jobs


WAYS = {"enqueue": by_enqueue, "retry": by_retry_and_snooze, "replace": by_replace, "an operator": by_an_operator}


def check_order(engine, clock, url, stock):
    """Claims give the jobs of a lane in order, whichever lanes lie beside it and however these came to wait."""
    stored(engine, in_lanes(clock.now(), crowd_of(engine, 1_000, 100), due_at=clock.now() + DAY, priority=9))
    jobs = stock(engine, clock, url, crowd_of(engine, 150, 60))
    stored(engine, in_lanes(clock.now(), 30, name="beside", due_at=clock.now() + HOUR))
    clock.advance(hours=1)

    got = [one.job() for turn in turns_until_idle(engine, limit=7) for one in turn.claimed]

    assert [job.id for job in got if job.lane == MINE] == by_urgency(jobs)


@pytest.mark.parametrize("stock", WAYS.values(), ids=WAYS)
def test_jobs_that_waited_for_their_time_come_in_order(engine, clock, store_url, stock):
    check_order(engine, clock, store_url, stock)


@postgres_only
def test_jobs_that_plain_sql_stored_for_later_come_in_order(engine, clock, store_url):
    check_order(engine, clock, store_url, by_plain_sql)


LEVELS = 20  # DynamoDB keeps a lane in order while its queue has less than 48 lanes and priorities in use


@pytest.mark.parametrize("lane", ["", MINE])
@pytest.mark.parametrize("spread", [0, 1], ids=["at one moment", "one after the other"])
def test_the_most_urgent_of_thousands_that_became_due_together_comes_first(engine, clock, lane, spread):
    """The last to become due may be the most urgent; no claim may have given others of its lane before."""
    crowd, due = crowd_of(engine, 3_000), clock.now() + HOUR
    jobs = [
        a_job(clock.now(), lane=lane, priority=n % LEVELS, due_at=due + timedelta(milliseconds=spread * n))
        for n in range(crowd)
    ]
    stored(engine, jobs)
    assert claim(engine) == []
    clock.advance(hours=2)

    got = [one.id for _ in range(3) for one in engine.turn([], a_wish(20)).claimed]

    assert got == by_urgency(jobs)[:60]


def test_thousands_that_became_due_in_other_lanes_do_not_change_the_order_of_one(engine, clock):
    crowd, now = crowd_of(engine), clock.now()
    stored(engine, in_lanes(now, crowd, due_at=now + HOUR))
    jobs = [a_job(now, lane=MINE, priority=n, due_at=now + HOUR + timedelta(seconds=n)) for n in range(30)]
    stored(engine, jobs)
    assert claim(engine) == []
    clock.advance(hours=2)

    got = [one.job() for turn in turns_until_idle(engine, limit=50) for one in turn.claimed]

    assert [job.id for job in got if job.lane == MINE] == by_urgency(jobs)
    assert len(got) == crowd + 30


@sql_stores  # on DynamoDB it may lie apart (docs/dynamodb.md)
def test_a_priority_that_is_new_to_an_old_lane_comes_in_order(engine, clock):
    """Wherever the lane was put when it was new, the crowd that came since must not part its jobs."""
    old = stored(engine, (a_job(clock.now(), lane=MINE) for _ in range(3)))
    stored(engine, in_lanes(clock.now(), crowd_of(engine, 500, 100), due_at=clock.now() + DAY))
    new = stored(engine, (a_job(clock.now(), lane=MINE, priority=n) for n in (7, -7, 3)))

    got = [one.id for turn in turns_until_idle(engine, limit=1) for one in turn.claimed]

    assert got == by_urgency(old + new)


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_what_a_pause_held_back_comes_in_order_with_what_was_free_or_became_due_meanwhile(engine, clock, scope):
    now = clock.now()
    queue = scope.get("queue", "default")
    stored(engine, in_lanes(now, crowd_of(engine, 500, 60), due_at=now + DAY, priority=9, queue=queue))
    pause = paused(engine, **scope)
    held = [job.evolve(due_at=now) for job in mixed(now, 20, 2, lane=MINE, **scope)]
    jobs = held + mixed(now, 20, 3, lane=MINE, **scope) + mixed(now, 20, 4, lane=MINE, queue=queue)
    stored(engine, jobs)
    assert given(turns_until_idle(engine, queues=[queue])) == []
    clock.advance(minutes=30)
    early = given(turns_until_idle(engine, queues=[queue]))  # free ones that are due, unless their queue is paused
    clock.advance(minutes=30)
    resumed(engine, pause)

    got = [one.id for turn in turns_until_idle(engine, limit=7, queues=[queue]) for one in turn.claimed]

    assert got == by_urgency(job for job in jobs if job.id not in early)


def test_what_was_put_aside_as_unknown_comes_in_order_with_the_known_for_whoever_knows_both(engine, clock):
    now = clock.now()
    stored(engine, in_lanes(now, crowd_of(engine, 500, 60), due_at=now + DAY, priority=9))
    unknown = [job.evolve(due_at=now) for job in mixed(now, 20, 2, lane=MINE, task="unknown")]
    unknown += [job.evolve(task=f"unknown{n}") for n, job in enumerate(mixed(now, 20, 3, lane=MINE))]
    stored(engine, unknown)
    assert given(turns_until_idle(engine, tasks=["greet"])) == []
    clock.advance(hours=1)
    assert given(turns_until_idle(engine, tasks=["greet"])) == []
    known = stored(engine, (a_job(clock.now(), lane=MINE, priority=n % 7 - 3) for n in range(20)))

    got = [one.id for turn in turns_until_idle(engine, limit=7) for one in turn.claimed]

    assert got == by_urgency(unknown + known)
