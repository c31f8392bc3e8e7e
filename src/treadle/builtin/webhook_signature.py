"""The signature of a webhook, as the Standard Webhooks specification writes it: made, and verified by receivers."""

import base64
import binascii
import hashlib
import hmac
import secrets as random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from treadle.errors import ConfigError, InvalidInput
from treadle.model.clock import Duration, seconds

PREFIX = "whsec_"
KEY_SIZES = range(24, 65)  # bytes
MOST_SECRETS = 10
TOLERANCE = "5m"

EndpointSecrets = str | Iterable[str]


class InvalidSignature(InvalidInput):
    """A webhook that was not signed with our secret, or too long ago; `field` is the header. Answer 400 or 401."""


def new_secret() -> str:
    """A secret for one endpoint and its sender.

    >>> new_secret().startswith("whsec_")
    True
    """
    return PREFIX + base64.b64encode(random.token_bytes(32)).decode()


def sign(secrets: EndpointSecrets, webhook_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature for each secret, the newest first."""
    if "." in webhook_id:
        raise InvalidInput("webhook-id", "must not hold a dot")
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return " ".join("v1," + _signature(key, signed) for key in keys_of(secrets))


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: EndpointSecrets,
    now: datetime | None = None,
    tolerance: Duration = TOLERANCE,
) -> str:
    """The id of a webhook that is genuine; InvalidSignature if it is not.

    `body` are the bytes as they came. `now` is the time in UTC, with a zone. A webhook may be older or newer by
    `tolerance`. The same id may come more than once: remember those that you have handled.
    """
    if not isinstance(body, bytes):
        raise InvalidInput("body", "must be the bytes as they came; JSON that was parsed and written again may differ")
    if now is not None and now.tzinfo is None:
        raise InvalidInput("now", "must have a time zone")
    keys, allowed = keys_of(secrets), seconds(tolerance, "tolerance")
    found = {name.lower(): value for name, value in headers.items()}
    webhook_id = _header(found, "webhook-id")
    stamp, given = _header(found, "webhook-timestamp"), _header(found, "webhook-signature")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 15):
        raise InvalidSignature("webhook-timestamp", "must be whole seconds since 1970")
    away = (now or datetime.now(UTC)).timestamp() - int(stamp)
    if abs(away) > allowed:
        when = "old" if away > 0 else "far ahead"
        raise InvalidSignature("webhook-timestamp", f"is {abs(away):.0f} s {when}; at most {allowed:g} s are allowed")
    signed = b"%s.%s.%s" % (webhook_id.encode(errors="replace"), stamp.encode(), body)
    expected = [_signature(key, signed).encode() for key in keys]
    offered = [one[3:].encode(errors="replace") for one in given.split(" ") if one.startswith("v1,")]
    matches = [hmac.compare_digest(mine, theirs) for mine in expected for theirs in offered[: 2 * MOST_SECRETS]]
    if not any(matches):
        raise InvalidSignature("webhook-signature", "does not fit this body, id, time and secret")
    return webhook_id


def keys_of(secrets: EndpointSecrets) -> list[bytes]:
    """The keys behind one secret, or several during a rotation; ConfigError for what is none, without showing it."""
    given = [secrets] if isinstance(secrets, str) else list(secrets) if isinstance(secrets, Iterable) else [None]
    if not 1 <= len(given) <= MOST_SECRETS:
        raise ConfigError(f"secrets: {len(given)} are given for one endpoint; give 1 to {MOST_SECRETS}")
    return [_key(secret) for secret in given]


def _key(secret: object) -> bytes:
    way_out = "make one with treadle.builtin.webhook_signature.new_secret()"
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise ConfigError(f"secrets: a secret must be text that begins with {PREFIX}; {way_out}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"secrets: what follows {PREFIX} is not base64; {way_out}") from None
    if len(key) not in KEY_SIZES:
        least, most = KEY_SIZES[0], KEY_SIZES[-1]
        raise ConfigError(f"secrets: a secret has {len(key)} bytes; it must have {least} to {most}; {way_out}")
    return key


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _header(found: Mapping[str, str], name: str) -> str:
    value = found.get(name, "")
    if not value:
        raise InvalidSignature(name, "is missing")
    return value
