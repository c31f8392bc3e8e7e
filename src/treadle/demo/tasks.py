"""The tasks of the demo, and the small worker that runs them: `python -m treadle.demo.tasks URL NAME`."""

import asyncio
import logging
import os
import sys
import threading
import time

from treadle import Context, GiveUp, Retry, Snooze, Treadle

LEASE = 2.0  # seconds; short, so that a crash is seen while you watch
SLOTS = 8

app = Treadle(lease=LEASE, concurrency=SLOTS, grace=3.0, poll=0.2)

QUICKLY = Retry(max_attempts=4, base=0.3, cap=1.0, jitter=0.2)


@app.task
async def send_mail(to: str, seconds: float) -> str:
    """An async handler: many wait side by side on the event loop."""
    await asyncio.sleep(seconds)
    return f"sent to {to}"


@app.task
def resize_image(name: str, seconds: float) -> str:
    """A plain function: it runs in a thread."""
    time.sleep(seconds)
    return f"{name} at 640x480"


@app.task
def render_video(ctx: Context, name: str, seconds: float) -> str:
    """A longer one, which tells how far it is."""
    for step in range(10):
        time.sleep(seconds / 10)
        ctx.progress((step + 1) / 10, f"{name}: part {step + 1} of 10")
    return f"{name}.mp4"


@app.task
async def remind(who: str) -> str:
    """Enqueued with a delay: it waits until it is due."""
    return f"reminded {who}"


@app.task(priority=10)
async def alarm(what: str) -> str:
    """Stored last, run first."""
    await asyncio.sleep(0.02)
    return f"rang for {what}"


@app.task(retry=QUICKLY)
async def call_service(ctx: Context, name: str, outages: int) -> str:
    """Fails a few times, then succeeds: retries with backoff take care of it."""
    await asyncio.sleep(0.05)
    if ctx.job.failures < outages:
        raise ConnectionError(f"{name} does not answer")
    return f"{name} answered"


@app.task(retry=QUICKLY)
async def charge_card(number: str) -> None:
    """Knows that it can never succeed, and says so: no attempt is wasted."""
    await asyncio.sleep(0.05)
    raise GiveUp(f"card {number} was declined")


@app.task(retry=Retry(max_attempts=2, base=0.3, cap=1.0, jitter=0.2))
async def import_feed(url: str) -> None:
    """Fails every time, until its attempts are spent."""
    await asyncio.sleep(0.05)
    raise TimeoutError(f"{url} took too long")


@app.task
async def await_export(ctx: Context, name: str) -> str:
    """Looks, finds that it is too early, and snoozes: that spends no attempt."""
    if ctx.attempt == 1:
        raise Snooze("800ms")
    return f"{name} is ready"


@app.task
async def watch_folder(path: str) -> None:
    """Would run for a minute, if nobody cancelled it."""
    for _ in range(600):
        await asyncio.sleep(0.1)
    raise TimeoutError(f"nobody asked to stop watching {path}")


def main(url: str, name: str) -> None:
    """Work until SIGTERM; or until the demo is gone, which closes our standard input."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    threading.Thread(target=_until_orphaned, daemon=True).start()
    app.settings = app.settings.model_copy(update={"url": url})
    worker = app.worker(name=name)
    worker.run()


def _until_orphaned() -> None:
    os.read(0, 1)  # not sys.stdin: its lock, held by a daemon thread, would spoil a clean exit
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
