"""What each tenant has spent of its budget today, as people and programs are told."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.support.marks import any_store
from treadle import Context, Treadle
from treadle.model.records import ANY, Pause, PauseOwner
from treadle.testing import FakeClock, run_until_idle


def budgeted(make_app: Callable[..., Treadle], **budgets: int) -> Treadle:
    """An app with these budgets and a task that costs what it is told."""
    app = make_app(budgets=budgets)

    @app.task
    def spend(ctx: Context, micros: int) -> None:
        ctx.add_cost(micros)

    return app


def spend(app: Treadle, micros: int, tenant: str = "acme") -> None:
    app.tasks["spend"].using(tenant=tenant).enqueue(micros)
    run_until_idle(app)


def told(app: Treadle, **which: str) -> list[tuple[str, int, int | None, str]]:
    return [(one.tenant, one.spent, one.budget, one.state) for one in app.budgets(**which).tenants]


@any_store
def test_tenants_are_told_with_what_they_have_spent_of_their_budgets_the_worst_first(
    make_app: Callable[..., Treadle],
) -> None:
    app = budgeted(make_app, acme=100, birch=100, cedar=100, dogwood=0)
    spend(app, 79)
    spend(app, 80, "birch")
    spend(app, 60, "cedar")
    spend(app, 60, "cedar")
    spend(app, 10**9, "unbound")
    assert told(app) == [
        ("dogwood", 0, 0, "spent"), ("cedar", 120, 100, "spent"),
        ("birch", 80, 100, "near"), ("acme", 79, 100, "within"),
    ]  # fmt: skip
    assert told(app, tenant="birch") == [("birch", 80, 100, "near")]
    assert told(app.tenant("acme")) == [("acme", 79, 100, "within")]  # type: ignore[arg-type]
    assert app.budgets().others is None


def test_a_budget_for_everybody_is_each_ones_own(make_app: Callable[..., Treadle]) -> None:
    app = budgeted(make_app, **{ANY: 50, "acme": 100})
    spend(app, 10)
    spend(app, 45, "birch")
    assert told(app) == [("birch", 45, 50, "near"), ("acme", 10, 100, "within")]
    assert app.budgets().others == 50


def test_a_new_day_begins_at_nothing(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    app = budgeted(make_app, acme=100)
    spend(app, 100)
    today = clock.now().date()
    assert app.budgets().day == today
    clock.advance(days=1)
    assert told(app) == [("acme", 0, 100, "within")]
    assert app.budgets().day == today + timedelta(days=1) > date(2026, 1, 1)


def test_the_pause_of_a_tenant_is_told_and_so_is_one_of_a_budget_that_only_workers_know(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = budgeted(make_app, acme=100)
    app.pause(tenant="acme", actor="ada", reason="moves")
    app.pause(tenant="acme", queue="mail", reason="a part of it alone")
    until = datetime(2026, 1, 2, tzinfo=UTC)
    app.engine.save(Pause("birch", actor="budget", at=clock.now(), until=until, owner=PauseOwner.BUDGET), before=None)
    app.pause(queue="mail")
    found = {one.tenant: one for one in app.budgets().tenants}
    assert sorted(found) == ["acme", "birch"]
    assert found["acme"].pause is not None
    assert (found["acme"].pause.actor, found["acme"].pause.reason, found["acme"].state) == ("ada", "moves", "within")
    assert (found["birch"].budget, found["birch"].state) == (None, "spent")


@pytest.mark.parametrize("tenant", ["\x00", ""])
def test_an_app_without_budgets_tells_of_none(make_app: Callable[..., Treadle], tenant: str) -> None:
    app = budgeted(make_app)
    spend(app, 100)
    assert told(app) == told(app, tenant=tenant) == []
