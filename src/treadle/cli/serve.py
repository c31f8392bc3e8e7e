"""`treadle serve`: the dashboard and the REST API of a store, and a worker beside it."""

import importlib.util
import logging
import signal
from typing import Annotated

import typer

import treadle
from treadle.cli import options
from treadle.cli.discovery import find_app, find_store
from treadle.cli.terminal import masked, safe, say
from treadle.cli.work import STOP_SIGNALS, Early, set_up_logging, wants_json
from treadle.errors import ConfigError

log = logging.getLogger("treadle.cli")


def serve(
    app: options.App = None,
    url: options.Url = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8787,
    allow_host: options.AllowHost = None,
    worker: options.WithWorker = True,
    schedules: options.WithSchedules = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines.")] = False,
    log_format: options.LogFormat = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
) -> None:
    """Serve the dashboard and the REST API until Ctrl-C or SIGTERM, with a worker for the app's tasks and schedules.

    Without an app it serves the store alone, and runs no jobs. Every request needs a token (treadle tokens create);
    the link that it prints signs a browser in, once.
    """
    early = Early()
    check_web("treadle serve")
    check_parts(worker=worker, schedules=schedules)
    from treadle.server import run  # noqa: PLC0415 - FastAPI is heavy, and only this needs it

    used = find_store(app, url)
    has_app = bool(used.tasks)
    if app is not None and not has_app:
        find_app(app, url)  # says what is wrong with it
    if early.stopped:
        used.close()
        return
    json_lines = as_json or wants_json(used, log_format)
    set_up_logging(json_lines, verbose)

    def started(address: run.Address, link: str | None) -> None:
        if json_lines:  # without the link, which is not for logs: a token signs in, too
            store, tasks = masked(used.settings.url), sorted(used.tasks)
            facts = {"url": address.url, "store": store, "tasks": tasks, "worker": works, "schedules": fires}
            log.info("server starts", extra={"facts": facts})
            return
        say(f"treadle {treadle.__version__}: serving {safe(address.url)}; stop it with Ctrl-C or SIGTERM", stderr=True)
        say(f"  store   {safe(masked(used.settings.url))}", stderr=True)
        known = ", ".join(sorted(used.tasks)) or "none: no app is named, so no jobs run here"
        say(f"  tasks   {safe(known if worker else 'run elsewhere: --no-worker')}", stderr=True)
        if works and not fires:
            say("  schedules are fired elsewhere: this worker only runs jobs", stderr=True)
        if link is not None:
            say(f"  sign in {safe(address.url)}/login?code={link} (once, within 15 minutes)", stderr=True)

    works = worker and has_app
    fires = works and (used.settings.schedules if schedules is None else schedules)
    address, hosts = run.Address(host, port), allow_host or ()
    try:
        run.serve(
            used,
            address,
            worker=works,
            schedules=schedules,
            hosts=hosts,
            started=started,
            stopped=lambda: early.stopped,
        )
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # it has stopped: a late signal must not spoil the exit code


def check_parts(*, worker: bool, schedules: bool | None) -> None:
    """ConfigError if schedules are to be fired and there is nobody to do it."""
    if schedules and not worker:
        raise ConfigError("--schedules: the worker fires them, and --no-worker leaves it out; give one of the two")


def check_web(command: str) -> None:
    """ConfigError if what a server needs is not installed."""
    for module in ("fastapi", "jinja2", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{command} needs FastAPI, Jinja and uvicorn; run: pip install 'treadle[web]'")
