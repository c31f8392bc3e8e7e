"""What every peer's script shares: it reads the order, does its part and reports. Standard library and meter.py only.

A script gives `play` its functions by role: setup(url), one(url), bulk(url), sent(url) and work(url, meter).
`one`, `bulk` and `sent` prepare and answer a function that stores jobs; coroutine functions are run on one event loop.
"""

import asyncio
import inspect
import json
import os
import time
from itertools import pairwise
from types import SimpleNamespace

from meter import Meter, first_line, resident, stop_when_told

PAYLOAD = {"user_id": 12345, "template": "welcome", "locale": "en"}
STEP = 1000


def play(roles):
    asyncio.run(_play(roles))


async def _play(roles):
    order = SimpleNamespace(**json.loads(first_line()))
    meter = Meter()
    if order.role == "setup":
        await _done(roles["setup"](order.url))
        meter.begin()
        meter.end()
    elif order.role == "worker":
        stop_when_told(lambda: _leave(meter))
        meter.begin()
        await _done(roles["work"](order.url, meter))
    else:
        await _send(order, roles, meter)


def _leave(meter):
    """A peer's own way to stop may take seconds, and is not what is measured."""
    meter.end()
    os._exit(0)


async def _send(order, roles, meter):
    kind = "sent" if order.role == "pace" else order.how
    store = await _done(roles[kind](order.url))
    meter.begin()
    wall, cpu, before = time.perf_counter(), time.process_time(), resident()
    if kind == "bulk":
        for start in range(0, order.jobs, STEP):
            await _done(store(min(STEP, order.jobs - start)))
            meter.mark(time.time())
    elif kind == "sent":
        for number in range(order.jobs):
            await asyncio.sleep(max(0.0, wall + number / order.rate - time.perf_counter()))
            await _done(store(time.time()))
            meter.mark(time.time())
    else:
        for _ in range(order.jobs):
            await _done(store())
            meter.mark(time.time())
    seconds, spent, grew = time.perf_counter() - wall, time.process_time() - cpu, resident() - before
    meter.waits.extend(after - moment for moment, after in pairwise(meter.starts))
    meter.end(seconds=seconds, spent=spent, grew=grew)
    while os.read(0, 4096):  # stay until we are told to stop: the server's process is still to be looked at
        pass
    os._exit(0)


async def _done(answer):
    return await answer if inspect.isawaitable(answer) else answer
