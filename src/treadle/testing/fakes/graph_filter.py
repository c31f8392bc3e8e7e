"""The part of $filter that finds a message of one's own: by Message-ID, by an extended property, drafts."""

import re
from collections.abc import Callable
from typing import Any

from treadle.testing.fakes.http_fake import Refusal

TEXT = r"'((?:[^']|'')*)'"
PLAIN = re.compile(rf"(internetMessageId|subject|conversationId)\s+eq\s+{TEXT}")
FLAG = re.compile(r"(isDraft|isRead|hasAttachments)\s+eq\s+(true|false)")
PROPERTY = re.compile(
    rf"singleValueExtendedProperties/any\(\s*(\w+)\s*:\s*\1/id\s+eq\s+{TEXT}\s+and\s+\1/value\s+eq\s+{TEXT}\s*\)",
    re.IGNORECASE,
)
AND = re.compile(r"\s+and\s+")

Test = Callable[[dict[str, Any]], bool]


def matcher(text: str) -> Test:
    """Whether a message fits this $filter; the request is refused if it holds anything else."""
    tests: list[Test] = []
    rest = text.strip()
    while rest:
        for pattern, test in ((PLAIN, _plain), (FLAG, _flag), (PROPERTY, _property)):
            if found := pattern.match(rest):
                tests.append(test(*found.groups()))
                break
        else:
            raise Refusal(400, "ErrorInvalidUrlQueryFilter", f"this stand-in does not know the filter {rest!r}")
        rest = rest[found.end() :]
        rest = AND.sub("", rest, count=1) if AND.match(rest) else _end(rest)
    return lambda message: all(test(message) for test in tests)


def _plain(name: str, value: str) -> Test:
    return lambda message: message.get(name) == value.replace("''", "'")


def _flag(name: str, value: str) -> Test:
    return lambda message: message.get(name) == (value == "true")


def _property(_: str, id: str, value: str) -> Test:
    """The name in an id counts in its case, the value does not."""
    wanted = id.replace("''", "'"), value.replace("''", "'").lower()
    return lambda message: any(
        (one.get("id"), str(one.get("value")).lower()) == wanted
        for one in message.get("singleValueExtendedProperties", [])
    )


def _end(rest: str) -> str:
    if rest.strip():
        raise Refusal(400, "ErrorInvalidUrlQueryFilter", f"this stand-in does not know the filter {rest!r}")
    return ""
