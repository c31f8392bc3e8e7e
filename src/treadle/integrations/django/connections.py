"""Django's connections in the threads of handlers: those that are too old or were dropped are closed around a job."""

from collections import Counter
from typing import Any

from django.db import connections

_drops: Counter[str] = Counter()  # by alias: how often a connection of this process was found dropped


def close_old_connections(*, check: bool = False) -> None:
    """As Django's own does; a test that runs jobs is inside `atomic()` and keeps its connection.

    Where the server has dropped one, it may have dropped others: each thread then asks once whether its own works.
    `check` asks in any case.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            if _was_dropped(connection):
                _drops[connection.alias] += 1
            connection.close_if_unusable_or_obsolete()
            _close_if_dropped(connection, check)


def _was_dropped(connection: Any) -> bool:
    """Whether a query before found it unusable; Django itself closes one that it cannot roll back."""
    if not connection.errors_occurred:
        return False
    connection.errors_occurred = False  # asked now, and not again
    if connection.connection is not None and connection.is_usable():
        return False
    connection.close()
    return True


def _close_if_dropped(connection: Any, check: bool) -> None:
    drops = _drops[connection.alias]
    behind = getattr(connection, "_treadle_drops", 0) != drops
    connection._treadle_drops = drops
    if connection.connection is None or not (check or behind):
        return
    if connection.is_usable():
        connection.health_check_done = True
    else:
        connection.close()
        if not behind:  # nobody has said so yet
            _drops[connection.alias] += 1
