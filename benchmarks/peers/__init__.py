"""Other job queues beside treadle, each in a venv of its own, outside this tree. Their processes report as ours do."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.scenarios import PEERS
from benchmarks.stores import StorePlace
from treadle.bench import measure
from treadle.bench.processes import MeasuredProcess, wait_for
from treadle.bench.work import Order

HERE = Path(__file__).resolve().parent
METER = HERE.parents[1] / "src" / "treadle" / "bench"
HOME = Path(os.environ.get("TREADLE_TEST_PEERS") or Path(tempfile.gettempdir()) / "treadle-peers")


class Peer:
    """One of the others, installed."""

    def __init__(self, name: str) -> None:
        self.name, self.facts = name, PEERS[name]
        self.store: str = self.facts["store"]
        self._home = HOME / name

    def install(self) -> str:
        """Fill its venv or node folder, once; why that was not possible, if so."""
        done = self._home / ".installed"
        if done.exists():
            return ""
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir(parents=True)
        commands = self._node() if "node" in self.facts else self._python()
        for command in commands:
            print("+", *command, flush=True)
            try:
                ended = subprocess.run(command, cwd=self._home, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                return f"{command[0]} is not on this machine"
            if ended.returncode:
                return (ended.stderr or ended.stdout).strip().rpartition("\n")[2]
        done.touch()
        return ""

    def start(self, order: Order, *, place: StorePlace) -> MeasuredProcess:
        if "node" in self.facts:
            command = ["node", str(HERE / f"{self.name}.js")]
        else:
            command = [str(self._home / "bin" / "python"), "-W", "ignore", str(HERE / f"{self.name}_peer.py")]
        found = {"PYTHONPATH": str(METER), "NODE_PATH": str(self._home / "node_modules")}
        return MeasuredProcess(order._replace(url=self.url(place), twin=None), command=command, environment=found)

    def url(self, place: StorePlace) -> str:
        return str(place.folder / "peer.db") if self.store == "sqlite" else place.server

    def set_up(self, place: StorePlace) -> None:
        self._call(Order("setup"), place)

    def fill(self, place: StorePlace, jobs: int) -> None:
        self._call(Order("enqueue", how="bulk", jobs=jobs), place)

    def settled(self, place: StorePlace) -> bool:
        if self.store == "postgres":
            [(number,)] = place.execute(self.facts["open"])
            return not number
        connection: Any = sqlite3.connect(place.folder / "peer.db", timeout=30)
        try:
            return not connection.execute(self.facts["open"]).fetchone()[0]
        finally:
            connection.close()

    def _call(self, order: Order, place: StorePlace) -> None:
        with self.start(order, place=place) as process:
            wait_for(lambda: process.result is not None, [process], measure.TIMEOUT * 5, f"{self.name}'s {order.role}")

    def _python(self) -> list[list[str]]:
        python = str(self._home / "bin" / "python")
        packages = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.facts["install"]]
        return [[sys.executable, "-m", "venv", "--clear", str(self._home)], packages]

    def _node(self) -> list[list[str]]:
        return [["npm", "init", "-y"], ["npm", "install", "--no-audit", "--no-fund", *self.facts["node"]]]
