"""Schedules by the page, and items that change one in the caller's own transaction."""

from collections.abc import Callable

from treadle.engines.dynamodb.caller_items import CallerItems
from treadle.engines.dynamodb.client import MAX_SORT_KEY, Client
from treadle.engines.dynamodb.records import Records
from treadle.engines.dynamodb.rows import named_key, tenant_range
from treadle.engines.records import TABLES
from treadle.engines.scripts import Items, ItemScript
from treadle.engines.values import ScheduleFilter
from treadle.errors import NotPossible
from treadle.model import Event
from treadle.model.records import Schedule, subject_of_schedule

FIND_PAGE = 200  # items of one read
_JUST_AFTER = "\x00"  # at the end of a sort key: the next one that there can be


class ScheduleItems:
    """The schedules of one table, beside what all records have."""

    def __init__(self, client: Client, records: Records, events: Callable[[str], list[Event]]) -> None:
        self._client = client
        self._records = records
        self._events = events

    def find(self, where: ScheduleFilter, limit: int, after: tuple[str, str] | None) -> list[Schedule]:
        """The first schedules that match; a page is read, sorted out, and the next one read, until there are enough."""
        try:
            low, high = (" ", MAX_SORT_KEY) if where.tenant is None else tenant_range(where.tenant)
            if after is not None:
                low = max(low, named_key(Schedule, {"tenant": after[0], "name": after[1]}).sk + _JUST_AFTER)
            low.encode()
        except UnicodeEncodeError:  # what cannot be stored is not there
            return []
        found: list[Schedule] = []
        for page in self._client.pages(TABLES[Schedule].name, low=low, high=high, limit=min(FIND_PAGE, limit)):
            found += [schedule for schedule in self._records.from_items(Schedule, page) if where.matches(schedule)]
            if len(found) >= limit:
                break
        return found[:limit]

    def schedule_script(self, tenant: str, name: str) -> ItemScript[tuple[Schedule | None, int]]:
        """Read a schedule; NotPossible if the caller's list writes it already, because an item is written once."""
        listed = CallerItems((yield Items()))
        if listed.writes(named_key(Schedule, {"tenant": tenant, "name": name})):
            raise NotPossible(
                f"tx: this list changes schedule {name!r} already, and a DynamoDB transaction writes an item once: "
                "commit it first"
            )
        for schedule in self._records.read(Schedule, tenant, name):
            return schedule, 0
        trail = self._events(subject_of_schedule(tenant, name))
        return None, max((event.revision for event in trail), default=-1) + 1

    def save_script(self, after: Schedule | None, before: Schedule | None, event: Event) -> ItemScript[bool]:
        """The items that write or delete a schedule; what changes until they are committed cancels them."""
        parts = self._records.schedule_parts(after, before, event)
        yield CallerItems((yield Items())).adding(parts)
        return True
