"""Values as a request holds them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

TIMES = frozenset(
    {"since", "before", "until", "after", "run_after", "expires_at", "expires", "timeout", "window", "every", "jitter",
     "misfire_age"}
)  # fmt: skip
"""What is a moment or a duration, and travels as text."""


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was given; times as text, tasks by their name."""
    return {
        name: when(value) if name in TIMES else _plain(value) for name, value in fields.items() if value is not None
    }


def when(value: Any) -> str | None:
    """A moment or a duration as the API reads it: 2030-01-31T12:00:00+00:00, 90.0 (seconds), 5m."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return repr(value.total_seconds())
    return repr(float(value)) if isinstance(value, int | float) else value


def _plain(value: Any) -> Any:
    return value.name if hasattr(value, "enqueue_payload") else value
