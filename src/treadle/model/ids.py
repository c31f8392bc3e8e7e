"""Ids of jobs."""

import re
import threading
import time
from os import urandom


def new_id() -> str:
    """A UUIDv7: unique, and rising within this process, so that jobs made in order sort in order."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """So many of them, each greater than the one before: one look at the clock and one call for randomness."""
    global _last_stamp  # noqa: PLW0603 - the one thing two ids of a process share
    with _id_lock:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        first = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last_stamp + 1)
        _last_stamp = first + count - 1
    noise = bytearray(urandom(8 * count))
    noise[::8] = noise[::8].translate(_VARIANT)
    tail, high, head, ids = noise.hex(), -1, "", []
    for place in range(count):
        stamp, start = first + place, 16 * place
        if stamp >> 12 != high:
            high = stamp >> 12
            text = f"{high:012x}"
            head = f"{text[:8]}-{text[8:]}-7"
        ids.append(f"{head}{stamp & 0xFFF:03x}-{tail[start : start + 4]}-{tail[start + 4 : start + 16]}")
    return ids


_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))  # RFC 9562: the two high bits are 10
_id_lock = threading.Lock()
_last_stamp = 0
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
