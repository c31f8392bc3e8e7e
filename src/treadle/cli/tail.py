"""`treadle tail`: what is done to jobs, schedules and pauses, as it happens."""

import time
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.text import Text

from treadle.app.follow import FollowedEvent, Following
from treadle.app.reading import past_from
from treadle.app.treadle import Treadle
from treadle.app.views import followed_view
from treadle.cli import options
from treadle.cli.audit import known_kinds, unknown_kind
from treadle.cli.discovery import find_ready_store
from treadle.cli.jobs import check_id
from treadle.cli.near import near_names
from treadle.cli.status import interval_from
from treadle.cli.terminal import clock, coloured, json_line, preview, safe, say
from treadle.errors import InvalidJob
from treadle.model import UUID

MOST = 10_000  # events that came before
SHARE = 4  # of the time that a look takes, to wait until the next one: a long audit trail is not read without a pause


def tail(
    app: options.App = None,
    url: options.Url = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only of this job.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only of jobs of this task.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of jobs on this queue.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this: failed, retried, paused.")] = None,
    tenant: options.OfTenant = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Begin 2h ago, or at a time.")] = None,
    n: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="Begin with so many; 10, or all of --since.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Whether to wait for more.")] = True,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="How often to look.")] = "1s",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Print audit events as they come, oldest first, until Ctrl-C: what was done to which job, and by whom.

    It begins with the latest ten, or with those of --since. Filters must all fit. Every event is printed once; one that
    is committed late comes late.
    """
    every, first = interval_from(interval), _first(n, since)
    filters: dict[str, Any] = {"tenant": tenant, "kind": kind, "task": task, "queue": queue}
    filters["since"] = past_from(since, "--since")
    if job is not None:
        check_id(job)
    with closing(find_ready_store(app, url)) as store:
        if job is not None:
            filters["job_id"] = job if UUID.fullmatch(job.lower()) else store.resolve_id(job)
        following = store.follow(**filters)
        events, more = following.latest(first) if first else _nothing(following)
        if more and since is not None:
            say(Text(f"more came before these {first:,}: treadle audit lists them", "dim"), stderr=True)
        if not events:
            _hint(store, kind, task, queue)
        while True:
            for one in events:
                json_line(followed_view(one)) if as_json else say(*_line(one))
            if not follow:
                return
            events = _wait(following, every)


def _first(n: int | None, since: str | None) -> int:
    if n is None:
        return 10 if since is None else MOST
    if not 0 <= n <= MOST:
        raise InvalidJob("-n", f"{n} must be from 0 to {MOST:,}")
    return n


def _nothing(following: Following) -> tuple[list[FollowedEvent], bool]:
    """Only what comes from now on."""
    following.latest(1)
    return [], False


def _wait(following: Following, every: float) -> list[FollowedEvent]:
    began = time.monotonic()
    events = following.news()
    took = time.monotonic() - began
    if not events:
        time.sleep(max(every, SHARE * took))
    return events


def _hint(store: Treadle, kind: str | None, task: str | None, queue: str | None) -> None:
    """A word that nothing is known of may be mistyped; it may also come yet."""
    for hint in (unknown_kind("--kind", kind, known_kinds(store)), near_names(store, task=task, queue=queue)):
        if hint:
            say(Text(safe(hint), "dim"), stderr=True)


def _line(followed: FollowedEvent) -> tuple[str | Text, ...]:
    event = followed.event
    about = f"{safe(followed.task)} {event.job_id}" if followed.task else safe(event.job_id)
    note = f"  {preview(event.note, 200)}" if event.note else ""
    kind = coloured(event.kind.value, f"{event.kind.value:<16}")
    return f"{clock(event.at)}  ", kind, f"  {about} by {safe(event.actor)}{note}"
