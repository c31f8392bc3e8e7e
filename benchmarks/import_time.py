"""How long `import treadle` takes, beside `import asyncio`: CPU time of fresh processes, the median of many.

    python -m benchmarks.import_time [--runs 20]

Compiled files are kept in a folder of their own, so that what is measured is loading, never compiling. The second line
is what an application does; the ratio of an interpreter that imports nothing is part of each.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

YARDSTICK = "import asyncio"
STATEMENTS = ("pass", YARDSTICK, "import treadle", "from treadle import Treadle", "from treadle import *")


def cpu_seconds(statement: str, environment: dict[str, str]) -> float:
    """The CPU time of a Python that runs this statement and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(runs: int) -> dict[str, float]:
    """The median of each statement, taken in turns."""
    with tempfile.TemporaryDirectory() as compiled:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = compiled
        taken: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
        for run in range(runs + 1):
            for statement in STATEMENTS:
                seconds = cpu_seconds(statement, environment)
                if run:  # the first one compiles
                    taken[statement].append(seconds)
    return {statement: statistics.median(times) for statement, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    medians = measure(parser.parse_args().runs)
    for statement, seconds in medians.items():
        print(f"{statement:30} {seconds * 1000:6.1f} ms   {seconds / medians[YARDSTICK]:5.2f} x {YARDSTICK}")


if __name__ == "__main__":
    main()
