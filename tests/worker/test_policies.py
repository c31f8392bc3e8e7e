"""How a worker works can be set: how often it sweeps, how much it claims, when it writes a start, where it logs."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.workbench import Crowd, ended, in_state, until, watched, working
from treadle import Context, Job, Reason, Retry, State, Task, Treadle
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.worker.maintenance import recovery
from treadle.worker.worker import Worker

# --------------------------------------------------------------------------------------------------- sweep


class Looks:
    """A worker's chores by a clock that moves when told; counts how often it looked for leases that ran out."""

    def __init__(self, app: Treadle, monkeypatch: pytest.MonkeyPatch, noise: float = 1.0) -> None:
        self.now = 1000.0
        self.count = 0
        monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(recovery, "random", SimpleNamespace(uniform=lambda low, high: low + noise * (high - low)))
        self.engine = watched(app)
        self.engine.expired = self._expired
        self.worker: Worker = app.worker()
        self.after(0)

    def _expired(self, **_: Any) -> list[Job]:
        self.count += 1
        return []

    def after(self, seconds: float) -> int:
        """How often it has looked, by so many seconds later."""
        self.now += seconds
        self.worker._maintenance._recovery.run_due()
        return self.count


@pytest.mark.parametrize(
    ("settings", "noise", "period"),
    [
        ({}, 1.0, 1.0),
        ({}, 0.0, 0.5),
        ({"lease": 2}, 1.0, 0.5),
        ({"sweep": 0.2}, 1.0, 0.2),
        ({"sweep": 0.2}, 0.0, 0.1),
        ({"sweep": "5m"}, 0.0, 300.0),
        ({"sweep": "5m", "lease": 2}, 1.0, 300.0),
    ],
)
def test_leases_are_looked_for_once_a_sweep(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch, settings: dict, noise: float, period: float
) -> None:
    looks = Looks(make_app(**settings), monkeypatch, noise)
    assert looks.count == 1
    assert looks.after(period * 0.99) == 1
    assert looks.after(period * 0.02) == 2
    assert looks.after(period * 0.99) == 2
    assert looks.after(period * 0.02) == 3


# --------------------------------------------------------------------------------------------------- batch


@pytest.mark.parametrize(("batch", "largest"), [(2, 2), (None, 6), (100, 6)])
def test_no_more_jobs_are_claimed_at_once_than_the_batch_allows(
    make_app: Callable[..., Treadle], batch: int | None, largest: int
) -> None:
    app = make_app(batch=batch)
    crowd = Crowd()

    @app.task
    async def work() -> None:
        with crowd:
            while crowd.most < 6:
                await asyncio.sleep(0.005)

    work.enqueue_many([()] * 6)
    engine, taken = watched(app), []
    take = engine.turn

    def turn(*arguments: Any, **named: Any) -> Any:
        answer = take(*arguments, **named)
        taken.append(len(answer.jobs))
        return answer

    engine.turn = turn
    with working(app, concurrency=6):
        until(lambda: app.count()[State.SUCCEEDED] == 6, "six jobs")
    assert max(taken) == largest
    assert crowd.most == 6  # the slots are filled all the same


# --------------------------------------------------------------------------------------------------- start


@any_store
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_with_start_first_every_start_is_in_the_store_before_its_handler_begins(
    make_app: Callable[..., Treadle], colour: str
) -> None:
    app, crowd = make_app(start="first"), Crowd()
    seen: list[Job] = []

    def plain(ctx: Context) -> None:
        seen.append(app.get(ctx.job.id))
        with crowd:
            until(lambda: crowd.most == 3, "three at once")

    async def on_the_loop(ctx: Context) -> None:
        seen.append(app.get(ctx.job.id))
        with crowd:
            while crowd.most < 3:
                await asyncio.sleep(0.005)

    task = app.register("work", plain if colour == "plain" else on_the_loop)
    jobs = [task.enqueue() for _ in range(6)]
    with working(app, lease=60, concurrency=3):  # no renewal will do it, and they are no suspects
        done = ended(app, *jobs)
    assert {job.state for job in done} == {State.SUCCEEDED}
    assert all(job.started_at is not None for job in seen)
    assert {job.id: job.started_at for job in seen} == {job.id: job.started_at for job in done}
    assert crowd.most == 3  # side by side: only suspects run one at a time


def test_without_it_a_start_is_written_with_the_next_write(app: Treadle) -> None:
    seen: list[Job] = []

    @app.task
    def work(ctx: Context) -> None:
        seen.append(app.get(ctx.job.id))

    with working(app, lease=60):
        [job] = ended(app, work.enqueue())
    assert seen[0].started_at is None
    assert job.started_at is not None


def test_starts_that_cannot_be_written_now_are_written_when_the_store_answers(make_app: Callable[..., Treadle]) -> None:
    app = make_app(start="first")

    @app.task
    def work(n: int) -> int:
        return n

    jobs = [work.enqueue(n) for n in range(3)]
    engine = watched(app)
    engine.cut.set()
    with working(app, lease=60):
        until(lambda: app.count()[State.RUNNING] == 3, "three claimed jobs")
        assert {app.get(job.id).started_at for job in jobs} == {None}
        engine.cut.clear()
        assert sorted(job.result for job in ended(app, *jobs)) == [0, 1, 2]


def test_a_start_whose_row_is_locked_is_written_later_and_does_not_hold_up_the_others(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app(start="first")
    work = app.register("work", lambda: "done")
    engine, locked = watched(app), threading.Event()
    locked.set()
    first, others = work.using(priority=1).enqueue(), [work.enqueue() for _ in range(2)]
    write = engine.extend

    def extend(holds: Sequence[Lease], **named: Any) -> list[RenewalResult]:
        free = [hold for hold in holds if not (locked.is_set() and hold.job_id == first.id)]
        answers = {held.job_id: held for held in write(free, **named)} if free else {}
        return [answers.get(hold.job_id, RenewalResult(hold.job_id, Renewal.BUSY)) for hold in holds]

    engine.extend = extend
    with working(app, lease=60):
        ended(app, *others)
        assert app.get(first.id).started_at is None
        locked.clear()
        [job] = ended(app, first)
    assert job.started_at is not None


@any_store
def test_with_start_first_a_worker_that_stops_gives_back_what_has_not_begun(make_app: Callable[..., Treadle]) -> None:
    app = make_app(start="first")
    work = app.register("work", lambda: "done")
    engine = watched(app)
    engine.cut.set()
    job = work.enqueue()

    def answer_once_it_stops(worker: Worker) -> None:
        until(lambda: worker._host.stopping, "the stop")
        engine.cut.clear()

    with working(app, lease=60, grace=5) as worker:
        in_state(app, job, state=State.RUNNING)
        threading.Thread(target=answer_once_it_stops, args=(worker,)).start()
    given_back = app.get(job.id)
    assert (given_back.state, given_back.failures, given_back.crashes) == (State.PENDING, 0, 0)


# ------------------------------------------------------------------------------------------------- expired


def expired_and_lost(app: Treadle) -> tuple[Job, Job]:
    """A pending job past its time to live, and a running one past its lease, both in the next sweep."""
    task = app.register("stale", lambda: "done")
    late, lost = task.using(expires_at="10ms", queue="late").enqueue(), task.using(queue="lost").enqueue()
    [held] = claim(app.engine, 1, lease=0.001, queues=["lost"])
    until(lambda: app.engine.now() > max(late.expires_at, held.lease_until), "the end of both")
    return late, lost


@any_store
@pytest.mark.covers("000-R05.c")
@pytest.mark.parametrize("policy", ["cancel", "leave"])
def test_the_sweep_ends_an_expired_job_or_leaves_it_pending_as_the_policy_says(
    make_app: Callable[..., Treadle], policy: str
) -> None:
    app = make_app(expired_jobs=policy)
    late, lost = expired_and_lost(app)
    with working(app, queues=["late"]):
        in_state(app, lost, crashes=1)  # the sweep that found this one found the other too
    after = app.get(late.id)
    if policy == "cancel":
        assert (after.state, after.reason) == (State.CANCELLED, Reason.EXPIRED)
    else:
        assert after == late  # pending, and not run


# --------------------------------------------------------------------------------------------------- logger


def records(caplog: pytest.LogCaptureFixture, job: Job) -> set[str]:
    """The loggers that spoke of this job."""
    return {record.name for record in caplog.records if job.id in f"{record.getMessage()} {vars(record).get('job_id')}"}


def failing(app: Treadle) -> Task:
    def work(ctx: Context) -> None:
        ctx.log.warning("about to fail")
        raise RuntimeError("no luck")

    return app.register("work", work, retry=Retry(max_attempts=1))


@any_store
@pytest.mark.covers("002-Q1.a")
def test_two_apps_in_one_process_share_neither_tasks_nor_connections_nor_logger(
    make_app: Callable[..., Treadle], caplog: pytest.LogCaptureFixture
) -> None:
    shop, mail = make_app(logger=logging.getLogger("shop.jobs")), make_app(logger=logging.getLogger("mail.jobs"))
    caplog.set_level(logging.DEBUG)
    shops, mails = failing(shop).using(queue="shop").enqueue(), failing(mail).using(queue="mail").enqueue()
    with working(shop, queues=["shop"]), working(mail, queues=["mail"]):
        ended(shop, shops, mails)
    assert (records(caplog, shops), records(caplog, mails)) == ({"shop.jobs"}, {"mail.jobs"})
    assert not [record for record in caplog.records if record.name in ("treadle.worker", "treadle.maintenance")]

    shop.register("only_in_the_shop", lambda: None)
    assert "only_in_the_shop" not in mail.tasks
    assert shop.engine is not mail.engine
    shop.close()
    assert mail.get(mails.id).state is State.FAILED  # its connections are its own


@any_store
def test_recovery_and_lost_leases_are_told_to_the_apps_own_logger(
    make_app: Callable[..., Treadle], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(logger=logging.getLogger("shop.jobs"))
    release = threading.Event()

    @app.task
    def hold() -> None:
        assert release.wait(60)

    _, lost = expired_and_lost(app)
    engine = watched(app)
    with working(app, queues=["default"]):
        in_state(app, lost, crashes=1)
        job = hold.enqueue()
        in_state(app, job, state=State.RUNNING)
        engine.cut.set()  # the keeper cannot renew
        until(lambda: [line for line in caplog.records if "could not be renewed" in line.getMessage()], "its complaint")
        release.set()
        engine.cut.clear()
    assert records(caplog, lost) == {"shop.jobs"}
    assert records(caplog, job) == {"shop.jobs"}
    assert {record.name for record in caplog.records if "leases not renewed" in record.getMessage()} == {"shop.jobs"}


def test_without_a_logger_of_its_own_an_app_speaks_as_treadle(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    job = failing(app).enqueue()
    _, lost = expired_and_lost(app)
    with working(app):
        ended(app, job)
        in_state(app, lost, crashes=1)
    assert records(caplog, job) == {"treadle.worker", "treadle.task"}
    assert records(caplog, lost) == {"treadle.worker"}
