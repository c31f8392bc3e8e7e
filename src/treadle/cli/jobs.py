"""`treadle jobs`: look at jobs and act on them."""

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer
from rich.text import Text

from treadle.app.profile import Profile
from treadle.app.treadle import Treadle
from treadle.app.views import event_view, short_standing, standing
from treadle.cli import options
from treadle.cli.discovery import find_ready_store
from treadle.cli.terminal import age, clock, coloured, document, preview, safe, say, table, width
from treadle.errors import ConfigError
from treadle.model import Event, Job, State

COLUMNS = ("id", "state", "task", "queue", "tries", "when", "error")
NARROW = 110  # cells: in a terminal with fewer the error goes below its job, and the queue away
NARROW_COLUMNS = ("id", "state", "task", "tries", "when")

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
OfTask = Annotated[str | None, typer.Option("--task", "--type", "--job-type", help="Only of this task.")]
OfQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the job's history.", show_default=False)]


def list_jobs(
    app: options.App = None,
    url: options.Url = None,
    state: Annotated[str | None, typer.Option("--state", help="Only in this state; see above.")] = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    limit: Annotated[int, typer.Option("--limit", help="How many, up to 500.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended.")] = None,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first.

    States: pending, running, succeeded, failed and cancelled; the last three are final, a word in parentheses says
    why. Of pending jobs the list calls those scheduled that are not due yet, and retrying those that failed before
    (--state pending finds both); of running ones those claimed that have not begun. An app with a profile has words
    of its own for states, here and in --state, and names of its own in --json.

    The column "tries" has the failures so far and how many there may be; "when" says how long ago a job was stored,
    or in how long one that waits is due.
    """
    with closing(find_ready_store(app, url)) as store:
        page = store.find(state=state, task=task, queue=queue, tenant=tenant, limit=limit, cursor=cursor)
        views, profile, now = [store.view(job) for job in page.jobs], store.profile, store.engine.now()
    if as_json:
        document({"jobs": views, "cursor": page.cursor})
        return
    if not page.jobs:
        say("no jobs")
        return
    if (room := width()) is not None and room < NARROW:
        errors = [preview(_error(job), room - 4) for job in page.jobs]
        table(NARROW_COLUMNS, [_narrow_row(job, now, profile) for job in page.jobs], notes=errors)
    else:
        table(COLUMNS, [_row(job, now, profile) for job in page.jobs])
    if page.cursor is not None:
        say(Text(f"more: --cursor {page.cursor}", "dim"))


def show(id: Id, app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Show everything about one job: payload, times, error and history."""
    known = job_id(id)
    with closing(find_ready_store(app, url)) as store:
        job, events = store.get(known), store.events(known)
        view, profile, now = store.view(job), store.profile, store.engine.now()
    if as_json:
        document({"job": view, "events": [event_view(event) for event in events]})
        return
    for line in _account(job, events, now, profile):
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
    known = job_id(id)
    with closing(find_ready_store(app, url)) as store:
        job = store.retry(known, keep_attempts=keep_attempts, actor=actor(), reason=reason)
        _done(store, job, "waits to be run again", as_json)


def cancel(
    id: Id, app: options.App = None, url: options.Url = None, reason: Why = "", as_json: options.Json = False
) -> None:
    """Cancel a waiting job, or ask a running one to stop."""
    known = job_id(id)
    with closing(find_ready_store(app, url)) as store:
        job = store.cancel(known, actor=actor(), reason=reason)
        asked = f"was asked to stop; it runs on {job.worker}"
        _done(store, job, asked if job.state is State.RUNNING else "is cancelled", as_json)


def count(
    app: options.App = None,
    url: options.Url = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    as_json: options.Json = False,
) -> None:
    """Count jobs by state."""
    with closing(find_ready_store(app, url)) as store:
        counts = _counts(store, task=task, queue=queue, tenant=tenant)
    total = sum(counts.values())
    if as_json:
        document({"counts": counts, "total": total})
        return
    for word, number in counts.items():
        say(coloured(word, f"{safe(word):<10}"), f" {number:>10,}")
    say(f"{'total':<10} {total:>10,}")


def _counts(store: Treadle, **where: str | None) -> dict[str, int]:
    """How many jobs there are, by state, or by the profile's words for them."""
    if not store.profile.states:
        return {state.value: number for state, number in store.count(**where).items()}
    return {word: sum(store.count(state=word, **where).values()) for word in store.profile.words()}


def actor() -> str:
    """Who acts, for the audit trail: the name this user has on this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        return f"uid {os.getuid()}"


def job_id(id: str) -> str:
    """The id as stores write it."""
    try:
        return str(UUID(id))
    except ValueError:
        raise ConfigError(f"{id!r} is no job id (a UUID); `treadle jobs list` shows them") from None


def _done(store: Treadle, job: Job, words: str, as_json: bool) -> None:
    if as_json:
        document({"job": store.view(job)})
    else:
        say(f"{job.id}  {safe(job.task)} {safe(words)}")


def _row(job: Job, now: datetime, profile: Profile) -> tuple[str | Text, ...]:
    state = coloured(job.label(now), standing(job, now, profile))
    return job.id, state, safe(job.task), safe(job.queue), _tries(job), _when(job, now), preview(_error(job))


def _narrow_row(job: Job, now: datetime, profile: Profile) -> tuple[str | Text, ...]:
    """Without the queue, and of a final state without the reason."""
    return (
        job.id,
        coloured(job.label(now), short_standing(job, now, profile)),
        safe(job.task),
        _tries(job),
        _when(job, now),
    )


def _tries(job: Job) -> str:
    """Failures, not attempts: a snooze is an attempt that spends nothing."""
    return f"{job.failures}/{job.max_attempts}"


def _when(job: Job, now: datetime) -> str:
    waits = job.state is State.PENDING and job.due_at > now
    return age(job.due_at if waits else job.created_at, now)


def _error(job: Job) -> str:
    return "" if job.error is None else f"{job.error.type}: {job.error.message}"


def _account(job: Job, events: list[Event], now: datetime, profile: Profile) -> Iterator[Text]:
    """The job, top to bottom, as lines."""
    yield Text.assemble(job.id, "  ", coloured(job.label(now), standing(job, now, profile)))
    for title, text in _facts(job, now):
        yield Text.assemble((f"  {title:<12}", "dim"), text)
    yield from _block("payload", _pretty(job.payload))
    if job.result_json is not None:
        yield from _block("result", _pretty(job.result))
    if job.error is not None:
        when = age(datetime.fromisoformat(job.error.at), now)
        yield from _block(f"error in attempt {job.error.attempt}, {when}", _error(job), "red")
        if job.error.traceback.strip():
            yield from _block("traceback", job.error.traceback.rstrip())
    if events:
        yield Text("  history", "dim")
    for event in events:
        who = f"{event.kind:<16} by {safe(event.actor)}"
        note = f"  {preview(event.note, 200)}" if event.note else ""
        yield Text(f"    {clock(event.at)}  {who}{note}")


def _facts(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    version = f" (version {job.task_version})" if job.task_version != 1 else ""
    yield "task", f"{safe(job.task)}{version}"
    lane = f", lane {safe(job.lane)}" if job.lane else ""
    yield "queue", f"{safe(job.queue)}{lane}, priority {job.priority}, tenant {safe(job.tenant)}"
    crashes = "1 crash" if job.crashes == 1 else f"{job.crashes} crashes"
    yield "attempts", f"{job.attempt} so far, {job.failures} of {job.max_attempts} failures spent, {crashes}"
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
