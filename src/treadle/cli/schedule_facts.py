"""`treadle schedules show`: everything about one schedule."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from treadle.app.views import event_view, schedule_view
from treadle.cli import options
from treadle.cli.discovery import Target, find_target
from treadle.cli.jobs import block, history, pretty
from treadle.cli.schedules import Name, Tenant, opened, standing, timing
from treadle.cli.terminal import age, clock, document, safe, say
from treadle.errors import ConfigError, NotPossible, ScheduleNotFound
from treadle.model import Event, EventKind, OnEnd
from treadle.model.clock import span
from treadle.model.records import Misfire, Schedule, subject
from treadle.model.retry import Retry
from treadle.schedules.words import explain

MOST_EVENTS = 10  # that are shown; --json has all

Facts = Iterator[tuple[str, str]]


def show(
    name: Name, app: options.App = None, url: options.Url = None, tenant: Tenant = None, as_json: options.Json = False
) -> None:
    """Show everything about one schedule: when it runs, what it makes, and what was done to it."""
    with opened(find_target, app, url, name, tenant) as (store, which):
        schedule, events = _found(store, which)
        schedule = store.masked_schedule(schedule)
        now, view = store.engine.now(), schedule_view(schedule, store.profile)
    if as_json:
        document({"schedule": view, "events": [event_view(event) for event in events]})
        return
    for line in _account(schedule, events, now):
        say(line)


def _found(store: Target, which: dict[str, Any]) -> tuple[Schedule, Sequence[Event]]:
    """The schedule and its events; of one that was deleted, by whom, instead of that it is not there."""
    events = store.schedules.events(**which)
    try:
        return store.schedules.get(**which), events
    except ScheduleNotFound:
        last = events[-1] if events else None
        if last is None or last.kind is not EventKind.DELETED:
            raise
        reason = last.note.removeprefix(f"schedule {which['name']}").removeprefix(": ")
        why = f" ({reason})" if reason else ""
        raise NotPossible(f"schedule {which['name']!r} was deleted by {last.actor} at {clock(last.at)}{why}") from None


def _account(schedule: Schedule, events: Sequence[Event], now: datetime) -> Iterator[Text]:
    """The schedule, top to bottom, as lines."""
    yield Text.assemble(safe(schedule.name), "  ", standing(schedule))
    for facts in (_when(schedule, now), _what(schedule), _rules(schedule), _record(schedule, now)):
        for title, text in facts:
            yield Text.assemble((f"  {title:<12}", "dim"), safe(text))
    yield from block("payload", pretty(schedule.payload))
    yield from history(events[-MOST_EVENTS:])
    if len(events) > MOST_EVENTS:
        yield Text(f"    earlier: treadle audit --job {subject(schedule)}", "dim")


def _when(schedule: Schedule, now: datetime) -> Facts:
    yield "when", timing(schedule)
    if schedule.cron is not None:
        yield "in words", _words(schedule.cron)
    if schedule.jitter:
        yield "jitter", f"each run up to {span(schedule.jitter)} later"
    if not schedule.enabled:
        yield "next", "never while it is off"
    else:
        yield "next", "not known yet: a worker finds it" if schedule.next_at is None else _moment(schedule.next_at, now)
    yield "last", "never yet" if schedule.last_at is None else _moment(schedule.last_at, now)
    if schedule.last_job is not None:
        yield "last job", schedule.last_job


def _words(cron: str) -> str:
    try:
        return explain(cron)
    except ConfigError as error:  # another program wrote the row; the next worker disables it
        return f"it cannot be read: {error}"


def _what(schedule: Schedule) -> Facts:
    version = f" (version {schedule.task_version})" if schedule.task_version != 1 else ""
    yield "task", f"{schedule.task}{version}"
    if schedule.for_each is not None:
        yield "for each", f"row of {schedule.for_each}"
    lane = f", lane {schedule.lane}" if schedule.lane else ""
    yield "queue", f"{schedule.queue}{lane}, priority {schedule.priority}, tenant {schedule.tenant}"
    yield "attempts", f"{schedule.max_attempts}{_backoff(schedule.retry)}"
    if schedule.timeout is not None:
        yield "timeout", span(schedule.timeout)
    for state, follow in zip(OnEnd._fields, schedule.on_end or (), strict=False):
        if follow is not None:
            job, event = follow.task and f"a job of {follow.task}", follow.event and f"event {follow.event}"
            exhausted = follow.exhausted and f"event {follow.exhausted} when the attempts are spent"
            yield "then", f"{state}: {', '.join(filter(None, (job, event, exhausted)))}"


def _backoff(retry: Retry) -> str:
    """The waits between attempts, if they are not the usual ones."""
    if retry[1:] == Retry()[1:]:
        return ""
    cap = "without a cap" if retry.cap is None else f"up to {span(retry.cap)}"
    return f", waits from {span(retry.base)} {cap}, jitter {span(retry.jitter)}"


def _rules(schedule: Schedule) -> Facts:
    limits = f": {schedule.misfire_limit:,} at most, not older than {span(schedule.misfire_age)}"
    yield "misfire", f"{schedule.misfire}{limits if schedule.misfire is Misfire.ALL else ''}"
    yield "overlap", schedule.overlap


def _record(schedule: Schedule, now: datetime) -> Facts:
    yield "declared", _declared(schedule)
    yield "created", _moment(schedule.created_at, now)
    if schedule.updated_at is not None:
        yield "changed", _moment(schedule.updated_at, now)
    yield "revision", str(schedule.revision)
    yield "id", schedule.id


def _declared(schedule: Schedule) -> str:
    if schedule.declared is None:
        return "not by code"
    module = f"module {schedule.declared_in}" if schedule.declared_in else "code"
    return f"no longer: {module} declared it once" if schedule.gone else f"by {module}"


def _moment(moment: datetime, now: datetime) -> str:
    return f"{clock(moment)}  {age(moment, now)}"
