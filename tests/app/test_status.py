"""The overview of an app: what waits, what failed, and whether anybody works on it."""

from datetime import timedelta

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from treadle import Retry, State, Treadle
from treadle.app.status import status
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo
from treadle.testing import FakeClock, run_until_idle


def alive(app: Treadle, **fields: object) -> None:
    now = app.engine.now()
    info = WorkerInfo("w1", "box", 7, ["default"], None, {}, 10, 0, False, now, now, 30.0)
    app.engine.save(info._replace(**fields), before=OVERWRITE)


@any_store
def test_the_first_night_at_a_glance(app: Treadle, clock: FakeClock) -> None:
    greet = app.register("greet", lambda: None)
    fail = app.register("fail", lambda: 1 / 0, retry=Retry(max_attempts=2, base=600, jitter=0), queue="bad")
    greet.enqueue_many([(), ()])
    fail.enqueue_many([(), ()])
    run_until_idle(app, queues=("default", "bad"))
    clock.advance(minutes=20)
    assert len(claim(app.engine, 1, queues=["bad"])) == 1
    greet.enqueue()
    greet.using(run_after="1h").enqueue()
    clock.advance(minutes=5)

    found = app.status()

    default = next(group for group in found.queues if group.queue == "default")
    assert (default.waiting, default.due, default.succeeded, default.failed) == (2, 1, 2, 0)
    assert found.at - default.oldest == timedelta(minutes=5)
    bad = next(group for group in found.queues if group.queue == "bad")
    assert (bad.waiting, bad.running) == (1, 1)
    [error] = found.errors
    assert (error.type, error.failed, error.retrying) == ("ZeroDivisionError", 0, 1)
    assert found.total.waiting == 3
    assert found.rate == pytest.approx(2 / 3600)
    assert found.more == []
    assert found.problems == ["2 jobs are due and no worker is alive; start one with `treadle worker`"]
    known = {"greet": 1, "fail": 1}
    alive(app, tasks=known)
    assert app.status().problems == ["1 job is due on queue bad, which no live worker serves"]
    alive(app, tasks=known, queues=["default", "bad"])
    assert app.status().problems == []


def test_a_rate_is_that_of_the_ends_that_were_read(app: Treadle, clock: FakeClock) -> None:
    greet = app.register("greet", lambda: None)
    for _ in range(6):
        greet.enqueue()
        run_until_idle(app)
        clock.advance(seconds=1)
    found = status(app.engine, None, [], limit=4)
    assert found.more == [State.SUCCEEDED]
    assert found.total.succeeded == 4
    assert found.rate == pytest.approx(1.0)


@any_store
def test_doctor_says_how_many_jobs_are_due_that_nobody_works_on(app: Treadle) -> None:
    greet = app.register("greet", lambda: None)
    assert not any("due" in finding.text for finding in app.doctor())
    greet.enqueue_many([()] * 3)
    last = app.doctor()[-1]
    assert (last.level, last.text.partition(";")[0]) == ("error", "3 jobs are due and no worker is alive")
    assert all(finding.level != "error" for finding in app.doctor(workers=False))


def test_jobs_of_a_task_that_no_live_worker_knows_are_a_problem(app: Treadle) -> None:
    app.enqueue("mystery", {}, checked=False)
    alive(app, tasks={"greet": 1})
    assert app.status().problems == ["1 job is due of task mystery, which no live worker knows"]
    alive(app, tasks={"mystery": 1})
    assert app.status().problems == []


def test_overdue_schedules_without_a_worker_are_a_problem(app: Treadle, clock: FakeClock) -> None:
    app.register("report", lambda: None)
    app.schedules.create("hourly", "report", every="1h")
    assert app.status().problems == []
    clock.advance(hours=2)
    assert app.status().problems == ["schedules are overdue and no worker is alive; start one with `treadle worker`"]
    alive(app, tasks={"report": 1})
    assert app.status().problems == []
