"""A context for unit tests: a handler is called directly with it, and what it told can be looked at afterwards."""

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from treadle.errors import InvalidJob, LeaseLost
from treadle.model import Job, Progress, State, json_text, lifecycle, new_id
from treadle.model.memo import MEMO_CAP, Memo, MemoState
from treadle.tasks.context import Context, StopReason
from treadle.tasks.secrets import NO_SECRETS, Secrets
from treadle.tasks.task import Task, name_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)  # where a FakeClock begins, too


class Settlement(NamedTuple):
    """What a handler gave to `ctx.settle` or `ctx.asettle`."""

    tx: Any
    result: Any = None


class FakeContext(Context):
    """A Context without a store and a worker: `send(FakeContext(attempt=2), "ada@example.org")`.

    It checks what it is given as the real one does, and writes nothing. What the handler told is in `reported`,
    `cost_micros`, `settled`, `memos`, `records` and `messages`.

    >>> ctx = FakeContext(attempt=3)
    >>> ctx.progress(0.5, "half way")
    >>> ctx.attempt, ctx.reported[-1].note
    (3, 'half way')
    """

    def __init__(
        self,
        task: str | Task[..., Any] = "test",
        payload: Any = None,
        *,
        attempt: int | None = None,
        tick: datetime | None = None,
        cancelled: bool = False,
        job: Job | None = None,
        done: Mapping[str, Any] | None = None,
        begun: Iterable[str] = (),
    ) -> None:
        """`job` is the one that runs; without it one is made of `task` and `payload`, of the schedule's `tick`.

        `attempt` is 1 unless it is given, or the job has had more. With `cancelled` it is asked to stop from the start.
        `done` is what `ctx.once` has done on earlier attempts, with the values; `begun` what it has only begun.
        """
        if tick is not None and job is not None:
            raise InvalidJob("tick", "belongs to the job that is made here; leave out one of job and tick")
        made = _job(name_of(task), payload, tick) if job is None else job
        number = max(made.attempt, 1) if attempt is None else attempt
        if made.state is State.PENDING:
            made = lifecycle.claim(made, made.due_at, worker="testing", token=new_id(), lease=300.0).after
        if not isinstance(number, int) or number < 1:
            raise InvalidJob("attempt", f"{attempt!r} must be a whole number, 1 or more")
        self._fake = FakeAttempt(made.evolve(attempt=number))
        self.reported: list[Progress] = []
        self.records: list[logging.LogRecord] = []
        self._kept = FakeWrites(self._fake)
        states = {MemoState.DONE: {**(done or {})}, MemoState.BEGUN: dict.fromkeys(begun)}
        for state, values in states.items():
            for name, value in values.items():
                text = json_text(value, f"done {name!r}", MEMO_CAP) if state is MemoState.DONE else None
                self._kept.memos[name] = Memo(name, "once", state, max(1, number - 1), NOON, NOON, text)
        super().__init__(self._fake, self._kept, _logger(self.records))
        if cancelled:
            self.cancel()

    # ---------------------------------------------------------------------------- what becomes of the attempt

    def cancel(self) -> None:
        """Ask the handler to stop: from now on `cancelled` is true."""
        self._fake.stop_reason = StopReason.CANCEL

    def lose_lease(self) -> None:
        """Let the job be somebody else's: `cancelled` is true, and progress, add_cost and settle raise LeaseLost."""
        self._fake.stop_reason = StopReason.LOST

    # ------------------------------------------------------------------------------------- what it was told

    @property
    def cost_micros(self) -> int:
        """What this attempt has added to the job's cost."""
        return self._fake.cost_micros - self.job.cost_micros

    @property
    def messages(self) -> list[str]:
        """What was logged, as text."""
        return [record.getMessage() for record in self.records]

    def progress(self, fraction: float, note: str = "") -> None:
        """Tell how far the work is, from 0 to 1; kept in `reported`."""
        super().progress(fraction, note)
        if self._fake.progress is not None:
            self.reported.append(self._fake.progress)

    @property
    def settled(self) -> Settlement | None:
        """What was given to `settle` or `asettle`."""
        return self._kept.settled

    @property
    def memos(self) -> dict[str, Memo]:
        """What `once` remembers, by name."""
        return self._kept.memos


class FakeAttempt:
    """An attempt at a job that nobody claimed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stop_reason: StopReason | None = None
        self.progress: Progress | None = None
        self.cost_micros = job.cost_micros
        self.abandoned = False
        self.secrets: Secrets = NO_SECRETS

    def conceal(self, text: str) -> str:
        """Nothing: a test looks at what its handler says."""
        return text


class FakeWrites:
    """Keeps what a handler writes, instead of a store."""

    def __init__(self, attempt: FakeAttempt) -> None:
        self.settled: Settlement | None = None
        self.memos: dict[str, Memo] = {}
        self._attempt = attempt

    def now(self) -> datetime:
        return NOON

    def settle(self, tx: Any, result: Any) -> None:
        json_text(result, "result")  # a result that cannot be stored is an error here too
        if self.settled is not None:
            why = f"job {self._attempt.job.id} was settled before, by this same attempt: roll your transaction back"
            raise LeaseLost(why)
        self.settled = Settlement(tx, result)

    async def asettle(self, tx: Any, result: Any) -> None:
        self.settle(tx, result)

    def recall(self) -> list[Memo]:
        return list(self.memos.values())

    def remember(self, memo: Memo) -> None:
        if self._attempt.stop_reason is StopReason.LOST:
            raise LeaseLost(f"job {self._attempt.job.id} is no longer yours: {memo.name!r} was not written down")
        self.memos[memo.name] = memo


def _job(task: str, payload: Any, tick: datetime | None) -> Job:
    """A job that runs; that of a tick has an id that tells it, as the jobs of schedules have."""
    if tick is not None and tick.tzinfo is None:
        raise InvalidJob("tick", f"{tick!r} has no time zone; write datetime(..., tzinfo=UTC)")
    text, at = json_text({} if payload is None else payload, "payload"), tick or NOON
    made = Job(new_id(), task, text, at, at, state=State.RUNNING, claimed_at=at, started_at=at)
    if tick is None:
        return made
    milliseconds = f"{round(tick.timestamp() * 1000):012x}"
    return made.evolve(id=f"{milliseconds[:8]}-{milliseconds[8:]}-7{made.id[15:]}", schedule=task)


class KeptRecords(logging.Handler):
    """Keeps what is logged in a list."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


def _logger(records: list[logging.LogRecord]) -> logging.Logger:
    """A logger for one context: it keeps what is logged, and passes it on to where handlers log otherwise."""
    logger = logging.Logger("treadle.task", logging.DEBUG)
    logger.parent = logging.getLogger("treadle.task")
    logger.addHandler(KeptRecords(records))
    return logger
