"""Procrastinate with psycopg's pool."""

import time

import procrastinate
from peer import PAYLOAD, play

meters = []


async def opened(url):
    connector = procrastinate.PsycopgConnector(conninfo=url, max_size=10)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(user_id, template, locale):
        meters[0].mark(time.time())

    @app.task(name="sent")
    async def sent(at):
        meters[0].mark_sent(at)

    await app.open_async()
    return app, noop, sent


async def setup(url):
    app, _, _ = await opened(url)
    await app.schema_manager.apply_schema_async()
    await app.close_async()


async def one(url):
    _, noop, _ = await opened(url)
    return lambda: noop.defer_async(**PAYLOAD)


async def bulk(url):
    _, noop, _ = await opened(url)
    return lambda jobs: noop.batch_defer_async(*[PAYLOAD] * jobs)


async def sent(url):
    _, _, task = await opened(url)
    return lambda moment: task.defer_async(at=moment)


async def work(url, meter):
    meters.append(meter)
    app, _, _ = await opened(url)
    await app.run_worker_async(concurrency=30, install_signal_handlers=False)


play({"setup": setup, "one": one, "bulk": bulk, "sent": sent, "work": work})
