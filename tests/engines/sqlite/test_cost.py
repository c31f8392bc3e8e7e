"""Promise 8, counted and not timed: the steps of SQLite's virtual machine, and the plans of its queries."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.engines.sqlite.counting import insert, plans, steps
from tests.support.making import a_job, an_error, claim, enqueued
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Retention, Ruling
from treadle.model import Job, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Snoozed, Succeeded
from treadle.model.records import ANY, Pause, Schedule
from treadle.model.retry import Retry
from treadle.testing import FakeClock

MANY = size(5_000, long=20_000)
HOUR = timedelta(hours=1)


@pytest.fixture
def engine(clock: FakeClock) -> Iterator[Engine]:
    """In memory, where reads and writes share one connection, so that one counter sees all of them."""
    engine = connect("sqlite://", clock=clock.now)
    yield engine
    engine.close()


def finished(job: Job) -> Job:
    return job.evolve(state=State.SUCCEEDED, finished_at=job.created_at, attempt=1, revision=2, lease_token=new_id())


def running(job: Job) -> Job:
    return job.evolve(state=State.RUNNING, lease_until=job.created_at + HOUR, lease_token=new_id(), worker="other")


CROWDS: dict[str, Callable[[Job], Job]] = {
    "future jobs of a higher priority": lambda job: job.evolve(priority=9, due_at=job.due_at + HOUR),
    "future jobs of the same priority": lambda job: job.evolve(due_at=job.due_at + HOUR),
    "jobs of a lower priority": lambda job: job.evolve(priority=-9),
    "finished jobs": finished,
    "running jobs": running,
    "jobs of another queue": lambda job: job.evolve(queue="another"),
    "jobs of a queue before it": lambda job: job.evolve(queue="a"),
    "future jobs of another lane": lambda job: job.evolve(lane="a", due_at=job.due_at + HOUR),
    "pending jobs of the same queue": lambda job: job,
}


@pytest.fixture(scope="module", params=CROWDS)
def costs(request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[int, int]]]:
    """Steps of each kind of work: alone, and beside twenty thousand of this crowd."""
    clock = FakeClock()
    engine = connect("sqlite://", clock=clock.now)
    crowd = CROWDS[request.param]
    insert(engine, [crowd(a_job(clock.now()))])  # one of each lane and priority is there from the start
    alone = measured(engine)
    insert(engine, (crowd(a_job(clock.now())) for _ in range(MANY)))
    beside = measured(engine)
    yield {work: (alone[work], beside[work]) for work in alone}
    engine.close()


def measured(engine: Engine) -> dict[str, int]:
    now = engine.now()
    engine.enqueue([a_job(now, priority=5) for _ in range(10)])
    claiming = steps(engine, lambda: len(claim(engine, 10)) == 10)
    looking = steps(engine, lambda: claim(engine, 10, now=now - HOUR) == [])  # when nothing was due yet
    engine.enqueue([a_job(now, priority=5) for _ in range(20)])
    jobs = claim(engine, 20)
    holds = [Lease(job.id, job.lease_token or "") for job in jobs[:10]]
    changes = [lifecycle.settle(job, Succeeded(), now) for job in jobs[10:]]
    return {
        "claim": claiming,
        "look": looking,
        "renew": steps(
            engine, lambda: {held.renewal for held in engine.extend(holds, lease=30.0)} == {Renewal.RENEWED}
        ),
        "settle": steps(engine, lambda: {said.ruling for said in engine.turn(changes).verdicts} == {Ruling.APPLIED}),
        "enqueue": steps(engine, lambda: len(engine.enqueue([a_job(now, queue="more") for _ in range(10)])) == 10),
    }


@pytest.mark.parametrize("work", ["claim", "look", "renew", "settle", "enqueue"])
def test_work_costs_the_same_beside_twenty_thousand(costs: dict[str, tuple[int, int]], work: str) -> None:
    alone, beside = costs[work]
    assert alone > 0
    assert beside <= 1.3 * alone


def test_a_repeated_claim_finds_its_jobs_by_its_token(engine: Engine) -> None:
    wish = Claim(new_id(), "w1", 10, 30.0)
    engine.enqueue([a_job(engine.now()) for _ in range(10)])
    first = engine.turn([], wish).jobs
    alone = steps(engine, lambda: engine.turn([], wish).jobs == first)
    insert(engine, (running(a_job(engine.now())) for _ in range(MANY)))
    assert steps(engine, lambda: engine.turn([], wish).jobs == first) <= 1.3 * alone


def test_jobs_of_unknown_tasks_are_met_once(engine: Engine) -> None:
    now = engine.now()
    engine.enqueue([a_job(now) for _ in range(20)])
    alone = steps(engine, lambda: len(claim(engine, 10, tasks=["greet"])) == 10)
    insert(engine, (a_job(now, task="stranger", priority=9) for _ in range(MANY)))
    claim(engine, 1, tasks=["greet"])

    beside = steps(engine, lambda: len(claim(engine, 9, tasks=["greet"])) == 9)

    assert beside <= 1.3 * alone


PAUSES = {
    "a queue": Pause(queue="another"),
    "a task": Pause(task="stopped"),
    "a task of a queue": Pause(queue="default", task="stopped"),
    "a tenant": Pause(tenant="acme"),
    "a task of a tenant": Pause(tenant="acme", task="stopped"),
    "a tenant's part of a queue": Pause(tenant="acme", queue="default"),
}


@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES)
def test_jobs_behind_a_pause_are_met_once(engine: Engine, pause: Pause) -> None:
    now = engine.now()
    engine.save(pause.evolve(at=now), before=None)
    stopped = {name: value for name, value in zip(("tenant", "queue", "task"), pause, strict=False) if value != ANY}
    engine.enqueue([a_job(now) for _ in range(20)])
    insert(engine, [a_job(now, priority=9, **stopped)])
    claim(engine, 1, queues=["default", "another"])
    alone = steps(engine, lambda: len(claim(engine, 9, queues=["default", "another"])) == 9)
    insert(engine, (a_job(now, priority=9, **stopped) for _ in range(MANY)))
    claim(engine, 1, queues=["default", "another"])

    beside = steps(engine, lambda: len(claim(engine, 9, queues=["default", "another"])) == 9)

    assert beside <= 1.3 * alone


def test_a_worker_with_nothing_to_do_behind_a_pause_does_not_write(engine: Engine, clock: FakeClock) -> None:
    engine.save(Pause(tenant="acme", at=clock.now()), before=None)
    engine.enqueue([a_job(clock.now(), tenant="acme") for _ in range(30)])
    claim(engine)

    found = plans(engine, lambda: claim(engine))

    assert [sql for sql in found if not sql.lstrip().startswith("select")] == []


def test_a_list_of_failed_jobs_costs_the_same_beside_twenty_thousand(engine: Engine, clock: FakeClock) -> None:
    failed = [
        finished(a_job(clock.now())).evolve(state=State.FAILED, finished_at=clock.now() + HOUR) for _ in range(20)
    ]
    insert(engine, failed)
    alone = steps(engine, lambda: len(engine.find(JobFilter(state=State.FAILED), limit=10).jobs) == 10)
    insert(engine, (finished(a_job(clock.now())) for _ in range(MANY)))
    insert(engine, (finished(a_job(clock.now())).evolve(state=State.FAILED) for _ in range(MANY)))
    assert steps(engine, lambda: len(engine.find(JobFilter(state=State.FAILED), limit=10).jobs) == 10) <= 1.3 * alone


def test_a_count_with_a_limit_and_its_labels_costs_the_same_beside_any_number(engine: Engine, clock: FakeClock) -> None:
    def look() -> bool:
        found = engine.count(JobFilter(), limit=1000)[State.PENDING]
        return not found.exact and found.of(["scheduled"]) == found == 1000

    later = clock.now() + HOUR
    insert(engine, (a_job(clock.now(), due_at=later) for _ in range(1001)))
    alone = steps(engine, look)
    insert(engine, (a_job(clock.now(), due_at=later) for _ in range(MANY)))
    assert steps(engine, look) <= 1.01 * alone


def test_expired_leases_and_jobs_are_found_at_the_same_cost_beside_twenty_thousand(
    engine: Engine, clock: FakeClock
) -> None:
    insert(engine, (a_job(clock.now(), expires_at=clock.now()) for _ in range(5)))
    insert(engine, (running(a_job(clock.now())).evolve(lease_until=clock.now()) for _ in range(5)))
    alone = steps(engine, lambda: len(engine.expired(limit=100)) == 10)
    insert(engine, (a_job(clock.now()) for _ in range(MANY)))
    insert(engine, (a_job(clock.now(), expires_at=clock.now() + HOUR) for _ in range(MANY)))
    insert(engine, (finished(a_job(clock.now())) for _ in range(MANY)))
    assert steps(engine, lambda: len(engine.expired(limit=100)) == 10) <= 1.3 * alone


# --------------------------------------------------------------------------------------------- the plans


@pytest.fixture(params=["unknown", "analyzed"])
def crowded(engine: Engine, request: pytest.FixtureRequest) -> Engine:
    """Some of everything, with and without the statistics that an operator's `analyze` leaves."""
    for crowd in CROWDS.values():
        insert(engine, (crowd(a_job(engine.now())) for _ in range(300)))
    insert(engine, (finished(a_job(engine.now())).evolve(state=State.FAILED) for _ in range(300)))
    if request.param == "analyzed":
        with engine.file.write() as connection:
            connection.execute("analyze")
    return engine


def test_claims_walk_the_claim_index_and_nothing_else(crowded: Engine) -> None:
    found = plans(crowded, lambda: claim(crowded, 10, tasks=["greet"], queues=["default", "another"]))
    picking = {
        sql: plan
        for sql, plan in found.items()
        if "select lane" in sql or "select priority" in sql or "due_at <=" in sql
    }
    assert len(picking) >= 3
    assert_walked_in_order(picking)
    assert_searched_by_key(found)


def test_claims_behind_a_pause_walk_the_indexes_of_what_is_parked(crowded: Engine, clock: FakeClock) -> None:
    insert(crowded, (a_job(clock.now(), tenant=f"t{number}", task=f"k{number % 7}") for number in range(70)))
    crowded.save(Pause(tenant="t1", at=clock.now()), before=None)
    crowded.save(Pause(task="k3", at=clock.now()), before=None)
    claim(crowded, 2000)
    insert(crowded, (a_job(clock.now()) for _ in range(10)))

    found = plans(crowded, lambda: claim(crowded, 10, tasks=["greet"]))

    stepping = {sql: plan for sql, plan in found.items() if "parked = 1" in sql or "parked = 2" in sql}
    assert {"treadle_jobs_parked_by_task", "treadle_jobs_parked_by_pause"} <= set(
        re.findall(r"treadle_jobs_\w+", " ".join(plan[0] for plan in stepping.values()))
    )
    assert_walked_in_order({sql: plan for sql, plan in stepping.items() if "update" not in sql})
    assert_searched_by_key(found)


def test_settles_of_every_kind_find_their_jobs_by_primary_key(crowded: Engine, clock: FakeClock) -> None:
    now = clock.now()
    enqueued(crowded, priority=50, key="k", key_scope=Scope.ACTIVE)
    crowded.enqueue([a_job(now, priority=50, retry=Retry(max_attempts=2)) for _ in range(5)])
    jobs = claim(crowded, 6)
    waiting = enqueued(crowded)
    changes = [
        lifecycle.settle(jobs[0], Succeeded(), now),
        lifecycle.settle(jobs[1], Failed(an_error(now)), now),
        lifecycle.settle(jobs[2], Snoozed(5), now),
        lifecycle.cancel(jobs[3], now, actor="op"),
        lifecycle.cancel(waiting, now, actor="op"),
        lifecycle.crash(jobs[4], now, actor="reaper"),
    ]
    found = plans(crowded, lambda: crowded.turn(changes))
    assert len(found) >= 6
    assert_searched_by_key(found)
    failed = crowded.find(JobFilter(state=State.FAILED), limit=1).jobs[0]
    assert_searched_by_key(plans(crowded, lambda: crowded.turn([lifecycle.retry(failed, now, actor="op")])))


def test_renewals_and_enqueues_find_their_jobs_by_primary_key(crowded: Engine, clock: FakeClock) -> None:
    [job] = claim(crowded, 1)
    hold = Lease(job.id, job.lease_token or "")
    assert_searched_by_key(plans(crowded, lambda: crowded.extend([hold], lease=30.0)))
    new = [a_job(clock.now()), a_job(clock.now(), key="k", key_scope=Scope.WINDOW, key_until=clock.now() + HOUR)]
    assert_searched_by_key(plans(crowded, lambda: crowded.enqueue(new)))
    assert_searched_by_key(plans(crowded, lambda: crowded.get([job.id])))


def test_expired_is_read_from_the_partial_indexes(crowded: Engine) -> None:
    leases, expiries = plans(crowded, lambda: crowded.expired(limit=10)).values()
    assert "USING INDEX treadle_jobs_lease" in leases[0]
    assert "USING INDEX treadle_jobs_expiry (expires_at<?)" in expiries[0]


@pytest.mark.parametrize("cursor", [None, "1767268800000000:01944d0f-0000-7000-8000-000000000000"])
def test_finished_jobs_are_listed_from_their_index_without_sorting(crowded: Engine, cursor: str | None) -> None:
    look = JobFilter(state=State.FAILED)
    [plan] = plans(crowded, lambda: crowded.find(look, limit=10, cursor=cursor)).values()
    assert any("SEARCH treadle_finished USING INDEX treadle_finished_state (state=?" in line for line in plan)
    assert not any(line.startswith("SCAN treadle_finished") for line in plan)


def test_pruning_walks_the_index_of_finished_jobs(crowded: Engine) -> None:
    found = plans(crowded, lambda: crowded.prune(Retention({State.FAILED: HOUR}), limit=10))
    [plan] = [plan for sql, plan in found.items() if sql.lstrip().startswith("select id, task")]
    assert "treadle_finished_state (state=? AND (finished_at,id)>(?,?) AND finished_at<?)" in plan[0]
    assert "TEMP B-TREE" not in " ".join(plan)


def test_what_may_go_is_found_behind_thousands_that_stay_if_it_is_walked_to_the_end(
    engine: Engine, clock: FakeClock
) -> None:
    stay = 23_000  # more than one call walks through
    for task, number in (("stays", stay), ("goes", 7)):
        insert(engine, (finished(a_job(clock.now(), task=task)) for _ in range(number)))
        clock.advance(seconds=1)
    keep = Retention({}, {"goes": {State.SUCCEEDED: timedelta(0)}})
    assert engine.prune(keep, limit=5) == 0  # and the next call goes on from there
    assert engine.prune(keep, limit=5, to_the_end=True) == 5
    assert engine.prune(keep, limit=5, to_the_end=True) == 2
    assert engine.count(JobFilter()) == {State.SUCCEEDED: stay}


def test_unsealed_lines_are_read_in_order_from_their_index(crowded: Engine, clock: FakeClock) -> None:
    for number in range(300):
        job = crowded.enqueue([a_job(clock.now(), tenant=f"t{number % 3}")])[0].job
        crowded.turn([lifecycle.cancel(job, clock.now(), actor="ann")])
    [plan] = plans(crowded, lambda: crowded.unsealed(limit=10)).values()
    assert "USING INDEX treadle_events_seal (seal=?)" in plan[0]
    assert "TEMP B-TREE" not in " ".join(plan)


def test_due_schedules_are_found_by_their_time(crowded: Engine, clock: FakeClock) -> None:
    later = clock.now() + HOUR
    for number in range(300):
        crowded.save(Schedule(f"s{number}", "greet", clock.now(), every=60.0, next_at=later), before=None)
    [plan] = plans(crowded, lambda: crowded.due(limit=10)).values()
    assert not any(line.startswith("SCAN treadle_schedules") for line in plan)
    assert len([line for line in plan if "USING INDEX treadle_schedules_due" in line]) == 2


def test_costs_are_read_from_an_index_of_what_cost_something(crowded: Engine, clock: FakeClock) -> None:
    [plan] = plans(crowded, lambda: crowded.costs(since=clock.now() - HOUR, until=clock.now())).values()
    assert "USING INDEX treadle_finished_cost (finished_at>? AND finished_at<?)" in plan[0]


# ---------------------------------------------------------------------------------------------- helpers


def assert_walked_in_order(found: dict[str, list[str]]) -> None:
    """Each of these queries goes along an index that begins with the queue, and none sorts."""
    for plan in found.values():
        assert re.search(r"INDEX treadle_jobs_(claim|lanes|later|parked_by_task|parked_by_pause) \(queue=\?", plan[0])
        assert "TEMP B-TREE" not in " ".join(plan)


def assert_searched_by_key(found: dict[str, list[str]]) -> None:
    """No query walks over the jobs, running, waiting or finished: `SCAN j` is how a crowd would be paid for."""
    assert found
    for sql, plan in found.items():
        walks = [line for line in plan if line.startswith("SCAN") and line.split()[1] in BIG]
        assert not walks, f"{walks} in {sql}"


BIG = ("treadle_jobs", "treadle_finished", "treadle_keys", "treadle_events", "j", "f", "k")
