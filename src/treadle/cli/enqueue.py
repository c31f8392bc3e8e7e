"""`treadle enqueue`: store one job."""

from contextlib import closing
from datetime import datetime
from typing import Annotated, Any

import typer

from treadle import Retry, Unique
from treadle.app.reading import moment_from
from treadle.app.treadle import Treadle
from treadle.app.views import standing
from treadle.cli import options
from treadle.cli.discovery import check_open, find_app, find_store
from treadle.cli.reading import payload_from
from treadle.cli.terminal import age, document, safe, say
from treadle.errors import InvalidJob, UnknownTask
from treadle.model import Job, Scope, State, new_id
from treadle.tasks.options import OnConflict


def enqueue(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.", show_default=False)],
    payload: Annotated[
        str,
        typer.Argument(metavar="PAYLOAD_JSON", help="Its arguments, a JSON object; - reads stdin.", show_default=False),
    ] = "{}",
    app: options.App = None,
    url: options.Url = None,
    run_after: Annotated[str | None, typer.Option(help="Not before: 5m, or 2030-01-31T12:00Z.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher runs first.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Another queue than the task's own.")] = None,
    lane: Annotated[str | None, typer.Option(help="The lane: lanes of a queue take turns.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose job it is.")] = None,
    key: Annotated[str | None, typer.Option(help="At most one job of the task holds this key.")] = None,
    unique: Annotated[str | None, typer.Option(help="How long: pending, active, ever, or window=1d.")] = None,
    on_conflict: Annotated[OnConflict | None, typer.Option(help="What to do if the key is taken.")] = None,
    expires: Annotated[str | None, typer.Option(help="Not started by then: 1h, or 2030-01-31T12:00Z.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Tries in all.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="A UUID of yours: storing it twice is one job.")] = None,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Do not ask an app whether the task exists.")] = False,
    as_json: options.Json = False,
) -> None:
    """Store a job; its payload is checked against the task before anything is written."""
    if key is None and (unique is not None or on_conflict is not None):
        raise InvalidJob("key", "--unique and --on-conflict are about a key: give --key too")
    if id is not None and not id.strip():
        raise InvalidJob("--id", "is empty; leave it out and treadle makes one")
    value = payload_from(payload, "payload")
    using: dict[str, Any] = {
        "run_after": moment_from(run_after, "--run-after"),
        "expires_at": moment_from(expires, "--expires"),
        "priority": priority,
        "queue": queue,
        "lane": lane,
        "tenant": tenant,
        "key": key,
        "id": new_id() if id is None else id,
    }
    with closing(find_store(app, url) if unchecked else find_app(app, url)) as used:
        check_open(used)
        if not unchecked and task not in used.tasks:
            raise UnknownTask(task, used.tasks)
        own = used.tasks[task].options if task in used.tasks else None
        if max_attempts is not None:
            using["retry"] = (own.retry if own else Retry())._replace(max_attempts=max_attempts)
        if unique is not None or on_conflict is not None:
            using["unique"] = _unique(own.unique if own else Unique(), unique, on_conflict)
        before = used.engine.now()
        job = used.enqueue(task, value, checked=not unchecked, **using)
        policy = using.get("unique") or (own.unique if own else Unique())
        outcome = _outcome(job, using["id"], before, policy.on_conflict)
        if as_json:
            document({"id": job.id, "outcome": outcome, "created": outcome == "created", "job": used.view(job)})
        else:
            _say(used, job, outcome)


def _unique(own: Unique, scope: str | None, on_conflict: OnConflict | None) -> Unique:
    if scope is not None:
        name, _, window = scope.partition("=")
        if name not in set(Scope) or (name == Scope.WINDOW) != bool(window):
            raise InvalidJob("--unique", f"{scope!r} must be pending, active, ever, or a window such as window=1d")
        own = own._replace(scope=name, window=window or None)
    return own if on_conflict is None else own._replace(on_conflict=on_conflict.value)


def _outcome(job: Job, id: str, before: datetime, on_conflict: str) -> str:
    """created, existed or replaced. Every call has an id of its own, so another id means that a key was taken."""
    if job.id != id.lower():
        return "replaced" if on_conflict == OnConflict.REPLACE and job.state is State.PENDING else "existed"
    return "created" if job.created_at >= before else "existed"


def _say(app: Treadle, job: Job, outcome: str) -> None:
    now = app.engine.now()
    words = {"created": "created", "existed": "existed already", "replaced": "replaced what was waiting"}[outcome]
    due = f", due {age(job.due_at, now)}" if job.due_at > now else ""
    label = "" if outcome == "created" else f", {standing(job, now, app.profile)}"
    say(f"{job.id}  {words}: {safe(job.task)} on queue {safe(job.queue)}{label}{due}")
