"""Real processes, real signals: workers are killed and frozen while they hold jobs, then every promise is checked.

python3 dev.py chaos --engine sqlite --kills 5000 --pauses 5000
python3 dev.py chaos --engine postgres --kills 5000 --pauses 5000 --restarts 50 --terminations 500
python3 dev.py chaos --engine dynamodb --kills 5000 --pauses 5000 --troubles 50

A kill counts only if its victim held a running lease when it died. A pause (SIGSTOP, later SIGCONT) counts only if it
was longer than the lease and a job of its victim was claimed again before SIGCONT: only then is there a zombie, and
only a zombie can try a fence. Restarts, alternately `fast` and `immediate`, and terminations of connections are those
of a server that is at work. Troubles are times in which a DynamoDB is away; from the first one on it also loses,
refuses and fails a few requests in a hundred. Around an outage the bound of recovery counts as checker.Quiet says.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random, randrange

from tests.chaos import figures, notes
from tests.chaos.checker import Trail, gather, trail, violations
from tests.chaos.crew import Crew
from tests.chaos.faults import Aim, Faults
from tests.chaos.nursery import Nursery
from tests.chaos.places import STORES, Store
from treadle import EngineError, Treadle

REPORT_PERIOD = 10.0
DRAIN = 60.0  # seconds for every job to become final when the faults are over
RETIREMENT = 15.0
SHOWN = 20  # violations printed
HARMS = frozenset().union(*(store.harms for store in STORES.values()))


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="treadle-chaos-"))
    try:
        with STORES[options.engine](folder, options) as store:
            problems = Run(options, folder, store).go()
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for problem in problems[:SHOWN]:
        print(f"violation: {problem}")
    if len(problems) > SHOWN:
        print(f"violation: and {len(problems) - SHOWN} more")
    if problems or options.keep:
        print(f"store, notes and logs: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"verdict: {f'FAIL ({len(problems)} violations)' if problems else 'PASS'}", flush=True)
    return int(bool(problems))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=STORES, default="sqlite")
    parser.add_argument("--kills", type=int, default=50, help="kills that must count")
    parser.add_argument("--pauses", type=int, default=50, help="pauses that must count")
    parser.add_argument("--restarts", type=int, default=0, help="restarts of the server")
    parser.add_argument("--troubles", type=int, default=0, help="absences of a DynamoDB that has faults besides")
    parser.add_argument("--terminations", type=int, default=0, help="connections to terminate at the server")
    parser.add_argument("--latency", type=int, default=0, help="milliseconds more for each answer of a DynamoDB")
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds")
    parser.add_argument("--bound", type=float, default=2.0, help="seconds past its lease until a job is claimed again")
    parser.add_argument("--seed", type=int, default=randrange(10**6), help="of the harness; the machine adds its own")
    parser.add_argument("--minutes", type=float, help="give up the faults after this time")
    parser.add_argument("--keep", action="store_true", help="keep the store and the notes of a clean run too")
    options = parser.parse_args(arguments)
    if options.minutes is None:
        outages = options.restarts + options.troubles
        options.minutes = 2 + (options.kills + options.pauses) / 30 + outages / 10 + options.terminations / 200
    for harm in sorted(HARMS - STORES[options.engine].harms):
        if getattr(options, harm):
            able = " or ".join(name for name, store in STORES.items() if harm in store.harms)
            parser.error(f"{options.engine} can have no {harm}; use --engine {able}")
    return options


class Run:
    """One run, from the first fork to the last check."""

    def __init__(self, options: argparse.Namespace, folder: Path, store: Store) -> None:
        self._options = options
        self._folder = folder
        self._store = store
        self._started = self._told = time.monotonic()
        deadline = self._started + options.minutes * 60
        self._aim = Aim(
            options.kills,
            options.pauses,
            options.restarts,
            options.troubles,
            options.terminations,
            options.workers,
            options.lease,
            options.bound,
            deadline,
        )

    def go(self) -> list[str]:
        """Run, print the figures, and return every broken promise, a sentence each."""
        options, folder = self._options, self._folder
        for name in [name for name in os.environ if name.startswith("TREADLE_")]:
            del os.environ[name]
        os.chdir(folder)  # no treadle.toml here
        crew = Crew(self._store.url, folder, options.lease, options.seed)
        crew.prepare()
        roles = {f"w{number}": crew.work for number in range(options.workers)} | {"p": crew.produce}
        nursery = Nursery(roles, folder, longest_stop=options.lease * 2 + options.bound + 5)
        app = Treadle(self._store.url("harness"))  # opened after the nursery was forked
        faults = Faults(app, nursery, self._store, self._aim, Random(options.seed))
        try:
            faults.rage(lambda: self._tell("", faults))
            left = faults.calm(folder, DRAIN, lambda: self._tell(", draining", faults))
            problems = [f"{len(left)} jobs are not final {DRAIN:g} s after the last fault"] if left else []
            codes = nursery.retire(RETIREMENT)
            problems += [f"worker {name} did not stop cleanly: {code}" for name, code in codes.items() if code != 0]
            problems += self._check(app, faults)
        except EngineError as error:
            problems = [f"the store failed the harness: {error}; {self._store.damage()}"]
        finally:
            nursery.close()
            app.close()
        return problems

    def _tell(self, phase: str, faults: Faults) -> None:
        if time.monotonic() - self._told >= REPORT_PERIOD:
            self._told = time.monotonic()
            done = f"kills {faults.kills}/{self._aim.kills}, pauses {faults.taken_over}/{self._aim.pauses}"
            if self._aim.outages:
                done += f", outages {len(faults.outages)}/{self._aim.outages}"
            print(f"{self._told - self._started:6.0f} s  {done}{phase}", flush=True)

    def _check(self, app: Treadle, faults: Faults) -> list[str]:
        """Print the figures; every broken promise."""
        options = self._options
        found, trails = gather(notes.read(self._folder), stamps_first=self._store.stamps_first), _trails(app)
        problems = [*violations(trails, found, options.lease, self._store.lag), *sorted(faults.strange)]
        damage = self._store.damage()
        told = [
            *figures.of_faults(faults, self._aim),
            figures.of_jobs(trails, found),
            figures.of_recovery(trails, faults, options.lease, options.bound),
            figures.of_leases(trails, faults, options.lease),
            figures.of_zombies(found, self._folder, faults.pauses),
            figures.of_poison(trails, faults.crashes),
            figures.of_processes(found, faults.deaths, self._folder),
            figures.Figure(f"store: {damage or 'whole'}", [f"the store is damaged: {damage}"] if damage else []),
        ]
        elapsed = time.monotonic() - self._started
        print(
            f"chaos on {options.engine}: {options.workers} workers, lease {options.lease:g} s, seed {options.seed}, "
            f"{elapsed:.0f} s"
        )
        for figure in told:
            print(figure.line)
            problems += figure.problems
        print(f"violations: {len(problems)}")
        return problems


def _trails(app: Treadle) -> dict[str, Trail]:
    """Every job in the store with its audit trail."""
    trails: dict[str, Trail] = {}
    page = app.find(limit=500)
    while True:
        trails.update((job.id, trail(job, app.engine.events(job.id))) for job in page.jobs)
        if page.cursor is None:
            return trails
        page = app.find(limit=500, cursor=page.cursor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
