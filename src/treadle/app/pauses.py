"""Pauses: which jobs may not be claimed, everybody's or one tenant's."""

import time
from datetime import datetime

from treadle.app.handle import Handle, note
from treadle.edits import Act, put, remove
from treadle.engines.values import JobFilter
from treadle.errors import InvalidJob, NotPossible
from treadle.model import EventKind, State, check_name
from treadle.model.clock import Duration, moment, seconds
from treadle.model.records import ANY, NOT_PAUSED, Gate, Pause, PauseOwner
from treadle.tasks.faces import async_face

PAUSE_TRIES = 20
POLL_INTERVAL = 0.1  # seconds between two looks at what still runs


class Pauses(Handle):
    """What may be paused and resumed, and by whom."""

    def pause(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        everything: bool = False,
        reason: str = "",
        until: Duration | datetime | None = None,
        actor: str = "api",
        wait: bool = False,
        timeout: Duration = "1h",
        revision: int | None = None,
    ) -> Pause:
        """Let no job of this tenant, queue and task be claimed; with `everything`, no job at all.

        When it returns, no claim of such a job can commit. What runs, runs on; with `wait` it returns when nothing of
        it runs any more (NotPossible if that takes longer than `timeout`; the pause stands). To pause again replaces
        the pause that is there. With a `revision` it must be the one that you have seen, or with -1 none.
        """
        check_name("actor", actor)
        wanted = self._pause_of(tenant, queue, task, everything)
        longest = seconds(timeout, "timeout")
        for _ in range(PAUSE_TRIES):
            now, there = self.engine.now(), self._stored_pause(wanted)
            holds = there if there is not None and not there.over(now) else None
            if holds is not None:
                self._check_owner(holds)
            _check_seen(wanted, holds, revision)
            new = wanted.evolve(actor=actor, reason=note(reason), at=now, until=_end_of_pause(until, now))
            pause = put(self.engine, new, there, Act(EventKind.PAUSED, now, actor, reason))
            if pause is not None:
                if wait:
                    self._wait_until_drained(wanted, longest)
                return pause
        raise NotPossible(f"the pause of {wanted.scope} keeps changing; try again")

    def resume(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        everything: bool = False,
        reason: str = "",
        actor: str = "api",
        revision: int | None = None,
    ) -> Pause:
        """Lift the pause of exactly this scope; NotPossible if there is none.

        A tenant lifts only what it has paused itself (`Pause.owner`). With a `revision` it must still be the pause
        that you have seen.
        """
        check_name("actor", actor)
        wanted = self._pause_of(tenant, queue, task, everything)
        for _ in range(PAUSE_TRIES):
            pause = self._stored_pause(wanted)
            if pause is None:
                there = "; ".join(one.scope for one in self.pauses()) or "nothing"
                raise NotPossible(f"{wanted.scope} is not paused by itself; paused: {there}")
            self._check_owner(pause)
            _check_seen(wanted, pause, revision)
            if remove(self.engine, pause, Act(EventKind.RESUMED, self.engine.now(), actor, reason)):
                return pause
        raise NotPossible(f"the pause of {wanted.scope} keeps changing; try again")

    def pauses(self) -> list[Pause]:
        """The pauses that hold now."""
        return [pause for pause in self._pauses_now() if self._store.tenant in (None, pause.tenant)]

    def _pauses_now(self) -> list[Pause]:
        return list(Gate.at(self.engine.records(Pause), self.engine.now()).pauses)

    def _pause_of(self, tenant: str | None, queue: str | None, task: str | None, everything: bool) -> Pause:
        given = {"tenant": self._of(tenant), "queue": queue, "task": task}
        named = {field: name for field, name in given.items() if name is not None}
        for field, name in named.items():
            check_name(field, name)
        part = [field for field in named if field != "tenant" or self._store.tenant is None]
        if everything and part:
            raise InvalidJob("everything", f"is more than {', '.join(part)}: leave out one of them")
        if not everything and not named:  # a name that got lost must not stop them all
            raise InvalidJob("everything", "nothing is named: give tenant, queue or task, or everything=True")
        owner = PauseOwner.OPERATOR if self._store.tenant is None else PauseOwner.TENANT
        return Pause(owner=owner).evolve(**named)

    def _check_owner(self, pause: Pause) -> None:
        """Refuse a tenant that would change what the operators, or a budget, have paused."""
        if self._store.tenant is not None and pause.owner is not PauseOwner.TENANT:
            by = "because its budget is spent" if pause.owner is PauseOwner.BUDGET else "by the operators"
            raise NotPossible(f"{pause.scope} was paused {by}; only the operators can change or lift it")

    def _stored_pause(self, wanted: Pause) -> Pause | None:
        return next((pause for pause in self.engine.records(Pause) if pause[:3] == wanted[:3]), None)

    def _wait_until_drained(self, wanted: Pause, timeout: float) -> None:
        """Wait until nothing runs that the pause would stop."""
        tenant, queue, task = (None if name == ANY else name for name in wanted[:3])
        where = JobFilter(State.RUNNING, task, queue, tenant)
        deadline = time.monotonic() + timeout
        while self.engine.count(where):
            if time.monotonic() > deadline:
                named = [f"job {job.id} and maybe others" for job in self.engine.find(where, limit=1).jobs] or ["jobs"]
                raise NotPossible(f"{wanted.scope} is paused, but {named[0]} still run after {timeout:g} s")
            time.sleep(POLL_INTERVAL)

    apause = async_face(pause)
    aresume = async_face(resume)
    apauses = async_face(pauses)


def _check_seen(wanted: Pause, there: Pause | None, revision: int | None) -> None:
    """Refuse what was meant for another pause than the one that is there."""
    if revision in (None, NOT_PAUSED if there is None else there.revision):
        return
    if there is None:
        raise NotPossible(f"{wanted.scope} is not paused any more; look at it again")
    why = f": {there.reason}" if there.reason else ""
    raise NotPossible(f"{there.scope} was paused by {there.actor} since you looked{why}; look at it again")


def _end_of_pause(until: Duration | datetime | None, now: datetime) -> datetime | None:
    end = moment(until, now, "until")
    if end is not None and end <= now:
        raise InvalidJob("until", f"{end:%Y-%m-%d %H:%M:%S} UTC is past; leave it out to pause until you resume")
    return end
