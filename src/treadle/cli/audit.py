"""`treadle audit`: what was done to jobs, schedules and pauses, and whether the record of it is as it was."""

from contextlib import closing
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.text import Text

from treadle.app.audit import AuditReport
from treadle.app.reading import past_from
from treadle.app.treadle import Treadle
from treadle.app.views import report_view, trail_view
from treadle.cli import options
from treadle.cli.discovery import Target, find_ready_store, find_target
from treadle.cli.jobs import NARROW, check_id
from treadle.cli.store import MARKS
from treadle.cli.terminal import clock, coloured, document, preview, safe, say, table, width
from treadle.errors import ConfigError, InvalidJob, NotPossible
from treadle.model import UUID, Event, EventKind
from treadle.model.seals import Verified

COLUMNS = ("at", "kind", "by", "tenant", "job", "note")
NARROW_COLUMNS = ("at", "kind", "by", "note")
SEALS = ("tenant", "seals", "events", "pruned", "problems", "last hash")
NUMBERS = SEALS[1:5]
OF_RECORDS = (
    EventKind.CREATED, EventKind.CHANGED, EventKind.ENABLED, EventKind.DISABLED, EventKind.DELETED,
    EventKind.RUN_REQUESTED,
    EventKind.PAUSED,
    EventKind.RESUMED,
)  # fmt: skip
OF_PAUSES = (EventKind.PAUSED, EventKind.RESUMED)
MOST = 1000


def audit(
    ctx: typer.Context,
    app: options.App = None,
    url: options.Url = None,
    tenant: options.OfTenant = None,
    by: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only what this actor did.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only this: retried, deleted, paused.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only of this job.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Since 2h ago, or since a time.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", "--before", metavar="TIME", help="Until 1d ago, or until a time.")
    ] = None,
    by_hand: Annotated[bool, typer.Option("--by-hand", help="Without what workers do.")] = False,
    n: Annotated[int, typer.Option("-n", "--limit", metavar="N", help="How many, up to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended.")] = None,
    as_json: options.Json = False,
) -> None:
    """List what was done last to jobs, schedules and pauses, and by whom; newest first.

    Filters must all fit. Pauses that name no tenant are of tenant '*'. The kinds: enqueued, claimed, succeeded, failed,
    retrying, crashed, cancelled, retried, changed, deleted, paused and others, as the list prints them.
    """
    if ctx.invoked_subcommand is not None:
        _check_order(ctx)
        return
    if not 1 <= n <= MOST:
        raise InvalidJob("-n", f"{n} must be from 1 to {MOST:,}")
    filters: dict[str, Any] = {
        "tenant": tenant,
        "actor": by,
        "kind": kind,
        "since": past_from(since, "--since"),
        "until": past_from(until, "--until"),
        "job_id": job,
    }
    if by_hand:  # a server that is older does not know it
        filters["by_hand"] = True
    if job is not None:
        check_id(job)
    with closing(find_target(app, url)) as store:
        if job is not None and not UUID.fullmatch(job.lower()):
            filters["job_id"] = store.resolve_id(job)
        page = store.audit_page(limit=n, cursor=cursor, **filters)
        known = known_kinds(store)
    events = page.events
    if as_json:
        document({"events": trail_view(events), "cursor": page.cursor})
        return
    if not events:
        hint = unknown_kind("--kind", kind, known)
        say(f"no audit events{f'; {hint}' if hint else ''}")
    elif (room := width()) is not None and room < NARROW:
        table(NARROW_COLUMNS, [_narrow_row(event) for event in events], notes=[_below(event, room) for event in events])
    else:
        table(COLUMNS, [_row(event) for event in events])
    if page.cursor is not None:
        say(Text(f"more: --cursor {page.cursor}", "dim"))


def seal(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Seal every audit event there is, as workers do by themselves within a minute or two."""
    with closing(find_ready_store(app, url)) as store:
        events = store.seal_audit()
    if as_json:
        document({"sealed": events})
    else:
        say(f"sealed {events:,} event{'s' * (events != 1)}")


def verify(
    app: options.App = None, url: options.Url = None, tenant: options.OfTenant = None, as_json: options.Json = False
) -> None:
    """See whether sealed audit events were edited, moved or removed; exit code 1 if so.

    Workers seal events in batches, and each seal holds the hash of the one before it. Keep the last hash elsewhere, and
    nobody can rewrite what came before it. "pruned" are seals whose events were old and are gone.
    """
    with closing(find_target(app, url)) as store:
        trail = store.verify_audit(tenant=tenant)
    if tenant is not None and not trail.tenants and not trail.unsealed:  # a name mistyped, or a trail wiped out
        raise NotPossible(f"tenant {tenant!r} has no audit events, sealed or not: there is nothing to verify")
    if as_json:
        document(report_view(trail))
    else:
        _report(trail)
    if not trail.sound:
        raise typer.Exit(1)


def _check_order(ctx: typer.Context) -> None:
    """Options of the list say nothing to what follows."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            sub = ctx.invoked_subcommand
            raise ConfigError(f"{param.opts[0]} must stand after {sub}: treadle audit {sub} {param.opts[0]} …")


def known_kinds(store: Target) -> list[str]:
    """The kinds that treadle writes, and those that the app's tasks, if it is here, give the ends of their jobs."""
    tasks = store.tasks.values() if isinstance(store, Treadle) else ()
    ends = [end for task in tasks for end in task.options.on_end or () if end is not None]
    own = {word for end in ends for word in (end.event, end.exhausted) if word}
    return [*(kind.value for kind in EventKind), *sorted(own)]


def unknown_kind(option: str, kind: str | None, known: list[str]) -> str:
    """What to say of a kind that may be mistyped. It is not refused: the store may hold words of other apps."""
    if kind is None or kind in known:
        return ""
    words = {word.lower(): word for word in known}
    near = [words[word] for word in get_close_matches(kind.lower(), words, 2)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"the kinds: {', '.join(known)}"
    return safe(f"{option}: {kind!r} is not a known kind; {hint}")


def _row(event: Event) -> tuple[str, ...]:
    at, what, who, _ = _narrow_row(event)
    return at, what, who, safe(event.tenant), _job(event), preview(event.note, 200)


def _narrow_row(event: Event) -> tuple[str, ...]:
    """Without the tenant; a job and what is noted of it go below."""
    note = "" if _job(event) else preview(event.note, 200)
    return clock(event.at), event.kind.value, safe(event.actor), note


def _below(event: Event, room: int) -> Text:
    id = _job(event)
    return Text(f"{id}  {preview(event.note, max(room - len(id) - 4, 20))}".rstrip() if id else "", "dim")


def _job(event: Event) -> str:
    """The job's id; a schedule or a pause is named by the note, and its id means nothing to anybody."""
    of_record = event.kind in OF_PAUSES or event.note.startswith("schedule ")
    return "" if event.kind in OF_RECORDS and of_record else event.job_id


def _report(trail: AuditReport) -> None:
    if trail.tenants:
        narrow = (room := width()) is not None and room < NARROW
        hashes = [Text(found.hash, "dim") for found in trail.tenants] if narrow else ()
        rows = [_seals(found) for found in trail.tenants]
        cut = len(SEALS) - narrow
        table(SEALS[:cut], [row[:cut] for row in rows], right=NUMBERS, notes=hashes)
    for found in trail.tenants:
        for problem in found.problems:
            say(coloured("error", f"{MARKS['error']} tenant {safe(found.tenant)}: {safe(problem)}"))
        if found.early:
            early = f"{found.early:,} of the pruned seals went sooner than keep_audit says now"
            say(coloured("warning", f"{MARKS['warning']} tenant {safe(found.tenant)}: {early}"))
    events = f"{trail.unsealed:,} event{'s are' if trail.unsealed != 1 else ' is'}"
    tail = f"{events} not sealed yet" if trail.unsealed else "every event is sealed"
    if not trail.tenants:
        say(f"nothing is sealed yet; {events} waiting for a worker to do it")
    elif trail.sound:
        say(coloured("ok", f"{MARKS['ok']} sound"), f"; {tail}")
    else:
        say(coloured("error", f"{MARKS['error']} not sound"), f"; {tail}")


def _seals(found: Verified) -> tuple[str, ...]:
    counts = (found.seals, found.events, found.pruned, len(found.problems))
    return (safe(found.tenant), *(f"{count:,}" for count in counts), found.hash)
