"""Times as people write them: a moment with a zone, or a duration from now on or before now."""

from datetime import datetime

from treadle.errors import ConfigError, InvalidJob
from treadle.model.clock import seconds


def moment_from(text: str | None, option: str) -> datetime | str | None:
    """A moment with a zone; anything else is left to be read as a duration."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if text.isdigit():  # 20300131 is a basic ISO date, but who writes digits means seconds
        return text
    if moment.tzinfo is None:
        raise InvalidJob(option, f"{text!r} has no time zone; write {moment.isoformat()}Z for UTC, or +01:00")
    return moment


def past_from(text: str | None, option: str) -> datetime | float | None:
    """A moment with a zone, or how many seconds ago."""
    when = moment_from(text, option)
    if not isinstance(when, str):
        return when
    try:
        return seconds(when, option)
    except ConfigError:
        raise InvalidJob(
            option, f"{when!r} is no time; write 2030-01-31T12:00Z, or how long ago: 30m, 2h, 7d"
        ) from None


def soon_from(text: str | None, option: str) -> datetime | float | None:
    """A moment with a zone, or in how many seconds."""
    when = moment_from(text, option)
    if not isinstance(when, str):
        return when
    try:
        return seconds(when, option)
    except ConfigError:
        raise InvalidJob(option, f"{when!r} is no time; write 2030-01-31T12:00Z, or from now: 30m, 2h, 1d") from None
