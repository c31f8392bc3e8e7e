"""`treadle pause`, `resume` and `pauses`: the gate that jobs pass when they are claimed."""

import shlex
import sys
from contextlib import closing
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from treadle.app.reading import soon_from
from treadle.app.views import pause_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.jobs import NARROW, actor
from treadle.cli.terminal import age, clock, document, preview, safe, say, table, width
from treadle.errors import ConfigError
from treadle.model.clock import seconds
from treadle.model.records import ANY, Pause

COLUMNS = ("paused", "by", "since", "until", "reason")  # in a narrow terminal the reason goes below

Tenant = Annotated[list[str] | None, typer.Option("--tenant", help="The jobs of this tenant.")]
Queue = Annotated[list[str] | None, typer.Option("--queue", "-q", help="The jobs of this queue.")]
Task = Annotated[list[str] | None, typer.Option("--task", help="The jobs of this task.")]
Revision = Annotated[
    int | None, typer.Option("--revision", metavar="N", help="Only if the pause still has this revision; -1: if none.")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything, instead.")]


def pause(
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    queue: Queue = None,
    task: Task = None,
    everything: Everything = False,
    reason: options.Reason = "",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="It ends by itself: in 2h, or at 2030-01-31T12:00Z.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when nothing of it runs any more.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="With --wait: how long at most.")] = "1h",
    revision: Revision = None,
    as_json: options.Json = False,
) -> None:
    """Let no job of a tenant, queue or task start until it is resumed; what runs, runs on.

    Given together they must all fit: --tenant acme --queue mail stops the jobs that acme has on queue mail. When the
    command comes back, no such job can start any more. To pause again replaces reason and --until.
    """
    scope = _scope(tenant, queue, task, everything)
    end, longest = soon_from(until, "--until"), seconds(timeout, "--timeout")
    with closing(find_target(app, url)) as store:
        try:
            made = store.pause(
                **scope, reason=reason, until=end, actor=actor(), wait=wait, timeout=longest, revision=revision
            )
        except KeyboardInterrupt:
            if wait:  # the pause comes first: it is the waiting that was given up
                print("not waited for what still runs; `treadle pauses` shows what is paused", file=sys.stderr)
            raise
    if as_json:
        document({"pause": pause_view(made)})
        return
    ends = "" if made.until is None else f" until {clock(made.until)}"
    drained = "; nothing of it runs" if wait else ""
    say(f"paused: {safe(made.scope)}{ends}{drained}; `{safe(_resuming(made))}` lifts it")


def resume(
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    queue: Queue = None,
    task: Task = None,
    everything: Everything = False,
    reason: options.Reason = "",
    revision: Revision = None,
    as_json: options.Json = False,
) -> None:
    """Lift the pause of exactly this tenant, queue or task; `treadle pauses` shows which there are."""
    scope = _scope(tenant, queue, task, everything)
    with closing(find_target(app, url)) as store:
        lifted = store.resume(**scope, reason=reason, actor=actor(), revision=revision)
        left = store.pauses()
    if as_json:
        document({"resumed": pause_view(lifted), "pauses": [pause_view(pause) for pause in left]})
        return
    still = f"; still paused: {safe('; '.join(pause.scope for pause in left))}" if left else ""
    say(f"resumed: {safe(lifted.scope)}{still}")


def pauses(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """List what is paused: by whom, since when, until when and why."""
    with closing(find_target(app, url)) as store:
        found, now = store.pauses(), store.engine.now()
    if as_json:
        document({"pauses": [pause_view(pause) for pause in found]})
    elif not found:
        say("nothing is paused")
    elif (room := width()) is not None and room < NARROW:
        reasons = [Text(preview(pause.reason, room - 2), "dim") for pause in found]
        table(COLUMNS[:-1], [_row(pause, now)[:-1] for pause in found], notes=reasons)
    else:
        table(COLUMNS, [_row(pause, now) for pause in found])


def _scope(
    tenant: list[str] | None, queue: list[str] | None, task: list[str] | None, everything: bool
) -> dict[str, Any]:
    """What was named, for `app.pause` and `app.resume`."""
    given = {"tenant": tenant, "queue": queue, "task": task}
    named = {field: names for field, names in given.items() if names}
    for field, names in named.items():
        if len(names) > 1:  # the last one would win silently, and the others go on
            raise ConfigError(
                f"--{field} was given {len(names)} times; each is a pause of its own, one command for each"
            )
    if everything and named:
        raise ConfigError(f"--all is everything: leave out either --all or --{next(iter(named))}")
    if not everything and not named:
        raise ConfigError("what? Give --tenant, --queue or --task, or --all for everything")
    return {"everything": True} if everything else {field: names[0] for field, names in named.items()}


def _resuming(pause: Pause) -> str:
    """The command that lifts it."""
    named = [word for option, name in zip(Pause._fields[:3], pause[:3], strict=True) if name != ANY
             for word in (f"--{option}", name)]  # fmt: skip
    return shlex.join(["treadle", "resume", *(named or ["--all"])])


def _row(pause: Pause, now: datetime) -> tuple[str, ...]:
    since = "" if pause.at is None else age(pause.at, now)
    until = "no end" if pause.until is None else age(pause.until, now)
    return safe(pause.scope), safe(pause.actor), since, until, preview(pause.reason, 200)
