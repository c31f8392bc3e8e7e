"""The job that makes a job of every row: how a schedule with `for_each` reaches all users, shops or files.

It may be stopped anywhere and run again: the jobs of the rows have ids made from schedule, tick and row.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from treadle.engines.values import Receipt
from treadle.errors import ConfigError, GiveUp, InvalidJob, LeaseLost
from treadle.model import Job, OnEnd
from treadle.schedules.rules import job_of_row, payload_of_row
from treadle.tasks.context import Context

ROW_BATCH = 500  # jobs stored in one go


Encode = Callable[[str, object], tuple[str, OnEnd | None]]
"""From a task's name and a payload to its JSON, and what follows such jobs."""


class RowStore(Protocol):
    """Where the jobs of rows go."""

    def now(self) -> datetime: ...

    def store(self, jobs: list[Job]) -> list[Receipt]: ...


def row_handler(
    rows: Callable[..., Any], encode: Encode, enqueuer: RowStore, hide: Callable[[str, object], object]
) -> Callable[..., Any]:
    """The handler that stores a job for each row that `rows` yields; it may take the Context.

    `hide` makes of a task's name and a row what may be shown of it.
    """
    arguments = len(inspect.signature(rows).parameters)
    if arguments > 1:
        raise ConfigError(f"for_each: {rows!r} takes {arguments} arguments; it takes none, or the Context")

    def job(parent: Job, row: object, now: datetime) -> Job:
        try:
            task = parent.payload["schedule"]["task"]
            return job_of_row(parent, *encode(task, payload_of_row(parent, row)), now)
        except InvalidJob as error:
            raise GiveUp(f"row {hide(parent.payload['schedule']['task'], row)!r}: {error}") from None

    def store(ctx: Context, batch: Iterable[object]) -> int:
        if ctx.cancelled:
            raise LeaseLost(
                f"job {ctx.job.id} was asked to stop; what it has stored stays, the rest comes with a retry"
            )
        now = enqueuer.now()
        jobs = [job(ctx.job, row, now) for row in batch]
        refused = [receipt.refused for receipt in enqueuer.store(jobs) if receipt.refused]
        if refused:
            raise GiveUp(f"{len(refused)} of the rows cannot be stored: {refused[0]}")
        return len(jobs)

    def call(ctx: Context) -> Any:
        return rows(ctx) if arguments else rows()

    def expand(ctx: Context, tick: str, schedule: dict[str, Any]) -> int:  # noqa: ARG001 - job_of_row reads them
        found, total = iter(call(ctx)), 0
        while batch := list(islice(found, ROW_BATCH)):
            total += store(ctx, batch)
        return total

    async def expand_async(ctx: Context, tick: str, schedule: dict[str, Any]) -> int:  # noqa: ARG001
        import asyncio  # noqa: PLC0415 - already loaded wherever a coroutine runs

        total = 0
        async for batch in _batches(call(ctx)):
            total += await asyncio.to_thread(store, ctx, batch)
        return total

    is_async = inspect.isasyncgenfunction(rows) or inspect.iscoroutinefunction(rows)
    handler: Any = expand_async if is_async else expand
    handler.rows = rows
    return handler  # type: ignore[no-any-return]


async def _batches(found: Any) -> AsyncIterator[list[Any]]:
    if inspect.isawaitable(found):
        whole: Iterator[Any] = iter(await found)
        while batch := list(islice(whole, ROW_BATCH)):
            yield batch
        return
    batch = []
    async for row in found:
        batch.append(row)
        if len(batch) == ROW_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
