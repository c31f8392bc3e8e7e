"""The primary dies under load and its standby takes over: what was acknowledged, and who may write."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.making import unstored
from tests.support.provision import Cluster, promote, standby
from tests.support.workbench import until, working
from treadle import Context, EngineUnavailable, Job, State, Treadle
from treadle.model import EventKind, new_id

pytestmark = pytest.mark.server

WORKERS = 2
LEASE = 4.0
SLOW = 0.7  # seconds: who runs such a job when the primary dies has an outcome for the new one, and no renewal before
GRACE = 20.0  # seconds: a failover takes the leases of most slots at once, and their handlers end by themselves
SETTLES = (EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED)


class Load:
    """A producer and workers on a pair of servers, and what they were told."""

    def __init__(self, url: str) -> None:
        self.acknowledged: dict[str, float] = {}  # job -> when
        self.finished: list[str] = []  # as often as a handler returned
        self._url = url
        self._enough = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def on(self) -> Iterator["Load"]:
        producer = threading.Thread(target=self._produce)
        with ExitStack() as stack:
            for number in range(WORKERS):
                app = self.app()
                stack.callback(app.close)
                stack.enter_context(working(app, name=f"w{number}", lease=LEASE, grace=GRACE, concurrency=4))
            producer.start()
            try:
                yield self
            finally:
                self._enough.set()
                producer.join(30)
                assert not producer.is_alive()

    def app(self) -> Treadle:
        app = Treadle(self._url, audit="everything")

        def work(ctx: Context, seconds: float = 0.002) -> str:
            time.sleep(seconds)
            with self._lock:
                self.finished.append(ctx.job.id)
            return f"{ctx.job.worker}/{ctx.attempt}"

        app.register("work", work)
        return app

    def stop(self) -> None:
        self._enough.set()

    def _produce(self) -> None:
        app = self.app()
        while not self._enough.is_set():
            ids = [new_id() for _ in range(5)]
            jobs = [unstored(app.tasks["work"].using(id=id_)) for id_ in ids]
            jobs[0] = unstored(app.tasks["work"].using(id=ids[0], key=ids[0], unique="ever"))
            jobs[1] = unstored(app.tasks["work"].using(id=ids[1], priority=-1), SLOW)  # on the standby before it runs
            while True:
                try:
                    receipts = app.engine.enqueue(jobs)
                    break
                except EngineUnavailable:
                    if self._enough.is_set():
                        receipts = []
                        break
                    time.sleep(0.02)
            at = time.monotonic()
            self.acknowledged.update({receipt.job.id: at for receipt in receipts if not receipt.refused})
        app.close()


def a_pair(**settings: str) -> Any:
    @contextmanager
    def pair() -> Iterator[tuple[Cluster, Cluster, str]]:
        with Cluster(synchronous_commit="on", **settings) as primary, standby(primary, name="second") as second:
            url = (
                f"postgresql://treadle@/postgres?host=127.0.0.1,127.0.0.1&port={primary.port},{second.port}"
                "&target_session_attrs=read-write&schema=failing_over"
            )
            until(lambda: replicas(primary), "the standby follows")
            app = Treadle(url)
            app.migrate()
            assert app.check_schema() == []
            app.close()
            yield primary, second, url

    return pair()


def waiting_for_standby(primary: Cluster) -> int:
    with psycopg.connect(primary.url, autocommit=True) as connection:
        sql = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
        return connection.execute(sql).fetchall()[0][0]


def replicas(primary: Cluster) -> list[tuple[int, str]]:
    with psycopg.connect(primary.url, autocommit=True) as connection:
        sql = "select pid, sync_state from pg_stat_replication where state = 'streaming'"
        return connection.execute(sql).fetchall()


@pytest.mark.slow
def test_no_acknowledged_job_is_lost_with_a_primary_that_waits_for_its_standby() -> None:
    with a_pair(synchronous_standby_names="second") as (primary, second, url):
        until(lambda: [state for _, state in replicas(primary)] == ["sync"], "a synchronous standby")
        load = Load(url)
        with load.on():
            until(lambda: len(load.acknowledged) > 150, "some load")
            [(walsender, _)] = replicas(primary)
            os.kill(walsender, signal.SIGSTOP)  # the standby hears nothing more, so nobody may be told that all is well
            until(lambda: waiting_for_standby(primary) >= 2, "commits wait for the standby")
            before = set(load.acknowledged)
            died = time.monotonic()
            primary.kill()
            promote(second)
            with psycopg.connect(second.url, autocommit=True) as connection:
                connection.execute("alter system set synchronous_standby_names = ''")
                connection.execute("select pg_reload_conf()")
            promoted = time.monotonic()
            until(lambda: len(load.acknowledged) > len(before) + 50, "load on the new primary")
            back = min(at for id_, at in load.acknowledged.items() if id_ not in before)
            load.stop()
            app = load.app()
            until(lambda: all_ended(app), "the end of all jobs")
            found = check(app)
            app.close()
        lost = set(load.acknowledged) - set(found)
        again = sum(count - 1 for count in Counter(load.finished).values())
        print(
            f"\n  synchronous: promoted after {promoted - died:.2f} s, first enqueue {back - died:.2f} s after the "
            f"death; {len(load.acknowledged)} acknowledged, {len(lost)} lost, {again} handlers ran again"
        )
        assert not lost
        assert {job.state for job in found.values()} == {State.SUCCEEDED}


@pytest.mark.slow
def test_what_an_asynchronous_standby_has_not_seen_is_lost_and_counted_but_no_fence_breaks() -> None:
    with a_pair() as (primary, second, url):
        load = Load(url)
        with load.on():
            until(lambda: len(load.acknowledged) > 100, "some load")
            [(walsender, _)] = replicas(primary)
            os.kill(walsender, signal.SIGSTOP)  # from here on the standby hears nothing
            behind = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > behind + 100, "acknowledgements that the standby does not know of")
            died = time.monotonic()
            primary.kill()
            known = set(load.acknowledged)
            promote(second)
            promoted = time.monotonic()
            until(lambda: len(load.acknowledged) > len(known) + 50, "load on the new primary")
            back = min(at for id_, at in load.acknowledged.items() if id_ not in known)
            load.stop()
            app = load.app()
            until(lambda: all_ended(app), "the end of all jobs")
            found = check(app)
            app.close()
        lost = set(load.acknowledged) - set(found)
        again = sum(count - 1 for count in Counter(load.finished).values())
        print(
            f"\n  asynchronous: promoted after {promoted - died:.2f} s, first enqueue {back - died:.2f} s after the "
            f"death; {len(load.acknowledged)} acknowledged, {len(lost)} lost, {again} handlers ran again"
        )
        assert lost, "the standby had been cut off: this run proves nothing"
        assert lost <= known, "acknowledged by the new primary, and lost"
        assert {job.state for job in found.values()} == {State.SUCCEEDED}


def all_ended(app: Treadle) -> bool:
    try:
        counts = app.count()
    except EngineUnavailable:
        return False
    return counts[State.PENDING] == counts[State.RUNNING] == 0


def check(app: Treadle) -> dict[str, Job]:
    """Every job, its audit trail being that of one writer at a time: no fence has failed."""
    found: dict[str, Job] = {}
    cursor: str | None = None
    while True:
        page = app.find(limit=500, cursor=cursor)
        found.update({job.id: job for job in page.jobs})
        cursor = page.cursor
        if cursor is None:
            break
    for job in found.values():
        events, holder = app.events(job.id), ""
        assert [event.revision for event in events] == list(range(job.revision + 1)), f"job {job.id}: {events}"
        assert sum(event.kind in SETTLES for event in events) == 1, f"job {job.id} was settled twice: {events}"
        for event in events:
            if event.kind is EventKind.CLAIMED:
                holder = event.actor
            elif event.kind in SETTLES:
                assert event.actor == holder, f"job {job.id}: settled by {event.actor}, held by {holder}"
        assert job.result == f"{holder}/{job.attempt}"
    return found
