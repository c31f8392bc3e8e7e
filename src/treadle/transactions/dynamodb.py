"""A list of items for TransactWriteItems as the caller's transaction: we add ours, the caller commits them all."""

import time
from typing import Any

from treadle.engines.scripts import Items
from treadle.errors import ConfigError
from treadle.transactions.joined import Rows, Step


class Collected:
    """Adds to the caller's list, all at the end: an error leaves the list as it was."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._ours: list[Any] = []

    def answer(self, step: Step) -> Rows:
        if isinstance(step, float):
            time.sleep(step)
            return []
        if not isinstance(step, Items):
            raise ConfigError(
                "tx: a list collects items for a DynamoDB transaction, but the jobs of this app are not in DynamoDB: "
                "pass a connection to the database that the app's url names"
            )
        self._ours += step.new
        return [(item,) for item in (*self._items, *self._ours)]

    def commit(self) -> None:
        self._items += self._ours
