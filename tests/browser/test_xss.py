"""What people and jobs write stays text on every page: no element, no attribute, no address and no script."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from fastapi.routing import iter_route_contexts
from playwright.async_api import Page

from tests.browser.conftest import Site
from tests.browser.crawl import crawl
from tests.browser.hostile import CORPUS, poison
from tests.browser.pages import ASIDE, addresses, routes
from tests.server.endpoints import is_page
from tests.support.sizes import LONG, size

FULL = bool(os.environ.get(LONG))
TEXTS = size(12, long=len(CORPUS))
TOGETHER = 20  # addresses that are asked for at once

LOOK = """(page) => {
  const bad = [], own = location.origin;
  const note = (element, why) => bad.push(`${why}: ${element.outerHTML.slice(0, 160)}`);
  for (const one of page.querySelectorAll("*")) {
    for (const { name, value } of one.attributes) {
      if (name.startsWith("on") || name === "style") note(one, name);
      if (["href", "src", "action", "formaction"].includes(name) && one.namespaceURI.endsWith("xhtml")) {
        let to = null;
        try { to = new URL(value, location.href); } catch { /* it leads nowhere */ }
        if (!to || to.origin !== own) note(one, `leads to ${value}`);
      }
    }
  }
  for (const one of page.querySelectorAll(
    "img, iframe, object, embed, base, math, style, frame, video, audio, marquee, .pwned, " +
    "body meta, body link, body script, body title:not(svg title)")) note(one, "element");
  if (page.querySelectorAll("script").length !== 1) bad.push("scripts");
  if (!page.querySelector("h1") || !page.querySelector("body > main")) bad.push("the page is broken");
  if (window.pwned) bad.push("a script has run");
  return bad;
}"""
ASK = f"""async (asked) => {{
  const look = {LOOK};
  return await Promise.all(asked.map(async ([method, address, body]) => {{
    const answer = await fetch(address, {{ method, body: body === null ? undefined : new URLSearchParams(body) }});
    const text = await answer.text();
    if (answer.status >= 500) return [`${{answer.status}}`];
    if (!answer.headers.get("content-type").startsWith("text/html")) return answer.status === 403 ? ["refused"] : [];
    return look(new DOMParser().parseFromString(text, "text/html"));
  }}));
}}"""

pytestmark = pytest.mark.timeout(size(300, long=3600))
Asked = tuple[str, str, dict[str, str] | None]


@pytest.fixture
def hostile(site: Site) -> Site:
    poison(site.app, site.clock, CORPUS[:TEXTS] if not FULL else CORPUS)
    return site


async def signed_in(site: Site) -> Page:
    """Signed in by a token whose label is hostile, too."""
    context = await site.nobody()
    secret = site.app.tokens.create(CORPUS[3], scopes=["admin"]).secret
    answer = await context.request.post(f"{site.url}/login", form={"token": secret}, headers={"Origin": site.url})
    assert answer.ok
    page = await context.new_page()
    page.on("dialog", lambda dialog: site.complaints.append(f"a dialog: {dialog.message}"))
    return page


async def test_nothing_that_was_written_becomes_a_part_of_any_page(hostile: Site) -> None:
    page = await signed_in(hostile)
    places = await everywhere(hostile, page)
    for address in places:
        answer = await page.goto(address)
        assert answer is not None
        assert answer.status == 200, (address, answer.status)
        assert await page.evaluate(f"({LOOK})(document)") == [], address
    shown = await (await page.request.get("/jobs?state=failed")).text()
    assert "window.pwned" in shown or "onerror" in shown, "the texts are not even there"


async def everywhere(site: Site, page: Page) -> list[str]:
    """One address of each kind of page; in full also everything that is one job's, schedule's or worker's own."""
    if not FULL:
        return [*addresses(site.server, site.app), *of_everything(site, most=3)]
    return [*await crawl(site, page.context), *of_everything(site, most=10_000)]


def of_everything(site: Site, most: int) -> Iterator[str]:
    for state in ("failed", "succeeded", "cancelled", "pending"):
        for job in site.app.find(state=state, limit=500).jobs[:most]:
            yield f"/jobs/{job.id}"
    for schedule in [*site.app.schedules.list()][:most]:
        yield f"/schedules/{schedule.id}"


async def test_nothing_in_an_address_becomes_a_part_of_a_page(hostile: Site) -> None:
    page = await signed_in(hostile)
    await page.goto("/")
    texts = CORPUS if FULL else CORPUS[3:6:2]
    asked: list[Asked] = [
        ("GET", f"{path}?{urlencode({name: text})}", None) for path, name in parameters(hostile) for text in texts
    ]
    asked += [
        ("GET", path.replace("{}", quote(text, safe="")), None)
        for path in ("/jobs/{}", "/schedules/{}", "/{}")
        for text in texts
    ]
    await all_harmless(page, asked)
    hostile.forgive("Failed to load resource")


async def test_nothing_that_a_form_sends_becomes_a_part_of_a_page(hostile: Site) -> None:
    page = await signed_in(hostile)
    await page.goto("/")
    names = await fields(hostile, page)
    texts = CORPUS if FULL else CORPUS[3:4]
    asked: list[Asked] = []
    for path in posts(hostile):
        for text in texts:
            asked.append(("POST", path, dict.fromkeys(names, text)))
            asked.append(("POST", path, {"reason": text, "next": text, "again": text, f"kept.{text}": text}))
        if FULL:
            asked += [("POST", path, {name: texts[place % len(texts)]}) for place, name in enumerate(names)]
    await all_harmless(page, asked)
    hostile.clock.advance(hours=12)  # the session has ended: what is sent is kept
    await all_harmless(page, [("POST", path, {text: text}) for path in posts(hostile) for text in texts])
    hostile.forgive("Failed to load resource")


async def all_harmless(page: Page, asked: list[Asked]) -> None:
    for begin in range(0, len(asked), TOGETHER):
        part = asked[begin : begin + TOGETHER]
        for one, bad in zip(part, await page.evaluate(ASK, part), strict=True):
            assert bad == [], one


def parameters(site: Site) -> Iterator[tuple[str, str]]:
    """Each page with each parameter that its address may have."""
    places = dict(zip((route.path for route in routes(site.server)), addresses(site.server, site.app), strict=True))
    for route in iter_route_contexts(site.server.api.routes):
        if is_page(route) and "GET" in (route.methods or ()) and not route.path.startswith("/static"):
            for one in query_of(route.dependant):
                yield places.get(route.path, route.path), one


def query_of(dependant: Any) -> Iterator[str]:
    for one in dependant.query_params:
        fields = getattr(one.field_info.annotation, "model_fields", None)
        yield from ([one.alias] if fields is None else fields)
    for inner in dependant.dependencies:
        yield from query_of(inner)


def posts(site: Site) -> list[str]:
    """Where forms are sent to, about something that is there."""
    job = site.app.find(state="failed", limit=1).jobs[0].id
    schedule = next(iter(site.app.schedules.list())).id
    found = {
        route.path
        for route in iter_route_contexts(site.server.api.routes)
        if is_page(route) and "POST" in (route.methods or ())
    }
    paths = sorted(path for path in found if path not in ("/logout", "/login"))
    return [path.replace("{name}", schedule).replace("{job_id}", job) for path in paths] + ["/login"]


async def fields(site: Site, page: Page) -> list[str]:
    """The names of all fields of all forms."""
    places = [*addresses(site.server, site.app), "/queues?act=pause&queue=mail", "/schedules/new"]
    names: set[str] = set()
    for address in places:
        if not address.startswith(ASIDE):
            await page.goto(address)
            names |= set(await page.locator("form [name]").evaluate_all("all => all.map(one => one.name)"))
    return sorted(names - {"token"})


async def test_what_would_be_a_part_of_a_page_is_seen(site: Site) -> None:
    page = await site.open("/")
    careless = f"""text => {{
      const html = document.documentElement.outerHTML.replace("<main", () => `<p title="${{text}}">${{text}}</p><main`);
      return ({LOOK})(new DOMParser().parseFromString(html, "text/html"));
    }}"""
    unseen = [text for text in CORPUS if not await page.evaluate(careless, text)]
    site.forgive("")  # of what the policy would not have let happen
    assert len(unseen) < len(CORPUS) / 2, unseen
