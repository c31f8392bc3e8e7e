"""ctx.once: an effect that must not repeat, although its handler may run again.

The job remembers that the effect was begun, then what came of it. Whoever finds it begun and not ended cannot know
whether it has happened: `look` finds out, or `on_ambiguous` says what to do.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from treadle.errors import Ambiguous, GiveUp, HandlerOutcome, InvalidJob, Parked
from treadle.model import check_name, json_text
from treadle.model.memo import MEMO_CAP, MOST_MEMOS, Memo, MemoState
from treadle.model.text import json_data
from treadle.tasks.context import Context, OnAmbiguous, OwnWrites, check_on_ambiguous

KIND = "once"

_BROKEN = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


class Effect(NamedTuple):
    """What shall happen once, and what to do if nobody knows whether it has."""

    name: str
    act: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on_ambiguous: OnAmbiguous = "park"
    look: Callable[[], Any] | None = None

    def check(self) -> None:
        """Refuse what cannot be remembered or called; nothing has happened yet."""
        check_name("once", self.name)
        check_on_ambiguous(self.on_ambiguous)
        if not callable(self.act):
            raise InvalidJob("once", f"{self.act!r:.100} cannot be called: pass the function and its arguments")
        if self.look is not None and not callable(self.look):
            raise InvalidJob("look", f"{self.look!r:.100} cannot be called: pass a function that returns what it found")


class Note(NamedTuple):
    """Remember this of the effect."""

    state: MemoState
    value_json: str | None = None


Steps = Generator[Note | Callable[[], Any], Any, Any]


def steps(effect: Effect, memo: Memo | None) -> Steps:
    """What is written and called, one step after the other; in the end the effect's value."""
    state = None if memo is None else memo.state
    if memo is not None and state is MemoState.DONE:
        return None if memo.value_json is None else json_data(memo.value_json)
    if memo is not None and state in (MemoState.BEGUN, MemoState.PARKED):
        if effect.look is not None:
            found = yield effect.look
            if found is not None:
                return (yield from _done(effect, found))
        elif state is MemoState.BEGUN and effect.on_ambiguous != "send":
            whose = f"attempt {memo.attempt}" if memo.at == memo.began_at else "an earlier attempt"
            began = f"{whose} began it at {memo.began_at:%Y-%m-%d %H:%M:%S} UTC and did not say how it ended"
            return (yield from _undecided(effect, began))
    yield Note(MemoState.BEGUN)
    try:
        value = yield partial(effect.act, *effect.args, **effect.kwargs)
    except Exception as error:
        if not is_ambiguous(error):
            if state is not MemoState.BEGUN:  # that this try failed says nothing of the one in doubt before it
                yield Note(MemoState.UNDONE)
        elif effect.look is None and effect.on_ambiguous != "send":
            return (yield from _undecided(effect, f"it ended with {type(error).__name__}: {error}", error))
        raise  # what is left begun, the next attempt looks for, or repeats
    return (yield from _done(effect, value))


def is_ambiguous(error: BaseException) -> bool:
    """Whether nobody knows, after this error, if the effect has happened: a timeout, or a connection that broke.

    So says the error, or one that it came from. What a handler says on purpose, such as RetryLater, means that it did
    not happen.
    """
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, HandlerOutcome):
            return False
        if isinstance(cause, (Ambiguous, *_BROKEN)):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def _done(effect: Effect, value: Any) -> Steps:
    """Remember that it has happened, and what came of it; a later attempt is given the same value."""
    try:
        text = json_text(value, f"once {effect.name!r}", MEMO_CAP)
    except InvalidJob as problem:
        yield Note(MemoState.DONE)
        raise GiveUp(f"{problem}. It has happened and is not repeated; a retry goes on without its value") from problem
    yield Note(MemoState.DONE, text)
    return json_data(text)


def _undecided(effect: Effect, why: str, error: Exception | None = None) -> Steps:
    if effect.on_ambiguous == "skip":
        yield Note(MemoState.DONE)
        return None
    yield Note(MemoState.PARKED)
    advice = "Find out. A retry of the job does it again"
    raise Parked(f"once {effect.name!r}: nobody knows whether it has happened: {why}. {advice}") from error


# -------------------------------------------------------------------------------- one attempt's side of it


class MemoBook:
    """What a running attempt knows of its job's memos; several threads of a handler may use it."""

    def __init__(self, attempt: int, writes: OwnWrites) -> None:
        self._attempt = attempt
        self._store = writes
        self._memos: dict[str, Memo] | None = None
        self._under_way = set[str]()
        self._lock = threading.Lock()

    def begin(self, name: str) -> Memo | None:
        """What is known of this effect, which nobody else may begin until `end`."""
        with self._lock:
            memos = self._recalled()
            if name in self._under_way:
                raise InvalidJob("once", f"{name!r} is under way already: give each effect of a job its own name")
            if name not in memos and len(memos) + len(self._under_way) >= MOST_MEMOS:
                raise InvalidJob(
                    "once", f"{name!r} is one too many: a job remembers {MOST_MEMOS:,}; make it several jobs"
                )
            self._under_way.add(name)
            return memos.get(name)

    def known(self) -> dict[str, Memo]:
        """All that the job remembers, by name."""
        with self._lock:
            return dict(self._recalled())

    def end(self, name: str) -> None:
        with self._lock:
            self._under_way.discard(name)

    def write(self, name: str, note: Note) -> None:
        """Remember it, in the store first."""
        now, before = self._store.now(), (self._memos or {}).get(name)
        again = note.state is MemoState.BEGUN and before is not None and before.state is not MemoState.BEGUN
        began = now if before is None or again else before.began_at  # of tries in doubt, the first
        memo = Memo(name, KIND, note.state, self._attempt, began, now, note.value_json)
        self._store.remember(memo)
        with self._lock:
            self._memos = {**(self._memos or {}), name: memo}

    def _recalled(self) -> dict[str, Memo]:
        if self._memos is None:
            self._memos = {memo.name: memo for memo in self._store.recall()}
        return self._memos


def memos_of(ctx: Context) -> dict[str, Memo]:
    """What the job of this attempt remembers now, by name."""
    return ctx._memos.known()


def once(book: MemoBook, effect: Effect) -> Any:
    """Take the steps, in this thread."""

    def take(step: Note | Callable[[], Any]) -> Any:
        if isinstance(step, Note):
            return book.write(effect.name, step)
        answer = step()
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise InvalidJob("once", f"{effect.name!r} is async and was not run: write `await ctx.aonce(...)`")
        return answer

    effect.check()
    work = steps(effect, book.begin(effect.name))
    try:
        step = next(work)
        while True:
            try:
                answer = take(step)
            except Exception as error:
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        return end.value
    finally:
        book.end(effect.name)


async def aonce(book: MemoBook, effect: Effect) -> Any:
    """Take the steps, in async code; plain functions are called in a thread."""

    async def take(step: Note | Callable[[], Any]) -> Any:
        if isinstance(step, Note):
            return await _to_its_end(asyncio.to_thread(book.write, effect.name, step))
        answer = step() if inspect.iscoroutinefunction(step) else await asyncio.to_thread(step)
        return await answer if inspect.isawaitable(answer) else answer

    effect.check()
    work = steps(effect, await asyncio.to_thread(book.begin, effect.name))
    try:
        step = next(work)
        while True:
            try:
                answer = await take(step)
            except Exception as error:
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        return end.value
    finally:
        book.end(effect.name)


async def _to_its_end(work: Awaitable[Any]) -> Any:
    """Await it; a handler that is cancelled meanwhile stops when this is done, so that what happened is known."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
