"""Pages that stay open: many windows and one stream, a server that goes away, forms and keys meanwhile."""

import asyncio
import re
from collections.abc import Callable

from playwright.async_api import Locator, Page, expect

from tests.browser.conftest import Site

Night = Callable[[str], Site]
HIDE = (
    "hidden => { Object.defineProperty(document, 'hidden', {get: () => hidden, configurable: true});"
    "document.dispatchEvent(new Event('visibilitychange')); }"
)
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', {get: () => undefined})"


def word(page: Page) -> Locator:
    return page.locator("#live [data-live-word]")


async def streams(site: Site, page: Page, many: int) -> None:
    """Wait until the server has so many streams; it is asked once a frame of the page."""
    seen = site.server.api.state.streams.open
    async with asyncio.timeout(15):
        while len(seen) != many:
            await page.evaluate("new Promise(requestAnimationFrame)")


async def test_many_windows_share_one_stream_which_passes_on(site: Site) -> None:
    context = await site.browser()
    pages = [await context.new_page() for _ in range(8)]
    for page in pages:
        await page.goto("/")
        await expect(word(page)).to_have_text("Live")
    await streams(site, pages[-1], 1)
    await pages[0].close()  # it came first, and has the stream
    site.app.enqueue("greet", {"name": "Ada"})
    for page in pages[1:]:
        await expect(page.locator("#queue-default")).to_contain_text("1")
    await streams(site, pages[-1], 1)


async def test_a_window_that_nobody_sees_has_no_stream(site: Site) -> None:
    context = await site.browser()
    await context.add_init_script(NO_LOCKS)
    page, other = await context.new_page(), await context.new_page()
    await page.goto("/")
    await other.goto("/")
    await streams(site, page, 2)  # where there are no locks, each has its own
    await page.evaluate(HIDE, True)
    await streams(site, page, 1)
    site.app.enqueue("greet", {"name": "Ada"})
    await page.evaluate(HIDE, False)
    await streams(site, page, 2)
    await expect(page.locator("main")).to_contain_text("default")
    await expect(word(page)).to_have_text("Live")


async def go_away(site: Site, page: Page) -> None:
    await page.route("**/*", lambda route: route.abort())
    site.server.stop()
    await expect(word(page)).to_have_text("Reconnecting")


async def come_back(site: Site, page: Page) -> None:
    site.server.api.state.stopping = False
    await page.unroute_all(behavior="ignoreErrors")


async def test_what_is_typed_stays_while_the_server_is_away(site: Site) -> None:
    site.app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    page = await site.open("/schedules/nightly?act=delete", phone=True)
    await expect(page.locator("#live")).to_contain_text("Held, values as of")
    await page.locator("[name=reason]").fill("it runs twice")
    await go_away(site, page)
    live = re.compile(r"Reconnecting since [\d:]{8}, values as of\s*[\d:]{8}")
    await expect(page.locator("#live")).to_have_text(live)
    amber = await page.locator("#live b").evaluate("it => getComputedStyle(it).color")
    assert amber == await page.locator("#live .i").evaluate("it => getComputedStyle(it).color")
    room = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert room[0] <= room[1], room
    await page.locator("[name=reason]").press("Enter")
    alert = page.locator("form [role=alert]")
    await expect(alert).to_have_text(
        re.compile(r"The server does not answer since [\d:]{8}; nothing was sent. Try again when it is back.")
    )
    await expect(page.locator("[name=reason]")).to_have_value("it runs twice")
    assert site.app.schedules.list()
    await come_back(site, page)
    await expect(alert).to_have_text("The server is back; nothing was sent yet.", timeout=30_000)
    await page.locator("[name=reason]").press("Enter")
    await page.wait_for_url("**/schedules?deleted=nightly**")
    site.forgive("Failed to load resource")


async def test_a_key_opens_a_form_and_escape_leads_back_to_its_row(night: Night) -> None:
    page = await night("failing").open("/queues")
    await expect(word(page)).to_have_text("Live")
    rows = page.locator("[data-row]:has([data-key=p])")
    name = await rows.first.get_attribute("id")
    while await page.locator("[data-row].cur").count() == 0 or (
        await page.locator("[data-row].cur").get_attribute("id") != name
    ):
        await page.keyboard.press("j")
    await page.keyboard.press("p")
    await page.wait_for_url("**act=pause**")
    await expect(page.locator("#p-queue")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.wait_for_url(re.compile(r"/queues$"))
    await expect(page.locator("[data-row].cur")).to_have_id(str(name))
    await expect(page.locator("[data-row].cur a").first).to_be_focused()


async def test_escape_leaves_a_field_that_was_typed_in_before_it_closes_the_form(night: Night) -> None:
    site = night("failing")
    page = await site.open("/queues?act=pause")
    await page.locator("#p-reason").fill("so")
    await page.keyboard.press("Escape")  # what is typed is not lost with one key
    await expect(page.locator("#p-reason")).to_have_value("so")
    await page.keyboard.press("Escape")
    await page.wait_for_url(re.compile(r"/queues$"))


async def test_escape_and_a_row_less_untick_the_box_of_the_page(night: Night) -> None:
    page = await night("failing").open("/jobs?state=failed")
    every, rows = page.locator("[data-pick-all]"), page.locator(".c-pick input")
    await every.check()
    await expect(rows.first).to_be_checked()
    await rows.first.uncheck()
    await expect(every).not_to_be_checked()
    await every.check()
    await page.keyboard.press("Escape")
    await expect(every).not_to_be_checked()
    assert await page.locator(".c-pick input:checked").count() == 0


async def test_what_needs_a_script_is_not_drawn_without_one(site: Site) -> None:
    page = await site.open("/queues", options={"java_script_enabled": False})
    for part in ("[data-copy]", "[data-theme-toggle]", "[data-zone]", "[data-help]"):
        await expect(page.locator(part).first).to_be_attached()
        await expect(page.locator(part).first).to_be_hidden()
    await expect(page.locator(".rail footer .nojs")).to_have_text("UTC")
    page = await site.open("/queues")
    for part in ("[data-copy]", "[data-theme-toggle]", "[data-zone]", "[data-help]"):
        await expect(page.locator(part).first).to_be_visible()
    await expect(page.locator(".nojs")).to_be_hidden()
