"""The page of failures in a real browser: it opens a kind, leads to the retry, and does not jump."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Site
from tests.browser.test_axe import findings
from treadle.testing import run_until_idle

QUEUES = ["default", "mail"]


@pytest.fixture
def night(site: Site) -> Site:
    """Two kinds of failures: an order three hours ago, and three mails just now."""
    site.app.enqueue("give_up", {"why": "no such order"})
    run_until_idle(site.app, queues=QUEUES)
    site.clock.advance(hours=3)
    fail(site, 3)
    return site


def fail(site: Site, number: int, task: str = "send", **payload: str) -> None:
    for _ in range(number):
        site.app.enqueue(task, payload or {"to": "ada@example.org"})
    run_until_idle(site.app, queues=QUEUES)


def kind(page: Page, name: str):
    return page.locator("article.fp", has_text=name)


async def test_a_kind_leads_to_the_preview_of_its_retry(night: Site) -> None:
    page = await night.open("/failures")
    link = kind(page, "ConnectionError").get_by_role("link", name="Retry 3…")
    found = {group.type: group.fingerprint for group in night.app.failures().groups}
    assert await link.get_attribute("href") == (f"/jobs?state=failed&fingerprint={found['ConnectionError']}&act=retry")
    await link.click()
    await page.wait_for_url(re.compile(r"/jobs\?.*act=retry"))
    assert len(night.app.find(state="failed").jobs) == 4  # to look is not to act


async def test_a_traceback_is_opened_and_closed_by_a_link_and_the_key(night: Site) -> None:
    page = await night.open("/failures")
    link = kind(page, "ConnectionError").get_by_role("link", name="Traceback")
    await link.click()
    await expect(page.locator(".tb em")).to_have_text("ConnectionError: ada@example.org does not answer")
    await expect(page.locator("article.fp")).to_have_count(2)
    await page.keyboard.press("Escape")
    await page.wait_for_url(lambda url: "open=" not in url)
    await expect(page.locator(".tb")).to_have_count(0)


async def test_the_filter_is_a_form_that_works_without_a_script(night: Site) -> None:
    page = await night.open("/failures", options={"java_script_enabled": False})
    await page.get_by_text("Filter by task").click()
    await page.get_by_label("Task").fill("give_up")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("article.fp")).to_have_count(1)
    assert await page.get_by_label("Task").input_value() == "give_up"
    await page.get_by_role("link", name="Show all").click()
    await expect(page.locator("article.fp")).to_have_count(2)


async def test_numbers_change_in_place_and_a_new_kind_is_only_counted(night: Site) -> None:
    page = await night.open("/failures")
    mails = kind(page, "ConnectionError")
    await expect(mails.locator(".count")).to_contain_text("3")
    fail(night, 5)
    fail(night, 9, "give_up", why="the card was declined")
    await expect(mails.locator(".count")).to_contain_text("8")
    await expect(page.locator("article.fp")).to_have_count(2)
    await expect(page.locator("[data-newer]")).to_have_text("Kinds that have come since: 1. Show them")
    await expect(page.locator(".say")).to_contain_text("18 jobs failed for good. They are of 3 kinds.")
    await page.get_by_role("link", name="Show them").click()
    await expect(page.locator("article.fp")).to_have_count(3)


async def test_the_keys_go_from_kind_to_kind_and_retry_the_one_they_have_come_to(night: Site) -> None:
    page = await night.open("/failures?by=most")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(kind(page, "GiveUp")).to_have_class(re.compile("cur"))
    fail(night, 1)
    await expect(kind(page, "ConnectionError").locator(".count")).to_contain_text("4")
    await expect(kind(page, "GiveUp")).to_have_class(re.compile("cur"))
    await page.keyboard.press("r")
    await page.wait_for_url(re.compile("act=retry"))
    found = {group.type: group.fingerprint for group in night.app.failures().groups}
    assert found["treadle.errors.GiveUp"] in page.url


async def test_who_may_only_read_sees_commands_and_no_buttons(night: Site) -> None:
    page = await night.open("/failures", "read")
    await expect(page.locator("article.fp")).to_have_count(2)
    assert await page.get_by_role("link", name=re.compile("^Retry")).count() == 0
    assert await page.locator("article.fp .cli").count() == 2


async def test_it_fits_a_phone(night: Site) -> None:
    page = await night.open("/failures", phone=True)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("dark", [False, True])
async def test_an_open_kind_and_a_filter_are_for_everybody(night: Site, dark: bool) -> None:
    page = await night.open("/failures", dark=dark, options={"bypass_csp": True})
    found = []
    for path in (f"/failures?open={night.app.failures().groups[0].fingerprint}", "/failures?task=send"):
        await page.goto(path)
        found += await findings(page, path)
    assert not found, "\n".join(found)
