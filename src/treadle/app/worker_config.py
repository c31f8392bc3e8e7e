"""How a worker works: the settings, and what its caller asks for instead."""

import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from treadle import __version__
from treadle.app.settings import Settings, changed
from treadle.model import check_name
from treadle.worker.config import WorkerConfig


def worker_config(settings: Settings, given: Mapping[str, Any]) -> WorkerConfig:
    """What these settings ask for, except where `given` has a value; ConfigError for what cannot work."""
    options = {name: value for name, value in given.items() if value is not None}
    name = options.pop("name", None) or own_name()
    check_name("name", name)
    settings = changed(settings, options)
    return WorkerConfig(
        name=name,
        queues=tuple(settings.queues),
        lanes=None if settings.lanes is None else tuple(settings.lanes),
        concurrency=settings.concurrency,
        batch=settings.batch,
        lease=settings.lease,
        grace=settings.grace,
        poll=settings.poll,
        watch=settings.watch,
        sweep=settings.sweep,
        fail_unknown=settings.unknown_tasks == "fail",
        end_expired=settings.expired_jobs == "cancel",
        crash_message=settings.crash_message,
        count_claims=settings.count_claims,
        start_first=settings.start == "first",
        keep=settings.keep,
        keep_audit=settings.audit_retention,
        heartbeat=settings.heartbeat,
        schedules=settings.schedules,
        schedule_interval=settings.schedule_interval,
        log_jobs=settings.log_jobs,
        disable_gone=settings.gone_schedules == "disable",
        budgets=settings.budgets,
        version=__version__,
    )


def own_name() -> str:
    """Host and process, and something that no other has: containers may share both."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
