"""Pictures of every page, in every story, light and dark, at a desk and on a phone; and what each page weighs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Browser, BrowserContext, async_playwright

from tests.browser.conftest import DESK, PHONE
from tests.browser.pages import addresses, routes
from tests.browser.serving import Told, served
from tests.browser.stories import STORIES
from tests.support.chromium import OPTIONS, chromium
from treadle.server.dashboard.page import static_files

DOCS = Path(__file__).parents[2] / "docs" / "pictures"


class Shown(NamedTuple):
    """A page of a story as somebody sees it; `whole` to its end, else as much as fits the window."""

    story: str
    name: str
    address: str
    dark: bool = False
    phone: bool = False
    whole: bool = True

    @property
    def file(self) -> str:
        return "-".join([self.name, self.story, "dark" if self.dark else "light", "phone" if self.phone else "desk"])


CHOSEN = (  # of the documentation: page, what is asked of it, dark, phone
    ("failing", "overview", "/", False, False),
    ("failing", "overview", "/", True, False),
    ("failing", "overview", "/", False, True),
    ("busy", "overview", "/", False, False),
    ("failing", "jobs", "/jobs?state=failed", False, False),
    ("failing", "jobs", "/jobs", True, True),
    ("failing", "job", "/jobs/{job_id}", False, False),
    ("failing", "failures", "/failures", False, False),
    ("failing", "queues", "/queues", False, False),
    ("failing", "pause", "/queues?act=pause&queue=mail", False, False),
    ("failing", "workers", "/workers", False, False),
    ("failing", "schedules", "/schedules", False, False),
    ("failing", "schedule-new", "/schedules/new", False, False),
    ("failing", "audit", "/audit", False, False),
    ("failing", "costs", "/costs", False, False),
    ("failing", "doctor", "/doctor", False, False),
    ("empty", "jobs", "/jobs", False, False),
)


def every(told: Told, story: str) -> Iterator[Shown]:
    """All pages of a story in all lights and on all screens."""
    for (path, _), address in zip(routes(told.server), addresses(told.server, told.app), strict=True):
        if "/none" in address:  # there is none of its kind in this story
            continue
        name = re.sub(r"[^a-z_]+", "-", path).strip("-") or "overview"
        for dark in (False, True):
            for phone in (False, True):
                yield Shown(story, name, address, dark, phone)


def chosen(told: Told, story: str) -> Iterator[Shown]:
    """Those that the documentation shows, as much as fits the window."""
    places = dict(zip((path for path, _ in routes(told.server)), addresses(told.server, told.app), strict=True))
    for kind, name, path, dark, phone in CHOSEN:
        if kind == story:
            yield Shown(story, name, places.get(path, path), dark, phone, whole=False)


async def shoot(folder: Path, *, docs: bool) -> list[str]:
    """Take them all, or those of the documentation; what was wrong with a page."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        for story in STORIES:
            with served(story) as told:
                wanted = [*(chosen if docs else every)(told, story)]
                wrong += await _take(browser, told, wanted, folder)
        await browser.close()
    total = sum(path.stat().st_size for path in folder.glob("*.png"))
    print(f"{len([*folder.glob('*.png')])} pictures, {total / 1e6:.1f} MB, in {folder}")
    return wrong


async def _take(browser: Browser, told: Told, wanted: list[Shown], folder: Path) -> list[str]:
    wrong, contexts = [], dict[tuple[bool, bool], BrowserContext]()
    for shown in wanted:
        look = shown.dark, shown.phone
        if look not in contexts:
            contexts[look] = await browser.new_context(
                base_url=told.url,
                viewport=PHONE if shown.phone else DESK,
                color_scheme="dark" if shown.dark else "light",
            )
            await contexts[look].request.post(
                f"{told.url}/login", form={"token": told.token}, headers={"Origin": told.url}
            )
        page = await contexts[look].new_page()
        answer = await page.goto(shown.address)
        if answer is None or answer.status != 200:
            wrong.append(f"{shown.file}: {shown.address} is answered with {answer and answer.status}")
        else:
            await page.screenshot(path=folder / f"{shown.file}.png", full_page=shown.whole)
            if look == (False, False):
                print(f"  {len(await answer.body()) / 1e3:6.1f} kB  {shown.story:8} {shown.address}")
        await page.close()
    for context in contexts.values():
        await context.close()
    return wrong


def weight() -> str:
    """What a browser loads beside the pages, once for ever."""
    parts = [f"{name} {len(data) / 1e3:.1f} kB" for name, (data, _) in sorted(static_files().items())]
    return f"beside each page, kept for ever: {', '.join(parts)}"
