"""The one statement of a turn: the function turn() of the schema, what it is given, and what it answers.

The function is in migrations/0013_trace.pre.sql, and its claim in 0010_claim.pre.sql, explained statement by statement.
"""

import json
import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.engines.postgres.cursors import ClaimCursor
from treadle.engines.postgres.rows import job_from, packed, row_in, stored
from treadle.engines.rows import COLUMNS
from treadle.engines.values import Claim, ClaimedJob
from treadle.errors import EngineError
from treadle.model import Job
from treadle.model.clock import from_micros, micros
from treadle.model.lifecycle import Success

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

TURN = "select * from @.turn($1, $2, $3, $4, $5, $6, $7, $8)"
HELD = "select * from @.held_jobs($1)"

PATIENCE = 0.2  # seconds for which a claim goes on looking for more
THOROUGH_PATIENCE = 10.0  # of one that must look everywhere
MAX_PARKED = 1000  # jobs that one round may park beside those that it claims

_ANY_VERSION = 2**31 - 1
_NO_VERSION = -(2**31) - 1

# ------------------------------------------------------------------------------------- what it is given


def parameters(
    changes: Sequence[dict[str, Any]], successes: Sequence[Success], claim: str, now: datetime | None
) -> list[Any]:
    """The parameters of TURN; `changes` are records of plain changes."""
    text = packed(changes, now) if changes else None
    return [now, text, *_arrays(successes), claim]


def _arrays(successes: Sequence[Success]) -> list[str | None]:
    """Successes as five arrays, written as the server reads them: the fastest way there."""
    if not successes:
        return [None] * 5
    starts: dict[datetime, str] = {}  # many jobs start at the same moment
    for success in successes:
        if success.started_at not in starts:
            starts[success.started_at] = str(micros(success.started_at))
    columns = (
        [success.id for success in successes],
        [success.token for success in successes],
        [str(success.revision) for success in successes],
        [starts[success.started_at] for success in successes],
        [_element(success.result_json) for success in successes],
    )
    return ["{" + ",".join(column) + "}" for column in columns]


def _element(text: str | None) -> str:
    """A text as an element of an array."""
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def travels(success: Success) -> bool:
    """Whether its values can stand in an array as they are: a token of ours can."""
    return success.token.isascii() and success.token.replace("-", "").isalnum()


def request(
    claim: Claim | None,
    *,
    audit_all: bool,
    round_: int = 0,
    after: Sequence[str] | None = None,
    cursors: Sequence[ClaimCursor] = (),
) -> str:
    """The claim as the function takes it; `after` is the queue and lane that was served last."""
    if claim is None:
        return json.dumps({"audit_all": audit_all})
    known = _known(claim)
    return json.dumps(
        {
            "token": claim.token,
            "worker": claim.worker,
            "lease": claim.lease,
            "limit": claim.limit,
            "queues": sorted(set(claim.queues)),
            "lanes": None if claim.lanes is None else list(claim.lanes),
            "tasks": list(known),
            "versions": list(known.values()),
            "any_task": claim.tasks is None,
            "audit_all": audit_all,
            "round": round_,
            "after": after,
            "cursors": [{**cursor._asdict(), "due_at": stored(cursor.due_at)} for cursor in cursors] or None,
            "patience": THOROUGH_PATIENCE if claim.thorough else PATIENCE,
            "parks": MAX_PARKED,
        }
    )


def _known(claim: Claim) -> dict[str, int]:
    """The tasks that the claim says something about: the newest version that it takes of each."""
    names = claim.versions if claim.tasks is None else claim.tasks
    known = {name: claim.versions.get(name, _ANY_VERSION) for name in names}
    return known | dict.fromkeys(claim.unless, _NO_VERSION)


# --------------------------------------------------------------------------------------- what it answers


class TurnAnswer(NamedTuple):
    """What the function has answered. `looked`: it claimed, or tried to; then it has written all that it was given."""

    now: datetime
    settled: frozenset[str]
    succeeded: frozenset[str] | None  # None: all of them
    looked: bool = False
    held: int = 0  # jobs that the token held before
    taken: int = 0
    more: bool = False
    after: Sequence[str] | None = None
    claimed: "ClaimedRows | None" = None  # None: too many or too large, to be read after the commit
    search_time: float = 0.0  # seconds to find the jobs
    take_time: float = 0.0  # seconds to take them
    resumed: bool = False  # whether it continued from cursors


def answer_of(rows: "ClaimedRows") -> TurnAnswer:
    """What the function has answered: its first row says what was done, the others are jobs that it claimed."""
    summary = json.loads(rows.summary())
    claim = summary["claim"] or {}
    return TurnAnswer(
        from_micros(summary["now"]),
        frozenset(summary["settled"] or ()),
        None if summary["succeeded"] is None else frozenset(summary["succeeded"]),
        bool(claim),
        claim.get("held", 0),
        claim.get("taken", 0),
        claim.get("more", False),
        claim.get("after"),
        rows if claim.get("small") else None,
        claim.get("search_time", 0.0),
        claim.get("take_time", 0.0),
    )


_ID, _TASK, _PAYLOAD = (COLUMNS.index(name) for name in ("id", "task", "payload"))
_TIMEOUT, _ATTEMPT, _REVISION = (COLUMNS.index(name) for name in ("timeout", "attempt", "revision"))
_CRASHES, _BUDGET, _COST = (COLUMNS.index(name) for name in ("crashes", "max_attempts", "cost_micros"))
_FLOAT = struct.Struct(">d")
_SCOPE, _ON_END, _QUEUE, _DUE = (COLUMNS.index(name) for name in ("key_scope", "on_end", "queue", "due_at"))
_SUMMARY = COLUMNS.index("trace")  # the last column of a job_row: the trace of a job, the summary of a turn
_Y2000 = 946_684_800.0  # when the server's binary times begin, in seconds since 1970


class ClaimedRows:
    """Jobs in an answer. A worker needs a few values of each; the others stay there until somebody asks."""

    def __init__(self, result: "PGresult") -> None:
        self._result = result

    def claimed(self, token: str, first: int) -> list[ClaimedJob]:
        """The jobs from this row on."""
        value: Callable[[int, int], Any] = self._result.get_value
        int_of = int.from_bytes
        made = []
        for row in range(first, self._result.ntuples):
            timeout = value(row, _TIMEOUT)
            made.append(
                ClaimedJob(
                    value(row, _ID).decode(),
                    value(row, _TASK).decode(),
                    value(row, _PAYLOAD).decode(),
                    token,
                    int_of(value(row, _REVISION), "big"),
                    int_of(value(row, _ATTEMPT), "big"),
                    None if timeout is None else _FLOAT.unpack(timeout)[0],
                    int_of(value(row, _CRASHES), "big") > 0 or int_of(value(row, _BUDGET), "big") == 1,
                    value(row, _SCOPE) is None and value(row, _ON_END) is None,
                    int_of(value(row, _COST), "big", signed=True),
                    value(row, _QUEUE).decode(),
                    int_of(value(row, _DUE), "big", signed=True) / 1e6 + _Y2000,
                    partial(self.job, row),
                )
            )
        return made

    def summary(self) -> bytes:
        """What the function says besides, in the first row."""
        text = self._result.get_value(0, _SUMMARY)
        if text is None:
            raise EngineError("the server's answer to a turn cannot be read")
        return text

    def job(self, row: int) -> Job:
        """The whole job in this row; any thread may ask for it."""
        try:
            return job_from(row_in(self._result, row))
        except (ValueError, OverflowError) as error:  # a value that no worker can read: the table refuses such
            raise EngineError(f"a job cannot be read: {error}") from error
