"""What all pages have in common: loading, live words, keys, themes, times, and who may see what."""

import asyncio
import re
from collections.abc import Callable

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import Site
from tests.browser.crawl import crawl
from tests.browser.pages import addresses
from treadle.errors import EngineUnavailable
from treadle.server.dashboard.page import PAGES, static_files

Night = Callable[[str], Site]
HEAVIEST = 150_000  # bytes of a page's HTML


async def test_every_page_is_one_page_with_one_heading_and_light_enough(night: Night) -> None:
    site = night("failing")
    page = await site.open("/")
    for address in addresses(site.server, site.app):
        answer = await page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        html = await answer.body()
        assert len(html) < HEAVIEST, (address, len(html))
        assert await page.locator("h1").count() == 1, address
        assert (await page.title()).endswith(" · treadle"), address
    files = sum(len(data) for data, _ in static_files().values())
    assert files < HEAVIEST, files


WHO = {"admin": {}, "read": {}, "operate of acme": {"tenant": "acme"}, "read of mail": {"queues": ["mail"]}}


@pytest.mark.parametrize("who", WHO)
async def test_every_link_leads_to_a_page(night: Night, who: str) -> None:
    site = night("failing")
    context = await site.browser(who.partition(" ")[0], **WHO[who])
    begin = ["/jobs"] if "queues" in WHO[who] else ["/"]
    others = {path for path, _, _ in PAGES} if WHO[who] else set()  # the frame has all: those of the store say why not
    broken = []
    for address in await crawl(site, context, begin):
        answer = await context.request.get(address)
        if answer.status != 200 and (answer.status, address in others) != (403, True):
            broken.append(f"{answer.status} {address}")
    assert not broken, "\n".join(broken)


async def test_no_page_scrolls_sideways(night: Night) -> None:
    site = night("failing")
    for phone in (False, True):
        page = await site.open("/", phone=phone)
        for address in addresses(site.server, site.app):
            await page.goto(address)
            room = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert room[0] <= room[1], (address, room)


async def test_every_page_works_without_scripts(night: Night) -> None:
    site = night("failing")
    page = await site.open("/", options={"java_script_enabled": False})
    for address in addresses(site.server, site.app):
        answer = await page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        await expect(page.locator("h1")).to_be_visible()
        assert await page.locator("main").inner_text() != "", address
    await page.goto("/")
    await page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Schedules").click()
    await expect(page.locator("h1")).to_have_text("Schedules")


# ------------------------------------------------------------------------------------------- loading and live


@pytest.mark.covers("002-U3.a")
async def test_a_page_that_comes_late_says_that_it_is_loading(site: Site) -> None:
    page = await site.open("/")
    held = asyncio.Event()

    async def late(route: Route) -> None:
        await held.wait()
        await route.continue_()

    await page.route("**/schedules", late)
    seen: asyncio.Queue[str] = asyncio.Queue()
    await page.expose_function("tell", seen.put_nowait)
    await page.evaluate(
        "const root = document.documentElement;"
        "new MutationObserver(() => tell(root.className + ' ' + document.querySelector('h1').innerText))"
        ".observe(root, {attributes: true})"
    )
    await page.locator(".rail").get_by_role("link", name="Schedules").click(no_wait_after=True)
    assert (await asyncio.wait_for(seen.get(), 15)).endswith("loading Overview")  # the old page stays meanwhile
    held.set()
    await expect(page.locator("h1")).to_have_text("Schedules")
    assert await page.locator("html.loading").count() == 0


async def test_the_word_says_live_then_reconnecting_then_live(site: Site) -> None:
    page = await site.open("/")
    word = page.locator("#live [data-live-word]")
    await expect(word).to_have_text("Live")
    await page.route("**/*", lambda route: route.abort())
    site.forgive("ERR_FAILED")
    site.server.stop()  # ends the streams
    await expect(word).to_have_text("Reconnecting")
    await expect(page.locator("#live")).to_have_text(
        re.compile(r"Reconnecting since [\d:]{8}, values as of\s*[\d:]{8}")
    )
    site.server.api.state.stopping = False
    await page.unroute_all(behavior="ignoreErrors")
    await expect(word).to_have_text("Live", timeout=20_000)
    await expect(page.locator("#live")).to_have_text(re.compile(r"^\s*Live\s*[\d:]{8}"))
    site.forgive("Failed to load resource")  # the browser's own lines about requests that failed


async def test_a_store_that_does_not_answer_is_not_live(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    page = await site.open("/")
    word = page.locator("#live [data-live-word]")
    await expect(word).to_have_text("Live")

    def away(*_: object) -> None:
        raise EngineUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr("treadle.server.stream.status_view", away)
        await expect(word).to_have_text("Reconnecting")
    await expect(word).to_have_text("Live")


async def test_a_value_that_changes_is_shown_without_a_reload(site: Site) -> None:
    page = await site.open("/")
    await expect(page.locator("#live [data-live-word]")).to_have_text("Live")
    await page.evaluate("window.marked = true")
    for name in ("Ada", "Grace"):
        site.app.enqueue("greet", {"name": name})
    await expect(page.locator("#queue-default")).to_contain_text("2")
    assert await page.evaluate("window.marked")


async def test_nothing_is_live_while_somebody_reads_the_keys(site: Site) -> None:
    page = await site.open("/")
    word = page.locator("#live [data-live-word]")
    await expect(word).to_have_text("Live")
    await page.keyboard.press("?")
    await expect(page.locator("#help")).to_be_visible()
    await expect(word).to_have_text("Held")
    await page.keyboard.press("Escape")
    await expect(page.locator("#help")).to_be_hidden()
    await expect(word).to_have_text("Live")


async def test_nothing_is_live_while_a_form_is_open_or_a_row_is_selected(night: Night) -> None:
    site = night("failing")
    page = await site.open("/queues?act=pause&queue=mail")
    word = page.locator("#live [data-live-word]")
    await expect(page.locator("[data-holds]").first).to_be_attached()
    await expect(word).to_have_text("Held")
    await page.keyboard.press("Escape")  # Cancel
    await expect(word).to_have_text("Live")
    await page.goto("/jobs?state=failed")
    await expect(word).to_have_text("Live")
    await page.locator(".c-pick input").nth(1).check()
    await expect(word).to_have_text("Held")
    await page.keyboard.press("Escape")
    await expect(word).to_have_text("Live")
    assert await page.locator(".c-pick input:checked").count() == 0


# --------------------------------------------------------------------------------------- themes, times, keys


async def test_the_theme_is_the_systems_until_somebody_chooses_one(site: Site) -> None:
    page = await site.open("/", dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(ground)
    await page.get_by_role("button", name="Light / dark").click()
    light = await page.evaluate(ground)
    assert light != dark
    await page.goto("/schedules")
    assert await page.evaluate(ground) == light  # it is remembered
    await page.get_by_role("button", name="Light / dark").click()
    assert await page.evaluate(ground) == dark


async def test_times_are_told_in_utc_until_somebody_wants_their_own(site: Site) -> None:
    page = await site.open("/", options={"timezone_id": "Asia/Tokyo"})
    shown = page.locator("#live time")
    utc = f"{site.clock.now():%H:%M:%S}"
    tokyo = f"{(site.clock.now().hour + 9) % 24:02}{site.clock.now():%M:%S}"
    await expect(shown).to_have_text(utc)
    await page.locator("[data-zone]").click()
    here = await shown.inner_text()
    assert here[:2] == tokyo[:2]
    assert "Asia/Tokyo" in (await shown.get_attribute("title") or "")
    await expect(page.locator("[data-zone]")).to_have_text("your zone")
    await page.reload()
    assert (await shown.inner_text())[:2] == tokyo[:2]
    await page.locator("[data-zone]").click()
    assert (await shown.inner_text())[:2] == utc[:2]


async def test_a_key_leads_to_every_page(site: Site) -> None:
    page = await site.open("/")
    for path, name, key in PAGES:
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_url(f"**{path}")
        await expect(page.locator("h1")).to_have_text(name)


async def test_keys_find_jobs_and_walk_through_rows(night: Night) -> None:
    site = night("failing")
    page = await site.open("/")
    await page.keyboard.press("/")
    await expect(page.locator("#q")).to_be_focused()
    await page.keyboard.type("?/gj")  # it is typed, and no key of the page
    assert await page.locator("#q").input_value() == "?/gj"
    await page.locator("#q").blur()
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await expect(page.locator("[data-row].cur")).to_have_count(1)
    link = await page.locator("[data-row].cur a").first.get_attribute("href")
    await page.keyboard.press("o")
    await page.wait_for_url(f"**{link}")


async def test_a_phone_has_tabs_below(site: Site) -> None:
    page = await site.open("/", phone=True)
    tabs = page.get_by_role("navigation", name="Pages, short")
    await expect(tabs).to_be_visible()
    await tabs.get_by_role("link", name="Queues").click()
    await expect(page.locator("h1")).to_have_text("Queues")
    await tabs.get_by_text("More").click()
    await tabs.get_by_role("link", name="Doctor").click()
    await expect(page.locator("h1")).to_have_text("Doctor")
    bar = await tabs.bounding_box()
    assert bar is not None
    assert round(bar["y"] + bar["height"]) == 844


# ------------------------------------------------------------------------------------------- who may see what

ACTS = (
    "main form[method=post] button:not([type=button], [formaction$='/check']), main .c-pick, "
    "main [data-key=r], main [data-key=p], main a[href*='act=']"
)


async def test_who_may_only_read_has_the_commands_and_no_buttons(night: Night) -> None:
    site = night("failing")
    page = await site.open("/", "read")
    for address in addresses(site.server, site.app):
        await page.goto(address)
        acts = await page.locator(ACTS).evaluate_all("all => all.map(one => one.outerHTML)")
        assert acts == [], address
        if address in {path for path, _, _ in PAGES}:
            assert await page.locator(".cli code").count() > 0, f"{address}: no command is there"


async def test_two_tenants_do_not_see_each_other_on_any_page(night: Night) -> None:
    site = night("failing")
    for own, other in (("acme", "globex"), ("globex", "acme")):
        page = await site.open("/", "operate", tenant=own)
        await no_word_of(other, page, site)
    site.forgive("Failed to load resource")  # what is not theirs is not there, and the browser says so


async def no_word_of(other: str, page: Page, site: Site) -> None:
    theirs = {job.id for job in site.app.find(tenant=other, limit=500).jobs}
    for address in addresses(site.server, site.app):
        answer = await page.goto(address)
        assert answer is not None
        text = re.sub(r"\s+", " ", await answer.text())
        assert answer.status in (200, 403, 404), address
        assert other not in text, address
        assert not [id_ for id_ in theirs if id_ in text], address
