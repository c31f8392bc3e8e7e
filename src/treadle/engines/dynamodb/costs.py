"""What ended jobs have cost: lines by the day they ended, and a list of the days that have any."""

from collections.abc import Sequence
from datetime import datetime

from treadle.engines.dynamodb.client import ALL, Client
from treadle.engines.dynamodb.items import Item, Place, part_of, plain, text_of, value_of
from treadle.engines.dynamodb.lines import day_of, lines
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.writes import COST_KEPT, Table, put
from treadle.model import Job


class Costs:
    """The costs of one table."""

    def __init__(self, client: Client, table: Table, each: Each) -> None:
        self._client = client
        self._table = table
        self._each = each
        self._days: set[str] = set()  # that were written down by this process

    def expect(self, job: Job) -> None:
        """Write down that there are jobs of this day, before the first one's line."""
        day = day_of(job.finished_at)
        if job.state.final and job.cost_micros > 0 and job.finished_at is not None and day not in self._days:
            ttl = value_of(int(job.finished_at.timestamp()) + COST_KEPT)
            self._client.write([put(self._table, Place("costs", day), {"ttl": ttl})])
            self._days.add(day)

    def read(self, since: datetime, until: datetime, tenant: str | None) -> dict[tuple[str, str], int]:
        pages = self._client.pages("costs", low=day_of(since), high=day_of(until), limit=1000)
        days = [item["SK"]["S"] for page in pages for item in page]
        numbers = range(lines(self._table.spread))
        found: dict[tuple[str, str], int] = {}
        for part in self._each(
            lambda pk: self._lines(pk, tenant), [f"cost#{day}#{number:02x}" for day in days for number in numbers]
        ):
            for item in part:
                at = plain(item)
                if text_of(since) <= at["finished_at"] < text_of(until):
                    key = (at["tenant"], at["task"])
                    found[key] = found.get(key, 0) + int(at["cost_micros"])
        return found

    def _lines(self, pk: str, tenant: str | None) -> Sequence[Item]:
        low, high = (" ", ALL) if tenant is None else (f"{part_of(tenant)}#", f"{part_of(tenant)}$")
        return [item for page in self._client.pages(pk, low=low, high=high, limit=1000) for item in page]
