"""How a worker works: the settings, and what its caller asks for instead."""

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.model import check_name
from treadle.model.clock import Duration, seconds
from treadle.worker.config import WorkerConfig

if TYPE_CHECKING:
    from treadle.app.settings import Settings


DAY = timedelta(days=1)


def worker_config(settings: "Settings", given: Mapping[str, Any]) -> WorkerConfig:
    """What these settings ask for, except where `given` has a value; ConfigError for what cannot work."""
    options = {name: value for name, value in given.items() if value is not None}
    lanes = options.get("lanes", settings.lanes)
    config = WorkerConfig(
        name=_name("name", options.get("name") or _own_name()),
        queues=_names("queues", options.get("queues", settings.queues)),
        lanes=None if lanes is None else _names("lanes", lanes, empty_allowed=True),
        concurrency=options.get("concurrency", settings.concurrency),
        batch=settings.batch,
        lease=_span("lease", options.get("lease", settings.lease), least=0.5),
        grace=_span("grace", options.get("grace", settings.grace)),
        poll=_span("poll", options.get("poll", settings.poll), least=0.01),
        watch=_span("watch", settings.watch, least=0.05),
        sweep=_span("sweep", settings.sweep, least=0.05),
        fail_unknown=settings.unknown_tasks == "fail",
        end_expired=settings.expired_jobs == "cancel",
        crash_message=settings.crash_message,
        count_claims=settings.count_claims,
        start_first=settings.start == "first",
        keep=settings.keep,
        keep_audit=settings.audit_retention,
        heartbeat=_span("heartbeat", settings.heartbeat, least=0.1),
        schedules=settings.schedules,
        schedule_interval=_span("schedule_interval", settings.schedule_interval, least=0.05),
        log_jobs=settings.log_jobs,
        disable_gone=settings.gone_schedules == "disable",
        budgets=settings.budgets,
    )
    ages = [config.keep.states, *config.keep.tasks.values()] if config.budgets else []
    if any(age is not None and age < DAY for kept in ages for age in kept.values()):
        raise ConfigError("budgets: costs are read from finished jobs; each keep_… must be '1d' or more")
    if not 1 <= config.concurrency <= 1000:
        raise ConfigError(f"concurrency: {config.concurrency} must be from 1 to 1,000")
    return config


def _own_name() -> str:
    """Host and process, and something that no other has: containers may share both."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def _names(field: str, names: Sequence[str], *, empty_allowed: bool = False) -> tuple[str, ...]:
    if isinstance(names, str) or not names:
        raise ConfigError(f"{field}: {names!r} must be a list of at least one name")
    return tuple(name if empty_allowed and name == "" else _name(field, name) for name in names)


def _name(field: str, name: str) -> str:
    check_name(field, name)
    return name


def _span(what: str, given: Duration, least: float = 0.0) -> float:
    value = seconds(given, what)
    if value < least:
        raise ConfigError(f"{what}: {value:g} s is too short; the least is {least:g} s")
    return value
