"""Behind PgBouncer in transaction mode, where every statement may meet another server connection."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support import provision
from tests.support.making import a_job, an_error, claim, current, enqueued, race, recover, running
from tests.support.provision import Cluster, PgBouncer
from tests.support.workbench import ended, until, working
from treadle import Context, State, Treadle
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Retention, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import Scope, lifecycle, new_id
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.retry import Retry


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pooler(cluster: Cluster) -> Iterator[PgBouncer]:
    with PgBouncer(cluster, default_pool_size="2") as pooler:
        yield pooler


@pytest.fixture
def store_url(cluster: Cluster) -> Iterator[str]:
    """Straight to the server; nothing is in it yet."""
    url = provision.fresh_database(cluster.url)
    yield url
    provision.drop_database(url)


@pytest.fixture
def pooled_url(pooler: PgBouncer, cluster: Cluster, store_url: str) -> str:
    return store_url.replace(f":{cluster.port}/", f":{pooler.port}/")


@pytest.fixture
def pooled(open_engine: Callable[..., PostgresEngine], pooled_url: str) -> PostgresEngine:
    engine = open_engine(pooled_url)
    assert engine.migrate() != []
    assert engine.migrate() == []
    assert engine.check() == []
    return engine


def test_nothing_is_prepared_behind_a_pooler(pooled: PostgresEngine) -> None:
    for _ in range(5):
        enqueued(pooled)
        claim(pooled)

    kept = pooled.server.run(lambda c: c.execute("select count(*) from pg_prepared_statements").fetchall())
    assert kept == [(0,)]


def test_a_new_connection_to_a_full_pooler_keeps_to_the_timeout_of_the_call(
    open_engine: Callable[..., PostgresEngine], pooled: PostgresEngine, pooled_url: str
) -> None:
    """A lease is renewed within a few seconds, or it is too late."""
    with psycopg.connect(pooled_url) as one, psycopg.connect(pooled_url) as two:
        for busy in (one, two):  # all that the pooler has
            busy.execute("select 1")
        began = time.monotonic()
        with pytest.raises(EngineUnavailable):
            open_engine(pooled_url).server.run(lambda c: c.execute("select 1"), answer_timeout=1.0)
        assert time.monotonic() - began < 5


def test_an_engine_lives_its_whole_life_behind_a_pooler(pooled: PostgresEngine) -> None:
    now = pooled.now()
    plain = enqueued(pooled, priority=9)
    prompt = Retry(max_attempts=3, base=0, cap=0, jitter=0)
    keyed = enqueued(pooled, key="k", key_scope=Scope.PENDING, retry=prompt)
    [second] = pooled.enqueue([a_job(now, key="k", key_scope=Scope.PENDING)])
    assert (second.created, second.job.id) == (False, keyed.id)
    receipts = pooled.enqueue([a_job(now, task="bulk") for _ in range(50)])
    assert all(receipt.created for receipt in receipts)

    held = claim(pooled, 2, tasks=["greet"])
    assert [job.id for job in held] == [plain.id, keyed.id]
    answers = pooled.extend([Lease(job.id, job.lease_token or "") for job in held], lease=60.0)
    assert [answer.renewal for answer in answers] == [Renewal.RENEWED] * 2
    changes = [
        lifecycle.settle(held[0], Succeeded('"done"'), pooled.now()),
        lifecycle.settle(held[1], Failed(an_error(now)), pooled.now()),  # takes its key again: several statements
    ]
    turn = pooled.turn(changes, Claim(new_id(), "w2", 5, 30.0, tasks=["greet"]))
    assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.APPLIED] * 2
    assert [(job.id, job.attempt) for job in turn.jobs] == [(keyed.id, 2)]
    asked = lifecycle.cancel(turn.jobs[0], pooled.now(), actor="me")
    assert pooled.turn([asked]).verdicts[0].ruling is Ruling.APPLIED
    [held_again] = pooled.extend([Lease(keyed.id, turn.jobs[0].lease_token or "")], lease=1.0)
    assert (held_again.renewal, held_again.cancel_requested) == (Renewal.RENEWED, True)

    short = claim(pooled, 1, tasks=["bulk"], lease=0.05)
    late = until(lambda: [job for job in pooled.expired(limit=10) if job.id == short[0].id], "the end of its lease")
    assert recover(pooled, late[0]).ruling is Ruling.APPLIED
    assert current(pooled, short[0]).crashes == 1

    assert len(pooled.find(JobFilter(task="bulk"), limit=100).jobs) == 50
    assert pooled.count(JobFilter(task="bulk")) == {State.PENDING: 50}
    assert [event.kind.value for event in pooled.events(keyed.id)] == ["retrying", "cancel_requested"]
    assert pooled.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10) == 1
    assert pooled.get([plain.id]) == [None]
    cancelled = lifecycle.cancel(current(pooled, short[0]), pooled.now(), actor="me")
    assert pooled.turn([cancelled]).verdicts[0].ruling is Ruling.APPLIED
    again = lifecycle.retry(current(pooled, short[0]), pooled.now(), actor="me")
    assert pooled.turn([again]).verdicts[0].ruling is Ruling.APPLIED


def test_threads_that_connect_for_the_first_time_together_all_find_out_what_the_pooler_refuses(
    pooled: PostgresEngine, open_engine: Callable[..., PostgresEngine], pooled_url: str
) -> None:
    for _ in range(5):
        fresh = open_engine(pooled_url)
        race(8, lambda _, fresh=fresh: fresh.server.connect().close())


def test_two_workers_share_two_server_connections_with_their_callers(pooled: PostgresEngine, pooled_url: str) -> None:
    runs: list[tuple[str, int]] = []
    lock = threading.Lock()
    apps = [Treadle(pooled_url) for _ in range(2)]
    try:
        for app in apps:

            def work(ctx: Context, number: int) -> int:
                with lock:
                    runs.append((ctx.job.id, ctx.attempt))
                return number

            app.register("work", work)
            app.register("unique", work, unique="active")
        with working(apps[0], name="w0", concurrency=5), working(apps[1], name="w1", concurrency=5):
            jobs: list[Any] = [apps[n % 2].tasks["work"].enqueue(n) for n in range(100)]
            jobs += [apps[n % 2].tasks["unique"].using(key=f"k{n % 7}").enqueue(n) for n in range(50)]
            done = ended(apps[0], *jobs)
        assert {job.state for job in done} == {State.SUCCEEDED}
        assert {(job.failures, job.crashes) for job in done} == {(0, 0)}
        assert len(runs) == len(set(runs)) == len({job.id for job in done})
    finally:
        for app in apps:
            app.close()


def test_the_doctor_says_that_nothing_is_heard_and_that_polling_is_enough(pooled: PostgresEngine) -> None:
    heard = pooled.doctor()[-1]
    assert heard.level == "warning"
    assert "LISTEN receives nothing" in heard.text
    assert "polling, which is always enough" in heard.text
    assert "listen_url" in heard.text


def test_with_a_direct_listen_url_it_hears(
    pooled: PostgresEngine, open_engine: Callable[..., PostgresEngine], pooled_url: str, store_url: str
) -> None:
    listening = open_engine(pooled_url, listen_url=store_url)
    assert [finding.level for finding in listening.doctor()][-1] == "ok"
    assert "LISTEN works" in listening.doctor()[-1].text


def test_a_worker_with_a_listen_url_starts_a_job_of_another_process_at_once(
    pooled: PostgresEngine, pooled_url: str, store_url: str
) -> None:
    app, other = Treadle(pooled_url, listen_url=store_url), Treadle(pooled_url)
    try:
        app.register("work", lambda: None)
        with working(app, poll=20.0, lease=60.0):
            until(lambda: other.engine.session.read(LISTENING), "it listens")
            ended(other, other.enqueue("work", checked=False), within=10)  # perhaps found by its first look
            [job] = ended(other, other.enqueue("work", checked=False), within=10)
        assert (job.finished_at - job.created_at).total_seconds() < 5.0
    finally:
        app.close()
        other.close()


LISTENING = "select 1 from pg_stat_activity where datname = current_database() and query = 'listen treadle_treadle'"


def test_a_worker_survives_a_restart_of_the_server_behind_its_pooler(
    pooled: PostgresEngine, pooled_url: str, cluster: Cluster
) -> None:
    app = Treadle(pooled_url)
    try:
        app.register("work", lambda: None)
        with working(app, lease=2.0):
            ended(app, app.tasks["work"].enqueue())
            cluster.restart("fast")
            job = until(lambda: _patiently(app), "an enqueue")
            [job] = ended(app, job)
        assert (job.state, job.failures, job.crashes) == (State.SUCCEEDED, 0, 0)
        assert running(pooled).state is State.RUNNING
    finally:
        app.close()


def _patiently(app: Treadle) -> Any:
    from treadle import EngineUnavailable

    try:
        return app.tasks["work"].enqueue()
    except EngineUnavailable:
        return None
