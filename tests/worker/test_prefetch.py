"""A worker holds little more than it can start: what waits for a slot here could run elsewhere."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.marks import any_store
from tests.support.workbench import all_in, until, working
from treadle import State, Treadle


def held_by(app: Treadle) -> Counter[str | None]:
    """How many jobs each worker holds."""
    return Counter(job.worker for job in all_in(app, State.RUNNING))


@any_store
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.covers("004-T05.c")
def test_a_worker_of_slow_jobs_holds_no_more_than_it_can_start(make_app: Callable[..., Treadle], kind: str) -> None:
    def plain() -> None:
        time.sleep(0.25)

    async def on_the_loop() -> None:
        await asyncio.sleep(0.25)

    apps = [make_app(), make_app()]
    for each in apps:
        each.register("slow", plain if kind == "plain" else on_the_loop)
    apps[0].tasks["slow"].enqueue_many([()] * 40)
    most: Counter[str | None] = Counter()

    def look() -> bool:
        for name, count in held_by(apps[0]).items():
            most[name] = max(most[name], count)
        return apps[0].count()[State.SUCCEEDED] == 40

    with working(apps[0], concurrency=2, name="first"):
        until(lambda: held_by(apps[0])["first"] >= 2, "the first worker to be busy")
        with working(apps[1], concurrency=2, name="second"):
            until(look, "40 slow jobs")
    assert most["first"] <= 4
    assert most["second"] <= 4
    share = Counter(job.worker for job in all_in(apps[0], State.SUCCEEDED))
    assert share["second"] >= 4
    assert {job.failures for job in all_in(apps[0], State.SUCCEEDED)} == {0}  # given back, perhaps, and then unspent


@any_store
def test_what_a_worker_took_too_much_of_after_a_fast_stretch_it_gives_back(make_app: Callable[..., Treadle]) -> None:
    release, slow_ones = threading.Event(), []

    async def quick() -> None: ...

    def slow() -> None:
        slow_ones.append(1)
        assert release.wait(60)

    first, second = make_app(), make_app()
    for each in (first, second):
        each.register("quick", quick)
        each.register("slow", slow)
    first.tasks["quick"].enqueue_many([()] * 600)
    first.tasks["slow"].enqueue_many([()] * 60)  # behind the quick ones
    with working(first, concurrency=2, name="first", lease=5):
        until(lambda: len(slow_ones) == 2, "the slow jobs")
        with working(second, concurrency=2, name="second", lease=5):
            until(lambda: len(slow_ones) == 4, "slow jobs in the free worker")
            until(lambda: max(held_by(first).values()) <= 4, "the rest to be given back")
        release.set()
        until(lambda: first.count()[State.SUCCEEDED] == 660, "all jobs")
    assert {job.failures for job in all_in(first, State.SUCCEEDED)} == {0}
