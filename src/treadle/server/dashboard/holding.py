"""Which pauses hold a job back."""

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.server.dashboard.words import Row

FIELDS = ("tenant", "queue", "task")  # what a pause may name


def holding(pauses: Sequence[Row], of: Mapping[str, Any]) -> list[Row]:
    """The pauses that hold all jobs of this tenant, queue and task; what is not said may be any."""
    return [pause for pause in pauses if all(pause[field] in (None, of.get(field)) for field in FIELDS)]


def scope_held(pauses: Sequence[Row], of: Mapping[str, Any]) -> str:
    """What is paused that holds them, in words; empty if nothing is."""
    return next((str(pause["scope"]) for pause in holding(pauses, of)), "")
