"""What a summary holds, when it is due, and how it reads."""

from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict

MORNING = time(7)  # in the user's time zone
MOST_LINES = 40  # of messages in a summary
LONGEST_LINE = 200  # characters


class Summary(BaseModel):
    """The payload of `daily_summary`: all it needs, so that it says the same however late it runs."""

    model_config = ConfigDict(extra="forbid")
    user_id: str
    real_name: str
    day: date
    tz: str


def next_morning(now: datetime, tz: str) -> datetime:
    """The first morning after `now` in this zone; `now` is in UTC."""
    zone = ZoneInfo(tz)
    day = now.astimezone(zone).date()
    today, tomorrow = (datetime.combine(day + timedelta(days), MORNING, zone) for days in (0, 1))
    return today if today > now else tomorrow


def text_of(summary: Summary, lines: list[str]) -> str:
    yesterday = summary.day - timedelta(1)
    text = f"Good morning, {summary.real_name}. On {yesterday:%A, %d %B} there were {len(lines)} messages."
    left_out = [f"… and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return "\n".join([text, *lines[:MOST_LINES], *left_out])


def line_of(message: dict[str, Any]) -> str:
    text = " ".join(message["text"].split())
    return f"• {text}" if len(text) <= LONGEST_LINE else f"• {text[:LONGEST_LINE]}…"
