"""What is done to one schedule, decided on what is there: by the store itself, or in the caller's transaction."""

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from treadle.edits import Act, AuditedRecords, put, remove
from treadle.errors import NotPossible
from treadle.model import EventKind, check_name
from treadle.model.records import GONE, RETIRED, Schedule
from treadle.schedules.rules import TIMING, next_tick, restarted

if TYPE_CHECKING:
    from treadle.transactions import Steps

EDIT_TRIES = 20
BY_CODE = tuple(
    name
    for name in Schedule._fields
    if name not in ("name", "tenant", "created_at", "enabled", "next_at", "last_at", "last_job", "declared",
                    "updated_at", "revision", "own_id")
)  # fmt: skip
"""What is said of a schedule where it is written; the rest is the operator's, or changes with every run."""

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Decision(NamedTuple):
    """What is to become of a schedule: None deletes it, and what it was already is not written."""

    kind: EventKind
    after: Schedule | None


class ScheduleAct(NamedTuple):
    """What somebody does to the schedule of this tenant and name; `decide` is given what is there, and the time."""

    tenant: str
    name: str
    decide: Callable[[Schedule | None, datetime], Decision]
    actor: str
    reason: str

    def run(self, engine: AuditedRecords) -> Schedule | None:
        """Do it now; the schedule afterwards, None if it was deleted."""
        check_name("actor", self.actor)
        for _ in range(EDIT_TRIES):
            now = engine.now()
            found = next(iter(engine.records(Schedule, tenant=self.tenant, name=self.name)), None)
            kind, after = self.decide(found, now)
            act = Act(kind, now, self.actor, self.reason)
            if after == found:
                return found
            if after is None:
                if found is not None and remove(engine, found, act):
                    return None
            elif (written := put(engine, after, found, act)) is not None:
                return written
        raise self._restless()

    def steps(self, engine: AuditedRecords, now: datetime) -> "Steps[Schedule | None]":
        """The same as statements for the caller's connection, or items for its list."""
        check_name("actor", self.actor)
        for _ in range(EDIT_TRIES):
            found, revision = yield from engine.schedule_script(self.tenant, self.name)
            kind, after = self.decide(found, now)
            if after == found:
                return found
            if found is not None:
                revision = found.revision + 1
            after = None if after is None else after.evolve(revision=revision)
            subject = after or (found and found.evolve(revision=revision))
            if subject is None:
                return None
            event = Act(kind, now, self.actor, self.reason).event(subject)
            if (yield from engine.save_script(after, before=found, event=event)):
                return after
        raise self._restless()

    def _restless(self) -> NotPossible:
        return NotPossible(f"schedule {self.name!r} keeps changing; try again")


# ------------------------------------------------------------------------------------ what is decided


def made(wanted: Schedule, now: datetime) -> Schedule:
    """A schedule that was not there before."""
    new = wanted.evolve(created_at=now, updated_at=now, own_id=None)
    new = new.evolve(own_id=new.id)
    return new.evolve(next_at=next_tick(new, now))


def brought_to(found: Schedule, wanted: Schedule, now: datetime) -> Schedule:
    """A schedule with the values of another; a new time counts from now on."""
    after = found.evolve(**{name: getattr(wanted, name) for name in BY_CODE})
    return _moved(found, after, now)


def edited(found: Schedule, fields: Mapping[str, Any], now: datetime) -> Schedule:
    """A schedule with some new values, which may be of `enabled`: who says so decides it from now on."""
    after = found.evolve(**fields)
    if "enabled" in fields and (after.declared or "").endswith(RETIRED):
        after = after.evolve(declared=f"{(after.declared or '').removesuffix(RETIRED)}{GONE}")
    return _moved(found, after, now)


def _moved(found: Schedule, after: Schedule, now: datetime) -> Schedule:
    if after == found:
        return found
    after = after.evolve(updated_at=now)
    moved = any(getattr(after, field) != getattr(found, field) for field in TIMING)
    return restarted(after, now) if moved or (after.enabled and not found.enabled) else after


# ---------------------------------------------------------------------------------------- async faces


class Later:
    """In place of a transaction of an async library: it takes the statements, to be run on the event loop."""

    steps: "Steps[Any]"


def tx_face(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The method for async code, in a thread; with `tx`, its statements run on the loop, on that connection."""

    @wraps(method)
    async def face(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from asyncio import to_thread  # noqa: PLC0415 - a process that only enqueues does not need it

        tx = kwargs.get("tx")
        if tx is None:
            return await to_thread(method, self, *args, **kwargs)
        from treadle.transactions import arun_in  # noqa: PLC0415 - only those with a transaction need it

        kwargs["tx"] = later = Later()
        await to_thread(method, self, *args, **kwargs)
        return await arun_in(tx, later.steps)

    face.__name__ = f"a{method.__name__}"
    face.__doc__ = f"`{method.__name__}` for async code; `tx` is a connection or session of an async library."
    return face
