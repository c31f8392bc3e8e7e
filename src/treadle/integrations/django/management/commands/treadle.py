"""`manage.py treadle worker`, `status`, `jobs list` and all other commands of treadle, on the project's app."""

import argparse
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError

OF_DJANGO = ("--settings", "--pythonpath")  # manage.py has obeyed them by now


class Command(BaseCommand):
    """Hands over to the `treadle` command."""

    help = "Run a command of treadle on this project: manage.py treadle worker. Alone: the list of commands."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own type

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Leave even `--help` to treadle."""
        if code := self._run(argv[2:]):
            raise SystemExit(code)

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """As `call_command("treadle", "jobs", "list")` calls it."""
        if code := self._run(arguments):
            raise CommandError(f"treadle {' '.join(arguments)} ended with {code}", returncode=code)

    def _run(self, arguments: list[str]) -> int:
        from treadle.cli.commands import run  # noqa: PLC0415 - only this command needs it

        os.environ.setdefault("TREADLE_APP", "treadle.integrations.django:app")
        return run(_ours(arguments))


def _ours(arguments: list[str]) -> list[str]:
    """The arguments without those of manage.py itself."""
    ours, skip = [], False
    for word in arguments:
        option, equals, _ = word.partition("=")
        if skip or option in OF_DJANGO:
            skip = not skip and not equals
            continue
        ours.append(word)
    return ours
