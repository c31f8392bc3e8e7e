"""Old and new code side by side: each job is run by a worker that knows it, and left alone by all others."""

import threading
from collections.abc import Callable
from itertools import product

import pytest

from tests.support.marks import any_store
from tests.support.workbench import all_in, ended, until, working
from treadle import Job, Reason, Retry, State, Treadle


def tick(app: Treadle) -> Job:
    """A job that any worker with `tick` runs at once: it has looked at what was there before."""
    [job] = ended(app, app.enqueue("tick", checked=False))
    return job


@pytest.fixture
def old_code(make_app: Callable[..., Treadle]) -> Treadle:
    """An app whose `work` is of version 1."""
    return worker_of(make_app(), "old", version=1)


@pytest.fixture
def new_code(make_app: Callable[..., Treadle]) -> Treadle:
    """The same app after a deploy: `work` is of version 2."""
    return worker_of(make_app(), "new", version=2)


def worker_of(app: Treadle, name: str, *, version: int) -> Treadle:
    app.register("work", lambda: f"{name} code", version=version)
    app.register("tick", lambda: None)
    return app


# ----------------------------------------------------------------------------------------------- tasks


@any_store
@pytest.mark.covers("000-R07.a")
def test_each_job_is_run_by_a_worker_that_knows_it_and_none_is_burnt(make_app: Callable[..., Treadle]) -> None:
    asker, crews = make_app(), {"one": "ab", "two": "bc", "three": "ca"}
    apps = {name: make_app() for name in crews}
    for name, tasks in crews.items():
        for task in tasks:
            apps[name].register(task, lambda n, name=name: [name, n])
    asked = [asker.enqueue(task, {"n": n}, checked=False) for n, task in product(range(30), "abcd")]
    strangers = [job for job in asked if job.task == "d"]
    with (
        working(apps["one"], name="one"),
        working(apps["two"], name="two"),
        working(apps["three"], name="three"),
    ):
        done = ended(asker, *(job for job in asked if job.task != "d"))
    for job in done:
        assert (job.state, job.result) == (State.SUCCEEDED, [job.worker, job.payload["n"]])
        assert job.task in crews[job.worker]
        assert (job.failures, job.crashes) == (0, 0)  # one that waited long for a slot was given back, unspent
    assert [asker.get(job.id) for job in strangers] == strangers  # nobody knows them, nobody touched them


@any_store
def test_jobs_that_wait_for_a_worker_that_knows_them_do_not_keep_others_from_theirs(
    make_app: Callable[..., Treadle],
) -> None:
    here, there = make_app(), make_app()
    here.register("known", lambda: "here")
    there.register("elsewhere", lambda: "there").using(priority=9).enqueue_many([()] * 300)
    with working(here, name="here"):
        done = ended(here, *(here.enqueue("known") for _ in range(5)))
        assert here.count(task="elsewhere")[State.PENDING] == 300
        with working(there, name="there", concurrency=20):
            until(lambda: here.count(task="elsewhere")[State.SUCCEEDED] == 300, "the end of those that waited")
    assert {(job.result, job.failures) for job in done} == {("here", 0)}
    found = [job for job in all_in(here, State.SUCCEEDED) if job.task == "elsewhere"]
    assert {(job.result, job.worker, job.failures) for job in found} == {("there", "there", 0)}


@any_store
@pytest.mark.covers("000-R08.a", "000-AC-15.d", "000-R15.g", "002-Q14.a", "002-Q14.b")
def test_where_unknown_tasks_fail_they_fail_at_once_and_the_worker_goes_on(make_app: Callable[..., Treadle]) -> None:
    app = worker_of(make_app(unknown_tasks="fail"), "new", version=2)
    job = app.enqueue("wrok", {}, checked=False)
    with working(app):
        [job] = ended(app, job)
        [after] = ended(app, app.enqueue("work"))
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.UNKNOWN_TASK, 1)
    assert job.error.message.startswith("No handler registered for job_type: wrok")
    assert after.result == "new code"


@any_store
def test_where_unknown_tasks_fail_a_newer_version_of_a_known_one_does_not(
    make_app: Callable[..., Treadle], new_code: Treadle
) -> None:
    strict = worker_of(make_app(unknown_tasks="fail"), "old", version=1)
    job = new_code.enqueue("work")
    with working(strict):
        tick(strict)
        assert strict.get(job.id) == job
        with working(new_code):
            [job] = ended(strict, job)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "new code", 1)


# -------------------------------------------------------------------------------------------- versions


@any_store
def test_a_job_of_a_newer_version_is_left_alone_by_old_code_and_run_by_new(
    old_code: Treadle, new_code: Treadle
) -> None:
    job = new_code.enqueue("work", priority=9)
    assert job.task_version == 2
    with working(old_code, name="old"):
        ended(old_code, old_code.enqueue("work"))
        tick(old_code)
        assert old_code.get(job.id) == job  # untouched: not one field differs
        with working(new_code, name="new"):
            [job] = ended(old_code, job)
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "new code", "new")
    assert (job.attempt, job.failures, job.crashes) == (1, 0, 0)


@any_store
def test_a_job_of_an_older_version_is_run_by_either(old_code: Treadle, new_code: Treadle) -> None:
    both = threading.Barrier(2)
    for app in (old_code, new_code):
        app.register("meet", lambda: bool(both.wait(30)) or True)
    jobs = [old_code.enqueue("meet"), old_code.enqueue("meet")]
    with working(old_code, name="old", concurrency=1), working(new_code, name="new", concurrency=1):
        done = ended(old_code, *jobs)  # two that meet, and each worker has room for one
    assert {(job.worker, job.task_version, job.failures) for job in done} == {("old", 1, 0), ("new", 1, 0)}


@any_store
def test_old_and_new_code_share_a_queue_of_both_versions(old_code: Treadle, new_code: Treadle) -> None:
    asked = [app.enqueue("work") for _ in range(60) for app in (old_code, new_code)]
    with working(old_code, name="old"), working(new_code, name="new"):
        done = ended(old_code, *asked)
    for job in done:
        assert (job.state, job.result, job.failures) == (State.SUCCEEDED, f"{job.worker} code", 0)
        assert (job.task_version, job.worker) != (2, "old")


@any_store
def test_a_retry_keeps_the_version_so_old_code_does_not_get_at_it_later(
    make_app: Callable[..., Treadle], old_code: Treadle
) -> None:
    new = make_app()

    @new.task(name="work", version=2, retry=Retry(max_attempts=3, base=0, jitter=0))
    def work() -> None:
        raise RuntimeError("again")

    job = work.enqueue()
    with working(old_code, name="old"), working(new, name="new"):
        [job] = ended(new, job)
        tick(old_code)
    assert (job.state, job.attempt, job.failures, job.worker) == (State.FAILED, 3, 3, "new")
    assert {event.actor for event in new.events(job.id)} == {"new"}


@any_store
def test_four_hundred_jobs_of_an_unknown_task_all_end_failed(make_app: Callable[..., Treadle]) -> None:
    app, other = make_app(unknown_tasks="fail"), make_app()
    app.register("known", lambda: None)
    other.register("gone", lambda: None).enqueue_many([()] * 400)
    with working(app, concurrency=400, lease=10):
        until(lambda: app.count()[State.FAILED] == 400, lambda: f"400 failed, but {app.count()}")
    assert {(job.state, job.reason) for job in app.find(limit=500).jobs} == {(State.FAILED, Reason.UNKNOWN_TASK)}
