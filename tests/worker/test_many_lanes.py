"""A worker run until it is idle leaves no due job behind, beside thousands of lanes, unknown tasks and pauses."""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from tests.engines.conformance.crowds import crowd_of, in_lanes
from tests.support.making import a_job, race
from tests.support.marks import any_store, postgres_only
from treadle import Context, Job, State, Treadle

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)
FEW = 50
QUEUES = ("mail", "default")


def stored(app: Treadle, jobs: Iterable[Job]) -> list[str]:
    """The ids of these jobs, stored."""
    return [receipt.job.id for receipt in app.engine.enqueue(list(jobs))]


def one_due_job_each(app: Treadle, crowd: int) -> list[str]:
    return stored(app, in_lanes(app.engine.now(), crowd))


def future_jobs_only(app: Treadle, crowd: int) -> list[str]:
    now = app.engine.now()
    stored(app, in_lanes(now, crowd, due_at=now + DAY, priority=9))
    return stored(app, (a_job(now) for _ in range(FEW)))


def jobs_of_as_many_unknown_tasks(app: Treadle, crowd: int) -> list[str]:
    now = app.engine.now()
    stored(app, (a_job(now, task=f"unknown{n}", priority=9) for n in range(crowd // 2)))
    return stored(app, (a_job(now) for _ in range(FEW)))


def jobs_of_one_unknown_task(app: Treadle, crowd: int) -> list[str]:
    now = app.engine.now()
    stored(app, (a_job(now, task="unknown", priority=9) for _ in range(crowd // 2)))
    return stored(app, (a_job(now) for _ in range(FEW)))


def an_unknown_task_in_each_lane(app: Treadle, crowd: int) -> list[str]:
    now = app.engine.now()
    stored(app, in_lanes(now, crowd, task="unknown", priority=9))
    return stored(app, in_lanes(now, FEW, name="lane0") + [a_job(now) for _ in range(FEW)])


CROWDS: dict[str, Callable[[Treadle, int], list[str]]] = {
    "lanes with one due job each": one_due_job_each,
    "lanes with future jobs only": future_jobs_only,
    "jobs of as many unknown tasks": jobs_of_as_many_unknown_tasks,
    "jobs of one unknown task": jobs_of_one_unknown_task,
    "lanes full of an unknown task": an_unknown_task_in_each_lane,
}
SCOPES = {"a tenant": {"tenant": "acme"}, "a task": {"task": "render"}, "a queue": {"queue": "mail"}}


@pytest.fixture
def ran(app: Treadle) -> Counter[str]:
    """How often each job was run."""
    runs: Counter[str] = Counter()

    async def note(ctx: Context) -> None:
        runs[ctx.job.id] += 1

    for task in ("greet", "render"):
        app.register(task, note)
    return runs


@any_store
@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_until_idle_leaves_no_due_job_behind_beside(
    app: Treadle, ran: Counter[str], crowd: Callable[[Treadle, int], list[str]]
) -> None:
    due = crowd(app, crowd_of(app.engine))
    app.run_worker(until_idle=True, poll=60.0)
    assert ran == Counter(due)


@postgres_only
def test_until_idle_leaves_no_due_job_behind_where_so_many_lanes_make_a_claim_slow(
    app: Treadle, ran: Counter[str]
) -> None:
    """After a slow claim the next ones continue where it ended, and must not take the rest of the lanes for empty."""
    due = one_due_job_each(app, 6_000)
    app.run_worker(until_idle=True, poll=60.0)
    assert ran == Counter(due)


@any_store
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_until_idle_leaves_what_is_paused_in_hundreds_of_lanes_and_runs_it_when_that_is_over(
    app: Treadle, ran: Counter[str], scope: dict[str, str]
) -> None:
    now, crowd = app.engine.now(), crowd_of(app.engine, 600, 100)
    app.pause(**scope, reason="maintenance")
    stopped = stored(app, in_lanes(now, crowd, **scope, priority=9))
    free = stored(app, in_lanes(now, FEW) + [a_job(now) for _ in range(FEW)])
    app.run_worker(until_idle=True, poll=60.0, queues=QUEUES)
    assert ran == Counter(free)

    app.resume(**scope)
    app.run_worker(until_idle=True, poll=60.0, queues=QUEUES)
    assert ran == Counter(free + stopped)


@any_store
def test_until_idle_with_one_slot_serves_every_lane(app: Treadle, ran: Counter[str]) -> None:
    """Small claims see few lanes each."""
    due = one_due_job_each(app, crowd_of(app.engine, 300, 100))
    app.run_worker(until_idle=True, poll=60.0, concurrency=1)
    assert ran == Counter(due)


@any_store
def test_two_workers_until_idle_run_every_due_job_of_many_lanes_once(
    make_app: Callable[..., Treadle], app: Treadle, ran: Counter[str]
) -> None:
    due = one_due_job_each(app, crowd_of(app.engine, 1_000, 200))
    other = make_app()
    for name, task in app.tasks.items():
        other.register(name, task.handler)

    race(2, lambda place: (app, other)[place].run_worker(until_idle=True, poll=60.0))

    assert ran == Counter(due)
    assert app.count()[State.SUCCEEDED] == len(due)
