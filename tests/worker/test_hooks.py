"""Hooks: what a program does around a run, and what it hears of claims, ends and failures."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.support.making import claimed, start
from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import AttemptEnd, ConfigError, Context, EventKind, GiveUp, InvalidJob, Job, Reason, Retry, State, Treadle
from treadle.testing import run_until_idle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def everything(app: Treadle) -> list[tuple[str, Any]]:
    """Adds a hook of each kind to the app; what they are told, in order."""
    heard: list[tuple[str, Any]] = []
    app.hooks.on_claim(lambda jobs: heard.append(("claim", [job.task for job in jobs])))
    app.hooks.on_settle(lambda end: heard.append(("settle", end)))
    app.hooks.on_failure(lambda end: heard.append(("failure", end)))
    return heard


@any_store
def test_hooks_hear_of_a_claim_an_end_and_a_failure(app: Treadle) -> None:
    heard = everything(app)

    @app.task
    def fine(n: int) -> int:
        return n + 1

    @app.task(retry=Retry(2, 0, 0, 0))
    async def broken() -> None:
        raise ValueError("boom")

    jobs = [fine.enqueue(1), broken.enqueue()]
    with working(app):
        ended(app, *jobs)
    ends = [end for kind, end in heard if kind == "settle"]
    assert sorted(end.kind for end in ends) == [EventKind.FAILED, EventKind.RETRYING, EventKind.SUCCEEDED]
    [good] = [end for end in ends if end.kind is EventKind.SUCCEEDED]
    assert (good.job.id, good.job.state, good.job.result, good.exception) == (jobs[0].id, State.SUCCEEDED, 2, None)
    assert good.duration is not None
    assert 0 <= good.duration < 10
    [bad] = [end for kind, end in heard if kind == "failure"]
    assert (bad.job.id, bad.job.reason, bad.job.failures) == (jobs[1].id, Reason.EXHAUSTED, 2)
    assert isinstance(bad.exception, ValueError)
    assert bad.exception.__traceback__ is not None
    claims = [name for kind, names in heard if kind == "claim" for name in names]
    assert sorted(claims) == ["broken", "broken", "fine"]


def test_hooks_around_a_run_are_nested_as_they_were_added(app: Treadle) -> None:
    seen: list[str] = []

    def around(name: str) -> Callable[[Context], Iterator[None]]:
        def hook(ctx: Context) -> Iterator[None]:
            seen.append(f"{name} {ctx.job.task} in {threading.current_thread().name}")
            yield
            seen.append(f"{name} ends")

        return hook

    app.hooks.around_run(around("outer"))
    app.hooks.around_run(around("inner"))

    @app.task
    def handler() -> None:
        seen.append(f"handler in {threading.current_thread().name}")

    job = handler.enqueue()
    with working(app):
        ended(app, job)
    thread = seen[2].partition(" in ")[2]
    assert seen == [
        f"outer handler in {thread}",
        f"inner handler in {thread}",
        f"handler in {thread}",
        "inner ends",
        "outer ends",
    ]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", ["worker", "testing"])
def test_an_async_hook_runs_on_the_loop_around_any_handler(app: Treadle, is_async: bool, way: str) -> None:
    seen: list[Any] = []

    @app.hooks.around_run
    async def hook(ctx: Context) -> AsyncIterator[None]:
        seen.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        yield
        seen.append(ctx.job.task)

    if is_async:

        @app.task(name="handler")
        async def on_the_loop() -> str:
            return "done"
    else:

        @app.task(name="handler")
        def in_a_thread() -> str:
            return "done"

    job = app.enqueue("handler")
    if way == "testing":
        run_until_idle(app)
    else:
        with working(app):
            ended(app, job)
    assert app.get(job.id).result == "done"
    assert seen[1:] == ["handler"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_swallows_an_error_does_not_make_the_job_succeed(app: Treadle, is_async: bool) -> None:
    @app.hooks.around_run
    def swallow(ctx: Context) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    @app.hooks.around_run
    async def swallow_too(ctx: Context) -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    if is_async:

        @app.task(name="broken", retry=Retry(1))
        async def on_the_loop() -> None:
            raise ValueError("boom")
    else:

        @app.task(name="broken", retry=Retry(1))
        def in_a_thread() -> None:
            raise ValueError("boom")

    job = app.enqueue("broken")
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.error.type, job.error.message) == (State.FAILED, "ValueError", "boom")


def test_an_error_of_a_hook_around_a_run_is_one_of_the_attempt(app: Treadle) -> None:
    @app.hooks.around_run
    def refuse(ctx: Context) -> Iterator[None]:
        if ctx.job.task == "refused":
            raise GiveUp("not on a Sunday")
        yield

    @app.task
    def refused() -> None: ...

    job = refused.enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.reason, job.error.message) == (State.FAILED, Reason.PERMANENT, "not on a Sunday")


def test_a_hook_that_fails_or_hangs_keeps_no_job_waiting(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    hang = threading.Event()
    heard: list[AttemptEnd] = []

    @app.hooks.on_settle
    def fail(end: AttemptEnd) -> None:
        raise SystemExit("a bug")

    @app.hooks.on_settle
    async def listen(end: AttemptEnd) -> None:
        heard.append(end)

    @app.hooks.on_settle
    def wait(end: AttemptEnd) -> None:
        hang.wait(60)

    @app.task
    def fine() -> None: ...

    jobs = [fine.enqueue() for _ in range(3)]
    try:
        with working(app):
            ended(app, *jobs)  # though the first end is still being told
            until(lambda: bool(heard), "the first end")
            assert len(heard) == 1
            hang.set()
    finally:
        hang.set()
    assert {end.job.id for end in heard} == {job.id for job in jobs}
    assert "hook test_a_hook_that_fails_or_hangs_keeps_no_job_waiting.<locals>.fail failed" in caplog.text


def test_a_crashed_job_that_fails_is_told_to_the_hooks_of_whoever_finds_it(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    heard = everything(app)

    @app.task(retry=Retry(1))
    def once() -> None: ...

    job = once.enqueue()
    start(app.engine, claimed(app.engine, job, worker="dead", lease=0.5), lease=0.5)
    with working(app, lease=1):
        [job] = ended(app, job)
        until(lambda: any(kind == "failure" for kind, _ in heard), "the failure")
    [end] = [end for kind, end in heard if kind == "failure"]
    assert (end.job.id, end.job.reason, end.duration, end.exception) == (job.id, Reason.CRASHED, None, None)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.job_id == job.id  # type: ignore[attr-defined]


def test_a_hook_around_enqueue_sees_the_jobs_and_may_refuse_them(app: Treadle) -> None:
    seen: list[str] = []

    @app.hooks.around_enqueue
    def look(jobs: Any) -> Iterator[None]:
        if any(job.tenant == "banned" for job in jobs):
            raise InvalidJob("tenant", "is banned")
        seen.append(f"before {len(jobs)}")
        yield
        seen.append("after")

    @app.task
    def add(n: int) -> None: ...

    add.enqueue(1)
    asyncio.run(add.aenqueue(2))
    add.enqueue_many([(3,), (4,)])
    app.tenant("acme").using(add).enqueue(5)
    assert seen == ["before 1", "after", "before 1", "after", "before 2", "after", "before 1", "after"]
    with pytest.raises(InvalidJob, match="is banned"):
        add.using(tenant="banned").enqueue(6)
    assert app.count()[State.PENDING] == 5


def test_a_hook_around_enqueue_may_give_the_jobs_a_trace(app: Treadle) -> None:
    traces = iter([TRACE, TRACE, None, TRACE])
    seen: list[list[str | None]] = []

    @app.hooks.around_enqueue
    def give(jobs: Any) -> Iterator[str | None]:
        yield next(traces)

    @app.hooks.around_enqueue
    def look(jobs: Any) -> Iterator[None]:
        seen.append([job.trace for job in jobs])
        yield

    @app.task
    def add(n: int) -> None: ...

    jobs = [add.enqueue(1), *(receipt.job for receipt in add.enqueue_many([(2,), (3,)])), add.enqueue(4)]
    own = add.using(trace=TRACE.replace("-01", "-00")).enqueue(5)
    assert [app.get(job.id).trace for job in (*jobs, own)] == [TRACE, TRACE, TRACE, None, own.trace]
    assert seen == [[TRACE], [TRACE, TRACE], [None], [own.trace]]


@pytest.mark.parametrize("yielded", ["started", 7, "00-zz"])
def test_what_a_hook_around_enqueue_yields_and_is_not_a_trace_is_ignored_with_one_warning(
    app: Treadle, yielded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.hooks.around_enqueue
    def timed(jobs: Any) -> Iterator[Any]:
        yield yielded

    add = app.register("add", lambda n: None)
    assert [app.get(add.enqueue(n).id).trace for n in (1, 2)] == [None, None]
    assert [record.name for record in caplog.records if "not a trace" in record.message] == ["treadle.hooks"]


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        ("around_enqueue", lambda jobs: None),
        ("around_run", lambda ctx: None),
        ("on_claim", None),
        ("on_settle", "text"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_when_it_is_added(app: Treadle, kind: str, hook: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind}: .* must be a"):
        getattr(app.hooks, kind)(hook)


def test_an_async_hook_around_enqueue_is_refused_with_the_reason(app: Treadle) -> None:
    async def hook(jobs: list[Job]) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigError, match="without an event loop"):
        app.hooks.around_enqueue(hook)  # type: ignore[type-var]


# ------------------------------------------------------------------------------------------- the log


def test_the_log_has_a_line_for_every_job_that_ends(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @app.task(queue="default", retry=Retry(2, 0, 0, 0))
    def work(fails: bool) -> None:
        if fails:
            raise ValueError("boom")

    good, bad = work.enqueue(False), work.enqueue(True)
    with working(app):
        ended(app, good, bad)
    records = {(getattr(one, "job_id", ""), one.levelname): one for one in caplog.records}
    fine = records[good.id, "INFO"]
    assert fine.getMessage().startswith(f"job {good.id} (work) succeeded in ")
    facts = fine.facts  # type: ignore[attr-defined]
    assert (facts["queue"], facts["attempt"]) == ("default", 1)
    assert facts["duration"] >= 0
    again = records[bad.id, "WARNING"]
    assert "(work) retrying, failure 1 of 2: ValueError: boom; due again at " in again.getMessage()
    assert again.exc_info is None
    last = records[bad.id, "ERROR"]
    assert "(work) failed, failure 2 of 2: ValueError: boom" in last.getMessage()
    assert isinstance(last.exc_info[1], ValueError)  # type: ignore[index]
    assert last.facts["error_type"] == "ValueError"  # type: ignore[attr-defined]


def test_lines_of_jobs_that_end_well_can_be_switched_off(
    make_app: Callable[..., Treadle], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = make_app(log_jobs=False)

    @app.task
    def fine() -> None: ...

    job = fine.enqueue()
    with working(app):
        ended(app, job)
    assert [one for one in caplog.records if getattr(one, "job_id", None)] == []


def test_an_async_hook_that_raises_system_exit_ends_neither_the_worker_nor_its_loop(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    @app.hooks.on_settle
    async def leave(end: AttemptEnd) -> None:
        raise SystemExit(3)

    @app.hooks.around_run
    async def leave_too(ctx: Context) -> AsyncIterator[None]:
        yield
        if ctx.job.task == "left":
            raise SystemExit(4)

    app.register("fine", lambda: None)
    app.register("left", lambda: None, retry=Retry(1))
    left = app.enqueue("left")
    with working(app):
        [left] = ended(app, left)
        [fine] = ended(app, app.enqueue("fine"))
    assert (left.state, left.error.type, fine.state) == (State.FAILED, "SystemExit", State.SUCCEEDED)
    assert "leave failed" in caplog.text


def test_a_cancelled_job_is_no_warning(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    began = threading.Event()

    @app.task
    async def nap() -> None:
        began.set()
        await asyncio.sleep(60)

    job = nap.enqueue()
    with working(app):
        until(began.is_set, "the handler")
        app.cancel(job.id)
        ended(app, job)
    [record] = [one for one in caplog.records if getattr(one, "job_id", "") == job.id]
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith(f"job {job.id} (nap) cancelled in ")
    assert record.getMessage().endswith(": stopped on request")
