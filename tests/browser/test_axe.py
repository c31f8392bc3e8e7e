"""What people cannot use, as axe-core finds it: no serious finding on any page, in any light, on any screen."""

import os
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import Page

from tests.browser.conftest import Site
from tests.browser.crawl import crawl
from tests.browser.pages import addresses
from tests.support.sizes import LONG, size

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
GRAVE = {"serious", "critical"}
LOOKS = [(dark, phone) for dark in (False, True) for phone in (False, True)]
USUAL = [(False, False), (True, True)]

pytestmark = pytest.mark.timeout(size(300, long=3600))
Night = Callable[[str], Site]


async def findings(page: Page, address: str) -> list[str]:
    """What axe says of the page that is open."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE)
    found: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{address}: {one['id']} ({one['impact']}): {one['help']}: {node['html'][:160]} {node.get('failureSummary')}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"][:3]
    ]


def worded(look: tuple[bool, bool]) -> str:
    return f"{'dark' if look[0] else 'light'}-{'phone' if look[1] else 'desk'}"


@pytest.mark.parametrize("look", LOOKS if os.environ.get(LONG) else USUAL, ids=worded)
async def test_no_page_of_a_bad_night_has_a_serious_finding(night: Night, look: tuple[bool, bool]) -> None:
    site = night("failing")
    dark, phone = look
    context = await site.browser(dark=dark, phone=phone, options={"bypass_csp": True})
    places = addresses(site.server, site.app)
    if os.environ.get(LONG):
        places = await crawl(site, context)
    page = await context.new_page()
    found = []
    for address in places:
        await page.goto(address)
        found += await findings(page, address)
    assert not found, "\n".join(found)


async def test_no_page_without_anything_has_a_serious_finding(night: Night) -> None:
    site = night("empty")
    page = await (await site.browser(options={"bypass_csp": True})).new_page()
    found = []
    for address in addresses(site.server, site.app):
        if "none" not in address:
            await page.goto(address)
            found += await findings(page, address)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("look", LOOKS if os.environ.get(LONG) else [(False, False)], ids=worded)
async def test_the_door_has_no_serious_finding(site: Site, look: tuple[bool, bool]) -> None:
    page = await (await site.nobody(dark=look[0], phone=look[1], bypass_csp=True)).new_page()
    await page.goto("/login?next=/jobs")
    found = await findings(page, "sign in")
    await page.get_by_label("Token").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("alert").wait_for()
    found += await findings(page, "sign in, refused")
    site.forgive("status of 401")  # the browser says that there was a 401
    assert not found, "\n".join(found)


async def test_a_finding_is_found(site: Site) -> None:
    page = await site.open("/", options={"bypass_csp": True})
    await page.evaluate("document.querySelector('main').innerHTML = '<input><img src=\"/static/treadle.svg\">'")
    found = " ".join(await findings(page, "/"))
    assert "label" in found
    assert "image-alt" in found
