"""How a worker works: the settings, and what its caller says instead."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from treadle.engines.values import Retention

SWEEP = 1.0  # seconds; with the lease it bounds how long a crash goes unseen


class WorkerConfig(NamedTuple):
    """How a worker works; times are seconds."""

    name: str
    queues: Sequence[str] = ("default",)
    lanes: Sequence[str] | None = None
    concurrency: int = 10
    batch: int | None = None  # the most jobs it claims at once
    lease: float = 30.0
    grace: float = 30.0
    poll: float = 1.0
    sweep: float = SWEEP
    fail_unknown: bool = False  # claim jobs of unknown tasks too, and fail them
    end_expired: bool = True
    crash_message: str = ""  # the error of a job whose lease ran out, instead of our own words
    count_claims: bool = False  # a lease that ran out has spent an attempt
    start_first: bool = False  # write that a job starts before it does, not with the next write
    keep: Retention = Retention()
    keep_events: timedelta | None = None  # of the audit trail
    beat: float = 10.0  # says that it is alive
    schedules: bool = True
    tick: float = 1.0  # looks for schedules that are due
    budgets: Mapping[str, int] = {}  # of a tenant, in millionths a day
