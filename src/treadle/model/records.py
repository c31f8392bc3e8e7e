"""The rows beside the jobs, as frozen values: schedules, pauses, workers, seals, API tokens, counts of a minute.

A record has a kind, a key within it and, but for those that only their owner writes, a revision that rises with every
save. Engines store all kinds in the same way (engines.contract: records, save, drop).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple, Self

from treadle.model import OnEnd
from treadle.model.retry import Retry

ANY = "*"
"""In a pause: whichever tenant, queue or task."""

DECLARES = "treadle.schedules:"  # and a module: among a worker's tasks, a number for the schedules that it declares
HIDES = "treadle.secret:"  # and a task and a path: among a worker's tasks, what is secret in the payloads of one
VERSION = "treadle.version:"  # and a version: among a worker's tasks, that of its treadle
MEMORY = "treadle.memory"  # among a worker's tasks, how many bytes its process holds in memory


class Misfire(StrEnum):
    """What becomes of runs that were missed because nobody was there to make them."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What becomes of a run while an earlier one of the same schedule has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"


GONE = " gone"
"""At the end of `Schedule.declared`: code declared it once, and does no more."""

RETIRED = f"{GONE} off"
"""The same, and it was disabled for that: who declares it again, enables it."""


class Schedule(NamedTuple):
    """A row that makes jobs: by a cron expression in a time zone, or every so many seconds from `created_at` on."""

    name: str
    task: str
    created_at: datetime
    tenant: str = "default"
    payload: Any = {}  # noqa: RUF012 - never changed
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    enabled: bool = True
    queue: str = "default"
    lane: str = ""
    priority: int = 0
    task_version: int = 1
    max_attempts: int = Retry().max_attempts
    retry_base: float = Retry().base
    retry_cap: float | None = Retry().cap
    retry_jitter: float = Retry().jitter
    timeout: float | None = None
    misfire: Misfire = Misfire.ONCE
    misfire_limit: int = 100
    misfire_age: float = 86_400.0
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    for_each: str | None = None
    on_end: OnEnd | None = None
    next_at: datetime | None = None  # None: not computed yet
    last_at: datetime | None = None  # the nominal time of the last job it made
    last_job: str | None = None
    declared: str | None = None  # if code declared it: a digest of what it says, its module, and GONE or RETIRED
    updated_at: datetime | None = None
    revision: int = 0
    own_id: str | None = None  # minted when it is made; None: not stored yet, or by code that knew no ids

    def evolve(self, **changes: Any) -> Self:
        return self._replace(**changes)

    @property
    def id(self) -> str:
        """Its UUID, kept over every change; one that is made later under the same name has another.

        It follows from what every version of the code keeps, so that it is the same where an older one dropped it.
        """
        made = self.created_at.astimezone(UTC)
        return self.own_id or derived_id("\x1f".join([self.tenant, self.name, made.isoformat()]), made)

    @property
    def gone(self) -> bool:
        """Whether code declared it once, and does no more."""
        return GONE in (self.declared or "")

    @property
    def declared_in(self) -> str:
        """The module whose code declared it last; empty if none did, or it is not known."""
        return (self.declared or "").removesuffix(RETIRED).removesuffix(GONE).partition(" ")[2]

    @property
    def retry(self) -> Retry:
        return Retry._make((self.max_attempts, self.retry_base, self.retry_cap, self.retry_jitter))


NOT_PAUSED = -1
"""Instead of a pause's revision: that there is none."""


class PauseOwner(StrEnum):
    """Whose a pause is: who may change and lift it. Operators may lift any."""

    OPERATOR = "operator"  # the app's
    TENANT = "tenant"  # its tenant's own, by app.tenant(name)
    BUDGET = "budget"  # a budget that is spent


class Pause(NamedTuple):
    """The gate: no job of this tenant, queue and task is claimed. ANY leaves one of them open to all."""

    tenant: str = ANY
    queue: str = ANY
    task: str = ANY
    actor: str = ""
    reason: str = ""
    at: datetime | None = None
    until: datetime | None = None
    revision: int = 0
    owner: PauseOwner = PauseOwner.OPERATOR

    def evolve(self, **changes: Any) -> Self:
        return self._replace(**changes)

    def over(self, now: datetime) -> bool:
        """Whether it has ended by itself."""
        return self.until is not None and self.until <= now

    @property
    def scope(self) -> str:
        """What it stops, as people read it."""
        named = {"tenant": self.tenant, "queue": self.queue, "task": self.task}
        return ", ".join(f"{what} {name}" for what, name in named.items() if name != ANY) or "everything"

    def blocks(self, tenant: str, queue: str, task: str) -> bool:
        """Whether it stops such a job. Pass ANY to ask about every tenant, queue or task.

        Then only a pause of all of them counts.
        """
        return self.tenant in (ANY, tenant) and self.queue in (ANY, queue) and self.task in (ANY, task)


class Gate(NamedTuple):
    """All pauses that hold at a moment."""

    pauses: Sequence[Pause] = ()

    @classmethod
    def at(cls, pauses: Sequence[Pause], now: datetime) -> "Gate":
        return cls([pause for pause in pauses if not pause.over(now)])

    def blocks(self, tenant: str = ANY, queue: str = ANY, task: str = ANY) -> bool:
        """Whether nothing like this may be claimed; ANY: of whichever tenant, queue or task."""
        return any(pause.blocks(tenant, queue, task) for pause in self.pauses)


def missed_after(period: float) -> float:
    """Seconds without a word after which a worker counts as gone: it may miss two of its beats."""
    return 3 * period + 1


def twin_name(name: str, pid: int) -> str:
    """How the second of two live workers of one name is listed."""
    return f"{name} #{pid}"


class WorkerInfo(NamedTuple):
    """A worker that is alive, as it last said."""

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    lanes: Sequence[str] | None
    tasks: Mapping[str, int]  # task -> the newest version it runs; and what DECLARES, HIDES, VERSION and MEMORY tell
    concurrency: int
    running: int
    stopping: bool
    started_at: datetime
    seen_at: datetime
    period: float  # seconds until it says so again

    @property
    def task_names(self) -> list[str]:
        """The tasks that it knows."""
        return [name for name in self.tasks if not name.startswith((DECLARES, HIDES, VERSION)) and name != MEMORY]

    @property
    def version(self) -> str | None:
        """The version of its treadle; None if it does not say: an older one."""
        return next((name.removeprefix(VERSION) for name in self.tasks if name.startswith(VERSION)), None)

    @property
    def memory(self) -> int | None:
        """How many bytes of memory its process held when it was last heard of; None if its platform does not tell."""
        return self.tasks.get(MEMORY)

    @property
    def busy(self) -> int:
        """How many of its slots run a job."""
        return min(self.running, self.concurrency)

    @property
    def waiting(self) -> int:
        """How many jobs it has claimed for the next free slots."""
        return self.running - self.busy

    @property
    def given_name(self) -> str:
        """Its own name, also if it is listed as the twin of another."""
        return self.name.removesuffix(twin_name("", self.pid))

    def alive(self, now: datetime) -> bool:
        """Whether it was heard of lately."""
        return (now - self.seen_at).total_seconds() < missed_after(self.period)

    def serves(self, queue: str, lane: str) -> bool:
        return not self.stopping and queue in self.queues and (self.lanes is None or lane in self.lanes)

    def knows(self, task: str, version: int) -> bool:
        return self.tasks.get(task, version - 1) >= version


class Seal(NamedTuple):
    """A batch of a tenant's audit events, made tamper-evident: its digest, chained to the seal before it."""

    tenant: str
    number: int  # from 1
    events: int
    first_at: datetime
    last_at: datetime
    digest: str
    previous: str
    hash: str
    sealed_at: datetime
    pruned_at: datetime | None = None

    def evolve(self, **changes: Any) -> Self:
        return self._replace(**changes)


class ApiToken(NamedTuple):
    """Who may use the REST API. The token itself is shown once, and only a hash of it is kept.

    `name` is the beginning of the hash, which finds it; `label` is what people call it.
    """

    name: str
    hash: str
    label: str
    scopes: Sequence[str]
    actor: str  # who made it
    created_at: datetime
    only_tenant: str | None = None
    only_queues: Sequence[str] | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revision: int = 0

    def evolve(self, **changes: Any) -> Self:
        return self._replace(**changes)

    def usable(self, now: datetime) -> bool:
        """Whether it has neither expired nor been revoked."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Minute(NamedTuple):
    """What one worker has settled in one minute of the clock: `counts` by queue and task, as model.stats reads it."""

    hour: str  # in UTC: 2026-11-18T02
    minute: int
    worker: str
    counts: Mapping[str, Mapping[str, Any]]


class Drain(NamedTuple):
    """A request that a worker stop, as a signal would: it finishes what it runs, and takes no more.

    `since` is when that worker had started: another one of its name does not obey.
    """

    name: str
    actor: str
    reason: str
    at: datetime
    since: datetime


Record = Schedule | Pause | WorkerInfo | Seal | ApiToken | Minute | Drain


def subject(record: Record) -> str:
    """The id under which the audit trail keeps what was done to a record: a UUID, for ever the same."""
    kind = type(record).__name__
    text = "\x1f".join([kind, *(str(getattr(record, field)) for field in KEYS[type(record)])])
    return derived_id(text)


def subject_of_schedule(tenant: str, name: str) -> str:
    """The `subject` of the schedule of this tenant and name, whether there is one or not."""
    return derived_id("\x1f".join([Schedule.__name__, tenant, name]))


KEYS: Mapping[type[Any], tuple[str, ...]] = {
    Schedule: ("tenant", "name"),
    Pause: ("tenant", "queue", "task"),
    WorkerInfo: ("name",),
    Seal: ("tenant", "number"),
    ApiToken: ("name",),
    Minute: ("hour", "minute", "worker"),
    Drain: ("name",),
}
"""What tells two records of a kind apart."""


def derived_id(text: str, at: datetime | None = None) -> str:
    """A UUID made from a text, the same for ever; with `at` it sorts as the ids of that moment do.

    A text that no store takes has one too: what is asked about it is not found.
    """
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
    high = f"{int(at.timestamp() * 1000):012x}" if at is not None else digest[20:32]
    version = "7" if at is not None else "8"
    variant = f"{int(digest[3], 16) & 3 | 8:x}"
    return f"{high[:8]}-{high[8:]}-{version}{digest[:3]}-{variant}{digest[4:7]}-{digest[7:19]}"
