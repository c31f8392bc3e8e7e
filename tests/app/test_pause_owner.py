"""Whose a pause is: a tenant lifts what it has paused itself, and nothing else."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.marks import any_store
from treadle import NotPossible, Treadle
from treadle.model.records import PauseOwner
from treadle.testing import FakeClock


@any_store
def test_a_pause_says_whose_it_is(app: Treadle) -> None:
    acme = app.tenant("acme")
    assert app.pause(queue="mail").owner is PauseOwner.OPERATOR
    assert app.pause(tenant="acme", queue="mail").owner is PauseOwner.OPERATOR
    assert acme.pause(queue="reports").owner is PauseOwner.TENANT
    assert {pause.scope: pause.owner.value for pause in app.pauses()} == {
        "queue mail": "operator",
        "tenant acme, queue mail": "operator",
        "tenant acme, queue reports": "tenant",
    }


@any_store
def test_a_tenant_lifts_its_own_pause(app: Treadle) -> None:
    acme = app.tenant("acme")
    acme.pause(everything=True)
    acme.resume(everything=True)
    assert app.pauses() == []


@any_store
def test_a_tenant_cannot_lift_or_change_a_pause_of_the_operators(app: Treadle) -> None:
    app.pause(tenant="acme", reason="unpaid", actor="root")
    [before] = app.pauses()
    for act in (app.tenant("acme").resume, app.tenant("acme").pause):
        with pytest.raises(NotPossible, match="tenant acme was paused by the operators; only the operators can"):
            act(everything=True)
    assert app.pauses() == [before]


@any_store
def test_operators_lift_any_pause_and_take_one_over(app: Treadle) -> None:
    acme = app.tenant("acme")
    acme.pause(everything=True)
    assert app.pause(tenant="acme", reason="unpaid").owner is PauseOwner.OPERATOR
    with pytest.raises(NotPossible):
        acme.resume(everything=True)
    app.resume(tenant="acme")
    acme.pause(everything=True)
    app.resume(tenant="acme")
    assert app.pauses() == []


@any_store
def test_where_a_pause_of_the_operators_is_over_a_tenant_may_pause_again(app: Treadle, clock: FakeClock) -> None:
    app.pause(tenant="acme", until=timedelta(minutes=5))
    clock.advance(minutes=6)
    assert app.tenant("acme").pause(everything=True).owner is PauseOwner.TENANT


@any_store
def test_a_tenant_cannot_lift_the_brake_of_its_budget(
    make_app: Callable[..., Treadle], spend: Callable[..., None]
) -> None:
    app = make_app(budgets={"acme": 100}, keep_failed="2d")
    spend(app, "acme", 120)
    [brake] = app.pauses()
    assert brake.owner is PauseOwner.BUDGET
    with pytest.raises(NotPossible, match="because its budget is spent"):
        app.tenant("acme").resume(everything=True)
    assert app.pauses() == [brake]
    app.resume(tenant="acme")
    assert app.pauses() == []


@any_store
def test_a_tenant_that_pauses_itself_does_not_slip_past_the_brake_of_its_budget(
    make_app: Callable[..., Treadle], spend: Callable[..., None]
) -> None:
    app = make_app(budgets={"acme": 100}, keep_failed="2d")
    acme = app.tenant("acme")
    spend(app, "acme", 120, then=lambda: acme.pause(everything=True))
    assert [pause.owner for pause in app.pauses()] == [PauseOwner.BUDGET]
    with pytest.raises(NotPossible):
        acme.resume(everything=True)


@pytest.fixture
def spend() -> Callable[..., None]:
    """A job of this tenant costs so much, and a worker looks at the budgets."""
    import logging

    from treadle import Context
    from treadle.testing import run_until_idle
    from treadle.worker.maintenance.budgets import Budgets

    def spend(app: Treadle, tenant: str, micros: int, then: Callable[[], object] = lambda: None) -> None:
        def ask(ctx: Context) -> None:
            ctx.add_cost(micros)

        app.register("ask", ask).using(tenant=tenant).enqueue()
        run_until_idle(app)
        then()
        Budgets(app.engine, app.settings.budgets, logging.getLogger("test")).enforce()

    return spend
