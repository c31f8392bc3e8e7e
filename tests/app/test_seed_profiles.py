"""The five applications by their profiles: one queue with their numbers, their words and their columns."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from treadle import Context, GiveUp, Job, Profile, Retry, State, Treadle
from treadle.profiles import backend, chat_server, companion, mail_assistant, tenant_ops
from treadle.testing import FakeClock, run_until_idle


@pytest.mark.parametrize(
    ("profile", "numbers", "retry"),
    [
        pytest.param(chat_server.PROFILE, (1800, 300, 5, 1, 1), (4, 30, 900, 0), id="000"),
        pytest.param(mail_assistant.PROFILE, (300, 60, 1, 3, 1), (3, 0, 300, 0), id="001"),
        pytest.param(backend.PROFILE, (300, 15, 1, 4, 1), (3, 5, 300, 1), id="002"),
        pytest.param(companion.PROFILE, (300, 30, 30, 1, 25), (5, 60, None, 0), id="003"),
        pytest.param(tenant_ops.PROFILE, (300, 60, 5, 1, 10), (4, 10, None, 0), id="004"),
    ],
)
def test_every_seed_is_a_profile_with_its_own_numbers(
    make_app: Callable[..., Treadle], profile: Profile, numbers: tuple, retry: tuple
) -> None:
    app = make_app(profile=profile)
    job = app.register("work", lambda: None).using(tenant="ada").enqueue()
    assert job.retry == Retry(*retry)
    plan = app.worker().config
    assert (plan.lease, plan.sweep, plan.poll, plan.concurrency, plan.batch) == numbers
    assert plan.fail_unknown is (profile is not tenant_ops.PROFILE)
    assert (State.FAILED in plan.keep.states) is (profile is mail_assistant.PROFILE)


@any_store
@pytest.mark.covers("000-R08.b")
def test_a_handler_that_returns_none_is_complete_with_an_empty_output(make_app: Callable[..., Treadle]) -> None:
    app = make_app(profile=chat_server.PROFILE)
    app.register("quiet", lambda: None).using(tenant="ada").enqueue()
    [job] = run_until_idle(app)
    printed = app.view(job)
    assert (printed["status"], printed["output"], printed["error"]) == ("complete", {}, None)
    assert job.result_json is None


# ------------------------------------------------------------------------------------------- 003: companion


def in_each_status(make_app: Callable[..., Treadle]) -> tuple[Treadle, dict[str, Job]]:
    """An app of the companion with a job in each of its six states, by its word for it."""
    app = make_app(profile=companion.PROFILE)

    @app.task
    def work(how: str) -> None:
        if how == "dead_letter":
            raise GiveUp("for good")
        if how == "failed":
            raise RuntimeError("for now")

    made = {how: work.enqueue(how) for how in ("completed", "failed", "dead_letter")}
    run_until_idle(app)
    made["cancelled"] = app.cancel(work.enqueue("cancelled").id)
    made["in_progress"] = work.enqueue("in_progress")
    claim(app.engine, 1)
    made["pending"] = work.enqueue("pending")
    return app, {word: app.get(job.id) for word, job in made.items()}


@any_store
@pytest.mark.covers("003-S07.a", "003-S07.b")
def test_the_companion_prints_and_finds_its_six_statuses(make_app: Callable[..., Treadle]) -> None:
    app, jobs = in_each_status(make_app)
    assert {word: app.view(job)["status"] for word, job in jobs.items()} == {word: word for word in jobs}
    assert {word: [job.id for job in app.find(state=word).jobs] for word in jobs} == {
        word: [job.id] for word, job in jobs.items()
    }
    assert (jobs["failed"].state, jobs["failed"].failures) == (State.PENDING, 1)
    assert jobs["dead_letter"].state is State.FAILED
    assert set(companion.PROFILE.words()) == set(jobs)


@any_store
@pytest.mark.covers("003-S14.a", "003-S14.b")
def test_failures_of_the_companion_wait_a_minute_doubled_and_the_fifth_is_the_dead_letter(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=companion.PROFILE)

    @app.task
    def work() -> None:
        raise RuntimeError("no luck")

    work.enqueue()
    waits, printed = [], []
    for _ in range(5):
        [job] = run_until_idle(app)
        printed.append(app.view(job))
        waits.append((job.due_at - clock.now()).total_seconds())
        clock.advance(seconds=max(waits[-1], 0))
    assert waits[:4] == [60, 120, 240, 480]
    assert [line["status"] for line in printed] == ["failed"] * 4 + ["dead_letter"]
    assert [line["attempts"] for line in printed] == [1, 2, 3, 4, 5]
    assert "RuntimeError: no luck" in printed[4]["last_error"]
    assert "Traceback" in printed[4]["last_error"]


@any_store
@pytest.mark.covers("003-S14.c")
def test_the_delay_and_the_attempts_of_the_companion_can_be_configured(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(
        profile=companion.PROFILE._replace(task={"retry": Retry(max_attempts=2, base=7, cap=None, jitter=0)})
    )

    def work() -> None:
        raise RuntimeError("no luck")

    app.register("work", work)
    app.register("own", work, retry=Retry(max_attempts=1))
    job, own = app.enqueue("work"), app.enqueue("own")
    run_until_idle(app)
    assert app.get(job.id).due_at == clock.now() + timedelta(seconds=7)
    assert app.view(app.get(own.id))["status"] == "dead_letter"
    clock.advance(seconds=7)
    run_until_idle(app)
    assert app.view(app.get(job.id))["status"] == "dead_letter"


# --------------------------------------------------------------------------------------- 004: tenant system


@any_store
@pytest.mark.covers("004-T01.a")
def test_a_job_of_the_tenant_system_is_queued_then_running_then_succeeded_or_failed(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    seen: list[str] = []

    def look(job_id: str) -> str:
        seen.append(app.view(app.get(job_id))["status"])
        return seen[-1]

    def work(ctx: Context, fails: bool) -> None:
        look(ctx.job.id)
        if fails:
            raise GiveUp("no")

    task = app.register("ENGINE_RUN", work).using(tenant="acme")
    for fails in (False, True):
        job = task.enqueue(fails)
        assert [found.id for found in app.find(state="queued").jobs] == [job.id]
        look(job.id)
        run_until_idle(app)
        look(job.id)
    assert seen == ["queued", "running", "succeeded", "queued", "running", "failed"]


@any_store
@pytest.mark.covers("004-T08.c")
def test_an_error_of_the_tenant_system_has_its_message_and_the_time_of_the_attempt(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)

    def work() -> None:
        raise RuntimeError("mailbox full")

    app.register("EMAIL_SEND", work).using(tenant="acme").enqueue()
    [job] = run_until_idle(app)
    printed = app.view(job)
    assert printed["error"] == {"message": "mailbox full", "attemptedAt": clock.now().isoformat()}
    assert (printed["status"], printed["retryCount"]) == ("queued", 1)
    assert printed["nextRetryAt"] == (clock.now() + timedelta(seconds=10)).isoformat()
