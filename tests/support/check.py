"""`python3 dev.py check`: the answer of half a minute. Static checks, and of the tests without a server a part.

    python3 dev.py check          those that catch most
    python3 dev.py check --all    every test that needs no server

How much the part catches is measured: `python3 dev.py mutants --with-check`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.support.suite import ROOT, STATIC, Outcome, in_venv, report

SERVERLESS = "not server"
CHECKED = (
    "-m", "not server and not slow", "tests/model", "tests/engines/conformance", "tests/tasks",
    "tests/worker/test_loop.py", "tests/worker/test_slots.py", "tests/worker/test_holdings.py",
    "tests/app/test_enqueue.py", "tests/app/test_keys.py",
)  # fmt: skip
WIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


def main(arguments: list[str]) -> int:
    os.environ["TREADLE_TEST_SERVERS"] = "none"  # a test that starts one all the same fails
    selected = ("-m", SERVERLESS) if "--all" in arguments else CHECKED
    with ThreadPoolExecutor(1) as beside:
        static = beside.submit(lambda: [quietly(name, command) for name, command in STATIC.items()])
        counted = beside.submit(quietly, "count", ("pytest", "--collect-only", "-m", SERVERLESS))
        tests = shown("pytest", ("pytest", *WIDE, *selected))
        outcomes = [*static.result(), tests]
    for outcome in outcomes[:-1]:
        if outcome.code:
            print(f"\n== {outcome.name}\n{outcome.output}")
    print(f"\nran {number(tests.output):,} of the {number(counted.result().output):,} tests that need no server")
    return report(outcomes)


def quietly(name: str, command: Iterable[str]) -> Outcome:
    """Run a check and keep its output to itself."""
    started = time.monotonic()
    done = subprocess.run(
        in_venv(command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Outcome(name, done.returncode, time.monotonic() - started, done.stdout)


def shown(name: str, command: Iterable[str]) -> Outcome:
    """Run a check and show its output as it comes."""
    started, lines = time.monotonic(), []
    with subprocess.Popen(in_venv(command), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return Outcome(name, process.returncode, time.monotonic() - started, "".join(lines))


def number(output: str) -> int:
    """How many tests pytest's last line speaks of: ran, or collected."""
    last = output.strip().rpartition("\n")[2]
    return sum(int(found) for found in re.findall(r"(\d+)(?:/\d+)? (?:passed|failed|errors?|tests? collected)", last))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
