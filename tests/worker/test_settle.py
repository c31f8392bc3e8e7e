"""ctx.settle(tx): the handler's rows and its job's end commit together, or neither does."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.support.marks import sql_stores
from tests.support.workbench import ended, until, watched, working
from treadle import Context, InvalidJob, LeaseLost, Reason, Retry, State, Treadle
from treadle.model import lifecycle

AT_ONCE = Retry(max_attempts=3, base=0, cap=0, jitter=0)


pytestmark = sql_stores  # what a list of items does on DynamoDB is in tests/engines/dynamodb


@pytest.fixture
def sales(store_url: str, app: Treadle) -> "Sales":
    app.migrate()
    return Sales(store_url)


class Sales:
    """The handler's own table, in the same store."""

    def __init__(self, url: str) -> None:
        self._url = url
        with self.open() as connection:
            connection.execute("create table sales (article text)")
            connection.commit()

    @contextmanager
    def open(self) -> Iterator[Any]:
        """A connection of the handler's own, by the driver of that store; a transaction begins with a statement."""
        with closing(self._connect()) as connection:
            yield connection

    def _connect(self) -> Any:
        if self._url.startswith("sqlite:///"):
            return sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)
        server, _, schema = self._url.partition("?schema=")
        return psycopg.connect(server, options=f"-c search_path={schema}")

    @property
    def articles(self) -> list[str]:
        with self.open() as connection:
            return [row[0] for row in connection.execute("select article from sales")]


def in_transaction(connection: Any) -> bool:
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    return connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_committed_transaction_ends_the_job_with_the_handlers_row(app: Treadle, sales: Sales, kind: str) -> None:
    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            ctx.settle(connection, {"sold": "tea"})
            assert app.get(ctx.job.id).state is State.RUNNING  # not before the commit
            connection.commit()
            assert app.get(ctx.job.id).state is State.SUCCEEDED

    def plain(ctx: Context) -> str:
        sell(ctx)
        return "what is returned no longer matters"

    async def on_the_loop(ctx: Context) -> str:
        await asyncio.sleep(0)
        sell(ctx)
        return "what is returned no longer matters"

    job = app.register("sell", plain if kind == "plain" else on_the_loop).enqueue()
    tick = app.register("tick", lambda: None)
    with working(app):
        ended(app, job)
        ended(app, tick.enqueue())
    job = app.get(job.id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, {"sold": "tea"}, 1)
    assert sales.articles == ["tea"]


def test_progress_and_cost_are_settled_too(app: Treadle, sales: Sales) -> None:
    @app.task
    def sell(ctx: Context) -> None:
        ctx.progress(1, "sold")
        ctx.add_cost(7)
        with sales.open() as connection:
            ctx.settle(connection)
            connection.commit()

    with working(app):
        [job] = ended(app, sell.enqueue())
    assert (job.progress, job.cost_micros, job.result) == ((1.0, "sold"), 7, None)
    assert job.started_at is not None


@pytest.mark.parametrize("how", ["rolled back", "never committed", "swallowed"])
def test_a_transaction_that_was_not_committed_is_a_failed_attempt_that_says_so(
    app: Treadle, sales: Sales, how: str
) -> None:
    @app.task(retry=AT_ONCE)
    def sell(ctx: Context) -> str:
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            if ctx.attempt > 1:
                ctx.settle(connection, "at the second try")
                connection.commit()
                return ""
            if how == "swallowed":
                try:
                    with connection:
                        ctx.settle(connection)
                        raise RuntimeError("the mail could not be sent")
                except RuntimeError:
                    pass
            else:
                ctx.settle(connection)
                if how == "rolled back":
                    connection.rollback()
        return "as if nothing had happened"

    job = sell.enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.result) == (State.SUCCEEDED, "at the second try")
    assert (job.attempt, job.failures, job.crashes) == (2, 1, 0)
    assert sales.articles == ["tea"]
    assert "not committed" in app.events(job.id)[0].note


def test_the_budget_of_attempts_that_do_not_commit_is_spent_too(app: Treadle, sales: Sales) -> None:
    @app.task(retry=AT_ONCE)
    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            ctx.settle(connection)

    with working(app):
        [job] = ended(app, sell.enqueue())
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.EXHAUSTED, 3)
    assert "not committed" in job.error.message


def test_an_error_before_the_commit_is_the_one_that_counts(app: Treadle, sales: Sales) -> None:
    @app.task(retry=Retry(max_attempts=1))
    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            ctx.settle(connection)
            raise ValueError("out of tea")

    with working(app):
        [job] = ended(app, sell.enqueue())
    assert (job.state, job.error.message) == (State.FAILED, "out of tea")


def test_an_error_after_the_commit_changes_nothing(app: Treadle, sales: Sales) -> None:
    @app.task(retry=AT_ONCE)
    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            ctx.settle(connection, "sold")
            connection.commit()
        raise ValueError("while saying goodbye")

    job = sell.enqueue()
    tick = app.register("tick", lambda: None)
    with working(app):
        ended(app, job)
        ended(app, tick.enqueue(), tick.enqueue())
    job = app.get(job.id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "sold", 1)
    assert sales.articles == ["tea"]


def test_a_cancel_request_does_not_undo_what_was_settled(app: Treadle, sales: Sales) -> None:
    @app.task
    def sell(ctx: Context) -> None:
        app.cancel(ctx.job.id)
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            ctx.settle(connection, "sold")
            connection.commit()

    with working(app):
        [job] = ended(app, sell.enqueue())
    assert (job.state, job.result, job.cancel_requested) == (State.SUCCEEDED, "sold", True)


def test_a_cancel_request_after_a_rollback_is_not_taken_for_the_commit(app: Treadle, sales: Sales) -> None:
    """Both raise the revision by one; only the commit ends the job."""

    @app.task(retry=AT_ONCE)
    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            ctx.settle(connection, "sold")
            connection.rollback()
        app.cancel(ctx.job.id)

    job = sell.enqueue()
    with working(app, lease=5):
        [job] = ended(app, job)
    assert (job.state, job.reason, job.crashes) == (State.CANCELLED, Reason.BY_REQUEST, 0)
    assert (job.finished_at - job.claimed_at).total_seconds() < 4  # and not when its lease had run out


def test_settling_a_job_that_is_no_longer_ours_raises_and_the_transaction_can_roll_back(
    app: Treadle, sales: Sales
) -> None:
    refused: list[str] = []

    @app.task
    def sell(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        later = datetime.now(UTC) + timedelta(hours=1)
        crash = lifecycle.crash(app.get(ctx.job.id), later, actor="a reaper with a fast clock")
        app.engine.turn([crash], now=later)  # nobody has told this attempt
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            try:
                ctx.settle(connection, "first")
            except LeaseLost as error:
                refused.append(str(error))
                connection.rollback()
        return "first"

    job = sell.enqueue()
    with working(app, lease=30):
        [job] = ended(app, job)
    assert (job.result, job.attempt) == ("second", 2)
    assert refused
    assert "roll your transaction back" in refused[0]
    assert sales.articles == []


def test_a_result_that_cannot_be_stored_is_refused_to_the_handlers_face(app: Treadle, sales: Sales) -> None:
    @app.task
    def sell(ctx: Context) -> str:
        with sales.open() as connection:
            with pytest.raises(InvalidJob, match="NUL"):
                ctx.settle(connection, "a\0b")
            ctx.settle(connection, "sold")
            connection.commit()
        return ""

    with working(app):
        [job] = ended(app, sell.enqueue())
    assert (job.state, job.result) == (State.SUCCEEDED, "sold")


@pytest.mark.parametrize("when", ["at the end", "at the start"])
def test_a_long_transaction_of_the_handler_costs_it_neither_lease_nor_job(
    make_app: Callable[..., Treadle], app: Treadle, sales: Sales, when: str
) -> None:
    """The handler itself keeps its lease from being renewed: it holds the file's write lock, or the lock of its job."""
    lease, other = 2.0, make_app()

    def sell(ctx: Context) -> None:
        with sales.open() as connection:
            connection.execute("insert into sales values ('tea')")
            if when == "at the start":
                ctx.settle(connection, "sold")
            threading.Event().wait(2.5 * lease)
            if when == "at the end":
                ctx.settle(connection, "sold")
            connection.commit()

    for each in (app, other):
        each.register("sell", sell)
    job = app.tasks["sell"].enqueue()
    with working(app, lease=lease, name="first"):
        until(lambda: app.get(job.id).worker, "its claim")
        with working(other, lease=lease, name="second"):
            [job] = ended(app, job)
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "sold", "first")
    assert (job.attempt, job.crashes) == (1, 0)
    assert sales.articles == ["tea"]


def test_a_lost_lease_is_told_before_anything_is_written(app: Treadle, sales: Sales) -> None:
    engine, refused = watched(app), []

    @app.task
    def sell(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        until(lambda: ctx.cancelled, "word of the loss")
        with sales.open() as connection:
            with pytest.raises(LeaseLost):
                ctx.settle(connection)
            refused.append(in_transaction(connection))
        engine.cut.clear()
        return "first"

    job = sell.enqueue()
    with working(app, lease=0.6):
        until(lambda: app.get(job.id).worker, "its claim")
        engine.cut.set()
        [job] = ended(app, job)
    assert job.result == "second"
    assert refused == [False]
