"""A listening socket of a stand-in: a thread for each connection, and none that outlives it."""

import socket
import ssl
import sys
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from treadle.errors import ConfigError
from treadle.testing.fakes.faults import Fake


class Listener(ThreadingTCPServer):
    """Listens on 127.0.0.1 from its making to `end`; `fake` is who answers."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, fake: Fake, handler: type[BaseRequestHandler], port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        try:
            super().__init__(("127.0.0.1", port), handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"port: cannot listen on 127.0.0.1:{port}: {why}; take another port, or 0") from None
        if tls is not None:  # the handshake waits for the connection's own thread
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.fake: Any = fake
        self.port: int = self.server_address[1]
        self._open: dict[socket.socket, threading.Thread] = {}
        self._loop = threading.Thread(target=self.serve_forever, args=(0.02,), name="treadle-fake", daemon=True)
        self._loop.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[request] = threading.current_thread()
        try:
            if not self.fake.closing:
                super().process_request_thread(request, client_address)
        finally:
            mine = [one for one, thread in list(self._open.items()) if thread is threading.current_thread()]
            for connection in mine:
                del self._open[connection]
                connection.close()

    def replaced(self, connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        """The same connection, encrypted from here on."""
        encrypted = tls.wrap_socket(connection, server_side=True)
        self._open[encrypted] = self._open.pop(connection)
        return encrypted

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away is no news
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop listening, and end every connection."""
        self.shutdown()
        self.server_close()
        self._loop.join()
        for connection, thread in list(self._open.items()):
            with suppress(OSError):  # it may have ended by itself
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(5)
