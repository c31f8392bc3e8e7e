"""What seed 002 asks of its two views, seen in a browser: states, filters, acts on the rows that can take them."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Site
from tests.support.marks import any_store
from treadle.testing import run_until_idle


def night(site: Site) -> dict[str, str]:
    """Jobs in four states, by their word."""
    app = site.app
    failed = app.enqueue("send", {"to": "<script>alert(1)</script>"}).id
    run_until_idle(app, queues=["mail"])
    done = app.enqueue("greet", {"name": "Ada"}).id
    run_until_idle(app, queues=["default"])
    cancelled = app.enqueue("greet", {"name": "Bob"}).id
    app.cancel(cancelled)
    return {
        "failed": failed,
        "succeeded": done,
        "cancelled": cancelled,
        "pending": app.enqueue("greet", {"name": "Cy"}).id,
    }


@any_store  # whose application lives on PostgreSQL
@pytest.mark.covers("002-U1.a", "002-T1.n")
async def test_each_row_shows_its_state_in_colour_its_type_age_attempts_and_error(site: Site) -> None:
    jobs = night(site)
    page = await site.open("/jobs")
    colours = {}
    for word, job in jobs.items():
        badge = page.locator(f"#job-{job} .st")
        await expect(badge).to_contain_text(word)
        colours[word] = await badge.evaluate(
            "(one) => getComputedStyle(one).color + one.querySelector('use').href.baseVal"
        )
    assert len(set(colours.values())) == len(jobs)
    row = page.locator(f"#job-{jobs['failed']}")
    for text in ("send", "1 of 1", "ConnectionError", "<script>alert(1)</script> does not answer"):
        await expect(row).to_contain_text(text)
    created = await row.locator("time").get_attribute("datetime")
    assert created is not None
    assert created.startswith("2026-01-01T12:00:00")


@any_store  # whose application lives on PostgreSQL
@pytest.mark.covers("002-U1.b", "002-U3.b")
async def test_jobs_are_filtered_by_state_and_type(site: Site) -> None:
    jobs = night(site)
    page = await site.open("/jobs")
    await page.get_by_role("link", name=re.compile("^Failed")).click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator(f"#job-{jobs['failed']}")).to_be_visible()
    await page.goto("/jobs")
    await page.locator("#q").fill("task:greet")
    await page.locator("#q").press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.get_by_role("link", name=re.compile("^Pending")).click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator(f"#job-{jobs['pending']}")).to_be_visible()


@any_store  # whose application lives on PostgreSQL
@pytest.mark.covers("002-U1.c", "002-U3.c")
async def test_retry_and_cancel_are_on_the_rows_that_can_take_them_and_act(site: Site) -> None:
    jobs = night(site)
    page = await site.open("/jobs")
    there = {}
    for word, job in jobs.items():
        there[word] = await page.locator(f"#job-{job} .c-when a").all_inner_texts()
    assert there == {"failed": ["Retry…"], "succeeded": [], "cancelled": ["Retry…"], "pending": ["Cancel…"]}
    await page.locator(f"#job-{jobs['pending']}").get_by_role("link", name="Cancel").click()
    await page.get_by_role("button", name="Cancel this job").click()
    await expect(page.locator("h1")).to_contain_text("cancelled")
    assert site.app.get(jobs["pending"]).state == "cancelled"
    await page.goto("/jobs")
    await page.locator(f"#job-{jobs['failed']}").get_by_role("link", name="Retry").click()
    await page.get_by_role("button", name="Retry this job").click()
    await expect(page.locator("h1")).to_contain_text("pending")
    assert site.app.get(jobs["failed"]).state == "pending"
