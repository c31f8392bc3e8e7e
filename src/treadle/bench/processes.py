"""Measured processes: started with an order, listened to, stopped; none is left behind."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from treadle.bench import work
from treadle.bench.work import Order
from treadle.errors import EngineError, EngineUnavailable, NotPossible, TreadleError

STOP_TIMEOUT = 20.0  # seconds a process may take to end when it is told to
REPORT_TIMEOUT = 60.0  # seconds a process may take for its next report
RAISED = {"EngineUnavailable": EngineUnavailable, "EngineError": EngineError}


class MeasuredProcess:
    """A process that measures itself. `ran` is how many jobs it has run so far, `result` its last report."""

    def __init__(
        self, order: Order, *, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.ran = 0
        self.ready: dict[str, Any] | None = None  # what it said when it could begin
        self.first: dict[str, Any] | None = None  # its first report of work
        self.result: dict[str, Any] | None = None
        self._error: dict[str, Any] = {}
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, or a peer's
            [*(command or (sys.executable, "-m", work.__name__))],
            cwd=tempfile.gettempdir(),  # no treadle.toml of yours plays a part here
            env={**_surroundings(), **(environment or {})},
            stdin=subprocess.PIPE,  # closed when we are gone, however that happens: nobody is left behind
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is for us, and we then stop it
        )
        self.pid = self._process.pid
        self._give(json.dumps(order._asdict()))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            with suppress(TreadleError):  # what went wrong first is what counts
                self.stop(0.0)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def cpu(self) -> tuple[float, int]:
        """CPU seconds it has spent since its first report, and the jobs it ran in them.

        What it did before, above all to start and to connect, counts only if it had run most of its jobs by then.
        """
        begin, end = self.first or {}, self.result or {}
        if begin.get("ran", 0) * 5 > end["ran"]:
            begin = self.ready or {}
        return end["cpu"] - begin.get("cpu", 0.0), end["ran"] - begin.get("ran", 0)

    def check(self) -> None:
        """Raise if it ended without a result."""
        if self.result is None and not self.alive:
            self._reader.join(5.0)
            if self.result is None:
                message = self._error.get("error") or self._last_words()
                raise RAISED.get(self._error.get("kind", ""), NotPossible)(message)

    def finished(self) -> dict[str, Any]:
        """Its last report; it has ended then. A worker must have been told to stop."""
        wait_for(lambda: self.result is not None, [self], REPORT_TIMEOUT, "the report")
        self.stop()
        return self.result or {}

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Tell it to stop, and make it after `timeout` seconds."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        self.check()
        if self._process.stdout is not None and not self._reader.is_alive():  # or close() waits for it
            self._process.stdout.close()
        self._words.close()

    def _give(self, line: str) -> None:
        try:
            assert self._process.stdin is not None  # noqa: S101 - asked for above
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once: check() says why

    def _close(self) -> None:
        try:
            assert self._process.stdin is not None  # noqa: S101 - asked for above
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def _read(self) -> None:
        for line in self._process.stdout or ():
            try:
                facts = json.loads(line)
            except ValueError:
                continue  # a library that prints
            self.ran = facts.get("ran", self.ran)
            if "ready" in facts:
                self.ready = facts
            elif "error" in facts:
                self._error = facts
            elif "end" in facts:
                self.result = facts
            elif "ran" in facts and self.first is None:
                self.first = facts

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return f"a measured process ended: {lines[-1] if lines else 'it said nothing'}"


def wait_for(done: Callable[[], bool], processes: Sequence[MeasuredProcess], timeout: float, what: str) -> None:
    """Wait until it is done; NotPossible if a process ends before, or nothing happens for `timeout` seconds."""
    ran, deadline = -1, time.monotonic() + timeout
    while not done():
        for process in processes:
            process.check()
        if (now := sum(process.ran for process in processes)) != ran:
            ran, deadline = now, time.monotonic() + timeout
        if time.monotonic() > deadline:
            raise NotPossible(
                f"nothing has happened for {timeout:g} s while waiting for {what}; {max(ran, 0):,} jobs ran"
            )
        time.sleep(0.005)


def _surroundings() -> dict[str, str]:
    """Our environment, without settings of treadle, and with this treadle to be found."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TREADLE_")}
    paths = [str(Path(__file__).parents[2]), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
