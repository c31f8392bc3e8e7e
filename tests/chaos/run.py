"""Real processes, real signals: workers are killed and frozen while they hold jobs, and every promise is checked after.

python3 dev.py chaos --engine sqlite --kills 5000 --pauses 5000

A kill counts only if its victim held a running lease when it died. A pause (SIGSTOP, later SIGCONT) counts only if a
job of its victim was claimed again before SIGCONT: only then is there a zombie, and only a zombie can try a fence.
"""

import argparse
import math
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random, randrange
from typing import NamedTuple

import notes
from checker import Notes, Trail, gather, recovery, trail, violations
from crew import POISONED, Crew
from faults import PATIENCE, Aim, Crash, Faults
from nursery import KILLED, Death, Nursery
from treadle import EngineError, Job, Treadle

REPORT_PERIOD = 10.0
DRAIN = 60.0  # seconds for every job to become final when the faults are over
RETIREMENT = 15.0
GRACE = 1.0  # seconds by which the slowest recovery may pass the bound: this is no real-time machine
SHOWN = 20  # violations printed


class Store(NamedTuple):
    """Where a kind of store is made for a run, and what it says of its own health afterwards."""

    url: Callable[[Path], str]
    damage: Callable[[Path], str]


def _sqlite_damage(folder: Path) -> str:
    connection = sqlite3.connect(folder / "treadle.db")
    try:
        found = [row[0] for row in connection.execute("pragma integrity_check")]
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    finally:
        connection.close()
    return "" if found == ["ok"] else "; ".join(found)


STORES = {"sqlite": Store(lambda folder: f"sqlite:///{folder}/treadle.db", _sqlite_damage)}


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="treadle-chaos-"))
    run = Run(options, folder)
    try:
        problems = run.go()
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for problem in problems[:SHOWN]:
        print(f"violation: {problem}")
    if len(problems) > SHOWN:
        print(f"violation: and {len(problems) - SHOWN} more")
    if problems or options.keep:
        print(f"store, notes and logs: {folder} (seed {options.seed})")
    else:
        shutil.rmtree(folder)
    print(f"verdict: {f'FAIL ({len(problems)} violations)' if problems else 'PASS'}", flush=True)
    return int(bool(problems))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=STORES, default="sqlite")
    parser.add_argument("--kills", type=int, default=50, help="kills that must count")
    parser.add_argument("--pauses", type=int, default=50, help="pauses that must count")
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds")
    parser.add_argument("--seed", type=int, default=randrange(10**6), help="of the harness; the machine adds its own")
    parser.add_argument("--minutes", type=float, help="give up the faults after this time")
    parser.add_argument("--keep", action="store_true", help="keep the store and the notes of a clean run too")
    options = parser.parse_args(arguments)
    if options.minutes is None:
        options.minutes = 2 + (options.kills + options.pauses) / 30
    return options


class Run:
    """One run, from the first fork to the last check."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._store = STORES[options.engine]
        self._started = self._told = time.monotonic()
        self._phase = "faults"

    def go(self) -> list[str]:
        """Run, print the figures, and return every broken promise."""
        options, folder = self._options, self._folder
        for name in [name for name in os.environ if name.startswith("TREADLE_")]:
            del os.environ[name]
        os.chdir(folder)  # no treadle.toml here
        url = self._store.url(folder)
        crew = Crew(url, folder, options.lease, options.seed)
        places = {f"w{number}": crew.work for number in range(options.workers)} | {"p": crew.produce}
        nursery = Nursery(places, folder, longest_stop=options.lease * 2 + PATIENCE + 5)
        app = Treadle(url)  # opened after the nursery was forked
        deadline = time.monotonic() + options.minutes * 60
        aim = Aim(options.kills, options.pauses, options.lease, deadline)
        self._faults = faults = Faults(app, nursery, aim, Random(options.seed))
        problems: list[str] = []
        try:
            faults.rage(self._tell)
            self._phase = "draining"
            left = faults.calm(folder, DRAIN, self._tell)
            if left:
                problems.append(f"{len(left)} jobs are not final {DRAIN:g} s after the last fault")
            codes = nursery.retire(RETIREMENT)
            problems += [f"worker {name} did not stop cleanly: {code}" for name, code in codes.items() if code != 0]
        except EngineError as error:
            problems.append(f"the store failed the harness: {error}")
        finally:
            nursery.close()
        app.close()
        return problems + self._check(url)

    def _tell(self) -> None:
        if time.monotonic() - self._told >= REPORT_PERIOD:
            self._told = time.monotonic()
            options, faults = self._options, self._faults
            elapsed = self._told - self._started
            print(
                f"{elapsed:6.0f} s  {self._phase}: kills {faults.kills}/{options.kills}, "
                f"pauses {faults.taken_over}/{options.pauses}",
                flush=True,
            )

    def _check(self, url: str) -> list[str]:
        """Print the figures; every broken promise."""
        options, faults = self._options, self._faults
        app = Treadle(url)
        found = gather(notes.read(self._folder))
        trails = _trails(app)
        app.close()
        problems = list(violations(trails, found, options.lease))
        problems += _unasked_deaths(found, faults.deaths)
        damage = self._store.damage(self._folder)
        if damage:
            problems.append(f"the store is damaged: {damage}")
        stderr = (self._folder / "stderr.txt").read_text() if (self._folder / "stderr.txt").exists() else ""
        if stderr:
            problems.append(f"a process complained: {stderr[-2000:]}")

        elapsed = time.monotonic() - self._started
        jobs = [each.job for each in trails.values()]
        print(
            f"chaos on {options.engine}: {options.workers} workers, lease {options.lease:g} s, seed {options.seed}, "
            f"{elapsed:.0f} s"
        )
        problems += self._faults_told()
        states = Counter(job.state.value for job in jobs)
        print(
            f"jobs: {len(jobs)} ({', '.join(f'{n} {state}' for state, n in sorted(states.items()))}), "
            f"{len(found.acknowledged)} acknowledged, {sum(job.attempt for job in jobs)} attempts"
        )
        problems += _recoveries_told(trails, faults.crashes, jobs)
        _zombies_told(found, self._folder, faults)
        _poison_told(trails, faults.crashes)
        print(f"store: {damage or 'whole'}")
        print(f"violations: {len(problems)}")
        return problems

    def _faults_told(self) -> list[str]:
        options, faults = self._options, self._faults
        ours = [crash for crash in faults.crashes if crash.death.ours]
        producers = sum(death.name.startswith("p") and death.ours for death in faults.deaths)
        print(f"kills: {faults.kills} counted of {len(ours)} tried; {producers} kills of the producer besides")
        others = ", ".join(f"{n} {why}" for why, n in faults.pauses_by_why.items() if why != "counted")
        print(f"pauses: {faults.taken_over} counted of {len(faults.pauses)} tried{f' ({others})' if others else ''}")
        missing = []
        if faults.kills < options.kills:
            missing.append(f"only {faults.kills} of {options.kills} kills in {options.minutes:g} minutes")
        if faults.taken_over < options.pauses:
            missing.append(f"only {faults.taken_over} of {options.pauses} pauses in {options.minutes:g} minutes")
        return missing


def _trails(app: Treadle) -> dict[str, Trail]:
    """Every job in the store with its audit trail."""
    trails: dict[str, Trail] = {}
    page = app.find(limit=500)
    while True:
        trails.update((job.id, trail(job, app.engine.events(job.id))) for job in page.jobs)
        if page.cursor is None:
            return trails
        page = app.find(limit=500, cursor=page.cursor)


def _unasked_deaths(found: Notes, deaths: Sequence[Death]) -> list[str]:
    """Processes that ended although neither the run nor a poison job ended them."""
    return [
        f"process {death.name} ended by itself with {death.code}"
        for death in deaths
        if not death.ours and death.code not in (0, POISONED) and not (death.code == KILLED and _poisoned(found, death))
    ]


def _poisoned(found: Notes, death: Death) -> bool:
    """Whether a poison handler was at work when the process died; its job may have passed on to others by then."""
    at_work = set()
    for what, _, job, attempt, _ in found.order.get(death.name, ()):
        (at_work.add if what == "start" else at_work.discard)((job, attempt))
    return any(found.intended[job] == "poison_coroutine" for job, _ in at_work)


def _recoveries_told(trails: dict[str, Trail], crashes: Sequence[Crash], jobs: Sequence[Job]) -> list[str]:
    answers = [recovery(trails, job) for crash in crashes for job in crash.held]
    problems = [answer for answer in answers if isinstance(answer, str)]
    times = sorted(answer for answer in answers if not isinstance(answer, str))
    late = [seconds for seconds in times if seconds > PATIENCE]
    print(
        f"recovery: {len(times)} jobs of dead workers claimed again, from lease end: p50 {_part(times, 0.5):.2f} s, "
        f"p99 {_part(times, 0.99):.2f} s, max {_part(times, 1):.2f} s; {len(late)} over {PATIENCE:g} s "
        f"({sum(job.crashes for job in jobs)} crashes recovered in all)"
    )
    if _part(times, 0.99) > PATIENCE:
        problems.append(f"p99 of recovery is {_part(times, 0.99):.2f} s past the lease; the bound is {PATIENCE:g} s")
    if _part(times, 1) > PATIENCE + GRACE:
        problems.append(f"a recovery took {_part(times, 1):.2f} s past the lease; the limit is {PATIENCE + GRACE:g} s")
    return problems


def _part(times: Sequence[float], share: float) -> float:
    return times[max(0, math.ceil(len(times) * share) - 1)] if times else 0.0


def _zombies_told(found: Notes, folder: Path, faults: Faults) -> None:
    settles = sum(line[6:] == ["holder", "lost"] for _, line in found.settles)
    extends = sum(line[4] == "lost" for _, line in found.extends)
    reapers = sum(line[6:] == ["recovery", "lost"] for _, line in found.settles)
    said = Counter(
        phrase
        for path in folder.glob("*.log")
        for line in path.read_text().splitlines()
        for phrase in ("its outcome was refused", "could not be renewed")
        if phrase in line
    )
    print(
        f"zombies: {settles} settles and {extends} renewals refused by the store, {reapers} late reapers too; logged: "
        f"{said['its outcome was refused']} outcomes refused, {said['could not be renewed']} attempts given up unasked"
    )


def _poison_told(trails: dict[str, Trail], crashes: Sequence[Crash]) -> None:
    poison = [each.job for each in trails.values() if each.job.task.startswith("poison")]
    exact = sum(job.crashes == job.max_attempts + (job.max_attempts > 1) for job in poison)
    taken = [crash for crash in crashes if not crash.death.ours]
    neighbours = {job.id for crash in taken for job in crash.held if not job.task.startswith("poison")}
    ended = Counter(trails[job].job.state.value for job in neighbours if job in trails)
    print(
        f"poison: {len(poison)} jobs, {sum(job.state.final for job in poison)} ended, {exact} after exactly "
        f"max_attempts + 1 crashes; {len(taken)} processes went with them, of {len(neighbours)} neighbours "
        f"{', '.join(f'{n} {state}' for state, n in sorted(ended.items())) or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
