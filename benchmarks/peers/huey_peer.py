"""Huey on SQLite at its durable default, without stored results, with four threads."""

import asyncio
import logging
import time

from huey import SqliteHuey
from peer import PAYLOAD, play

logging.getLogger("huey").setLevel(logging.ERROR)
meters = []


def opened(url):
    huey = SqliteHuey("bench", filename=url, fsync=True, results=False)

    @huey.task()
    def noop(user_id, template, locale):
        meters[0].mark(time.time())

    @huey.task()
    def sent(at):
        meters[0].mark_sent(at)

    return huey, noop, sent


def setup(url):
    opened(url)[0].flush()


def one(url):
    _, noop, _ = opened(url)
    return lambda: noop(**PAYLOAD)


def bulk(url):
    """It has no call for many jobs."""
    _, noop, _ = opened(url)

    def several(jobs):
        for _ in range(jobs):
            noop(**PAYLOAD)

    return several


def sent(url):
    return opened(url)[2]


async def work(url, meter):
    meters.append(meter)
    huey, _, _ = opened(url)
    huey.create_consumer(workers=4, worker_type="thread", initial_delay=0.01, max_delay=0.1, periodic=False).start()
    await asyncio.sleep(86400)


play({"setup": setup, "one": one, "bulk": bulk, "sent": sent, "work": work})
