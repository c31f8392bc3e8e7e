"""A story behind a real server, for scripts: `with served("failing") as told: told.url, told.token`."""

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn

from tests.browser.stories import STORIES, night_app, night_clock
from tests.server.conftest import NO_LIMIT
from tests.support.server import wait_until
from treadle import Treadle
from treadle.server import asgi
from treadle.server.api import Server

MEMORY = Path("/dev/shm")


class Told(NamedTuple):
    """A server on a story; the token signs in."""

    url: str
    token: str
    app: Treadle
    server: Server


@contextmanager
def served(story: str, scopes: tuple[str, ...] = ("admin",)) -> Iterator[Told]:
    """Tell a story, and serve it."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        clock = night_clock()
        app, relay = night_app(f"sqlite:///{folder}/jobs.db", clock)
        logging.getLogger("treadle.worker").setLevel(logging.CRITICAL)  # what goes wrong is part of the story
        STORIES[story](app, relay, clock)
        with running(app) as (url, server):
            yield Told(url, app.tokens.create("ada", scopes=scopes).secret, app, server)
        app.close()


@contextmanager
def running(app: Treadle) -> Iterator[tuple[str, Server]]:
    """A server of this app on a free port."""
    server = asgi(app, **NO_LIMIT)
    config = uvicorn.Config(server, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run, daemon=True)
    thread.start()
    wait_until(lambda: http.started, "the server has started")
    yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}", server
    http.should_exit = True
    server.stop()
    thread.join(10)
