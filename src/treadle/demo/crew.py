"""The worker processes of the demo: started, killed, stopped."""

import os
import subprocess
import sys
import time
from pathlib import Path

from treadle.demo import tasks


class Crew:
    """The worker processes of the demo."""

    def __init__(self, folder: Path, url: str) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: set[str] = set()
        self._folder = folder
        self._url = url

    def start(self) -> str:
        """One more worker; its name."""
        name = f"worker-{len(self.processes) + 1}"
        source = str(Path(__file__).parents[2])
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TREADLE_")}
        paths = [source, *filter(None, [inherited.get("PYTHONPATH")])]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", tasks.__name__, self._url, name],
                cwd=self._folder,  # no treadle.toml of yours plays a part here
                env={**inherited, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,  # closed when we are gone, however that happens: nobody is left behind
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops them
            )
        return name

    def kill(self, name: str) -> int:
        """SIGKILL: no last words, no clean-up; its pid."""
        process = self.processes[name]
        self.killed.add(name)
        process.kill()
        process.wait()
        return process.pid

    def missing(self) -> list[str]:
        """Workers that ended although nobody asked them to."""
        return [name for name, one in self.processes.items() if name not in self.killed and one.poll() is not None]

    def words(self, name: str) -> str:
        """The last line a worker wrote."""
        lines = (self._folder / f"{name}.log").read_text("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self, timeout: float) -> None:
        """Ask all to stop, and make them after `patience` seconds."""
        living = [one for one in self.processes.values() if one.poll() is None]
        for process in living:
            process.terminate()
        deadline = time.monotonic() + timeout
        for process in living:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self.processes.values():
            if process.stdin is not None:
                process.stdin.close()
