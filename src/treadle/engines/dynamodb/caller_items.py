"""The caller's own TransactWriteItems: what its list holds, and what we add to it.

Nothing is written here. What can be known beforehand comes from consistent reads and from what the list already holds.
What happens until the caller commits is caught by the conditions in the items, which then cancel the whole transaction.
"""

from collections.abc import Sequence
from datetime import datetime

from treadle.engines.dynamodb.client import MAX_ITEMS
from treadle.engines.dynamodb.items import Item, ItemKey, holder_of, key_of
from treadle.engines.dynamodb.pieces import joined, large_names, piece_keys
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, unique_key_of
from treadle.engines.scripts import Items
from treadle.errors import ConfigError, EngineError
from treadle.model import Job


class CallerItems:
    """What the caller's list does so far."""

    def __init__(self, rows: Sequence[tuple[Part, ...]]) -> None:
        self.put: dict[ItemKey, Item] = {}
        self.deleted: set[ItemKey] = set()
        self._size = len(rows)
        for number, [part] in enumerate(rows):
            if not isinstance(part, dict) or len(part) != 1 or not isinstance(next(iter(part.values())), dict):
                raise ConfigError(f'tx: item {number} of the list does not have the form {{"Put": {{...}}}}')
            [(kind, fields)] = part.items()
            item = fields.get("Item") or fields.get("Key", {})
            if "PK" in item and "SK" in item and kind == "Put":  # the items of other tables may have any keys
                self.put[key_of(item)] = item
            elif "PK" in item and "SK" in item:
                self.deleted.add(key_of(item))

    def writes(self, key: ItemKey) -> bool:
        """Whether the list writes this item."""
        return key in self.put or key in self.deleted

    def job(self, job_id: str) -> Job | None:
        """The job of this id that is new in the list."""
        for key, item in self.put.items():
            if "job_type" in item and key.sk.endswith(f"#{job_id}"):
                names = large_names(item)
                return job_from(
                    item, {name: joined([self.put[one] for one in piece_keys(job_id, item, name)]) for name in names}
                )
        return None

    def adding(self, parts: Sequence[Part]) -> Items:
        """The step that adds these; EngineError if they are too many."""
        size = self._size + len(parts)
        if size > MAX_ITEMS:
            raise EngineError(
                f"tx: {size} items are more than the {MAX_ITEMS} that a DynamoDB transaction takes: "
                "commit these first, or enqueue without tx"
            )
        return Items(parts)


def first_of(job: Job, listed: CallerItems, reader: Reader, now: datetime) -> tuple[Job | None, str | None]:
    """The job that has this id or this key already; or the id of a job that holds the key and is gone."""
    known = listed.job(job.id) or reader.get([job.id])[0]
    if known is not None or job.key is None:
        return known, None
    unique = unique_key_of(job)
    if unique in listed.deleted:
        raise EngineError(f"tx: this list frees the key {job.key!r} and cannot take it too: commit it first")
    if unique in listed.put:
        return listed.job(holder_of(listed.put[unique]) or ""), None
    return reader.holder(unique, now)
