"""One connection to the server: it never waits without an end, and calls our functions without a cursor.

What workers and enqueuers send all day is a handful of calls. A cursor of the driver would cost more than they do.
"""

import select
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import psycopg
from psycopg import errors as pg
from psycopg.pq import ExecStatus, Format
from psycopg.rows import tuple_row

from treadle.engines.rows import Row

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

Value = str | int | float | datetime | None

ANSWER_TIMEOUT = 30.0  # seconds to wait for an answer
MAX_GAP = 0.1  # seconds between two parts of an answer that comes slowly


class NoAnswer(psycopg.OperationalError):
    """Neither the server nor the network before it answered within our timeout."""


class Connection(psycopg.Connection[Row]):
    """A connection that never waits for the server without an end: a stalled network must not stall a lease."""

    answer_timeout: float = ANSWER_TIMEOUT
    opened_at: float = 0.0
    prepares = False  # whether calls of our functions are prepared

    def __init__(self, pgconn: "PGconn", row_factory: Any = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._call_names: dict[str, bytes] = {}  # by statement, its name

    # ------------------------------------------------------------------------------------------- calls

    def call(self, sql: str, values: Sequence[Value]) -> "PGresult":
        """The answer, in binary, to a statement that calls a function of ours; its parameters are $1, $2 and so on.

        The plan of a call is always the same, so it may be prepared. Other statements are planned anew each time: their
        tables may have grown.
        """
        texts = [_text(value) for value in values]
        if not self.prepares:
            self.pgconn.send_query_params(sql.encode(), texts, result_format=Format.BINARY)
            return self._answer()
        name = self._call_names.get(sql)
        if name is None:
            name = b"treadle_%08x" % crc32(sql.encode())  # the same everywhere, behind a pooler too
            self.pgconn.send_prepare(name, sql.encode())
            self._answer()
            self._call_names[sql] = name
        self.pgconn.send_query_prepared(name, texts, result_format=Format.BINARY)
        return self._answer()

    def _answer(self) -> "PGresult":
        answer, deadline = None, time.monotonic() + self.answer_timeout
        while True:
            # Also before the None that ends it: libpq itself would wait for that without an end.
            self._exchange(deadline)
            result = self.pgconn.get_result()
            if result is None:
                break
            answer = answer or result
        if answer is None:
            raise psycopg.OperationalError("the connection is closed")
        if answer.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise pg.error_from_result(answer)
        return answer

    def _exchange(self, deadline: float) -> None:
        """Send what is left to send, and read until there is a result."""
        pgconn, unsent = self.pgconn, self.pgconn.flush()
        while unsent or pgconn.is_busy():
            # After the deadline too, as long as the answer keeps coming: sent again, it would be just as long.
            if not self._ready(max(deadline - time.monotonic(), MAX_GAP), or_writable=bool(unsent)):
                raise self._no_answer()
            pgconn.consume_input()
            unsent = pgconn.flush()

    def notified(self, timeout: float) -> bool:
        """Whether a notification came within so many seconds; all that have come are taken."""
        if self.pgconn.notifies() is None:
            if not self._ready(timeout):
                return False
            self.pgconn.consume_input()
            if self.pgconn.notifies() is None:
                return False
        while self.pgconn.notifies() is not None:
            pass
        return True

    def _ready(self, timeout: float, *, or_writable: bool = False) -> bool:
        """Whether there is something to read within so many seconds."""
        socket, seconds = self.pgconn.socket, max(timeout, 0.0)
        if not hasattr(select, "poll"):  # Windows
            return any(select.select([socket], [socket] if or_writable else [], [], seconds))
        poll = select.poll()
        poll.register(socket, select.POLLIN | select.POLLOUT if or_writable else select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    # ------------------------------------------------------------------------- what the driver waits for

    def wait(self, gen: Any, interval: float = 0.1, *more: Any, **options: Any) -> Any:
        return super().wait(self._bounded(gen), interval, *more, **options)

    def _bounded(self, gen: Any) -> Any:
        """The driver's generator, which waits for the socket; it is resumed every `interval`, so it can be ended."""
        deadline = time.monotonic() + self.answer_timeout
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                wanted = gen.send(ready)
                if not ready and time.monotonic() > deadline:
                    raise self._no_answer()
        except StopIteration as end:
            return end.value

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(f"no answer within {self.answer_timeout:g} s")


def _text(value: Value) -> bytes | None:
    """A parameter as the server reads it."""
    if value is None:
        return None
    text = (value.isoformat() if isinstance(value, datetime) else str(value)).encode()
    if b"\0" in text:  # libpq would end the text there
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text
