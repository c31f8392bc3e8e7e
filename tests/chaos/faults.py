"""Kills and freezes workers while they hold leases, restarts their server, and keeps count of what mattered."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.chaos.crew import POISONED
from tests.chaos.nursery import Death, Nursery
from tests.chaos.places import Outage, Store
from treadle import Treadle
from treadle.model import Job

FROZEN_AT_ONCE = 3 / 8  # of the workers
KILL_PAUSE = (0.1, 0.5)  # seconds between two kills
NAPS = 0.3  # share of the pauses that end about when the lease may be taken, to meet the reapers halfway
NAP_ENDS = (-0.05, 0.15)  # seconds after that
PRODUCER_PERIOD = 5.0  # seconds between two kills of the producer
OUTAGE_PAUSE = (3.0, 6.0)  # seconds between two absences of the server
AWAY = 1.5  # leases for which a server stays away at most; half of the time it comes back at once
TERMINATION_PAUSE = (0.05, 0.4)  # seconds between two cuts of a connection
CALM = 3  # looks in a row that find nothing left
GLANCE = 0.02
NEVER_TAKEN = "never taken over"
UNEXPLAINED = 20  # deaths of other causes after which a run is given up


class Aim(NamedTuple):
    """How much is wanted; `lease` and `bound`, by which a recovery may be late, in seconds; `deadline` is monotonic."""

    kills: int
    pauses: int
    restarts: int
    troubles: int
    terminations: int
    workers: int
    lease: float
    bound: float
    deadline: float

    @property
    def outages(self) -> int:
        """How often the server is away: no store knows both ways."""
        return self.restarts + self.troubles


class Crash(NamedTuple):
    """A worker that died, and the jobs whose leases it held then, as the store had them after its death."""

    death: Death
    held: list[Job]

    @property
    def counts(self) -> bool:
        return any(job.lease_until.timestamp() > self.death.at for job in self.held if job.lease_until)


class Pause(NamedTuple):
    """A worker that stood still: what it held, and which of that was claimed again before it went on."""

    name: str
    held: list[Job]
    taken: list[Job]
    frozen_at: float
    resumed_at: float
    why: str  # counted, or why it is not


@dataclass
class Frozen:
    """A worker that stands still now."""

    name: str
    held: list[Job]
    since: float = field(default_factory=time.monotonic)
    taken: list[Job] = field(default_factory=list)
    resume_at: float = float("inf")
    nap_ends: float = float("inf")
    excused: float = 0.0  # seconds in which nobody could take its jobs over, for the server was away

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Faults:
    """Brings the faults about; what came of them is in its lists."""

    def __init__(self, app: Treadle, nursery: Nursery, store: Store, aim: Aim, random: Random) -> None:
        self.kills = 0  # that met a running lease
        self.crashes: list[Crash] = []
        self.pauses: list[Pause] = []
        self.pauses_by_why: Counter[str] = Counter()
        self.deaths: list[Death] = []
        self.outages: list[Outage] = []  # while jobs were running
        self.terminations: Counter[str] = Counter()  # connections cut, by what they were doing
        self.harm = ""  # what the store did besides, in words
        self.strange: set[str] = set()  # what was seen of running jobs that must never be
        self._app, self._nursery, self._store, self._aim, self._random = app, nursery, store, aim, random
        self._frozen: dict[str, Frozen] = {}
        self._running: list[Job] = []
        self._pulse: object = None
        self._beat_at = time.monotonic()
        self._unexplained = 0
        self._kill_at = self._outage_at = self._terminate_at = time.monotonic() + 1.0
        self._producer_at = time.monotonic() + PRODUCER_PERIOD

    @property
    def taken_over(self) -> int:
        """The pauses longer than the lease in which a job was claimed again before SIGCONT."""
        return self.pauses_by_why["counted"]

    def rage(self, tell: Callable[[], None]) -> None:
        """Do harm until there was enough of every kind, or time is up; nobody stands still afterwards."""
        while time.monotonic() < self._aim.deadline and not self._enough:
            self._look()
            self._attend()
            if self.kills < self._aim.kills and time.monotonic() > self._kill_at:
                self._kill()
            few = len(self._frozen) < max(1, int(self._aim.workers * FROZEN_AT_ONCE))
            if few and self.taken_over + len(self._frozen) < self._aim.pauses:
                self._freeze()
            self._kill_producer()
            self._let_be_away()
            self._terminate()
            tell()
            time.sleep(GLANCE)
        self.harm = self._store.calm()
        for frozen in tuple(self._frozen.values()):
            self._resume(frozen, "the run ended")

    def calm(self, folder: Path, patience: float, tell: Callable[[], None]) -> list[Job]:
        """Let the producer part and the workers finish; the jobs that are not final after `patience` seconds."""
        (folder / "enough").touch()
        deadline, calm = time.monotonic() + patience, 0
        while True:
            producing = any(name.startswith("p") for name in self._nursery.alive())  # asked first: its last jobs count
            self._look()
            left = [*self._app.find(state="pending", limit=500).jobs, *self._find_running()]
            calm = 0 if left or producing else calm + 1  # a job may change its state between the two looks
            if calm == CALM or time.monotonic() > deadline:
                return left
            tell()
            time.sleep(GLANCE * 5)

    # ------------------------------------------------------------------------------------------ looking

    @property
    def _enough(self) -> bool:
        aim = self._aim
        people = self.kills >= aim.kills and self.taken_over >= aim.pauses
        server = len(self.outages) >= aim.outages and self.terminations.total() >= aim.terminations
        return (people and server) or self._unexplained > UNEXPLAINED

    def _look(self) -> None:
        """See who runs what, who died by himself, and whether the store still moves."""
        self._running = self._find_running()
        for job in self._running:  # a claim wipes the progress, so what is there must be of this attempt
            if job.progress is not None and job.progress.note != f"{job.worker}/{job.attempt}":
                self.strange.add(
                    f"job {job.id}: {job.worker}/{job.attempt} ran with the progress of {job.progress.note}"
                )
        pulse = max((job.lease_until for job in self._running if job.lease_until), default=None)
        if pulse != self._pulse:
            self._pulse, self._beat_at = pulse, time.monotonic()
        for death in self._nursery.deaths():
            self.deaths.append(death)
            self._unexplained += death.code > 0 and death.code != POISONED
            if not death.ours:
                self._inspect(death)

    def _find_running(self) -> list[Job]:
        return self._app.find(state="running", limit=500).jobs

    def _inspect(self, death: Death) -> None:
        """What the dead left behind. Only they wrote to these leases, so this is what they held when they died."""
        if death.name.startswith("w"):
            self._store.quiet(death.name)
            crash = Crash(death, [job for job in self._find_running() if job.worker == death.name])
            self.crashes.append(crash)
            self.kills += death.ours and crash.counts

    # ------------------------------------------------------------------------------------------ kills

    def _kill(self) -> None:
        victims = self._victims()
        if victims:
            death = self._nursery.kill(self._random.choice(victims))
            if death is not None:
                self._inspect(death)
            self._kill_at = time.monotonic() + self._random.uniform(*KILL_PAUSE)

    def _kill_producer(self) -> None:
        if time.monotonic() > self._producer_at:
            self._producer_at = time.monotonic() + PRODUCER_PERIOD * self._random.uniform(0.5, 1.5)
            for name in self._nursery.alive():
                if name.startswith("p"):
                    self._nursery.kill(name)

    # ------------------------------------------------------------------------------------------ the server

    def _let_be_away(self) -> None:
        if len(self.outages) < self._aim.outages and time.monotonic() > self._outage_at and self._victims():
            away = self._aim.lease * max(0.0, self._random.uniform(-AWAY, AWAY))
            self.outages.append(self._store.outage(len(self.outages), away))
            for frozen in self._frozen.values():  # as checker.Quiet has it
                frozen.excused += self.outages[-1].up - self.outages[-1].down + self._aim.lease / 2
            self._beat_at = time.monotonic()  # no sign of life could come from a server that was away
            self._outage_at = time.monotonic() + self._random.uniform(*OUTAGE_PAUSE)

    def _terminate(self) -> None:
        if self.terminations.total() < self._aim.terminations and time.monotonic() > self._terminate_at:
            self.terminations.update(self._store.terminate(self._random))
            self._terminate_at = time.monotonic() + self._random.uniform(*TERMINATION_PAUSE)

    # ------------------------------------------------------------------------------------------ victims

    def _victims(self) -> list[str]:
        """Who holds a lease right now and does not stand still."""
        now = time.time()
        names = {job.worker for job in self._running if job.lease_until and job.lease_until.timestamp() > now}
        return sorted(name for name in names if name and name not in self._frozen)

    # ------------------------------------------------------------------------------------------ pauses

    def _freeze(self) -> None:
        victims = self._victims()
        if not victims or time.monotonic() - self._beat_at > self._aim.lease / 3:
            return
        name = self._random.choice(victims)
        if self._nursery.stop(name):
            self._store.quiet(name)
            frozen = Frozen(name, [job for job in self._find_running() if job.worker == name])
            self._frozen[name] = frozen
            if not frozen.held:
                self._resume(frozen, "held nothing")
            elif self._random.random() < NAPS:
                ends = max(job.lease_until.timestamp() for job in frozen.held if job.lease_until)
                ends += self._store.margin
                frozen.nap_ends = ends - time.time() + time.monotonic() + self._random.uniform(*NAP_ENDS)

    def _attend(self) -> None:
        """See to those that stand still: wake who has lost a job, and everybody if one of them locks the store."""
        if not self._frozen:
            return
        now = time.monotonic()
        locks = now - max(self._beat_at, min(frozen.since for frozen in self._frozen.values()))
        if locks > self._aim.lease * 0.6:
            for frozen in tuple(self._frozen.values()):
                self._resume(frozen, "one of them locked the store")
            return
        for frozen in tuple(self._frozen.values()):
            if not frozen.taken:
                jobs = self._app.engine.get([job.id for job in frozen.held])
                frozen.taken = [
                    job for job, was in zip(jobs, frozen.held, strict=True) if job and job.attempt > was.attempt
                ]
                if not frozen.taken and all(job is not None and job.state.final for job in jobs):
                    self._resume(frozen, "all it held was to be cancelled, and was")  # by who recovered it: no claim
                    continue
                if frozen.taken:  # mostly while the next holder is at work, sometimes when it is done
                    extra = 0 if self._random.random() < 0.7 else self._random.uniform(0, 0.6)
                    frozen.resume_at = max(now, frozen.since + self._aim.lease + GLANCE) + extra
            if now >= min(frozen.resume_at, frozen.nap_ends):
                self._resume(frozen, "woke about when the lease ended")
            elif frozen.seconds - frozen.excused > self._aim.lease + self._aim.bound + 1.0:
                self._resume(frozen, NEVER_TAKEN)

    def _resume(self, frozen: Frozen, otherwise: str) -> None:
        """Send SIGCONT; a pause that does not count is put down as `otherwise`."""
        del self._frozen[frozen.name]
        why = "counted" if frozen.taken and frozen.seconds > self._aim.lease else otherwise
        resumed_at = time.time()
        if not self._nursery.resume(frozen.name):
            why = "woken by the nursery"
        frozen_at = resumed_at - frozen.seconds
        self.pauses.append(Pause(frozen.name, frozen.held, frozen.taken, frozen_at, resumed_at, why))
        self.pauses_by_why[why] += 1
