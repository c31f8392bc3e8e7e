"""Set up treadle and run it, with nothing but Python.

python3 dev.py demo [args]           a small queue at work
python3 dev.py check [--all]         an answer in 30 seconds; --all: every test that needs no server
python3 dev.py test [pytest args]    every check and every test; with arguments, only pytest
    --engine NAME                    only the tests on this store and those without one: sqlite, postgres or dynamodb
    --changed                        only the tests of what differs from main
    --long                           races, crowds, walks and generated inputs at full size
    --python 3.13                    with another Python of this machine, in a venv of its own; of bench, too
python3 dev.py requirements [args]   which requirement is proved by which test; --markdown 002 prints the matrix
python3 dev.py pages                 write the pages of docs/ that are printed from something else
python3 dev.py mutants [args]        break the code on purpose and see that the tests notice
python3 dev.py chaos [args]          kill, stall and restart workers under load
python3 dev.py walk [args]           long random walks through the engine contract
python3 dev.py faults [args]         thousands of operations on a DynamoDB that throttles, fails and loses answers
python3 dev.py ticks [args]          when schedules fire, in every time zone, against a clock walked minute by minute
python3 dev.py timekeepers [args]    eight processes fire the same schedules while they are killed
python3 dev.py browser [args]        the dashboard in Chromium: hostile text, axe on every page, pictures; see --help
python3 dev.py badinputs [args]      thousands of wrong commands, settings and files, each refused in one line
python3 dev.py bench [args]          how fast it is, beside bare SQL; --quick ends in a minute, --help tells the rest
python3 dev.py oracles [names]       treadle.testing.fakes, judged by the vendors' own clients; see --planted
python3 dev.py lock [uv args]        write requirements.lock and the clients' pins anew; --upgrade takes newer versions

The first run makes .venv and fills it from requirements.lock; later runs start at once.
"""

from __future__ import annotations  # an old Python must get as far as being told that it is old

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / os.environ.get("TREADLE_VENV", ".venv")
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"
STAMP = VENV / ".installed"
UV = "uv==0.13.7"
ORACLES = ROOT / ".venv-oracles"
CLIENTS = ROOT / "tests" / "oracles" / "requirements.txt"

SCRIPTS = {
    "check": "tests.support.check",
    "test": "tests.support.suite",
    "requirements": "tests.support.requirements",
    "pages": "tests.support.pages",
    "mutants": "tests.mutants.run",
    "chaos": "tests.chaos.run",
    "walk": "tests.engines.conformance.walk",
    "faults": "tests.engines.dynamodb.faulty",
    "ticks": "tests.schedules.ticks",
    "timekeepers": "tests.race.timekeeping",
    "browser": "tests.browser.run",
    "badinputs": "tests.cli.bad_inputs",
    "bench": "benchmarks.run",
}


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - the reader may well have an older one
        sys.exit(f"treadle needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    keep_bytecode()
    if command == "lock":
        return lock(rest)
    if command == "demo":
        install()
        hand_over(BIN / "treadle", "demo", *rest)
    if command in ("test", "bench") and "--python" in rest:
        become(command, rest)
    if command == "oracles":
        python = install_clients()
        os.environ["PYTHONPATH"] = str(ROOT / "src")
        hand_over(python, "-m", "tests.oracles.run", *rest)
    if command in SCRIPTS:
        install()
        hand_over(PYTHON, "-m", SCRIPTS[command], *rest)
    print(__doc__, file=sys.stderr)
    return 2


def keep_bytecode() -> None:
    """The tests start hundreds of processes: each would compile all it imports if nobody kept that."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".cache" / "pycache"))


def become(command: str, arguments: list[str]) -> NoReturn:
    """Start anew with the Python that `--python` names, and its own venv."""
    place = arguments.index("--python")
    version, rest = "".join(arguments[place + 1 : place + 2]), arguments[:place] + arguments[place + 2 :]
    python = found_python(version)
    if python is None:
        sys.exit(f"--python {version!r}: not found on this machine. Give a version such as 3.13 that is on PATH.")
    os.environ["TREADLE_VENV"] = f".venv-{version}"
    hand_over(python, __file__, command, *rest)


def found_python(version: str) -> str | None:
    """A Python of that version: on PATH, where a name may stand for one that is not installed, or of pyenv."""
    places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    asked = ("-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    for place in filter(None, places):
        told = subprocess.run((str(place), *asked), capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:
            return str(place)
    return None


def lock(arguments: list[str]) -> int:
    """Pin with hashes what treadle needs to run, to be tested and to be built; and the clients of the oracles."""
    import tomllib  # noqa: PLC0415 - not there before Python 3.11, which main() has asked for by now

    build = tomllib.loads(PROJECT.read_text())["build-system"]["requires"]
    compile_ = ("pip", "compile", "--quiet", "--universal", "--python-version", "3.11")
    custom = ("--custom-compile-command", "python3 dev.py lock", *arguments)
    sources = (PROJECT.name, "--all-extras", "--group", "test", "-")
    run(uv(), *compile_, "--generate-hashes", *sources, "--output-file", LOCK.name, *custom, given="\n".join(build))
    run(uv(), *compile_, "--no-annotate", CLIENTS.with_suffix(".in"), "--output-file", CLIENTS, *custom)
    return 0


def install() -> None:
    """Bring .venv in line with the lock; does nothing when neither it nor pyproject.toml has changed."""
    wanted = hashlib.sha256(LOCK.read_bytes() + PROJECT.read_bytes()).hexdigest()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    to_venv = (uv(), "pip", "install", "--quiet", "--python", PYTHON)
    run(*to_venv, "--require-hashes", "--requirement", LOCK)
    # The lock holds the build backend too; in isolation uv would fetch another one, unpinned.
    run(*to_venv, "--no-deps", "--no-build-isolation", "--editable", ROOT)
    STAMP.write_text(wanted)


def install_clients() -> Path:
    """The Python of an environment that has the vendors' clients, and nothing of treadle's lock."""
    python, stamp = ORACLES / PYTHON.relative_to(VENV), ORACLES / STAMP.name
    wanted = hashlib.sha256(CLIENTS.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        run(uv(), "venv", "--quiet", "--clear", "--python", sys.executable, ORACLES)
        run(uv(), "pip", "install", "--quiet", "--python", python, "--requirement", CLIENTS)
        stamp.write_text(wanted)
    return python


def uv() -> str:
    """The uv on PATH, else one of our own inside .venv; makes .venv first if need be."""
    found = shutil.which("uv")
    own = BIN / ("uv.exe" if os.name == "nt" else "uv")
    if found:
        if not PYTHON.exists():
            run(found, "venv", "--quiet", "--clear", "--python", sys.executable, VENV)
        return found
    if not own.exists():
        if importlib.util.find_spec("ensurepip") is None and not apt_install("python3-venv"):
            sys.exit("This Python cannot make a venv. Install python3-venv (or uv) and run this again.")
        run(sys.executable, "-m", "venv", "--clear", VENV)
        run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    return str(own)


def apt_install(package: str) -> bool:
    """Install what Debian and its kin ship apart from Python, where we may; whether it is there now."""
    apt = shutil.which("apt-get")
    if apt is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    run(apt, "update", "-qq")
    run(apt, "install", "-y", "-qq", "--no-install-recommends", package)
    return True


def run(*command: str | Path, given: str | None = None) -> None:
    print("+", *(shown(part) for part in command), flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment(), input=given, text=True, check=False)
    if done.returncode:
        sys.exit(f"That failed with code {done.returncode}; nothing further was done.")


def shown(part: str | Path) -> str:
    path = Path(part)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(part)


def environment() -> dict[str, str]:
    """Ours, plus what uv has to be told because it reads none of pip's settings."""
    told = {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    for setting, variable in {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}.items():
        value = pip_setting(setting)
        if value:
            told[variable] = value
    return told | os.environ


def pip_setting(name: str) -> str:
    from_variable = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_variable:
        return from_variable
    asked = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def hand_over(*command: str | Path) -> NoReturn:
    """Become that command, so that signals and the exit code are its own."""
    os.chdir(ROOT)
    words = [str(part) for part in command]
    if os.name == "nt":
        sys.exit(subprocess.call(words))
    sys.stdout.flush()
    os.execv(words[0], words)  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
