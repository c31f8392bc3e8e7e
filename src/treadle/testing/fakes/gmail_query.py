"""The part of Gmail's search that jobs use: `newer_than:10d from:ada -is:unread`."""

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from treadle.testing.fakes.gmail_message import StoredMessage
from treadle.testing.fakes.http_fake import Refusal

DAYS = {"d": 1, "m": 30, "y": 365}
FLAGS = {"unread": "UNREAD", "starred": "STARRED", "important": "IMPORTANT"}

Test = Callable[[StoredMessage], bool]


def search(query: str, now: datetime) -> Test:
    """Whether a message is found. An operator that is not known here is refused: Gmail would take it for a word."""
    try:
        words = shlex.split(query)
    except ValueError:
        words = query.split()
    tests = [_negated(word[1:], now) if word.startswith("-") else _test(word, now) for word in words]
    return lambda message: all(test(message) for test in tests)


def _negated(word: str, now: datetime) -> Test:
    test = _test(word, now)
    return lambda message: not test(message)


def _test(word: str, now: datetime) -> Test:
    operator, colon, value = word.partition(":")
    if not colon:
        return lambda message: word.lower() in f"{message.mail['Subject']} {message.text()}".lower()
    match operator.lower():
        case "newer_than" | "older_than":
            newer, since = operator.lower() == "newer_than", now - _age(value)
            return lambda message: (message.at > since) == newer
        case "after" | "before":
            after, moment = operator.lower() == "after", _moment(value)
            return lambda message: (message.at >= moment) == after
        case "from" | "to" | "cc" | "subject":
            return lambda message: value.lower() in str(message.mail[operator] or "").lower()
        case "rfc822msgid":
            return lambda message: str(message.mail["Message-ID"] or "").strip("<>") == value.strip("<>")
        case "in" | "label":
            return lambda message: value.upper() in {label.upper() for label in message.labels}
        case "is" if value == "read":
            return lambda message: "UNREAD" not in message.labels
        case "is" if value in FLAGS:
            return lambda message: FLAGS[value] in message.labels
        case "has" if value == "attachment":
            return lambda message: any(True for _ in message.mail.iter_attachments())
    raise Refusal(400, "", f"this stand-in does not know the search operator {word!r}")


def _age(value: str) -> timedelta:
    found = re.fullmatch(r"(\d+)([dmy])", value)
    if found is None:
        raise Refusal(400, "", f"{value!r} is not an age; write 10d, 2m or 1y")
    return timedelta(days=int(found[1]) * DAYS[found[2]])


def _moment(value: str) -> datetime:
    if value.isdigit():
        return datetime.fromtimestamp(int(value), UTC)
    try:
        return datetime.strptime(value.replace("-", "/"), "%Y/%m/%d").replace(tzinfo=UTC)
    except ValueError:
        raise Refusal(400, "", f"{value!r} is not a date; write 2026/01/31 or seconds since 1970") from None
