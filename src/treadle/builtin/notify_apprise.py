"""What `notify.send` asks of Apprise, so that no address reaches a log or an error."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pydantic import SecretStr

from treadle.errors import ConfigError

if TYPE_CHECKING:
    from apprise import Apprise

TALKATIVE = ("apprise", "urllib3.connectionpool", "requests_oauthlib.oauth1_auth", "requests_oauthlib.oauth2_session")
"""Loggers that write addresses, or parts of them, while a message is sent."""

_ours: ContextVar[bool] = ContextVar("treadle_notify", default=False)


def is_address(address: SecretStr, asked_by: str) -> bool:
    """Whether Apprise can read it; ConfigError if Apprise is not installed."""
    with _silence(), warnings.catch_warnings():
        # The first address loads all plugins: where warnings are errors, theirs would end it halfway.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return _opened(address) is not None
        except ImportError:
            raise ConfigError(f"{asked_by}: it needs Apprise; run: pip install 'treadle[notify]'") from None


def take(address: SecretStr, *, title: str, body: str, kind: str) -> bool:
    """Send it to one address, in this thread; whether it was taken. Apprise tells no more than that."""
    with _silence():
        try:
            opened = _opened(address)
            return opened is not None and bool(
                opened.notify(body=body, title=title, notify_type=kind, body_format="text")
            )
        except Exception:  # of a plugin: its text may hold the address
            return False


def _opened(address: SecretStr) -> "Apprise | None":
    from apprise import Apprise, AppriseAsset  # noqa: PLC0415

    opened = Apprise(asset=AppriseAsset(async_mode=False))
    return opened if opened.add(address.get_secret_value()) else None


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what these loggers say of this send out of the log; others who use them go on logging."""
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(_of_others)  # adding it again changes nothing
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


def _of_others(_: logging.LogRecord) -> bool:
    return not _ours.get()
