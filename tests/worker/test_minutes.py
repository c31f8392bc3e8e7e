"""What workers count by the minute, and a worker that is asked to stop from elsewhere."""

import time
from datetime import timedelta

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import InvalidInput, NotPossible, Retry, Treadle
from treadle.model.records import Drain, Minute
from treadle.model.stats import hour_of
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.minutes import Minutes
from treadle.worker.maintenance.presence import Presence


@any_store
def test_ends_are_counted_by_queue_and_task_with_waits_and_run_times(app: Treadle) -> None:
    greet = app.register("greet", lambda: None)
    nap = app.register("nap", lambda: time.sleep(0.05), queue="slow")
    fail = app.register("fail", lambda: 1 / 0, retry=Retry(max_attempts=2, base=0, jitter=0))
    jobs = [greet.enqueue(), greet.enqueue(), nap.enqueue(), fail.enqueue()]
    with working(app, queues=["default", "slow"]):
        ended(app, *jobs)
    stats = app.stats("5m")
    counted = {(one.queue, one.task): (one.succeeded, one.failed, one.retrying) for one in stats.tasks}
    assert counted == {("default", "greet"): (2, 0, 0), ("slow", "nap"): (1, 0, 0), ("default", "fail"): (0, 1, 1)}
    assert (stats.total.succeeded, stats.total.failed, stats.total.retrying) == (3, 1, 1)
    [slow] = [one for one in stats.tasks if one.task == "nap"]
    assert slow.run.p50 is not None
    assert 0.05 <= slow.run.p50 < 5
    assert slow.wait.p99 is not None
    assert sum(minute.succeeded for minute in stats.minutes) == 3
    assert app.stats("5m", task="nap").total.succeeded == 1
    assert app.stats("5m", queue="default").total.succeeded == 2


@pytest.mark.parametrize("span", ["10s", "8d", -1, "soon"])
def test_a_span_that_is_not_kept_is_refused(app: Treadle, span: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        app.stats(span)
    assert caught.value.field == "span"


def test_minutes_are_deleted_after_a_week(app: Treadle) -> None:
    now = app.engine.now()
    ages = (timedelta(minutes=1), timedelta(days=6, hours=23), timedelta(days=7, hours=2), timedelta(days=8, hours=20))
    for age in ages:
        app.engine.save(Minute(hour_of(now - age), 7, "w1", {}), before=None)
    Minutes(app.engine, WorkerConfig(name="w1")).prune()
    assert {minute.hour for minute in app.engine.records(Minute)} == {hour_of(now - age) for age in ages[:2]}


@any_store
def test_a_worker_that_is_drained_finishes_what_it_runs_and_ends(app: Treadle) -> None:
    app.register("greet", lambda: time.sleep(0.3))
    app.settings = app.settings.model_copy(update={"heartbeat": 0.1})
    with working(app, name="old", grace=30) as worker:
        until(lambda: [one.name for one in app.workers()] == ["old"], "the worker is on the list")
        job = app.enqueue("greet")
        until(lambda: app.get(job.id).worker, "it was claimed")
        app.drain("old", actor="ada", reason="deploy")
        worker.thread.join(30)
        assert not worker.thread.is_alive()
        [done] = ended(app, job)
    assert done.state == "succeeded"
    assert app.workers() == []
    assert app.engine.records(Drain) == []


def test_a_worker_that_starts_later_does_not_obey_an_old_request(app: Treadle) -> None:
    greet = app.register("greet", lambda: None)
    app.settings = app.settings.model_copy(update={"heartbeat": 0.1})
    long_ago = app.engine.now().replace(year=2020)
    app.engine.save(Drain("w1", "ada", "", long_ago, long_ago), before=None)
    with working(app, name="w1") as worker:
        ended(app, greet.enqueue())
        seen = app.workers()[0].seen_at
        until(lambda: app.workers()[0].seen_at > seen or worker.thread.is_alive(), "another heartbeat")
        ended(app, greet.enqueue())


def test_only_a_live_worker_can_be_drained(app: Treadle) -> None:
    with pytest.raises(NotPossible, match="no live worker is called 'w9'; alive: none"):
        app.drain("w9")


def test_a_request_to_a_worker_that_was_killed_does_not_stop_the_next_one_of_its_name(app: Treadle) -> None:
    stopped: list[str] = []

    def presence(who: str) -> Presence:
        config = WorkerConfig(name="w", heartbeat=0.1)
        return Presence(app.engine, config, dict, lambda: 0, drain=lambda: stopped.append(who))

    killed = presence("killed")
    killed.beat()
    app.drain("w")
    until(lambda: not app.workers(), "its row is too old")
    following = presence("following")
    following.beat()
    following.beat()
    assert stopped == []
    assert app.engine.records(Drain) == []
    app.drain("w")
    following.beat()
    assert stopped == ["following"]
