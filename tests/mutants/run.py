"""Do the tests see a broken promise? Plants one bug at a time in a copy of the source and runs the promise's own cases.

    python3 dev.py mutants [--only NAME] [--engine postgres] [--jobs 2]
    python3 dev.py mutants --with-check     how many of those on SQLite `dev.py check` alone would have noticed

A mutant is killed when a case of the promise it breaks fails. One that survives, or whose text is no longer in the
source, fails the run. A list, or a mutant in it, may name the `engine` on which its cases run; else they run on SQLite.
The product has no switch for any of this: the copy is patched, the tests see it by PYTHONPATH.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.support.check import CHECKED

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = ROOT / "src"
SELECT = {
    "sqlite": "not postgres and not dynamodb and not ministack",
    "postgres": "postgres and not postgres15",
    "dynamodb": "dynamodb and not ministack",
}  # by engine: the cases, for pytest -k
FAILED = re.compile(r"^FAILED tests/(\S+?\.py)::([^\s\[]+)", re.MULTILINE)


class Mutant(NamedTuple):
    """A bug to plant: `old` stands once in `file` and becomes `new`; `cases` are the tests that must notice."""

    name: str
    promise: str
    cases: list[str]
    file: str
    old: str
    new: str
    planted_by: str
    engine: str = "sqlite"

    def problem(self) -> str:
        """Why this mutant cannot be planted, or nothing."""
        if self.engine not in SELECT:
            return f"there is no engine {self.engine}"
        found = (SOURCE / "treadle" / self.file).read_text("utf-8").count(self.old)
        missing = [case for case in self.cases if not (ROOT / "tests" / case).exists()]
        if missing:
            return f"there is no tests/{missing[0]}"
        return "" if found == 1 else f"its text stands {found} times in {self.file}, not once"


class Fate(NamedTuple):
    mutant: Mutant
    killed_by: str  # the first case that failed; empty if it survived
    why: str
    seconds: float


def mutants() -> list[Mutant]:
    """Every mutant of the lists beside this file."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        listed = tomllib.loads(path.read_text("utf-8"))
        common = {name: value for name, value in listed.items() if name != "mutant"}
        found += [Mutant(planted_by=path.stem, **{**common, **table}) for table in listed["mutant"]]
    return found


def fate(mutant: Mutant, cases: Sequence[str] = ()) -> Fate:
    """Plant one mutant and run its cases, or these."""
    start = time.monotonic()
    if problem := mutant.problem():
        return Fate(mutant, "", problem, 0.0)
    run = outcome(cases or mutant.cases, mutant.engine, mutant)
    killers = FAILED.findall(run.stdout)
    why = "" if killers else "survived" if run.returncode == 0 else f"pytest itself failed:\n{run.stdout[-800:]}"
    return Fate(mutant, "::".join(killers[0]) if killers else "", why, time.monotonic() - start)


def outcome(cases: Sequence[str], engine: str, mutant: Mutant | None = None) -> subprocess.CompletedProcess[str]:
    """Run these cases on this engine against a copy of the source, with the mutant in it if there is one."""
    with tempfile.TemporaryDirectory(prefix="treadle-mutant-") as scratch:
        copy = Path(scratch) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            target = copy / "treadle" / mutant.file
            target.write_text(target.read_text("utf-8").replace(mutant.old, mutant.new), "utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-rf", "--timeout=120", "--long"]
        return subprocess.run(
            [*command, "-k", SELECT[engine], f"--basetemp={scratch}/tmp", *(f"tests/{case}" for case in cases)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="a part of the name")
    parser.add_argument("--engine", choices=SELECT, help="only the mutants whose cases run on this engine")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--with-check", action="store_true", help="run the tests of `dev.py check` instead")
    options = parser.parse_args()
    if options.with_check:
        return noticed_by_check(options.jobs, options.only or "")
    chosen = [mutant for mutant in mutants() if options.engine in (None, mutant.engine)]
    chosen = [mutant for mutant in chosen if not options.only or options.only in mutant.name]
    engines = sorted({mutant.engine for mutant in chosen})
    cases = [sorted({case for mutant in chosen if mutant.engine == name for case in mutant.cases}) for name in engines]
    start = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:
        healthy, fates = pool.map(outcome, cases, engines), pool.map(fate, chosen)
        for run in healthy:
            if run.returncode:
                pool.shutdown(cancel_futures=True)
                print(
                    f"the cases fail without any mutant:\n{run.stdout[-2000:]}\nverdict: FAIL, no mutant was looked at"
                )
                return 1
        for end in fates:
            mark = "killed  " if end.killed_by else "SURVIVED"
            print(f"{mark} {end.mutant.name:<38} {end.seconds:5.1f} s  {end.killed_by or end.why}", flush=True)
            if not end.killed_by:
                survivors.append(end.mutant.name)
    strangers = sum(mutant.planted_by in ("strangers", "postgres") for mutant in chosen)
    print(f"{len(chosen)} mutants ({strangers} by people who had not read the tests), {time.monotonic() - start:.0f} s")
    print(f"verdict: {'PASS' if not survivors else 'FAIL, survivors: ' + ', '.join(survivors)}")
    return 1 if survivors or not chosen else 0


def noticed_by_check(jobs: int, only: str) -> int:
    """Say how many mutants on SQLite the tests of `dev.py check` would notice."""
    os.environ["TREADLE_TEST_SERVERS"] = "none"
    _, marked, *paths = CHECKED
    os.environ["PYTEST_ADDOPTS"] = f"-m '{marked}'"
    cases = [path.removeprefix("tests/") for path in paths]
    chosen = [mutant for mutant in mutants() if mutant.engine == "sqlite" and only in mutant.name]
    killed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for end in pool.map(lambda mutant: fate(mutant, cases), chosen):
            killed += bool(end.killed_by)
            print(f"{'noticed' if end.killed_by else 'missed '} {end.mutant.name:<38} {end.killed_by}", flush=True)
    print(f"dev.py check alone notices {killed} of {len(chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
