"""Serving: the HTTP server, and a worker beside it, in one process, started and stopped in order.

Start: the store is opened and its schema looked at, then the port is bound, then the worker begins. Stop: /readyz says
no, the worker takes no more jobs and finishes what it runs, while requests are still answered; then HTTP ends, and at
last the store's connections are closed.
"""

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import uvicorn

from treadle.app.treadle import Treadle
from treadle.errors import ConfigError, NotPossible
from treadle.server.api import Server, asgi
from treadle.server.auth import StoreAuth
from treadle.tasks.loops import run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("treadle.server")

SAME_SIGNAL = 0.2  # seconds: as a worker counts them
HTTP_GRACE = 5  # seconds that open requests have when HTTP ends


class Address(NamedTuple):
    """Where the server listens."""

    host: str
    port: int

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback if self.is_ip else self.host == "localhost"

    @property
    def is_ip(self) -> bool:
        """Whether the host is a number rather than a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Parts(NamedTuple):
    """What runs beside HTTP: a worker or none, and whether it fires schedules; None: as the settings say."""

    worker: bool
    schedules: bool | None


def serve(
    app: Treadle,
    address: Address,
    *,
    worker: bool = True,
    schedules: bool | None = None,
    hosts: Collection[str] = (),
    secret: bytes | None = None,
    started: "Callable[[Address, str | None], None]" = lambda *_: None,
    stopped: "Callable[[], bool]" = lambda: False,
) -> None:
    """Serve until SIGTERM or SIGINT; `started` hears the address, and the link that signs in once.

    `schedules` says whether the worker fires them; None: as the settings say.
    `stopped` says whether a signal came before this listens to them.
    """
    app.open()
    check_safe(app, address)
    bound = bind(address)
    names = hosts if address.is_ip else {*hosts, address.host}
    parts = Parts(worker, schedules)
    try:
        run_to_the_end(_serve(app, bound, parts=parts, hosts=names, secret=secret, started=started, stopped=stopped))
    finally:
        bound.close()
        app.close()


def check_safe(app: Treadle, address: Address) -> None:
    """Refuse to be reached from elsewhere while nobody could sign in: such a server was not meant to be open."""
    if address.local or any(token.usable(app.engine.now()) for token in app.tokens.list()):
        return
    raise NotPossible(
        f"host: {address.host} can be reached from other machines, and there is no token yet that they could use; "
        "make one with `treadle tokens create NAME`, or serve on 127.0.0.1"
    )


def bind(address: Address) -> socket.socket:
    """A socket that listens there; ConfigError says why it cannot."""
    if not address.host.strip():
        raise ConfigError("host: is empty; write 127.0.0.1, or 0.0.0.0 for all addresses of this machine")
    try:
        address.host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"host: {address.host[:100]!r} is not a host name; choose another with --host") from None
    if "\0" in address.host:
        raise ConfigError(f"host: {address.host[:100]!r} holds a NUL; choose another with --host")
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]
        number = error.errno or 0
        if number < 0 or number == errno.EADDRNOTAVAIL:  # below 0: a name that cannot be resolved
            raise ConfigError(
                f"host: {address.host!r} is not an address of this machine ({why}); choose another with --host"
            ) from None
        raise ConfigError(f"port: cannot listen on {address.url}: {why}; choose another with --port") from None


async def _serve(
    app: Treadle,
    bound: socket.socket,
    *,
    parts: Parts,
    hosts: Collection[str],
    secret: bytes | None,
    started: "Callable[[Address, str | None], None]",
    stopped: "Callable[[], bool]",
) -> None:
    address = Address(*bound.getsockname()[:2])
    served = asgi(app, hosts=hosts, secret=secret)
    http = Http(served)
    stop, stopping_since = asyncio.Event(), 0.0
    running = None
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        nonlocal stopping_since
        if not stop.is_set():
            stopping_since = time.monotonic()
            stop.set()
        elif running is not None and time.monotonic() - stopping_since > SAME_SIGNAL:
            running.hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    if stopped():
        return
    async with AsyncExitStack() as stack:
        serving = asyncio.create_task(http.serve(sockets=[bound]))
        stack.push_async_callback(_finish, http, serving)
        await http.up(serving)
        if parts.worker:
            running = await stack.enter_async_context(app.worker(schedules=parts.schedules))
        stack.callback(served.stop)
        link = served.auth.new_link() if address.local and isinstance(served.auth, StoreAuth) else None
        started(address, link)
        await _until(stop, running)
    if running is not None and running.exhausted:
        raise NotPossible("the worker stopped by itself: too many handlers ran past their timeout and never ended")


class RunningWorker(Protocol):
    """What the server needs of its worker."""

    async def wait_stopped(self) -> None: ...


async def _until(stop: asyncio.Event, running: RunningWorker | None) -> None:
    """Wait for a signal, or for the worker to stop by itself: a server that runs no jobs should not look alive."""
    if running is None:
        await stop.wait()
        return
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(running.wait_stopped())]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    for wait in done:
        wait.result()


async def _finish(http: "Http", serving: "asyncio.Task[None]") -> None:
    http.should_exit = True
    await serving


class Http(uvicorn.Server):
    """The HTTP server; signals are not its own, because the worker stops before it."""

    def __init__(self, served: Server) -> None:
        config = uvicorn.Config(
            served,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=HTTP_GRACE,
            h11_max_incomplete_event_size=64 << 10,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def up(self, serving: "asyncio.Task[None]") -> None:
        """Wait until it answers; what kept it from it is raised."""
        while not self.started:
            if serving.done():
                serving.result()
                raise NotPossible("the HTTP server did not start; its log says why")
            await asyncio.sleep(0.01)
