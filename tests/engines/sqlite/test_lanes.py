"""Many lanes: a claim costs the same beside ten and beside twenty thousand, and every lane has its turn."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.engines.sqlite.counting import insert, steps
from tests.support.making import LEASE, a_job, an_error, claim, enqueued, write
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.sqlite import claim as claiming
from treadle.engines.values import Claim, JobFilter
from treadle.model import State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Snoozed
from treadle.model.records import Pause
from treadle.model.retry import Retry
from treadle.testing import FakeClock

FEW, MANY = 10, 20_000
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def engine(clock: FakeClock) -> Iterator[Engine]:
    """In memory, where reads and writes share one connection, so that one counter sees all of them."""
    engine = connect("sqlite://", clock=clock.now)
    yield engine
    engine.close()


def lane(number: int) -> str:
    return f"customer-{number:06}"


def backlogged(engine: Engine, number: int) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index % number)) for index in range(MANY)])


def future(engine: Engine, number: int) -> None:
    later = engine.now() + DAY
    engine.enqueue([a_job(engine.now(), lane=lane(index % number), due_at=later) for index in range(MANY)])


def future_by_plain_sql(engine: Engine, number: int) -> None:
    later = engine.now() + DAY
    insert(engine, (a_job(engine.now(), lane=lane(index % number), due_at=later) for index in range(MANY)))


def retried(engine: Engine, number: int) -> None:
    fields = {"task": "failing", "retry": Retry(max_attempts=2, base=86_400.0, jitter=0.0)}
    engine.enqueue([a_job(engine.now(), lane=lane(index % number), **fields) for index in range(MANY)])
    end(engine, Failed(an_error(engine.now())), tasks=["failing"])


def snoozed(engine: Engine, number: int) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index % number), task="slow") for index in range(MANY)])
    end(engine, Snoozed(86_400.0), tasks=["slow"])


def of_one_unknown_task(engine: Engine, number: int) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index % number), task="unknown") for index in range(MANY)])


def of_unknown_tasks(engine: Engine, number: int) -> None:
    engine.enqueue([a_job(engine.now(), task=f"unknown_{index % number}") for index in range(MANY)])


def of_unknown_tasks_in_lanes(engine: Engine, number: int) -> None:
    jobs = ((lane(index % number), f"unknown_{index % number}") for index in range(MANY))
    engine.enqueue([a_job(engine.now(), lane=name, task=task) for name, task in jobs])


def paused(pause: Pause, **fields: str) -> Callable[[Engine, int], None]:
    def fill(engine: Engine, number: int) -> None:
        engine.save(pause.evolve(at=engine.now()), before=None)
        engine.enqueue([a_job(engine.now(), lane=lane(index % number), **fields) for index in range(MANY)])

    return fill


def expired(engine: Engine, number: int) -> None:
    """The jobs that recovery has not come to yet."""
    over = engine.now()
    engine.enqueue([a_job(over, lane=lane(index % number), expires_at=over) for index in range(MANY)])


CROWDS = {
    "backlogged": backlogged,
    "future only": future,
    "future only, by plain SQL": future_by_plain_sql,
    "future only, by retries": retried,
    "future only, by snoozes": snoozed,
    "expired": expired,
    "of one unknown task": of_one_unknown_task,
    "of as many unknown tasks, without lanes": of_unknown_tasks,
    "of as many unknown tasks": of_unknown_tasks_in_lanes,
    "paused by task": paused(Pause(task="stopped"), task="stopped"),
    "paused by queue": paused(Pause(queue="stopped"), queue="stopped"),
    "paused by tenant": paused(Pause(tenant="stopped"), tenant="stopped"),
    "paused by a task of a tenant": paused(Pause(tenant="stopped", task="slow"), tenant="stopped", task="slow"),
}


def costs(engine: Engine, crowd: Callable[[Engine, int], None], number: int) -> dict[str, int]:
    """Steps of a claim of ten, and of a look that finds nothing, beside so many lanes; what is met once, is met."""
    wish = {"queues": ["default", "stopped"], "tasks": ["greet", "stopped", "slow"]}
    crowd(engine, number)
    claim(engine, 1, thorough=True, **wish)
    for _ in range(40):
        engine.enqueue([a_job(engine.now())])
        claim(engine, 1, **wish)
    engine.enqueue([a_job(engine.now()) for _ in range(100)])
    found = {"claim": steps(engine, lambda: len(claim(engine, 10, **wish)) == 10)}
    found["look"] = steps(engine, lambda: claim(engine, 10, now=engine.now() - DAY, **wish) == [])
    return found


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_a_claim_costs_the_same_beside_ten_and_beside_twenty_thousand_lanes(
    clock: FakeClock, crowd: Callable[[Engine, int], None]
) -> None:
    few, many = connect("sqlite://", clock=clock.now), connect("sqlite://", clock=clock.now)
    alone, beside = costs(few, crowd, FEW), costs(many, crowd, MANY)
    assert beside["claim"] <= 1.3 * alone["claim"]
    if crowd is not backlogged:  # then a look finds something
        assert beside["look"] <= 1.3 * alone["look"]
    few.close()
    many.close()


def test_twenty_thousand_lanes_with_one_job_each_are_drained_in_full_claims(engine: Engine) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index)) for index in range(MANY)])
    got = [claim(engine, 500) for _ in range(MANY // 500)]
    assert [len(jobs) for jobs in got] == [500] * (MANY // 500)
    assert len({job.lane for jobs in got for job in jobs}) == MANY
    assert claim(engine, thorough=True) == []


def test_lanes_take_turns_from_claim_to_claim(engine: Engine) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index)) for index in range(100) for _ in range(5)])
    got = [job.lane for _ in range(50) for job in claim(engine, 6)]
    assert Counter(Counter(got).values()) == {3: 100}


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_neither_lanes_nor_the_jobs_without_one_nor_a_queue_starve(engine: Engine, limit: int) -> None:
    places = [(queue, name) for queue in ("default", "mail") for name in ("", "a", "b", "c")]
    for queue, name in places:
        engine.enqueue([a_job(engine.now(), queue=queue, lane=name) for _ in range(200)])
    claims = [claim(engine, limit, queues=["default", "mail"]) for _ in range(160 // limit)]
    got = [(job.queue, job.lane) for jobs in claims for job in jobs]
    assert {*got} == {*places}
    assert min(Counter(got).values()) >= 10


def test_named_lanes_take_turns_too(engine: Engine) -> None:
    for name in ("", "a", "b", "c"):
        engine.enqueue([a_job(engine.now(), lane=name) for _ in range(20)])
    got = Counter(job.lane for _ in range(30) for job in claim(engine, 1, lanes=["c", "", "a"]))
    assert set(got) == {"", "a", "c"}
    assert min(got.values()) >= 5


def test_lanes_that_are_not_taken_up_by_many_others_are_served_soon(engine: Engine) -> None:
    engine.enqueue([a_job(engine.now(), lane=lane(index)) for index in range(300) for _ in range(20)])
    late = enqueued(engine, lane="zz")
    claims = [claim(engine, 10) for _ in range(31)]
    assert late.id in {job.id for jobs in claims for job in jobs}


# --------------------------------------------------------------------------------- jobs whose time has come


def test_laned_jobs_are_found_the_moment_they_are_due_in_the_order_of_their_lane(
    engine: Engine, clock: FakeClock
) -> None:
    urgent = enqueued(engine, lane="a", priority=5, due_at=clock.now() + HOUR)
    soon = enqueued(engine, lane="a", due_at=clock.now() + HOUR / 2)
    clock.advance(minutes=30)
    now_due = enqueued(engine, lane="a")
    assert [job.id for job in claim(engine, 1)] == [soon.id]
    clock.advance(minutes=30)
    assert [job.id for job in claim(engine, 1)] == [urgent.id]
    assert [job.id for job in claim(engine)] == [now_due.id]


def test_more_lanes_become_due_at_once_than_one_claim_marks(engine: Engine, clock: FakeClock) -> None:
    number = 3 * claiming.MAX_RIPENED
    engine.enqueue([a_job(clock.now(), lane=lane(index), due_at=clock.now() + HOUR) for index in range(number)])
    clock.advance(hours=1)
    turn = engine.turn([], Claim(new_id(), "w", 10, LEASE, tasks=["none"]))
    assert (turn.jobs, turn.more) == ([], True)
    claimed = [len(claim(engine, 500)) for _ in range(3)]
    assert claimed == [500] * 3


def test_a_thorough_claim_sees_all_that_has_become_due(engine: Engine, clock: FakeClock) -> None:
    number = 3 * claiming.MAX_RIPENED
    later = clock.now() + HOUR
    engine.enqueue([a_job(clock.now(), lane=lane(index), task="unknown", due_at=later) for index in range(number)])
    ours = enqueued(engine, lane="zz", due_at=later + HOUR)
    clock.advance(hours=2)
    turn = engine.turn([], Claim(new_id(), "w", 10, LEASE, tasks=["greet"], thorough=True))
    assert ([job.id for job in turn.jobs], turn.more) == ([ours.id], False)


def test_a_claim_that_went_round_part_of_the_lanes_says_that_there_may_be_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "MAX_SCANS", 2)
    engine.enqueue([a_job(engine.now(), lane=lane(index), task="unknown") for index in range(200)])
    ours = enqueued(engine, lane="zz")
    turns = [engine.turn([], Claim(new_id(), "w", 2, LEASE, tasks=["greet"]))]
    while turns[-1].more:
        assert len(turns) < 50
        turns.append(engine.turn([], Claim(new_id(), "w", 2, LEASE, tasks=["greet"])))
    assert [job.id for turn in turns for job in turn.jobs] == [ours.id]
    assert len(turns) > 1


@pytest.mark.parametrize("pause", [None, Pause(tenant="acme")], ids=["by task", "behind a pause"])
def test_parked_lanes_whose_jobs_have_expired_come_to_an_end(
    engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, pause: Pause | None
) -> None:
    monkeypatch.setattr(claiming, "MAX_SCANS", 2)
    monkeypatch.setattr(claiming, "MAX_PARKED", 5)
    fields = {"task": "render", "tenant": "acme"}
    over = clock.now() + HOUR
    engine.enqueue([a_job(clock.now(), lane=lane(index), expires_at=over, **fields) for index in range(100)])
    ours = enqueued(engine, lane="zz", **fields)
    if pause:
        engine.save(pause.evolve(at=clock.now()), before=None)
    assert claim(engine, tasks=["render"] if pause else ["greet"], thorough=True) == []
    if pause:
        engine.drop(pause.evolve(at=clock.now()))
    clock.advance(hours=1)
    turns = [engine.turn([], Claim(new_id(), "w", 2, LEASE, tasks=["render"]))]
    while turns[-1].more:
        assert len(turns) < 100
        turns.append(engine.turn([], Claim(new_id(), "w", 2, LEASE, tasks=["render"])))
    assert [job.id for turn in turns for job in turn.jobs] == [ours.id]


def test_an_expired_job_that_a_claim_met_is_expired_by_recovery_or_found_once_it_is_replaced(
    engine: Engine, clock: FakeClock
) -> None:
    first, second = (enqueued(engine, lane=name, expires_at=clock.now() + HOUR) for name in ("a", "b"))
    clock.advance(hours=1)
    assert claim(engine, thorough=True) == []
    assert {job.id for job in engine.expired(limit=10)} == {first.id, second.id}
    write(engine, lifecycle.expire(first, clock.now(), actor="w"))
    write(engine, lifecycle.replace(second, a_job(clock.now(), lane="b"), clock.now(), actor="op"))
    assert [found.id for found in claim(engine)] == [second.id]
    assert [job.id for job in engine.find(JobFilter(state=State.CANCELLED), limit=2).jobs] == [first.id]


def test_a_revived_and_a_replaced_job_of_a_lane_are_found(engine: Engine, clock: FakeClock) -> None:
    job = enqueued(engine, lane="a", due_at=clock.now() + HOUR)
    write(engine, lifecycle.replace(job, a_job(clock.now(), lane="b"), clock.now(), actor="op"))
    [replaced] = claim(engine)
    assert (replaced.id, replaced.lane) == (job.id, "b")
    write(engine, lifecycle.cancel(enqueued(engine, lane="c"), clock.now(), actor="op"))
    [cancelled] = engine.find(JobFilter(state=State.CANCELLED), limit=1).jobs
    write(engine, lifecycle.retry(cancelled, clock.now(), actor="op"))
    assert [found.id for found in claim(engine)] == [cancelled.id]


def test_a_job_that_is_put_off_by_replacing_it_is_found_when_it_is_due(engine: Engine, clock: FakeClock) -> None:
    job = enqueued(engine, lane="a")
    later = a_job(clock.now(), lane="a", due_at=clock.now() + HOUR)
    write(engine, lifecycle.replace(job, later, clock.now(), actor="op"))
    assert claim(engine) == []
    clock.advance(hours=1)
    assert [found.id for found in claim(engine)] == [job.id]


def end(engine: Engine, outcome: lifecycle.Outcome, **fields: object) -> None:
    """Claim all jobs of these tasks and end their attempts like this."""
    while jobs := claim(engine, 1000, **fields):
        engine.turn([lifecycle.settle(job, outcome, engine.now()) for job in jobs])
