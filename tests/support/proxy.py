"""A TCP proxy between a client and a PostgreSQL server that does harm on demand.

One thread with a selector does all the work; the methods of `Proxy` may be called from any thread, and when one
returns, its fault is in force. A child forked while a proxy is open holds copies of its sockets, and a cut would then
reach the client only when that child ends: spawn, or fork before.
"""

import contextlib
import math
import selectors
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import urlsplit

CHUNK = 256 * 1024  # bytes received or sent at once; and when so many wait for one side, the other is not read
TLS, GSS = 80877103, 80877104  # stand in a connection's first packet where the version should, and ask to encrypt
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Drops:
    """An order to drop the replies of commits: `count` are dropped so far, `left` are still to be."""

    def __init__(self, when: Callable[[str], bool], times: int) -> None:
        self.when, self.left, self.count = when, times, 0
        self.done = threading.Event()

    def wait(self, timeout: float = 10.0) -> None:
        """Return once all replies are dropped and their connections cut; AssertionError after `timeout` seconds."""
        assert self.done.wait(timeout), f"dropped only {self.count}: did the statement match, and commit?"


class Proxy:
    """`with Proxy("127.0.0.1", 5432) as proxy:` connect to `proxy.url(...)`. At the end all that is open is cut."""

    def __init__(self, host: str, port: int) -> None:
        self.counts: Counter[str] = Counter()  # connections that were reset, refused, stalled, cut or dropped
        self._address = (host, port)
        self._lock = threading.RLock()
        self._links: set[_Link] = set()
        self._refusing = self._stalled = False
        self._left: int | None = None  # what cut_after grants a new connection
        self._cuts: float = 0
        self._drops = Drops(str.isspace, 0)

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._bell, bell = socket.socketpair()
        self._selector.register(self._listener, READ)
        self._selector.register(bell, READ, bell)
        self._thread = threading.Thread(target=self._run, args=(bell,), name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bell.close()
        self._thread.join()

    def url(self, original: str) -> str:
        """The same URL by way of the proxy."""
        parts = urlsplit(original)
        who, at, _ = parts.netloc.rpartition("@")
        # A server named in the query would win over the one in front.
        query = [one for one in parts.query.split("&") if one.partition("=")[0] not in ("host", "hostaddr", "port")]
        return parts._replace(netloc=f"{who}{at}127.0.0.1:{self.port}", query="&".join(query)).geturl()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._links)

    def reset(self) -> None:
        """Cut every open connection; new ones are welcome."""
        with self._lock:
            for link in list(self._links):
                self._cut(link, "reset")

    def refuse(self, on: bool = True) -> None:
        """Cut new connections at once; the open ones live on."""
        with self._lock:
            self._refusing = on

    def stall(self, on: bool = True) -> None:
        """Forward nothing in either direction, on connections old and new, which all stay open."""
        with self._lock:
            begins, self._stalled = on and not self._stalled, on
            for link in self._links:
                self.counts.update(["stalled"] * begins)
                self._watch(link)

    def flow(self) -> None:
        """End a stall, and forward what came meanwhile."""
        self.stall(False)

    def cut_after(self, n: int | None, *, times: float = math.inf) -> None:
        """Cut each connection, open or new, once `n` further bytes went to the client; None ends this.

        With 0 it is cut when the server next says something. It is over when `times` connections have been cut.
        """
        with self._lock:
            self._left, self._cuts = n, times
            for link in self._links:
                link.left = n

    def drop_replies(self, when: Callable[[str], bool], *, times: int = 1) -> Drops:
        """Let a statement run and commit whose SQL `when` picks, throw its replies away, and cut the connection.

        In a transaction, that is the reply to its end: a drop always means a commit. If the statement fails or is
        rolled back, the client is told as usual and the order stands. A new order replaces the last one; times=0 ends
        it. What is said over TLS cannot be read, and passes.
        """
        with self._lock:
            self._drops.left = 0
            self._drops = Drops(when, times)
            return self._drops

    def _run(self, bell: socket.socket) -> None:
        try:
            while True:
                for key, events in self._selector.select():
                    with self._lock:
                        if key.data is bell:
                            return
                        if key.data is None:
                            self._accept()
                        elif key.data.link in self._links and not self._stalled:  # not so any more, perhaps
                            self._serve(key.data.link, key.data, events)
        finally:
            with self._lock:
                for link in list(self._links):
                    self._cut(link)
                for each in (self._selector, self._listener, bell):
                    each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # nobody else is waiting
                return
            try:
                if self._refusing:
                    self.counts["refused"] += 1
                    raise ConnectionRefusedError
                server = socket.create_connection(self._address, timeout=5)
            except OSError:
                _close(client)
                continue
            link = _Link(client, server, self._left)
            self._links.add(link)
            self.counts.update(["stalled"] * self._stalled)
            self._watch(link)

    def _serve(self, link: "_Link", end: "_End", events: int) -> None:
        client, server = link.client, link.server
        try:
            if events & READ:
                with contextlib.suppress(BlockingIOError):
                    data = end.sock.recv(CHUNK)
                    end.eof = not data
                    if end is client:
                        server.out += link.talk.asked(data, self._drops)
                    else:
                        client.out += link.talk.answered(data)
            speaks = bool(client.out)
            sent = client.send(link.left)
            server.send()
        except OSError:
            self._cut(link)
            return
        if link.left is not None:
            link.left -= sent
        if drops := link.talk.lost:
            self._cut(link, "dropped")
            drops.left, drops.count = drops.left - 1, drops.count + 1
            if not drops.left:
                drops.done.set()
        elif link.left == 0 and speaks:
            self._cut(link, "cut")
            self._cuts -= 1
            if not self._cuts:
                self.cut_after(None)
        elif (client.eof and not server.out) or (server.eof and not client.out):
            self._cut(link, reset=False)  # who has finished gets no answer: nobody here closes one direction only
        else:
            self._watch(link)

    def _watch(self, link: "_Link") -> None:
        for end, other in ((link.client, link.server), (link.server, link.client)):
            wanted = READ * (not end.eof and len(other.out) < CHUNK) | WRITE * bool(end.out)
            self._select(end, 0 if self._stalled else wanted)

    def _select(self, end: "_End", events: int) -> None:
        if events and end.events:
            self._selector.modify(end.sock, events, end)
        elif events:
            self._selector.register(end.sock, events, end)
        elif end.events:
            self._selector.unregister(end.sock)
        end.events = events

    def _cut(self, link: "_Link", fault: str | None = None, *, reset: bool = True) -> None:
        if fault:
            self.counts[fault] += 1
        self._links.discard(link)
        for end in (link.client, link.server):
            self._select(end, 0)
            _close(end.sock, reset)


class _Link:
    """A client's connection together with ours to the server; `left` are the bytes until cut_after cuts it."""

    def __init__(self, client: socket.socket, server: socket.socket, left: int | None) -> None:
        self.client, self.server = _End(client, self), _End(server, self)
        self.talk, self.left = Talk(), left


class _End:
    """One of the two sockets of a link, and what waits to be sent there."""

    def __init__(self, sock: socket.socket, link: _Link) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self.link, self.out = sock, link, bytearray()
        self.eof, self.events = False, 0  # nothing more comes from here; what the selector watches for

    def send(self, most: int | None = None) -> int:
        if not self.out or most == 0:
            return 0
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(self.out[: min(most or CHUNK, CHUNK)])
            del self.out[:sent]
            return sent
        return 0


def _close(sock: socket.socket, reset: bool = True) -> None:
    """With a reset, the other side gets RST instead of FIN."""
    if reset:
        with contextlib.suppress(OSError):  # macOS refuses this when the other side is gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Talk:
    """What is said on one connection: enough of PostgreSQL's protocol 3 to know which reply is whose. It does no I/O.

    Each method takes the bytes that one side sent (none: it has finished) and returns those that the other shall get.
    When `lost` is set, the replies of a commit have been held back, and the talk is over.
    """

    def __init__(self) -> None:
        self.lost: Drops | None = None
        self._starting, self._opaque = True, False
        self._question, self._answer = bytearray(), bytearray()  # the beginning of a message that is not all there yet
        self._held = bytearray()
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        # The server says ReadyForQuery once for every Query and Sync; what lies between two is a batch. Of each: which
        # order picked a statement in it, and whether a Sync ended it.
        self._batches: deque[tuple[Drops | None, bool]] = deque()
        self._batch: Drops | None = None  # the same of the batch that the client has not ended
        self._transaction: Drops | None = None
        self._failed, self._tag = False, b""  # in the batch that the server is at: an error, the last command's tag

    def asked(self, data: bytes, drops: Drops) -> bytes:
        self._question += data
        out = []
        while self._starting and not self._opaque and len(self._question) >= 8:
            length, code = struct.unpack_from("!ii", self._question)
            self._opaque = not 8 <= length <= 10_000  # by PostgreSQL's own limit, this is another protocol
            if self._opaque or len(self._question) < length:
                break
            out.append(_taken(self._question, length))
            self._starting = code in (TLS, GSS)
        if self._opaque or not data:
            out.append(_taken(self._question))
        elif not self._starting:
            for kind, message in _messages(self._question):
                self._hear(kind, message[5:], drops)
                out.append(message)
        return b"".join(out)

    def _hear(self, kind: str, body: bytes, drops: Drops) -> None:
        # What counts is the Execute: a client may prepare in a batch of its own, and later send no SQL any more.
        sql = None
        if kind == "P":
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = text.decode(errors="replace")
        elif kind == "B":
            portal, name, _ = body.split(b"\0", 2)
            self._portals[portal] = self._statements.get(name, "")
        elif kind == "E":
            sql = self._portals.get(body.partition(b"\0")[0])
        elif kind == "Q":
            sql = body[:-1].decode(errors="replace")
        if sql is not None and drops.left and drops.when(sql):
            self._batch = drops
        if kind in "QSF":  # Query, Sync, FunctionCall
            self._batches.append((self._batch, kind == "S"))
            self._batch = None

    def answered(self, data: bytes) -> bytes:
        if self._starting or self._opaque:
            self._opaque |= self._starting and data[:1] in (b"S", b"G")  # the server agrees to encrypt
            return data
        self._answer += data
        out = []
        for kind, message in _messages(self._answer):
            picked, synced = self._batches[0] if self._batches else (None, False)
            self._held += message
            if kind == "E":
                self._failed = True
            elif kind == "C":
                self._tag = message[5:-1]
            elif kind == "G" and synced:  # COPY FROM: the server skips this Sync, and the client sends one at the end
                self._batches.popleft()
                self._batch = self._batch or picked
            elif kind == "Z" and self._is_lost(picked, message[5:]):
                break
            # The client must see "G" or it would not go on. Outside a batch come only notifications and the like.
            if kind in "GZ" or not (self._batches and (picked or self._transaction)):
                out.append(_taken(self._held))
        if not data:
            out += [_taken(self._held), _taken(self._answer)]
        return b"".join(out)

    def _is_lost(self, picked: Drops | None, status: bytes) -> bool:
        order = picked or self._transaction
        committed = status == b"I" and not self._failed and self._tag != b"ROLLBACK"
        if committed and order and order.left:
            self.lost = order
            return True
        self._transaction = None if status == b"I" else order
        self._failed, self._tag = False, b""
        if self._batches:  # not at the end of the login
            self._batches.popleft()
        return False


def _messages(buffer: bytearray) -> Iterator[tuple[str, bytes]]:
    """Take the messages out that are complete, each with its kind."""
    while len(buffer) >= 5 and len(buffer) > (length := int.from_bytes(buffer[1:5], "big")):
        yield chr(buffer[0]), _taken(buffer, 1 + length)


def _taken(buffer: bytearray, length: int | None = None) -> bytes:
    taken = bytes(buffer[:length])
    del buffer[:length]
    return taken
