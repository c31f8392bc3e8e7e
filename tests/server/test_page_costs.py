"""The page of costs: by tenant and day, beside the budgets; and the budgets as the API tells them."""

import logging
from collections.abc import Callable
from html import unescape

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login, with_tasks
from tests.server.reading import text as words
from treadle import Treadle
from treadle.model.records import ANY
from treadle.testing import FakeClock, run_until_idle
from treadle.worker.maintenance.budgets import Budgets

BUDGETS = {"acme": 5_000_000, "birch": 2_000_000, ANY: 9_000_000}


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return with_tasks(make_app(budgets=BUDGETS))


def spend(app: Treadle, micros: int, tenant: str) -> None:
    app.enqueue("cost", {"micros": micros}, tenant=tenant)
    run_until_idle(app)


def enforce(app: Treadle) -> None:
    """A worker's look at the budgets."""
    Budgets(app.engine, BUDGETS, logging.getLogger("test")).enforce()


@pytest.fixture
def spent(app: Treadle, clock: FakeClock) -> Treadle:
    """Yesterday acme has spent 1.5 units; today it is over its budget, birch is near, and cedar within everybody's."""
    spend(app, 1_500_000, "acme")
    clock.advance(days=1)
    spend(app, 5_400_000, "acme")
    spend(app, 1_700_000, "birch")
    spend(app, 250_000, "cedar")
    enforce(app)
    return app


def page(client: Client, expect: int = 200, **query: object) -> str:
    return unescape(reading.page(client, "/costs", expect, **query))


def test_the_budgets_are_told_by_the_api(spent: Treadle, admin: Client, login: Login) -> None:
    found = admin.get("/budgets")
    assert (found["others"], found["day"]) == (9_000_000, "2026-01-02")
    assert [(one["tenant"], one["spent"], one["budget"], one["state"]) for one in found["budgets"]] == [
        ("acme", 5_400_000, 5_000_000, "spent"),
        ("birch", 1_700_000, 2_000_000, "near"),
        ("cedar", 250_000, 9_000_000, "within"),
    ]
    assert [one["pause"] and one["pause"]["owner"] for one in found["budgets"]] == ["budget", None, None]
    assert [one["tenant"] for one in admin.get("/budgets", tenant="birch")["budgets"]] == ["birch"]
    bound = login("read", tenant="birch")
    assert [one["tenant"] for one in bound.get("/budgets")["budgets"]] == ["birch"]
    bound.get("/budgets", 422, tenant="acme")
    login("read", queues=["mail"]).get("/budgets", 403)


def test_the_page_says_what_was_spent_and_who_is_near_or_over(spent: Treadle, admin: Client) -> None:
    said = words(page(admin))
    assert "8.85 units were spent in the last 7 days by 3 tenants. acme has spent today's budget." in said
    assert "birch is near its budget." in said
    assert "acme paused until midnight 5.40 5.00 108 %" in said
    assert "birch near 1.70 2.00 85 %" in said
    assert "cedar within 0.25 9.00 3 %" in said


def test_what_happens_at_a_budget_is_told_with_the_commands_that_lift_it(
    spent: Treadle, admin: Client, login: Login
) -> None:
    text = page(admin)
    assert "a worker pauses it within ten seconds, until midnight UTC" in text
    named = '{"*": 9000000, "acme": 10800000, "birch": 2000000}'
    assert f"treadle config set budgets '{named}'" in text
    assert f"treadle config set budgets '{named}'" in page(admin, tenant="acme")  # the others keep theirs
    assert "treadle resume --tenant acme" in text
    assert "/queues?act=resume&tenant=acme" in text
    seen = page(login("read"))
    assert "treadle resume --tenant acme" in seen
    assert "act=resume" not in seen


@pytest.mark.parametrize(("days", "total", "bars"), [(1, "7.35", 1), (7, "8.85", 2), (30, "8.85", 2)])
def test_the_span_is_chosen(spent: Treadle, admin: Client, days: int, total: str, bars: int) -> None:
    text = page(admin, days=days)
    assert f"{total} units were spent" in text
    assert text.count('<rect class="ok"') == bars
    assert "treadle costs" + (f" --days {days}" if days > 1 else "") in text


def test_one_tenant_is_looked_at_by_itself(spent: Treadle, admin: Client) -> None:
    said = words(page(admin, tenant="birch"))
    assert "1.70 units were spent in the last 7 days by birch." in said
    assert "acme paused" not in said
    assert "treadle costs --days 7 --tenant birch" in said


def test_small_amounts_are_told_whole(app: Treadle, admin: Client) -> None:
    spend(app, 4_200, "cedar")
    said = words(page(admin))
    assert "0.0042 units were spent" in said
    assert "cost 0.0042" in said


def test_a_token_of_a_tenant_sees_its_own_and_no_command_that_it_may_not_use(spent: Treadle, login: Login) -> None:
    text = page(login("operate", "read", tenant="acme"))
    assert "birch" not in text
    assert "6.90 units were spent in the last 7 days." in words(text)
    assert "Only the operators can raise a budget or lift its pause." in text
    assert "config set budgets" not in text


def test_a_token_of_a_queue_is_told_why_not(spent: Treadle, login: Login) -> None:
    text = page(login("read", queues=["mail"]), 403)
    assert "<h1>Costs</h1>" in text
    assert "your token is bound to some of them" in text
    assert "acme" not in text


def test_a_tenant_who_asks_for_another_is_told_what_is_wrong(spent: Treadle, login: Login) -> None:
    said = words(page(login("read", tenant="acme"), 422, tenant="birch"))
    assert "acme" in said
    assert "Not for this token" not in said


def test_a_pause_by_somebody_is_told_apart_from_one_by_the_budget(spent: Treadle, admin: Client) -> None:
    spent.pause(tenant="cedar", actor="ada", reason="moves")
    assert "cedar paused by ada" in words(page(admin))


def test_where_nothing_was_spent_the_page_teaches(app: Treadle, admin: Client) -> None:
    text = page(admin)
    assert "Nothing was spent in the last 7 days." in words(text)
    assert "ctx.add_cost(" in text


@pytest.mark.parametrize("query", [{"days": 0}, {"days": 31}, {"days": "x"}])
def test_a_span_that_is_none_is_refused(admin: Client, query: dict) -> None:
    page(admin, 422, **query)


def test_a_tenant_is_text(app: Treadle, admin: Client) -> None:
    spend(app, 10**10, "<script>alert(1)</script>")
    enforce(app)
    assert "<script>alert" not in admin.ask("GET", "//costs").text
