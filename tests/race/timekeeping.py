"""Promise 9 on real processes: eight of them fire the same schedules while they are killed one after the other.

`python3 dev.py timekeepers [--engine sqlite] [--ticks 10000] [--kills 100]`. Each schedule has missed its ticks and
makes up for all of them, so every process wants every tick as fast as it can; afterwards there must be exactly one job
for each nominal time.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tests.support import forks, processes, stores
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter
from treadle.model.records import Misfire, Schedule

KEEPERS = 8
SCHEDULES = 10
STEP = 70  # seconds between two ticks
PATIENCE = 600.0  # seconds


class Race(NamedTuple):
    """What became of a race: the ticks there were, how often each was made into a job, and how many were killed."""

    wanted: set[tuple[str, datetime]]
    made: Counter[tuple[str, datetime]]
    killed: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        missed = [f"{name} at {tick}: no job" for name, tick in sorted(self.wanted - self.made.keys())]
        strange = [f"{name} at {tick}: never a tick" for name, tick in sorted(self.made.keys() - self.wanted)]
        twice = [f"{name} at {tick}: {n} jobs" for (name, tick), n in sorted(self.made.items()) if n > 1]
        return missed + strange + twice


class Keepers:
    """The processes; one that is killed is followed by another."""

    def __init__(self, url: str) -> None:
        self.url, self.killed = url, 0
        self.running = [self._start(place) for place in range(KEEPERS)]

    def _start(self, place: int) -> subprocess.Popen[str]:
        command = processes.module("tests.race.timekeeper", self.url, f"keeper-{place}")
        return forks.Popen(command, env=processes.environment(), stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        for process in self.running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def kill_one(self) -> None:
        place = random.randrange(KEEPERS)
        self._end(self.running[place])
        self.running[place] = self._start(place)
        self.killed += 1

    def end(self) -> None:
        for process in self.running:
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def race(url: str, ticks: int, kills: int) -> Race:
    """Let the keepers fire this many ticks, killing this many of them meanwhile."""
    engine = connect(url)
    engine.migrate()
    with _keepers(url) as keepers:
        keepers.ready()
        began = time.monotonic()
        wanted = set(_planned(engine, ticks))
        last = max(tick for _, tick in wanted)
        while not _over(engine, last):
            if keepers.killed < kills:
                keepers.kill_one()
            time.sleep(0.1)
            assert time.monotonic() - began < PATIENCE, "the ticks are not all made"
        seconds = time.monotonic() - began
    made = Counter(_made(engine, last))
    engine.close()
    return Race(wanted, made, keepers.killed, seconds)


@contextmanager
def _keepers(url: str) -> Iterator[Keepers]:
    keepers = Keepers(url)
    try:
        yield keepers
    finally:
        keepers.end()


def _planned(engine: Engine, ticks: int) -> Iterator[tuple[str, datetime]]:
    """Store schedules that have missed their ticks; the ticks, of which the last is some time ago."""
    each, now = ticks // SCHEDULES, engine.now().replace(microsecond=0)
    begun = now - timedelta(seconds=STEP * (each + 5))
    for number in range(SCHEDULES):
        schedule = Schedule(
            f"s{number}", "task", begun, every=float(STEP), next_at=begun + timedelta(seconds=STEP),
            misfire=Misfire.ALL, misfire_limit=10_000, misfire_age=30 * 86_400.0,
        )  # fmt: skip
        assert engine.save(schedule, before=None).done
        yield from ((schedule.name, begun + timedelta(seconds=STEP * place)) for place in range(1, each + 1))


def _over(engine: Engine, last: datetime) -> bool:
    return all(schedule.next_at is not None and schedule.next_at > last for schedule in engine.records(Schedule))


def _made(engine: Engine, last: datetime) -> Iterator[tuple[str, datetime]]:
    cursor: str | None = None
    while True:
        page = engine.find(JobFilter(), limit=500, cursor=cursor)
        for job in page.jobs:
            tick = job.tick
            assert tick is not None, f"no schedule made {job}"
            if tick <= last:
                yield str(job.schedule), tick
        if (cursor := page.cursor) is None:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=stores.KINDS, action="append")
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    asked = parser.parse_args()
    bad = 0
    for kind in asked.engine or stores.KINDS:
        with tempfile.TemporaryDirectory() as folder, stores.fresh_store(kind, Path(folder)) as url:
            found = race(url, asked.ticks, asked.kills)
        bad += len(found.problems)
        verdict = "PASS" if not found.problems else "FAIL"
        print(f"{verdict} {kind}: {len(found.made):,} ticks, {found.killed} kills, {found.seconds:.1f} s", flush=True)
        for line in found.problems[:20]:
            print(f"  {line}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
