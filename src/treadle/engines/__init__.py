"""Stores behind one contract (see base.py); `connect` is the only door."""

from collections.abc import Callable
from datetime import datetime
from urllib.parse import parse_qsl, unquote, urlsplit

from treadle.engines.base import Engine
from treadle.errors import ConfigError

SYNCHRONOUS = ("full", "normal")


def connect(url: str, *, clock: Callable[[], datetime], everything: bool = False) -> Engine:
    """The engine behind a URL; nothing is opened until it is used. `everything` audits routine events too."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return _sqlite(url, clock, everything)
        case "":
            raise ConfigError(f"url: {url!r} has no scheme; write sqlite:///{url or 'treadle.db'}")
        case other:
            raise ConfigError(f"url: no engine for {other!r}; this version of treadle speaks sqlite:///file.db")


def _sqlite(url: str, clock: Callable[[], datetime], everything: bool) -> Engine:
    from treadle.engines.sqlite.engine import SqliteEngine

    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(f"url: {url!r} names a host; a file is sqlite:///relative.db or sqlite:////absolute.db")
    if parts.fragment:
        raise ConfigError(f"url: {url!r} holds a #; write it as %23")
    path = unquote(parts.path)[1:] or ":memory:"
    if "\0" in path:
        raise ConfigError(f"url: {url!r} holds a NUL, which no file name may")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigError(f"url: synchronous={synchronous!r} must be one of {', '.join(SYNCHRONOUS)}")
    if options:
        raise ConfigError(f"url: unknown option {', '.join(options)}; sqlite knows synchronous=full|normal")
    return SqliteEngine(path, clock=clock, synchronous=synchronous, everything=everything)
