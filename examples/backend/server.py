"""The server: starts and stops its parts in order."""

import logging
from contextlib import ExitStack
from pathlib import Path

import cleanups
import psycopg
from config import JobsConfig, database_url

from treadle import Retry, Treadle
from treadle.profiles import backend
from treadle.server import Address, serve

log = logging.getLogger("ayb")
TABLES = Path(__file__).with_name("tables.sql").read_text("utf-8")


def service(jobs: JobsConfig) -> Treadle:
    """The job queue, with the words of this product and these settings. Nothing is opened yet."""
    retry = Retry(max_attempts=max(1, jobs.max_retries_default), base=5, cap=300, jitter=1)
    return Treadle(
        database_url(),
        profile=backend.PROFILE._replace(task={**backend.PROFILE.task, "retry": retry}),
        auto_migrate=True,
        concurrency=jobs.worker_concurrency,
        poll=jobs.poll_interval_ms / 1000,
        lease=jobs.lease_duration_s,
        sweep=min(15, jobs.scheduler_tick_s),  # how soon a dead worker's jobs run again; a slow scheduler delays none
        schedules=jobs.scheduler_enabled,
        schedule_interval=jobs.scheduler_tick_s,
    )


def start(jobs: JobsConfig, port: int, prune_every: float) -> None:
    """Serve until SIGTERM. Then schedules stop, then claims; running jobs end; then HTTP and the database close."""
    with psycopg.connect(database_url()) as connection:
        connection.execute("select pg_advisory_xact_lock(23)")  # two servers may start at once
        connection.execute(TABLES)
    log.info("start: the database answers")
    app = service(jobs)
    app.open()
    log.info("start: the job service")
    cleanups.register(app)
    log.info("start: the built-in jobs %s", ", ".join(app.tasks))
    timer = ExitStack()

    def started(address: Address, _: str | None) -> None:
        if jobs.enabled:
            log.info(
                "start: %d workers, scheduler %s", jobs.worker_concurrency, "on" if jobs.scheduler_enabled else "off"
            )
            cleanups.add_default_schedules(app)
            log.info("start: the default schedules; no timer prunes deliveries, a job does")
        else:
            timer.enter_context(cleanups.pruning(service(jobs), prune_every))
            log.info("start: no workers, jobs are disabled; a timer prunes deliveries")
        log.info("serving %s", address.url)

    with timer:
        serve(app, Address("127.0.0.1", port), worker=jobs.enabled, started=started)
    log.info("stopped")
