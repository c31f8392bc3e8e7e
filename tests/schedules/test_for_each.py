"""Schedules that make a job of every row: for all users, shops or files, and for none of them twice."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import pytest

from tests.support.marks import any_store
from tests.support.scheduling import fire
from treadle import ConfigError, Context, InvalidJob, Job, Reason, Retry, State, Task, Treadle
from treadle.errors import TreadleError
from treadle.model.records import Misfire
from treadle.profiles import mail_assistant
from treadle.schedules.rules import EXPANSION
from treadle.tasks.context import StopReason
from treadle.testing import FakeClock, run_until_idle

ROWS = f"{EXPANSION}users"
AGAIN = Retry(max_attempts=3, base=0, jitter=0)


@pytest.fixture
def sync(app: Treadle) -> Task:
    def sync(user: str, force_full: bool = False) -> str:
        return f"synced {user}{' fully' * force_full}"

    return app.register("sync", sync, queue="mail", priority=2, retry=AGAIN, version=3)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs are stored in one go, so that a few rows make several batches."""
    monkeypatch.setattr("treadle.schedules.for_each.ROW_BATCH", 3)


def hourly(app: Treadle, rows: Callable[..., object] | None = None, name: str = "syncs", **said: object) -> None:
    """A schedule that syncs every user, every hour from noon on."""
    app.for_each(rows or (lambda: [{"user": name} for name in ("ada", "bob", "eve", "kim")]), "users")
    app.schedules.create(name, "sync", **{"every": "1h", "for_each": "users", **said})


def ran(app: Treadle, clock: FakeClock) -> list[Job]:
    """The next hour comes, and everything that it brings is run; the jobs after each attempt."""
    clock.advance(hours=1)
    return run_until_idle(app, queues=["mail"])


def children(app: Treadle) -> list[Job]:
    return [job for job in app.find(limit=500, task="sync").jobs if job.schedule is not None]


def users(app: Treadle) -> list[str]:
    return sorted(job.payload["user"] for job in children(app))


# ------------------------------------------------------------------------------------------ a job per row


def test_rows_may_be_given_as_the_function_itself(app: Treadle, sync: Task, clock: FakeClock) -> None:
    def users_of_today() -> list[dict[str, str]]:
        return [{"user": "ada"}]

    made = app.schedules.create("syncs", "sync", every="1h", for_each=users_of_today)
    assert made.for_each == "users_of_today"
    assert app.schedules.update("syncs", for_each=users_of_today).for_each == "users_of_today"
    ran(app, clock)
    assert users(app) == ["ada"]


def test_what_no_job_of_a_row_can_be_is_refused_before_there_is_one(app: Treadle, sync: Task) -> None:
    with pytest.raises(InvalidJob, match="timeout"):
        hourly(app, timeout=0)
    with pytest.raises(InvalidJob, match="misfire_limit"):
        app.schedules.create("syncs", "sync", every="1h", for_each="users", misfire_limit=True)
    assert app.schedules.list() == []


@any_store
def test_a_tick_makes_one_parent_and_that_makes_a_job_of_every_row(app: Treadle, sync: Task, clock: FakeClock) -> None:
    hourly(app, tenant="acme", payload={"force_full": True})
    [parent, *rows] = ran(app, clock)
    assert (parent.task, parent.schedule, parent.result, parent.tick) == (ROWS, "syncs", 4, clock.now())
    assert (parent.tenant, parent.queue, parent.state) == ("acme", "mail", State.SUCCEEDED)
    assert sorted(job.result for job in rows) == [f"synced {name} fully" for name in ("ada", "bob", "eve", "kim")]
    for job in rows:
        assert (job.task, job.tenant, job.queue, job.priority) == ("sync", "acme", "mail", 2)
        assert (job.retry, job.task_version, job.schedule, job.tick) == (AGAIN, 3, "syncs", clock.now())
    assert app.schedules.get("syncs", tenant="acme").last_job == parent.id


@any_store
def test_each_tick_makes_new_jobs_of_the_rows(app: Treadle, sync: Task, clock: FakeClock) -> None:
    hourly(app)
    assert [len(ran(app, clock)) for _ in range(3)] == [5, 5, 5]
    assert len({job.id for job in children(app)}) == 12


def test_rows_are_asked_for_when_the_tick_is_run_not_when_it_is_made(
    app: Treadle, sync: Task, clock: FakeClock
) -> None:
    active = ["ada"]
    hourly(app, lambda: ({"user": name} for name in active))
    clock.advance(hours=1)
    fire(app)
    active.append("bob")
    run_until_idle(app, queues=["mail"])
    assert users(app) == ["ada", "bob"]


def test_no_rows_make_no_jobs(app: Treadle, sync: Task, clock: FakeClock) -> None:
    hourly(app, lambda: [])
    [parent] = ran(app, clock)
    assert (parent.state, parent.result) == (State.SUCCEEDED, 0)


@any_store
def test_rows_that_are_the_same_make_one_job(app: Treadle, sync: Task, clock: FakeClock) -> None:
    def twice() -> Iterator[dict]:
        yield from ({"user": "ada"}, {"user": "bob", "force_full": True}, {"user": "ada"}, {"user": "ada"})
        yield {"force_full": True, "user": "bob"}

    hourly(app, twice)
    ran(app, clock)
    assert users(app) == ["ada", "bob"]
    ran(app, clock)
    assert users(app) == ["ada", "ada", "bob", "bob"]


@any_store
def test_a_row_of_hundreds_comes_in_portions(
    app: Treadle, sync: Task, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.schedules.for_each.ROW_BATCH", 50)
    hourly(app, lambda: [{"user": str(number)} for number in range(120)])
    clock.advance(hours=1)
    assert len(run_until_idle(app, queues=["mail"], limit=300)) == 121
    assert len(children(app)) == 120


def test_two_schedules_may_ask_for_the_same_rows(app: Treadle, sync: Task, clock: FakeClock) -> None:
    hourly(app)
    app.schedules.create("full", "sync", {"force_full": True}, every="1h", for_each="users")
    ran(app, clock)
    assert users(app) == sorted(["ada", "bob", "eve", "kim"] * 2)
    assert sum(job.payload["force_full"] for job in children(app) if "force_full" in job.payload) == 4


# --------------------------------------------------------------------------------------- ways to give rows


def test_rows_may_come_from_an_async_generator_or_a_coroutine(app: Treadle, sync: Task, clock: FakeClock) -> None:
    async def generated() -> AsyncIterator[dict]:
        for number in range(7):
            yield {"user": f"g{number}"}

    async def fetched() -> list[dict]:
        return [{"user": f"f{number}"} for number in range(7)]

    app.for_each(fetched, "fetched")
    hourly(app, generated)
    app.schedules.create("others", "sync", every="1h", for_each="fetched")
    ran(app, clock)
    assert users(app) == [*(f"f{number}" for number in range(7)), *(f"g{number}" for number in range(7))]


def test_rows_may_ask_for_the_context_of_their_parent(app: Treadle, sync: Task, clock: FakeClock) -> None:
    def rows(ctx: Context) -> Iterator[dict]:
        ctx.progress(0.5, "half way")
        yield {"user": f"{ctx.job.tenant} at {ctx.tick:%H:%M}"}

    hourly(app, rows, tenant="acme")
    [parent, _] = ran(app, clock)
    assert users(app) == ["acme at 13:00"]
    assert parent.progress.note == "half way"


def test_async_rows_may_ask_for_the_context_too(app: Treadle, sync: Task, clock: FakeClock) -> None:
    async def rows(ctx: Context) -> AsyncIterator[dict]:
        yield {"user": ctx.job.schedule}

    hourly(app, rows)
    ran(app, clock)
    assert users(app) == ["syncs"]


def test_a_task_with_one_model_takes_rows_as_it_is(app: Treadle, clock: FakeClock) -> None:
    seen = []
    app.register("sync", lambda job: seen.append(job["payload"]), queue="mail")
    hourly(app, lambda: ["ada", 7, None, [1, 2]])
    ran(app, clock)
    assert sorted(map(str, seen)) == ["7", "None", "[1, 2]", "ada"]


def test_for_each_may_be_declared_where_the_task_is(app: Treadle, clock: FakeClock) -> None:
    def users() -> list[dict]:
        return [{"user": "ada"}, {"user": "bob"}]

    @app.task(every="1h", for_each=users, payload={"force_full": True})
    def sync(user: str, force_full: bool = False) -> str:
        return f"{user} {force_full}"

    run_until_idle(app)  # a worker starts
    clock.advance(hours=1)
    assert sorted(str(job.result) for job in run_until_idle(app)) == ["2", "ada True", "bob True"]


# --------------------------------------------------------------------------------------- killed half way


def failing_once(rows: int, at: int, error: BaseException) -> Callable[[], Iterator[dict]]:
    """Rows that end with an error the first time they come to one of them."""
    failed = []

    def users() -> Iterator[dict]:
        for number in range(rows):
            if number == at and not failed:
                failed.append(True)
                raise error
            yield {"user": f"{number:03}"}

    return users


@any_store
@pytest.mark.parametrize("at", [0, 1, 3, 4, 7, 9])
def test_an_error_in_the_rows_retries_the_parent_and_doubles_nothing(
    app: Treadle, sync: Task, clock: FakeClock, at: int
) -> None:
    hourly(app, failing_once(10, at, RuntimeError("the database is away")))
    attempts = [job for job in ran(app, clock) if job.task == ROWS]
    first, second = attempts
    assert (first.state, first.failures, first.error.message) == (State.PENDING, 1, "the database is away")
    assert (second.state, second.result, second.id) == (State.SUCCEEDED, 10, first.id)
    assert users(app) == [f"{number:03}" for number in range(10)]


@any_store
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_parent_whose_worker_dies_half_way_is_run_again_and_doubles_nothing(
    app: Treadle, sync: Task, clock: FakeClock, at: int
) -> None:
    hourly(app, failing_once(10, at, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ran(app, clock)
    stored = len(users(app))
    assert stored == at // 3 * 3
    clock.advance(minutes=30)
    assert app.recover() == 1
    run_until_idle(app, queues=["mail"])
    assert users(app) == [f"{number:03}" for number in range(10)]
    assert all(job.attempt == 1 for job in children(app))


@any_store
def test_rows_whose_jobs_have_ended_meanwhile_are_not_run_again(app: Treadle, sync: Task, clock: FakeClock) -> None:
    hourly(app, failing_once(6, 5, RuntimeError("away")), retry=Retry(max_attempts=3, base=60, jitter=0))
    assert len(ran(app, clock)) == 4  # the parent, and the three of its first batch
    clock.advance(minutes=1)
    assert len(run_until_idle(app, queues=["mail"])) == 4  # the parent again, and the three of the second
    assert [job.attempt for job in children(app)] == [1] * 6


def test_rows_that_never_come_end_the_parent(app: Treadle, sync: Task, clock: FakeClock) -> None:
    def broken() -> Iterator[dict]:
        yield {"user": "ada"}
        raise RuntimeError("no such table")

    hourly(app, broken)
    *_, parent = ran(app, clock)
    assert (parent.task, parent.state, parent.reason) == (ROWS, State.FAILED, Reason.EXHAUSTED)
    assert parent.error.message == "no such table"
    assert users(app) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"nobody": 1}, "nobody"),
        ({"user": 7}, "user"),
        ("ada", "ada"),
        ({"user": "\0"}, "NUL"),
        ({"user": object}, "user"),
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_the_task_ends_the_parent_at_once_and_is_named(
    app: Treadle, sync: Task, clock: FakeClock, row: object, words: str
) -> None:
    hourly(app, lambda: [{"user": "ada"}, row])
    [parent] = ran(app, clock)
    assert (parent.state, parent.reason) == (State.FAILED, Reason.PERMANENT)
    assert words in parent.error.message
    assert users(app) == []


def test_a_parent_that_is_told_to_stop_stops_between_two_batches_and_goes_on_when_it_is_run_again(
    app: Treadle, sync: Task, clock: FakeClock
) -> None:
    asked = []

    def rows(ctx: Context) -> Iterator[dict]:
        for number in range(9):
            if number == 4 and not asked:
                asked.append(True)
                ctx._attempt.request_stop(StopReason.SHUTDOWN)  # as its worker does
            yield {"user": str(number)}

    hourly(app, rows)
    parents = [job for job in ran(app, clock) if job.task == ROWS]
    assert [job.state for job in parents] == [State.PENDING, State.SUCCEEDED]
    assert users(app) == [str(number) for number in range(9)]


@any_store
def test_a_parent_that_an_operator_retries_makes_what_is_missing_and_nothing_else(
    app: Treadle, sync: Task, clock: FakeClock
) -> None:
    active = [{"user": "ada"}, {"user": 7}]
    hourly(app, lambda: iter(active))
    [parent] = ran(app, clock)
    active[1] = {"user": "bob"}
    app.retry(parent.id)
    run_until_idle(app, queues=["mail"])
    assert users(app) == ["ada", "bob"]


# ------------------------------------------------------------------------------------------- its policies


def test_overlap_concerns_the_parent_and_a_run_by_hand_makes_jobs_of_its_own(
    app: Treadle, sync: Task, clock: FakeClock
) -> None:
    hourly(app, overlap="skip")
    clock.advance(hours=1)
    fire(app)
    clock.advance(hours=1)
    fire(app)
    assert app.count(task=ROWS)[State.PENDING] == 1
    run_until_idle(app, queues=["mail"])
    app.schedules.run("syncs")
    run_until_idle(app, queues=["mail"])
    assert len(users(app)) == 8


@pytest.mark.parametrize("misfire", Misfire)
def test_missed_ticks_are_made_up_for_as_of_any_schedule(
    app: Treadle, sync: Task, clock: FakeClock, misfire: Misfire
) -> None:
    hourly(app, lambda: [{"user": "ada"}], misfire=misfire)
    clock.advance(hours=3, minutes=30)
    run_until_idle(app, queues=["mail"])
    assert len(users(app)) == {"skip": 0, "once": 1, "all": 3}[misfire]


# -------------------------------------------------------------------------------------------- what is refused


def test_rows_are_registered_under_one_name_and_take_the_context_at_most(app: Treadle) -> None:
    def users() -> list:
        return []

    assert app.for_each(users) == app.for_each(users) == "users"
    with pytest.raises(ConfigError, match="registered twice"):
        app.for_each(lambda: [], "users")
    with pytest.raises(ConfigError, match="takes 2 arguments"):
        app.for_each(lambda one, two: [])
    with pytest.raises(InvalidJob, match="for_each"):
        app.for_each(lambda: [], "\n")


def test_the_payload_of_such_a_schedule_is_checked_with_its_rows_not_before(app: Treadle, sync: Task) -> None:
    app.for_each(lambda: [], "users")
    app.schedules.create("syncs", "sync", {"force_full": True}, every="1h", for_each="users")
    for payload in ({"x": object()}, {"x": "\0"}, {"x": float("nan")}):
        with pytest.raises(TreadleError, match="payload"):
            app.schedules.create("bad", "sync", payload, every="1h", for_each="users")
    with pytest.raises(TreadleError, match="user"):
        app.schedules.update("syncs", for_each=None)  # for then it has no user
    assert [schedule.name for schedule in app.schedules.list()] == ["syncs"]
    assert app.schedules.get("syncs").for_each == "users"


def test_nobody_makes_jobs_of_another_tenant_by_asking_for_rows_himself(
    app: Treadle, sync: Task, clock: FakeClock
) -> None:
    app.for_each(lambda: [{"user": "ada"}], "users")
    told = {"name": "x", "task": "sync", "payload": {}, "queue": "mail", "tenant": "globex"}
    app.tenant("acme").enqueue(ROWS, {"tick": clock.now().isoformat(), "schedule": told}, queue="mail")
    run_until_idle(app, queues=["mail"])
    assert {job.tenant for job in app.find().jobs} == {"acme"}


# --------------------------------------------------------------------------------- the mail assistant's loops


def assistant(app: Treadle, fallback: str = "15m", full: str = "1h", renewal: str = "24h") -> Treadle:
    """Its three periodic works for all active users."""

    def active_users() -> list[dict]:
        return [{"user_id": 1}, {"user_id": 2}]

    def all_users() -> list[dict]:
        return [{"user_id": 1}, {"user_id": 2}, {"user_id": 3}]

    def sync(user_id: int, history_id: str | None = None, force_full: bool = False) -> None:
        pass

    def renew_watch(user_id: int) -> None:
        pass

    app.register("sync", sync)
    app.register("renew_watch", renew_watch)
    app.declare("fallback_sync", "sync", every=fallback, for_each=active_users)
    app.declare("full_sync", "sync", {"force_full": True}, every=full, for_each=active_users)
    app.declare("watch_renewal", "renew_watch", every=renewal, for_each=all_users)
    run_until_idle(app)  # it starts
    return app


def passed(app: Treadle, clock: FakeClock, hours: int, minutes: int) -> dict[str, list[tuple]]:
    """What these hours bring, looked at in steps of minutes: per schedule, the minute and the user of every job."""
    start, found = clock.now(), {}
    for _ in range(hours * 60 // minutes):
        clock.advance(minutes=minutes)
        for job in run_until_idle(app):
            if not job.task.startswith(EXPANSION):
                assert bool(job.payload.get("force_full")) is (job.schedule == "full_sync")
                minute = (job.tick - start) // timedelta(minutes=1)
                found.setdefault(job.schedule, []).append((minute, job.payload["user_id"]))
    return {name: sorted(lines) for name, lines in found.items()}


@any_store
@pytest.mark.covers("001-R16.a", "001-R17.a")
def test_the_mail_assistant_syncs_every_active_user_and_renews_every_watch(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = assistant(make_app(profile=mail_assistant.PROFILE))
    assert passed(app, clock, 3, 15) == {
        "fallback_sync": [(minute, user) for minute in range(15, 181, 15) for user in (1, 2)],
        "full_sync": [(minute, user) for minute in (60, 120, 180) for user in (1, 2)],
    }
    assert "watch_renewal" not in passed(app, clock, 20, 300)
    assert passed(app, clock, 1, 60)["watch_renewal"] == [(60, 1), (60, 2), (60, 3)]


@any_store
@pytest.mark.covers("001-R16.b", "001-R17.a")
def test_the_intervals_of_the_mail_assistant_are_configured(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    app = assistant(make_app(profile=mail_assistant.PROFILE), fallback="2h", full="6h", renewal="12h")
    app.schedules.update("full_sync", every="12h")  # while it runs, too
    day = passed(app, clock, 24, 120)
    assert {name: len(lines) for name, lines in day.items()} == {
        "fallback_sync": 24, "full_sync": 4, "watch_renewal": 6,
    }  # fmt: skip
