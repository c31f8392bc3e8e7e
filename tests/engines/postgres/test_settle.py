"""How a job ends: when, and by the handler's own connection."""

import asyncio
from datetime import timedelta

import psycopg

from tests.support import workbench
from tests.support.making import claim, current, enqueued
from tests.support.workbench import until
from treadle import Context
from treadle.engines.values import Lease
from treadle.model import State, lifecycle
from treadle.model.lifecycle import Succeeded


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


def test_a_job_never_ends_before_it_has_started(engine, clock):
    """The worker's idea of the server's time may have been ahead when it noted the start."""
    enqueued(engine)
    [job] = claim(engine)
    started_at = clock.now() + timedelta(seconds=3)
    engine.extend([Lease(job.id, job.lease_token, started_at)], lease=30.0)
    [job] = engine.get([job.id])

    engine.turn([lifecycle.settle(job, Succeeded(), clock.now())])

    ended = current(engine, job)
    assert (ended.started_at, ended.finished_at) == (started_at, started_at)
