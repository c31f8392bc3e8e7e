"""Many jobs at once, from Python: retried, cancelled, deleted; by filter or by ids; and one of them edited."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.making import a_job, claim
from tests.support.marks import any_store
from treadle import GiveUp, InvalidJob, JobNotFound, NotPossible, Retry, State, Task, Treadle
from treadle.app import queries
from treadle.app.bulk import BulkReport
from treadle.app.profile import Profile
from treadle.model import EventKind
from treadle.testing import FakeClock, run_until_idle


@pytest.fixture
def fail(app: Treadle) -> Task:
    @app.task(retry=Retry(max_attempts=1))
    def fail(text: str = "boom") -> None:
        raise (ValueError if text == "value" else RuntimeError)(text)

    return fail


@pytest.fixture
def greet(app: Treadle) -> Task:
    return app.register("greet", lambda name="Ada": name)


def counts(app: Treadle) -> dict[State, int]:
    return {state: number for state, number in app.count().items() if number}


@any_store
def test_failed_jobs_are_retried_by_what_they_are(app: Treadle, fail: Task, clock: FakeClock) -> None:
    fail.enqueue_many([("value",), ("boom",), ("boom",)])
    run_until_idle(app)
    clock.advance(hours=2)
    fail.using(tenant="acme").enqueue()
    run_until_idle(app)

    found = app.retry_many(error="RuntimeError", dry_run=True)
    assert (found.found, found.done, len(found.first)) == (3, 0, 3)
    assert counts(app) == {State.FAILED: 4}
    assert app.retry_many(error="ValueError", since="1h") == BulkReport()
    assert app.retry_many(error="ValueError", before="1h", actor="ada", reason="mended").done == 1
    [event] = app.audit(kind="retried")
    assert (event.actor, event.note) == ("ada", "mended")
    assert app.retry_many(tenant="acme").done == 1
    assert app.retry_many(state="failed").done == 2
    assert counts(app) == {State.PENDING: 4}


@any_store
def test_more_than_a_page_is_done_in_turns_and_progress_is_told(app: Treadle, greet: Task) -> None:
    greet.enqueue_many([()] * 620)
    told: list[BulkReport] = []
    report = app.cancel_many(task="greet", progress=told.append)
    assert (report.found, report.done, report.not_possible) == (620, 620, 0)
    assert [one.done for one in told] == [50, 550, 620]
    assert app.retry_many(state="cancelled").done == 620
    assert app.delete_many(everything=True).done == 620
    assert counts(app) == {}


@any_store
def test_what_is_not_possible_is_counted_and_the_rest_is_done(app: Treadle, greet: Task) -> None:
    held_id, waiting = greet.enqueue().id, [greet.enqueue() for _ in range(2)]
    [held] = claim(app.engine, 1)
    assert held.id == held_id
    nobody = "00000000-0000-7000-8000-000000000000"

    report = app.delete_many(ids=[held.id, waiting[0].id.upper(), nobody, waiting[0].id])

    assert (report.found, report.done, report.not_possible) == (2, 1, 2)
    problems = dict(report.problems)
    assert "is running; cancel it" in problems[held.id]
    assert "there is no job" in problems[nobody]
    assert counts(app) == {State.PENDING: 1, State.RUNNING: 1}
    assert app.delete_many(everything=True).done == 1  # what runs is left alone
    assert app.cancel_many(state="running").done == 1
    assert app.get(held.id).cancel_requested


@any_store
def test_a_key_that_another_job_holds_by_now_is_one_problem_among_many(app: Treadle, fail: Task) -> None:
    keyed = fail.using(key="k").enqueue()
    fail.enqueue_many([(), ()])
    run_until_idle(app)
    fail.using(key="k", run_after="1h").enqueue()
    report = app.retry_many(task="fail")
    assert (report.done, report.not_possible) == (2, 1)
    [problem] = report.problems
    assert (problem.job_id, "key 'k' is taken by job" in problem.why) == (keyed.id, True)


@any_store
@pytest.mark.parametrize("id", ["01a1ecca-8d8e-7909-ba7d-0acdb8dfeb2f", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_an_id_that_ends_with_the_last_digits_there_are_is_found_by_the_first(app: Treadle, id: str) -> None:
    app.engine.enqueue([a_job(app.engine.now(), id=id)])
    for digits in (4, 8, 13, 31, 35):
        assert app.resolve_id(id[:digits]) == id


@any_store
def test_a_tenant_acts_on_its_own_jobs_only(app: Treadle, greet: Task) -> None:
    ours, theirs = greet.using(tenant="acme").enqueue(), greet.using(tenant="globex").enqueue()
    acme = app.tenant("acme")
    assert acme.cancel_many(everything=True).done == 1
    assert app.get(theirs.id).state is State.PENDING
    assert acme.delete_many(ids=[theirs.id]).problems[0].why == str(JobNotFound(theirs.id))
    assert acme.resolve_id(ours.id[:18]) == ours.id
    with pytest.raises(JobNotFound):
        acme.resolve_id(theirs.id[:24])
    for act in (acme.delete, acme.run_now, lambda id_: acme.edit(id_, priority=1)):
        with pytest.raises(JobNotFound):
            act(theirs.id)
    with pytest.raises(InvalidJob, match="tenant"):
        acme.retry_many(tenant="globex")
    assert [group.waiting for group in acme.status().queues] == [0]
    assert acme.status().workers == []


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        ({}, "nothing is named: give ids or a filter, or everything=True"),
        ({"task": None}, "nothing is named"),
        ({"taks": "greet"}, "taks: is not a filter; known: ids, state, task"),
        ({"ids": "0199"}, "ids: '0199' must be a list of ids"),
        ({"ids": [5]}, "must be a list of ids"),
        ({"ids": ["x"], "task": "greet"}, "by their ids, or by a filter, not both"),
        ({"state": "succeeded"}, "state: jobs that are succeeded cannot be retried, only: failed, cancelled"),
        ({"state": "nonsense"}, "'nonsense' must be one of"),
        ({"task": "greet", "reason": 5}, "reason: 5 must be text"),
        ({"task": "greet", "actor": ""}, "actor"),
    ],
)
def test_what_cannot_be_meant_is_refused(app: Treadle, which: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        app.retry_many(**which)  # type: ignore[arg-type]


def test_a_word_of_the_profile_is_a_filter_too(make_app: Callable[..., Treadle]) -> None:
    app = make_app(profile=Profile(states={"dead": "dead_letter", "failed": "gave_up"}))
    app.register("fail", lambda: 1 / 0, retry=Retry(max_attempts=1)).enqueue()
    run_until_idle(app)
    assert app.retry_many(state="gave_up", dry_run=True).found == 0
    assert app.retry_many(state="dead_letter").done == 1


def test_ids_that_nobody_has_are_no_crash(app: Treadle) -> None:
    assert app.retry_many(ids=["seven", "'; drop table"]).not_possible == 2
    assert app.retry_many(ids=[]) == BulkReport()


def test_the_same_in_async_code(app: Treadle, greet: Task) -> None:
    async def day() -> None:
        job = await greet.aenqueue()
        assert (await app.aedit(job.id, priority=5)).priority == 5
        assert (await app.acancel_many(task="greet")).done == 1
        assert (await app.aretry_many(state="cancelled")).done == 1
        assert (await app.astatus()).total.waiting == 1
        assert await app.aresolve_id(job.id[:18]) == job.id
        assert len((await app.aaudit_page(limit=1)).events) == 1
        assert (await app.adelete_many(everything=True)).done == 1

    asyncio.run(day())


# -------------------------------------------------------------------------------------------------- one job


@any_store
def test_a_deleted_job_is_gone_and_its_trail_stays(app: Treadle, fail: Task) -> None:
    job = fail.enqueue("a password")
    run_until_idle(app)
    assert app.delete(job.id, actor="ada", reason="a secret").payload == {"text": "a password"}
    with pytest.raises(JobNotFound):
        app.get(job.id)
    event = app.events(job.id)[-1]
    assert (event.kind, event.actor, event.note) == (EventKind.DELETED, "ada", "task fail: a secret")
    with pytest.raises(JobNotFound):
        app.delete(job.id)
    assert app.verify_audit().sound


@any_store
def test_a_waiting_job_is_edited_and_run_now(app: Treadle, greet: Task, clock: FakeClock) -> None:
    job = greet.using(run_after="1h").enqueue()
    edited = app.edit(job.id, queue="mail", lane="a", priority=5, run_after="5m", actor="ada")
    assert (edited.queue, edited.lane, edited.priority) == ("mail", "a", 5)
    assert (edited.due_at - clock.now()).total_seconds() == 300
    assert app.run_now(job.id).due_at == clock.now()
    with pytest.raises(NotPossible, match="due already"):
        app.run_now(job.id)
    run_until_idle(app, queues=("mail",))
    for act in (lambda: app.edit(job.id, priority=1), lambda: app.run_now(job.id)):
        with pytest.raises(NotPossible, match="succeeded; only a pending job can be edited"):
            act()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "nothing is named: give queue, lane, priority, run_after or payload"),
        ({"queue": ""}, "queue: '' is not a valid name"),
        ({"lane": "x" * 300}, "lane: is 300 bytes long"),
        ({"priority": 2**40}, "priority"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_an_edit_that_no_store_takes_is_refused(app: Treadle, greet: Task, fields: dict, problem: str) -> None:
    job = greet.enqueue()
    with pytest.raises(InvalidJob, match=problem):
        app.edit(job.id, **fields)
    assert app.get(job.id) == job


# --------------------------------------------------------------------------------------------------- lists


@any_store
def test_a_page_of_a_word_is_full_and_leaves_nothing_out(
    app: Treadle, fail: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty failed jobs every second one has spent its attempts; pages of ten have ten."""
    monkeypatch.setattr(queries, "BATCH_SIZE", 7)  # jobs that a store is asked for at a time
    give_up = app.register("give_up", _give_up)
    for _ in range(25):
        fail.enqueue()
        give_up.enqueue()
    run_until_idle(app)
    sizes, seen, cursor = [], [], None
    while True:
        page = app.find(state="dead", limit=10, cursor=cursor)
        sizes.append(len(page.jobs))
        seen += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert sizes[:2] == [10, 10]
    assert len(seen) == len(set(seen)) == 25
    assert {app.get(id_).task for id_ in seen} == {"fail"}


@any_store
@pytest.mark.parametrize("filters", [{"task": "greet"}, {"since": "1h"}, {"error": "ValueError"}])
def test_a_dry_run_looks_so_far_and_says_whether_there_may_be_more(
    app: Treadle, greet: Task, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str]
) -> None:
    monkeypatch.setattr(queries, "BATCH_SIZE", 2)
    monkeypatch.setattr(queries, "MOST_READ", 2)
    greet.enqueue_many([()] * 5)
    fitting = 0 if "error" in filters else 5
    whole = app.cancel_many(dry_run=True, **filters)  # type: ignore[arg-type]
    assert (whole.found, whole.exact) == (fitting, True)
    monkeypatch.setattr(queries, "MOST_COUNTED", 3)
    some = app.cancel_many(dry_run=True, **filters)  # type: ignore[arg-type]
    assert (some.found in range(fitting + 1), some.found >= min(fitting, 3), some.exact) == (True, True, False)
    assert app.cancel_many(**filters).done == fitting  # type: ignore[arg-type]


@any_store
@pytest.mark.parametrize("filters", [{}, {"state": "pending"}, {"since": "1h"}])
def test_a_page_of_large_jobs_ends_early_and_leaves_nothing_out(
    app: Treadle, greet: Task, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str]
) -> None:
    asked, find = [], app.engine.find
    monkeypatch.setattr(app.engine, "find", lambda *which, **how: asked.append(how["limit"]) or find(*which, **how))
    monkeypatch.setattr(queries, "MOST_BYTES", 5_000)
    monkeypatch.setattr(queries, "FIRST_BATCH", 8)
    large = [greet.enqueue(letter * 1_000).id for letter in "abcdefghijkl"]
    seen, cursor = [], None
    while True:
        page = app.find(limit=500, cursor=cursor, **filters)  # type: ignore[arg-type]
        assert len(page.jobs) <= 5
        seen += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert seen == large[::-1]
    assert max(asked) == 8


@any_store
def test_jobs_are_found_by_error_and_time(app: Treadle, fail: Task, clock: FakeClock) -> None:
    old = fail.enqueue("value")
    run_until_idle(app)
    clock.advance(hours=3)
    new = fail.enqueue("value")
    other = fail.enqueue("boom")
    run_until_idle(app)

    def ids(**filters: object) -> set[str]:
        return {job.id for job in app.find(**filters).jobs}  # type: ignore[arg-type]

    assert ids(error="ValueError") == {old.id, new.id}
    assert ids(state="failed", error="ValueError", since="1h") == {new.id}
    assert ids(state="failed", before="1h") == {old.id}
    assert ids(since="1h", before=clock.now() + timedelta(seconds=1)) == {new.id, other.id}


def _give_up() -> None:
    raise GiveUp("no")


def test_a_job_that_somebody_retried_meanwhile_is_not_deleted_with_the_failed_ones(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = app.register("fail", lambda: 1 / 0, retry=Retry(max_attempts=1))
    jobs = [fail.enqueue() for _ in range(3)]
    run_until_idle(app)
    take_turn = app.engine.turn

    def turn(*given: object, **named: object) -> object:
        monkeypatch.setattr(app.engine, "turn", take_turn)
        app.retry(jobs[0].id, actor="colleague")  # after the jobs were read, before they are written
        return take_turn(*given, **named)

    monkeypatch.setattr(app.engine, "turn", turn)
    report = app.delete_many(state="failed")
    assert (report.found, report.done, report.not_possible) == (3, 2, 1)
    assert "is no longer one of those meant" in report.problems[0].why
    assert app.get(jobs[0].id).state is State.PENDING
