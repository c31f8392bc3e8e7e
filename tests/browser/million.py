"""How soon pages are painted beside a million jobs that have ended: the failing story, copied many times."""

import sqlite3
import statistics
import time

from playwright.async_api import Page, async_playwright

from tests.browser.conftest import DESK
from tests.browser.pages import addresses
from tests.browser.serving import served
from tests.support.chromium import OPTIONS, chromium

SOON = 1.0  # seconds within which something is painted
TRIES = 3
APART = 200_000  # microseconds between two ends
PAINTED = """() => new Promise((done) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) done(one.startTime);
}).observe({ type: "paint", buffered: true }))"""

COPY = """
with recursive series(n) as (values (1) union all select n + 1 from series where n < :copies)
insert into treadle_finished ({columns})
select {values} from series, (select *, row_number() over (order by finished_at desc) as place from treadle_finished)
"""


async def measure(jobs: int) -> int:
    """Print what each page takes; 1 if one is late."""
    late = []
    with served("failing") as told:
        began = time.monotonic()
        stored = multiply(told.app.settings.url.removeprefix("sqlite:///"), jobs)
        print(f"{stored:,} jobs have ended; stored in {time.monotonic() - began:.1f} s")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
            context = await browser.new_context(base_url=told.url, viewport=DESK)
            await context.request.post(f"{told.url}/login", form={"token": told.token}, headers={"Origin": told.url})
            page = await context.new_page()
            for address in [*addresses(told.server, told.app), "/jobs?state=failed", "/jobs?queue=mail", "/?span=7d"]:
                painted = [await first_paint(page, address) for _ in range(TRIES)]
                print(f"  {statistics.median(painted):6.3f} s  (first {painted[0]:.3f} s)  {address}")
                if statistics.median(painted) > SOON:
                    late.append(address)
            await browser.close()
    print(*[f"late: {address}" for address in late], sep="\n")
    return 1 if late else 0


async def first_paint(page: Page, address: str) -> float:
    """Seconds from the request until something is seen."""
    await page.goto(address)
    return float(await page.evaluate(PAINTED)) / 1000


def multiply(path: str, jobs: int) -> int:
    """Store the ended jobs of this file again and again, each time as if they had ended earlier."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("pragma synchronous = off")
    [(there,)] = connection.execute("select count(*) from treadle_finished")
    names = [row[1] for row in connection.execute("pragma table_info(treadle_finished)")]
    earlier = f"(n * {there} + place) * {APART}"
    moved = {
        name: f"{name} - {earlier}" for name in ("created_at", "due_at", "claimed_at", "started_at", "finished_at")
    }
    moved["id"] = (
        f"printf('%08x-%04x-7000-8000-%012x', (created_at - {earlier}) / 1000 / 65536, "
        f"(created_at - {earlier}) / 1000 % 65536, n * {there} + place)"
    )
    moved["key"] = "null"
    values = ", ".join(moved.get(name, name) for name in names)
    copies = max(1, -(-jobs // there))
    connection.execute(COPY.format(columns=", ".join(names), values=values), {"copies": copies})
    connection.execute("analyze")
    [(stored,)] = connection.execute("select count(*) from treadle_finished")
    connection.close()
    return int(stored)
