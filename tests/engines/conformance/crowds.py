"""Stores full of lanes: each scene stocks one, and says which jobs a claim may take there and what it asks for."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests.support.making import LEASE, a_job, claim
from tests.support.sizes import size
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, Turn
from treadle.model import Job, new_id
from treadle.model.records import Pause
from treadle.testing import FakeClock

DAY = timedelta(days=1)
FEW = 50  # jobs that may be taken, where the crowd may not
MAX_TURNS = 400  # claims after which a store that still says "more" will never say anything else


def crowd_of(engine: Engine, many: int = 2_000, on_dynamodb: int = size(80, long=500)) -> int:
    """How many lanes make a crowd on this store; a server that speaks DynamoDB stores some hundred jobs a second."""
    return on_dynamodb if "dynamodb" in type(engine).__module__ else many


def stored(engine: Engine, jobs: Iterable[Job]) -> list[Job]:
    """These jobs as they were stored, all of them new."""
    receipts = engine.enqueue(list(jobs))
    assert all(receipt.created for receipt in receipts)
    return [receipt.job for receipt in receipts]


def in_lanes(now: datetime, number: int, name: str = "lane", **fields: object) -> list[Job]:
    """A job in each of so many lanes."""
    return [a_job(now, **{"lane": f"{name}{n:05}", **fields}) for n in range(number)]


def a_wish(limit: int = 100, **fields: Any) -> Claim:
    return Claim(**{"token": new_id(), "worker": "w1", "limit": limit, "lease": LEASE, **fields})


def paused(engine: Engine, **scope: str) -> Pause:
    pause = Pause(**{"actor": "ann", "at": engine.now(), **scope})  # type: ignore[arg-type]
    assert engine.save(pause, before=None).done
    return pause


def resumed(engine: Engine, pause: Pause) -> None:
    assert engine.drop(pause)


def turns_until_idle(engine: Engine, **wish: Any) -> list[Turn]:
    """Claims, one after the other, up to the first that gives nothing and does not say that there may be more."""
    turns = [engine.turn([], a_wish(**wish))]
    while turns[-1].claimed or turns[-1].more:
        assert len(turns) < MAX_TURNS, f"not idle after {MAX_TURNS} claims"
        turns.append(engine.turn([], a_wish(**wish)))
    return turns


def given(turns: Iterable[Turn]) -> list[str]:
    """The ids of all jobs that these turns gave, sorted."""
    return sorted(one.id for turn in turns for one in turn.claimed)


def ids(jobs: Iterable[Job]) -> list[str]:
    return sorted(job.id for job in jobs)


def by_urgency(jobs: Iterable[Job]) -> list[str]:
    """The ids of these jobs in the order in which a lane gives them."""
    return [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.due_at, job.id))]


# ------------------------------------------------------------------------------------------------ the scenes


class Scene(NamedTuple):
    """Which jobs may be claimed, and what a claim names beside its limit."""

    takeable: list[Job]
    wish: dict[str, Any] = {}  # noqa: RUF012 - never changed


def one_due_job_each(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    return Scene(stored(engine, in_lanes(clock.now(), crowd)))


def future_jobs_only(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    stored(engine, in_lanes(clock.now(), crowd, due_at=clock.now() + DAY, priority=9))
    return Scene(stored(engine, (a_job(clock.now()) for _ in range(FEW))))


def future_jobs_that_became_due(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    jobs = stored(engine, in_lanes(clock.now(), crowd, due_at=clock.now() + DAY))
    assert claim(engine) == []
    clock.advance(days=1)
    return Scene(jobs)


def as_many_unknown_tasks(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    stored(engine, (a_job(clock.now(), task=f"unknown{n}", priority=9) for n in range(crowd // 2)))
    return Scene(stored(engine, (a_job(clock.now()) for _ in range(FEW))), {"tasks": ["greet"]})


def one_unknown_task(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    stored(engine, (a_job(clock.now(), task="unknown", priority=9) for _ in range(crowd // 2)))
    return Scene(stored(engine, (a_job(clock.now()) for _ in range(FEW))), {"tasks": ["greet"]})


def an_unknown_task_in_each_lane(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    stored(engine, in_lanes(clock.now(), crowd, task="unknown", priority=9))
    known = in_lanes(clock.now(), FEW, name="lane0") + [a_job(clock.now()) for _ in range(FEW)]
    return Scene(stored(engine, known), {"tasks": ["greet"]})


def a_newer_version_in_each_lane(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
    stored(engine, in_lanes(clock.now(), crowd, task_version=2, priority=9))
    known = in_lanes(clock.now(), FEW, name="lane0") + [a_job(clock.now()) for _ in range(FEW)]
    return Scene(stored(engine, known), {"versions": {"greet": 1}})


SCOPES = {"a tenant": {"tenant": "acme"}, "a task": {"task": "render"}, "a queue": {"queue": "mail"}}
QUEUES = ("mail", "default")


def behind_a_pause_of(scope: dict[str, str]) -> Callable[[Engine, FakeClock, int], Scene]:
    def stock(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
        stored(engine, in_lanes(clock.now(), crowd // 2, **scope, priority=9))
        paused(engine, **scope)
        free = in_lanes(clock.now(), FEW, name="lane0") + [a_job(clock.now()) for _ in range(FEW)]
        return Scene(stored(engine, free), {"queues": QUEUES})

    return stock


def resumed_after_a_pause_of(scope: dict[str, str]) -> Callable[[Engine, FakeClock, int], Scene]:
    def stock(engine: Engine, clock: FakeClock, crowd: int) -> Scene:
        pause = paused(engine, **scope)
        jobs = stored(engine, in_lanes(clock.now(), crowd // 2, **scope))
        later = stored(engine, in_lanes(clock.now(), FEW, name="later", **scope, due_at=clock.now() + DAY))
        turns_until_idle(engine, queues=QUEUES)  # they are met behind the pause, and put where claims step over them
        clock.advance(days=1)
        turns_until_idle(engine, queues=QUEUES)
        resumed(engine, pause)
        return Scene(jobs + later, {"queues": QUEUES})

    return stock


SCENES: dict[str, Callable[[Engine, FakeClock, int], Scene]] = {
    "lanes with one due job each": one_due_job_each,
    "lanes with future jobs only": future_jobs_only,
    "lanes whose jobs became due": future_jobs_that_became_due,
    "jobs of as many unknown tasks": as_many_unknown_tasks,
    "jobs of one unknown task": one_unknown_task,
    "lanes full of an unknown task": an_unknown_task_in_each_lane,
    "lanes full of a newer version": a_newer_version_in_each_lane,
    **{f"lanes behind a pause of {what}": behind_a_pause_of(scope) for what, scope in SCOPES.items()},
    **{f"lanes after a pause of {what}": resumed_after_a_pause_of(scope) for what, scope in SCOPES.items()},
}
