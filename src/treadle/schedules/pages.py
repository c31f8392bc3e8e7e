"""A page of schedules, and where the next one begins."""

from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

from treadle.engines.contract import RecordStore
from treadle.engines.values import ScheduleFilter
from treadle.errors import InvalidJob
from treadle.model.records import Schedule

READ_AT_ONCE = 1000  # schedules of one read, when all are wanted


class SchedulePage(list[Schedule]):
    """Schedules by tenant and name; `cursor` leads to the next page, and is None at the end."""

    def __init__(self, schedules: Iterable[Schedule] = (), cursor: str | None = None) -> None:
        super().__init__(schedules)
        self.cursor = cursor


def cursor_of(last: Schedule) -> str:
    """The cursor of the page after the one that ends so."""
    return f"{quote(last.tenant, safe='')}/{quote(last.name, safe='')}"


def place_of(cursor: str) -> tuple[str, str]:
    """The tenant and the name after which a page begins."""
    tenant, slash, name = str(cursor).partition("/")
    if not slash or not tenant or not name or "/" in name:
        raise InvalidJob("cursor", f"{cursor!r} is not a valid cursor: pass the cursor of the page before")
    return unquote(tenant), unquote(name)


def every(engine: RecordStore, where: ScheduleFilter, after: tuple[str, str] | None = None) -> Iterator[Schedule]:
    """All schedules that match, read by the page."""
    while True:
        found = engine.find_schedules(where, limit=READ_AT_ONCE, after=after)
        yield from found
        if len(found) < READ_AT_ONCE:
            return
        after = (found[-1].tenant, found[-1].name)
