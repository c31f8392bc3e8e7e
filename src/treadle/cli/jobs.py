"""`treadle jobs`: look at jobs and act on them."""

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from treadle.app import Treadle
from treadle.cli import options
from treadle.cli.describe import event_as_dict, job_as_dict
from treadle.cli.discovery import find_ready_store
from treadle.cli.terminal import age, clock, coloured, document, preview, safe, say, table
from treadle.model import Event, Job, State

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
OfTask = Annotated[str | None, typer.Option("--task", help="Only of this task.")]
OfQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the job's history.", show_default=False)]


def list_jobs(
    app: options.App = None,
    url: options.Url = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option("--limit", help="How many, up to 500.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended.")] = None,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first."""
    with closing(find_ready_store(app, url)) as store:
        page = store.find(state=state, task=task, queue=queue, tenant=tenant, limit=limit, cursor=cursor)
        now = store.store_now()
    if as_json:
        document({"jobs": [job_as_dict(job, now) for job in page.jobs], "cursor": page.cursor})
        return
    if not page.jobs:
        say("no jobs")
        return
    headers = ("id", "state", "task", "queue", "attempt", "created", "error")
    table(headers, (_row(job, now) for job in page.jobs))
    if page.cursor is not None:
        say(Text(f"more: --cursor {page.cursor}", "dim"))


def show(id: Id, app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Show everything about one job: payload, times, error and history."""
    with closing(find_ready_store(app, url)) as store:
        job, events = store.get(id), store.events(id)
        now = store.store_now()
    if as_json:
        document({"job": job_as_dict(job, now), "events": [event_as_dict(event) for event in events]})
        return
    for line in _account(job, events, now):
        say(line)


def retry(
    id: Id,
    app: options.App = None,
    url: options.Url = None,
    keep_attempts: Annotated[bool, typer.Option("--keep-attempts", help="Once more, not with a fresh budget.")] = False,
    reason: Why = "",
    as_json: options.Json = False,
) -> None:
    """Run a failed or cancelled job again."""
    with closing(find_ready_store(app, url)) as store:
        job = store.retry(id, keep_attempts=keep_attempts, actor=actor(), reason=reason)
        _done(store, job, "waits to be run again", as_json)


def cancel(
    id: Id, app: options.App = None, url: options.Url = None, reason: Why = "", as_json: options.Json = False
) -> None:
    """Cancel a waiting job, or ask a running one to stop."""
    with closing(find_ready_store(app, url)) as store:
        job = store.cancel(id, actor=actor(), reason=reason)
        asked = f"was asked to stop; it runs on {job.worker}"
        _done(store, job, asked if job.state is State.RUNNING else "is cancelled", as_json)


def count(
    app: options.App = None,
    url: options.Url = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: OfTenant = None,
    as_json: options.Json = False,
) -> None:
    """Count jobs by state."""
    with closing(find_ready_store(app, url)) as store:
        counts = store.count(task=task, queue=queue, tenant=tenant)
    total = sum(counts.values())
    if as_json:
        document({"counts": {state.value: number for state, number in counts.items()}, "total": total})
        return
    for state, number in counts.items():
        say(coloured(state, f"{state:<10}"), f" {number:>10,}")
    say(f"{'total':<10} {total:>10,}")


def actor() -> str:
    """Who acts, for the audit trail: the name this user has on this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        return f"uid {os.getuid()}"


def _done(store: Treadle, job: Job, words: str, as_json: bool) -> None:
    if as_json:
        document({"job": job_as_dict(job, store.store_now())})
    else:
        say(f"{job.id}  {safe(job.task)} {safe(words)}")


def _row(job: Job, now: datetime) -> tuple[str | Text, ...]:
    error = "" if job.error is None else preview(f"{job.error.type}: {job.error.message}")
    label = coloured(job.label(now))
    attempts = f"{job.attempt}/{job.max_attempts}"
    return job.id, label, safe(job.task), safe(job.queue), attempts, age(job.created_at, now), error


def _account(job: Job, events: list[Event], now: datetime) -> Iterator[Text]:
    """The job, top to bottom, as lines."""
    label = job.label(now)
    why = f" ({job.reason})" if job.reason else ""
    yield Text.assemble(job.id, "  ", coloured(label), why)
    for title, text in _facts(job, now):
        yield Text.assemble((f"  {title:<10}", "dim"), text)
    yield from _block("payload", _pretty(job.payload))
    if job.result_json is not None:
        yield from _block("result", _pretty(job.result))
    if job.error is not None:
        said = f"{job.error.type}: {job.error.message}"
        when = age(datetime.fromisoformat(job.error.at), now)
        yield from _block(f"error in attempt {job.error.attempt}, {when}", said, "red")
        if job.error.traceback.strip():
            yield from _block("traceback", job.error.traceback.rstrip())
    if events:
        yield Text("  history", "dim")
    for event in events:
        who = f"{event.what:<16} by {safe(event.actor)}"
        note = f"  {preview(event.note, 200)}" if event.note else ""
        yield Text(f"    {clock(event.at)}  {who}{note}")


def _facts(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    version = f" (version {job.task_version})" if job.task_version != 1 else ""
    yield "task", f"{safe(job.task)}{version}"
    lane = f", lane {safe(job.lane)}" if job.lane else ""
    yield "queue", f"{safe(job.queue)}{lane}, priority {job.priority}, tenant {safe(job.tenant)}"
    yield (
        "attempts",
        f"{job.attempt} so far, {job.failures} of {job.max_attempts} failures spent, {job.crashes} crashes",
    )
    if job.key is not None:
        until = f" until {clock(job.key_until)}" if job.key_until else ""
        yield "key", f"{safe(job.key)} ({job.key_scope}{until})"
    moments = {
        "created": job.created_at,
        "due": job.due_at,
        "claimed": job.claimed_at,
        "started": job.started_at,
        "finished": job.finished_at,
        "expires": job.expires_at,
        "lease ends": job.lease_until,
    }
    for title, moment in moments.items():
        if moment is not None:
            yield title, f"{clock(moment)}  {age(moment, now)}"
    if job.timeout is not None:
        yield "timeout", f"{job.timeout:g} s"
    if job.worker is not None:
        yield "worker", safe(job.worker)
    if job.cancel_requested:
        yield "cancel", "requested"
    if job.progress is not None:
        yield "progress", f"{job.progress.fraction:.0%} {safe(job.progress.note)}".rstrip()
    if job.cost_micros:
        yield "cost", f"{job.cost_micros / 1e6:g}"


def _block(title: str, text: str, style: str = "") -> Iterator[Text]:
    yield Text(f"  {title}", "dim")
    for line in safe(text, lines=True).split("\n"):
        yield Text(f"    {line}", style)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
