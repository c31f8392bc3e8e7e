"""The page of jobs in a real browser: finding, selecting, acting on many, and what changes while somebody looks."""

from playwright.async_api import expect

from tests.browser.conftest import Site
from treadle import State
from treadle.testing import run_until_idle

PLAIN = {"java_script_enabled": False}
REFUSED = "error: Failed to load resource"  # what a browser says of a page that is answered with a 4xx


def failed(site: Site, number: int) -> list[str]:
    ids = [site.app.enqueue("send", {"to": f"user{place}"}).id for place in range(number)]
    run_until_idle(site.app, queues=["mail"])
    return ids


async def test_a_bulk_retry_asks_first_and_acts_on_what_was_counted(site: Site) -> None:
    failed(site, 3)
    page = await site.open("/jobs?state=failed")
    await page.locator(".every a", has_text="Retry").click()
    plan = page.locator("#plan")
    await expect(plan.locator("h2")).to_have_text("Retry 3 jobs?")
    await expect(plan).to_contain_text("treadle jobs retry --state failed")
    assert site.app.count()[State.FAILED] == 3
    await plan.get_by_label("Reason").fill("the relay is back")
    await plan.get_by_role("button", name="Retry 3 jobs").click()
    await expect(page.locator("[role=status]")).to_contain_text("3 jobs wait to be run again")
    assert site.app.count()[State.PENDING] == 3
    assert {event.note for event in site.app.audit(kind="retried")} == {"the relay is back"}


async def test_another_number_is_looked_at_again(site: Site) -> None:
    failed(site, 2)
    page = await site.open("/jobs?state=failed&act=retry")
    failed(site, 1)
    await page.get_by_label("Reason").fill("the relay is back")
    await page.get_by_role("button", name="Retry 2 jobs").click()
    await expect(page.locator("#plan [role=alert]")).to_contain_text("The number has changed: 3 fit now, not 2")
    await expect(page.get_by_label("Reason")).to_have_value("the relay is back")
    await page.get_by_role("button", name="Retry 3 jobs").click()
    await expect(page.locator("[role=status]")).to_contain_text("3 jobs wait")
    site.forgive(REFUSED)


async def test_selected_rows_are_retried_and_the_others_stay(site: Site) -> None:
    ids = failed(site, 3)
    page = await site.open("/jobs?state=failed")
    for id_ in ids[:2]:
        await page.locator(f"#job-{id_} input").check()
    await page.get_by_role("button", name="Retry selected…").click()
    await expect(page.locator("#plan h2")).to_have_text("Retry 2 jobs?")
    assert [await page.locator(f"#job-{id_} input").is_checked() for id_ in ids] == [True, True, False]
    await page.get_by_role("button", name="Retry 2 jobs").click()
    await expect(page.locator("[role=status]")).to_contain_text("2 jobs wait")
    assert [site.app.get(id_).state for id_ in ids] == [State.PENDING, State.PENDING, State.FAILED]


async def test_new_jobs_are_announced_and_no_row_moves(site: Site) -> None:
    site.app.enqueue("greet", {"name": "first"})
    page = await site.open("/jobs")
    row = page.locator("tr[data-row]")
    before = await row.bounding_box()
    await page.evaluate("document.querySelector('tr[data-row]').kept = true")
    for _ in range(2):
        site.clock.advance(seconds=1)
        site.app.enqueue("greet", {"name": "later"})
    await expect(page.locator("[data-newer]")).to_be_visible()
    await expect(page.locator("[data-newer]")).to_contain_text("2")
    await expect(row).to_have_count(1)
    assert await row.evaluate("(row) => row.kept"), "the row was drawn anew"
    after = await row.bounding_box()
    assert after == before
    await expect(page.locator(".tabs [aria-current] span")).to_have_text("3")
    await page.get_by_role("link", name="Show them").click()
    await expect(row).to_have_count(3)


async def test_the_tab_of_scheduled_jobs_counts_them_and_leads_to_them(site: Site) -> None:
    site.app.enqueue("greet", {"name": "now"})
    site.app.tasks["greet"].using(run_after="2h").enqueue(name="later")
    page = await site.open("/jobs")
    tab = page.locator(".tabs a", has_text="Scheduled")
    await expect(tab.locator("span")).to_have_text("1")
    site.app.tasks["greet"].using(run_after="3h").enqueue(name="much later")
    await expect(tab.locator("span")).to_have_text("2")
    await tab.click()
    await expect(page.locator(".tabs [aria-current]")).to_have_text("Scheduled 2")
    await expect(page.locator("tr[data-row]")).to_have_count(2)


async def test_where_somebody_has_scrolled_to_stays_while_values_change(site: Site) -> None:
    ids = [site.app.enqueue("send", {"to": f"n{place}"}).id for place in range(40)]
    page = await site.open("/jobs")
    row = page.locator(f"#job-{ids[0]}")  # the oldest is the last
    await row.scroll_into_view_if_needed()
    before, box = await page.evaluate("scrollY"), await row.bounding_box()
    assert before > 0
    site.clock.advance(seconds=1)
    site.app.enqueue("greet", {"name": "later"})
    run_until_idle(site.app, queues=["mail"])
    await expect(row.locator(".c-err")).to_contain_text("n0 does not answer")
    await expect(page.locator("[data-newer]")).to_contain_text("1")
    assert (await page.evaluate("scrollY"), await row.bounding_box()) == (before, box)


async def test_values_change_in_their_rows(site: Site) -> None:
    id_ = site.app.enqueue("send", {"to": "Ada"}).id
    page = await site.open("/jobs")
    await expect(page.locator(f"#job-{id_} .c-state")).to_have_text("pending")
    run_until_idle(site.app, queues=["mail"])
    await expect(page.locator(f"#job-{id_} .c-state .st")).to_have_text("failed")
    await expect(page.locator(f"#job-{id_} .c-err")).to_contain_text("Ada does not answer")


async def test_nothing_changes_while_rows_are_selected(site: Site) -> None:
    ids = [site.app.enqueue("greet", {"name": f"n{place}"}).id for place in range(3)]
    page = await site.open("/jobs")
    await expect(page.locator("[data-live-word]")).to_have_text("Live")
    await page.locator(f"#job-{ids[1]} input").check()
    await expect(page.locator("[data-live-word]")).to_have_text("Held")
    other = await site.open("/jobs")
    site.clock.advance(seconds=1)
    site.app.cancel(ids[0])
    await expect(other.locator(f"#job-{ids[0]} .c-state .st")).to_have_text("cancelled")
    await expect(page.locator(f"#job-{ids[1]} input")).to_be_checked()
    await expect(page.locator(f"#job-{ids[0]} .c-state")).to_have_text("pending")
    await page.locator(f"#job-{ids[1]} input").uncheck()
    await expect(page.locator(f"#job-{ids[0]} .c-state .st")).to_have_text("cancelled")


async def test_the_first_job_of_a_store_is_shown_without_a_reload(site: Site) -> None:
    page = await site.open("/jobs")
    await expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    site.app.enqueue("greet", {"name": "Ada"})
    await expect(page.locator("tr[data-row]")).to_contain_text("name: Ada")
    await expect(page.get_by_role("heading", name="No jobs yet")).to_have_count(0)


async def test_keys_walk_select_open_and_preview(site: Site) -> None:
    ids = failed(site, 3)
    page = await site.open("/jobs?state=failed")
    shown = await page.eval_on_selector_all("tr[data-row]", "(rows) => rows.map((row) => row.id)")
    assert sorted(shown) == sorted(f"job-{id_}" for id_ in ids)
    for key in "jjkjx":
        await page.keyboard.press(key)
    await expect(page.locator("tr.cur")).to_have_id(shown[1])
    await expect(page.locator(f"#{shown[1]} input")).to_be_checked()
    await page.keyboard.press("r")
    await expect(page.locator("#plan h2")).to_have_text("Retry 1 job?")
    await page.keyboard.press("Escape")
    await page.wait_for_url(f"{site.url}/jobs?state=failed")
    await expect(page.locator("tr.cur")).to_have_id(shown[1])  # the row that it was opened from
    await page.keyboard.press("k")
    await expect(page.locator("tr.cur")).to_have_id(shown[0])
    await page.keyboard.press("o")
    await page.wait_for_url(f"{site.url}/jobs/{shown[0].removeprefix('job-')}")
    site.forgive(REFUSED)


async def test_what_is_typed_becomes_chips_and_a_chip_goes_with_a_click(site: Site) -> None:
    failed(site, 2)
    site.app.enqueue("greet", {"name": "Ada"})
    page = await site.open("/jobs")
    await page.keyboard.press("/")
    await page.keyboard.type("failed queue:mail")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{site.url}/jobs?state=failed&queue=mail")
    await expect(page.locator(".chip")).to_have_count(2)
    await page.get_by_role("link", name="Remove state:failed").click()
    await page.wait_for_url(f"{site.url}/jobs?queue=mail")
    await page.get_by_label("Add a filter").fill("quue:mail")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("did you mean queue:?")
    site.forgive(REFUSED)


async def test_without_a_script_all_of_it_works(site: Site) -> None:
    failed(site, 2)
    site.app.enqueue("greet", {"name": "Ada"})
    page = await site.open("/jobs", options=PLAIN)
    await page.get_by_label("Find jobs").fill("task:send")
    await page.get_by_role("button", name="Find").click()
    await page.get_by_role("link", name="Failed").click()
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    await page.get_by_label("This page").check()
    await page.get_by_role("button", name="Delete selected…").click()
    await expect(page.locator("#plan h2")).to_have_text("Delete 2 jobs?")
    await page.get_by_label("Reason").fill("test data")
    await page.get_by_role("button", name="Delete 2 jobs").click()
    await expect(page.locator("[role=status]")).to_contain_text("2 jobs are deleted")
    assert [job.task for job in site.app.find().jobs] == ["greet"]


async def test_on_a_phone_a_row_is_a_block_and_nothing_reaches_beyond_the_screen(site: Site) -> None:
    failed(site, 3)
    for path in ("/jobs?state=failed", "/jobs?state=failed&act=retry", "/jobs?task=nobody"):
        page = await site.open(path, phone=True)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path
