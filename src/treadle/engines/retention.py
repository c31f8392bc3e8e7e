"""Which finished jobs are old enough to go, found without walking over those that stay each time anew."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from treadle.engines.values import Retention
from treadle.model import State

AGAIN = 3600.0  # seconds after which a walk begins at the oldest job again: some stayed only for their key
LONGEST = 20  # windows of each rule that one call walks through


class Rule(NamedTuple):
    """Jobs of a state go at this age: of `these` tasks, or of all but them."""

    state: State
    age: timedelta
    tasks: frozenset[str]
    these: bool

    @property
    def picky(self) -> bool:
        """Whether it walks over jobs that stay."""
        return self.these or bool(self.tasks)

    def wants(self, task: str) -> bool:
        return (task in self.tasks) == self.these


def rules(keep: Retention) -> list[Rule]:
    found = []
    for state in (state for state in State if state.final):
        own = {task: ages[state] for task, ages in keep.tasks.items() if state in ages}
        if state in keep.states:
            named = frozenset(own) if keep.only is None else keep.only.difference(own)
            found.append(Rule(state, keep.states[state], named, these=keep.only is not None))
        asked = own.keys() if keep.only is None else own.keys() & keep.only
        found += [Rule(state, age, frozenset([task]), these=True) for task in asked if (age := own[task]) is not None]
    return found


Place = Any
"""Where a look at the finished jobs ended, in the engine's own words; None: at the oldest."""


class Window(NamedTuple):
    """A part of the walk: how many went, and where the look ended (None: there is no more)."""

    gone: int
    end: Place


class Sweeper:
    """Walks through the finished jobs of each rule, oldest first; goes on where it was."""

    def __init__(self) -> None:
        self._reached: dict[Rule, tuple[Place, float]] = {}
        self._ended: set[Rule] = set()  # whose walk has reached the newest job

    def sweep(
        self,
        keep: Retention,
        limit: int,
        now: datetime,
        window: Callable[[Rule, Place, datetime, int], Window],
        *,
        to_the_end: bool,
    ) -> int:
        """Delete up to `limit` jobs; `window(rule, since, until, limit)` does a part of it."""
        gone = 0
        for rule in rules(keep):
            until = _back(now, rule.age)
            for place in count(1):
                if gone >= limit:
                    return gone
                done = window(rule, self._since(rule), until, limit - gone)
                gone += done.gone
                if done.end is None:
                    self._ended.add(rule)
                    break
                if rule.picky:
                    began = self._reached.get(rule, (done.end, time.monotonic()))[1]
                    self._reached[rule] = (done.end, began)
                if place == LONGEST and not to_the_end:
                    break
        return gone

    def _since(self, rule: Rule) -> Place:
        reached = self._reached.get(rule)
        if reached is not None and rule in self._ended and time.monotonic() - reached[1] > AGAIN:
            self._reached.pop(rule, None)
            self._ended.discard(rule)
            return None
        return reached[0] if reached is not None else None


def _back(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
