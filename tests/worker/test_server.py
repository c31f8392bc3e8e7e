"""The server behind a worker is not there yet, restarts, or cuts it off: the worker goes on, and no job is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest

from tests.support import provision
from tests.support.provision import Cluster
from tests.support.workbench import all_in, ended, until, working
from treadle import Context, State, Treadle
from treadle.engines.postgres.connection import Connections
from treadle.worker import loop

LEASE = 10.0  # longer than a server takes to come back: no lease runs out, so each job runs once
JOBS = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of our own, to be broken; what it has acknowledged is on disk."""
    with Cluster(synchronous_commit="on") as cluster:
        yield cluster


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: a file is always there."""
    return request.param


@pytest.fixture
def store_url(cluster: Cluster) -> str:
    """A fresh store on that server, which is up again whatever the last test did to it."""
    if not cluster.is_running:
        cluster.start()
    url = f"{cluster.url}?schema=t{uuid4().hex[:20]}"
    app = Treadle(url)
    app.migrate()
    app.close()
    return url


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for the server on its own account: the worker has to."""
    monkeypatch.setattr(Connections, "retry_for", 0.1)


def counting(app: Treadle, runs: Counter[int]) -> None:
    """The tasks of these tests: `count` notes which job ran."""

    @app.task
    def count(ctx: Context, n: int) -> int:
        runs[n] += 1
        return n

    app.register("tick", lambda: "tock")


# -------------------------------------------------------------------------------------- not there yet


@pytest.mark.usefixtures("impatient")
def test_a_worker_started_before_its_server_works_once_it_is_up(
    cluster: Cluster, make_app: Callable[..., Treadle]
) -> None:
    app, feeder = make_app(), make_app()
    app.register("tick", lambda: "tock")
    job = feeder.enqueue("tick", checked=False)
    cluster.stop()
    with working(app, lease=LEASE) as worker:
        worker.thread.join(1.0)
        assert worker.thread.is_alive()
        cluster.start()
        [job] = ended(feeder, job)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "tock", 1)


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_creates_its_tables_itself_may_start_before_a_server_that_never_ran() -> None:
    cluster = Cluster(synchronous_commit="on")
    try:
        app = Treadle(cluster.url, auto_migrate=True)
        app.register("tick", lambda: "tock")
        with working(app, lease=LEASE) as worker:
            worker.thread.join(1.0)
            assert worker.thread.is_alive()
            cluster.start()
            [job] = ended(app, app.enqueue("tick"))
        assert job.result == "tock"
        app.close()
    finally:
        cluster.close()


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_never_met_its_server_stops_when_it_is_told_to(cluster: Cluster, app: Treadle) -> None:
    cluster.stop()
    with working(app, lease=LEASE) as worker:
        worker.thread.join(1.0)
        assert worker.thread.is_alive()
        worker.stop()
        worker.thread.join(20)
        stopped = not worker.thread.is_alive()
        cluster.start()  # should it wait for that, it ends now and disturbs no other test
    assert stopped


# ------------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_worker_outlives_a_restart_of_its_server_under_load(
    cluster: Cluster, make_app: Callable[..., Treadle], mode: provision.StopMode
) -> None:
    app, feeder = make_app(), make_app()
    runs: Counter[int] = Counter()
    counting(app, runs)
    asked: list[str] = []

    def feed() -> None:  # an enqueue outlives a short restart too
        asked.extend(feeder.enqueue("count", {"n": n}, checked=False).id for n in range(JOBS))

    feeding = threading.Thread(target=feed)
    with working(app, lease=LEASE) as worker:
        feeding.start()
        until(lambda: len(runs) > JOBS / 10, "load")
        cluster.restart(mode)
        feeding.join(60)
        until(lambda: feeder.count()[State.SUCCEEDED] == JOBS, lambda: f"{JOBS} successes, but {feeder.count()}")
        assert worker.thread.is_alive()
    assert len(set(asked)) == JOBS
    assert set(runs) == set(range(JOBS))
    assert {(job.failures, job.crashes) for job in all_in(feeder, State.SUCCEEDED)} == {(0, 0)}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_job_that_runs_while_its_server_restarts_ends_once_and_is_written(
    cluster: Cluster, make_app: Callable[..., Treadle], mode: provision.StopMode
) -> None:
    app, other = make_app(), make_app()
    started, release, runs = threading.Event(), threading.Event(), []

    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        started.set()
        assert release.wait(60)
        return "written in the end"

    for each in (app, other):
        each.register("work", work)
    job = app.enqueue("work")
    with working(app, lease=LEASE, name="first"):
        assert started.wait(30)
        with working(other, lease=LEASE, name="second"):
            cluster.stop(mode)
            release.set()  # it ends while there is no server
            cluster.start()
            [job] = ended(app, job)
    assert runs == [1]
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "written in the end", "first")
    assert (job.attempt, job.failures, job.crashes) == (1, 0, 0)


def test_a_worker_told_to_stop_while_its_server_is_down_does_not_wait_for_it_for_ever(
    cluster: Cluster, make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "EXIT_TIMEOUT", 1.0)
    first, second = make_app(), make_app()
    started, release = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert release.wait(60)
        return "nobody heard"

    job = first.register("work", work).enqueue()
    second.register("work", lambda: "second")
    with working(first, lease=2, grace=5) as worker:
        assert started.wait(30)
        cluster.stop("immediate")
        release.set()
        worker.stop()
        worker.thread.join(25)
        assert not worker.thread.is_alive()
    cluster.start()
    with working(second, lease=2):
        [job] = ended(second, job)
    assert (job.result, job.attempt, job.crashes, job.failures) == ("second", 2, 1, 0)


def test_no_acknowledged_job_is_lost_when_the_server_is_killed(
    cluster: Cluster, make_app: Callable[..., Treadle]
) -> None:
    app, feeder = make_app(), make_app()
    runs: Counter[int] = Counter()
    counting(app, runs)
    acknowledged: list[str] = []
    over = threading.Event()

    def feed() -> None:
        while not over.is_set():
            acknowledged.append(feeder.enqueue("count", {"n": len(acknowledged)}, checked=False).id)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        with working(app, lease=LEASE):
            for _ in range(2):
                seen = len(acknowledged)
                until(lambda seen=seen: len(acknowledged) > seen + 50 and len(runs) > 20, "load")
                cluster.kill()
                cluster.start()
            over.set()
            feeding.join(60)
            until(lambda: feeder.count()[State.PENDING] + feeder.count()[State.RUNNING] == 0, "the end of all jobs")
    finally:
        over.set()
        feeding.join(60)
    states = [job and job.state for job in feeder.engine.get(acknowledged)]
    assert set(states) == {State.SUCCEEDED}
    assert len(set(acknowledged)) == len(acknowledged) == feeder.count()[State.SUCCEEDED]


# ----------------------------------------------------------------------------------------- cut off


def test_no_job_is_lost_when_the_server_terminates_connections_under_load(
    cluster: Cluster, make_app: Callable[..., Treadle]
) -> None:
    workers, feeder = [make_app(), make_app()], make_app()
    runs: Counter[int] = Counter()
    for each in workers:
        counting(each, runs)
    over = threading.Event()
    ended_backends = 0

    def terminate() -> None:
        nonlocal ended_backends
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            while not over.wait(0.04):
                rows = connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'treadle'"
                    " order by random() limit 1"
                ).fetchall()
                ended_backends += len(rows)

    terminating = threading.Thread(target=terminate)
    terminating.start()
    try:
        with working(workers[0], lease=LEASE, name="w1"), working(workers[1], lease=LEASE, name="w2"):
            asked = [feeder.enqueue("count", {"n": n}, checked=False) for n in range(JOBS)]
            until(lambda: len(runs) == JOBS and ended_backends > 20, "load and harm")
            over.set()
            terminating.join(30)
            done = ended(feeder, *asked)
    finally:
        over.set()
        terminating.join(30)
    assert {job.state for job in done} == {State.SUCCEEDED}
    assert {(job.failures, job.crashes) for job in done} == {(0, 0)}
    assert set(runs) == set(range(JOBS))
    assert feeder.count()[State.SUCCEEDED] == JOBS
