"""The first page in a real browser."""

from tests.browser.conftest import Site


async def test_the_overview_says_in_one_sentence_what_is_wrong(site: Site) -> None:
    page = await site.open("/")
    assert await page.locator("h1").inner_text() == "Overview"
    await page.screenshot(path="/tmp/over.png", full_page=True)
