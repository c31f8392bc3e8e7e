"""Signatures of webhooks, against the text of Standard Webhooks: its example, and a second implementation of it."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle import ConfigError
from treadle.builtin.webhook_signature import InvalidSignature, new_secret, sign, verify
from treadle.errors import InvalidInput

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = int(NOW.timestamp())
BODY = b'{"type":"order.paid"}'


def by_the_text(key: bytes, webhook_id: str, stamp: int, body: bytes) -> str:
    content = webhook_id.encode() + b"." + str(stamp).encode() + b"." + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def headers(signature: str, stamp: object = STAMP, webhook_id: str = "msg_1") -> dict[str, str]:
    return {"Webhook-Id": webhook_id, "webhook-timestamp": str(stamp), "WEBHOOK-SIGNATURE": signature}


def test_the_published_example_is_signed_as_published() -> None:
    secret, webhook_id, body = (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
    )
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(secret, webhook_id, 1614265330, body) == signature
    now = datetime.fromtimestamp(1614265330, UTC)
    assert verify(headers(signature, 1614265330, webhook_id), body, secret, now) == webhook_id


def test_a_signature_is_what_the_text_says_and_each_secret_of_a_rotation_signs() -> None:
    newer = new_secret()
    newer_key = base64.b64decode(newer.removeprefix("whsec_"))
    expected = [by_the_text(key, "msg_1", STAMP, BODY) for key in (newer_key, KEY)]
    assert sign([newer, SECRET], "msg_1", STAMP, BODY).split(" ") == expected
    assert len(newer_key) == 32
    assert new_secret() != newer


def test_a_receiver_takes_any_of_its_secrets_and_any_of_the_signatures() -> None:
    newer = new_secret()
    both = sign([newer, SECRET], "msg_1", STAMP, BODY)
    for secrets in (newer, SECRET, [new_secret(), SECRET]):
        assert verify(headers(both), BODY, secrets, NOW) == "msg_1"
    assert verify(headers(f"v2,abc v1a,def {both}"), BODY, SECRET, NOW) == "msg_1"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"body": BODY + b" "}, "webhook-signature"),
        ({"headers": headers(sign(SECRET, "msg_1", STAMP, BODY), webhook_id="msg_2")}, "webhook-signature"),
        ({"headers": headers(sign(SECRET, "msg_1", STAMP, BODY), STAMP + 1)}, "webhook-signature"),
        ({"headers": headers(sign(new_secret(), "msg_1", STAMP, BODY))}, "webhook-signature"),
        ({"headers": headers("v1,")}, "webhook-signature"),
        ({"headers": headers("v1,é€")}, "webhook-signature"),
        ({"headers": headers("")}, "webhook-signature"),
        ({"headers": headers("v1,x", webhook_id="")}, "webhook-id"),
        ({"headers": headers("v1,x", "soon")}, "webhook-timestamp"),
        ({"headers": headers("v1,x", "٥")}, "webhook-timestamp"),
        ({"headers": headers("v1,x", "9" * 50)}, "webhook-timestamp"),
        ({"now": NOW + timedelta(seconds=301)}, "webhook-timestamp"),
        ({"now": NOW - timedelta(seconds=301)}, "webhook-timestamp"),
        ({"now": NOW + timedelta(seconds=3), "tolerance": "2s"}, "webhook-timestamp"),
    ],
)
def test_what_is_not_genuine_or_not_fresh_is_refused_by_its_header(changed: dict[str, Any], field: str) -> None:
    good = {"headers": headers(sign(SECRET, "msg_1", STAMP, BODY)), "body": BODY, "secrets": SECRET, "now": NOW}
    assert verify(**good) == "msg_1"
    assert verify(**{**good, "now": NOW + timedelta(seconds=300)}) == "msg_1"
    with pytest.raises(InvalidSignature) as refused:
        verify(**{**good, **changed})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "secrets",
    [
        "hush", "whsec_%%%", "whsec_" + base64.b64encode(b"short").decode(),
        "whsec_" + base64.b64encode(b"l" * 65).decode(), [], [SECRET] * 11, [None], None, 5,
    ],
)  # fmt: skip
def test_a_secret_that_is_none_is_refused_and_not_shown(secrets: Any) -> None:
    with pytest.raises(ConfigError, match=r"^secrets: ") as refused:
        sign(secrets, "msg_1", STAMP, BODY)
    assert not any(word in str(refused.value) for word in ("hush", "%%%", "c2hvcnQ"))


def test_a_body_that_was_parsed_a_naive_time_and_a_dotted_id_are_refused() -> None:
    good = headers(sign(SECRET, "msg_1", STAMP, BODY))
    with pytest.raises(InvalidInput, match=r"^body: must be the bytes"):
        verify(good, BODY.decode(), SECRET, NOW)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^now: must have a time zone"):
        verify(good, BODY, SECRET, NOW.replace(tzinfo=None))
    with pytest.raises(InvalidInput, match=r"^webhook-id: "):
        sign(SECRET, "a.b", STAMP, BODY)
