"""`python3 dev.py test`: everything, or what options and pytest's own arguments select.

python3 dev.py test                       every check and every test
python3 dev.py test tests/model -x        only pytest, with its arguments
python3 dev.py test --engine postgres     only the tests on this store and those without one
python3 dev.py test --changed             only the tests of what differs from main
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

STATIC = {
    "ruff check": ("ruff", "check"),
    "ruff format": ("ruff", "format", "--check"),
    "lint-imports": ("lint-imports",),
    "mypy": ("mypy",),
}
# Most tests wait; a file's tests share their servers; tests/conftest.py says which files come first.
WIDE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")

TESTS_OF = {
    "src/treadle/model/": ("tests/model", "tests/engines/conformance"),
    "src/treadle/engines/sqlite/": ("tests/engines/sqlite", "tests/engines/conformance", "tests/transactions"),
    "src/treadle/engines/postgres/": ("tests/engines/postgres", "tests/engines/conformance", "tests/transactions"),
    "src/treadle/engines/dynamodb/": ("tests/engines/dynamodb", "tests/engines/conformance"),
    "src/treadle/engines/": ("tests/engines",),
    "src/treadle/tasks/": ("tests/tasks", "tests/app"),
    "src/treadle/transactions/": ("tests/transactions",),
    "src/treadle/schedules/": ("tests/schedules", "tests/worker/test_schedules.py", "tests/race/test_tick_race.py"),
    "src/treadle/worker/": ("tests/worker", "tests/race/test_chaos_sample.py"),
    "src/treadle/cli/": ("tests/cli",),
    "src/treadle/testing/": ("tests/testing", "tests/app/test_testing.py", "tests/examples/test_tested_app.py"),
    "src/treadle/demo/": ("tests/cli/test_demo.py", "tests/cli/test_demo_dashboard.py"),
    "src/treadle/server/": ("tests/server", "tests/browser"),
    "src/treadle/client/": ("tests/client",),
    "src/treadle/builtin/": ("tests/builtin", "tests/examples/test_backend.py"),
    "src/treadle/importers/": ("tests/importers",),
    "src/treadle/": ("tests/app", "tests/worker", "tests/cli"),
    "tests/chaos/": ("tests/race/test_chaos_sample.py", "tests/tools"),
    "tests/mutants/": ("tests/tools/test_mutants_are_current.py",),
    "tests/oracles/": ("tests/tools/test_oracles.py",),
    "tests/requirements.toml": ("tests/tools/test_requirements_registry.py",),
    "docs/": ("tests/docs",),
    "README.md": ("tests/docs",),
    "examples/": ("tests/examples", "tests/docs"),
    "benchmarks/": ("tests/tools/test_benchmarks.py",),
    "CHANGELOG.md": (),
    "CONTRIBUTING.md": (),
}
"""The tests of a changed path, by how it begins; the first that fits counts. A test stands for itself."""


class Outcome(NamedTuple):
    name: str
    code: int
    seconds: float
    output: str = ""


def main(arguments: list[str]) -> int:
    if not arguments:
        return report([run(name, command) for name, command in {**STATIC, "pytest": ("pytest", *WIDE)}.items()])
    if "--changed" not in arguments:
        narrow = "-n" in arguments or any((ROOT / word.partition("::")[0]).exists() for word in arguments)
        become_pytest(*(() if narrow else WIDE), *arguments)
    chosen = tests_of(changed())
    print("tests of what differs from main:", *chosen or ["none"], flush=True)
    if chosen:
        become_pytest(*WIDE, *(word for word in arguments if word != "--changed"), *chosen)
    return 0


def run(name: str, command: Iterable[str]) -> Outcome:
    """Run a check where we were called, its output shown as it comes."""
    print(f"\n== {name}", flush=True)
    started = time.monotonic()
    code = subprocess.call(in_venv(command), cwd=ROOT)
    return Outcome(name, code, time.monotonic() - started)


def report(outcomes: list[Outcome]) -> int:
    """Say how each check ended; every one has run, so that one run tells all there is to mend."""
    print()
    for name, code, seconds, _ in outcomes:
        print(f"{'ok' if code == 0 else 'FAILED':8}{name:14}{seconds:7.1f} s")
    return int(any(outcome.code for outcome in outcomes))


def in_venv(command: Iterable[str]) -> list[str]:
    name, *rest = command
    return [str(BIN / name), *rest]


def become_pytest(*arguments: str) -> NoReturn:
    """Signals and the exit code are pytest's own."""
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606 - no shell is what we want


def changed() -> list[str]:
    """The paths that differ from where this branch left main, committed or not."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return sorted({*git("diff", "--name-only", *base), *git("ls-files", "--others", "--exclude-standard")})


def git(*words: str) -> list[str]:
    told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return told.stdout.splitlines() if told.returncode == 0 else []


def tests_of(paths: Iterable[str]) -> list[str]:
    """The tests to run for these paths, none of them twice."""
    found = {test for path in paths for test in _tests_of(path) if (ROOT / test).exists()}
    return sorted(test for test in found if not any(test.startswith(f"{other}/") for other in found))


def _tests_of(path: str) -> tuple[str, ...]:
    place = Path(path)
    if place.parts[0] == "tests" and place.name.startswith("test_"):
        return (path,)
    for beginning, tests in TESTS_OF.items():
        if path.startswith(beginning):
            return tests
    if place.parts[0] == "tests" and len(place.parts) > 2 and place.parts[1] != "support":
        return (str(place.parent),)
    return ("tests",)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
