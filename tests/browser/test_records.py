"""Audit, costs and doctor in a real browser."""

import logging
import re

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Site
from tests.browser.test_axe import findings
from treadle.testing import run_until_idle
from treadle.worker.maintenance.budgets import Budgets

BUDGETS = {"acme": 5_000_000, "birch": 2_000_000}
PAGES = ("/audit", "/audit?verify=1", "/costs", "/costs?days=30", "/doctor")


@pytest.fixture
def acts(site: Site) -> Site:
    """What ada and grace have done."""
    site.app.cancel(site.app.enqueue("greet", {"name": "Ada"}).id, actor="ada", reason="sent by hand")
    site.clock.advance(seconds=1)
    site.app.pause(queue="mail", actor="grace", reason="the relay is away")
    return site


@pytest.fixture
def spent(site: Site) -> Site:
    """acme is over its budget, birch is near: a worker has looked."""
    site.app.settings = site.app.settings.model_copy(update={"budgets": BUDGETS})
    for micros, tenant in ((5_400_000, "acme"), (1_700_000, "birch")):
        site.app.enqueue("cost", {"micros": micros}, tenant=tenant)
    run_until_idle(site.app)
    Budgets(site.app.engine, BUDGETS, logging.getLogger("test")).enforce()
    return site


async def test_the_trail_is_filtered_by_a_form(acts: Site) -> None:
    page = await acts.open("/audit")
    await page.get_by_text("Filter by who").click()
    await page.get_by_label("Who").fill("ada")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator(".acted tbody tr")).to_have_count(1)
    await expect(page.locator(".acted tbody tr")).to_contain_text("ada cancelled job")
    await expect(page.locator(".acted tbody tr")).to_contain_text("sent by hand")


async def test_what_is_done_meanwhile_is_counted_and_shown_when_asked(acts: Site) -> None:
    page = await acts.open("/audit")
    number = await page.locator(".acted tbody tr").count()
    acts.clock.advance(seconds=1)
    acts.app.resume(queue="mail", actor="grace")
    await expect(page.locator("[data-newer] b")).to_have_text("1")
    assert await page.locator(".acted tbody tr").count() == number
    await page.get_by_role("link", name="Show them").click()
    await expect(page.locator(".acted tbody tr").first).to_contain_text("grace resumed queue mail")


async def test_the_seals_are_verified_by_a_link_and_the_page_is_held(acts: Site) -> None:
    page = await acts.open("/audit")
    acts.app.seal_audit()
    await page.get_by_role("link", name="Verify the seals").click()
    await expect(page.locator("#seals")).to_contain_text("Sound: 3 sealed events are as they were written")
    await expect(page.locator("[data-live-word]")).to_have_text("Held")  # nothing reads them all again by itself
    await page.get_by_role("link", name="Put away").click()
    await expect(page.locator("#seals")).not_to_contain_text("Sound")


async def test_a_tenant_over_its_budget_is_told_by_shape_and_words_with_what_to_do(spent: Site) -> None:
    page = await spent.open("/costs")
    await expect(page.locator(".say").first).to_contain_text("acme has spent today's budget.")
    acme, birch = page.locator("#b-1"), page.locator("#b-2")
    await expect(acme).to_contain_text("paused until midnight")
    await expect(birch).to_contain_text("near")
    assert await acme.locator("use").get_attribute("href") == "#s-paused"
    assert await birch.locator("use").get_attribute("href") == "#s-warn"
    await page.get_by_role("link", name="Resume acme…").click()
    await page.wait_for_url(re.compile(r"/queues\?act=resume&tenant=acme"))
    assert len(spent.app.pauses()) == 1


async def test_costs_grow_in_place(spent: Site) -> None:
    page = await spent.open("/costs")
    await expect(page.locator(".say").first).to_contain_text("7.10 units were spent")
    spent.app.enqueue("cost", {"micros": 900_000}, tenant="cedar")
    run_until_idle(spent.app)
    await expect(page.locator(".say").first).to_contain_text("8.00 units were spent")


async def test_the_days_are_chosen_without_a_script(spent: Site) -> None:
    page = await spent.open("/costs", options={"java_script_enabled": False})
    await page.get_by_role("link", name="Today").click()
    await expect(page.locator(".say").first).to_contain_text("7.10 units were spent today")


async def test_the_doctor_says_what_is_wrong_first(site: Site) -> None:
    site.app.enqueue("send", {"to": "ada"})
    site.clock.advance(minutes=10)
    page = await site.open("/doctor")
    await expect(page.locator(".verdict h2")).to_have_text("One thing keeps this store from working as it should")
    await expect(page.locator(".found li").first).to_contain_text("no worker is alive")


async def test_who_is_bound_is_told_politely(site: Site) -> None:
    context = await site.browser("read", tenant="acme")
    page = await context.new_page()
    answer = await context.request.get(f"{site.url}/doctor")
    assert answer.status == 403
    await page.set_content(await answer.text())
    await expect(page.locator(".why")).to_contain_text("Ask an operator whose token is bound to nothing")


@pytest.mark.parametrize("phone", [False, True])
async def test_they_fit_the_screen_and_who_may_read_sees_no_button_that_acts(
    acts: Site, spent: Site, phone: bool
) -> None:
    context = await acts.browser("read", phone=phone)
    for path in PAGES:
        page = await context.new_page()
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= (390 if phone else 1280), path
        assert await page.locator("h1").count() == 1, path
        assert await page.get_by_role("link", name="…").count() == 0, path
        assert await page.locator("main form[method=post]").count() == 0, path
        await page.close()


@pytest.mark.parametrize("dark", [False, True])
async def test_budgets_that_are_spent_and_seals_that_are_broken_are_for_everybody(
    acts: Site, spent: Site, dark: bool
) -> None:
    acts.app.seal_audit()
    with acts.app.engine.file.write() as writer:  # type: ignore[attr-defined]
        writer.execute("update treadle_events set note = 'nothing happened' where actor = 'ada'")
    context = await acts.browser(dark=dark, options={"bypass_csp": True})
    page, found = await context.new_page(), []
    for path in (*PAGES, "/costs?tenant=acme", "/audit?actor=ada"):
        await page.goto(path)
        found += await findings(page, path)
    assert not found, "\n".join(found)
