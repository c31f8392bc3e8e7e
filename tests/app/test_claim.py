"""`app.claim`: jobs for your own code, without a worker, behind the same fence as a worker's."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.marks import any_store
from treadle import (
    Claimed,
    ConfigError,
    Context,
    EngineUnavailable,
    GiveUp,
    InvalidInput,
    InvalidJob,
    LeaseLost,
    Reason,
    Retry,
    State,
    Treadle,
)
from treadle.testing import FakeClock, run_until_idle

pytestmark = any_store


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app()


def held(app: Treadle, task: str = "resize", **options: object) -> Claimed:
    """A job, stored and claimed."""
    app.enqueue(task, {"image": 7}, checked=False, **options)
    [claimed] = app.claim()
    return claimed


def test_jobs_are_claimed_in_their_order_and_each_one_once(app: Treadle) -> None:
    late, early = (app.enqueue("resize", checked=False, priority=priority) for priority in (0, 5))
    assert [claimed.job.id for claimed in app.claim()] == [early.id]
    assert [claimed.job.id for claimed in app.claim(limit=10)] == [late.id]
    assert app.claim() == []


def test_a_claimed_job_runs_under_the_name_and_lease_that_were_asked_for(app: Treadle, clock: FakeClock) -> None:
    app.enqueue("resize", {"image": 7}, checked=False)
    [claimed] = app.claim(lease="10m", worker="batch-1")
    job = app.get(claimed.job.id)
    assert (job.state, job.worker, job.attempt, job.lease_token) == (State.RUNNING, "batch-1", 1, claimed.token)
    assert job.lease_until == claimed.lease_until == clock.now() + timedelta(minutes=10)
    assert (claimed.job.payload, claimed.job.started_at) == ({"image": 7}, None)


def test_the_name_of_one_task_is_not_a_list_of_letters(app: Treadle) -> None:
    with pytest.raises(InvalidJob, match=r"tasks: 'count' is not a list; write tasks=\['count'\]"):
        app.claim(tasks="count")


def test_only_the_tasks_and_queues_that_were_asked_for_are_claimed(app: Treadle) -> None:
    app.enqueue("resize", checked=False, queue="images")
    mail = app.enqueue("mail", checked=False)

    @app.task
    def report() -> None: ...

    assert app.claim(tasks=["resize", report]) == []
    assert app.claim(tasks=[]) == []
    assert [one.job.task for one in app.claim(queues=["images"])] == ["resize"]
    assert [one.job.id for one in app.claim(tasks=["mail"])] == [mail.id]


def test_a_job_that_succeeds_keeps_its_result_start_and_cost(app: Treadle, clock: FakeClock) -> None:
    claimed = held(app)
    claimed.start()
    assert app.get(claimed.job.id).started_at == clock.now()
    clock.advance(seconds=2)
    claimed.context.add_cost(50)
    told = claimed.succeed({"width": 640})
    job = app.get(claimed.job.id)
    assert told == job
    assert (job.state, job.result, job.cost_micros) == (State.SUCCEEDED, {"width": 640}, 50)
    assert job.finished_at - job.started_at == timedelta(seconds=2)


def test_a_failure_is_retried_while_there_are_attempts(app: Treadle, clock: FakeClock) -> None:
    claimed = held(app, retry=Retry(max_attempts=2, base=30, jitter=0))
    job = claimed.fail(ValueError("too large"))
    assert (job.state, job.failures, job.error.type, job.error.message) == (State.PENDING, 1, "ValueError", "too large")
    assert job.due_at - clock.now() == timedelta(seconds=30)
    assert app.claim() == []
    clock.advance(seconds=30)
    [claimed] = app.claim()
    job = claimed.fail("still too large")
    assert (job.state, job.reason, job.error.message) == (State.FAILED, Reason.EXHAUSTED, "still too large")
    assert app.get(job.id) == job


def test_a_failure_may_name_its_own_delay(app: Treadle, clock: FakeClock) -> None:
    assert held(app).fail("later", after="1h").due_at - clock.now() == timedelta(hours=1)


@pytest.mark.parametrize("way", ["retry=False", "GiveUp"])
def test_a_failure_for_good_is_not_retried(app: Treadle, way: str) -> None:
    claimed = held(app)
    job = claimed.fail(GiveUp("no")) if way == "GiveUp" else claimed.fail("no", retry=False)
    assert (job.state, job.reason, job.error.message) == (State.FAILED, Reason.PERMANENT, "no")


def test_a_job_is_put_back_without_spending_an_attempt(app: Treadle, clock: FakeClock) -> None:
    job = held(app).release()
    assert (job.state, job.failures, job.due_at <= clock.now()) == (State.PENDING, 0, True)
    [claimed] = app.claim()
    job = claimed.snooze("5m")
    assert (job.state, job.failures, job.due_at - clock.now()) == (State.PENDING, 0, timedelta(minutes=5))


def test_a_job_is_cancelled_by_its_holder(app: Treadle) -> None:
    job = held(app).cancel("no longer wanted")
    assert (job.state, job.reason) == (State.CANCELLED, Reason.BY_REQUEST)


def test_the_lease_is_extended_and_progress_is_seen(app: Treadle, clock: FakeClock) -> None:
    claimed = held(app)
    clock.advance(seconds=20)
    claimed.context.progress(0.5, "half")
    assert claimed.extend("2m") is True
    job = app.get(claimed.job.id)
    assert job.lease_until == claimed.lease_until == clock.now() + timedelta(minutes=2)
    assert (job.progress.fraction, job.progress.note) == (0.5, "half")
    clock.advance(seconds=60)
    assert app.recover() == 0
    claimed.extend()
    assert claimed.lease_until == clock.now() + timedelta(minutes=2)


def test_a_wish_to_cancel_is_heard_with_the_extension_and_the_job_ends_cancelled(app: Treadle) -> None:
    claimed = held(app)
    app.cancel(claimed.job.id, actor="ada")
    assert claimed.extend() is False
    assert claimed.context.cancelled
    assert claimed.fail("stopped").state is State.CANCELLED


def test_a_success_stands_although_somebody_wished_to_cancel(app: Treadle) -> None:
    claimed = held(app)
    app.cancel(claimed.job.id, actor="ada")  # the holder has not heard of it: the store's revision is ahead of it
    assert claimed.succeed(7).state is State.SUCCEEDED
    assert app.get(claimed.job.id).result == 7


EVERY_WRITE = {
    "start": lambda claimed: claimed.start(),
    "extend": lambda claimed: claimed.extend(),
    "succeed": lambda claimed: claimed.succeed(1),
    "fail": lambda claimed: claimed.fail("late"),
    "fail for good": lambda claimed: claimed.fail("late", retry=False),
    "snooze": lambda claimed: claimed.snooze(5),
    "release": lambda claimed: claimed.release(),
    "cancel": lambda claimed: claimed.cancel(),
    "once": lambda claimed: claimed.context.once("mail", lambda: 1),
}


@pytest.mark.parametrize("write", EVERY_WRITE)
def test_a_zombie_changes_nothing(app: Treadle, clock: FakeClock, write: str) -> None:
    zombie = held(app)
    clock.advance(minutes=5)
    assert app.recover() == 1
    [second] = app.claim(worker="second")
    before = app.get(second.job.id)
    with pytest.raises(LeaseLost, match="no longer yours"):
        EVERY_WRITE[write](zombie)
    assert (app.get(second.job.id), app.memos(second.job)) == (before, [])
    assert second.succeed("second").result == "second"


@pytest.mark.parametrize("write", [name for name in EVERY_WRITE if name != "succeed"])
def test_a_job_that_was_settled_is_not_settled_in_another_way(app: Treadle, write: str) -> None:
    claimed = held(app)
    done = claimed.succeed(1)
    with pytest.raises(LeaseLost):
        EVERY_WRITE[write](claimed)
    assert app.get(done.id) == done


def test_a_success_whose_answer_was_lost_is_known_as_our_own(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed, turn, lost = held(app), app.engine.turn, []

    def losing(*args: object) -> object:
        answer = turn(*args)
        if not lost:
            lost.append(answer)
            raise EngineUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(app.engine, "turn", losing)
    assert claimed.succeed(1).state is State.SUCCEEDED
    assert len(lost) == 1
    assert [event.kind for event in app.events(claimed.job)].count("succeeded") <= 1
    assert app.get(claimed.job.id).result == 1


def test_a_job_of_a_holder_that_crashed_is_claimed_again(app: Treadle, clock: FakeClock) -> None:
    claimed = held(app)
    claimed.start()
    clock.advance(minutes=5)
    app.recover(actor="runner", message="Job timed out (stale claim)")
    [again] = app.claim()
    assert (again.job.id, again.job.attempt, again.job.crashes) == (claimed.job.id, 2, 1)
    assert again.job.error.message == "Job timed out (stale claim)"


def test_an_effect_is_done_once_over_two_holders(app: Treadle, clock: FakeClock) -> None:
    sent: list[str] = []
    first = held(app)
    first.context.once("mail", sent.append, "first")
    clock.advance(minutes=5)
    app.recover()
    [second] = app.claim()
    second.context.once("mail", sent.append, "second")
    assert sent == ["first"]


def test_what_is_claimed_by_hand_no_worker_takes_and_what_it_gives_back_a_worker_runs(app: Treadle) -> None:
    @app.task
    def resize(ctx: Context, image: int) -> int:
        return image * ctx.attempt

    claimed = held(app)
    assert run_until_idle(app) == []
    claimed.release()
    [job] = run_until_idle(app)
    assert job.result == 14


def test_a_key_is_free_and_the_follow_up_stored_when_it_ends(app: Treadle) -> None:
    @app.task
    def report(job_id: str, state: str) -> None: ...

    @app.task(on_succeeded=report)
    def resize(image: int) -> None: ...

    resize.using(key="image:7").enqueue(7)
    [claimed] = app.claim(tasks=[resize])
    claimed.succeed()
    assert [job.payload["job_id"] for job in app.find(task=report).jobs] == [claimed.job.id]
    assert resize.using(key="image:7").enqueue(7).id != claimed.job.id


def test_secrets_of_the_payload_are_not_kept_in_errors(app: Treadle) -> None:
    @app.task(secret=["token"])
    def call(token: str) -> None: ...

    call.enqueue("s3cr3t-canary")
    [claimed] = app.claim()
    job = claimed.fail(ValueError("refused for s3cr3t-canary"))
    assert "s3cr3t" not in job.error.message + job.error.traceback


def test_a_paused_queue_gives_nothing(app: Treadle) -> None:
    app.enqueue("resize", checked=False)
    app.pause(queue="default", actor="ada")
    assert app.claim() == []
    app.resume(queue="default", actor="ada")
    assert len(app.claim()) == 1


def test_async_code_has_the_same(app: Treadle) -> None:
    async def work() -> State:
        await app.aenqueue("resize", checked=False)
        [claimed] = await app.aclaim()
        await claimed.astart()
        assert await claimed.aextend()
        return (await claimed.asucceed(1)).state

    assert asyncio.run(work()) is State.SUCCEEDED


WRONG = [
    ({"limit": 0}, "limit: 0 must be from 1 to 500"),
    ({"limit": 501}, "limit: 501 must be from 1 to 500"),
    ({"limit": "2"}, "limit: '2' must be from 1 to 500"),
    ({"lease": 0}, "lease"),
    ({"lease": "2y"}, "lease"),
    ({"queues": []}, "queues"),
    ({"queues": [""]}, "queues"),
    ({"worker": ""}, "worker: '' is not a valid name"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG, ids=str)
def test_what_is_wrong_is_refused_and_nothing_is_claimed(
    app: Treadle, options: dict[str, object], problem: str
) -> None:
    app.enqueue("resize", checked=False)
    with pytest.raises((InvalidInput, ConfigError), match=problem):
        app.claim(**options)
    assert len(app.claim()) == 1


@pytest.mark.parametrize(
    ("settle", "problem"),
    [
        (lambda claimed: claimed.fail(7), "error: 7 must be an exception or a text"),
        (lambda claimed: claimed.fail("no", retry=False, after=5), "after: belongs to a retry"),
        (lambda claimed: claimed.fail("no", after="soon"), "after: 'soon'"),
        (lambda claimed: claimed.snooze(-1), "delay: -1 is out of range"),
        (lambda claimed: claimed.succeed(object()), "result: cannot be JSON"),
        (lambda claimed: claimed.extend("2y"), "lease"),
    ],
)
def test_a_settlement_that_is_wrong_is_refused_and_the_job_is_still_held(
    app: Treadle, settle: Callable[[Claimed], object], problem: str
) -> None:
    claimed = held(app)
    with pytest.raises((InvalidInput, ConfigError), match=problem):
        settle(claimed)
    assert claimed.succeed(1).state is State.SUCCEEDED
