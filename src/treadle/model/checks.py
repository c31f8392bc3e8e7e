"""What every engine takes: the caps, and the checks that name the field and the limit."""

import re

from treadle.errors import InvalidJob
from treadle.model.retry import Retry

PAYLOAD_CAP = 1024 * 1024  # bytes of JSON; of a result too
NAME_CAP = 200  # bytes of UTF-8 in a queue, lane, task, tenant or worker
KEY_CAP = 1000  # with tenant and task it must fit one index row on every engine
TRACE_CAP = 600  # a traceparent has 55 characters, and a tracestate of 512 must be carried
MESSAGE_CAP = 4_000
TRACEBACK_CAP = 32_000
PRIORITIES = range(-(2**31), 2**31)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_retry(retry: Retry) -> None:
    """Refuse a budget or backoff that cannot be meant."""
    if not isinstance(retry, Retry):
        raise InvalidJob("retry", f"{retry!r} is not a retry policy; write Retry(max_attempts=3)")
    retry.checked()


def check_priority(priority: int) -> None:
    """Refuse a priority that is not a whole number, or does not fit every engine."""
    if not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES:
        raise InvalidJob("priority", f"{priority!r} must be a whole number that fits 32 bits")


def check_name(field: str, value: object) -> None:
    """Refuse a name that is empty, too long, or holds what some engine cannot store."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidJob(field, f"{value!r} is not a valid name; give it at least one letter")
    if value == "*":
        raise InvalidJob(field, "'*' is not a valid name: in a pause it stands for all of them")
    check_text(field, value, NAME_CAP)


def check_text(field: str, value: object, cap: int) -> None:
    """Refuse text that is too long or that some engine cannot store."""
    if not isinstance(value, str) or not value:
        raise InvalidJob(field, f"{value!r} must be text that is not empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(field, f"{value!r} holds half a character (a lone surrogate)") from None
    if size > cap:
        raise InvalidJob(field, f"is {size:,} bytes long; the limit is {cap:,}: shorten or hash it")
    if _CONTROL.search(value):
        raise InvalidJob(field, f"{value!r} holds a control character; remove it")


def check_trace(trace: object) -> None:
    """Refuse what is not a W3C traceparent, with a tracestate behind a space or without."""
    check_text("trace", trace, TRACE_CAP)
    parent, _, state = str(trace).partition(" ")
    if not _TRACEPARENT.fullmatch(parent):
        raise InvalidJob(
            "trace", f"{parent!r} is not a W3C traceparent; it looks like 00-<32 hex digits>-<16 hex digits>-01"
        )
    if not state.isascii():
        raise InvalidJob("trace", f"{state!r} is not a W3C tracestate: it has characters that are not ASCII")


def trace_from(traceparent: str | None, tracestate: str | None = None) -> str | None:
    """The trace that a caller's headers name; None if they name none: a broken one is ignored."""
    for trace in (f"{traceparent} {tracestate or ''}".strip(), traceparent):
        try:
            check_trace(trace)
        except InvalidJob:
            continue
        return trace
    return None


def bound_tenant(own: str, named: str | None) -> str:
    """The tenant of a handle that is bound to `own`; InvalidJob if another one is named."""
    if named not in (None, own):
        raise InvalidJob("tenant", f"{named!r} is not the tenant of this handle")
    return own
