"""Workers in a process of its own, given FOLDER '{"URL": ["LIBRARY", ...], ...}', with a task for each library.

At its first attempt a handler writes a row, settles, leaves a mark in the folder and never commits; later ones commit.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.transactions.libraries import LIBRARIES, Library, Shop
from treadle import Context, Treadle


@asynccontextmanager
async def working(folder: Path, shops: Mapping[str, Sequence[str]]) -> AsyncIterator[None]:
    """Workers for the stores at these URLs, each with the tasks of these libraries."""
    async with AsyncExitStack() as stack:
        for url, names in shops.items():
            app = Treadle(url)
            stack.callback(app.close)
            for library in LIBRARIES:
                if library.name in names:
                    _register(app, library, Shop(url), folder)
            await stack.enter_async_context(app.worker(lease=4, poll=0.05, concurrency=len(names)))
        yield


def _register(app: Treadle, library: Library, shop: Shop, folder: Path) -> None:
    async def sell(ctx: Context) -> None:
        async with library.transaction(shop) as caller:
            await caller.add(library.name)
            await caller.settle(ctx, f"sold at try {ctx.attempt}")
            if ctx.attempt == 1:
                (folder / f"settled-{library.name}").touch()
                if library.asynchronous:
                    await asyncio.Event().wait()
                else:
                    threading.Event().wait()

    app.register(library.name, library.handler(sell))


async def _main(folder: str, shops: str) -> None:
    async with working(Path(folder), json.loads(shops)):
        await asyncio.to_thread(sys.stdin.read)  # until the test has ended
        os._exit(1)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
