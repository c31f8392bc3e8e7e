"""Keys: one job for one thing, for as long as its scope says; on conflict the first, an error, or a replacement."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.making import claim, race, settle
from tests.support.marks import any_store
from treadle import InvalidJob, Job, KeyTaken, Retry, State, Task, Treadle, TreadleError, Unique
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock, run_until_idle

HOLDS = {  # scope -> at which stages of its job a key keeps others away
    "pending": {"pending"},
    "active": {"pending", "running"},
    "window": {"pending", "running", "finished"},
    "ever": {"pending", "running", "finished", "after the window"},
}
STAGES = ("pending", "running", "finished", "after the window")


def unique(scope: str, on_conflict: str = "first") -> Unique:
    return Unique(scope, on_conflict, "1h" if scope == "window" else None)


@pytest.fixture
def sync(app: Treadle) -> Task:
    @app.task
    def sync(thread: str) -> str:
        return thread

    return sync


def at_stage(app: Treadle, clock: FakeClock, job: Job, stage: str) -> Job:
    """The job brought to this stage of its life."""
    if stage != "pending":
        [job] = claim(app.engine, 1)
    if stage in ("finished", "after the window"):
        settle(app.engine, job, Succeeded('"done"'))
    if stage == "after the window":
        clock.advance(hours=2)
    return app.get(job.id)


@pytest.fixture(params=[(scope, stage) for scope in HOLDS for stage in STAGES], ids=lambda pair: f"{pair[0]}-{pair[1]}")
def held(request: pytest.FixtureRequest, app: Treadle, clock: FakeClock, sync: Task) -> tuple[str, Job, bool]:
    """A scope, a job of that scope at some stage, and whether it still keeps others away."""
    scope, stage = request.param
    first = sync.using(key="t1", unique=unique(scope)).enqueue("first")
    return scope, at_stage(app, clock, first, stage), stage in HOLDS[scope]


@any_store
@pytest.mark.covers("001-R23.b")
def test_the_first_job_is_returned_while_its_key_holds(app: Treadle, sync: Task, held: tuple[str, Job, bool]) -> None:
    scope, first, holds = held
    second = sync.using(key="t1", unique=unique(scope)).enqueue("second")
    assert (second == first) is holds
    assert sum(app.count().values()) == (1 if holds else 2)


def test_the_caller_who_asked_for_it_is_told_who_holds_the_key(
    app: Treadle, sync: Task, held: tuple[str, Job, bool]
) -> None:
    scope, first, holds = held
    second = sync.using(key="t1", unique=unique(scope, "raise"))
    if holds:
        with pytest.raises(KeyTaken, match=r"'t1' is held by job") as taken:
            second.enqueue("second")
        assert (taken.value.key, taken.value.holder) == ("t1", first.id)
        assert app.get(first.id) == first
    else:
        assert second.enqueue("second").id != first.id
    assert sum(app.count().values()) == (1 if holds else 2)


@any_store
def test_a_replacement_edits_a_pending_job_in_place_and_leaves_any_other_alone(
    app: Treadle, sync: Task, held: tuple[str, Job, bool]
) -> None:
    scope, first, holds = held
    second = sync.using(key="t1", unique=unique(scope, "replace"), priority=4).enqueue("second")
    assert (second.id == first.id) is holds
    if holds and first.state is State.PENDING:
        assert app.get(first.id) == second
        assert (second.payload, second.priority) == ({"thread": "second"}, 4)
    elif holds:
        assert app.get(first.id) == first == second
    else:
        assert second.payload == {"thread": "second"}


@any_store
def test_a_replacement_takes_every_option_of_the_newer_request(app: Treadle, sync: Task, clock: FakeClock) -> None:
    first = sync.using(key="t1", run_after="1h").enqueue("first")
    clock.advance(minutes=1)
    newer = sync.using(
        key="t1", unique=Unique(on_conflict="replace"), queue="mail", lane="a", priority=3, timeout=9,
        retry=Retry(2, 1, 1, 0), run_after="2h", expires_at="3h",
    )  # fmt: skip
    job = app.get(newer.enqueue("second").id)
    assert job.id == first.id
    assert (job.queue, job.lane, job.priority, job.timeout) == ("mail", "a", 3, 9)
    assert (job.retry, job.due_at) == (Retry(2, 1, 1, 0), clock.now() + timedelta(hours=2))
    assert job.expires_at == clock.now() + timedelta(hours=3)
    assert job.created_at == first.created_at


def test_a_replacement_without_delay_is_due_now(app: Treadle, sync: Task, clock: FakeClock) -> None:
    sync.using(key="t1", run_after="1h").enqueue("first")
    clock.advance(minutes=1)
    sync.using(key="t1", unique=Unique(on_conflict="replace")).enqueue("second")
    assert [job.result for job in run_until_idle(app)] == ["second"]


@any_store
@pytest.mark.covers("001-R32.a")
@pytest.mark.parametrize("scope", HOLDS)
def test_racers_with_one_key_get_one_job(make_app: Callable[..., Treadle], scope: str) -> None:
    apps = [make_app() for _ in range(6)]
    assert sum(apps[0].count().values()) == 0  # the store exists
    tasks = [each.register("sync", lambda thread: None) for each in apps]
    jobs = race(6, lambda place: tasks[place].using(key="t1", unique=unique(scope)).enqueue(place))
    assert len({job.id for job in jobs}) == 1
    assert len({job.payload_json for job in jobs}) == 1


@any_store
def test_one_batch_with_one_key_makes_one_job(app: Treadle, sync: Task) -> None:
    receipts = sync.using(key="t1", unique="pending").enqueue_many([("a",), ("b",), ("c",)])
    assert [receipt.created for receipt in receipts] == [True, False, False]
    assert {receipt.job.id for receipt in receipts} == {receipts[0].job.id}
    assert [job.result for job in run_until_idle(app)] == ["a"]


def test_a_key_is_one_tenants_and_one_tasks_own(app: Treadle, sync: Task) -> None:
    other = app.register("other", lambda thread: None)
    jobs = [
        sync.using(key="t1").enqueue("a"),
        sync.using(key="t2").enqueue("a"),
        sync.using(key="t1", tenant="acme").enqueue("a"),
        other.using(key="t1").enqueue("a"),
        sync.enqueue("a"),
    ]
    assert len({job.id for job in jobs}) == 5


def test_a_job_that_waits_for_its_retry_still_holds_its_key(app: Treadle) -> None:
    def fail() -> None:
        raise RuntimeError("not yet")

    task = app.register("fail", fail)
    first = task.using(key="t1").enqueue()
    run_until_idle(app)
    assert app.get(first.id).failures == 1
    assert task.using(key="t1").enqueue().id == first.id


def test_a_cancelled_job_gives_its_key_back(app: Treadle, sync: Task) -> None:
    first = sync.using(key="t1").enqueue("a")
    app.cancel(first.id)
    assert sync.using(key="t1").enqueue("a").id != first.id


@any_store
def test_a_retried_job_whose_key_was_taken_meanwhile_gives_way(app: Treadle, clock: FakeClock) -> None:
    seen: list[str] = []

    def flaky(name: str) -> None:
        seen.append(name)
        if name == "first":
            app.tasks["flaky"].using(key="t1", unique="pending").enqueue("second")
            raise RuntimeError("try me again")

    first = app.register("flaky", flaky).using(key="t1", unique="pending").enqueue("first")
    run_until_idle(app)
    clock.advance(hours=1)
    run_until_idle(app)
    assert seen == ["first", "second"]
    assert (app.get(first.id).state, app.get(first.id).reason) == (State.CANCELLED, "superseded")


def test_the_task_may_say_how_its_keys_work(app: Treadle) -> None:
    task = app.task(name="sync", unique=Unique("ever", "raise"))(lambda: None)
    task.using(key="t1").enqueue()
    run_until_idle(app)
    with pytest.raises(KeyTaken):
        task.using(key="t1").enqueue()


def test_a_scope_may_be_said_in_one_word(app: Treadle, sync: Task) -> None:
    first = sync.using(key="t1", unique="ever").enqueue("a")
    run_until_idle(app)
    assert sync.using(key="t1", unique="ever").enqueue("a").id == first.id


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (Unique("sometimes"), "unique.*'sometimes'"),
        (Unique("window"), "window"),
        (Unique("active", window="1h"), "window"),
        (Unique("window", window="soon"), "window"),
        (Unique("window", window=0), "window: 0 seconds keep nobody away"),
        (Unique("active", "shout"), "on_conflict.*'shout'"),
    ],
)
@pytest.mark.parametrize("way", ["task", "name"])
def test_a_rule_that_cannot_be_meant_is_refused_by_name(
    app: Treadle, sync: Task, rule: Unique, named: str, way: str
) -> None:
    with pytest.raises(TreadleError, match=named):
        if way == "task":
            sync.using(key="t1", unique=rule).enqueue("a")
        else:
            app.enqueue("sync", {"thread": "a"}, key="t1", unique=rule)
    assert set(app.count().values()) == {0}


@any_store
def test_keys_can_be_searched_for(app: Treadle, sync: Task) -> None:
    wanted = sync.using(key="t1").enqueue("a")
    sync.using(key="t2").enqueue("a")
    assert [job.id for job in app.find(key="t1").jobs] == [wanted.id]


@any_store
def test_a_job_repeated_after_its_effect_can_guard_on_its_own_record(app: Treadle, clock: FakeClock) -> None:
    record = {"status": "pending", "drafts": 0}

    def draft() -> None:
        if record["status"] != "pending":
            return
        record.update(status="drafted", drafts=record["drafts"] + 1)
        raise ConnectionError("the answer was lost after the effect")

    app.register("draft", draft).enqueue()
    run_until_idle(app)
    clock.advance(minutes=1)
    [job] = run_until_idle(app)
    assert job.state is State.SUCCEEDED
    assert record["drafts"] == 1


def test_an_unusable_key_is_refused_whatever_the_rule(app: Treadle, sync: Task) -> None:
    with pytest.raises(InvalidJob, match="key"):
        sync.using(key="a\0b").enqueue("a")
