"""`treadle jobs retry`, `cancel`, `delete`, `edit` and `run-now`: act on one job, on several, or on all that fit."""

from contextlib import closing
from typing import Annotated, Any

import typer

from treadle.app.bulk import BulkReport
from treadle.app.reading import past_from, soon_from
from treadle.cli import options
from treadle.cli.bulk import act_on_many
from treadle.cli.discovery import Target, find_target
from treadle.cli.jobs import (
    Before,
    Id,
    OfError,
    OfFingerprint,
    OfKey,
    OfLane,
    OfQueue,
    OfState,
    OfTask,
    Since,
    actor,
    check_id,
    resolved,
)  # fmt: skip
from treadle.cli.reading import payload_from
from treadle.cli.terminal import clock, document, safe, say
from treadle.errors import ConfigError
from treadle.model import Job, State

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their first digits.", show_default=False)
]
Everything = Annotated[bool, typer.Option("--all", help="All of them, whatever they are.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them, and name the first few.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Expect = Annotated[
    int | None, typer.Option("--expect", metavar="N", min=0, help="Do nothing unless so many fit, as you have seen.")
]

NewPayload = Annotated[
    str | None, typer.Option("--payload", metavar="JSON", help="With this payload instead; - reads it from stdin.")
]
Revision = Annotated[
    int | None, typer.Option("--revision", metavar="N", help="Only if the job still has this revision.")
]


def retry(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    lane: OfLane = None,
    error: OfError = None,
    fingerprint: OfFingerprint = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    keep_attempts: Annotated[bool, typer.Option("--keep-attempts", help="Once more, not with a fresh budget.")] = False,
    payload: NewPayload = None,
    revision: Revision = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    expect: Expect = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Run failed or cancelled jobs again: these ids, or all that fit.

    Filters must all fit. Without --state they mean failed jobs; --state cancelled runs those again. It asks before it
    acts on what fits, unless --yes. Interrupted, it says how far it came, and the same command goes on.

    With --payload one job runs with another payload, checked against its task if the app is here.
    """
    if (payload is not None or revision is not None) and (dry_run or len(ids or ()) != 1):
        raise ConfigError("--payload and --revision are of one job: give its id, and neither a filter nor --dry-run")
    new = None if payload is None else payload_from(payload, "--payload")
    which = _which(
        ids,
        everything,
        since,
        before,
        expect,
        state=state,
        task=task,
        queue=queue,
        tenant=tenant,
        key=key,
        lane=lane,
        error=error,
        fingerprint=fingerprint,
    )
    with closing(find_target(app, url)) as store:
        if one := _only(store, ids, dry_run):
            more: dict[str, Any] = {"payload": new, "revision": revision}
            job = store.retry(one, keep_attempts=keep_attempts, actor=actor(), reason=reason, **more)
            _done(store, job, "waits to be run again", as_json)
            return

        def act(**options: Any) -> BulkReport:
            return store.retry_many(**options, keep_attempts=keep_attempts, actor=actor(), reason=reason)

        act_on_many(store, act, which, ("retry", "retried"), dry_run, yes or bool(ids), as_json, expect)


def cancel(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    lane: OfLane = None,
    error: OfError = None,
    fingerprint: OfFingerprint = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    expect: Expect = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Cancel waiting jobs, or ask running ones to stop: these ids, or all that fit.

    Filters must all fit; without --state they mean both. It asks before it acts on what fits, unless --yes.
    """
    which = _which(
        ids,
        everything,
        since,
        before,
        expect,
        state=state,
        task=task,
        queue=queue,
        tenant=tenant,
        key=key,
        lane=lane,
        error=error,
        fingerprint=fingerprint,
    )
    with closing(find_target(app, url)) as store:
        if one := _only(store, ids, dry_run):
            job = store.cancel(one, actor=actor(), reason=reason)
            asked = f"was asked to stop; it runs on {job.worker}"
            _done(store, job, asked if job.state is State.RUNNING else "is cancelled", as_json)
            return

        def act(**options: Any) -> BulkReport:
            return store.cancel_many(**options, actor=actor(), reason=reason)

        act_on_many(store, act, which, ("cancel", "cancelled"), dry_run, yes or bool(ids), as_json, expect)


def delete(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    lane: OfLane = None,
    error: OfError = None,
    fingerprint: OfFingerprint = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    expect: Expect = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Delete jobs with their payloads, for good: these ids, or all that fit. Running jobs are left alone.

    The audit trail keeps who deleted them, when and why, and what it had noted before, error messages included. It asks
    first, unless --yes.
    """
    which = _which(
        ids,
        everything,
        since,
        before,
        expect,
        state=state,
        task=task,
        queue=queue,
        tenant=tenant,
        key=key,
        lane=lane,
        error=error,
        fingerprint=fingerprint,
    )
    with closing(find_target(app, url)) as store:

        def act(**options: Any) -> BulkReport:
            return store.delete_many(**options, actor=actor(), reason=reason)

        act_on_many(store, act, which, ("delete", "deleted"), dry_run, yes, as_json, expect)


def edit(
    id: Id,
    app: options.App = None,
    url: options.Url = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="To this queue.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="To this lane; '' for none.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="To this priority; higher runs first.")] = None,
    run_after: Annotated[
        str | None, typer.Option("--run-after", metavar="TIME", help="Due in 5m, or at 2030-01-31T12:00Z.")
    ] = None,
    payload: NewPayload = None,
    revision: Revision = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Give a waiting job another queue, lane, priority, due time or payload."""
    check_id(id)
    due = soon_from(run_after, "--run-after")
    new = None if payload is None else payload_from(payload, "--payload")
    if (queue, lane, priority, due, new) == (None,) * 5:
        raise ConfigError("what? Give --queue, --lane, --priority, --run-after or --payload")
    with closing(find_target(app, url)) as store:
        known = resolved(store, id)
        fields: dict[str, Any] = {"queue": queue, "lane": lane, "priority": priority, "run_after": due}
        job = store.edit(known, **fields, payload=new, revision=revision, actor=actor(), reason=reason)
        lane_words = f", lane {job.lane}" if job.lane else ""
        words = f"is on queue {job.queue}{lane_words}, priority {job.priority}, due {clock(job.due_at)}"
        _done(store, job, words, as_json)


def run_now(
    id: Id, app: options.App = None, url: options.Url = None, reason: options.Reason = "", as_json: options.Json = False
) -> None:
    """Let a job run now that is due later, or waits for its next attempt."""
    check_id(id)
    with closing(find_target(app, url)) as store:
        job = store.run_now(resolved(store, id), actor=actor(), reason=reason)
        _done(store, job, "is due now", as_json)


# ------------------------------------------------------------------------------------------------ which jobs


def _which(
    ids: list[str] | None,
    everything: bool,
    since: str | None,
    before: str | None,
    expect: int | None,
    **given: str | None,
) -> dict[str, Any]:
    """What was named, for `app.retry_many` and the like; checked before a store is opened."""
    times = {"since": past_from(since, "--since"), "before": past_from(before, "--before")}
    named = {field: value for field, value in {**given, **times}.items() if value is not None}
    for id in ids or ():
        check_id(id)
    if ids and (named or everything):
        raise ConfigError(f"ids or a filter: leave out --{next(iter(named), 'all')}, or the ids")
    if ids and expect is not None:
        raise ConfigError("--expect is of a filter: leave it out, or the ids")
    if not ids and not named and not everything:
        raise ConfigError("which jobs? Give ids, or a filter such as --state failed --task greet, or --all")
    return {"ids": ids} if ids else {**named, "everything": everything}


def _only(store: Target, ids: list[str] | None, dry_run: bool) -> str | None:
    """The one job that is named, if it is one."""
    return resolved(store, ids[0]) if ids and len(ids) == 1 and not dry_run else None


def _done(store: Target, job: Job, words: str, as_json: bool) -> None:
    if as_json:
        document({"job": store.view(job)})
    else:
        say(f"{job.id}  {safe(job.task)} {safe(words)}")
