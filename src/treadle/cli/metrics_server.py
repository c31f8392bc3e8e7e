"""A small HTTP server that tells Prometheus the numbers of one worker: `treadle worker --metrics-port`."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from treadle.app.exposition import CONTENT_TYPE, Histogram, Metric, exposition
from treadle.errors import ConfigError

LONGEST_REQUEST = 5.0  # seconds: a client that sends nothing holds no thread for longer


@contextmanager
def metrics_server(metrics: Callable[[], list[Metric | Histogram]], host: str, port: int) -> Iterator[str]:
    """Serve these as `/metrics` in a thread of its own; the address. Port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        timeout = LONGEST_REQUEST
        server_version, sys_version = "treadle", ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "there is only /metrics here\n")
            else:
                self._answer(200, exposition(metrics()))

        do_HEAD = do_GET  # noqa: N815 - as http.server wants it

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A scrape every 15 seconds is no news."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    _check_host(host)
    name = f"[{host}]" if ":" in host else host
    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"metrics_port: cannot listen on {name}:{port}: {why}; take another port, or 0") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="treadle-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{name}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def _check_host(host: str) -> None:
    """ConfigError for what no machine can be called; an empty host would listen on every address."""
    if not host.strip():
        raise ConfigError("metrics_host: is empty; write 127.0.0.1, or 0.0.0.0 for all addresses of this machine")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"metrics_host: {host[:100]!r} is not a host name; choose another") from None
    if "\0" in host:
        raise ConfigError(f"metrics_host: {host[:100]!r} holds a NUL; choose another")
