"""What follows the end of a job: jobs of other tasks that are told how it ended."""

from collections.abc import Callable

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.support.making import claim, start, unstored
from tests.support.marks import any_store
from treadle import Cancelled, Context, GiveUp, InvalidJob, Job, Reason, Retry, Snooze, State, Task, Treadle
from treadle.engines.values import Ruling
from treadle.errors import ConfigError
from treadle.model import PAYLOAD_CAP, EventKind, lifecycle
from treadle.profiles import chat_server
from treadle.testing import FakeClock, run_until_idle

ONCE = Retry(max_attempts=1)
OUTCOMES: dict[str, Exception | None] = {
    "fine": None, "failing": RuntimeError("boom"), "hopeless": GiveUp("never"), "unwanted": Cancelled("stop"),
}  # fmt: skip


@pytest.fixture
def told() -> list[dict]:
    """What the tasks that follow were told, in order."""
    return []


def teller(told: list) -> Callable[[str], None]:
    def tell(job_id: str) -> None:
        told.append(job_id)

    return tell


@pytest.fixture
def house(app: Treadle, told: list[dict]) -> Treadle:
    """A task `work`, and two that follow its ends."""

    def celebrate(job_id: str, task: str, state: str, reason: str | None, error: str | None) -> None:
        told.append({"job_id": job_id, "task": task, "state": state, "reason": reason, "error": error})

    def mourn(ctx: Context, job_id: str, error: str | None, reason: str | None) -> None:
        told.append({"job_id": job_id, "error": error, "reason": reason, "tenant": ctx.job.tenant})

    def work(how: str = "fine") -> None:
        if (error := OUTCOMES[how]) is not None:
            raise error

    app.register("celebrate", celebrate, queue="parties", priority=4, timeout="1m")
    app.register("mourn", mourn, queue="duties", lane="l", retry=Retry(9, 1, None, 0), version=3)
    app.register("work", work, on_succeeded="celebrate", on_failed=app.tasks["mourn"], retry=Retry(2, 0, 0, 0))
    return app


def work(app: Treadle, how: str = "fine", **using: object) -> Job:
    return app.tasks["work"].using(**using).enqueue(how)


def following(app: Treadle) -> list[Job]:
    return [job for job in app.find().jobs if job.task != "work"]


# ---------------------------------------------------------------------------------------------- told how it ended


@any_store
def test_a_success_is_followed_by_a_job_that_is_told_of_it(house: Treadle, told: list[dict]) -> None:
    job = work(house)
    run_until_idle(house)
    assert told == [{"job_id": job.id, "task": "work", "state": "succeeded", "reason": None, "error": None}]


@any_store
def test_a_final_failure_is_followed_by_a_job_that_is_told_why_and_a_retry_by_none(
    house: Treadle, told: list[dict]
) -> None:
    job = work(house, "failing", tenant="acme")
    attempts = [one for one in run_until_idle(house) if one.task == "work"]
    assert [one.state for one in attempts] == [State.PENDING, State.FAILED]
    assert told == [{"job_id": job.id, "error": "boom", "reason": "exhausted", "tenant": "acme"}]


@any_store
@pytest.mark.parametrize(("how", "reason"), [("hopeless", Reason.PERMANENT), ("missing", Reason.INVALID_PAYLOAD)])
def test_whatever_ends_a_job_failed_is_followed(house: Treadle, told: list[dict], how: str, reason: Reason) -> None:
    if how == "missing":
        [receipt] = house.engine.enqueue([unstored(house.tasks["work"], "fine").evolve(payload_json='{"what": 1}')])
        job = receipt.job
    else:
        job = work(house, how)
    run_until_idle(house)
    assert house.get(job.id).reason is reason
    assert [one["reason"] for one in told] == [reason.value]


@any_store
def test_a_crash_that_ends_a_job_is_followed_too(house: Treadle, told: list[dict], clock: FakeClock) -> None:
    job = work(house, retry=ONCE)
    [held] = claim(house.engine, 1)
    start(house.engine, held)
    clock.advance(minutes=1)
    assert house.recover(message="the worker is gone") == 1
    run_until_idle(house)
    assert told == [{"job_id": job.id, "error": "the worker is gone", "reason": "crashed", "tenant": "default"}]


def test_a_cancelled_job_is_followed_by_nothing(house: Treadle, clock: FakeClock) -> None:
    house.cancel(work(house).id)
    work(house, "unwanted")
    work(house, expires_at="1m", run_after="30s")
    clock.advance(minutes=2)
    run_until_idle(house)
    assert following(house) == []


def test_one_that_snoozes_is_followed_when_it_has_ended(app: Treadle, told: list[dict], clock: FakeClock) -> None:
    def patient(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Snooze("1m")

    app.register("tell", teller(told))
    job = app.register("patient", patient, on_succeeded="tell").enqueue()
    run_until_idle(app)
    assert told == []
    clock.advance(minutes=1)
    run_until_idle(app)
    assert told == [job.id]


# ----------------------------------------------------------------------------------------------- what follows


def test_the_job_that_follows_is_made_as_its_task_says_and_of_the_same_tenant(house: Treadle) -> None:
    work(house, tenant="acme", priority=100, queue="default")
    work(house, "hopeless", tenant="globex")
    run_until_idle(house, queues=["default"])
    good, bad = sorted(following(house), key=lambda job: job.task)
    assert (good.task, good.tenant, good.queue, good.priority, good.timeout) == (
        "celebrate",
        "acme",
        "parties",
        4,
        60.0,
    )
    assert (bad.task, bad.tenant, bad.queue, bad.lane) == ("mourn", "globex", "duties", "l")
    assert (bad.retry, bad.task_version, bad.state) == (Retry(9, 1, None, 0), 3, State.PENDING)


def test_a_handler_is_given_the_facts_it_names(app: Treadle, told: list) -> None:
    class Ended(BaseModel):
        job_id: str
        state: str
        task: str
        reason: str | None
        error: str | None

    def whole(ended: Ended) -> None:
        told.append(ended.state)

    handlers: dict[str, Callable[..., None]] = {
        "one": lambda state: told.append(f"{state}"),
        "none": lambda: told.append("none"),
        "model": whole,
        "raw": lambda job: told.append(job["payload"]["state"]),
        "context": lambda ctx: told.append("context"),
    }
    handlers["context"].__annotations__ = {"ctx": Context}
    for name, handler in handlers.items():
        app.register(name, handler)
        app.register(f"work for {name}", lambda: None, on_succeeded=name).enqueue()
    run_until_idle(app)
    assert sorted(told) == ["context", "none", "succeeded", "succeeded", "succeeded"]


def test_a_task_that_is_not_known_here_may_follow_and_waits_for_who_knows_it(
    make_app: Callable[..., Treadle], told: list
) -> None:
    app, other = make_app(), make_app()
    app.register("work", lambda: None, on_succeeded="elsewhere").enqueue()
    run_until_idle(app)
    other.register("elsewhere", lambda job_id, task, state, reason, error: told.append(task))
    run_until_idle(other)
    assert told == ["work"]


@any_store
def test_each_job_is_followed_once_however_often_its_end_is_written(house: Treadle) -> None:
    work(house)
    [held] = claim(house.engine, 1)
    change = lifecycle.settle(held, lifecycle.Succeeded("1"), house.engine.now())
    rulings = [house.engine.turn([change]).verdicts[0].ruling for _ in range(3)]
    assert rulings == [Ruling.APPLIED, Ruling.ALREADY, Ruling.ALREADY]
    assert [job.task for job in following(house)] == ["celebrate"]


@any_store
def test_a_job_that_an_operator_retries_is_followed_again_when_it_ends_again(house: Treadle, told: list[dict]) -> None:
    job = work(house, "hopeless")
    run_until_idle(house)
    house.retry(job.id)
    run_until_idle(house)
    assert [one["job_id"] for one in told] == [job.id, job.id]


@any_store
def test_a_zombies_end_is_followed_by_nothing(house: Treadle, clock: FakeClock) -> None:
    work(house)
    [held] = claim(house.engine, 1)
    clock.advance(minutes=1)
    house.recover()
    change = lifecycle.settle(held, lifecycle.Succeeded("1"), house.engine.now())
    assert house.engine.turn([change]).verdicts[0].ruling is Ruling.LOST
    assert following(house) == []


def test_jobs_of_schedules_and_of_rows_are_followed_too(house: Treadle, told: list[dict], clock: FakeClock) -> None:
    house.for_each(lambda: [{"how": "fine"}, {"how": "hopeless"}], "rows")
    house.schedules.create("one", "work", every="1h")
    house.schedules.create("many", "work", every="1h", for_each="rows")
    clock.advance(hours=1)
    run_until_idle(house)
    house.schedules.run("one")
    run_until_idle(house)
    assert sorted(str(one["reason"]) for one in told) == ["None", "None", "None", "permanent"]


def test_a_named_event_and_a_follow_up_go_together(app: Treadle, told: list) -> None:
    app.register("tell", teller(told))
    job = app.register("work", lambda: None, on_succeeded="tell", audit={"succeeded": "DONE"}).enqueue()
    run_until_idle(app)
    assert told == [job.id]
    assert [(line.kind, line.note) for line in app.events(job.id)] == [(EventKind.SUCCEEDED, "DONE")]


def test_what_follows_was_decided_when_the_job_was_made(make_app: Callable[..., Treadle], told: list) -> None:
    """A worker with other code runs it; the job brings along what its caller wanted."""
    old, new = make_app(), make_app()
    for app in (old, new):
        app.register("tell", teller(told))
    job = old.register("work", lambda: None, on_succeeded="tell").enqueue()
    new.register("work", lambda: None)
    run_until_idle(new)
    assert told == [job.id]


# --------------------------------------------------------------------------------------------------- the result


@any_store
@pytest.mark.parametrize("result", [{"a": [1, 2.5, None, "é"]}, None, 12345678901234567890, "text"], ids=repr)
def test_a_follow_up_is_given_the_result_if_it_names_it(app: Treadle, told: list, result: object) -> None:
    app.register("tell", lambda job_id, result: told.append((job_id, result)))
    job = app.register("work", lambda: result, on_succeeded="tell").enqueue()
    run_until_idle(app)
    assert told == [(job.id, result)]


@any_store
def test_a_worker_passes_the_result_on_and_the_rest_takes_the_plain_path(app: Treadle, told: list) -> None:
    def tell(result: dict[str, int], state: str) -> None:
        told.append((result, state))

    def work(n: int) -> dict[str, int]:
        return {"n": n}

    app.register("tell", tell)
    followed, alone = app.register("work", work, on_succeeded="tell"), app.register("alone", work)
    followed.enqueue_many([(1,), (2,)])
    alone.enqueue_many([(3,), (4,)])
    app.run_worker(until_idle=True)
    assert sorted(told, key=str) == [({"n": 1}, "succeeded"), ({"n": 2}, "succeeded")]
    assert app.count()[State.SUCCEEDED] == 6


def test_a_result_of_a_model_arrives_as_one(app: Treadle, told: list) -> None:
    class Report(BaseModel):
        pages: int

    @app.task
    def publish(result: Report) -> None:
        told.append(result)

    @app.task(on_succeeded=publish)
    def build(pages: int) -> Report:
        return Report(pages=pages)

    build.enqueue(7)
    run_until_idle(app)
    assert told == [Report(pages=7)]


def test_a_model_called_result_is_not_given_to_what_follows_a_failure(app: Treadle) -> None:
    def publish(result: NeedsMore) -> None: ...

    app.register("publish", publish)
    with pytest.raises(ConfigError, match=r"'work': on_failed: task 'publish' takes a result, and a job that failed"):
        app.register("work", lambda: None, on_failed="publish").enqueue()


def test_a_failure_has_no_result(app: Treadle, told: list) -> None:
    app.register("tell", lambda result, error: told.append((result, error)))
    app.register("work", lambda: 1 / 0, on_failed="tell", retry=ONCE).enqueue()
    run_until_idle(app)
    assert told == [(None, "division by zero")]


def test_a_model_and_raw_handlers_are_given_the_result_too(app: Treadle, told: list) -> None:
    class Ended(BaseModel):
        model_config = ConfigDict(extra="forbid")
        job_id: str
        result: int = Field(alias="result")

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    def closed(ended: Ended) -> None:
        told.append(ended.result)

    def opened(ended: Open) -> None:
        told.append(ended.model_extra)

    handlers: dict[str, Callable[..., None]] = {
        "closed": closed,
        "opened": opened,
        "raw": lambda payload: told.append(payload["result"]),
        "job": lambda job: told.append(job["payload"]),
    }
    for name, handler in handlers.items():
        app.register(name, handler)
        app.register(f"work for {name}", lambda: 5, on_succeeded=name).enqueue()
    run_until_idle(app)
    assert sorted(one if isinstance(one, int) else one["result"] for one in told) == [5, 5, 5, 5]


@any_store
def test_a_result_too_large_to_pass_on_ends_the_job_all_the_same_and_its_event_says_so(app: Treadle) -> None:
    app.register("tell", lambda result: None)
    text = "x" * (PAYLOAD_CAP - 8)  # as a result it fits
    job = app.register("work", lambda: text, on_succeeded="tell").enqueue()
    run_until_idle(app)
    if app.get(job.id).state is State.SUCCEEDED:  # not every store takes one so large
        assert "what was to follow cannot be stored" in app.events(job.id)[-1].note
    assert following(app) == []


# ----------------------------------------------------------------------------------------------------- in a row


@any_store
def test_a_follow_up_may_be_followed_in_turn(app: Treadle, told: list) -> None:
    @app.task
    def third(result: int, task: str) -> None:
        told.append((task, result))

    @app.task(on_succeeded=third)
    def second(result: int) -> int:
        return result + 1

    @app.task(on_succeeded=second, on_failed=third)
    def first() -> int:
        return 1

    first.enqueue()
    run_until_idle(app)
    assert told == [("second", 2)]


def test_a_row_is_fixed_when_the_first_job_is_made(make_app: Callable[..., Treadle], told: list) -> None:
    old, new = make_app(), make_app()
    for app in (old, new):
        app.register("third", teller(told))
    old.register("second", lambda: None, on_succeeded="third")
    old.register("first", lambda: None, on_succeeded="second").enqueue()
    new.register("second", lambda: None)
    new.register("first", lambda: None)
    run_until_idle(new)
    assert len(told) == 1


def test_a_circle_is_refused(app: Treadle) -> None:
    app.register("b", lambda: None, on_failed="a")
    task = app.register("a", lambda: None, on_succeeded="b")
    with pytest.raises(ConfigError, match=r"task 'b': on_failed: a → b → a is a circle"):
        task.enqueue()
    app.register("again", lambda: None, on_succeeded="again")
    with pytest.raises(ConfigError, match=r"is a circle"):
        app.worker()


# -------------------------------------------------------------------------------------------------- bad input


def needs_more(job_id: str, x: int, y: int = 0) -> None: ...


def takes_a_number(payload: int) -> None: ...


class NeedsMore(BaseModel):
    job_id: str
    x: int


def takes_a_model(ended: NeedsMore) -> None: ...


@pytest.mark.parametrize(("handler", "missing"), [(needs_more, "x"), (takes_a_number, "payload"), (takes_a_model, "x")])
def test_a_follow_up_that_needs_what_it_is_not_told_is_refused_when_first_used(
    app: Treadle, handler: Callable[..., None], missing: str
) -> None:
    app.register("after", handler)
    task = app.register("work", lambda: None, on_failed="after")
    message = (
        rf"task 'work': on_failed: task 'after' needs {missing}, which the end of a job does not tell\. "
        "It tells job_id, task, state, reason, error, result: name these"
    )
    with pytest.raises(ConfigError, match=message):
        task.enqueue()
    with pytest.raises(ConfigError, match=message):
        app.worker()
    with pytest.raises(ConfigError, match=message):
        app.schedules.create("nightly", "work", cron="@daily")
    assert app.count()[State.PENDING] == 0


def test_a_follow_up_that_is_not_known_here_is_named_in_a_warning_once(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    app.register("note", lambda: None)
    task = app.register("work", lambda: None, on_succeeded="nope")
    for _ in range(3):
        task.enqueue()
    [warning] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "task 'work': on_succeeded names task 'nope', which is not known here (did you mean 'note'?)" in warning


def test_a_follow_up_that_is_registered_later_is_no_slip(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    task = app.register("work", lambda: None, on_succeeded="after")
    app.register("after", lambda: None)
    task.enqueue()
    assert caplog.records == []


@pytest.mark.parametrize(("option", "value"), [("on_succeeded", "\n"), ("on_failed", "x" * 201), ("on_failed", "*")])
def test_a_name_that_no_task_can_have_is_refused(app: Treadle, option: str, value: str) -> None:
    with pytest.raises(InvalidJob, match=option):
        app.register("work", lambda: None, **{option: value})


def test_only_the_ends_of_a_job_can_be_followed(app: Treadle) -> None:
    with pytest.raises(ConfigError, match="on_cancelled"):
        app.register("work", lambda: None, on_cancelled="tell")


# ----------------------------------------------------------------------------------- left off by the chat server


@any_store
@pytest.mark.covers("000-R22.c")
def test_the_chat_server_does_without_all_of_it_and_a_handler_enqueues_what_follows(
    make_app: Callable[..., Treadle], told: list
) -> None:
    """No alerts, no dashboard, no cancel, no schedules, one worker: a handler enqueues its own follow-up."""
    app = make_app(profile=chat_server.PROFILE)
    after: Task = app.register("after", lambda of: told.append(f"{of}"))

    def first(ctx: Context) -> None:
        after.using(tenant=ctx.job.tenant).enqueue(ctx.job.id)

    job = app.register("first", first).using(tenant="ada").enqueue()
    assert [one.task for one in run_until_idle(app)] == ["first", "after"]
    assert told == [job.id]
    assert (job.on_end, job.schedule, app.pauses(), app.schedules.list(), app.workers()) == (None, None, [], [], [])
    assert {event.kind for event in app.audit()} == {"enqueued", "claimed", "succeeded"}  # nobody acted


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_what_follows_must_be_a_task_or_the_name_of_one(app: Treadle, state: str) -> None:
    def later() -> None: ...

    with pytest.raises(InvalidJob, match=rf"^on_{state}: <function .*later.*> is not a valid task; give one"):
        app.register("work", lambda: None, **{f"on_{state}": later})
    with pytest.raises(InvalidJob, match=r"^task: <function .*later.*> is not a valid task"):
        app.schedules.create("nightly", later, cron="@daily")
