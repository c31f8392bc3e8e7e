"""The page of a job in a browser: edit and retry, acts with their previews, and what changes while somebody looks."""

from playwright.async_api import expect

from tests.browser.conftest import Site
from treadle.engines.values import Claim, Lease
from treadle.model import Progress
from treadle.testing import run_until_idle

XSS = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def failed(site: Site, to: str = "ada@example.org") -> str:
    """A job that has failed."""
    job = site.app.enqueue("send", {"to": to}).id
    run_until_idle(site.app, queues=["mail"])
    return job


def refused(site: Site, status: int) -> None:
    """Forget what the console says of a form that was refused; nothing else may stand there."""
    site.forgive(f"status of {status}")


async def test_a_job_is_edited_and_retried_after_a_payload_that_does_not_fit(site: Site) -> None:
    @site.app.task
    def pay(cents: int, to: str) -> None:
        raise ValueError("no")

    job = site.app.enqueue("pay", {"cents": 5, "to": "ada"}).id
    site.app.cancel(job)
    page = await site.open(f"/jobs/{job}")
    await page.get_by_role("link", name="Edit and retry…").click()
    await page.get_by_label("cents").fill("much")
    await page.get_by_label("to", exact=True).fill("grace")
    await page.get_by_label("Reason").fill("typo")
    await page.get_by_role("button", name="Edit and retry this job").click()
    field = page.get_by_label("cents")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(field).to_have_value("much")
    await expect(page.get_by_label("to", exact=True)).to_have_value("grace")
    await expect(page.get_by_text("Input should be a valid integer")).to_be_visible()
    refused(site, 422)
    await field.fill("6")
    await page.get_by_role("button", name="Edit and retry this job").click()
    await expect(page.locator("h1")).to_contain_text("pending")
    assert site.app.get(job).payload == {"cents": 6, "to": "grace"}
    await expect(page.locator(".log")).to_contain_text("payload edited: typo")


async def test_an_edit_of_a_job_that_somebody_else_has_changed_is_kept_and_not_done(site: Site) -> None:
    job = failed(site)
    page = await site.open(f"/jobs/{job}?act=edit")
    await page.get_by_label("to", exact=True).fill("grace@example.org")
    site.app.retry(job, actor="bob", reason="the relay is back")
    site.app.cancel(job, actor="bob", reason="it is not")
    await page.get_by_role("button", name="Edit and retry this job").click()
    panel = page.locator("#act")
    await expect(panel).to_contain_text("Somebody has changed this job meanwhile")
    await expect(panel).to_contain_text("bob")
    await expect(panel).to_contain_text("it is not")
    await expect(page.get_by_label("to", exact=True)).to_have_value("grace@example.org")
    refused(site, 409)
    assert site.app.get(job).payload == {"to": "ada@example.org"}
    await page.get_by_role("link", name="Load it anew").click()
    await expect(page.get_by_label("to", exact=True)).to_have_value("ada@example.org")
    await page.get_by_label("to", exact=True).fill("grace@example.org")
    await page.get_by_role("button", name="Edit and retry this job").click()
    await expect(page.locator("h1")).to_contain_text("pending")
    assert site.app.get(job).payload == {"to": "grace@example.org"}


async def test_retry_and_cancel_ask_first_and_take_a_reason(site: Site) -> None:
    job = failed(site)
    page = await site.open(f"/jobs/{job}")
    await page.keyboard.press("r")
    await expect(page.locator("#live")).to_contain_text("Held")
    assert site.app.get(job).state == "failed"
    await page.get_by_label("Reason").fill("the relay is back")
    await page.get_by_role("button", name="Retry this job").click()
    await expect(page.locator("h1")).to_contain_text("pending")
    await expect(page.locator("#act")).to_have_count(0)
    await page.get_by_role("link", name="Cancel…").click()
    await expect(page.locator("#act")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#act")).to_have_count(0)
    await page.get_by_role("link", name="Cancel…").click()
    await page.get_by_label("Reason").fill("not needed")
    await page.get_by_role("button", name="Cancel this job").click()
    await expect(page.locator("h1")).to_contain_text("cancelled")
    await expect(page.locator(".why")).to_contain_text("cancelled it: not needed")
    notes = [event.note for event in site.app.events(job)]
    assert notes[-2:] == ["the relay is back", "not needed"]


async def test_a_job_is_deleted_with_a_reason(site: Site) -> None:
    job = failed(site)
    page = await site.open(f"/jobs/{job}?act=delete")
    await page.get_by_role("button", name="Delete this job").click()
    await expect(page.get_by_label("Reason")).to_have_attribute("aria-invalid", "true")
    refused(site, 422)
    await page.get_by_label("Reason").fill("a test")
    await page.get_by_role("button", name="Delete this job").click()
    await expect(page.locator("h1")).to_have_text("This job was deleted")
    await expect(page.locator("main")).to_contain_text("a test")


async def test_state_and_progress_change_while_somebody_looks(site: Site) -> None:
    job = site.app.enqueue("greet", {"name": "Ada"}).id
    page = await site.open(f"/jobs/{job}")
    await expect(page.locator("h1")).to_contain_text("pending")
    await page.evaluate("window.kept = 1")
    engine = site.app.engine
    engine.turn([], Claim("token", "loom-1", 1, 3600.0))
    engine.extend([Lease(job, "token", site.clock.now(), Progress(0.25, "warped"))], lease=3600)
    await expect(page.locator("h1")).to_contain_text("running", timeout=30_000)
    await expect(page.locator(".why")).to_contain_text("Worker loom-1 has it")
    await expect(page.locator(".why .progress")).to_contain_text("25 % warped")
    engine.extend([Lease(job, "token", progress=Progress(0.5, "half of it"))], lease=3600)
    await expect(page.locator(".why .progress")).to_contain_text("50 % half of it", timeout=30_000)
    assert await page.evaluate("window.kept") == 1


async def test_error_attempts_and_events_arrive_without_a_load(site: Site) -> None:
    page = await site.open(f"/jobs/{site.app.enqueue('send', {'to': 'ada'}).id}")
    await page.evaluate("window.kept = 1")
    run_until_idle(site.app, queues=["mail"])
    await expect(page.locator("h1")).to_contain_text("failed", timeout=30_000)
    await expect(page.locator(".why")).to_contain_text("ConnectionError: ada does not answer")
    await expect(page.locator(".tries li")).to_have_count(1)
    await expect(page.locator(".log tbody tr")).to_have_count(1)
    await expect(page.get_by_role("link", name="Edit and retry…")).to_be_visible()
    assert await page.evaluate("window.kept") == 1


async def test_what_a_job_holds_stays_text(site: Site) -> None:
    job = site.app.enqueue("send", {"to": XSS}, key=XSS).id
    run_until_idle(site.app, queues=["mail"])
    site.app.retry(job, actor=XSS, reason=XSS)
    run_until_idle(site.app, queues=["mail"])
    page = await site.open(f"/jobs/{job}")
    page.on("dialog", lambda dialog: site.complaints.append(dialog.message))
    for query in ("", "?act=edit", "?act=retry"):
        await page.goto(f"/jobs/{job}{query}")
        assert await page.locator("main img, main script").count() == 0
        await expect(page.locator(".tree")).to_contain_text(XSS)
        await expect(page.locator(".props")).to_contain_text(XSS)
        await expect(page.locator(".log")).to_contain_text(XSS)
    await page.goto(f"/jobs/{job}?act=edit")
    await expect(page.get_by_label("to", exact=True)).to_have_value(XSS)


async def test_everything_works_without_scripts_and_on_a_phone(site: Site) -> None:
    job = failed(site)
    page = await site.open(f"/jobs/{job}", phone=True, options={"java_script_enabled": False})
    await page.get_by_role("link", name="Edit and retry…").click()
    await page.get_by_label("to", exact=True).fill("bob@example.org")
    await page.get_by_role("button", name="Edit and retry this job").click()
    await expect(page.locator("h1")).to_contain_text("pending")
    assert site.app.get(job).payload == {"to": "bob@example.org"}


async def test_nothing_is_wider_than_a_phone(site: Site) -> None:
    job = site.app.enqueue("send", {"to": "a" * 500}, key="k" * 200).id
    run_until_idle(site.app, queues=["mail"])
    for query in ("", "?act=edit", "?act=delete"):
        page = await site.open(f"/jobs/{job}{query}", phone=True)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
