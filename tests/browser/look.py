"""Look at pages of a story: `python -m tests.browser.look failing /jobs --dark --phone -o /tmp/jobs.png`.

With --serve it prints an address and a token instead, and goes on until Ctrl-C.
"""

import argparse
import asyncio
import threading
from contextlib import suppress
from pathlib import Path

from playwright.async_api import async_playwright

from tests.browser.conftest import DESK, PHONE
from tests.browser.serving import served
from tests.browser.stories import STORIES
from tests.support.chromium import OPTIONS, chromium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("story", choices=STORIES)
    parser.add_argument("paths", nargs="*", default=["/"])
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    parser.add_argument("--scope", action="append")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("-o", "--out", default="/tmp/look.png")
    given = parser.parse_args()
    with served(given.story, tuple(given.scope or ["admin"])) as told:
        if not given.serve:
            asyncio.run(shoot(told.url, told.token, given))
            return
        print(told.url, told.token, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


async def shoot(url: str, token: str, given: argparse.Namespace) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        context = await browser.new_context(
            base_url=url, viewport=PHONE if given.phone else DESK, color_scheme="dark" if given.dark else "light"
        )
        await context.request.post(f"{url}/login", form={"token": token}, headers={"Origin": url})
        page = await context.new_page()
        page.on("console", lambda message: print("console:", message.type, message.text))
        for place, path in enumerate(given.paths):
            answer = await page.goto(path)
            out = Path(given.out) if place == 0 else Path(given.out).with_stem(f"{Path(given.out).stem}-{place}")
            await page.screenshot(path=out, full_page=True)
            print(answer and answer.status, path, out)
        await browser.close()


if __name__ == "__main__":
    main()
