"""What schedules, gate, seals and the rest cost a queue that uses none of them: CPU a job, against an older commit.

python -m benchmarks.price_of_policies [OLD_COMMIT] [--engine postgres] [--rounds 9]

The old commit is checked out beside, and both drain the same no-op jobs in turns (old, new, new, old, ...), each in a
process of its own on a fresh store. Counted is the CPU time of the worker and, on PostgreSQL, of the whole server. The
ratio of each pair is what counts: a machine's noise is in both of it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import provision

HERE = Path(__file__).resolve().parent.parent
OLD = "e9dbfc2"  # the last one before schedules and pauses
JOBS = 20_000

DRAIN = """
import json, os, sys, threading, resource, time
sys.path.insert(0, sys.argv[1])
from treadle import Treadle
import treadle
assert treadle.__file__.startswith(sys.argv[1]), treadle.__file__
app = Treadle(sys.argv[2], concurrency=100, auto_migrate=True)

@app.task
async def noop(user_id: int, template: str, locale: str) -> None: ...

payload = {"user_id": 12345, "template": "welcome", "locale": "en"}
for _ in range(0, int(sys.argv[3]), 1000):
    noop.enqueue_many([payload] * 1000)
print("stored", flush=True)
sys.stdin.readline()
begun, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
app.run_worker(until_idle=True)
ended = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime, time.perf_counter() - start]))
"""


def server_cpu(postmaster: int | None) -> float:
    """Seconds of CPU that a server and its processes have used, those that ended too."""
    if postmaster is None:
        return 0.0
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(entry.name) == postmaster:
                total += sum(int(value) for value in fields[11:15])
            elif int(fields[1]) == postmaster:
                total += int(fields[11]) + int(fields[12])
    return total / tick


def drain(source: Path, url: str, postmaster: int | None) -> tuple[float, float]:
    """Microseconds of CPU a job, of worker and server together, and jobs a second."""
    command = [sys.executable, "-c", DRAIN, str(source / "src"), url, str(JOBS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload] # noqa: S603
        process.stdout.readline()
        before = server_cpu(postmaster)
        process.stdin.write("go\n")
        process.stdin.flush()
        cpu, seconds = json.loads(process.stdout.readline())
        used = cpu + server_cpu(postmaster) - before
    return used / JOBS * 1e6, JOBS / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", default=OLD)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git("add", "--detach", str(old), asked.old)
        try:
            for engine in asked.engine or ("sqlite", "postgres"):
                compare(engine, {"old": old, "new": HERE}, asked.rounds, Path(folder))
        finally:
            git("remove", "--force", str(old))


def git(*arguments: str) -> None:
    subprocess.run(["git", "worktree", *arguments], cwd=HERE, check=True)  # noqa: S603, S607


def compare(engine: str, trees: dict[str, Path], rounds: int, folder: Path) -> None:
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    cluster = provision.Cluster(synchronous_commit="on") if engine == "postgres" else None
    if cluster is not None:
        cluster.start()
    try:
        for number in range(rounds):
            for name in sorted(trees, reverse=bool(number % 2)):
                if cluster is not None:
                    url = provision.fresh_database(cluster.url)
                    figures[name].append(drain(trees[name], url, cluster.pid))
                    provision.drop_database(url)
                else:
                    url = f"sqlite:///{folder}/{name}-{number}.db"
                    figures[name].append(drain(trees[name], url, None))
    finally:
        if cluster is not None:
            cluster.close()
    for name, found in figures.items():
        cpu, rates = [one[0] for one in found], [one[1] for one in found]
        print(
            f"{engine} {name}: {statistics.median(cpu):.1f} us of CPU a job ({min(cpu):.1f}-{max(cpu):.1f}),"
            f" {statistics.median(rates):,.0f} jobs/s"
        )
    ratios = sorted(new[0] / old[0] for old, new in zip(figures["old"], figures["new"], strict=True))
    print(
        f"{engine} new / old: {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}), asked: 1.05 at most"
    )


if __name__ == "__main__":
    main()
