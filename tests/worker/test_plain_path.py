"""A plain success travels as a few values, every other end as a whole change: both leave the same rows."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import Context, Job, Reason, Retry, State, Treadle
from treadle.engines.values import APPLIED, Claim, Ruling, Turn, Verdict
from treadle.model import Change
from treadle.model.lifecycle import Success
from treadle.testing import FakeClock
from treadle.worker.attempt import MAX_PLAIN_RESULT, Attempt

Written = list[Change | Success]


def listening(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Everything that this app's store is told to write from now on."""
    take_turn, written = app.engine.turn, Written()

    def turn(changes: Sequence[Change | Success], *claim: Any, **named: Any) -> Turn:
        written.extend(changes)
        return take_turn(changes, *claim, **named)

    monkeypatch.setattr(app.engine, "turn", turn)
    return written


# -------------------------------------------------------------------------------------------- which ends are plain


def declare(app: Treadle) -> dict[str, Callable[[], Job]]:
    """Jobs that succeed, by what is special about them."""

    async def work(result: Any = None) -> Any:
        return result

    def in_thread(result: Any = None) -> Any:
        return result

    def tells(ctx: Context) -> str:
        ctx.progress(0.5, "half")
        return "told"

    def costs(ctx: Context) -> None:
        ctx.add_cost(7)

    def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    task, thread = app.register("work", work), app.register("thread", in_thread)
    again = app.register("flaky", flaky, retry=Retry(base=0, jitter=0))
    return {
        "nothing": task.enqueue,
        "a thread": thread.enqueue,
        "a text": lambda: task.enqueue("grüße\n'\"\\ 🎈"),
        "an object": lambda: task.enqueue({"a": [1, None, {"b": 2.5}], "": ""}),
        "a long text": lambda: task.enqueue("x" * MAX_PLAIN_RESULT),
        "a timeout": lambda: task.using(timeout=60).enqueue(),
        "a tenant": lambda: task.using(tenant="ann", lane="ann", priority=3).enqueue(1),
        "one attempt": lambda: task.using(retry=Retry(max_attempts=1)).enqueue(),
        "a second attempt": again.enqueue,
        "progress": lambda: app.register("tells", tells).enqueue(),
        "cost": lambda: app.register("costs", costs).enqueue(),
        "a key": lambda: task.using(key="k", unique="pending").enqueue(),
        "what follows": lambda: app.register("followed", work, on_succeeded="work").enqueue(),
    }


GENERAL = {"a long text", "progress", "cost", "a key", "what follows"}


@pytest.mark.parametrize("name", declare(Treadle("sqlite:///:memory:")))
def test_a_success_is_plain_if_nothing_but_the_job_is_written(
    app: Treadle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    job = declare(app)[name]()
    written = listening(app, monkeypatch)
    app.run_worker(until_idle=True)
    assert app.get(job.id).state is State.SUCCEEDED
    plain = [change for change in written if isinstance(change, Success) and change.id == job.id]
    assert len(plain) == (name not in GENERAL)


@any_store
def test_both_paths_leave_the_same_rows(make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()  # so that equal rows are equal in every moment too

    start = clock.now()

    def rows() -> dict[str, Any]:
        clock._now = start
        app = make_app(clock=clock, audit="everything")
        jobs = {name: enqueue() for name, enqueue in declare(app).items()}
        clock.advance(seconds=5)
        app.run_worker(until_idle=True, name="w")
        return {name: row(app, job) for name, job in jobs.items()}

    plain = rows()
    monkeypatch.setattr(Attempt, "success", lambda _self, _outcome: None)
    assert rows() == plain


def row(app: Treadle, job: Job) -> tuple[Job, list[Any]]:
    """All that the store has of a job, but for what differs between two jobs."""
    now = app.get(job.id)
    assert now.state is State.SUCCEEDED
    events = [event._replace(job_id="") for event in app.engine.events(job.id)]
    return now.evolve(id="", lease_token=None, created_at=job.created_at), events


@any_store
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_asks_for_its_job_sees_the_whole_of_it(app: Treadle, kind: str) -> None:
    seen: list[tuple[Job, Job]] = []

    def plain(ctx: Context, text: str) -> None:
        seen.append((ctx.job, app.get(ctx.job.id)))

    async def coroutine(ctx: Context, text: str) -> None:
        seen.append((ctx.job, app.get(ctx.job.id)))

    task = app.register("work", plain if kind == "plain" else coroutine)
    job = task.using(tenant="ann", lane="l", priority=7, timeout=60).enqueue("hello")
    with working(app, lease=60):  # no renewal writes beside it
        ended(app, job)
    [(given, stored)] = seen
    assert given == stored
    assert (given.id, given.tenant, given.payload) == (job.id, "ann", {"text": "hello"})


# --------------------------------------------------------------------------------------- those that are not written

JOBS = 500


@any_store
def test_each_of_five_hundred_successes_in_a_turn_ends_by_its_own_verdict(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    @app.task
    async def work(number: int) -> int:
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return number

    jobs = [receipt.job for receipt in work.enqueue_many([(number,) for number in range(JOBS)])]
    kinds = {job.id: number % 10 for number, job in enumerate(jobs)}
    stale, lost, refused, busy = ({job.id for job in jobs if kinds[job.id] == kind} for kind in (1, 2, 3, 4))
    take_turn, turns = app.engine.turn, list[Written]()

    def turn(changes: Sequence[Change | Success], claim: Claim | None = None, **named: Any) -> Turn:
        if not changes and not gate.is_set() and len(worker._host.slots.running) == JOBS:
            gate.set()
            until(lambda: len(worker._turns._outcomes) == JOBS, "five hundred ends for the next turn")
        if not changes or turns:
            turns.extend([list(changes)] if changes else [])
            return take_turn(changes, claim, **named)
        turns.append(list(changes))
        for job_id in stale:
            app.cancel(job_id)  # somebody else's write: the job has a newer revision
        answers = dict.fromkeys(lost, Verdict(Ruling.LOST)) | dict.fromkeys(busy, Verdict(Ruling.BUSY))
        answers |= dict.fromkeys(refused, Verdict(Ruling.REFUSED, why="not this value"))
        passed = [change for change in changes if change.id not in answers]
        answer = take_turn(passed, claim, **named)
        answers |= {change.id: verdict for change, verdict in zip(passed, answer.verdicts, strict=True)}
        return answer._replace(verdicts=[answers[change.id] for change in changes])

    monkeypatch.setattr(app.engine, "turn", turn)
    worker = app.worker(concurrency=JOBS + 1, lease=60, poll=0.05)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    ended(app, *(job for job in jobs if job.id not in lost))
    until(lambda: not worker._holdings, "everything written or given up")
    worker.stop()
    thread.join(30)
    first, *others = turns
    assert len(first) == JOBS
    assert all(isinstance(change, Success) for change in first)
    assert not any(isinstance(change, Success) for changes in others for change in changes)
    for number, job in enumerate(jobs):
        now = app.get(job.id)
        if job.id in lost:
            assert now.state is State.RUNNING
        elif job.id in refused:
            assert (now.state, now.reason) == (State.FAILED, Reason.INVALID_RESULT)
            assert "not this value" in now.error.message
        else:
            assert (now.state, now.result, now.cancel_requested) == (State.SUCCEEDED, number, job.id in stale)


def test_a_success_that_makes_a_whole_turn_fail_is_decided_the_general_way(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turn = app.engine.turn

    def turn(changes: Sequence[Change | Success], *claim: Any, **named: Any) -> Turn:
        if any(isinstance(change, Success) for change in changes):
            raise ValueError("a fault of the quick way")
        return take_turn(changes, *claim, **named)

    monkeypatch.setattr(app.engine, "turn", turn)
    task = app.register("work", lambda: 1)
    jobs = [task.enqueue() for _ in range(3)]
    with working(app):
        done = ended(app, *jobs)
    assert [(job.state, job.result) for job in done] == [(State.SUCCEEDED, 1)] * 3


def test_a_written_success_needs_no_job(
    app: Treadle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the claim nor the end of a plain job makes a Job: only who asks for one pays for it."""
    caplog.set_level(logging.WARNING, "treadle.worker")  # a line about each job is one of those who ask
    take_turn, asked, settled = app.engine.turn, list[str](), list[str]()

    def turn(changes: Sequence[Success], *claim: Any, **named: Any) -> Turn:
        settled.extend(change.id for change in changes)
        answer = take_turn([], *claim, **named)
        given = [one._replace(job=lambda name=one.id: asked.append(name)) for one in answer.claimed]
        return answer._replace(claimed=given, verdicts=[APPLIED] * len(changes))

    @app.task
    async def work() -> None: ...

    jobs = [work.enqueue() for _ in range(3)]
    monkeypatch.setattr(app.engine, "turn", turn)
    with working(app):
        until(lambda: len(settled) == 3, "three ends")
    assert sorted(settled) == sorted(job.id for job in jobs)
    assert asked == []
