"""The browser of the tests: the machine's own Chromium, or one that is installed here."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.support.server import is_root

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@cache
def chromium() -> str:
    """The program. TREADLE_TEST_CHROMIUM names one; else it is looked for, and else it is installed."""
    given = os.environ.get("TREADLE_TEST_CHROMIUM")
    tried = []
    for way in (lambda: given, _on_path, _downloaded, _from_debian, _from_playwright, _from_npm):
        found = way()
        if found and Path(found).is_file():
            return found
        tried.append(getattr(way, "__name__", "TREADLE_TEST_CHROMIUM").strip("_").replace("_", " "))
    raise RuntimeError(f"no Chromium: tried {', '.join(tried)}. Install one, or name it in TREADLE_TEST_CHROMIUM.")


def _on_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def _downloaded() -> str | None:
    """One that Playwright has downloaded before."""
    found = sorted((Path.home() / ".cache" / "ms-playwright").glob("chromium-*/chrome-*/chrome"))
    return str(found[-1]) if found else None


def _from_debian() -> str | None:
    if not is_root() or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", "fonts-liberation")
    for command in (install, ("apt-get", "update", "-q"), install):
        done = subprocess.run(command, capture_output=True, env=environment, timeout=600, check=False)
        if command is install and done.returncode == 0:
            break
    return _on_path()


def _from_playwright() -> str | None:
    command = [sys.executable, "-m", "playwright", "install", "chromium", *(["--with-deps"] if is_root() else [])]
    subprocess.run(command, capture_output=True, timeout=600, check=False)
    return _downloaded()


def _from_npm() -> str | None:
    """A build for machines without a desktop, which brings its libraries along."""
    folder = Path(__file__).parents[2] / ".cache" / "chromium"
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    install = ("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "@sparticuz/chromium")
    subprocess.run(install, capture_output=True, timeout=600, check=False)
    script = "import('@sparticuz/chromium').then(async (it) => console.log(await it.default.executablePath()))"
    told = subprocess.run(("node", "-e", script), capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    return told.stdout.strip() or None
