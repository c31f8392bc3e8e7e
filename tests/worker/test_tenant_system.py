"""Workers of the tenant system (004) by its profile, on PostgreSQL: its batch, its poll, its own types."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.workbench import ended, idle_waits, until, working
from treadle import State, Treadle
from treadle.profiles import tenant_ops

AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the tenant system has no other."""
    return request.param


@pytest.mark.covers("004-T05.a")
@pytest.mark.parametrize(("settings", "batch"), [({}, 10), ({"batch": 3}, 3)], ids=["as it is", "configured"])
def test_a_worker_claims_up_to_a_batch_of_its_own_types_executes_them_and_settles(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], batch: int
) -> None:
    app = make_app(profile=tenant_ops.PROFILE, **settings)
    ran: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        assert gate.wait(60)
        ran.append(number)
        return number

    task = app.register("ENGINE_RUN", work).using(tenant="acme")
    strange = app.enqueue("EMAIL_SEND", {}, checked=False, tenant="acme", priority=9)
    jobs = [receipt.job for receipt in task.enqueue_many([(number,) for number in range(24)])]
    turn, claims = app.engine.turn, []

    def noted_turn(changes: Any, claim: Any = None, **named: Any) -> Any:
        answer = turn(changes, claim, **named)
        if claim is not None:
            claims.append((claim.limit, len(answer.jobs)))
        return answer

    monkeypatch.setattr(app.engine, "turn", noted_turn)
    with working(app, **{**AS_SET, "concurrency": 24}):  # room for more than one batch
        until(lambda: app.count()[State.RUNNING] == 24, "all of them claimed")
        gate.set()
        done = ended(app, *jobs)
    assert sorted(ran) == list(range(24))
    assert [(job.state, job.result) for job in done] == [(State.SUCCEEDED, number) for number in range(24)]
    assert max(limit for limit, _ in claims) == max(taken for _, taken in claims) == batch
    assert (app.get(strange.id).state, app.get(strange.id).attempt) == (State.PENDING, 0)  # the mail worker's


@pytest.mark.covers("004-T05.a")
def test_with_nothing_to_do_a_worker_waits_its_poll_interval(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(profile=tenant_ops.PROFILE, schedules=False)
    app.register("ENGINE_RUN", lambda: None)
    waits, engine = idle_waits(app, monkeypatch, **AS_SET)
    assert 3 < waits[0] <= 5
    assert len(engine.turns) == 1
