"""The one factory of jobs, and the short way through a job's life, for all tests."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from treadle.engines.contract import Engine
from treadle.engines.values import Claim, JobFilter, Lease, Ruling, Turn, Verdict
from treadle.model import Change, Event, Job, JobError, Reason, Retry, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Outcome, Released, Snoozed, Stopped, Succeeded, TimedOut
from treadle.tasks.task import Task
from treadle.testing import FakeClock

T = TypeVar("T")

LEASE = 30.0  # seconds, unless a claim says otherwise


def a_job(now: datetime, **fields: object) -> Job:
    """A new job of task `greet`, due now, with any field of Job set by name."""
    given = {"id": new_id(), "task": "greet", "payload_json": "{}", "created_at": now, "due_at": now}
    return Job(**{**given, **fields})


def unstored(task: Task[..., Any], *args: object) -> Job:
    """The job that `task.enqueue(*args)` would store."""
    [job] = task._enqueuer._jobs(task, [task.payload.encode(args, {})])  # type: ignore[attr-defined]
    return job


def an_error(now: datetime, message: str = "boom", attempt: int = 1) -> JobError:
    return JobError("RuntimeError", message, "Traceback: boom", attempt, now.isoformat())


def every_outcome(now: datetime) -> dict[str, Outcome]:
    """One of each way an attempt can end, by name."""
    return {
        "success": Succeeded('{"answer":42}'),
        "failure": Failed(an_error(now)),
        "failure with its own delay": Failed(an_error(now), 7.0),
        "timeout": TimedOut(an_error(now)),
        "failure for good": FailedForGood(Reason.PERMANENT, an_error(now)),
        "snooze": Snoozed(600.0),
        "release": Released(),
        "stop": Stopped("no longer wanted"),
    }


OUTCOMES = tuple(every_outcome(datetime.min.replace(tzinfo=UTC)))


def enqueued(engine: Engine, *, now: datetime | None = None, **fields: object) -> Job:
    """A job, made and stored."""
    now = now or engine.now()
    [receipt] = engine.enqueue([a_job(now, **fields)], now=now)
    return receipt.job


def claim(engine: Engine, limit: int = 10, *, now: datetime | None = None, **fields: object) -> list[Job]:
    """Claim up to `limit` jobs under a new token."""
    wish = {"token": new_id(), "worker": "w1", "lease": LEASE, **fields}
    return engine.turn([], Claim(limit=limit, **wish), now=now).jobs


def claimed(engine: Engine, job: Job, **fields: object) -> Job:
    """This very job, claimed; it must be the next one of its queue, lane and task."""
    wish = {"queues": [job.queue], "lanes": [job.lane], "tasks": [job.task], **fields}
    [got] = claim(engine, 1, **wish)
    assert got.id == job.id, f"expected job {job.id} to be next, got {got.id}"
    return got


def running(engine: Engine, **fields: object) -> Job:
    """A new job, claimed by w1."""
    return claimed(engine, enqueued(engine, **fields))


def ended(engine: Engine, state: State, **fields: object) -> Job:
    """A new job brought to a final state: run to success, given up on, or cancelled while it ran."""
    outcome = {
        State.SUCCEEDED: Succeeded("1"),
        State.FAILED: FailedForGood(Reason.PERMANENT, an_error(engine.now())),
        State.CANCELLED: Stopped("not wanted"),
    }[state]
    job = running(engine, **fields)
    settle(engine, job, outcome)
    return current(engine, job)


def settle(engine: Engine, job: Job, outcome: Outcome, *, now: datetime | None = None) -> Verdict:
    """Let the holder end its attempt."""
    now = now or engine.now()
    turn: Turn = engine.turn([lifecycle.settle(job, outcome, now)], now=now)
    return turn.verdicts[0]


def insisted(act: Callable[[], Verdict]) -> Verdict:
    """The verdict once nobody else's transaction is in the way."""
    while (verdict := act()).ruling is Ruling.BUSY:
        pass
    return verdict


def write(engine: Engine, change: Change) -> Verdict:
    """Write one change by the store's clock."""
    [verdict] = engine.turn([change]).verdicts
    return verdict


def as_if_holding(job: Job, outcome: Outcome, now: datetime) -> Change:
    """The change of a broken worker that takes this job, whatever its state and token, for its own."""
    return lifecycle.settle(job.evolve(state=State.RUNNING), outcome, now)._replace(before=job)


def start(engine: Engine, job: Job, lease: float = LEASE) -> Job:
    """Write down that the handler of a claimed job has started, as the worker does for a suspect."""
    engine.extend([Lease(job.id, job.lease_token, started_at=engine.now())], lease=lease)
    return current(engine, job)


def recover(engine: Engine, job: Job, *, actor: str = "reaper") -> Verdict:
    """Let a reaper act on a job as it read it."""
    return write(engine, lifecycle.crash(job, engine.now(), actor=actor))


def crashed(engine: Engine, clock: FakeClock, job: Job) -> Job:
    """The job after its worker died: the lease runs out and a reaper recovers it."""
    clock.advance(seconds=LEASE)
    [seen] = [found for found in engine.expired(limit=1000) if found.id == job.id]
    recover(engine, seen)
    return current(engine, job)


def taken_over(engine: Engine, clock: FakeClock, **fields: object) -> tuple[Job, Job]:
    """A job as its first holder knows it, and as a second one holds it after the first stalled past its lease."""
    first = running(engine, **fields)
    crashed(engine, clock, first)
    return first, claimed(engine, first, worker="w2")


def current(engine: Engine, job: Job) -> Job:
    """The job as the store has it now."""
    [found] = engine.get([job.id])
    assert found is not None, f"job {job.id} is gone"
    return found


def traces(engine: Engine) -> tuple[list[Job], list[list[Event]]]:
    """Everything the store shows: every job and its audit lines. Equal before and after means nothing was written."""
    jobs = engine.find(JobFilter(), limit=10_000).jobs
    return jobs, [engine.events(job.id) for job in jobs]


def several(make_engine: Callable[[], Engine], number: int) -> list[Engine]:
    """Engines on one store, opened one after the other, as a race over something else needs them."""
    engines = [make_engine() for _ in range(number)]
    for engine in engines:
        engine.migrate()
    return engines


def a_policy(**fields: Any) -> Retry:
    """A retry policy as a row may have it, whether it can be meant or not."""
    return Retry._make({**Retry()._asdict(), **fields}.values())


def race(racers: int, act: Callable[[int], T]) -> list[T]:
    """Let `act(0)`, `act(1)`, ... run at once in real threads; their answers in order, or the first error."""
    gate = threading.Barrier(racers)
    answers: list[T | None] = [None] * racers
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            gate.wait(30)
            answers[place] = act(place)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a racer did not come home within a minute"
    if errors:
        raise errors[0]
    return answers
