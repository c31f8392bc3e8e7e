"""A worker dies or freezes in the middle of a job: others go on, find the job, and its late words are refused."""

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.workbench import Process, ended, in_state, noted, working
from treadle import Context, State, Treadle

LEASE = 1.0


@pytest.fixture
def second(make_app: Callable[..., Treadle]) -> Treadle:
    """An app whose worker knows the task `hold` and ends it at once."""
    app = make_app()

    @app.task
    def hold(ctx: Context) -> list[object]:
        return ["second", ctx.attempt, ctx.job.crashes]

    @app.task
    def tick() -> str:
        return "tick"

    return app


@any_store
@pytest.mark.covers(
    "001-R30.a", "001-R30.b", "003-S12.b", "000-R18.a", "003-S08.a", "002-D4.c", "002-Q8.b", "002-O2.a"
)  # fmt: skip
def test_the_job_of_a_killed_worker_runs_again_within_its_lease_and_two_seconds(
    second: Treadle, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    doomed = process(lease=LEASE)
    job = second.enqueue("hold")
    doomed.marked("started-1")
    in_state(second, job, worker=second.get(job.id).worker, state=State.RUNNING)
    with working(second, lease=LEASE, concurrency=1, name="second"):
        killed = datetime.now(UTC)
        doomed.signal(signal.SIGKILL)
        doomed.exit_code()
        [tick] = ended(second, second.enqueue("tick"))  # others go on, pending jobs run
        assert tick.worker == "second"
        [job] = ended(second, job)
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, ["second", 2, 1], "second")
    assert (job.attempt, job.crashes, job.failures) == (2, 1, 0)  # the first crash is free
    assert (job.started_at - killed).total_seconds() < LEASE + 2
    [event] = second.events(job.id)
    assert event.kind == "crashed"
    assert "ran out on attempt 1" in event.note
    assert [record for record in caplog.records if job.id in record.getMessage() and "ran out" in record.getMessage()]


@any_store
def test_a_frozen_worker_that_wakes_up_cannot_settle_a_job_that_went_on_without_it(
    second: Treadle, process: Callable[..., Process]
) -> None:
    frozen = process(lease=LEASE)
    job = second.enqueue("hold")
    frozen.marked("started-1")
    frozen.signal(signal.SIGSTOP)
    with working(second, lease=LEASE, name="second"):
        [job] = ended(second, job)
    assert job.result == ["second", 2, 1]
    (frozen.folder / "go").touch()
    frozen.signal(signal.SIGCONT)
    frozen.marked("ending-1")
    frozen.signal(signal.SIGTERM)
    assert frozen.exit_code() == 0  # by now it has said all it had to say
    assert second.get(job.id) == job


@any_store
def test_a_crashed_job_is_recovered_in_time_by_a_worker_that_polls_seldom(app: Treadle) -> None:
    job = app.register("work", lambda: None).enqueue()
    engine = noted(app)
    with working(app, poll=15, lease=1, queues=["elsewhere"]):
        engine.looked_over(1)
        [held] = claim(app.engine, lease=1.0, worker="dead")
        assert held.id == job.id
        began = time.monotonic()
        back = in_state(app, job, state=State.PENDING)
        took = time.monotonic() - began
    assert back.crashes == 1
    assert took < 6  # lease and look are 2 s together, and a poll is 15
