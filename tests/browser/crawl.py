"""Every page, form and view that links lead to."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext

from tests.browser.conftest import Site
from tests.browser.pages import addresses, links_of, parts_of


async def crawl(site: Site, context: BrowserContext, begin: Sequence[str] = ()) -> list[str]:
    """The addresses of all pages, or of these, and of what they lead to, as long as something about one is new."""
    waiting, seen, found = [*begin] or addresses(site.server, site.app), set[tuple[str, str, str]](), list[str]()
    while waiting:
        address = waiting.pop(0)
        parts = parts_of(site.server, address)
        if parts <= seen:
            continue
        seen |= parts
        found.append(address)
        answer = await context.request.get(address, max_redirects=0)
        assert answer.status < 500, (address, answer.status)
        for link in links_of(await answer.text()):
            waiting.append(f"{urlsplit(address).path}{link}" if link.startswith("?") else link)
    return found
