"""The way of a run's processes to their DynamoDB: it knows who asks for what, and does harm when it is told to.

A fault layer in a process of its own, so that it neither waits for the run nor is inherited by those the run forks.
Each client signs with its name where the region belongs; the emulator, which checks no signature, is told a real one.
"""

import asyncio
import os
import re
import time
from collections import Counter
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from tests.chaos.nursery import live
from tests.support.faults_dynamodb import WRITES, FaultLayer, Message, Silence, Upstream

Absence = Literal["silent", "unavailable", "crowded"]
NAME = re.compile(rb"(?<=Credential=)([^/]*/[^/]*)/([^/]*)/")
REGION = "us-east-1"
GLANCE = 0.001
GLANCES = 10  # turns of the event loop after which it has read all that had arrived, on new connections too


class Gate:
    """The way to the gate process; `url` is where clients go."""

    def __init__(self, target_url: str, folder: Path, seed: int, latency: float) -> None:
        self._line, far_end = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            live(lambda: _serve(far_end, target_url, seed, latency), folder)
        far_end.close()
        self.url: str = self._line.recv()

    def quiet(self, name: str, patience: float) -> bool:
        """Whether, within `patience` seconds, all was done that this process, dead or standing still, had asked for."""
        return self._ask("quiet", name, patience)  # type: ignore[no-any-return]

    def trouble(self) -> None:
        """From now on lose, refuse and fail a few requests of each kind."""
        self._ask("trouble")

    def go_away(self, how: Absence, seconds: float) -> None:
        """For so long cut every connection that asks, or answer that the service is down, or take no writes."""
        self._ask("go_away", how, seconds)

    def calm(self) -> None:
        """No more faults."""
        self._ask("calm")

    def met(self) -> Counter[str]:
        """How many requests met which fault, "" for none."""
        return self._ask("met")  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._pid:
            self._ask("close")
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _ask(self, *question: Any) -> Any:
        self._line.send(question)
        return self._line.recv()


def _serve(line: Connection, target_url: str, seed: int, latency: float) -> None:
    """The gate process itself."""
    with Layer(target_url, seed=seed, latency=latency) as layer:
        line.send(layer.url)
        act = ""
        while act != "close":
            act, *arguments = line.recv()
            line.send(getattr(layer, f"do_{act}")(*arguments))


class Layer(FaultLayer):
    """A fault layer that knows for whom it is at work; every answer takes `latency` seconds on its way."""

    def __init__(self, target_url: str, *, seed: int, latency: float) -> None:
        super().__init__(target_url, seed=seed)
        self._latency = latency
        self._at_work: Counter[str] = Counter()

    async def _answer(self, message: Message, server: Upstream) -> bytes | Silence:
        signed = message.headers.get(b"authorization", b"")
        found = NAME.search(signed)
        name = found[2].decode() if found else ""
        signed = NAME.sub(rb"\1/%s/" % REGION.encode(), signed)
        message = replace(message, headers=message.headers | {b"authorization": signed})
        self._at_work[name] += 1
        try:
            answer = await super()._answer(message, server)
        finally:
            self._at_work[name] -= 1
        await asyncio.sleep(self._latency)
        return answer

    def do_quiet(self, name: str, patience: float) -> bool:
        return asyncio.run_coroutine_threadsafe(self._quiet(name, patience), self._loop).result()

    async def _quiet(self, name: str, patience: float) -> bool:
        deadline, calm = time.monotonic() + patience, 0
        while calm < GLANCES and time.monotonic() < deadline:
            await asyncio.sleep(GLANCE)
            calm = 0 if self._at_work[name] else calm + 1
        return calm >= GLANCES

    def do_trouble(self) -> None:
        self.lose(chance=0.002)
        self.lose("TransactWriteItems", chance=0.01)
        self.lose(applied=False, chance=0.002)
        self.conflict(chance=0.01)
        self.refuse("ThrottlingException", chance=0.003)
        self.refuse("ProvisionedThroughputExceededException", chance=0.003)
        self.fail(status=500, chance=0.002)
        self.fail(status=503, chance=0.002)
        self.fail(applied=True, chance=0.002)

    def do_go_away(self, how: Absence, seconds: float) -> None:
        match how:
            case "silent":
                orders = [self.lose(applied=False)]
            case "unavailable":
                orders = [self.fail(status=503)]
            case "crowded":
                orders = [self.refuse("ThrottlingException", operation) for operation in WRITES]
        time.sleep(seconds)
        for order in orders:
            order.stop()

    def do_calm(self) -> None:
        self.calm()

    def do_met(self) -> Counter[str]:
        return Counter(exchange.fault for exchange in self.log)

    def do_close(self) -> None:
        pass
