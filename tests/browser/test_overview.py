"""The first page in a real browser: what is wrong and the way to act on it, and numbers that change by themselves."""

import re
from collections.abc import Callable

from playwright.async_api import Page, expect

from tests.browser.conftest import Site
from tests.browser.pages import links_of
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo
from treadle.testing import run_until_idle

Night = Callable[[str], Site]


def worker(site: Site) -> None:
    now = site.app.engine.now()
    tasks = dict.fromkeys(site.app.tasks, 1)
    info = WorkerInfo("loom-1", "box", 1, ["default", "mail"], None, tasks, 4, 1, False, now, now, 1e6)
    site.app.engine.save(info, before=OVERWRITE)


async def test_it_says_what_is_wrong_since_when_and_the_button_leads_to_the_pause(night: Night) -> None:
    site = night("failing")
    page = await site.open("/")
    verdict = page.get_by_role("region", name=re.compile("^Queue mail has been failing"))
    await expect(verdict.locator(".quote")).to_contain_text("mail relay smtp.internal:587 did not answer")
    await expect(verdict).to_contain_text(re.compile(r"Since when\s*Since 02:4\d:\d\d, which is \d+ min ago"))
    pauses = site.app.pauses()
    await verdict.get_by_role("link", name="Pause mail…").click()
    await expect(page).to_have_url(re.compile(r"/queues\?act=pause&queue=mail$"))
    await expect(page.locator("#pause").get_by_role("heading")).to_have_text("Pause queue mail")
    await expect(page.locator("#pause").get_by_role("button", name="Pause queue mail")).to_be_visible()
    assert site.app.pauses() == pauses


async def test_p_opens_the_pause_and_o_the_jobs_of_the_queue_one_is_on(night: Night) -> None:
    page = await night("failing").open("/")
    await page.keyboard.press("p")
    await expect(page.locator("#pause").get_by_role("heading")).to_have_text("Pause queue mail")
    await page.goto("/")
    await page.keyboard.press("j")
    await page.keyboard.press("o")
    await expect(page).to_have_url(re.compile(r"/jobs\?queue=mail$"))


async def test_a_job_that_is_stored_changes_the_numbers_without_a_reload(site: Site) -> None:
    worker(site)
    page = await site.open("/")
    await expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    await expect(page.locator("#live")).to_contain_text("Live")
    due = page.locator(".facts div", has_text="Due").locator("dd").first
    await expect(due).to_have_text("0")
    await page.evaluate("window.same = true")
    site.app.enqueue("greet", {"name": "Ada"})
    await expect(due).to_have_text("1")
    await expect(page.locator("[data-live=verdict]")).to_contain_text("0 running, 1 waiting.")
    run_until_idle(site.app)
    await expect(due).to_have_text("0")
    await expect(page.locator("[data-live=verdict]")).to_contain_text("1 job done in the last hour")
    assert await page.evaluate("window.same")


async def test_the_sentence_turns_when_something_goes_wrong(site: Site) -> None:
    worker(site)
    page = await site.open("/")
    await expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    site.app.enqueue("send", {"to": "Ada"})
    run_until_idle(site.app, queues=["mail"])
    await expect(page.get_by_role("heading", name=re.compile("^Queue mail has been failing"))).to_be_visible()
    await expect(page.locator("[data-live=verdict] .quote")).to_have_text("ConnectionError: Ada does not answer")
    await page.get_by_role("link", name="Retry…").click()
    await expect(page.locator("#plan")).to_contain_text("1")


async def test_the_sign_of_a_verdict_has_the_colour_of_its_need(site: Site) -> None:
    worker(site)
    page = await site.open("/")
    seen = [await sign_of(page)]
    site.app.pause(queue="mail", actor="grace", reason="the relay is away")
    site.app.enqueue("send", {"to": "Ada"})
    await page.reload()
    seen.append(await sign_of(page))
    assert seen == ["--ink-2", "--warn"]


async def sign_of(page: Page) -> str:
    """Which colour of the style sheet the sign before the first sentence has."""
    return str(
        await page.evaluate("""() => {
          const colour = (one) => getComputedStyle(one).color;
          const probe = document.body.appendChild(document.createElement("i"));
          const sign = colour(document.querySelector(".verdict > h2 .i"));
          return ["--bad", "--warn", "--ink-2"].find((name) => {
            probe.style.color = `var(${name})`;
            return colour(probe) === sign;
          });
        }""")
    )


async def test_a_calm_store_says_that_nothing_needs_you_and_asks_for_nothing(site: Site) -> None:
    worker(site)
    page = await site.open("/")
    await expect(page.get_by_role("heading", level=2).first).to_have_text("Nothing needs you")
    verdict = page.locator("[data-live=verdict]")
    assert await verdict.locator(".bad, .steps, a, button").count() == 0
    assert await page.locator(".also").count() == 0


async def test_every_link_of_the_page_is_answered(night: Night) -> None:
    site = night("failing")
    context = await site.browser()
    links = {*links_of(await (await context.request.get("/")).text())}
    assert {"/failures", "/queues?act=pause&queue=mail", "/jobs?queue=mail", "/?span=7d"} <= links
    for link in sorted(links):
        assert (await context.request.get(link, max_redirects=0)).status == 200, link


async def test_a_span_is_chosen_and_its_chart_is_shown(night: Night) -> None:
    page = await night("failing").open("/")
    await page.get_by_role("link", name="6 h", exact=True).click()
    await expect(page).to_have_url(re.compile(r"/\?span=6h$"))
    await expect(page.locator(".seg [aria-current]")).to_have_text("6 h")
    await expect(page.get_by_role("img", name=re.compile("from 21:11 to 03:11 UTC"))).to_be_visible()
