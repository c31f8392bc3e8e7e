"""The command line: `treadle --help`. It calls the app and nothing below it."""


def main() -> None:
    """The console script; everything is imported here, so that a worker process of the demo stays light."""
    from treadle.cli.commands import main as run  # noqa: PLC0415

    run()
