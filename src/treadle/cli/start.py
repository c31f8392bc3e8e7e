"""`treadle init`: a small app that works, to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.terminal import document, safe, say
from treadle.errors import NotPossible

APP = '''"""A first app: `treadle worker` runs its jobs."""

from treadle import Treadle

app = Treadle()  # settings: treadle.toml


@app.task
def greet(name: str) -> str:
    return f"hello {name}"


@app.task(every="1h")
def tidy_up() -> str:
    return "all is tidy"
'''
SETTINGS = """# The settings of treadle; `treadle config show` prints all of them.

app = "app:app"
url = "sqlite:///treadle.db"  # or postgresql://user@host/database; put a password into TREADLE_URL

# concurrency = 10    # how many jobs a worker runs at once
# keep_failed = "30d" # how long failed jobs are kept
"""
FILES = {"app.py": APP, "treadle.toml": SETTINGS}
NEXT = ("""treadle enqueue greet '{"name": "Ada"}'""", "treadle worker")


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where; it is made if need be.", show_default="here")
    ] = Path(),
    as_json: options.Json = False,
) -> None:
    """Write a small app.py and treadle.toml to begin with; files that are there stay as they are."""
    paths = {directory / name: content for name, content in FILES.items()}
    try:
        if there := [str(path) for path in paths if path.exists() or path.is_symlink()]:
            raise NotPossible(f"{there[0]} exists already; nothing was written. Give another directory")
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in paths.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
    except (OSError, ValueError) as error:  # a ValueError: half a character, which no file name has
        why = getattr(error, "strerror", None) or error
        raise NotPossible(f"{str(directory)[:200]}: cannot be written: {why}") from None
    steps = [*([f"cd {shlex.quote(str(directory))}"] if directory != Path() else []), *NEXT]
    if as_json:
        document({"created": [str(path) for path in paths], "next": steps})
        return
    say(f"created {safe(' and '.join(map(str, paths)))}. Next:")
    for step in steps:
        say(f"  {safe(step)}")
