"""`treadle enqueue`: store one job."""

from contextlib import closing
from typing import Annotated, Any

import typer

from treadle.app.enqueue import Enqueued, enqueue_outcome, policies
from treadle.app.reading import moment_from
from treadle.app.treadle import Treadle
from treadle.app.views import standing
from treadle.cli import options
from treadle.cli.discovery import Target, check_open, find_target_app
from treadle.cli.reading import payload_from
from treadle.cli.terminal import age, document, safe, say
from treadle.errors import InvalidJob, UnknownTask
from treadle.model import Job, Scope, new_id
from treadle.tasks.options import OnConflict, Options, Unique


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
    conflict = None if on_conflict is None else on_conflict.value
    named = {"max_attempts": max_attempts, "on_conflict": conflict, **_scope_and_window(unique)}
    with closing(find_target_app(app, url, unchecked=unchecked)) as used:
        if not isinstance(used, Treadle):
            done = used.enqueue(task, value, **using, **named)
        else:
            done = _stored(used, task, value, using, named, not unchecked)
        if done.job is None:  # a token that may not read
            document({"id": done.id}) if as_json else say(f"{done.id}  stored")
        elif as_json:
            created = done.outcome == "created"
            document({"id": done.id, "outcome": done.outcome, "created": created, "job": used.view(done.job)})
        else:
            _say(used, done.job, done.outcome or "")


def _stored(
    app: Treadle, task: str, value: Any, using: dict[str, Any], named: dict[str, Any], checked: bool
) -> Enqueued:
    """Store it here; what is left out is as the task says."""
    check_open(app)
    if checked and task not in app.tasks:
        raise UnknownTask(task, app.tasks)
    own = app.tasks[task].options if task in app.tasks else Options()
    options = {**using, **policies(own, key=using["key"], **named)}
    before = app.engine.now()
    job = app.enqueue(task, value, checked=checked, **options)
    policy: Unique = options.get("unique", own.unique)
    return Enqueued(job.id, enqueue_outcome(job, using["id"], before, policy.on_conflict), job)


def _scope_and_window(text: str | None) -> dict[str, str | None]:
    """How long a key keeps others out, as --unique names it."""
    name, _, window = (text or "").partition("=")
    if text is not None and (name not in set(Scope) or (name == Scope.WINDOW) != bool(window)):
        raise InvalidJob("--unique", f"{text!r} must be pending, active, ever, or a window such as window=1d")
    return {"unique": name or None, "window": window or None}


def _say(app: Target, job: Job, outcome: str) -> None:
    now = app.engine.now()
    words = {"created": "created", "existed": "existed already", "replaced": "replaced what was waiting"}[outcome]
    due = f", due {age(job.due_at, now)}" if job.due_at > now else ""
    label = "" if outcome == "created" else f", {standing(job, now, app.profile)}"
    say(f"{job.id}  {words}: {safe(job.task)} on queue {safe(job.queue)}{label}{due}")
