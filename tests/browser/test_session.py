"""Signing in and out in a browser, and a session that ends while somebody types."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from playwright.async_api import Page, expect

from tests.browser.conftest import Site
from tests.browser.pages import addresses, links_of
from tests.server.conftest import NO_LIMIT
from treadle import Treadle
from treadle.server import Principal, asgi
from treadle.server.auth import StoreAuth

Night = Callable[[str], Site]
UNAUTHORISED = "error: Failed to load resource: the server responded with a status of 401 (Unauthorized)"


def forgive(site: Site) -> None:
    """The browser says of each 401 that it was one."""
    site.forgive(UNAUTHORISED)


async def sign_in(page: Page, token: str) -> None:
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()


async def test_who_wants_a_page_signs_in_and_is_led_to_it(site: Site) -> None:
    page = await (await site.nobody()).new_page()
    await page.goto("/schedules?show=off")
    await expect(page.locator("h1")).to_have_text("Sign in")
    await expect(page.get_by_label("Token")).to_be_focused()
    await sign_in(page, "treadle_wrong")
    await expect(page.get_by_role("alert")).to_have_text("there is no such token, or it has expired or was revoked")
    await expect(page.get_by_label("Token")).to_have_value("")
    await sign_in(page, site.token("read"))
    await page.wait_for_url("**/schedules?show=off")
    await expect(page.locator(".rail footer")).to_contain_text("token token-1 · may read")
    forgive(site)


async def test_the_link_signs_in_once(site: Site) -> None:
    assert isinstance(site.server.auth, StoreAuth)
    code = site.server.auth.new_link()
    page = await (await site.nobody()).new_page()
    await page.goto(f"/login?code={code}")
    await expect(page.locator("h1")).to_have_text("Overview")
    assert "code" not in page.url
    other = await (await site.nobody()).new_page()
    await other.goto(f"/login?code={code}")
    await expect(other.get_by_role("alert")).to_contain_text("this link was used, or is older than 15 minutes")
    forgive(site)


async def test_who_has_signed_out_is_nobody(site: Site) -> None:
    page = await site.open("/")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("h1")).to_have_text("Sign in")
    await page.go_back()
    await page.goto("/")
    await expect(page.locator("h1")).to_have_text("Sign in")
    assert await page.context.cookies() == []


async def test_no_link_leads_to_another_site_after_signing_in(site: Site) -> None:
    for place in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
    ):
        context = await site.nobody()
        page = await context.new_page()
        await page.goto("/login?next=" + place.replace("\t", "%09"))
        await sign_in(page, site.token())
        await expect(page.locator("h1")).to_have_text("Overview")
        await context.close()


# ------------------------------------------------------------------------------------- a session that ends


async def test_a_page_whose_session_ends_stays_and_asks_to_sign_in(site: Site) -> None:
    page = await site.open("/schedules?show=off")
    await expect(page.locator("#live [data-live-word]")).to_have_text("Live")
    site.clock.advance(hours=12)
    await expect(page.locator("#live [data-live-word]")).to_have_text("Signed out", timeout=20_000)
    await expect(page.locator("h1")).to_have_text("Schedules")
    await page.locator("#live").get_by_role("link", name="Sign in").click()
    await sign_in(page, site.token())
    await page.wait_for_url("**/schedules?show=off")
    forgive(site)


async def test_what_is_typed_when_the_session_ends_is_kept_until_it_is_sent_again(site: Site) -> None:
    site.app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    page = await site.open("/schedules/nightly?act=delete")
    why = 'it runs twice; "ada" <asked>'
    await page.locator("[name=reason]").fill(why)
    site.clock.advance(hours=12)
    word = page.locator("#live [data-live-word]")
    await expect(word).to_have_text("Signed out", timeout=20_000)
    await expect(page.locator("[name=reason]")).to_have_value(why)
    await page.locator("[name=reason]").press("Enter")

    await expect(page.locator("h1")).to_have_text("Sign in")
    await expect(page.get_by_role("alert")).to_contain_text("nothing was done; what you sent is kept below")
    await expect(page.locator(".kept")).to_contain_text("<asked>")
    assert site.app.schedules.list(), "nothing is done for somebody whose session has ended"
    await sign_in(page, "treadle_wrong")
    await expect(page.get_by_role("alert")).to_contain_text("there is no such token")
    await expect(page.locator(".kept")).to_contain_text("<asked>")
    await sign_in(page, site.token("operate"))

    await expect(page.locator("h1")).to_have_text("Signed in")
    await expect(page.locator(".kept")).to_contain_text("<asked>")
    assert site.app.schedules.list(), "to sign in does nothing else"
    await page.get_by_role("button", name="Send it again").click()
    await page.wait_for_url("**/schedules?deleted=nightly&sure=*")
    assert not site.app.schedules.list()
    assert [event.note for event in site.app.audit(limit=50) if why in (event.note or "")]
    forgive(site)


# ------------------------------------------------------------------ in an application of somebody else's


def people(request: Request) -> Principal | None:
    """The sign-in of the application around us: a cookie of its own."""
    name = request.cookies.get("who")
    return Principal.of(name, ["admin"]) if name else None


@asynccontextmanager
async def hosted(app: Treadle) -> AsyncIterator[str]:
    """The dashboard below a path of a FastAPI application, which knows who asks."""
    outer = FastAPI()
    outer.mount("/ops/jobs", asgi(app, auth=people, **NO_LIMIT))
    config = uvicorn.Config(outer, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    running.config.load()
    running.lifespan = config.lifespan_class(config)
    await running.startup()
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    await running.shutdown()


async def test_below_a_path_of_another_application_every_link_leads_below_it(night: Night) -> None:
    site = night("failing")
    async with hosted(site.app) as url:
        context = await site.nobody()
        await context.add_cookies([{"name": "who", "value": "ada", "url": url}])
        page = await context.new_page()
        await page.goto(f"{url}/ops/jobs/")
        await expect(page.locator(".rail footer")).to_contain_text("ada · may operate")
        await expect(page.locator("#live [data-live-word]")).to_have_text("Live")
        assert await page.get_by_role("button", name="Sign out").count() == 0
        for address in addresses(site.server, site.app):
            answer = await page.goto(f"{url}/ops/jobs{address}")
            assert answer is not None
            assert answer.status == 200, address
            assert await page.evaluate("getComputedStyle(document.querySelector('.rail')).display") != "inline"
            text = await answer.text()
            away = [link for link in links_of(text) if not link.startswith(("/ops/jobs/", "?"))]
            assert away == [], address
            forms = await page.locator("form[action]").evaluate_all("all => all.map(one => one.getAttribute('action'))")
            assert [one for one in forms if not one.startswith(("/ops/jobs/", "?"))] == [], address
        await page.locator(".rail").get_by_role("link", name="Schedules").click()
        await page.wait_for_url("**/ops/jobs/schedules")
        await page.close()


async def test_there_a_form_of_somebody_unknown_is_kept_too(site: Site) -> None:
    site.app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    async with hosted(site.app) as url:
        context = await site.nobody()
        await context.add_cookies([{"name": "who", "value": "ada", "url": url}])
        page = await context.new_page()
        await page.goto(f"{url}/ops/jobs/schedules/nightly?act=delete")
        await page.locator("[name=reason]").fill("it runs twice")
        await context.clear_cookies()
        await page.locator("[name=reason]").press("Enter")
        await expect(page.locator(".kept")).to_contain_text("it runs twice")
        assert await page.get_by_label("Token").count() == 0
        await context.add_cookies([{"name": "who", "value": "ada", "url": url}])
        await page.get_by_role("button", name="Send it again").click()
        await page.wait_for_url("**/ops/jobs/schedules?deleted=nightly&sure=*")
        await page.close()
    forgive(site)
