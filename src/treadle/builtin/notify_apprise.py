"""What `notify.send` asks of Apprise, so that no URL reaches a log, an error or Sentry, and no service holds it up."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from treadle.errors import Ambiguous, ConfigError

if TYPE_CHECKING:
    from apprise import Apprise

LONGEST_SEND = 60.0  # seconds
TALKATIVE = (
    "apprise", "requests_oauthlib.oauth1_auth", "requests_oauthlib.oauth2_session", "urllib3.connection",
    "urllib3.connectionpool", "urllib3.poolmanager", "urllib3.response", "urllib3.util.retry",
)  # fmt: skip
"""Loggers that write URLs, or parts of them, while a message is sent."""

_ours: ContextVar[bool] = ContextVar("treadle_notify", default=False)


def is_one_url(url: SecretStr, asked_by: str) -> bool:
    """Whether Apprise can read it, as one URL; ConfigError if Apprise is not installed."""
    with _silence(), warnings.catch_warnings():
        # The first URL loads all plugins: where warnings are errors, theirs would end it halfway.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import apprise  # noqa: F401, PLC0415
        except ImportError:
            raise ConfigError(f"{asked_by}: it needs Apprise; run: pip install 'treadle[notify]'") from None
        try:
            return _opened(url) is not None
        except (Exception, SystemExit):  # of a plugin: its text may hold the URL
            return False


def send(url: SecretStr, *, title: str, body: str, kind: str) -> bool:
    """Send it to one URL; whether it was taken, which is all that Apprise says. Ambiguous after LONGEST_SEND.

    A service that answers byte by byte is within every timeout of Apprise. So it is sent in a thread, which is left
    to itself if it takes too long.
    """
    answers: list[bool] = []

    def work() -> None:
        with _hidden_from_sentry():
            answers.append(_is_taken(url, title, body, kind))

    with _silence():
        thread = Thread(target=copy_context().run, args=(work,), name="treadle-notify", daemon=True)
        thread.start()
        thread.join(LONGEST_SEND)
    if not answers:
        raise Ambiguous(f"it took longer than {LONGEST_SEND:.0f} seconds")
    return answers[0]


def _is_taken(url: SecretStr, title: str, body: str, kind: str) -> bool:
    try:
        opened = _opened(url)
        return opened is not None and bool(opened.notify(body=body, title=title, notify_type=kind, body_format="text"))
    except (Exception, SystemExit):  # of a plugin: its text may hold the URL
        return False


def _opened(url: SecretStr) -> "Apprise | None":
    from apprise import Apprise, AppriseAsset  # noqa: PLC0415

    text = url.get_secret_value()
    opened = Apprise(asset=AppriseAsset(async_mode=False))
    # `add` splits a list of URLs, and drops words before the first; `instantiate` takes the text as one URL.
    is_one = opened.add(text) and len(opened) == 1 and Apprise.instantiate(text) is not None
    return opened if is_one else None


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what these loggers write of this send out of the log; others who use them go on logging."""
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(_of_others)  # adding it again changes nothing
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


def _of_others(_: logging.LogRecord) -> bool:
    return not _ours.get()


@contextmanager
def _hidden_from_sentry() -> Iterator[None]:
    """Sentry keeps the URLs of requests for the next event of their scope; a scope of its own goes with the send."""
    sentry_sdk: Any = sys.modules.get("sentry_sdk")
    if not hasattr(sentry_sdk, "isolation_scope"):  # it is not used here, or older than 2.0
        yield
        return
    with sentry_sdk.isolation_scope() as isolated, sentry_sdk.new_scope() as current:
        isolated.clear_breadcrumbs()
        current.span = None  # its spans have no transaction then, and are not sent
        yield
