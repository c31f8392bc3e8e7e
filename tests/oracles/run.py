"""`python3 dev.py oracles`: each stand-in of treadle.testing.fakes, judged by its vendor's own client.

python3 dev.py oracles                  all of them
python3 dev.py oracles resend slack     only these
python3 dev.py oracles --planted        break each stand-in on purpose and see that its vendor's client notices

The clients are in an environment of their own, .venv-oracles, as tests/oracles/requirements.txt pins them.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from tests.oracles.planted import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
FAKES = Path("src", "treadle", "testing", "fakes")
NAMES = sorted(path.stem.removeprefix("with_") for path in Path(__file__).parent.glob("with_*.py"))


def main(arguments: list[str]) -> int:
    wanted = [word for word in arguments if not word.startswith("-")] or NAMES
    unknown = sorted({*wanted, *(word for word in arguments if word.startswith("-"))} - {*NAMES, "--planted"})
    if unknown:
        print(f"{', '.join(unknown)}: not known; take some of {', '.join(NAMES)}, or --planted", file=sys.stderr)
        return 2
    passed, failed = planted(wanted) if "--planted" in arguments else judged(wanted)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def judged(wanted: list[str]) -> tuple[int, int]:
    """Run the tests of these vendors, one after the other."""
    passed = failed = 0
    for vendor in wanted:
        started = time.monotonic()
        module = importlib.import_module(f"tests.oracles.with_{vendor}")
        tests = {name: test for name, test in vars(module).items() if name.startswith("test_") and callable(test)}
        wrong = [name for name, test in tests.items() if not holds(vendor, name, test)]
        print(f"{vendor}: {len(tests) - len(wrong)} of {len(tests)}, {time.monotonic() - started:.1f} s", flush=True)
        passed, failed = passed + len(tests) - len(wrong), failed + len(wrong)
    return passed, failed


def holds(vendor: str, name: str, test: object) -> bool:
    """Whether this test passes; says why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the clients' own
            test()  # type: ignore[operator]
    except Exception:  # whatever the client raises is a disagreement
        print(f"\n{vendor}: {name}\n{traceback.format_exc()}", flush=True)
        return False
    return True


def planted(wanted: list[str]) -> tuple[int, int]:
    """Run these vendors' tests on copies with one bug each; a bug that nobody notices is a failure."""
    noticed = [notices(bug) for bug in BUGS if bug.vendor in wanted]
    return sum(noticed), len(noticed) - sum(noticed)


def notices(bug: Bug) -> bool:
    with tempfile.TemporaryDirectory(prefix="treadle-oracles-") as place:
        for part in ("src", "tests/__init__.py", "tests/oracles", "tests/testing"):
            target = Path(place, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, target)
        path = Path(place, FAKES, bug.file)
        path.write_text(bug.planted_in(path.read_text("utf-8")), "utf-8")
        command = (sys.executable, "-m", "tests.oracles.run", bug.vendor)
        surroundings = {"PYTHONPATH": str(Path(place, "src")), "PATH": os.environ.get("PATH", os.defpath)}
        done = subprocess.run(command, cwd=place, env=surroundings, capture_output=True, text=True, check=False)
    noticed = done.returncode == 1 and " failed" in done.stdout
    print(f"{bug.vendor}: {'noticed' if noticed else 'NOT NOTICED'}: {bug.what}", flush=True)
    return noticed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
