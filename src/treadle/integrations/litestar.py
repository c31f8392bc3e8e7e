"""Litestar: a plugin with the lifespan and our errors as answers."""

from typing import Any

from litestar import Request, Response
from litestar.config.app import AppConfig
from litestar.plugins import InitPlugin

from treadle.app.answers import STATUS, answer_to
from treadle.app.treadle import Treadle
from treadle.errors import TreadleError
from treadle.integrations.asgi import WorkerOptions, lifespan
from treadle.integrations.http import JobView

__all__ = ["JobView", "TreadlePlugin", "WorkerOptions"]


class TreadlePlugin(InitPlugin):
    """`Litestar(plugins=[TreadlePlugin(jobs, worker=True)])`.

    The store is opened and closed with the app. `worker` runs a worker inside, and may hold the options of
    `app.worker`. Your own lifespans start before it and end after it; your own exception handlers win.
    """

    def __init__(self, jobs: Treadle, *, worker: bool | WorkerOptions = False) -> None:
        self.jobs = jobs
        self._worker = worker

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan and the exception handlers; Litestar calls it."""
        app_config.lifespan = [*app_config.lifespan, lifespan(self.jobs, worker=self._worker)]
        app_config.exception_handlers = {**dict.fromkeys(STATUS, _respond), **app_config.exception_handlers}
        return app_config


def _respond(_: Request[Any, Any, Any], error: TreadleError) -> Response[dict[str, Any]]:
    status, body, headers = answer_to(error)
    return Response(body, status_code=status, headers=headers)
