"""The numbers of a store and of a worker process, as Prometheus reads them."""

import threading
import urllib.error
from datetime import timedelta
from urllib.request import urlopen

import pytest

from tests.support.marks import any_store
from tests.support.scrape import scrape, value
from tests.support.workbench import ended, until, working
from treadle import ConfigError, Retry, Treadle
from treadle.app.exposition import Histogram, exposition
from treadle.app.metrics import StoreMetrics
from treadle.app.process_metrics import metrics_of
from treadle.cli.metrics_server import metrics_server
from treadle.model.records import Minute, Schedule
from treadle.model.stats import Counts, bucket, hour_of
from treadle.testing import FakeClock
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.minutes import Minutes


def minute(app: Treadle, worker: str, **ends: int) -> Minute:
    """The record of this minute, as a worker writes it."""
    now = app.engine.now()
    counts = {"ends": ends, "waits": {}, "runs": {"40": 1}}
    return Minute(hour_of(now), now.minute, worker, {"mail": {"send": counts}})


def store(app: Treadle, *records: Minute) -> None:
    from treadle.engines.values import OVERWRITE

    for record in records:
        app.engine.save(record, before=OVERWRITE)


@any_store
def test_ends_are_a_counter_that_only_grows_while_minutes_come_and_go(app: Treadle, clock: FakeClock) -> None:
    metrics = StoreMetrics()

    def total(outcome: str) -> float | None:
        found = scrape(metrics.exposition(app))
        return value(found, "treadle_jobs_ended_total", queue="mail", task="send", outcome=outcome)

    assert total("succeeded") is None
    store(app, minute(app, "w1", succeeded=3))
    assert total("succeeded") == 3
    assert total("succeeded") == 3
    store(app, minute(app, "w1", succeeded=5, failed=1), minute(app, "w2", succeeded=1))
    assert (total("succeeded"), total("failed"), total("retrying")) == (6, 1, 0)
    clock.advance(minutes=70)  # two hours of the clock later, and nobody has looked meanwhile
    late = minute(app, "w1", succeeded=2)
    store(app, late)
    assert (total("succeeded"), total("failed")) == (8, 1)
    app.engine.drop(late)
    assert total("succeeded") == 8
    metrics = StoreMetrics()  # another server begins at 0 with what was there
    store(app, late)
    assert total("succeeded") == 0


@any_store
def test_what_waits_who_works_and_what_is_overdue_is_measured(app: Treadle, clock: FakeClock) -> None:
    app.register("send", lambda: None, queue="mail")
    app.enqueue("send", {})
    app.enqueue("send", {}, run_after="1h")
    created = clock.now()
    app.engine.save(
        Schedule("nightly", "send", created, every=3600.0, next_at=created + timedelta(seconds=30)), before=None
    )
    clock.advance(seconds=80)
    found = scrape(StoreMetrics().exposition(app))
    assert value(found, "treadle_schedules_overdue") == 0
    assert value(found, "treadle_jobs_waiting", queue="mail", task="send") == 2
    assert value(found, "treadle_jobs_due", queue="mail", task="send") == 1
    assert value(found, "treadle_oldest_due_seconds", queue="mail") == pytest.approx(80, abs=0.01)
    assert value(found, "treadle_workers") == 0
    assert value(found, "treadle_problems") == 2  # a job and a schedule wait, and no worker is alive
    clock.advance(seconds=20)
    assert value(scrape(StoreMetrics().exposition(app)), "treadle_schedules_overdue") == 1


def test_quantiles_are_of_the_last_five_minutes(app: Treadle, clock: FakeClock) -> None:
    store(app, minute(app, "w1", succeeded=1))
    found = scrape(StoreMetrics().exposition(app))
    labels = {"queue": "mail", "task": "send", "quantile": "0.95"}
    assert value(found, "treadle_run_seconds", **labels) == pytest.approx(0.1024)
    assert value(found, "treadle_wait_seconds", **labels) is None
    clock.advance(minutes=7)
    assert value(scrape(StoreMetrics().exposition(app)), "treadle_run_seconds", **labels) is None


def test_a_histogram_has_every_time_at_or_below_its_edge() -> None:
    times = [0.00005, 0.0001, 0.0004, 0.00041, 1.5, 100_000.0]
    counts = Counts()
    for seconds in times:
        counts.note("succeeded", None, seconds)
    found = scrape(exposition([Histogram("h", "Help.", [({"task": "t"}, counts.runs)])]))
    edges = {float(dict(labels)["le"]): number for (name, labels), number in found.items() if name == "h_bucket"}
    assert len(edges) == 15
    assert edges.pop(float("inf")) == 6
    assert all(number == sum(bucket(one) <= bucket(edge) for one in times) for edge, number in edges.items())
    assert value(found, "h_count", task="t") == 6
    assert sum(times) <= value(found, "h_sum", task="t") <= 1.2 * sum(times)


def test_a_worker_process_counts_what_it_claims_and_ends(app: Treadle) -> None:
    blocked, go = threading.Event(), threading.Event()

    @app.task(retry=Retry(2, 0, 0, 0))
    def boom() -> None:
        raise ValueError

    @app.task(queue="slow")
    def nap() -> None:
        blocked.set()
        go.wait(10)

    jobs = [boom.enqueue() for _ in range(3)]
    with (
        working(app, queues=["default", "slow"], concurrency=4) as worker,
        metrics_server(lambda: metrics_of(worker), "127.0.0.1", 0) as url,
    ):
        ended(app, *jobs)
        last = nap.enqueue()
        assert blocked.wait(10)
        until(lambda: worker.measured().held == 1, "all else is settled")
        with urlopen(url) as answer:  # noqa: S310 - our own address
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            found = scrape(answer.read().decode())
        go.set()
        ended(app, last)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urlopen(url.replace("/metrics", "/"))  # noqa: S310 - our own address
    assert value(found, "treadle_process_slots") == 4
    assert value(found, "treadle_process_running") == 1
    assert value(found, "treadle_process_claimed_total") == 7
    ends = {"retrying": 3, "failed": 3, "succeeded": 0, "cancelled": 0}
    for outcome, number in ends.items():
        labels = {"queue": "default", "task": "boom", "outcome": outcome}
        assert value(found, "treadle_process_ended_total", **labels) == number
    assert value(found, "treadle_process_run_seconds_count", queue="default", task="boom") == 6
    assert 0 <= value(found, "treadle_process_heartbeat_age_seconds") < 30
    with pytest.raises(OSError, match="refused"):
        urlopen(url)  # noqa: S310 - our own address


def test_totals_of_a_process_do_not_fall_when_a_minute_is_over(app: Treadle, clock: FakeClock) -> None:
    counted = Minutes(app.engine, WorkerConfig(name="w1"))
    for _ in range(3):
        counted._open[clock.now().replace(second=0, microsecond=0)] = {("q", "t"): (counts := Counts())}
        counts.note("succeeded", 0.1, 0.2)
        before = counted.totals()["q", "t"].ends["succeeded"]
        counted.write()
        assert counted.totals()["q", "t"].ends["succeeded"] == before
        clock.advance(minutes=1)
    assert before == 3
    assert len(counted._open) == 1


def test_a_client_that_sends_nothing_does_not_keep_others_waiting(app: Treadle) -> None:
    import socket

    with metrics_server(lambda: metrics_of(app.worker()), "127.0.0.1", 0) as url:
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)), urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            assert b"treadle_process_slots 10" in answer.read()
        with pytest.raises(ConfigError, match=f"metrics_port: cannot listen on 127.0.0.1:{port}"):
            metrics_server(lambda: metrics_of(app.worker()), "127.0.0.1", port).__enter__()


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("", "metrics_host: is empty"),
        ("a" * 70, "metrics_host: 'aaa"),
        ("a\0b", "metrics_host: "),
        ("2001:db8::1", r"cannot listen on \[2001:db8::1\]:0: Cannot assign"),  # an address, though not one of ours
    ],
)
def test_an_address_that_metrics_cannot_have_is_refused_by_its_name(app: Treadle, host: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        metrics_server(list, host, 0).__enter__()


def test_a_worker_that_has_not_started_has_metrics_too(app: Treadle) -> None:
    assert scrape(exposition(metrics_of(app.worker())))
