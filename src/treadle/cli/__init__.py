"""The command line: `treadle --help`. It calls the app and nothing below it."""

import sys


def main() -> None:
    """The console script; everything is imported here, so that a worker process of the demo stays light."""
    try:
        from treadle.cli.commands import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:  # also while we import
        sys.exit(130)
