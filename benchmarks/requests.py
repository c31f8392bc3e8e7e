"""A server under load: `treadle serve` on a store, and clients that each ask it something once a second.

Load is offered, not closed-loop: a client sends its next request at its time, however long the last one took. With
`pause` 0 they ask as fast as they are answered, to see what that does to everybody else.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Self

from benchmarks.stores import StorePlace
from treadle.bench.meter import percentile

CLIENTS = 20
ASKED = {
    "list": "/api/v1/jobs?limit=50",
    "failed": "/api/v1/jobs?state=cancelled&limit=50",
    "job": "/api/v1/jobs/{job}",
    "count": "/api/v1/jobs/count",
    "stats": "/api/v1/stats",
    "status": "/api/v1/status",
    "queues": "/api/v1/queues",
}
"""What clients ask in turn; the finished jobs of a crowd were cancelled."""


class ServerUnderLoad:
    """A server process, and clients in threads of this one; `figures` are their waits in milliseconds."""

    def __init__(self, place: StorePlace, *, pause: float) -> None:
        self._pause = pause
        self._tokens = [place.app.tokens.create(f"load {n}", scopes=["read"]).secret for n in range(CLIENTS)]
        self._job = place.app.find(limit=1).jobs[0].id
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._wrong: list[str] = []
        self._over = threading.Event()
        command = [sys.executable, "-m", "treadle", "serve", "--url", place.url, "--port", "0", "--no-worker"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._port = self._listening_port()
        self._threads = [threading.Thread(target=self._ask, args=[number], daemon=True) for number in range(CLIENTS)]

    def _listening_port(self) -> int:
        for line in self._process.stderr or ():
            if found := re.search(r"serving http://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        raise AssertionError("the server did not start")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
        self._process.terminate()
        self._process.communicate(timeout=30)

    def figures(self) -> dict[str, float]:
        if self._wrong:
            raise AssertionError(f"{len(self._wrong)} requests were answered wrongly, the first: {self._wrong[0]}")
        every = [wait for waits in self._waits.values() for wait in waits]
        found = {"requests": float(len(every)), "request_p50_ms": percentile(every, 0.5)}
        found |= {f"{name}_p95_ms": percentile(waits, 0.95) for name, waits in self._waits.items()}
        return found | {"request_p95_ms": percentile(every, 0.95), "request_p99_ms": percentile(every, 0.99)}

    def _ask(self, number: int) -> None:
        names = [*ASKED]
        at, turn = time.monotonic() + number / CLIENTS, number
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.wait(max(0.0, at - time.monotonic())):
            name = names[turn % len(names)]
            due = at if self._pause else time.monotonic()
            connection.request(
                "GET", ASKED[name].format(job=self._job), headers={"Authorization": f"Bearer {self._tokens[number]}"}
            )
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 429 and not self._pause:  # the server keeps one token to 50 requests a second
                self._over.wait(0.1)
                continue
            self._waits[name].append((time.monotonic() - due) * 1000)
            if answer.status != 200:
                self._wrong.append(f"{name}: {answer.status} {json.loads(body)}")
            at, turn = at + self._pause, turn + 1
        connection.close()
