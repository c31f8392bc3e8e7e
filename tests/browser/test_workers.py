"""The page of workers in a real browser: a drain with its reason, and a page that stays up to date."""

import re
from datetime import timedelta

from playwright.async_api import expect

from tests.browser.conftest import Site
from treadle.engines.values import OVERWRITE, Claim
from treadle.model import new_id
from treadle.model.records import MEMORY, VERSION, WorkerInfo


def worker(site: Site, name: str, **fields: object) -> WorkerInfo:
    now = site.app.engine.now()
    tasks = {**dict.fromkeys(site.app.tasks, 1), f"{VERSION}0.1.0": 1, MEMORY: 96 * 1024**2}
    info = WorkerInfo(name, "app-7.internal", 4127, ["default"], None, tasks, 4, 1, False, now, now, 30.0)
    info = info._replace(**fields)  # type: ignore[arg-type]
    site.app.engine.save(info, before=OVERWRITE)
    return info


async def test_a_worker_is_drained_with_a_reason(site: Site) -> None:
    worker(site, "loom-1")
    page = await site.open("/workers")
    await expect(page.locator(".sub")).to_have_text(re.compile("1 worker alive with 1 of 4 slots busy"))
    row = page.get_by_role("row", name=re.compile("^loom-1"))
    await row.get_by_role("link", name="Drain loom-1").click()
    form = page.locator("#drain")
    await expect(form).to_contain_text("Nobody else serves default")
    await expect(form.locator("code")).to_have_text("treadle drain loom-1")
    assert site.app.drains() == []
    await form.get_by_label("Reason").fill("a new version")
    await form.get_by_role("button", name="Drain loom-1").click()
    await expect(row).to_contain_text("draining")
    await expect(row).to_contain_text("asked by token token-1 now: a new version")
    assert [(one.name, one.reason) for one in site.app.drains()] == [("loom-1", "a new version")]


async def test_what_runs_leads_to_the_job_and_silence_is_told_as_it_comes(site: Site) -> None:
    job = site.app.enqueue("greet", {"name": "Ada"})
    worker(site, "loom-1")
    site.app.engine.turn([], Claim(new_id(), "loom-1", 1, 600.0, ["default"], tasks=["greet"]))
    page = await site.open("/workers")
    row = page.locator("#worker-loom-1")
    await expect(row.get_by_role("link", name="greet")).to_have_attribute("href", f"/jobs/{job.id}")
    await expect(row).to_contain_text("96 MiB")
    await expect(page.locator("#live")).to_contain_text("Live")
    site.clock.advance(minutes=4)
    worker(site, "loom-2", seen_at=site.app.engine.now() - timedelta(minutes=3))
    site.app.enqueue("greet", {"name": "Grace"})
    await expect(row).to_contain_text("1 job is still held by it")
    await expect(page.locator(".sub")).to_contain_text("No worker is alive.")


async def test_a_key_closes_the_preview_and_nothing_was_asked(site: Site) -> None:
    worker(site, "loom-1")
    page = await site.open("/workers?act=drain&worker=loom-1")
    await expect(page.locator("#live")).to_contain_text("Held")
    await page.keyboard.press("Escape")
    await expect(page.locator("#drain")).to_have_count(0)
    assert site.app.drains() == []


async def test_nothing_reaches_beyond_the_screen(site: Site) -> None:
    now = site.app.engine.now()
    worker(site, "production-worker-7.eu-central-1:12345", queues=["default", "thumbnails", "reports", "billing"])
    worker(site, "loom-2", seen_at=now - timedelta(hours=2))
    site.app.drain("production-worker-7.eu-central-1:12345", actor="ada", reason="a new version " * 20)
    for phone, width in ((True, 390), (False, 1280)):
        page = await site.open("/workers", phone=phone)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
