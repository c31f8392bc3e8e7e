"""The Pythons with Django: the one that runs the tests, and for Django 6, which needs 3.12, one of its own."""

import fcntl
import hashlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import dev

ROOT = Path(__file__).resolve().parents[2]
FOR_DJANGO_6 = ("3.13", "3.12")


@cache
def other_pythons() -> tuple[str, ...]:
    """The Pythons of this machine that can have Django 6; this one, if it can."""
    if sys.version_info >= (3, 12):
        return (sys.executable,)
    return tuple(found for version in FOR_DJANGO_6 if (found := dev.found_python(version)))


@cache
def kinds() -> tuple[str, ...]:
    """What tests run with: the Django that is installed here, and Django 6 if this machine has a Python for it."""
    return ("here", "django6") if sys.version_info < (3, 12) and other_pythons() else ("here",)


@cache
def python(kind: str) -> str:
    """The Python of this kind. That for Django 6 is made by the first test that asks, with what the lock names."""
    if kind == "here":
        return sys.executable
    lock = ROOT / "requirements.lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["django"], *extras["postgres"]]
    venv = ROOT / ".venv-django6"
    stamp, made_of = venv / ".installed", hashlib.sha256(lock.read_bytes() + repr(wanted).encode()).hexdigest()
    own = venv / "bin" / "python"
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache" / "django6.lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != made_of:
            run(dev.uv(), "venv", "--quiet", "--clear", "--python", other_pythons()[0], str(venv))
            pins = ROOT / ".cache" / "django6.txt"
            pins.write_text(without_hashes(lock.read_text()))
            run(dev.uv(), "pip", "install", "--quiet", "--python", str(own), "--constraint", str(pins), *wanted)
            stamp.write_text(made_of)
    return str(own)


def without_hashes(lock: str) -> str:
    """The versions of a lock file: uv wants hashes for all requirements or for none."""
    return "\n".join(re.findall(r"^[\w.\[\]-]+==[^\\\n]+", lock, re.MULTILINE))


def run(*command: str) -> None:
    done = subprocess.run(command, env=dev.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
