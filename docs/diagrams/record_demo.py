"""Run `python3 dev.py demo` in a terminal and keep what it showed: demo.ansi, from which make.py draws ../demo.svg.

python3 docs/diagrams/record_demo.py && python3 docs/diagrams/make.py

Two moments are kept, word by word: the screen just after a worker was killed, and the end.
"""

import os
import pty
import re
import sys
from pathlib import Path

from terminal import ESCAPE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COLUMNS = 92
REDRAWN = re.compile(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
CURSOR = re.compile(r"\x1b\[\?25[hl]")


def record() -> str:
    """All that the demo writes to a terminal of this width."""
    os.environ |= {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    os.environ.pop("NO_COLOR", None)
    kept: list[bytes] = []

    def read(terminal: int) -> bytes:
        kept.append(os.read(terminal, 65536))
        return kept[-1]

    status = pty.spawn([sys.executable, str(ROOT / "dev.py"), "demo"], read)
    if status:
        raise SystemExit("the demo did not end well: nothing was kept")
    return CURSOR.sub("", b"".join(kept).decode())


def lines_of(screen: str) -> list[str]:
    return [line.rstrip() for line in screen.replace("\r", "").split("\n")]


def chosen(recording: str) -> list[str]:
    """The screen after the kill, and the last lines of all, from the recovery on."""
    screens = REDRAWN.split(recording)
    killed = [screen for screen in screens[:-1] if "wait for their leases" in screen]
    end = lines_of(screens[-1])
    start = next(number for number, line in enumerate(end) if "its leases ran out" in line)
    held = next(number for number, line in enumerate(end) if "What worker-" in line)
    lost = next(number for number, line in enumerate(end) if "Nothing was lost" in line)
    dots = [f"  {ESCAPE}[2m  ⋮{ESCAPE}[0m"]
    return [*lines_of(killed[len(killed) // 2]), *dots, *end[start : held - 1], "", *end[lost : lost + 4]]


def main() -> None:
    lines = [line.replace("\x1b", ESCAPE) for line in chosen(record())]
    while not lines[0].strip():
        del lines[0]
    (HERE / "demo.ansi").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
