"""`treadle jobs`: list, show and count jobs."""

import getpass
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from treadle.app.profile import Profile
from treadle.app.queries import BY_END
from treadle.app.reading import past_from
from treadle.app.views import attempts_view, event_view, page_view, short_standing, standing
from treadle.cli import options
from treadle.cli.discovery import Target, find_target
from treadle.cli.near import near_names
from treadle.cli.terminal import age, clock, coloured, document, lasted, preview, safe, say, table, width
from treadle.errors import ConfigError, JobNotFound, NotPossible
from treadle.model import Event, EventKind, Job, State
from treadle.model.attempts import attempts_of

COLUMNS = ("id", "state", "task", "queue", "attempts", "when", "took", "error")
NARROW = 110  # cells: in a terminal with fewer the error goes below its job, and queue and duration away
NARROW_COLUMNS = ("id", "state", "task", "attempts", "when")
ID_OR_PREFIX = re.compile(r"[0-9a-fA-F](-?[0-9a-fA-F]){3,31}-?")

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its first digits.", show_default=False)]
OfState = Annotated[str | None, typer.Option("--state", help="Only in this state.")]
OfTask = Annotated[str | None, typer.Option("--task", "--type", "--job-type", help="Only of this task.")]
OfQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Only with this unique key.")]
OfError = Annotated[str | None, typer.Option("--error", metavar="TYPE", help="Only with this error: ValueError.")]
OfLane = Annotated[str | None, typer.Option("--lane", help="Only of this lane; '' for those of none.")]
OfFingerprint = Annotated[
    str | None, typer.Option("--fingerprint", metavar="HEX", help="Only with this kind of error: see treadle failures.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Ended, or stored, since: 1h, or a time.")]
Before = Annotated[
    str | None, typer.Option("--before", "--until", metavar="TIME", help="Ended, or stored, before: 7d, or a time.")
]


def list_jobs(
    app: options.App = None,
    url: options.Url = None,
    state: Annotated[str | None, typer.Option("--state", help="Only in this state; see above.")] = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    lane: OfLane = None,
    error: OfError = None,
    fingerprint: OfFingerprint = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Only with this text in the payload; not DynamoDB.")
    ] = None,
    since: Since = None,
    before: Before = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="How many, up to 500.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended.")] = None,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first.

    States: pending, running, succeeded, failed and cancelled; the last three are final, a word in parentheses says
    why. Of pending jobs the list calls those scheduled that are not due yet, and retrying those that failed before
    (--state pending finds both); of running ones those claimed that have not begun. An app with a profile has words
    of its own for states, here and in --state, and names of its own in --json.

    The column "attempts" has those made and how many there may be; "when" says how long ago a job was stored, or in
    how long one that waits is due; "took" how long its last attempt ran. A list of --state failed or cancelled is in
    the order in which they ended, and "when" says how long ago that was.

    --text, --error, --fingerprint, --since and --before are looked for job by job; on DynamoDB also --task, --queue,
    --tenant, --lane and --key. After 10,000 jobs the list ends where it is, and says with which --cursor it goes on.
    """
    since_moment, before_moment = past_from(since, "--since"), past_from(before, "--before")
    with closing(find_target(app, url)) as store:
        page = store.find(
            state=state,
            task=task,
            queue=queue,
            tenant=tenant,
            key=key,
            lane=lane,
            error=error,
            fingerprint=fingerprint,
            text=text,
            since=since_moment,
            before=before_moment,
            limit=limit,
            cursor=cursor,
        )
        by_end = state is not None and all(one in BY_END for one in store.profile.meaning(state))
        hint = near_names(store, task=task, queue=queue) if not page.jobs and page.cursor is None else ""
        view, profile, now = page_view(store, page), store.profile, store.engine.now()
        page = page._replace(jobs=[store.masked(job) for job in page.jobs])
    if hint:
        say(safe(hint), stderr=True)
    if as_json:
        document(view)
        return
    if not page.jobs:
        say("no jobs" if page.cursor is None else f"no jobs among the {page.looked:,} looked at")
    elif (room := width()) is not None and room < NARROW:
        errors = [preview(_error(job), room - 4) for job in page.jobs]
        table(NARROW_COLUMNS, [_narrow_row(job, now, profile, by_end) for job in page.jobs], notes=errors)
    else:
        table(COLUMNS, [_row(job, now, profile, by_end) for job in page.jobs])
    if page.cursor is not None:
        say(Text(f"more: --cursor {page.cursor}", "dim"))


def show(id: Id, app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Show everything about one job: payload, times, error and history."""
    check_id(id)
    with closing(find_target(app, url)) as store:
        known = resolved(store, id)
        whole = store.get(known)
        job, events = store.masked(whole), store.masked_events(whole, store.events(known))
        view, profile, now = store.view(job), store.profile, store.engine.now()
    if as_json:
        shown = {"job": view, "events": [event_view(event) for event in events]}
        document({**shown, "attempts": attempts_view(job, events)})
        return
    for line in _account(job, events, now, profile):
        say(line)


def count(
    app: options.App = None,
    url: options.Url = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    lane: OfLane = None,
    as_json: options.Json = False,
) -> None:
    """Count jobs by state; of a state with more than 50,000 it says about how many, quickly.

    Below the pending jobs it says how many of them are scheduled (due later) and retrying (tried before).
    """
    with closing(find_target(app, url)) as store:
        view = store.counts(task=task, queue=queue, tenant=tenant, lane=lane)
    if as_json:
        document(view)
        return
    for word, number in view["counts"].items():
        sure = word not in view["estimates"]
        say(coloured(word, f"{safe(word):<10}"), f" {number:>10,}{'' if sure else '  estimate'}")
        for label, part in view["labels"].items() if word == State.PENDING else ():
            if part:
                say(f"  {label:<8} {part:>10,}{'' if sure else '+'}")
    say(f"{'total':<10} {view['total']:>10,}{'  estimate' * (not view['exact'])}")


def actor() -> str:
    """Who acts, for the audit trail: the name this user has on this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        return f"uid {os.getuid()}"


def check_id(id: str) -> None:
    """Refuse what is neither an id nor the beginning of one."""
    if not ID_OR_PREFIX.fullmatch(id.strip("{}").removeprefix("urn:uuid:")):
        raise ConfigError(
            f"{id!r} is neither a job id (a UUID) nor its first 4 digits or more; `treadle jobs list` shows them"
        )


def resolved(store: Target, id: str) -> str:
    """The id of the one job that is meant; what was done to a job that is deleted, instead of that it is not there."""
    known = store.resolve_id(id.strip("{}").removeprefix("urn:uuid:"))
    try:
        store.get(known)
    except JobNotFound:
        last = next(reversed(store.events(known)), None)
        if last is not None and last.kind is EventKind.DELETED:
            raise NotPossible(f"job {known} was deleted by {last.actor} at {clock(last.at)} ({last.note})") from None
        raise
    return known


def _row(job: Job, now: datetime, profile: Profile, by_end: bool) -> tuple[str | Text, ...]:
    return (
        job.id,
        coloured(job.label(now), standing(job, now, profile)),
        safe(job.task),
        safe(job.queue),
        _attempts(job),
        _when(job, now, by_end),
        took(job, now),
        preview(_error(job)),
    )


def _narrow_row(job: Job, now: datetime, profile: Profile, by_end: bool) -> tuple[str | Text, ...]:
    """Without the queue and the duration, and of a final state without the reason."""
    return (
        job.id,
        coloured(job.label(now), short_standing(job, now, profile)),
        safe(job.task),
        _attempts(job),
        _when(job, now, by_end),
    )


def _attempts(job: Job) -> str:
    return f"{job.attempts_made}/{job.max_attempts}"


def _when(job: Job, now: datetime, by_end: bool) -> str:
    if by_end and job.finished_at is not None:
        return age(job.finished_at, now)
    waits = job.state is State.PENDING and job.due_at > now
    return age(job.due_at if waits else job.created_at, now)


def took(job: Job, now: datetime) -> str:
    """How long the last attempt ran, or runs; nothing if there was none."""
    if job.started_at is None or job.state is State.PENDING:
        return ""
    end = job.finished_at or now
    if job.error is not None and job.error.attempt == job.attempt:  # it ended with that, and waited since
        end = min(end, datetime.fromisoformat(job.error.at))
    return lasted(max(end, job.started_at) - job.started_at)


def _error(job: Job) -> str:
    return "" if job.error is None else f"{job.error.type}: {job.error.message}"


def _account(job: Job, events: list[Event], now: datetime, profile: Profile) -> Iterator[Text]:
    """The job, top to bottom, as lines."""
    yield Text.assemble(job.id, "  ", coloured(job.label(now), standing(job, now, profile)))
    for title, text in _facts(job, now):
        yield Text.assemble((f"  {title:<12}", "dim"), text)
    yield from block("payload", pretty(job.payload))
    if job.result_json is not None:
        yield from block("result", pretty(job.result))
    if job.error is not None:
        when = age(datetime.fromisoformat(job.error.at), now)
        yield from block(f"error in attempt {job.error.attempt}, {when}", _error(job), "red")
        if job.error.traceback.strip():
            yield from block("traceback", job.error.traceback.rstrip())
    yield from _attempt_lines(job, events)
    yield from history(events)


def _attempt_lines(job: Job, events: list[Event]) -> Iterator[Text]:
    """The attempts, a line each, if there was more than one."""
    attempts = attempts_of(job, events)
    if len(attempts) > 1:
        yield Text("  attempts by themselves", "dim")
        for one in attempts:
            times = [f"{word} {clock(at)}" for word, at in (("from", one.claimed_at), ("to", one.ended_at)) if at]
            error = f"  {preview(one.error.message, 100)}" if one.error is not None else ""
            by = f" by {safe(one.worker)}" if one.worker else ""
            words = " ".join([f"{one.number or '?':>4}", f"{one.outcome or 'not kept':<10}", *times])
            yield Text(f"    {words}{by}{error}")
        if not all(one.complete for one in attempts):
            yield Text('    the audit level does not keep all of it; audit = "everything" in the settings does', "dim")


def _facts(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    version = f" (version {job.task_version})" if job.task_version != 1 else ""
    yield "task", f"{safe(job.task)}{version}"
    lane = f", lane {safe(job.lane)}" if job.lane else ""
    yield "queue", f"{safe(job.queue)}{lane}, priority {job.priority}, tenant {safe(job.tenant)}"
    crashes = "1 crash" if job.crashes == 1 else f"{job.crashes} crashes"
    yield "attempts", f"{job.attempts_made} of {job.max_attempts}, claimed {_times(job.attempt)}, {crashes}"
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
    if duration := took(job, now):
        yield "took", duration
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


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number, f"{number:,} times")


def history(events: Sequence[Event]) -> Iterator[Text]:
    """What was done, a line an event, below a title."""
    if events:
        yield Text("  history", "dim")
    for event in events:
        who = f"{safe(event.kind):<16} by {safe(event.actor)}"
        note = f"  {preview(event.note, 200)}" if event.note else ""
        yield Text(f"    {clock(event.at)}  {who}{note}")


def block(title: str, text: str, style: str = "") -> Iterator[Text]:
    """A text of several lines below a title."""
    yield Text(f"  {title}", "dim")
    for line in safe(text, lines=True).split("\n"):
        yield Text(f"    {line}", style)


def pretty(value: object) -> str:
    """A value as JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)
