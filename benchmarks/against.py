"""Two commits, in pairs: the same work with the other commit's source, and what a job costs in CPU."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.stores import SCHEMA, Stores, server_cpu, spent
from tests.support import provision
from treadle.bench import measure
from treadle.bench.processes import MeasuredProcess, wait_for
from treadle.bench.work import Order

ROOT = Path(__file__).resolve().parent.parent
ROOM = Path("src/treadle/bench")
ONE_BY_ONE = 10  # a tenth of the jobs is enqueued one by one


class Tree(NamedTuple):
    """A source tree, and a Python that has what it needs."""

    source: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.source / "src")}

    def start(self, order: Order) -> MeasuredProcess:
        command = (str(self.python), "-m", "treadle.bench.work")
        return MeasuredProcess(order, command=command, environment=self.environment)


def compare(commit: str, stores: Stores, *, rounds: int, jobs: int) -> int:
    """Print the CPU of both commits, and the ratio of each pair; below 1 is better than the other commit."""
    found: dict[str, list[tuple[float, float]]] = {}
    with other_tree(commit) as other:
        ours = Tree(ROOT, Path(sys.executable))
        for number in range(rounds):
            sides = (other, ours) if number % 2 == 0 else (ours, other)  # neither is always the first
            figures = {tree.source: costs(tree, stores, jobs) for tree in sides}
            for name, value in figures[other.source].items():
                found.setdefault(name, []).append((value, figures[ours.source][name]))
            print(f"round {number + 1} of {rounds}", flush=True)
    print(f"\nCPU microseconds a job, {jobs:,} jobs, median of {rounds}")
    print(f"{'':28}{commit[:12]:>14}{'this tree':>14}{'ratio':>9}")
    for name, pairs in found.items():
        before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [new / old for old, new in pairs if old]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        print(f"{name:28}{before:14.2f}{after:14.2f}{statistics.median(ratios or [0]):9.2f}  ({spread})")
    return 0


def costs(tree: Tree, stores: Stores, jobs: int) -> dict[str, float]:
    """What a job costs this tree, on PostgreSQL and on SQLite."""
    url = provision.fresh_database(stores.cluster.url)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            look = partial(server_cpu, stores.cluster.pid)
            running = f"select 1 from {SCHEMA}.jobs where state = 'running' limit 1"

            def settled() -> bool:
                return not connection.execute(running).fetchall()

            found = {f"postgres {name}": value for name, value in _path(tree, url, jobs, settled, look).items()}
    finally:
        provision.drop_database(url)
    with tempfile.TemporaryDirectory(prefix="treadle-benchmark-") as folder:
        file = f"sqlite:///{folder}/treadle.db"
        return found | {f"sqlite {name}": value for name, value in _path(tree, file, jobs, lambda: True, dict).items()}


def _path(tree: Tree, url: str, jobs: int, settled, look) -> dict[str, float]:
    """Enqueue one by one and in bulk, then drain; `look` sees the server's CPU."""
    command = [str(tree.python), "-m", "treadle", "migrate", "--url", url]
    subprocess.run(command, env=os.environ | tree.environment, check=True, capture_output=True)
    one = _enqueued(tree, Order("enqueue", url=url, how="one", jobs=max(1, jobs // ONE_BY_ONE)))
    bulk = _enqueued(tree, Order("enqueue", url=url, how="bulk", jobs=jobs))
    seen: list[dict[str, float]] = []

    def note(ran: int) -> None:
        seen.append({**look(), "ran": ran})

    stored = jobs + max(1, jobs // ONE_BY_ONE)
    drained = measure.drain(Order("worker", url=url), stored, settled=settled, begun=note, ended=note, start=tree.start)
    found = {"enqueue one, client": one, "enqueue bulk, client": bulk, "drain, worker": drained.cpu}
    used = spent(seen[0], seen[1])
    return {**found, "drain, server": used["server_cpu"] / max(1, used["ran"]) * 1e6} if used["server_cpu"] else found


def _enqueued(tree: Tree, order: Order) -> float:
    with tree.start(order) as process:
        wait_for(lambda: process.result is not None, [process], measure.TIMEOUT, "the jobs to be stored")
        return process.finished()["spent"] / order.jobs * 1e6


@contextmanager
def other_tree(commit: str) -> Iterator[Tree]:
    """That commit in a worktree of its own, with our measuring room; with a venv if it needs other packages."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-against-"))
    source = folder / "source"
    git = ("git", "-C", str(ROOT))
    done = subprocess.run(
        [*git, "worktree", "add", "--detach", source, commit], capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(folder)
        sys.exit(f"--against {commit}: {done.stderr.strip().splitlines()[-1]}")
    try:
        shutil.rmtree(source / ROOM, ignore_errors=True)
        shutil.copytree(ROOT / ROOM, source / ROOM, ignore=shutil.ignore_patterns("__pycache__"))
        yield Tree(source, _python_for(source, folder))
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", source], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _python_for(source: Path, folder: Path) -> Path:
    lock = "requirements.lock"
    if (source / lock).read_bytes() == (ROOT / lock).read_bytes():
        return Path(sys.executable)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = folder / "venv" / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"],
        [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "--requirement", source / lock],
    ):
        subprocess.run(command, check=True)
    return python
