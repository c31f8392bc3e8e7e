"""`treadle pause`, `resume` and `pauses`: the gate that jobs pass when they are claimed."""

import shlex
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from treadle.cli import options
from treadle.cli.describe import pause_as_dict
from treadle.cli.discovery import find_ready_store
from treadle.cli.jobs import NARROW, actor
from treadle.cli.reading import moment_from
from treadle.cli.terminal import age, clock, document, preview, safe, say, table, width
from treadle.clock import seconds
from treadle.errors import ConfigError, InvalidJob
from treadle.records import ANY, Pause

COLUMNS = ("paused", "by", "since", "until", "reason")  # in a narrow terminal the reason goes below

Tenant = Annotated[str | None, typer.Option("--tenant", help="The jobs of this tenant.")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="The jobs of this queue.")]
Task = Annotated[str | None, typer.Option("--task", help="The jobs of this task.")]
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
    patience: Annotated[str, typer.Option(metavar="TIME", help="With --wait: how long at most.")] = "1h",
    as_json: options.Json = False,
) -> None:
    """Let no job of a tenant, queue or task start until it is resumed; what runs, runs on.

    Given together they must all fit: --tenant acme --queue mail stops the jobs that acme has on queue mail. When the
    command comes back, no such job can start any more. To pause again replaces reason and --until.
    """
    _check_scope(tenant, queue, task, everything)
    end, longest = _until(until), seconds(patience, "--patience")
    with closing(find_ready_store(app, url)) as store:
        made = store.pause(
            tenant=tenant, queue=queue, task=task, everything=everything, reason=reason, until=end, actor=actor(),
            wait=wait, patience=longest,
        )  # fmt: skip
    if as_json:
        document({"pause": pause_as_dict(made)})
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
    as_json: options.Json = False,
) -> None:
    """Lift the pause of exactly this tenant, queue or task; `treadle pauses` shows which there are."""
    _check_scope(tenant, queue, task, everything)
    with closing(find_ready_store(app, url)) as store:
        lifted = store.resume(
            tenant=tenant, queue=queue, task=task, everything=everything, reason=reason, actor=actor()
        )
        left = store.pauses()
    if as_json:
        document({"resumed": pause_as_dict(lifted), "pauses": [pause_as_dict(pause) for pause in left]})
        return
    still = f"; still paused: {safe('; '.join(pause.scope for pause in left))}" if left else ""
    say(f"resumed: {safe(lifted.scope)}{still}")


def pauses(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """List what is paused: by whom, since when, until when and why."""
    with closing(find_ready_store(app, url)) as store:
        found, now = store.pauses(), store.store_now()
    if as_json:
        document({"pauses": [pause_as_dict(pause) for pause in found]})
    elif not found:
        say("nothing is paused")
    elif (room := width()) is not None and room < NARROW:
        reasons = [Text(preview(pause.reason, room - 2), "dim") for pause in found]
        table(COLUMNS[:-1], [_row(pause, now)[:-1] for pause in found], notes=reasons)
    else:
        table(COLUMNS, [_row(pause, now) for pause in found])


def _check_scope(tenant: str | None, queue: str | None, task: str | None, everything: bool) -> None:
    named = [
        option for option, name in (("--tenant", tenant), ("--queue", queue), ("--task", task)) if name is not None
    ]
    if everything and named:
        raise ConfigError(f"--all is everything: leave out either --all or {named[0]}")
    if not everything and not named:
        raise ConfigError("what? Give --tenant, --queue or --task, or --all for everything")


def _until(text: str | None) -> datetime | float | None:
    end = moment_from(text, "--until")
    if not isinstance(end, str):
        return end
    try:
        return seconds(end, "--until")
    except ConfigError:
        raise InvalidJob("--until", f"{end!r} is no time; write 2030-01-31T12:00Z, or from now: 30m, 2h, 1d") from None


def _resuming(pause: Pause) -> str:
    """The command that lifts it."""
    named = [word for option, name in zip(Pause._fields[:3], pause[:3], strict=True) if name != ANY
             for word in (f"--{option}", name)]  # fmt: skip
    return shlex.join(["treadle", "resume", *(named or ["--all"])])


def _row(pause: Pause, now: datetime) -> tuple[str, ...]:
    since = "" if pause.at is None else age(pause.at, now)
    until = "resumed" if pause.until is None else age(pause.until, now)
    return safe(pause.scope), safe(pause.actor), since, until, preview(pause.reason, 200)
