"""Enqueue in the caller's own transaction, by every library: the job and the caller's rows commit together or not."""

from contextlib import suppress

import pytest

from tests.transactions.libraries import EVERY_TYPE, Library, Shop
from treadle import EngineError, KeyTaken, State, Task, Treadle, Unique
from treadle.testing import run_until_idle


class Undone(Exception):
    """Makes a transaction roll back."""


def test_a_commit_leaves_the_callers_row_and_exactly_one_job_that_runs(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.add("Ada")
            job = await caller.enqueue(welcome, "Ada")
            assert (shop.names, app.count()[State.PENDING]) == ([], 0)  # nobody sees either yet
        assert app.get(job.id) == job

    library.play(scene())
    assert (shop.names, app.count()[State.PENDING]) == (["Ada"], 1)
    assert [job.result for job in run_until_idle(app)] == ["welcome Ada"]


def test_a_rollback_leaves_neither_row_nor_job_nor_key(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        with pytest.raises(Undone):
            async with library.transaction(shop) as caller:
                await caller.add("Ada")
                await caller.enqueue(welcome, "Ada", key="k")
                raise Undone

    library.play(scene())
    assert (shop.names, set(app.count().values())) == ([], {0})
    [receipt] = welcome.using(key="k").enqueue_many([("Bob",)])
    assert receipt.created


def test_a_taken_key_answers_with_the_first_job_and_the_transaction_goes_on(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            assert await caller.enqueue(welcome, "Bob", key="before") == first
            own = await caller.enqueue(welcome, "Bob", key="within")
            assert await caller.enqueue(welcome, "Eve", key="within") == own
            await caller.add("Bob")

    first = welcome.using(key="before", run_after="1h").enqueue("Ada")
    library.play(scene())
    assert (shop.names, app.count()[State.PENDING]) == (["Bob"], 2)


def test_a_taken_key_that_raises_leaves_the_transaction_usable(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.add("before")
            with pytest.raises(KeyTaken) as taken:
                await caller.enqueue(welcome, "Bob", key="k", unique=Unique(on_conflict="raise"))
            assert taken.value.holder == first.id
            await caller.add("after")

    first = welcome.using(key="k").enqueue("Ada")
    library.play(scene())
    assert (shop.names, app.count()[State.PENDING]) == (["after", "before"], 1)


@pytest.mark.parametrize("library", EVERY_TYPE, indirect=True)
def test_a_replacement_happens_with_the_transaction(library: Library, shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        with pytest.raises(Undone):
            async with library.transaction(shop) as caller:
                await caller.enqueue(welcome, "Eve", key="k", unique=Unique(on_conflict="replace"))
                raise Undone
        async with library.transaction(shop) as caller:
            replaced = await caller.enqueue(welcome, "Bob", key="k", unique=Unique(on_conflict="replace"))
            assert app.get(first.id).payload == {"user": "Ada"}
        assert app.get(first.id) == replaced

    first = welcome.using(key="k").enqueue("Ada")
    library.play(scene())
    assert [job.payload for job in app.find().jobs] == [{"user": "Bob"}]


def test_a_job_that_the_store_refuses_leaves_nothing_behind_and_the_transaction_usable(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.add("before")
            with pytest.raises(EngineError, match="poison") as refused:
                await caller.enqueue(welcome, "poison", key="k")  # its key is written before it is refused
            assert refused.value.__cause__ is not None
            with pytest.raises(EngineError, match="poison"):
                await caller.enqueue_many(welcome, [("Ada",), ("poison",)])
            await caller.add("after")
            [receipt] = await caller.enqueue_many(welcome, [("Bob",)], key="k")
            assert receipt.created

    library.play(scene())
    assert shop.names == ["after", "before"]
    assert [job.payload["user"] for job in app.find().jobs] == ["Bob"]


@pytest.mark.parametrize("library", ["sqlite3", "psycopg", "asyncpg"], indirect=True)
@pytest.mark.parametrize("user", ["Ada", "poison"])
def test_no_savepoint_of_ours_stays_behind(library: Library, shop: Shop, welcome: Task, user: str) -> None:
    async def scene() -> None:
        with pytest.raises(Exception, match="savepoint"):
            async with library.transaction(shop) as caller:
                with suppress(EngineError):
                    await caller.enqueue(welcome, user)
                await caller.run("release treadle_tx")

    library.play(scene())


@pytest.mark.parametrize("library", EVERY_TYPE, indirect=True)
def test_many_jobs_go_with_one_transaction(library: Library, shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        with pytest.raises(Undone):
            async with library.transaction(shop) as caller:
                await caller.enqueue_many(welcome, [("Ada",), ("Bob",)])
                raise Undone
        async with library.transaction(shop) as caller:
            assert await caller.enqueue_many(welcome, []) == []
            receipts = await caller.enqueue_many(welcome, [("100 %s $1 ? :x",), ("Zoë ☃",)])
            assert all(receipt.created for receipt in receipts)

    library.play(scene())
    assert sorted(job.payload["user"] for job in app.find().jobs) == ["100 %s $1 ? :x", "Zoë ☃"]
