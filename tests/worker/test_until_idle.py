"""A worker run with until_idle ends when nothing is due, and not before."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.making import a_job, claim
from tests.support.marks import any_store, sql_stores
from treadle import Retry, Treadle
from treadle.engines.dynamodb import claim as dynamodb_claim
from treadle.engines.dynamodb import scan as dynamodb_scan
from treadle.engines.postgres import claim as postgres_claim
from treadle.engines.postgres import cursors as postgres_cursors
from treadle.engines.postgres import turn as postgres_turn
from treadle.engines.sqlite import claim as sqlite_claim
from treadle.engines.values import Claim
from treadle.errors import EngineUnavailable
from treadle.model.records import Schedule
from treadle.testing import run_until_idle
from treadle.worker import loop, slots


def test_suspects_that_wait_for_their_turn_are_waited_for(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs on their last attempt run one at a time; those that wait longer than a worker keeps others still run."""
    monkeypatch.setattr(slots, "LONGEST_WAIT", 0.3)
    ran = []

    @app.task(retry=Retry(max_attempts=1))
    def slow(number: int) -> None:
        time.sleep(0.6)  # the other has waited too long by then, and would be due a little later
        ran.append(number)

    for number in range(2):
        slow.enqueue(number)
    app.run_worker(until_idle=True)
    assert sorted(ran) == [0, 1]


@any_store
def test_jobs_behind_more_unknown_ones_than_a_claim_looks_at_are_run(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, bound in (
        (sqlite_claim, "MAX_SCANS", 1), (sqlite_claim, "MAX_PARKED", 5),
        (postgres_claim, "FILL_TIMEOUT", 0.0), (postgres_turn, "MAX_PARKED", 5), (postgres_turn, "PATIENCE", -1.0),
        (dynamodb_claim, "MAX_SCANS", 1), (dynamodb_claim, "MAX_UNPARKED", 1), (dynamodb_scan, "MAX_SKIPPED", 5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, bound)
    for _ in range(30):
        app.enqueue("unknown", checked=False)
    ran = []

    @app.task
    def known() -> None:
        ran.append(1)

    known.enqueue()
    app.run_worker(until_idle=True, poll=60.0)
    assert ran == [1]


@any_store
def test_run_until_idle_sees_every_queue_however_slow_the_store_is(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a slow claim an ordinary one continues where that ended, and would not see the other queue."""
    monkeypatch.setattr(postgres_cursors, "SLOW_LOOK", -10.0)
    monkeypatch.setattr(postgres_cursors, "SLOW_LOOKS", 1)
    monkeypatch.setattr(dynamodb_scan, "MAX_RUNNING_HEAD", 0)
    app.register("first", lambda: None).enqueue()
    app.register("second", lambda: None).using(queue="mail").enqueue()
    assert {job.task for job in run_until_idle(app, queues=("default", "mail"))} == {"first", "second"}


LANES = 2_000


@sql_stores
def test_a_worker_beside_thousands_of_lanes_looks_everywhere_once(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look everywhere costs a step for each lane: not with every claim of a drain."""
    now, ran = app.engine.now(), list[int]()
    later = now + timedelta(days=1)
    app.engine.enqueue([a_job(now, task="work", due_at=later, lane=f"lane-{number}") for number in range(LANES)])

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    work.enqueue_many([(number,) for number in range(300)])
    take_turn, claims = app.engine.turn, list[Claim]()

    def turn(changes, claim=None, **named):
        claims.extend([claim] if claim is not None else [])
        return take_turn(changes, claim, **named)

    monkeypatch.setattr(app.engine, "turn", turn)
    monkeypatch.setattr(loop, "MAX_BATCH", 20)
    app.run_worker(until_idle=True, poll=60.0)
    assert sorted(ran) == list(range(300))
    assert len(claims) >= 15
    assert claims[-1].thorough
    assert sum(claim.thorough for claim in claims) <= 4


def test_run_until_idle_looks_everywhere_only_when_there_seems_to_be_nothing(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.register("work", lambda: None).enqueue_many([()] * 5)
    take_turn, thorough = app.engine.turn, list[bool]()

    def turn(changes, claim=None, **named):
        if claim is not None:
            thorough.append(claim.thorough)
        return take_turn(changes, claim, **named)

    monkeypatch.setattr(app.engine, "turn", turn)
    assert len(run_until_idle(app)) == 5
    assert thorough == [False] * 6 + [True]


def test_a_hiccup_of_the_recovery_does_not_keep_it_from_the_schedules(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @app.task
    def nightly() -> None:
        ran.append(1)

    app.schedules.create("n", "nightly", every=3600)
    [schedule] = app.engine.records(Schedule)
    past = app.engine.now() - timedelta(seconds=1)
    app.engine.save(schedule.evolve(next_at=past, revision=schedule.revision + 1), before=schedule)
    app.enqueue("unknown", checked=False)
    [_] = claim(app.engine, 1, lease=0.001)  # whose holder is gone: there is something to recover
    take_turn, failed = app.engine.turn, []

    def fails_once(changes, *words, **named):
        if changes and not failed:
            failed.append(1)
            raise EngineUnavailable("locked for a moment")
        return take_turn(changes, *words, **named)

    monkeypatch.setattr(app.engine, "turn", fails_once)
    app.run_worker(until_idle=True)
    assert (failed, ran) == ([1], [1])


def test_idle_is_not_said_by_a_claim_that_left_isolated_tasks_out(app: Treadle) -> None:
    """The store is away just when an isolated job ends, and another one is due."""
    ran: list[int] = []
    turn, refused = app.engine.turn, threading.Event()
    over = threading.Event()

    @app.task(isolated=True)
    def apart(n: int) -> None:
        ran.append(n)
        if n == 1:
            assert refused.wait(30)
            over.set()

    def away(changes: Any, claim: Any = None, **options: Any) -> Any:
        if claim is not None and claim.tasks is not None and "apart" not in claim.tasks:
            if not refused.is_set():
                apart.enqueue(2)
                refused.set()
                raise EngineUnavailable("away")
            over.wait(30)
        return turn(changes, claim, **options)

    app.register("other", lambda: None)
    apart.enqueue(1)
    app.engine.turn = away  # type: ignore[method-assign]
    app.run_worker(until_idle=True, concurrency=4)
    assert ran == [1, 2]
