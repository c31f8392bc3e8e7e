"""Flask: an extension that takes its settings from `app.config` and runs handlers inside the app context."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import click
from flask import Flask, current_app, jsonify
from flask.cli import with_appcontext
from flask.typing import ResponseReturnValue
from werkzeug.local import LocalProxy

from treadle.app.answers import STATUS, answer_to
from treadle.app.treadle import Treadle
from treadle.errors import ConfigError, TreadleError
from treadle.integrations.http import JobView
from treadle.tasks.context import Context
from treadle.worker.worker import Worker

__all__ = ["FlaskTreadle", "JobView", "add_error_handlers", "current_jobs"]

PREFIX = "TREADLE_"


class FlaskTreadle(Treadle):
    """A `Treadle` that is also a Flask extension: `jobs = FlaskTreadle()`, later `jobs.init_app(app)`.

    Each setting may stand in `app.config`, as TREADLE_URL, TREADLE_CONCURRENCY and so on; there it wins. Handlers run
    inside `app.app_context()`. The commands of treadle are there as `flask treadle worker` and so on.
    """

    def __init__(self, app: Flask | None = None, **options: Any) -> None:
        """`options` are those of `Treadle`; a url is given as `url=`, or in the config of the app."""
        if not isinstance(app, Flask | None):
            raise ConfigError(f"flask: {type(app).__name__} is not a Flask app; write FlaskTreadle(app), or url=…")
        super().__init__(**options)
        self._configured = ExitStack()  # holds what the app before has configured
        self._flask: Flask | None = None
        self.hooks.around_run(self._in_app_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Take the settings of this app's config, give handlers its context, and add `flask treadle`.

        The app before is left, and its store closed; NotPossible while a worker runs.
        """
        config = {key.removeprefix(PREFIX).lower(): app.config[key] for key in app.config if key.startswith(PREFIX)}
        self._configured.close()
        self._configured.enter_context(self.override(**config))
        self.settings  # noqa: B018 - a setting that cannot be is an error now, not at the first job
        app.extensions["treadle"] = self
        app.cli.add_command(_command)
        self._flask = app

    def worker(self, **options: Any) -> Worker:
        """As `Treadle.worker`; ConfigError before `init_app`, for its jobs are where the app's config says."""
        self._app()
        return super().worker(**options)

    def _in_app_context(self, _: Context) -> Iterator[None]:
        with self._app().app_context():
            yield

    def _app(self) -> Flask:
        if self._flask is None:
            raise ConfigError(
                "flask: this FlaskTreadle has no app; call jobs.init_app(app), or run `flask treadle worker`"
            )
        return self._flask


def _current() -> FlaskTreadle:
    jobs = current_app.extensions.get("treadle")
    if jobs is None:
        raise ConfigError("flask: this app has no FlaskTreadle; call jobs.init_app(app)")
    assert isinstance(jobs, FlaskTreadle)  # noqa: S101
    return jobs


current_jobs: FlaskTreadle = LocalProxy(_current)  # type: ignore[assignment] # it stands for it, as `current_app` does
"""The FlaskTreadle of the current app, for blueprints and commands."""


def add_error_handlers(app: Flask) -> None:
    """Answer 422, 404, 409, 503 or 504 to requests that end in an error of treadle that is not the program's fault."""
    for kind in STATUS:
        app.register_error_handler(kind, _respond)


def _respond(error: TreadleError) -> ResponseReturnValue:
    status, body, headers = answer_to(error)
    return jsonify(body), status, headers


@click.command(
    "treadle",
    help="The commands of treadle for this app: worker, jobs list, ...",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def _command(arguments: tuple[str, ...]) -> None:
    from treadle.cli.commands import main  # noqa: PLC0415 - only this command needs it

    os.environ["TREADLE_APP"] = f"{__name__}:current_jobs"
    main(arguments)
