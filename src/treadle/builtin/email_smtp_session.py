"""A connection to a mail server that waits so long for each answer and no longer, however slowly it comes."""

import smtplib
import socket
import time
from io import BufferedReader, RawIOBase
from typing import Any

LONGEST_REPLY = 64 * 1024  # bytes of one answer, all of its lines


class TimedReplies(smtplib.SMTP):
    """`timeout` is for all lines of an answer; the library's own is for each piece that arrives."""

    def getreply(self) -> tuple[int, bytes]:
        timeout: float = self.timeout
        if self.file is None:
            self.file = BufferedReader(_ReplyReader())
        reader: Any = self.file.raw
        reader.begin(self.sock, time.monotonic() + timeout)
        answer = super().getreply()
        if self.sock is not None:
            self.sock.settimeout(timeout)
        return answer


class TimedRepliesTls(TimedReplies, smtplib.SMTP_SSL):
    """The same on a connection that is encrypted from the first byte."""


class _ReplyReader(RawIOBase):
    def begin(self, opened: socket.socket, deadline: float) -> None:
        """Another answer is expected until then."""
        self._socket, self._deadline, self._left = opened, deadline, LONGEST_REPLY

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        if self._left <= 0:
            raise OSError(f"an answer is longer than {LONGEST_REPLY:,} bytes")
        self._socket.settimeout(seconds)
        received = self._socket.recv_into(buffer)
        self._left -= received
        return received
