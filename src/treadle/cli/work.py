"""`treadle worker`: runs jobs until it is told to stop."""

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import treadle
from treadle.app.logs import JobContext, JsonFormatter, LineFormatter
from treadle.app.settings import changed
from treadle.app.treadle import Treadle
from treadle.cli import options
from treadle.cli.discovery import find_app
from treadle.cli.terminal import coloured, document, masked, safe, say
from treadle.errors import EngineUnavailable, TreadleError
from treadle.model import check_name

log = logging.getLogger("treadle.cli")

LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Exhausted(TreadleError):
    """The worker stopped by itself."""


def worker(
    app: options.App = None,
    url: options.Url = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="Take jobs of this queue; repeatable.")
    ] = None,
    lane: Annotated[list[str] | None, typer.Option("--lane", help="Only of this lane; repeatable.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "-c", help="Jobs run at a time.")] = None,
    lease: Annotated[
        str | None, typer.Option("--lease", help="How long a job is held before it counts as lost: 30s.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", help="How long running jobs may take to end when it stops.")
    ] = None,
    poll: Annotated[str | None, typer.Option("--poll", help="How often it looks when nothing tells it to.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Its name in the store; host:pid if left out.")] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when nothing is due and nothing runs.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON lines; on stdout one document when it stops.")
    ] = False,
    log_format: options.LogFormat = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=0, max=65535, help="Serve /metrics of this worker; 0 takes a free port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address for it; it has no sign-in.")
    ] = "127.0.0.1",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; a second one does not wait for what still runs."""
    early = Early()
    if name is not None:
        check_name("--name", name)
    used = find_app(app, url)
    if early.stopped:
        used.close()
        _end(name, False, as_json)
        return
    json_lines = as_json or wants_json(used, log_format)
    set_up_logging(json_lines, verbose)
    made = used.worker(
        queues=queue, lanes=lane, concurrency=concurrency, lease=lease, grace=grace, poll=poll, name=name
    )
    early.stop = made.stop
    try:
        used.open()
    except EngineUnavailable as error:
        log.warning("the store is not there yet: %s", error)
    config = made.config
    facts = {
        "worker": config.name,
        "store": masked(used.settings.url),
        "queues": list(config.queues),
        "lanes": None if config.lanes is None else list(config.lanes),
        "tasks": sorted(used.tasks),
        "slots": config.concurrency,
        "lease": config.lease,
        "grace": config.grace,
    }
    with ExitStack() as beside:
        if metrics_port is not None:
            from treadle.app.process_metrics import metrics_of  # noqa: PLC0415 - only few want an HTTP server
            from treadle.cli.metrics_server import metrics_server  # noqa: PLC0415

            served = metrics_server(lambda: metrics_of(made), metrics_host, metrics_port)
            facts["metrics"] = beside.enter_context(served)
        _banner(used, facts, json_lines)
        try:
            if not early.stopped:
                made.run(until_idle=until_idle)
        finally:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it has stopped: a late signal must not spoil the exit code
            used.close()
    _end(config.name, made.exhausted, as_json)
    if made.exhausted:
        raise Exhausted("the worker stopped by itself: too many handlers ran past their timeout and never ended")


class Early:
    """Notes a signal until the worker listens by itself; raising would land in whatever is being imported.

    A second signal of the same kind ends the process, should the import of the app hang.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.stop: Callable[[], None] | None = None  # of the worker, once there is one
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:  # noqa: ARG002
        signal.signal(number, signal.SIG_DFL)
        self.stopped = True
        if self.stop is not None:
            self.stop()


def _end(name: str | None, exhausted: bool, as_json: bool) -> None:
    if as_json:
        document({"worker": name, "exhausted": exhausted})


def _banner(app: Treadle, facts: dict[str, Any], as_json: bool) -> None:
    try:
        findings = [finding for finding in app.doctor(workers=False) if finding.level != "ok"]
    except EngineUnavailable:  # it may come yet
        findings = []
    if as_json:
        log.info("worker starts", extra={"facts": facts})
        for finding in findings:
            level = logging.INFO if finding.brief else LEVELS[finding.level]
            log.log(level, "%s", finding.brief or finding.text)
        return
    lines = {
        "store": facts["store"],
        "queues": ", ".join(facts["queues"]) + (f" (lanes {', '.join(facts['lanes'])})" if facts["lanes"] else ""),
        "tasks": ", ".join(facts["tasks"]) or "none: --app must name a module that imports your tasks",
        **({"metrics": facts["metrics"]} if "metrics" in facts else {}),
        "slots": f"{facts['slots']}, lease {facts['lease']:g} s, grace {facts['grace']:g} s",
    }
    say(f"treadle {treadle.__version__}: worker {safe(facts['worker'])}; stop it with Ctrl-C or SIGTERM", stderr=True)
    for title, text in lines.items():
        say(f"  {title:<8}{safe(text)}", stderr=True)
    for finding in findings:
        if finding.brief:
            say(f"  {'note':<8}{safe(finding.brief)}", stderr=True)
        else:
            say(coloured(finding.level), f": {safe(finding.text)}", stderr=True)


def wants_json(app: Treadle, log_format: str | None) -> bool:
    """Whether the option, or else the setting, asks for JSON; ConfigError if it is neither text nor JSON."""
    given = {} if log_format is None else {"log_format": log_format}
    return changed(app.settings, given).log_format == "json"


def set_up_logging(as_json: bool, verbose: bool) -> None:
    """Our handler on the root logger, unless the app has set up its own and nobody asks for JSON."""
    root = logging.getLogger()
    if as_json or not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
        handler.addFilter(JobContext())
        root.handlers = [handler]
        root.setLevel(logging.INFO)
        logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where credentials were found
    if verbose:
        root.setLevel(logging.DEBUG)
