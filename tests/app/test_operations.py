"""What an operator can do: look, count, cancel, retry, prune; every act leaves a line with its actor."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.making import claim, settle, unstored
from tests.support.marks import any_store
from treadle import InvalidJob, Job, JobNotFound, NotPossible, Reason, Retry, State, Task, Treadle
from treadle.model import EventKind, JobError, new_id
from treadle.model.lifecycle import Failed, Succeeded
from treadle.testing import FakeClock, run_until_idle
from treadle.worker.maintenance.pruning import Pruning


@pytest.fixture
def greet(app: Treadle) -> Task:
    @app.task
    def greet(name: str = "Ada") -> str:
        return f"hello {name}"

    return greet


@pytest.fixture
def fail(app: Treadle) -> Task:
    @app.task(retry=Retry(max_attempts=3, base=0, jitter=0))
    def fail() -> None:
        raise RuntimeError("boom")

    return fail


def running(app: Treadle, task: Task) -> Job:
    """A job of this task, claimed by w1."""
    wanted = task.enqueue()
    [job] = claim(app.engine, 1)
    assert job.id == wanted.id
    return job


# -------------------------------------------------------------------------------------------------- looking


@any_store
@pytest.mark.covers("001-R36.c")
def test_the_state_of_a_job_can_be_asked_by_its_id_at_any_time(app: Treadle, greet: Task) -> None:
    job = greet.enqueue()
    assert app.get(job.id).state is State.PENDING
    [held] = claim(app.engine, 1)
    assert app.get(job.id.upper()).state is State.RUNNING
    settle(app.engine, held, Succeeded('"hello"'))
    assert (app.get(job.id).state, app.get(job.id).result) == (State.SUCCEEDED, "hello")


@any_store
@pytest.mark.parametrize("job_id", ["", "seven", "00000000-0000-7000-8000-000000000000", "'; drop table"])
def test_a_job_that_is_not_there_is_said_to_be_missing(app: Treadle, job_id: str) -> None:
    for ask in (app.get, app.cancel, app.retry, app.events):
        with pytest.raises(JobNotFound, match="pruned") as missing:
            ask(job_id)
        assert missing.value.job_id == job_id


@any_store
def test_jobs_are_found_by_what_they_are(app: Treadle, greet: Task, fail: Task) -> None:
    mail = greet.using(queue="mail").enqueue()
    acme = greet.using(tenant="acme").enqueue()
    bad = fail.using(queue="bad").enqueue()
    run_until_idle(app, queues=("bad",))
    assert {job.id for job in app.find().jobs} == {mail.id, acme.id, bad.id}
    assert [job.id for job in app.find(queue="mail").jobs] == [mail.id]
    assert [job.id for job in app.find(tenant="acme").jobs] == [acme.id]
    assert [job.id for job in app.find(task="fail").jobs] == [bad.id]
    assert [job.id for job in app.find(state="failed").jobs] == [bad.id]
    assert [job.id for job in app.find(state=State.PENDING, task="greet").jobs] == [acme.id, mail.id]
    assert app.find(state="running").jobs == []


@any_store
@pytest.mark.parametrize("state", [None, "succeeded"])
def test_pages_come_newest_first_and_leave_nothing_out(app: Treadle, greet: Task, state: str | None) -> None:
    ids = [greet.enqueue(str(n)).id for n in range(7)]
    if state:
        run_until_idle(app)
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        page = app.find(state=state, limit=3, cursor=cursor)
        seen += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_page_has_a_sensible_size(app: Treadle, limit: int) -> None:
    with pytest.raises(InvalidJob, match=r"limit.*500"):
        app.find(limit=limit)


def test_a_state_that_does_not_exist_is_refused_with_those_that_do(app: Treadle) -> None:
    with pytest.raises(InvalidJob, match=r"'done'.*succeeded"):
        app.find(state="done")


@any_store
def test_counts_name_every_state(app: Treadle, greet: Task, fail: Task) -> None:
    assert app.count() == dict.fromkeys(State, 0)
    greet.enqueue_many([(), ()])
    fail.enqueue()
    run_until_idle(app)
    greet.using(queue="mail", run_after="1h").enqueue()
    assert app.count() == {**dict.fromkeys(State, 0), State.PENDING: 1, State.SUCCEEDED: 2, State.FAILED: 1}
    assert app.count(task="greet")[State.FAILED] == 0
    assert app.count(queue="mail")[State.PENDING] == 1
    assert sum(app.count(tenant="nobody").values()) == 0


# ---------------------------------------------------------------------------------------------- cancelling


@any_store
@pytest.mark.covers("003-S08.b")
def test_a_job_that_has_ended_is_never_run_again(app: Treadle, greet: Task, fail: Task, clock: FakeClock) -> None:
    ended = [greet.enqueue(), fail.enqueue(), greet.using(queue="other").enqueue()]
    run_until_idle(app)
    app.cancel(ended[2].id)
    before = [app.get(job.id) for job in ended]
    assert [job.state for job in before] == [State.SUCCEEDED, State.FAILED, State.CANCELLED]
    clock.advance(days=1)
    assert run_until_idle(app, queues=("default", "other")) == []
    assert [app.get(job.id) for job in ended] == before


@any_store
@pytest.mark.covers("002-D4.b", "003-S08.b")
def test_a_pending_job_is_cancelled_at_once_and_never_runs(app: Treadle, greet: Task, clock: FakeClock) -> None:
    job = app.cancel(greet.enqueue().id)
    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, Reason.BY_REQUEST, clock.now())
    assert run_until_idle(app) == []


@any_store
def test_a_running_job_is_asked_to_stop_and_keeps_running(app: Treadle, greet: Task) -> None:
    job = running(app, greet)
    asked = app.cancel(job.id)
    assert (asked.state, asked.cancel_requested, asked.lease_token) == (State.RUNNING, True, job.lease_token)
    assert app.cancel(job.id).cancel_requested  # asking twice is harmless


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_job_that_has_ended_cannot_be_cancelled(app: Treadle, greet: Task, fail: Task, state: str) -> None:
    job = (fail if state == "failed" else greet).enqueue()
    app.cancel(job.id) if state == "cancelled" else run_until_idle(app)
    before = app.get(job.id)
    with pytest.raises(NotPossible, match=rf"{job.id}.*{state}"):
        app.cancel(job.id)
    assert app.get(job.id) == before


# ------------------------------------------------------------------------------------------------- retrying


def test_a_failed_job_runs_again_with_a_fresh_budget(app: Treadle, fail: Task, clock: FakeClock) -> None:
    job = fail.using(expires_at="1h").enqueue()
    run_until_idle(app)
    clock.advance(hours=2)
    again = app.retry(job.id)
    assert (again.state, again.reason, again.finished_at) == (State.PENDING, None, None)
    assert (again.failures, again.crashes, again.attempt) == (0, 0, 3)
    assert (again.due_at, again.expires_at) == (clock.now(), None)
    assert again.error.message == "boom"  # until it runs, why it failed is still worth reading
    assert len(run_until_idle(app)) == 3
    assert app.get(job.id).attempt == 6


def test_with_its_attempts_kept_a_job_has_exactly_one_more_run(app: Treadle, fail: Task) -> None:
    job = fail.enqueue()
    run_until_idle(app)
    app.retry(job.id, keep_attempts=True)
    assert len(run_until_idle(app)) == 1
    assert (app.get(job.id).state, app.get(job.id).failures) == (State.FAILED, 4)


def test_a_cancelled_job_can_be_retried(app: Treadle, greet: Task) -> None:
    job = greet.enqueue()
    app.cancel(job.id)
    assert not app.retry(job.id).cancel_requested
    assert [ran.state for ran in run_until_idle(app)] == [State.SUCCEEDED]


def test_a_job_cancelled_while_it_ran_is_not_cancelled_again_after_its_retry(app: Treadle, greet: Task) -> None:
    held = running(app, greet)
    app.cancel(held.id)
    settle(app.engine, app.get(held.id), Failed(JobError("E", "x", "", 1, "")))
    assert app.get(held.id).state is State.CANCELLED
    app.retry(held.id)
    assert [ran.state for ran in run_until_idle(app)] == [State.SUCCEEDED]


@pytest.mark.parametrize("state", ["pending", "running", "succeeded"])
def test_only_a_failed_or_cancelled_job_can_be_retried(app: Treadle, greet: Task, state: str) -> None:
    job = running(app, greet) if state == "running" else greet.enqueue()
    if state == "succeeded":
        run_until_idle(app)
    before = app.get(job.id)
    with pytest.raises(NotPossible, match=job.id):
        app.retry(job.id)
    assert app.get(job.id) == before


@any_store
def test_a_retry_whose_key_is_taken_names_the_holder(app: Treadle, fail: Task) -> None:
    first = fail.using(key="k").enqueue()
    run_until_idle(app)
    holder = fail.using(key="k").enqueue()
    with pytest.raises(NotPossible, match=rf"'k'.*{holder.id}"):
        app.retry(first.id)
    assert app.get(first.id).state is State.FAILED
    app.cancel(holder.id)
    assert app.retry(first.id).state is State.PENDING
    assert fail.using(key="k").enqueue().id == first.id


# ---------------------------------------------------------------------------------------------------- audit


@any_store
@pytest.mark.covers("001-R36.a")
def test_failures_and_acts_of_operators_leave_lines_with_actor_and_reason(app: Treadle, fail: Task) -> None:
    job = fail.enqueue()
    run_until_idle(app)
    app.retry(job.id, actor="ada", reason="the disk is back")
    app.cancel(job.id, actor="bob", reason="not wanted\0 any more")
    events = app.events(job.id)
    assert [event.kind for event in events] == [
        EventKind.RETRYING, EventKind.RETRYING, EventKind.FAILED, EventKind.RETRIED, EventKind.CANCELLED,
    ]  # fmt: skip
    assert [(event.actor, event.note) for event in events[-2:]] == [
        ("ada", "the disk is back"),
        ("bob", "not wanted\N{REPLACEMENT CHARACTER} any more"),
    ]
    assert events[2].note == "boom"
    assert [event.revision for event in events] == sorted({event.revision for event in events})


@any_store
@pytest.mark.covers("001-R36.a")
def test_at_the_full_level_every_transition_leaves_a_line(make_app: Callable[..., Treadle]) -> None:
    app = make_app(audit="everything")
    job = app.register("tick", lambda: None).enqueue()
    run_until_idle(app)
    assert [event.kind for event in app.events(job.id)] == [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SUCCEEDED]


def test_a_success_leaves_no_line_by_default(app: Treadle, greet: Task) -> None:
    job = greet.enqueue()
    run_until_idle(app)
    assert app.events(job.id) == []


@pytest.mark.parametrize("actor", ["", "  ", "a" * 201, "a\nb"])
def test_an_actor_without_a_name_may_do_nothing(app: Treadle, greet: Task, actor: str) -> None:
    job = greet.enqueue()
    with pytest.raises(InvalidJob, match="actor"):
        app.cancel(job.id, actor=actor)
    assert app.get(job.id) == job


# ------------------------------------------------------------------------------------------------ retention


@any_store
@pytest.mark.covers("001-R31.a")
def test_finished_jobs_are_deleted_once_their_retention_is_over(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(keep_succeeded="7d", keep_failed="7d", keep_cancelled="7d")
    tick = app.register("tick", lambda: None)
    boom = app.register("boom", lambda: 1 / 0, retry=Retry(max_attempts=1))
    old = [tick.enqueue(), boom.enqueue()]
    run_until_idle(app)
    clock.advance(days=7)
    young = [tick.enqueue(), boom.enqueue()]
    run_until_idle(app)
    assert app.prune() == 0  # not before the seventh day is over
    clock.advance(seconds=1)
    assert app.prune() == 2
    assert {job.id for job in app.find().jobs} == {job.id for job in young}
    for job in old:
        with pytest.raises(JobNotFound):
            app.get(job.id)


@any_store
@pytest.mark.covers("001-R31.b")
def test_pending_and_running_jobs_are_never_deleted_however_old(app: Treadle, greet: Task, clock: FakeClock) -> None:
    held, waiting = running(app, greet), greet.enqueue()
    clock.advance(days=10_000)
    assert app.prune() == 0
    assert {job.id for job in app.find().jobs} == {held.id, waiting.id}


def test_by_default_successes_are_kept_a_week_and_failures_a_month(
    app: Treadle, greet: Task, fail: Task, clock: FakeClock
) -> None:
    greet.enqueue()
    fail.enqueue()
    run_until_idle(app)
    app.cancel(greet.enqueue().id)
    clock.advance(days=7, seconds=1)
    assert app.prune() == 2
    assert [job.task for job in app.find().jobs] == ["fail"]
    clock.advance(days=23)
    assert app.prune() == 1


def test_what_is_kept_for_ever_is_kept(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    app = make_app(keep_succeeded="forever")
    app.register("tick", lambda: None).enqueue()
    run_until_idle(app)
    clock.advance(days=10_000)
    assert app.prune() == 0


@any_store
def test_a_job_that_holds_its_key_for_ever_is_kept_and_one_whose_window_is_over_is_not(
    app: Treadle, clock: FakeClock
) -> None:
    tick = app.register("tick", lambda: None)
    kept = tick.using(key="a", unique="ever").enqueue()
    run_until_idle(app)
    clock.advance(days=8)
    assert app.prune() == 0
    assert tick.using(key="a", unique="ever").enqueue().id == kept.id


@any_store
def test_a_worker_deletes_old_jobs_of_its_own_tasks_and_the_app_those_of_all(
    app: Treadle, greet: Task, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "treadle.maintenance")
    other = app.enqueue("other", {}, checked=False)
    mine = greet.enqueue("Ada")
    for held in claim(app.engine, 2):
        settle(app.engine, held, Succeeded("1"))
    clock.advance(days=8)
    Pruning(app.engine, app.worker().config, ["greet"], logging.getLogger("treadle.maintenance")).prune()
    assert [job.id for job in app.find().jobs] == [other.id]
    assert "deleted 1 old job" in caplog.text
    assert app.prune() == 1
    with pytest.raises(JobNotFound):
        app.get(mine.id)


@any_store
def test_pruning_leaves_the_audit_lines(app: Treadle, fail: Task, clock: FakeClock) -> None:
    job = fail.enqueue()
    run_until_idle(app)
    clock.advance(days=31)
    assert app.prune() == 1
    assert [line.kind for line in app.engine.events(job.id)][-1] == "failed"


@any_store
def test_more_than_one_batch_is_pruned(app: Treadle, greet: Task, clock: FakeClock) -> None:
    jobs = [unstored(greet).evolve(id=new_id()) for _ in range(1200)]
    app.engine.enqueue(jobs)
    while held := claim(app.engine, 500):
        settled = [settle_change(job, app) for job in held]
        app.engine.turn(settled)
    clock.advance(days=8)
    assert app.prune() == 1200


def settle_change(job: Job, app: Treadle) -> object:
    from treadle.model import lifecycle

    return lifecycle.settle(job, Succeeded(None), app.engine.now())


def test_retention_is_read_from_the_settings(make_app: Callable[..., Treadle]) -> None:
    app = make_app(keep_succeeded="1h", keep_failed=60, keep_cancelled="forever")
    assert app.settings.keep.states == {State.SUCCEEDED: timedelta(hours=1), State.FAILED: timedelta(minutes=1)}


@pytest.mark.parametrize("engine_kind", ["sqlite"])
@pytest.mark.parametrize("act", ["retry", "cancel"])
def test_an_act_reads_the_job_once_and_once_more_for_its_answer(
    app: Treadle, greet: Task, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for handle in (app, app.tenant("default")):
        job = greet.enqueue()
        if act == "retry":
            app.cancel(job.id)
        reads: list[str] = []
        read = app.engine.get
        monkeypatch.setattr(app.engine, "get", lambda ids, read=read, reads=reads: reads.extend(ids) or read(ids))
        getattr(handle, act)(job.id)
        assert reads == [job.id, job.id]
        monkeypatch.setattr(app.engine, "get", read)
