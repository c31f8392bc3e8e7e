"""The dashboard beside the demo: `treadle serve` on its store, in a process of its own."""

import os
import re
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

from treadle.cli.dev import CHILD
from treadle.cli.serve import check_web
from treadle.demo import tasks
from treadle.errors import NotPossible

PATIENCE = 30.0  # seconds until it must have said where it is
LINK = re.compile(r"sign in (http://\S+)")


class Dashboard:
    """A server for as long as the demo lasts; `link` signs a browser in, once."""

    def __init__(self, folder: Path, url: str) -> None:
        check_web("treadle demo --serve")
        self._folder, self._url = folder, url
        self._process: subprocess.Popen[bytes] | None = None
        self.link = ""

    def start(self) -> None:
        """Start it, and wait until it has printed its link."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TREADLE_")}
        paths = [str(Path(__file__).parents[2]), *filter(None, [inherited.get("PYTHONPATH")])]
        options = [f"--app={tasks.__name__}:app", f"--url={self._url}", "--port=0", "--no-worker"]
        printed = self._folder / "dashboard.log"
        with printed.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", CHILD, *options],
                cwd=self._folder,  # no treadle.toml of yours plays a part here
                env={**inherited, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "500", "NO_COLOR": "1"},
                stdin=subprocess.PIPE,  # closed when we are gone, however that happens: nobody is left behind
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops it
            )
        deadline = time.monotonic() + PATIENCE
        while not (found := LINK.search(text := printed.read_text("utf-8", errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotPossible(f"the dashboard did not start: {text.strip() or 'it said nothing'}")
            time.sleep(0.05)
        self.link = found[1]

    def show(self) -> None:
        """Open it in a browser, where there is a screen."""
        if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(self.link)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
