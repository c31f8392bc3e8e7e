"""A handler that settles its job by a connection of its own."""

import asyncio

import psycopg

from tests.support import workbench
from tests.support.workbench import until
from treadle import Context
from treadle.model import State


def test_a_handler_that_settled_its_job_is_not_stopped_for_it(store_url, make_app):
    app = make_app(store_url)
    ended = []

    @app.task
    async def slow(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(store_url.partition("?")[0]) as connection:
            await ctx.asettle(connection)
        try:
            await asyncio.sleep(1.5)
            ended.append("by itself")
        except asyncio.CancelledError:
            ended.append("stopped")
            raise

    job = slow.enqueue()
    with workbench.working(app, lease=1.0):
        until(lambda: ended, "its end")

    assert ended == ["by itself"]
    assert app.get(job.id).state is State.SUCCEEDED
