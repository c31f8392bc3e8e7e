"""Claiming jobs without a worker."""

import logging
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from treadle.app.claimed import Claimed
from treadle.app.settings import Settings, changed
from treadle.app.worker_config import own_name
from treadle.engines.values import Claim, ClaimedJob
from treadle.errors import InvalidJob
from treadle.model import check_name, new_id
from treadle.model.clock import Duration
from treadle.tasks.context import Context
from treadle.tasks.task import Task, name_of
from treadle.worker.attempt import Attempt
from treadle.worker.handler_writes import HandlerWrites

if TYPE_CHECKING:
    from treadle.app.treadle import Treadle

log = logging.getLogger("treadle.claim")

MOST_CLAIMED = 500  # jobs in one call


def claim(
    app: "Treadle",
    *,
    queues: Sequence[str] | None,
    tasks: Sequence[str | Task[..., Any]] | None,
    limit: int,
    lease: Duration | None,
    worker: str | None,
) -> list[Claimed]:
    """`app.claim`."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_CLAIMED:
        raise InvalidJob("limit", f"{limit!r} must be from 1 to {MOST_CLAIMED}")
    settings = changed(
        app.settings, {name: value for name, value in (("queues", queues), ("lease", lease)) if value is not None}
    )
    name = own_name() if worker is None else worker
    check_name("worker", name)
    if isinstance(tasks, str):
        raise InvalidJob("tasks", f"{tasks!r} is not a list; write tasks=[{tasks!r}]")
    names = None if tasks is None else tuple(name_of(task) for task in tasks)
    versions = {name: task.options.version for name, task in app.tasks.items()}
    request = Claim(new_id(), name, limit, settings.lease, settings.queues, None, names, versions)
    turn = app.engine.turn([], request)
    while turn.more and not turn.claimed:
        turn = app.engine.turn([], request._replace(token=new_id()))
    return [held for claimed in turn.claimed if (held := _held(app, settings, claimed)) is not None]


def _held(app: "Treadle", settings: Settings, claimed: ClaimedJob) -> Claimed | None:
    """The job as its holder sees it; None of a row that is no job, which is left to its lease and to a worker."""
    try:
        claimed.job()
    except Exception:
        log.exception("job %s (%s) cannot be read: it is left to its lease", claimed.id, claimed.task)
        return None
    attempt = Attempt(claimed, lease_ends=inf, queued_at=0.0)
    task = app.tasks.get(claimed.task)
    if task is not None:
        attempt.secrets = task.definition.payload.secrets
    context = Context(attempt, HandlerWrites(app.engine, attempt, settings.lease), app.logger)
    return Claimed(app.engine, settings, attempt, context)
