"""The pages of schedules in a real browser: switch, run, delete, and a form that is checked while somebody writes."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Site
from treadle.model.records import Schedule

REFUSED = "error: Failed to load resource: the server responded with a status of 422"  # the browser's own line


def nightly(site: Site) -> Schedule:
    return site.app.schedules.create("nightly", "greet", {"name": "Ada"}, cron="30 2 * * *", tz="Europe/Stockholm")


@pytest.mark.covers("002-U2.a", "002-U3.d")
async def test_a_switch_turns_a_schedule_off_and_on(site: Site) -> None:
    nightly(site)
    page = await site.open("/schedules")
    row = page.get_by_role("row", name=re.compile("nightly"))
    switch = row.get_by_role("switch", name="nightly makes jobs")
    await expect(switch).to_be_checked()
    await expect(row).to_contain_text("30 2 * * *")
    await switch.click()
    await expect(row.get_by_role("switch")).not_to_be_checked()
    await expect(row).to_contain_text("by token token-1, now")
    assert not site.app.schedules.get("nightly").enabled
    await row.get_by_role("switch").press("Space")
    await expect(row.get_by_role("switch")).to_be_checked()
    assert site.app.schedules.get("nightly").enabled


async def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        await page.locator(f"[name={name}]").fill(value)


@pytest.mark.covers("002-U2.b", "002-U3.e")
async def test_a_bad_expression_is_told_while_one_writes_and_made_when_it_is_right(site: Site) -> None:
    site.clock.advance(days=86)  # 28 March 2026
    page = await site.open("/schedules")
    await page.get_by_role("link", name="New schedule").first.click()
    await page.evaluate("window.still = true")
    await fill(page, name="nightly", task="greet", payload='{"name": "Ada"}', tz="Europe/Stockholm", cron="30 25 * * *")
    error = page.locator("#err-cron .err")
    await expect(error).to_contain_text("hour: '25' is out of range. It takes 0 to 23")
    cron = page.get_by_label("Expression")
    await expect(cron).to_have_attribute("aria-invalid", "true")
    await expect(cron).to_be_focused()
    await expect(cron).to_have_value("30 25 * * *")
    await expect(page.get_by_text("1 field needs you.")).to_be_visible()
    await cron.fill("30 2 * * *")
    outlook = page.get_by_role("complementary")
    await expect(outlook).to_contain_text("At 02:30 every day, Europe/Stockholm.")
    await expect(outlook).to_contain_text("Sun 29 March 03:00")
    await expect(outlook).to_contain_text("Clocks are set forward")
    await expect(error).to_have_count(0)
    await expect(cron).to_have_attribute("aria-invalid", "false")
    assert await page.evaluate("window.still"), "the page was loaded anew"
    assert [*site.app.schedules.list()] == []
    await page.get_by_role("button", name="Create schedule").click()
    await expect(page).to_have_url(re.compile("/schedules/nightly$"))
    assert site.app.schedules.get("nightly").payload == {"name": "Ada"}


async def test_a_refused_form_keeps_what_was_typed_and_a_near_miss_is_one_click(site: Site) -> None:
    page = await site.open("/schedules/new")
    await fill(
        page,
        name="nightly",
        task="greet",
        payload='{"name": "Ada"}',
        cron="@daily",
        tz="Europe/Stokholm",
        reason="wanted",
    )
    await page.get_by_role("button", name="Create schedule").click()
    use = page.get_by_role("button", name="Use Europe/Stockholm")
    await expect(use).to_be_visible()
    await expect(page.get_by_label("Reason")).to_have_value("wanted")
    await use.click()
    await expect(page.get_by_label("Time zone")).to_have_value("Europe/Stockholm")
    await expect(page.get_by_label("Reason")).to_have_value("wanted")
    await page.get_by_label("Name").press("Enter")
    await expect(page).to_have_url(re.compile("/schedules/nightly$"))
    assert site.app.schedules.get("nightly").timezone == "Europe/Stockholm"
    site.forgive(REFUSED)


async def test_run_now_shows_what_it_would_do_and_then_does_it(site: Site) -> None:
    nightly(site)
    page = await site.open("/schedules")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/schedules/nightly")
    await page.keyboard.press("r")
    await expect(page.get_by_role("heading", name="Run nightly now")).to_be_visible()
    assert site.app.find().jobs == []
    await page.get_by_label("Reason").fill("tonight's was lost")
    await page.get_by_role("button", name="Run it now").click()
    await expect(page.get_by_text("A job is made")).to_be_visible()
    [job] = site.app.find().jobs
    assert await page.get_by_role("status").get_by_role("link").get_attribute("href") == f"/jobs/{job.id}"


@pytest.mark.covers("002-U2.c")
async def test_deleting_asks_first_and_can_be_left(site: Site) -> None:
    nightly(site)
    page = await site.open("/schedules/nightly")
    await page.get_by_role("link", name="Delete…").click()
    await expect(page.get_by_text("nothing brings it back")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.wait_for_url("**/schedules/nightly")
    assert site.app.schedules.get("nightly")
    await page.get_by_role("link", name="Delete…").click()
    await page.get_by_role("button", name="Delete it").click()  # the field is empty, and the browser says so
    assert site.app.schedules.get("nightly")
    await page.get_by_label("Reason").fill("not needed")
    await page.get_by_role("button", name="Delete it").click()
    await expect(page.get_by_role("status")).to_have_text("nightly is deleted. The jobs it has made stay.")
    assert [*site.app.schedules.list()] == []


async def test_an_edit_sends_what_was_changed(site: Site) -> None:
    nightly(site)
    page = await site.open("/schedules/nightly")
    await page.get_by_role("link", name="Edit").click()
    await expect(page.get_by_text("Nothing is changed yet.")).to_be_visible()
    await page.get_by_label("Every so often").check()
    await expect(page.get_by_label("Expression")).to_be_hidden()
    await page.get_by_label("Interval").fill("15m")
    await expect(page.locator(".form .cli code")).to_have_text("treadle schedules update nightly --every 15m")
    await page.get_by_role("button", name="Save changes").click()
    await page.wait_for_url("**/schedules/nightly")
    after = site.app.schedules.get("nightly")
    assert (after.cron, after.every, after.payload) == (None, 900.0, {"name": "Ada"})


async def test_all_of_it_is_done_without_javascript(site: Site) -> None:
    page = await site.open("/schedules/new", options={"java_script_enabled": False})
    await fill(page, name="nightly", task="greet", payload='{"name": "Ada"}', cron="30 25 * * *")
    await page.get_by_role("button", name="Check").click()
    await expect(page.locator("#err-cron")).to_contain_text("hour: '25' is out of range")
    await fill(page, cron="30 2 * * *")
    await page.get_by_role("button", name="Check").click()
    await expect(page.get_by_role("complementary")).to_contain_text("At 02:30 every day, UTC.")
    await page.get_by_role("button", name="Create schedule").click()
    await page.wait_for_url("**/schedules/nightly")
    await page.get_by_role("link", name="Switch off…").click()
    await page.get_by_label("Reason").fill("too slow")
    await page.get_by_role("button", name="Switch it off").click()
    await expect(page.get_by_text("switched it off now: too slow.")).to_be_visible()
    await page.get_by_role("link", name="Delete…").click()
    await page.get_by_label("Reason").fill("not needed")
    await page.get_by_role("button", name="Delete it").click()
    await expect(page.get_by_text("There is no schedule yet.")).to_be_visible()


async def test_what_somebody_else_does_is_seen_without_a_reload(site: Site) -> None:
    nightly(site)
    page = await site.open("/schedules")
    await expect(page.get_by_role("switch")).to_be_checked()
    site.app.schedules.disable("nightly", actor="grace", reason="too slow")
    await expect(page.get_by_role("switch")).not_to_be_checked(timeout=30_000)
    await expect(page.get_by_role("row", name=re.compile("nightly"))).to_contain_text("by grace, now: too slow")
