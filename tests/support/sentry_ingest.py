"""A Sentry of our own: takes envelopes on a port, as the real one does, and keeps them as they came."""

import gzip
import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sentry_sdk.envelope import Envelope


class Ingest:
    """The server. `raw` holds the bodies, unpacked; `items("event")` what was in them."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.packed = 0  # bodies that came compressed
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                ingest.take(body, self.headers.get("Content-Encoding"), self.path)
                answer = b"{}"
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self._server.server_port}/42"

    def take(self, body: bytes, encoding: str | None, path: str) -> None:
        assert path == "/api/42/envelope/", path
        if encoding is not None:
            self.packed += 1
            body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
        self.raw.append(body)

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The items of this kind, in the order in which they came."""
        envelopes = [Envelope.deserialize(body) for body in self.raw]
        return [json.loads(item.get_bytes()) for one in envelopes for item in one.items if item.type == kind]

    def clear(self) -> None:
        self.raw.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
