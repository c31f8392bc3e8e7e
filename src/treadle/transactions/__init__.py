"""Our statements inside the caller's own transaction, on the caller's own connection, through the caller's own library.

What they write commits or rolls back with the caller's rows. Nothing here commits, opens a connection or changes
threads, and no library is loaded that the caller has not loaded. One file a library says how it runs a statement;
`joined` holds what they share.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.transactions.families import family_of, refuse_colour
from treadle.transactions.joined import Joined, Rows, Step, Steps, inside, translated_errors

if TYPE_CHECKING:
    from treadle.transactions.dynamodb import Collected

__all__ = ["Steps", "arun_in", "run", "run_in"]

T = TypeVar("T")


def run_in(tx: Any, steps: Steps[T], committed: Callable[..., None] | None = None) -> T:
    """Run statements on the caller's connection, all of them or none; what they return.

    `committed` is called after the caller's commit, where the library tells of it: Django, and SQLAlchemy's sessions.
    """
    family = family_of(tx)
    refuse_colour(tx, family, wanted_async=False)
    if family.name == "dynamodb":
        collected: Collected = family.module().Collected(tx)
        result = _drive(steps, collected.answer)
        collected.commit()
        return result
    with translated_errors():
        joined: Joined = family.module().join(tx)

    def answer(step: Step) -> Rows:
        if isinstance(step, float):
            return _sleep(step)
        with translated_errors(joined.advice):
            rows: Rows = joined.execute(*step)
            return rows

    result = _drive(inside(joined, steps), answer)
    if committed is not None and joined.on_commit is not None:
        joined.on_commit(committed)
    return result


async def arun_in(tx: Any, steps: Steps[T], committed: Callable[..., None] | None = None) -> T:
    """The same for the connections and sessions of async libraries."""
    from asyncio import sleep  # noqa: PLC0415 - a process that only enqueues does not need it

    family = family_of(tx)
    refuse_colour(tx, family, wanted_async=True)
    with translated_errors():
        joined: Joined = await family.module().ajoin(tx)

    async def answer(step: Step) -> Rows:
        if isinstance(step, float):
            await sleep(step)
            return []
        with translated_errors(joined.advice):
            rows: Rows = await joined.execute(*step)
            return rows

    result = await _adrive(inside(joined, steps), answer)
    if committed is not None and joined.on_commit is not None:
        joined.on_commit(committed)
    return result


def run(steps: Steps[T]) -> T:
    """Run steps that hold no statement, only waits."""

    def answer(step: Step) -> Rows:
        if not isinstance(step, float):
            raise TypeError("a statement needs a transaction to run in")
        return _sleep(step)

    return _drive(steps, answer)


def _sleep(seconds: float) -> Rows:
    time.sleep(seconds)
    return []


def _drive(steps: Steps[T], answer: Callable[[Step], Rows]) -> T:
    """Answer one step after the other; an error is thrown into the steps, which may have to clean up."""
    try:
        step = next(steps)
        while True:
            try:
                rows = answer(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _adrive(steps: Steps[T], answer: Callable[[Step], Awaitable[Rows]]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                rows = await answer(step)
            except GeneratorExit:  # the loop is gone, and with it the way to clean up
                raise
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
