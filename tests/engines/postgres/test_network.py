"""A network that fails in every way it can, between real engines and workers and the server."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.making import a_job, claim, current, enqueued, recover, running
from tests.support.proxy import Proxy
from tests.support.workbench import QUICK, Crowd, Process, ended, until, working
from treadle import Context, EngineUnavailable, State, Treadle
from treadle.engines.postgres.connection import MAX_IDLE, RETRY_FOR
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Retention, Ruling, Turn
from treadle.model import Job, Scope, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause

CONNECT = 2  # seconds, as the far engine's URL says (conftest.py)

SLACK = 1.5  # seconds by which a busy machine may be late


WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'treadle'"


def is_insert(sql: str) -> bool:
    return ".add_job" in sql


def is_turn(sql: str) -> bool:
    return ".turn(" in sql or ".settle(" in sql


def is_extend(sql: str) -> bool:
    return "set lease_until = t.now" in sql and not is_turn(sql)


def is_read_of_held(sql: str) -> bool:
    return ".held_jobs(" in sql


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Runs calls beside the test."""
    with ThreadPoolExecutor(16) as pool:
        yield pool.submit


def the_jobs(engine: PostgresEngine) -> list[Job]:
    return engine.find(JobFilter(), limit=10_000).jobs


def insisted(act: Callable[[], Any], within: float = 20.0) -> Any:
    """What a caller does who takes the errors at their word: repeat."""
    deadline = time.monotonic() + within
    while True:
        try:
            return act()
        except EngineUnavailable as error:
            if "repeating is safe" not in str(error) or time.monotonic() > deadline:
                raise


# ------------------------------------------------------------------------- the connection is cut under a call


class Calls:
    """A turn that settles and claims, a renewal and an enqueue; each checks that it was done once, and said so."""

    def __init__(self, near: PostgresEngine) -> None:
        self.near = near
        self.mine = [running(near), running(near)]
        self.waiting = [enqueued(near) for _ in range(4)]
        self.new = a_job(near.now(), task="new")
        self.keyed = a_job(near.now(), task="new", key="k", key_scope=Scope.ACTIVE)
        self.claim = Claim(new_id(), "w2", 2, 30.0, tasks=["greet"])
        self.leases = [job.lease_until for job in self.mine]

    def turn(self, engine: PostgresEngine) -> Turn:
        now = engine.now()
        return engine.turn([lifecycle.settle(job, Succeeded('"done"'), now) for job in self.mine], self.claim)

    def turned(self, turn: Turn) -> None:
        assert {verdict.ruling for verdict in turn.verdicts} <= {Ruling.APPLIED, Ruling.ALREADY}
        for job in self.mine:
            now = current(self.near, job)
            assert (now.state, now.result, now.attempt) == (State.SUCCEEDED, "done", 1)
        held = [job for job in the_jobs(self.near) if job.lease_token == self.claim.token]
        assert sorted(job.id for job in held) == sorted(job.id for job in turn.jobs), "claimed, and its holder not told"
        assert len(held) == self.claim.limit
        assert {job.attempt for job in held} == {1}

    def extend(self, engine: PostgresEngine) -> Any:
        return engine.extend([Lease(job.id, job.lease_token or "") for job in self.mine], lease=60.0)

    def extended(self, answers: Any) -> None:
        assert {answer.renewal for answer in answers} <= {Renewal.RENEWED, Renewal.BUSY}  # the first may still be at it
        until(
            lambda: all(current(self.near, job).lease_until > job.lease_until for job in self.mine),
            "the leases are longer",
        )

    def enqueue(self, engine: PostgresEngine) -> Any:
        return engine.enqueue([self.new])

    def enqueued(self, receipts: Any) -> None:
        [receipt] = receipts
        assert (receipt.job.id, receipt.refused) == (self.new.id, "")
        assert receipt.job == current(self.near, self.new)
        assert len(self.near.find(JobFilter(task="new"), limit=10).jobs) == 1

    def enqueue_keyed(self, engine: PostgresEngine) -> Any:
        return engine.enqueue([self.keyed])

    def enqueued_keyed(self, receipts: Any) -> None:
        [receipt] = receipts
        assert (receipt.job.id, receipt.refused) == (self.keyed.id, "")
        assert receipt.job == current(self.near, self.keyed)
        [other] = self.near.enqueue([self.keyed.evolve(id=new_id())])
        assert (other.created, other.job.id) == (False, self.keyed.id)


CALLS = {
    "turn": (Calls.turn, Calls.turned, is_turn),
    "extend": (Calls.extend, Calls.extended, is_extend),
    "enqueue": (Calls.enqueue, Calls.enqueued, is_insert),
    "keyed enqueue": (Calls.enqueue_keyed, Calls.enqueued_keyed, is_insert),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Any:
    return CALLS[request.param]


def test_a_call_whose_request_was_lost_with_its_connection_is_made_on_another(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy, aside: Any, call: Any
) -> None:
    act, check, _ = call
    calls = Calls(near)
    far.now()
    proxy.stall()
    answer = aside(act, calls, far)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.2)  # under way: sent, and not arrived
    proxy.reset()
    proxy.flow()
    check(calls, answer.result(timeout=10))
    assert proxy.counts["reset"] >= 1


def test_a_call_that_the_server_still_works_on_when_its_connection_is_cut_is_done_once(
    far: PostgresEngine, near: PostgresEngine, store_url: str, proxy: Proxy, aside: Any, call: Any
) -> None:
    """The server does not notice that its client is gone, and the client repeats: both go on when they can."""
    act, check, _ = call
    calls = Calls(near)
    far.now()
    schema = far.schema
    with psycopg.connect(store_url.partition("?")[0]) as stranger:
        stranger.execute(f"lock table {schema}.jobs in access exclusive mode")
        answer = aside(act, calls, far)
        until(lambda: waiting_for(stranger, schema) == 1, "the call waits for the table")
        proxy.reset()
        until(lambda: near.session.read(WAITING) == [(2,)], "the call was repeated while the first still waits")
        stranger.rollback()
    check(calls, answer.result(timeout=10))


def test_a_claim_repeated_while_its_first_try_still_runs_strands_no_job(
    open_engine: Callable[..., PostgresEngine],
    far_url: str,
    near: PostgresEngine,
    store_url: str,
    proxy: Proxy,
    aside: Any,
) -> None:
    """As when a commit waits for a standby, or for a disk, and the client gives up on its connection meanwhile."""
    far = open_engine(far_url)
    far.open()
    for number in range(4):
        enqueued(near, key=str(number), key_scope=Scope.PENDING)
    wish = Claim(new_id(), "w2", 2, 30.0)
    with psycopg.connect(store_url.partition("?")[0]) as stranger:
        stranger.execute(f"select 1 from {far.schema}.keys for update")  # a claim lets go of them
        turn = aside(far.turn, [], wish)
        until(lambda: blocked_by(stranger) == 1, "the claim waits with its locks held")
        proxy.reset()
        until(lambda: turn.done() or near.session.read(WAITING)[0][0] >= 2, "it was repeated, and waits for the first")
        stranger.rollback()
    until(lambda: near.server.run(lambda c: c.execute(UNFINISHED, [far.schema]).fetchone()) == (0,), "both are over")
    try:
        told = turn.result(timeout=20).jobs
    except EngineUnavailable:
        told = insisted(lambda: far.turn([], wish)).jobs  # as a worker would
    held = [job for job in the_jobs(near) if job.lease_token == wish.token]
    assert sorted(job.id for job in held) == sorted(job.id for job in told), "claimed, and its holder not told"
    assert len(held) == wish.limit


UNFINISHED = "select count(*) from pg_stat_activity where state = 'active' and query like '%%' || %s || '.events%%'"


def blocked_by(connection: psycopg.Connection[Any]) -> int:
    sql = "select count(*) from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid))"
    [[blocked]] = connection.execute(sql).fetchall()
    return blocked


def waiting_for(connection: psycopg.Connection[Any], schema: str) -> int:
    sql = "select count(*) from pg_locks where not granted and relation = %s::regclass"
    [[waiting]] = connection.execute(sql, [f"{schema}.jobs"]).fetchall()
    return waiting


# ------------------------------------------------------------------------- the answer is lost, the work is done


def test_a_call_whose_commit_was_done_but_not_heard_of_is_answered_when_the_engine_repeats_it(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy, call: Any
) -> None:
    act, check, statement = call
    calls = Calls(near)
    far.now()
    drops = proxy.drop_replies(statement)
    check(calls, act(calls, far))
    drops.wait()
    assert drops.count == 1


def test_a_turn_whose_commit_was_not_heard_of_says_already_and_gives_the_same_jobs_once_more(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy
) -> None:
    calls = Calls(near)
    far.now()
    drops = proxy.drop_replies(is_turn)
    first = calls.turn(far)
    drops.wait()
    assert {verdict.ruling for verdict in first.verdicts} == {Ruling.ALREADY}
    calls.turned(first)
    again = calls.turn(far)
    assert {verdict.ruling for verdict in again.verdicts} == {Ruling.ALREADY}
    assert again.jobs == first.jobs


def test_a_turn_repeated_by_the_worker_after_an_error_claims_nothing_more(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy
) -> None:
    calls = Calls(near)
    far.now()
    drops = proxy.drop_replies(is_turn)
    proxy.refuse()
    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        calls.turn(far)
    drops.wait()
    proxy.refuse(False)
    turn = calls.turn(far)
    assert {verdict.ruling for verdict in turn.verdicts} == {Ruling.ALREADY}
    calls.turned(turn)


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
def test_an_enqueue_not_heard_of_is_answered_with_the_job_that_a_worker_has_finished_meanwhile(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy, aside: Any, key: str | None
) -> None:
    far.now()
    job = a_job(near.now(), key=key, key_scope=Scope.ACTIVE if key else None)
    drops = proxy.drop_replies(is_insert)
    proxy.refuse()
    receipts = aside(far.enqueue, [job])
    drops.wait()
    [held] = claim(near)
    near.turn([lifecycle.settle(held, Succeeded('"done"'), near.now())])
    proxy.refuse(False)
    [receipt] = receipts.result(timeout=10)
    assert (receipt.created, receipt.refused, receipt.job) == (False, "", current(near, job))
    assert (receipt.job.state, receipt.job.attempt) == (State.SUCCEEDED, 1)
    assert claim(near) == []
    assert len(the_jobs(near)) == 1


OPERATOR = {
    "cancel of a pending job": lambda app, near: app.cancel(enqueued(near).id),
    "cancel request": lambda app, near: app.cancel(running(near).id),
    "retry": lambda app, near: app.retry(a_cancelled(near).id),
}


def a_cancelled(near: PostgresEngine) -> Job:
    job = enqueued(near)
    near.turn([lifecycle.cancel(job, near.now(), actor="them")])
    return current(near, job)


@pytest.mark.parametrize("act", OPERATOR)
def test_an_operator_whose_write_was_done_but_not_heard_of_is_not_told_that_it_is_impossible(
    make_app: Callable[..., Treadle], far_url: str, near: PostgresEngine, proxy: Proxy, act: str
) -> None:
    app = make_app(far_url)
    app.engine.now()
    drops = proxy.drop_replies(lambda sql: is_turn(sql) or ".finished where id = any" in sql or "requested as" in sql)
    job = OPERATOR[act](app, near)
    drops.wait()
    operators = [event.kind for event in near.events(job.id) if event.actor == "api"]
    # A request to stop has no fence to tell its repetition by: it may be noted twice.
    assert len(operators) in ((1, 2) if act == "cancel request" else (1,)), f"one act, {len(operators)} audit lines"


# ------------------------------------------------------------------------------------- the network stands still


BOUNDED: dict[str, tuple[Callable[[PostgresEngine, Job], Any], float]] = {
    "enqueue": (lambda engine, job: engine.enqueue([a_job(job.created_at)]), RETRY_FOR),
    "keyed enqueue": (
        lambda engine, job: engine.enqueue([a_job(job.created_at, key="k", key_scope=Scope.EVER)]),
        RETRY_FOR,
    ),
    "turn": (lambda engine, job: engine.turn([], Claim(new_id(), "w1", 5, 30.0)), 0.0),
    "settle": (lambda engine, job: engine.turn([lifecycle.settle(job, Succeeded(), job.created_at)]), 0.0),
    "cancel request": (
        lambda engine, job: engine.turn([lifecycle.cancel(job, job.created_at, actor="me")]),
        0.0,
    ),
    "expired": (lambda engine, job: engine.expired(limit=5), RETRY_FOR),
    "get": (lambda engine, job: engine.get([job.id]), RETRY_FOR),
    "find": (lambda engine, job: engine.find(JobFilter(), limit=5), RETRY_FOR),
    "events": (lambda engine, job: engine.events(job.id), RETRY_FOR),
    "prune": (lambda engine, job: engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=5), 0.0),
    "records": (lambda engine, job: engine.records(Pause), RETRY_FOR),
    "due": (lambda engine, job: engine.due(limit=5), RETRY_FOR),
    "save": (lambda engine, job: engine.save(Pause(), before=None), 0.0),
    "drop": (lambda engine, job: engine.drop(Pause()), 0.0),
}


def with_many_connections(engine: PostgresEngine) -> None:
    """As many idle connections as an engine keeps: what a web server with a few threads has."""
    gate = threading.Barrier(MAX_IDLE)
    with ThreadPoolExecutor(MAX_IDLE) as pool:
        list(pool.map(lambda _: engine.server.run(lambda connection: gate.wait(10)), range(MAX_IDLE)))


@pytest.mark.parametrize("what", BOUNDED)
def test_a_call_into_a_stalled_network_ends_within_its_patience_and_says_that_repeating_is_safe(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy, answer_timeout: Callable[[float], None], what: str
) -> None:
    call = 1.0
    answer_timeout(call)
    act, persists = BOUNDED[what]
    job = running(near)
    far.now()
    with_many_connections(far)
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        act(far, job)
    took = time.monotonic() - began
    proxy.reset()  # what was on its way must not arrive while the store is cleared away
    proxy.flow()
    assert took < call + CONNECT + persists + SLACK


@pytest.mark.parametrize("lease", [3.0, 12.0])
def test_a_renewal_into_a_stalled_network_ends_well_before_the_lease(
    far: PostgresEngine, near: PostgresEngine, proxy: Proxy, lease: float
) -> None:
    """The keeper asks when a third of the lease is gone, and must give up what it holds while a fifth is left."""
    enqueued(near)
    [job] = claim(near, lease=lease)
    far.now()
    with_many_connections(far)
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        far.extend([Lease(job.id, job.lease_token or "")], lease=lease)
    took = time.monotonic() - began
    proxy.flow()
    assert took < lease * (1 - 1 / 3 - 1 / 5)


@pytest.mark.parametrize("lease", [2.0, 4.0])
def test_a_worker_whose_network_stalls_gives_up_before_its_lease_passes_on_and_recovers(
    make_app: Callable[..., Treadle], far_url: str, store_url: str, proxy: Proxy, lease: float
) -> None:
    crowd, started, cancelled, release = Crowd(), [], [], threading.Event()

    def prepared(url: str) -> Treadle:
        app = make_app(url)

        async def work(ctx: Context) -> str:
            with crowd:
                started.append((ctx.job.worker, ctx.attempt))
                try:
                    while not release.is_set():
                        await asyncio.sleep(0.005)
                except asyncio.CancelledError:
                    cancelled.append(time.time())
                    raise
                return ctx.job.worker or ""

        app.register("work", work)
        return app

    far_app, near_app = prepared(far_url), prepared(store_url)
    with working(far_app, name="far", lease=lease), flowing_afterwards(proxy):
        job = far_app.tasks["work"].enqueue()
        until(lambda: started, "its start")
        first = near_app.get(job.id).lease_until
        until(lambda: near_app.get(job.id).lease_until > first, "a renewal")
        proxy.stall()
        ends = near_app.get(job.id).lease_until.timestamp()
        with working(near_app, name="near", lease=lease):
            until(lambda: ("near", 2) in started, "the takeover")
            until(lambda: cancelled, "the end of the first attempt")
            release.set()
            [done] = ended(near_app, job)
        assert (done.result, done.attempt, done.crashes, done.failures) == ("near", 2, 1, 0)
        late = f"the first was stopped {cancelled[0] - ends:.2f} s after the end of its lease"
        assert crowd.most == 1, f"two ran at once: {late}"
        assert cancelled[0] < ends, late
        proxy.flow()
        again = insisted(far_app.tasks["work"].enqueue)
        [again] = ended(near_app, again)
        # A claim that the stall held up may be answered too late to be begun: then it is given back at no cost.
        assert (again.result, again.failures) == ("far", 0)


@contextmanager
def flowing_afterwards(proxy: Proxy) -> Iterator[None]:
    """Whatever becomes of the test, the worker can stop."""
    try:
        yield
    finally:
        proxy.flow()


def test_an_engine_closes_soon_although_its_network_stands_still(
    far: PostgresEngine, proxy: Proxy, answer_timeout: Callable[[float], None]
) -> None:
    answer_timeout(1.0)
    far.wait(["default"], 0.01)  # the listener starts
    until(lambda: proxy.connections >= 2, "a connection that listens")
    proxy.stall()
    proxy.reset()  # so that it connects anew, and gets no answer
    until(lambda: proxy.connections >= 1, "another try to listen")
    began = time.monotonic()
    far.close()
    assert time.monotonic() - began < 1.0 + CONNECT + SLACK
    proxy.flow()


@pytest.mark.parametrize("late", ["turn", "extend"])
def test_a_slow_answer_does_not_set_the_workers_clock_back(
    far: PostgresEngine, near: PostgresEngine, store_url: str, aside: Any, late: str
) -> None:
    """An answer tells the time at which its statement arrived; heard a second later, that is a second ago."""
    job = running(near)
    far.now()
    act = {
        "turn": lambda: far.turn([], Claim(new_id(), "w1", 1, 30.0)),
        "extend": lambda: far.extend([Lease(job.id, job.lease_token or "")], lease=60.0),
    }[late]
    with psycopg.connect(store_url.partition("?")[0]) as stranger:
        stranger.execute(f"lock table {far.schema}.jobs in access exclusive mode")
        answer = aside(act)
        until(lambda: waiting_for(stranger, far.schema) == 1, "it waits")
        stranger.execute("select pg_sleep(1)")
        stranger.rollback()
        answer.result(timeout=10)
        [[truth]] = stranger.execute("select clock_timestamp()").fetchall()
        behind = (truth - far.now()).total_seconds()
    assert behind < 0.3, f"the engine takes the time for {behind:.2f} s ago: what it writes now is stamped so"


def test_a_worker_started_while_the_server_is_away_waits_for_it(
    make_app: Callable[..., Treadle], far_url: str, store_url: str, proxy: Proxy
) -> None:
    app, watcher = make_app(far_url), make_app(store_url)
    app.register("work", lambda: None)
    job = watcher.enqueue("work", checked=False)
    proxy.refuse()
    with working(app):
        until(lambda: proxy.counts["refused"] >= 3, "some tries")
        proxy.refuse(False)
        [job] = ended(watcher, job)
    assert (job.state, job.attempt) == (State.SUCCEEDED, 1)


# ------------------------------------------------------------------------------------- the server is away


def test_nobody_loops_busily_while_the_server_is_away(
    make_app: Callable[..., Treadle], far_url: str, store_url: str, proxy: Proxy
) -> None:
    app, release = make_app(far_url), threading.Event()

    async def work(ctx: Context) -> None:
        while not release.is_set():
            await asyncio.sleep(0.005)

    app.register("work", work)
    period = 5.0
    with working(app, concurrency=5, lease=2.0):
        jobs = [app.tasks["work"].enqueue() for _ in range(10)]
        until(lambda: len(make_app(store_url).find(state="running").jobs) == 5, "work")
        proxy.refuse()
        proxy.reset()
        began, used = time.monotonic(), time.process_time()
        until(lambda: time.monotonic() - began > period, "the period", within=period + 5)
        attempts, used = proxy.counts["refused"], time.process_time() - used
        release.set()
        proxy.refuse(False)
        ended(app, *jobs)
    print(f"\n  {attempts} connections tried in {period:g} s, {used:.2f} s of CPU (the test's own polling included)")
    assert attempts <= 60
    assert attempts >= 3, "and it does go on trying"


# ------------------------------------------------------------------------------------- replies cut anywhere

SPREAD = [*range(0, 45, 5), *(int(50 * 1.17**n) for n in range(31))]  # 40 values; a login is some hundred bytes


@pytest.mark.slow
def test_replies_cut_after_any_number_of_bytes_leave_every_job_accounted_for_once(
    open_engine: Callable[..., PostgresEngine], far_url: str, near: PostgresEngine, store_url: str, proxy: Proxy
) -> None:
    far = open_engine(far_url, audit_all=True)
    far.open()
    spread = SPREAD
    cuts = 0
    for n in spread:
        jobs = [a_job(far.now(), task=f"cut after {n}") for _ in range(3)]
        jobs.append(a_job(far.now(), task=f"cut after {n}", key=f"k{n}", key_scope=Scope.ACTIVE))
        before = proxy.counts["cut"]
        with cutting(proxy, n):
            receipts = insisted(lambda jobs=jobs: far.enqueue(jobs))
        assert [receipt.job.id for receipt in receipts] == [job.id for job in jobs]
        wish = Claim(new_id(), "w1", 4, 30.0, tasks=[jobs[0].task])
        with cutting(proxy, n):
            held = insisted(lambda wish=wish: far.turn([], wish)).jobs
        assert sorted(job.id for job in held) == sorted(job.id for job in jobs)
        with cutting(proxy, n):
            insisted(lambda held=held: far.extend([Lease(job.id, job.lease_token or "") for job in held], lease=30.0))
        changes = [lifecycle.settle(job, Succeeded(f'"{job.id}"'), far.now()) for job in held]
        with cutting(proxy, n):
            turn = insisted(lambda changes=changes: far.turn(changes, Claim(new_id(), "w1", 4, 30.0, tasks=["none"])))
        assert {verdict.ruling for verdict in turn.verdicts} <= {Ruling.APPLIED, Ruling.ALREADY}
        cuts += proxy.counts["cut"] - before
    found = the_jobs(near)
    assert len(found) == 4 * len(spread)
    for job in found:
        assert (job.state, job.attempt, job.result, job.revision) == (State.SUCCEEDED, 1, job.id, 2)
        assert [event.kind.value for event in near.events(job.id)] == ["enqueued", "claimed", "succeeded"]
    print(f"\n  {cuts} connections cut, after {spread[0]} to {spread[-1]} bytes")
    assert cuts > len(spread)


@contextmanager
def cutting(proxy: Proxy, n: int) -> Iterator[None]:
    """Twice: once on a connection in use, once more on the one made instead."""
    proxy.cut_after(n, times=2)
    yield
    proxy.cut_after(None)


@pytest.mark.slow
def test_a_worker_whose_connections_are_cut_all_the_time_runs_every_job_to_its_end(
    make_app: Callable[..., Treadle], far_url: str, store_url: str, proxy: Proxy
) -> None:
    app, watcher = make_app(far_url, audit="everything"), make_app(store_url)
    runs: list[tuple[str, int]] = []

    def work(ctx: Context, number: int) -> int:
        runs.append((ctx.job.id, ctx.attempt))
        return number

    app.register("work", work)
    jobs = [watcher.enqueue("work", {"number": number}, checked=False) for number in range(300)]
    with working(app, concurrency=3, lease=2.0):
        for n in SPREAD:
            cut, left = proxy.counts["cut"], pending(watcher)
            proxy.cut_after(n, times=2)
            until(lambda cut=cut: proxy.counts["cut"] > cut, "a cut", within=10)
            proxy.cut_after(None)
            until(lambda left=left: pending(watcher) < max(left, 1), "the worker goes on", within=15)
        done = ended(watcher, *jobs)
    assert [job.result for job in done] == list(range(300))
    for job in done:
        what = [event.kind.value for event in watcher.events(job.id)]
        assert what.count("succeeded") == 1
        assert len(what) == job.revision + 1 or "enqueued" not in what
    assert len(runs) == len(set(runs)), "an attempt ran twice"
    print(f"\n  {proxy.counts['cut']} connections cut, {len(runs)} runs of {len(jobs)} jobs")


def pending(app: Treadle) -> int:
    return app.count()[State.PENDING]


# ------------------------------------------------------------------------------------- a client frozen while it claims


@pytest.mark.parametrize("when", [is_turn, is_read_of_held], ids=["at its claim", "at the read that follows"])
def test_a_client_frozen_in_the_middle_of_a_large_claim_holds_no_locks(
    near: PostgresEngine, far_url: str, proxy: Proxy, tmp_path: Path, when: Callable[[str], bool]
) -> None:
    """The reply of a claim is small and fits the socket; what is large is read after the commit."""
    many, taken, lease = 500, 250, 3.0
    payload = '{"pad":"' + "x" * 100_000 + '"}'
    for _ in range(10):
        near.enqueue([a_job(near.now(), task="nap", payload_json=payload) for _ in range(many // 10)])
    frozen = threading.Event()
    process: list[Process] = []

    def freeze(sql: str) -> bool:  # asked by the proxy, before it hands the statement on
        if when(sql) and not frozen.is_set():
            process[0].signal(signal.SIGSTOP)
            frozen.set()
        return False

    proxy.drop_replies(freeze, times=1)
    process.append(Process(far_url, tmp_path / "frozen", **{**QUICK, "concurrency": taken, "lease": lease}))
    try:
        until(lambda: frozen.is_set() or process[0].process.poll() is not None, "its claim")
        assert frozen.is_set(), f"it ended: {process[0]._said()}"
        until(
            lambda: near.count(JobFilter(state=State.RUNNING)) == {State.RUNNING: taken}, "the claim's commit", within=5
        )
        began = time.monotonic()
        others = claim(near, many, lease=60.0, worker="other")
        took = time.monotonic() - began
        assert len(others) == many - taken
        assert took < lease, f"claiming the rest took {took:.2f} s"
        late = until(lambda: near.expired(limit=many), "the lease's end", lease + 5)
        assert len(late) == taken
        assert {recover(near, job).ruling for job in late} == {Ruling.APPLIED}
        assert len(claim(near, many, lease=60.0, worker="other")) == taken
        print(f"\n  {len(others)} others claimed in {took:.2f} s")
    finally:
        process[0].end()
