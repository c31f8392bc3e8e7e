"""Asking for work: the options of a job, one and many, by function and by name."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest

from tests.support.making import a_policy, race
from tests.support.marks import any_store
from treadle import ConfigError, InvalidJob, InvalidPayload, Retry, State, Task, TreadleError, UnknownTask
from treadle import Treadle as App
from treadle.model import Scope
from treadle.testing import FakeClock, run_until_idle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def greet(app: App) -> Task:
    @app.task
    def greet(name: str) -> str:
        return f"hello {name}"

    return greet


@any_store
@pytest.mark.covers("001-R23.a", "004-T13.a", "002-D6.b")
def test_enqueue_answers_with_a_pending_job_due_now(app: App, greet: Task, clock: FakeClock) -> None:
    job = greet.enqueue("Ada")
    assert job.state is State.PENDING
    assert UUID(job.id).version == 7
    assert (job.task, job.payload) == ("greet", {"name": "Ada"})
    assert (job.tenant, job.queue, job.lane, job.priority) == ("default", "default", "", 0)
    assert job.created_at == job.due_at == clock.now()
    assert (job.attempt, job.failures, job.max_attempts) == (0, 0, 5)
    assert app.get(job.id) == job


@any_store
@pytest.mark.parametrize(
    ("option", "value", "field", "stored"),
    [
        ("queue", "mail", "queue", "mail"),
        ("lane", "acme", "lane", "acme"),
        ("tenant", "acme", "tenant", "acme"),
        ("priority", -7, "priority", -7),
        ("priority", 2**31 - 1, "priority", 2**31 - 1),
        ("retry", Retry(2, 1, None, 0), "retry", Retry(2, 1, None, 0)),
        ("timeout", "90s", "timeout", 90.0),
        ("timeout", timedelta(minutes=2), "timeout", 120.0),
        ("key", "k", "key_scope", Scope.ACTIVE),
        ("trace", TRACE, "trace", TRACE),
    ],
)
def test_an_option_is_kept_with_the_job(
    app: App, greet: Task, option: str, value: object, field: str, stored: object
) -> None:
    job = greet.using(**{option: value}).enqueue("Ada")
    assert getattr(app.get(job.id), field) == stored


def test_options_of_the_task_hold_until_a_call_says_otherwise(app: App) -> None:
    @app.task(queue="mail", lane="a", priority=3, retry=Retry(max_attempts=8), timeout="5m", version=4)
    def welcome() -> None: ...

    job = welcome.enqueue()
    assert (job.queue, job.lane, job.priority, job.max_attempts) == ("mail", "a", 3, 8)
    assert (job.timeout, job.task_version) == (300.0, 4)
    urgent = welcome.using(priority=9).enqueue()
    assert (urgent.priority, urgent.queue, urgent.max_attempts) == (9, "mail", 8)
    assert welcome.using(priority=9).using(queue="other").options.priority == 9
    assert welcome.options.priority == 3


def test_a_priority_of_zero_can_be_asked_for(app: App) -> None:
    @app.task(priority=5)
    def welcome() -> None: ...

    assert welcome.using(priority=0).enqueue().priority == 0


# ---------------------------------------------------------------------------------------------------- time


@any_store
@pytest.mark.covers("004-T09.a")
@pytest.mark.parametrize("delay", ["5m", 300, 300.0, timedelta(minutes=5)], ids=str)
def test_a_delayed_job_runs_when_its_time_has_come(app: App, greet: Task, clock: FakeClock, delay: object) -> None:
    job = greet.using(run_after=delay).enqueue("Ada")
    assert job.due_at == clock.now() + timedelta(minutes=5)
    clock.advance(seconds=299.999)
    assert run_until_idle(app) == []
    clock.advance(seconds=0.001)
    assert [ran.id for ran in run_until_idle(app)] == [job.id]


def test_a_moment_may_be_given_in_any_zone(greet: Task, clock: FakeClock) -> None:
    there = (clock.now() + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5, minutes=30)))
    job = greet.using(run_after=there, expires_at=there + timedelta(hours=1)).enqueue("Ada")
    assert job.due_at == there
    assert job.due_at.tzinfo is UTC
    assert job.expires_at == there + timedelta(hours=1)


def test_a_moment_in_the_past_means_now(greet: Task, clock: FakeClock) -> None:
    job = greet.using(run_after=clock.now() - timedelta(days=1)).enqueue("Ada")
    assert job.due_at == clock.now()


def test_a_job_that_would_expire_before_it_may_run_is_refused(app: App, greet: Task, clock: FakeClock) -> None:
    with pytest.raises(InvalidJob, match=r"expires_at: .* is past"):
        greet.using(expires_at=clock.now()).enqueue("Ada")
    with pytest.raises(InvalidJob, match=r"expires_at: .* comes before it is due"):
        greet.using(expires_at="1h", run_after="2h").enqueue("Ada")
    assert app.find().jobs == []


@any_store
@pytest.mark.parametrize("said", [{"id": str(uuid4())}, {"key": "k", "unique": "ever"}], ids=["id", "key"])
def test_an_enqueue_repeated_after_its_expiry_is_answered_with_its_job(
    app: App, greet: Task, clock: FakeClock, said: dict[str, str]
) -> None:
    again = greet.using(expires_at=clock.now() + timedelta(hours=1), **said)
    job = again.enqueue("Ada")
    run_until_idle(app)
    clock.advance(hours=2)
    assert again.enqueue("Ada").id == job.id


def test_an_id_of_a_job_of_another_task_is_refused(app: App, greet: Task) -> None:
    other = app.register("other", lambda name: None)
    job = greet.enqueue("Ada")
    for again in (other.using(id=job.id), other.using(id=job.id, unique="ever", key="k")):
        with pytest.raises(InvalidJob, match=f"{job.id} is taken by a job of task 'greet'"):
            again.enqueue("Bob")
    assert app.find().jobs == [job]


@any_store
@pytest.mark.covers("003-S13.a")
@pytest.mark.parametrize("option", ["run_after", "expires_at"])
def test_a_naive_datetime_is_refused_by_name(app: App, greet: Task, option: str) -> None:
    with pytest.raises(InvalidJob, match=rf"{option}.*time zone"):
        greet.using(**{option: datetime(2026, 1, 1)}).enqueue("Ada")  # noqa: DTZ001
    assert set(app.count().values()) == {0}


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's zone is not UTC."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@any_store
@pytest.mark.covers("003-S13.a")
@pytest.mark.usefixtures("far_away")
def test_every_stored_time_is_utc_whatever_the_machines_zone(make_app: Callable[..., App]) -> None:
    app = make_app(clock=None)
    app.register("tick", lambda: None).using(run_after="0.01s").enqueue()
    job = app.find().jobs[0]
    assert abs((job.created_at - datetime.now(UTC)).total_seconds()) < 60
    assert job.created_at.tzinfo is job.due_at.tzinfo is UTC


@any_store
def test_a_job_that_expires_before_it_is_run_is_not_run(app: App, greet: Task, clock: FakeClock) -> None:
    greet.using(expires_at="1h").enqueue("Ada")
    clock.advance(hours=1)
    assert run_until_idle(app) == []


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("queue", "", "queue"),
        ("queue", "q" * 201, "queue.*200"),
        ("tenant", "a\nb", "tenant"),
        ("lane", "\ud800", "lane"),
        ("priority", 2**31, "priority"),
        ("timeout", 0, "timeout"),
        ("timeout", "soon", "timeout"),
        ("timeout", -1, "timeout"),
        ("run_after", "soon", "run_after"),
        ("run_after", True, "run_after"),
        ("run_after", "-5m", "run_after"),
        ("expires_at", float("nan"), "expires_at"),
        ("retry", a_policy(max_attempts=0), "max_attempts"),
        ("retry", a_policy(base=-1), "base"),
        ("key", "", "key"),
        ("key", "k" * 1001, "key.*1,000"),
        ("id", "seven", "id"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(
    app: App, greet: Task, option: str, value: object, named: str
) -> None:
    with pytest.raises(TreadleError, match=named):
        greet.using(**{option: value}).enqueue("Ada")
    assert set(app.count().values()) == {0}


class Impatient(float):
    """A number that will not be compared with all others, one by one: that takes minutes."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Impatient.comparisons += 1
        assert Impatient.comparisons < 1000, "looked for among all 32-bit numbers"
        return float(self) is other

    __hash__ = float.__hash__


def test_a_priority_that_is_no_whole_number_is_refused_at_once(app: App, greet: Task) -> None:
    with pytest.raises(InvalidJob, match="priority"):
        greet.using(priority=Impatient(1.5)).enqueue("Ada")
    assert set(app.count().values()) == {0}


# ------------------------------------------------------------------------------------------------------ ids


@any_store
@pytest.mark.parametrize("form", [str, UUID, lambda text: str(text).upper()], ids=["text", "uuid", "upper"])
def test_a_repeated_id_is_the_same_job(app: App, greet: Task, form: Callable[[str], object]) -> None:
    wanted = str(uuid4())
    first = greet.using(id=wanted).enqueue("Ada")
    again = greet.using(id=form(wanted)).enqueue("Bob")
    assert (again.id, again.payload) == (wanted, {"name": "Ada"})
    assert first == again
    assert app.count()[State.PENDING] == 1


@any_store
def test_a_repeated_id_finds_the_finished_job_and_runs_nothing_again(app: App, greet: Task) -> None:
    wanted = str(uuid4())
    greet.using(id=wanted).enqueue("Ada")
    run_until_idle(app)
    again = greet.using(id=wanted).enqueue("Ada")
    assert (again.state, again.result) == (State.SUCCEEDED, "hello Ada")
    assert run_until_idle(app) == []


@any_store
def test_racers_on_a_store_that_does_not_exist_yet_all_get_through(make_app: Callable[..., App]) -> None:
    tasks = [make_app().register("greet", lambda name: None) for _ in range(6)]
    jobs = race(6, lambda place: tasks[place].enqueue(place))
    assert len({job.id for job in jobs}) == 6


@any_store
def test_racers_with_one_id_get_one_job(make_app: Callable[..., App]) -> None:
    wanted = str(uuid4())
    tasks = [make_app().register("greet", lambda name: None) for _ in range(6)]
    tasks[0].using(queue="warm").enqueue("the store exists")
    jobs = race(6, lambda place: tasks[place].using(id=wanted).enqueue(place))
    assert {job.id for job in jobs} == {wanted}
    assert len({job.payload_json for job in jobs}) == 1


# ----------------------------------------------------------------------------------------------------- many


@any_store
def test_many_jobs_are_stored_with_a_receipt_each(app: App, greet: Task) -> None:
    receipts = greet.using(queue="mail").enqueue_many([("Ada",), {"name": "Bob"}])
    assert [receipt.created for receipt in receipts] == [True, True]
    assert [app.get(receipt.job.id).payload["name"] for receipt in receipts] == ["Ada", "Bob"]
    assert app.count(queue="mail")[State.PENDING] == 2


@any_store
def test_many_jobs_may_come_from_a_generator_and_run_in_their_order(app: App, greet: Task) -> None:
    receipts = greet.enqueue_many((str(n),) for n in range(50))
    assert [job.id for job in run_until_idle(app)] == [receipt.job.id for receipt in receipts]


def test_no_jobs_at_all_may_be_stored(app: App, greet: Task) -> None:
    assert greet.enqueue_many([]) == []


def test_a_bad_call_among_many_is_named_and_nothing_is_stored(app: App, greet: Task) -> None:
    with pytest.raises(InvalidPayload, match=r"call 1.*name"):
        greet.enqueue_many([("Ada",), (["no", "name"],), ("Bob",)])
    assert set(app.count().values()) == {0}


@any_store
def test_a_repeated_id_among_many_is_told_by_its_receipt(app: App, greet: Task) -> None:
    receipts = greet.using(id=str(uuid4())).enqueue_many([("Ada",), ("Bob",)])
    assert [receipt.created for receipt in receipts] == [True, False]
    assert receipts[0].job == receipts[1].job
    assert app.count()[State.PENDING] == 1


# ---------------------------------------------------------------------------------------------------- async


def test_async_code_enqueues_without_stopping_its_loop(app: App, greet: Task) -> None:
    async def main() -> list[str]:
        jobs = await asyncio.gather(*(greet.aenqueue(str(n)) for n in range(5)))
        return [job.id for job in jobs]

    ids = asyncio.run(main())
    assert {job.id for job in run_until_idle(app)} == set(ids)


def test_async_code_is_told_of_wrong_arguments(greet: Task) -> None:
    with pytest.raises(InvalidPayload, match="name"):
        asyncio.run(greet.aenqueue(7))


# -------------------------------------------------------------------------------------------------- by name


def test_a_job_can_be_asked_for_by_name_with_its_payload_as_data(app: App, greet: Task) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, priority=2, run_after="0s")
    assert (job.payload, job.priority) == ({"name": "Ada"}, 2)
    assert [ran.result for ran in run_until_idle(app)] == ["hello Ada"]


def test_a_task_without_parameters_needs_no_payload(app: App) -> None:
    @app.task
    def tick() -> None: ...

    assert app.enqueue("tick").payload == tick.enqueue().payload == {}


def test_an_unknown_task_is_refused_with_a_suggestion(app: App, greet: Task) -> None:
    with pytest.raises(UnknownTask, match=r"greeet.*did you mean 'greet'"):
        app.enqueue("greeet", {})
    with pytest.raises(LookupError, match=r"zzz.*known tasks: greet"):
        app.enqueue("zzz", {})
    assert set(app.count().values()) == {0}


def test_an_unknown_task_can_be_asked_for_unchecked(app: App) -> None:
    job = app.enqueue("elsewhere", {"any": ["thing"]}, checked=False, queue="far", key="k")
    stored = app.get(job.id)
    assert (stored.task, stored.payload, stored.queue, stored.key) == ("elsewhere", {"any": ["thing"]}, "far", "k")


def test_unchecked_does_not_mean_unchecked_for_json(app: App) -> None:
    with pytest.raises(InvalidPayload, match="JSON"):
        app.enqueue("elsewhere", {"any": object()}, checked=False)


def test_the_known_task_is_checked_even_where_the_caller_does_not_insist(app: App, greet: Task) -> None:
    with pytest.raises(InvalidPayload, match="name"):
        app.enqueue("greet", {"nam": "Ada"}, checked=False)


@any_store
def test_the_first_jobs_of_an_app_may_come_from_many_threads_at_once(make_app: Callable[..., App]) -> None:
    app = make_app(clock=None)  # by the store's own clock, which it has not asked for yet
    greet = app.register("greet", lambda n: n)
    jobs = race(8, greet.enqueue)
    assert sorted(app.get(job.id).payload["n"] for job in jobs) == list(range(8))
    assert max(job.created_at for job in jobs) - min(job.created_at for job in jobs) < timedelta(minutes=1)


# ---------------------------------------------------------------------------------------------- registering


def test_two_handlers_under_one_name_are_refused(app: App, greet: Task) -> None:
    with pytest.raises(ConfigError, match="'greet' is registered twice"):
        app.register("greet", lambda: None)
    assert app.tasks["greet"] is greet


def test_the_same_handler_may_be_registered_again(app: App) -> None:
    def tick() -> None: ...

    app.register("tick", tick)
    assert app.register("tick", tick, queue="other").options.queue == "other"


def test_what_cannot_be_called_is_refused_by_name(app: App) -> None:
    with pytest.raises(ConfigError, match="'tick'"):
        app.register("tick", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"qeue": "mail"}, "qeue"),
        ({"timeout": "soon"}, "timeout"),
        ({"retry": a_policy(max_attempts=0)}, "max_attempts"),
        ({"name": " "}, "task"),
    ],
)
def test_an_option_of_a_task_that_cannot_be_meant_is_refused_by_name(app: App, options: dict, named: str) -> None:
    with pytest.raises(TreadleError, match=named):
        app.task(**{"name": "tick", **options})(lambda: None)


def test_two_apps_in_one_process_know_only_their_own_tasks(make_app: Callable[..., App]) -> None:
    here, there = make_app(), make_app()
    here.register("greet", lambda: None)
    assert there.tasks == {}
    with pytest.raises(UnknownTask):
        there.enqueue("greet")
