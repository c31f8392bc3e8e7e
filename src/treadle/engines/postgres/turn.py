"""The statement of a turn that claims: its text (sql/turn.sql explains it), its parameter, and its answer."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, Literal, NamedTuple

from treadle.engines.postgres.cursors import ClaimCursor
from treadle.engines.postgres.rows import CHANGE, packed, stored, unpack, without_comments
from treadle.engines.postgres.settle import SETTLED
from treadle.engines.rows import Row
from treadle.engines.values import Claim

# ---------------------------------------------------------------------------------------------- the text

Lanes = Literal["all_lanes", "named_lanes", "resumes"]


class TurnForm(NamedTuple):
    """Which parts of sql/turn.sql a turn needs."""

    settles: bool  # it has changes to write
    parked: bool  # some job of its queues may be parked, or a pause may hold
    lanes: Lanes  # it takes any lane, takes lanes by name, or continues from cursors

    @property
    def parts(self) -> frozenset[str]:
        """The names of these parts."""
        flags = {"settles": self.settles, "parked": self.parked, self.lanes: True}
        return frozenset(name for name, kept in flags.items() if kept)


LANES: tuple[Lanes, ...] = ("all_lanes", "named_lanes", "resumes")
FORMS = tuple(
    TurnForm(settles, parked, lanes) for settles, parked, lanes in product((True, False), (True, False), LANES)
)


def turn_form(claim: Claim, *, settles: bool, parked: bool, resumes: bool) -> TurnForm:
    """The form for this claim."""
    lanes: Lanes = "resumes" if resumes else "all_lanes" if claim.lanes is None else "named_lanes"
    return TurnForm(settles, parked, lanes)


@cache
def statement(form: TurnForm) -> str:
    """The text as it is sent: without comments."""
    return without_comments(commented(form))


def commented(form: TurnForm) -> str:
    """The text with its comments."""
    kept = "\n".join(_kept(source(), form.parts))
    return kept.replace("{unpack}", unpack(CHANGE).strip()).replace("{settled}", SETTLED.strip())


def source() -> str:
    """The text with all parts."""
    return (resources.files("treadle.engines.postgres") / "sql" / "turn.sql").read_text("utf-8").partition("\n\n")[2]


def _kept(text: str, parts: frozenset[str]) -> Iterator[str]:
    """The lines outside every `-- if`, and those of the parts that are wanted."""
    keep = True
    for line in text.splitlines():
        match line.split():
            case ["--", "if", "not", name]:
                keep = name not in parts
            case ["--", "if", name]:
                keep = name in parts
            case ["--", "end", "if"]:
                keep = True
            case _:
                if keep:
                    yield line


# ----------------------------------------------------------------------------------------- its parameter

_ANY_VERSION = 2**31 - 1
_NO_VERSION = -(2**31) - 1


def parameter(
    changes: Sequence[dict[str, Any]],
    claim: Claim,
    now: datetime | None,
    *,
    audit_all: bool = False,
    cursors: Sequence[ClaimCursor] = (),
    spare: int = 0,
    again: bool = False,
    round_: int = 0,
) -> str:
    """The one parameter of the statement.

    `again`: this is a further round of a claim that is not yet full. Without it a token that holds jobs already gets no
    more of them, because the turn was sent before and its answer was lost. `spare`: how many jobs may be parked beside
    those that are claimed.
    """
    request = {
        "token": claim.token,
        "worker": claim.worker,
        "lease": claim.lease,
        "limit": claim.limit,
        "spare": spare,
        "queues": list(claim.queues),
        "lanes": None if claim.lanes is None else list(claim.lanes),
        "known": _known(claim),
        "any_task": claim.tasks is None,
        "cursors": [{**cursor._asdict(), "due_at": stored(cursor.due_at)} for cursor in cursors],
        "again": again,
        "round": round_,
        "audit_all": audit_all,
    }
    return packed(changes, now, claim=request)


def _known(claim: Claim) -> list[dict[str, Any]]:
    """The tasks that the claim says something about: the newest version that it takes of each."""
    names = claim.versions if claim.tasks is None else claim.tasks
    known = {name: claim.versions.get(name, _ANY_VERSION) for name in names} | dict.fromkeys(claim.unless, _NO_VERSION)
    return [{"task": name, "version": version} for name, version in known.items()]


# -------------------------------------------------------------------------------------------- its answer


class TurnAnswer:
    """What the statements of one turn have answered so far."""

    def __init__(self) -> None:
        self.settled: set[str] = set()
        self.claimed: set[str] = set()
        self.tokens_before: dict[str, str | None] = {}  # of a job that this turn has a change for as well
        self.held = 0  # jobs that the token held before the last statement
        self.parked = 0  # jobs that the last statement has parked
        self.parked_or_paused = False  # whether it found a pause, or a parked job
        self.more = False  # whether the last statement may have left something
        self.took = 0.0  # seconds, of the last statement
        self.resumed = False  # whether it continued from cursors
        self.now: datetime | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Add the rows of one statement; sql/turn.sql explains the kinds at its end."""
        self.parked, self.parked_or_paused, self.more = 0, False, False
        for kind, value, now, token in rows:
            match kind:
                case "s":
                    self.now = now.astimezone(UTC)
                    if value is not None:
                        self.settled.add(value)
                case "c":
                    self.claimed.add(value)
                case "b":
                    self.tokens_before[value] = token
                case "h":
                    self.held = int(value)
                case "p":
                    self.parked = int(value)
                case "a":
                    self.parked_or_paused = True
                case _:
                    self.more = True
        self.more = self.more or self.parked > 0
