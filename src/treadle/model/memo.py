"""What a job remembers: values kept under names while it runs, for whoever runs it next."""

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

MEMO_CAP = 256 * 1024  # bytes of JSON: with its key it fits one item of every store
MOST_MEMOS = 10_000  # of one job


class MemoState(StrEnum):
    """How far that has come which a memo is about."""

    BEGUN = "begun"  # nobody has written how it ended: the holder is at it, or has died over it
    UNDONE = "undone"  # it was tried, and did not happen
    PARKED = "parked"  # nobody knows whether it happened, and an attempt has ended because of that
    DONE = "done"  # it happened, and the value is what came of it: such a memo never changes


class Memo(NamedTuple):
    """A value that a job keeps under a name. Only who holds the job writes one."""

    name: str
    kind: str  # what keeps it: "once" for an effect that must not repeat
    state: MemoState
    attempt: int  # that wrote it
    began_at: datetime  # when this try at it began; of several tries in doubt, the first
    at: datetime  # when it was written
    value_json: str | None = None
