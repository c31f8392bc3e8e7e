"""The values a worker runs with."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from treadle.engines.values import Retention

SWEEP = 1.0  # seconds; with the lease it bounds how long a crash goes unseen


class WorkerConfig(NamedTuple):
    """One worker's values; times are seconds."""

    name: str
    queues: Sequence[str] = ("default",)
    lanes: Sequence[str] | None = None
    concurrency: int = 10
    batch: int | None = None  # the most jobs it claims at once
    lease: float = 30.0
    grace: float = 30.0
    poll: float = 1.0
    watch: float = 0.5  # between two looks for cancellations of what runs
    sweep: float = SWEEP
    fail_unknown: bool = False  # claim jobs of unknown tasks too, and fail them
    end_expired: bool = True
    crash_message: str = ""  # the error of a job whose lease ran out, instead of our own words
    count_claims: bool = False  # a lease that ran out has spent an attempt
    start_first: bool = False  # write that a job starts before it does, not with the next write
    keep: Retention = Retention()
    keep_audit: timedelta | None = None  # how long audit events are kept; None: for ever
    heartbeat: float = 10.0  # how often it says that it is alive
    schedules: bool = True
    schedule_interval: float = 1.0  # how often it looks for schedules that are due
    log_jobs: bool = True  # a line in the log for every job that ends well
    disable_gone: bool = True  # a schedule that code no longer declares
    budgets: Mapping[str, int] = {}  # of a tenant, in millionths a day
    version: str = ""  # of treadle, which it reports
