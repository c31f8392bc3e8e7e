"""The page of queues in a real browser: pause with a reason, resume, the keyboard, and a page that stays up to date."""

import re

from playwright.async_api import expect

from tests.browser.conftest import Site
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo
from treadle.testing import run_until_idle


def busy(site: Site) -> None:
    """A queue that is late, and one that is on time."""
    now = site.app.engine.now()
    tasks = dict.fromkeys(site.app.tasks, 1)
    info = WorkerInfo("loom-1", "box", 1, ["default", "mail"], None, tasks, 4, 0, False, now, now, 1e6)
    site.app.engine.save(info, before=OVERWRITE)
    site.app.enqueue("send", {"to": "Ada"})
    site.clock.advance(minutes=5)
    site.app.enqueue("greet", {"name": "Ada"})


async def test_a_queue_is_paused_with_a_reason_and_resumed_again(site: Site) -> None:
    busy(site)
    page = await site.open("/queues")
    await expect(page.locator(".sub")).to_have_text(re.compile("mail is late: its oldest job waits for 5 min"))
    row = page.get_by_role("row", name=re.compile("^mail"))
    await row.get_by_role("link", name="Pause mail").click()
    form = page.locator("#pause")
    await expect(form).to_contain_text("1 due job waits behind it and keeps its attempts")
    assert site.app.pauses() == []
    await form.get_by_label("Reason").fill("the relay is away")
    await form.get_by_label("Until").fill("2h")
    command = "treadle pause --queue mail --until 2h --reason 'the relay is away'"
    await expect(form.locator("code")).to_have_text(command)
    await form.get_by_role("button", name="Pause queue mail").click()
    await expect(row).to_contain_text("paused")
    await expect(row).to_contain_text("by token token-1 until")
    assert site.app.pauses()[0].reason == "the relay is away"
    assert run_until_idle(site.app, queues=["mail"]) == []
    await row.get_by_role("link", name="Resume mail").click()
    await page.get_by_label("Reason").fill("it is back")
    await page.get_by_role("button", name="Resume queue mail").click()
    await expect(page.get_by_text("Nothing is paused.")).to_be_visible()
    assert site.app.pauses() == []


async def test_what_is_wrong_is_told_at_its_field_while_somebody_types(site: Site) -> None:
    busy(site)
    page = await site.open("/queues?act=pause")
    form = page.locator("#pause")
    await form.get_by_label("Until").fill("tomorrow")
    await expect(form.get_by_role("alert")).to_contain_text("'tomorrow' is no time; write 2030-01-31T12:00Z")
    await form.get_by_label("Until").fill("30m")
    await expect(form).to_contain_text("It ends by itself in 30 min")
    await form.get_by_label("Everything, instead").check()
    await expect(form.get_by_role("heading")).to_have_text("Pause everything")
    await expect(form).to_contain_text("2 due jobs wait behind it")
    await form.get_by_role("button", name="Pause everything").click()
    await expect(form.get_by_role("alert")).to_contain_text("say why: this stops everything")
    await expect(form.get_by_label("Until")).to_have_value("30m")
    assert site.app.pauses() == []
    site.forgive("status of 422")  # the browser says that a form was refused


async def test_p_opens_the_pause_of_the_row_one_is_on_and_escape_closes_it(site: Site) -> None:
    busy(site)
    page = await site.open("/queues")
    await page.keyboard.press("p")
    await expect(page.locator("#pause").get_by_role("heading")).to_have_text("Pause queue mail")
    await page.keyboard.press("Escape")
    await expect(page.locator("#pause")).to_have_count(0)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("p")
    await expect(page.locator("#pause").get_by_role("heading")).to_have_text("Pause queue default")
    assert site.app.pauses() == []


async def test_the_page_stays_up_to_date_and_its_rows_stay_where_they_are(site: Site) -> None:
    busy(site)
    page = await site.open("/queues")
    rows = page.locator('[data-live="queues"] tbody tr th a')
    await expect(rows).to_have_text(["mail", "default"])
    await expect(page.locator("#live")).to_contain_text("Live")
    site.app.pause(queue="default", actor="grace", reason="a move")
    site.app.enqueue("greet", {"name": "Grace"})
    await expect(page.locator("#queue-default")).to_contain_text("paused")
    await expect(page.locator("#queue-default td[data-h=Due]")).to_have_text("2")
    await expect(page.locator(".sub")).to_contain_text("default is paused by grace: a move")
    await expect(rows).to_have_text(["mail", "default"])


async def test_without_script_a_pause_is_looked_at_and_made(site: Site) -> None:
    busy(site)
    page = await site.open("/queues", options={"java_script_enabled": False})
    await page.get_by_role("link", name="Pause mail").click()
    await page.get_by_label("Task").fill("send")
    await page.get_by_role("button", name="Preview").click()
    await expect(page.locator("#pause")).to_contain_text("Pause queue mail, task send")
    await page.get_by_role("button", name="Pause queue mail, task send").click()
    await expect(page.locator("#pauses")).to_contain_text("queue mail, task send")
    [made] = site.app.pauses()
    assert made[:3] == ("*", "mail", "send")


async def test_on_a_phone_nothing_reaches_beyond_the_screen(site: Site) -> None:
    busy(site)
    site.app.pause(queue="default", tenant="a-tenant-with-a-long-name", actor="grace", reason="a move " * 20)
    for path in ("/queues", "/queues?act=pause&queue=mail"):
        page = await site.open(path, phone=True)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
