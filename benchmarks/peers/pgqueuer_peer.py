"""PgQueuer with its asyncpg driver, at its best batch size."""

import json
import time

import asyncpg
from peer import PAYLOAD, play
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BYTES = json.dumps(PAYLOAD).encode()


async def queries(url):
    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


async def setup(url):
    await (await queries(url)).install()


async def one(url):
    queue = await queries(url)
    return lambda: queue.enqueue("noop", BYTES, 0)


async def bulk(url):
    queue = await queries(url)
    return lambda jobs: queue.enqueue(["noop"] * jobs, [BYTES] * jobs, [0] * jobs)


async def sent(url):
    queue = await queries(url)
    return lambda moment: queue.enqueue("sent", repr(moment).encode(), 0)


async def work(url, meter):
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @queuer.entrypoint("noop")
    async def noop(job):
        meter.mark(time.time())

    @queuer.entrypoint("sent")
    async def sent(job):
        meter.mark_sent(float(job.payload))

    await queuer.run(batch_size=500)


play({"setup": setup, "one": one, "bulk": bulk, "sent": sent, "work": work})
