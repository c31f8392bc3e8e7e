"""ctx.once in workers that are killed, frozen and cut off: the effect is not repeated, and nobody pretends to know."""

import asyncio
import signal
import threading
from collections.abc import Callable
from math import inf

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.workbench import Process, ended, working
from treadle import Context, EngineUnavailable, Job, LeaseLost, Memo, Reason, Retry, State, Treadle
from treadle.engines.values import ClaimedJob, Lease, Renewal, RenewalResult
from treadle.model import lifecycle
from treadle.model.memo import MemoState
from treadle.worker.attempt import Attempt
from treadle.worker.handler_writes import HandlerWrites

LEASE = 1.0
AT_ONCE = Retry(max_attempts=5, base=0, cap=0, jitter=0)


@pytest.fixture
def posted() -> list[int]:
    """The attempts of the second worker that have posted."""
    return []


@pytest.fixture
def second(make_app: Callable[..., Treadle], posted: list[int]) -> Treadle:
    """An app whose worker knows the task `mail` of worker_process.py, and posts without waiting."""
    app = make_app()

    @app.task
    def mail(ctx: Context, policy: str) -> object:
        def post() -> str:
            posted.append(ctx.attempt)
            return f"posted by attempt {ctx.attempt}"

        look = (lambda: "found") if policy == "look" else None
        return ctx.once("post", post, on_ambiguous="park" if policy == "look" else policy, look=look)

    return app


def states(app: Treadle, job: Job) -> dict[str, MemoState]:
    return {memo.name: memo.state for memo in app.memos(job)}


def left_alone(second: Treadle, process: Callable[..., Process], policy: str) -> tuple[Job, Process]:
    """A job whose worker is in the middle of its effect."""
    first = process(lease=LEASE)
    job = second.enqueue("mail", {"policy": policy})
    first.marked("posted-1")
    return job, first


ENDS = {
    "park": (State.FAILED, None, [], MemoState.PARKED),
    "send": (State.SUCCEEDED, "posted by attempt 2", [2], MemoState.DONE),
    "skip": (State.SUCCEEDED, None, [], MemoState.DONE),
}


@any_store
@pytest.mark.parametrize("policy", ENDS)
def test_killed_in_the_middle_the_policy_decides(
    second: Treadle, process: Callable[..., Process], posted: list[int], policy: str
) -> None:
    job, doomed = left_alone(second, process, policy)
    doomed.signal(signal.SIGKILL)
    doomed.exit_code()
    with working(second, lease=LEASE):
        [job] = ended(second, job)
    state, result, sent, memo = ENDS[policy]
    assert (job.state, job.result, posted, states(second, job)) == (state, result, sent, {"post": memo})
    if policy == "park":
        assert (job.reason, job.error.type, job.failures) == (Reason.PERMANENT, "treadle.errors.Parked", 0)
        assert "'post': nobody knows whether it has happened: attempt 1 began it at " in job.error.message


@any_store
def test_a_parked_job_does_it_when_an_operator_retries_it(
    second: Treadle, process: Callable[..., Process], posted: list[int]
) -> None:
    job, doomed = left_alone(second, process, "park")
    doomed.signal(signal.SIGKILL)
    doomed.exit_code()
    with working(second, lease=LEASE):
        ended(second, job)
        second.retry(job, actor="ada", reason="the mail is not in the outbox")
        [job] = ended(second, job)
    assert (job.state, job.result, posted) == (State.SUCCEEDED, "posted by attempt 3", [3])


@any_store
def test_killed_after_it_was_written_the_value_is_there_and_nothing_is_repeated(
    second: Treadle, process: Callable[..., Process], posted: list[int]
) -> None:
    job, doomed = left_alone(second, process, "park")
    (doomed.folder / "answered").touch()
    doomed.marked("kept-1")
    doomed.signal(signal.SIGKILL)
    doomed.exit_code()
    with working(second, lease=LEASE):
        [job] = ended(second, job)
    assert (job.state, job.result, job.attempt, posted) == (State.SUCCEEDED, "posted by attempt 1", 2, [])


@any_store
def test_a_frozen_worker_that_wakes_up_cannot_write_what_it_did(
    second: Treadle, process: Callable[..., Process], posted: list[int]
) -> None:
    job, frozen = left_alone(second, process, "park")
    frozen.signal(signal.SIGSTOP)
    with working(second, lease=LEASE):
        [job] = ended(second, job)
    assert (job.state, states(second, job)) == (State.FAILED, {"post": MemoState.PARKED})
    (frozen.folder / "answered").touch()
    frozen.signal(signal.SIGCONT)
    frozen.signal(signal.SIGTERM)
    assert frozen.exit_code() == 0  # by now it has said all it had to say
    assert not (frozen.folder / "kept-1").exists()  # LeaseLost, before the handler could go on
    assert (second.get(job.id), states(second, job), posted) == (job, {"post": MemoState.PARKED}, [])


@any_store
def test_an_attempt_that_fails_later_does_not_repeat_what_is_done(app: Treadle) -> None:
    sent: list[int] = []

    @app.task(retry=AT_ONCE)
    async def pay(ctx: Context) -> object:
        async def send() -> dict[str, int]:
            sent.append(ctx.attempt)
            return {"attempt": ctx.attempt}

        answers = [await ctx.aonce(name, send) for name in ("invoice", "receipt")]
        if ctx.attempt < 3:
            raise ValueError("later")
        return answers

    job = pay.enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.result, job.attempt, sent) == ([{"attempt": 1}, {"attempt": 1}], 3, [1, 1])
    memos = app.memos(job)
    assert [(memo.name, memo.kind, memo.state, memo.attempt) for memo in memos] == [
        ("invoice", "once", MemoState.DONE, 1),
        ("receipt", "once", MemoState.DONE, 1),
    ]
    assert all(job.created_at <= memo.began_at <= memo.at <= job.finished_at for memo in memos)


@any_store
def test_an_effect_that_failed_is_tried_again_by_the_next_attempt(app: Treadle) -> None:
    @app.task(retry=AT_ONCE)
    def pay(ctx: Context) -> object:
        def send() -> int:
            if ctx.attempt == 1:
                raise ValueError("refused")
            return ctx.attempt

        return ctx.once("invoice", send)

    job = pay.enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.result) == (State.SUCCEEDED, 2)


@any_store
def test_a_coroutine_that_runs_past_its_timeout_in_an_effect_is_parked(app: Treadle) -> None:
    @app.task(timeout=0.3, retry=AT_ONCE)
    async def pay(ctx: Context) -> object:
        return await ctx.aonce("invoice", asyncio.sleep, 3600)

    job = pay.enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.error.type, job.attempt) == (State.FAILED, "treadle.errors.Parked", 2)


def test_a_store_that_is_away_for_a_moment_is_waited_for(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect has happened: an answer that cannot be written at once is not thrown away."""
    extend, troubles, sent = app.engine.extend, [], list[int]()

    def unsteady(leases: list[Lease], *, lease: float) -> list[RenewalResult]:
        if leases[0].memos and leases[0].memos[0].state is MemoState.DONE and len(troubles) < 3:
            troubles.append(leases[0].memos[0].name)
            if len(troubles) == 1:
                raise EngineUnavailable("restarting")
            busy = Renewal.BUSY if len(troubles) == 2 else Renewal.MISSED
            return [RenewalResult(leases[0].job_id, busy)]
        return extend(leases, lease=lease)

    @app.task
    def pay(ctx: Context) -> object:
        return ctx.once("invoice", lambda: sent.append(1))

    job = pay.enqueue()
    monkeypatch.setattr(app.engine, "extend", unsteady)
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.attempt, sent, troubles) == (State.SUCCEEDED, 1, [1], ["invoice"] * 3)


def test_a_store_that_stays_away_before_the_effect_keeps_it_from_happening(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend, sent = app.engine.extend, list[int]()

    def away(leases: list[Lease], *, lease: float) -> list[RenewalResult]:
        if leases[0].memos:
            raise EngineUnavailable("gone")
        return extend(leases, lease=lease)

    @app.task(retry=Retry(max_attempts=1))
    def pay(ctx: Context) -> object:
        return ctx.once("invoice", lambda: sent.append(1))

    job = pay.enqueue()
    monkeypatch.setattr(app.engine, "extend", away)
    with working(app, lease=1):
        [job] = ended(app, job)
    assert (job.state, job.error.type, sent) == (State.FAILED, "treadle.errors.EngineUnavailable", [])


@any_store
def test_a_handler_whose_job_has_ended_is_told_at_once(app: Treadle) -> None:
    app.enqueue("pay", checked=False)
    [job] = claim(app.engine, lease=3600.0, worker="first")
    writes = HandlerWrites(app.engine, Attempt(ClaimedJob.of(job), lease_ends=inf, queued_at=0.0), 3600.0)
    now = app.engine.now()
    app.engine.turn([lifecycle.settle(job, lifecycle.Succeeded(), now)])
    with pytest.raises(LeaseLost, match="'invoice' was not written down"):
        writes.remember(Memo("invoice", "once", MemoState.DONE, 1, now, now, "7"))
    assert app.memos(job) == []


def test_the_first_attempt_reads_no_memos(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(app.engine, "memos", lambda job_id: asked.append(job_id) or [])

    @app.task(retry=AT_ONCE)
    def pay(ctx: Context) -> None:
        ctx.once("invoice", lambda: None)
        ctx.once("receipt", lambda: None)
        if ctx.attempt == 1:
            raise ValueError("again")

    job = pay.enqueue()
    with working(app):
        ended(app, job)
    assert asked == [job.id]  # by the second attempt, once


@any_store
def test_an_effect_keeps_the_lease(app: Treadle) -> None:
    """What is remembered renews the lease, and the start comes with it."""
    entered, go_on = threading.Event(), threading.Event()

    def send() -> None:
        entered.set()
        go_on.wait(10)

    @app.task
    def pay(ctx: Context) -> None:
        ctx.once("invoice", send)

    job = pay.enqueue()
    with working(app, lease=30):
        assert entered.wait(10)
        seen = app.get(job.id)
        assert seen.started_at is not None
        assert claim(app.engine, lease=1.0, worker="thief") == []
        go_on.set()
        ended(app, job)


@any_store
def test_memos_of_another_tenants_job_are_not_told(app: Treadle) -> None:
    @app.task
    def pay(ctx: Context) -> None:
        ctx.once("invoice", lambda: 7)

    job = app.tenant("acme").enqueue("pay")
    with working(app):
        ended(app, job)
    assert [memo.value_json for memo in app.tenant("acme").memos(job.id)] == ["7"]
    with pytest.raises(LookupError):
        app.tenant("umbrella").memos(job.id)
