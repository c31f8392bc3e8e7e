"""ctx.settle and ctx.asettle in the handler's own transaction, by every library: effect and completion are one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.transactions.libraries import Library, Shop
from treadle import Context, EngineError, InvalidJob, Job, LeaseLost, Reason, Retry, State, Treadle
from treadle.model import lifecycle

AT_ONCE = Retry(max_attempts=3, base=0, cap=0, jitter=0)
ONE_OF_EACH = pytest.mark.parametrize("library", ["sqlite3", "psycopg", "asyncpg"], indirect=True)


class Undone(Exception):
    """Makes a transaction roll back."""


def run(app: Treadle, library: Library, scene: Any) -> Job:
    """The job of this handler, run by a worker until it has ended."""
    job = app.register("sell", library.handler(scene), retry=AT_ONCE).enqueue()
    app.run_worker(until_idle=True, poll=0.02)
    return app.get(job.id)


def test_effect_and_completion_commit_together(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> str:
        ctx.add_cost(7)
        async with library.transaction(shop) as caller:
            await caller.add("tea")
            await caller.settle(ctx, {"sold": "tea"})
            assert (app.get(ctx.job.id).state, shop.names) == (State.RUNNING, [])  # not before the commit
        assert (app.get(ctx.job.id).state, shop.names) == (State.SUCCEEDED, ["tea"])
        return "what is returned no longer matters"

    job = run(app, library, sell)
    assert (job.state, job.result, job.attempt, job.cost_micros) == (State.SUCCEEDED, {"sold": "tea"}, 1, 7)
    assert shop.names == ["tea"]


@ONE_OF_EACH
def test_the_result_settled_there_is_passed_to_what_follows(library: Library, shop: Shop, app: Treadle) -> None:
    told: list[Any] = []

    async def sell(ctx: Context) -> None:
        async with library.transaction(shop) as caller:
            await caller.settle(ctx, {"sold": "tea"})
            assert app.count()[State.PENDING] == 0  # not before the commit

    app.register("tell", lambda job_id, result: told.append((job_id, result)))
    job = app.register("sell", library.handler(sell), on_succeeded="tell").enqueue()
    app.run_worker(until_idle=True, poll=0.02)
    assert told == [(job.id, {"sold": "tea"})]


def test_a_rollback_is_a_failed_attempt_that_says_so(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> str:
        try:
            async with library.transaction(shop) as caller:
                await caller.add("tea")
                await caller.settle(ctx, f"at try {ctx.attempt}")
                if ctx.attempt == 1:
                    raise Undone
        except Undone:
            pass
        return "as if nothing had happened"

    job = run(app, library, sell)
    assert (job.state, job.result) == (State.SUCCEEDED, "at try 2")
    assert (job.attempt, job.failures, job.crashes) == (2, 1, 0)
    assert "not committed" in app.events(job.id)[0].note
    assert shop.names == ["tea"]


def test_an_error_of_ours_that_the_handler_swallows_does_not_keep_it_from_committing(
    library: Library, shop: Shop, app: Treadle
) -> None:
    async def sell(ctx: Context) -> str:
        async with library.transaction(shop) as caller:
            await caller.add("tea")
            for refused in ("poison", "a\0b"):
                with pytest.raises((EngineError, InvalidJob)):
                    await caller.settle(ctx, refused)
            await caller.add("milk")
        assert app.get(ctx.job.id).state is State.RUNNING
        return "settled the ordinary way"

    job = run(app, library, sell)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "settled the ordinary way", 1)
    assert shop.names == ["milk", "tea"]


@ONE_OF_EACH
def test_an_error_after_the_commit_changes_nothing(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> None:
        async with library.transaction(shop) as caller:
            await caller.add("tea")
            await caller.settle(ctx, "sold")
        raise ValueError("while saying goodbye")

    job = run(app, library, sell)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "sold", 1)
    assert shop.names == ["tea"]


@pytest.mark.covers("003-S22.b")
@ONE_OF_EACH
def test_a_lost_lease_is_told_and_the_transaction_can_roll_back(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        later = datetime.now(UTC) + timedelta(hours=1)
        crash = lifecycle.crash(app.get(ctx.job.id), later, actor="a reaper with a fast clock")
        app.engine.turn([crash], now=later)  # nobody has told this attempt
        with pytest.raises(LeaseLost, match="roll your transaction back"):
            async with library.transaction(shop) as caller:
                await caller.add("tea")
                await caller.settle(ctx, "first")
        return "first"

    job = run(app, library, sell)
    assert (job.result, job.attempt) == ("second", 2)
    assert shop.names == []


@ONE_OF_EACH
def test_a_second_settlement_is_refused_so_that_a_repeated_handler_writes_once(
    library: Library, shop: Shop, app: Treadle
) -> None:
    """As when the answer to the first commit was lost, and the handler tries again."""

    async def sell(ctx: Context) -> None:
        async with library.transaction(shop) as caller:
            await caller.add("tea")
            await caller.settle(ctx, "sold")
        with pytest.raises(LeaseLost, match="settled before"):
            async with library.transaction(shop) as caller:
                await caller.add("tea again")
                await caller.settle(ctx, "sold")

    job = run(app, library, sell)
    assert (job.result, job.attempt) == ("sold", 1)
    assert shop.names == ["tea"]


@ONE_OF_EACH
def test_a_cancel_request_does_not_undo_what_was_settled(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> None:
        app.cancel(ctx.job.id)
        async with library.transaction(shop) as caller:
            await caller.add("tea")
            await caller.settle(ctx, "sold")

    job = run(app, library, sell)
    assert (job.state, job.result, job.cancel_requested) == (State.SUCCEEDED, "sold", True)


@ONE_OF_EACH
def test_a_cancel_request_and_a_rollback_end_cancelled(library: Library, shop: Shop, app: Treadle) -> None:
    async def sell(ctx: Context) -> None:
        with pytest.raises(Undone):
            async with library.transaction(shop) as caller:
                await caller.add("tea")
                await caller.settle(ctx, "sold")
                raise Undone
        app.cancel(ctx.job.id)

    job = run(app, library, sell)
    assert (job.state, job.reason) == (State.CANCELLED, Reason.BY_REQUEST)
    assert shop.names == []
