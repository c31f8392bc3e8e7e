"""Ids of jobs."""

import re
import secrets
import threading
import time


def new_id() -> str:
    """A UUIDv7: unique, and rising within this process, so that jobs made in order sort in order."""
    global _last_stamp  # noqa: PLW0603 - the one thing two ids of a process share
    with _id_lock:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        stamp = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last_stamp + 1)
        _last_stamp = stamp
    high = f"{stamp >> 12:012x}"
    low = f"{secrets.randbits(62) | 1 << 63:016x}"
    return f"{high[:8]}-{high[8:]}-7{stamp & 4095:03x}-{low[:4]}-{low[4:]}"


_id_lock = threading.Lock()
_last_stamp = 0
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
