"""What passes through the engine contract: claims and their answers, filters, pages, receipts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from treadle.model import Job, Progress, State
from treadle.model.records import Schedule

if TYPE_CHECKING:
    from treadle.model.memo import Memo

Half = Literal["pre", "post"]


class Claim(NamedTuple):
    """A wish for jobs. `token` is minted by the caller, a new one for each claim it does not mean to repeat."""

    token: str
    worker: str
    limit: int
    lease: float  # seconds
    queues: Sequence[str] = ("default",)
    lanes: Sequence[str] | None = None  # None: all lanes of these queues
    tasks: Sequence[str] | None = None  # None: any task
    versions: Mapping[str, int] = {}  # of a task: the newest that may be claimed; of one not named: any
    unless: Sequence[str] = ()  # tasks that are not taken, whatever else is said
    thorough: bool = False  # look everywhere now, at any cost: whoever asks concludes from an empty answer

    def takes(self, task: str, version: int) -> bool:
        """Whether it is for jobs of this task and version."""
        named = task not in self.unless and (self.tasks is None or task in self.tasks)
        return named and version <= self.versions.get(task, version)


class Ruling(Enum):
    """What became of one change."""

    APPLIED = "applied"
    ALREADY = "already"  # our own write, whose answer was lost
    STALE = "stale"  # our token, but the job has a newer revision: decide again on `job`
    LOST = "lost"  # somebody else's by now; `job` says whose, if it still exists
    BUSY = "busy"  # locked by somebody's open transaction: nobody can take it, try again
    REFUSED = "refused"  # the store will not take this value, or `holder` has the key


class Verdict(NamedTuple):
    """The answer to one change; `job` is the job as it is now, where the engine had to look."""

    ruling: Ruling
    job: Job | None = None
    holder: str | None = None
    why: str = ""


APPLIED = Verdict(Ruling.APPLIED)


class ClaimedJob(NamedTuple):
    """A job as a claim gives it: what a worker needs to run it. `job` makes the whole value, for whoever needs that.

    `plain`: nothing but the job itself is written when it succeeds: no key is freed and nothing follows. Its end may
    be a `lifecycle.Success`.
    """

    id: str
    task: str
    payload_json: str
    token: str
    revision: int
    attempt: int
    timeout: float | None
    suspect: bool
    plain: bool
    cost_micros: int
    queue: str
    due: float  # when it was due, in seconds since 1970
    job: Callable[[], Job]

    @classmethod
    def of(cls, job: Job) -> "ClaimedJob":
        """A claimed job that is there as a whole."""
        return cls(
            job.id,
            job.task,
            job.payload_json,
            job.lease_token or "",
            job.revision,
            job.attempt,
            job.timeout,
            job.suspect,
            job.key_scope is None and job.on_end is None,
            job.cost_micros,
            job.queue,
            job.due_at.timestamp(),
            lambda: job,
        )


class Turn(NamedTuple):
    """A turn's answer: a verdict a change, in order; what was claimed, in order; the store's time.

    `more`: the claim was cut short. It may have left jobs that it could take, even if it gave fewer than it was asked.
    """

    verdicts: Sequence[Verdict]
    claimed: Sequence[ClaimedJob]
    now: datetime
    more: bool = False

    @property
    def jobs(self) -> list[Job]:
        """The jobs claimed, as whole values."""
        return [claimed.job() for claimed in self.claimed]


class Receipt(NamedTuple):
    """The answer to one enqueue: the job as stored, and whether this call created it."""

    job: Job
    created: bool
    refused: str = ""  # why the store would not take it, if it would not


class Lease(NamedTuple):
    """A lease to renew, with what the attempt has to tell so far, and what it wants remembered."""

    job_id: str
    token: str
    started_at: datetime | None = None
    progress: Progress | None = None
    cost_micros: int | None = None
    memos: "Sequence[Memo]" = ()  # of different names


class Renewal(Enum):
    """What became of one lease that was to be renewed."""

    RENEWED = "renewed"
    BUSY = "busy"  # nobody can take it while this lasts: not a loss
    MISSED = "missed"  # it could not be written just now, and its time runs on: try again at once
    LOST = "lost"


class RenewalResult(NamedTuple):
    """The answer to one lease, and whether somebody asked the job to stop."""

    job_id: str
    renewal: Renewal
    cancel_requested: bool = False


class JobFilter(NamedTuple):
    """A filter; None means any."""

    state: State | None = None
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    lane: str | None = None  # "": of no lane
    expired: bool | None = None  # of cancelled jobs: whether they were so because their time was over


class Count(int):
    """How many there are. If it is not `exact`, there are at least so many, or it is an estimate.

    `labels` are for pending jobs: how many of those that were looked at are pending, scheduled and retrying.
    """

    exact: bool
    labels: Mapping[str, int]

    def __new__(cls, number: int, exact: bool = True, labels: Mapping[str, int] | None = None) -> "Count":
        count = super().__new__(cls, number)
        count.exact = exact
        count.labels = labels or {}
        return count

    @classmethod
    def up_to(cls, limit: int, number: int, *, exact: bool, labels: Mapping[str, int]) -> "Count":
        """What a look with a limit found, which may be one more than the limit."""
        return cls(min(number, limit), exact, {label: min(found, limit) for label, found in labels.items()})

    def of(self, labels: Collection[str]) -> "Count":
        """How many of them have one of these labels."""
        return Count(sum(self.labels.get(label, 0) for label in labels), self.exact)


class Page(NamedTuple):
    """Jobs, newest first, and where to go on (None at the end)."""

    jobs: list[Job]
    cursor: str | None


class LookedPage(Page):
    """A page of jobs that were looked for one by one: how many were looked at, and back to when."""

    looked: int
    back_to: datetime | None

    def __new__(
        cls, jobs: list[Job], cursor: str | None, looked: int = 0, back_to: datetime | None = None
    ) -> "LookedPage":
        page = super().__new__(cls, jobs, cursor)
        page.looked = looked
        page.back_to = back_to
        return page


class ScheduleFilter(NamedTuple):
    """A filter of schedules; None means any."""

    tenant: str | None = None
    name: str | None = None
    prefix: str | None = None  # of the name
    task: str | None = None
    enabled: bool | None = None
    declared: bool | None = None  # by code, now or once
    gone: bool | None = None  # by code once, and no more
    id: str | None = None

    def matches(self, schedule: Schedule) -> bool:
        """Whether a schedule is one of those."""
        wanted = (
            (self.tenant, schedule.tenant),
            (self.name, schedule.name),
            (self.prefix, schedule.name[: len(self.prefix or "")]),
            (self.task, schedule.task),
            (self.enabled, schedule.enabled),
            (self.declared, schedule.declared is not None),
            (self.gone, schedule.gone),
            (self.id, schedule.id),
        )
        return all(asked is None or asked == there for asked, there in wanted)


class Tally(NamedTuple):
    """How many jobs of a queue, task and state a bounded look has seen, by the type of their last error."""

    queue: str
    task: str
    state: State
    error: str  # "" if there was none
    number: int
    due: int  # of pending jobs: how many are due
    oldest: (
        datetime  # of pending jobs the earliest due time, of running ones the earliest claim, of others the first end
    )


class Retention(NamedTuple):
    """How long finished jobs are kept, by state, and by task where it says otherwise; what is not named, for ever.

    With `only`, it is about the jobs of these tasks, and all others are kept.
    """

    states: Mapping[State, timedelta] = {}
    tasks: Mapping[str, Mapping[State, timedelta | None]] = {}
    only: frozenset[str] | None = None

    def age(self, state: State, task: str) -> timedelta | None:
        if self.only is not None and task not in self.only:
            return None
        return self.tasks.get(task, {}).get(state, self.states.get(state))


class RowSecurity(NamedTuple):
    """Who sees which rows, where the store itself keeps tenants apart.

    `owner` is a condition in SQL over the column `tenant`, such as is_record_owner(tenant::uuid), beside the tenant
    that a bound handle names.
    """

    worker: str  # the role that sees all of them
    app: str  # the role that sees those of one tenant at a time
    owner: str = ""


class Overwrite(Enum):
    """`save` without a look at what is there."""

    OVERWRITE = "whatever"


OVERWRITE = Overwrite.OVERWRITE


class Saved(NamedTuple):
    """The answer to a save: whether it was done, and what became of the job that came with it."""

    done: bool
    receipt: Receipt | None = None


class Finding(NamedTuple):
    """One line of `treadle doctor`."""

    level: str  # ok | warning | error
    text: str
    brief: str = ""  # said instead when a worker starts, as information: what need not alarm anybody each time


LISTED = (State.FAILED, State.CANCELLED)
"""The states whose jobs `find` lists by the time they ended: what an operator looks for."""
