"""`treadle schedules`: rows that make jobs; make, list, change, switch and delete them, and run one now."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from treadle.app.views import schedule_view
from treadle.cli import options
from treadle.cli.discovery import Target, check_open, find_target, find_target_app
from treadle.cli.jobs import NARROW, actor
from treadle.cli.reading import payload_from, truth_from
from treadle.cli.terminal import age, clock, coloured, document, preview, safe, say, table, width
from treadle.errors import ConfigError, KeyTaken, NotPossible, ScheduleNotFound
from treadle.model.clock import seconds, span
from treadle.model.records import Misfire, Overlap, Schedule
from treadle.schedules.cron import Cron, Every, time_zone

COLUMNS = ("tenant", "name", "task", "when", "state", "last", "next", "last job")
NARROW_COLUMNS = ("name", "when", "state", "last", "next")
SPANS = ("every", "timeout", "misfire_age", "jitter")
LOOKED_AT = 1000  # schedules that are searched for a name among those of other tenants
OURS = "default"  # the tenant of those who have none

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name, or its id.", show_default=False)]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Whose schedule it is; default if left out.")]
Task = Annotated[str | None, typer.Option("--task", "--job-type", metavar="TASK", help="The task of its jobs.")]
CronOption = Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, or @daily.")]
Tz = Annotated[
    str | None, typer.Option("--tz", "--timezone", metavar="ZONE", help="Of --cron: such as Europe/Berlin; else UTC.")
]
EveryOption = Annotated[str | None, typer.Option("--every", metavar="TIME", help="Instead of --cron: 90s, 15m, 1d.")]
Payload = Annotated[
    str | None, typer.Option("--payload", metavar="JSON", help="The arguments, a JSON object; - reads stdin.")
]
Enabled = Annotated[str | None, typer.Option("--enabled", metavar="true|false", help="Whether it makes jobs.")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="Another queue than the task's own.")]
Lane = Annotated[str | None, typer.Option("--lane", help="The lane: lanes of a queue take turns.")]
Priority = Annotated[int | None, typer.Option("--priority", help="Higher runs first.")]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Tries of each job in all.")]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="How long a try may take: 5m.")]
MisfireOption = Annotated[Misfire | None, typer.Option("--misfire", help="What becomes of runs that were missed.")]
MisfireLimit = Annotated[int | None, typer.Option("--misfire-limit", metavar="N", help="With all: how many at most.")]
MisfireAge = Annotated[str | None, typer.Option("--misfire-age", metavar="TIME", help="With all: how old at most, 1d.")]
OverlapOption = Annotated[Overlap | None, typer.Option("--overlap", help="What if the run before has not ended.")]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="TIME", help="Each run up to so much later: 30s.")]
ForEach = Annotated[
    str | None,
    typer.Option("--for-each", metavar="ROWS", help="A job of every row that this function of yours has."),
]
Unchecked = Annotated[bool, typer.Option("--unchecked", help="Do not ask an app whether the task exists.")]


def list_schedules(
    app: options.App = None,
    url: options.Url = None,
    tenant: options.OfTenant = None,
    task: Annotated[str | None, typer.Option("--task", "--job-type", metavar="TASK", help="Only of this task.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")] = None,
    enabled: Annotated[
        str | None, typer.Option("--enabled", metavar="true|false", help="Only those that are on, or off.")
    ] = None,
    declared: Annotated[
        bool | None, typer.Option("--declared/--undeclared", help="Only those that code declares, or does not.")
    ] = None,
    gone: Annotated[bool, typer.Option("--gone", help="Only those that code no longer declares.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="How many.")] = 100,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the last page ended.")] = None,
    as_json: options.Json = False,
) -> None:
    """List schedules by name: when each runs, ran last and runs next.

    "last" is the time of the last job that a schedule made by itself, "next" that of the next one. One whose state
    says "gone" was declared by code once, and is no longer.
    """
    given: dict[str, Any] = {
        "tenant": tenant,
        "task": task,
        "prefix": prefix,
        "enabled": None if enabled is None else truth_from(enabled, "--enabled"),
        "declared": declared,
        "gone": gone or None,
    }
    with closing(find_target(app, url)) as store:
        schedules, now = store.schedules.list(**given, limit=limit, cursor=cursor), store.engine.now()
        masked = map(store.masked_schedule, schedules) if as_json else ()
        views = [schedule_view(schedule, store.profile) for schedule in masked]
    if as_json:
        document({"schedules": views, "cursor": schedules.cursor})
        return
    if not schedules:
        say(_none_of({name: value for name, value in given.items() if value is not None}))
        return
    several = any(schedule.tenant != OURS for schedule in schedules)
    if (room := width()) is not None and room < NARROW:
        below = [_below(schedule, several, room) for schedule in schedules]
        table(NARROW_COLUMNS, [_narrow_row(schedule, now) for schedule in schedules], notes=below)
    else:
        first = 0 if several else 1
        table(COLUMNS[first:], [_row(schedule, now)[first:] for schedule in schedules])
    if schedules.cursor is not None:
        say(Text(f"more: --cursor {schedules.cursor}", "dim"))


def _none_of(given: dict[str, Any]) -> str:
    hint = "`treadle schedules create` makes one, a worker brings those that your code declares"
    if not given.keys() - {"tenant"}:
        whose = f" of tenant {safe(given['tenant'])}" if given else ""
        return f"no schedules{whose}; {hint}"
    return "no schedules like that; without the filters `treadle schedules list` shows all"


def create(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A name for the schedule.", show_default=False)
    ] = None,
    app: options.App = None,
    url: options.Url = None,
    name_option: Annotated[str | None, typer.Option("--name", hidden=True)] = None,
    task: Task = None,
    cron: CronOption = None,
    tz: Tz = None,
    every: EveryOption = None,
    payload: Payload = None,
    enabled: Enabled = None,
    tenant: Tenant = None,
    queue: Queue = None,
    lane: Lane = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    timeout: Timeout = None,
    misfire: MisfireOption = None,
    misfire_limit: MisfireLimit = None,
    misfire_age: MisfireAge = None,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    for_each: ForEach = None,
    unchecked: Unchecked = False,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Make a schedule; its payload is checked against the task before anything is written.

    What is not said is as the task says. Runs that were missed are made up for once, unless --misfire says otherwise.
    """
    if (name is None) == (name_option is None):
        raise ConfigError("what is it called? Give it one NAME: treadle schedules create nightly …")
    if task is None:
        raise ConfigError("--task: which one? Give the name of a task, such as --task greet")
    if cron is None and every is None:
        raise ConfigError('when? Give --cron "30 2 * * MON-FRI" (with --tz Europe/Berlin), or --every 15m')
    given = _read_options(
        cron=cron, tz=tz, every=every, payload=payload, enabled=enabled, queue=queue, lane=lane,
        priority=priority, max_attempts=max_attempts, timeout=timeout, misfire=misfire, misfire_limit=misfire_limit,
        misfire_age=misfire_age, overlap=overlap, jitter=jitter, for_each=for_each,
    )  # fmt: skip
    with closing(find_target_app(app, url, unchecked=unchecked)) as store:
        schedule = store.schedules.create(
            name or name_option or "", task, given.pop("payload", None),
            tenant=tenant, checked=not unchecked, actor=actor(), reason=reason, **given,
        )  # fmt: skip
        _tell(store, schedule, f"created: {_plan(schedule)}", as_json)


def update(
    name: Name,
    app: options.App = None,
    url: options.Url = None,
    task: Task = None,
    cron: CronOption = None,
    tz: Tz = None,
    every: EveryOption = None,
    payload: Payload = None,
    enabled: Enabled = None,
    tenant: Tenant = None,
    queue: Queue = None,
    lane: Lane = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    timeout: Timeout = None,
    misfire: MisfireOption = None,
    misfire_limit: MisfireLimit = None,
    misfire_age: MisfireAge = None,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    for_each: ForEach = None,
    unchecked: Unchecked = False,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Change what is said of a schedule, and leave the rest.

    A new --cron, --tz, --every or --enabled true counts its next run from now. A schedule that your code declares
    keeps the change until the code says something new.
    """
    given = _read_options(
        task=task, cron=cron, tz=tz, every=every, payload=payload, enabled=enabled, queue=queue, lane=lane,
        priority=priority, max_attempts=max_attempts, timeout=timeout, misfire=misfire, misfire_limit=misfire_limit,
        misfire_age=misfire_age, overlap=overlap, jitter=jitter, for_each=for_each,
    )  # fmt: skip
    if not given:
        raise ConfigError(f'nothing to change; say what, such as treadle schedules update {name} --cron "0 3 * * *"')
    other_jobs = bool({"task", "payload", "for_each"} & given.keys())
    find = find_target_app if other_jobs and not unchecked else find_target
    with opened(find, app, url, name, tenant) as (store, which):
        schedule = store.schedules.update(**which, checked=not unchecked, actor=actor(), reason=reason, **given)
        _tell(store, schedule, f"changed: {_plan(schedule)}", as_json)


def enable(
    name: Name,
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Let a schedule make jobs again, from now on: what was missed stays missed."""
    with opened(find_target, app, url, name, tenant) as (store, which):
        schedule = store.schedules.enable(**which, actor=actor(), reason=reason)
        _tell(store, schedule, f"is on: {_plan(schedule)}", as_json)


def disable(
    name: Name,
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Let a schedule make no more jobs until it is enabled; those it has made stay."""
    with opened(find_target, app, url, name, tenant) as (store, which):
        schedule = store.schedules.disable(**which, actor=actor(), reason=reason)
        _tell(store, schedule, "is off: it makes no more jobs", as_json)


def delete(
    name: Name,
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Remove a schedule; the jobs it has made stay."""
    with opened(find_target, app, url, name, tenant) as (store, which):
        schedule = store.masked_schedule(store.schedules.get(**which))
        store.schedules.delete(**which, actor=actor(), reason=reason)
    declared = schedule.declared is not None and not schedule.gone
    back = "; but code declares it, so the next worker brings it back: disable it instead" if declared else ""
    if as_json:
        document({"schedule": schedule_view(schedule, store.profile)})
    else:
        say(f"{safe(name)}  deleted; the jobs it has made stay{back}")


def run(
    name: Name,
    app: options.App = None,
    url: options.Url = None,
    tenant: Tenant = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Make a job of a schedule now, beside its own runs, whether it is on or off."""
    with opened(find_target, app, url, name, tenant) as (store, which):
        check_open(store)
        try:
            job = store.schedules.run(**which, actor=actor(), reason=reason)
        except KeyTaken as error:
            raise NotPossible(
                f"the runs of schedule {name!r} must not overlap, and job {error.holder} has not ended; "
                f"`treadle why {error.holder}` says how it stands"
            ) from None
        if as_json:
            document({"job": store.view(job)})
        else:
            say(f"{job.id}  created: {safe(job.task)} on queue {safe(job.queue)}, by schedule {safe(name)}")


@contextmanager
def opened(
    find: Callable[[str | None, str | None], Target], app: str | None, url: str | None, name: str, tenant: str | None
) -> Iterator[tuple[Target, dict[str, Any]]]:
    """The store, and name and tenant of the schedule; if it is another tenant's, the error says whose."""
    with closing(find(app, url)) as store:
        try:
            yield store, {"name": name, "tenant": tenant}
        except ScheduleNotFound:
            alike = store.schedules.list(prefix=name, limit=LOOKED_AT)
            owners = [schedule.tenant for schedule in alike if schedule.name == name]
            if not owners:
                raise
            raise NotPossible(
                f"tenant {tenant or OURS} has no schedule {name!r}, but tenant {owners[0]} has: --tenant {owners[0]}"
            ) from None


def _read_options(**given: Any) -> dict[str, Any]:
    """What was given, read; whatever can be refused without a store is refused here."""
    given = {name: value for name, value in given.items() if value is not None}
    if "payload" in given:
        given["payload"] = payload_from(given["payload"], "--payload")
    if "enabled" in given:
        given["enabled"] = truth_from(given["enabled"], "--enabled")
    for name in SPANS:
        if name in given:
            given[name] = seconds(given[name], f"--{name.replace('_', '-')}")
    if "cron" in given and "every" in given:
        raise ConfigError("--cron and --every cannot be given together")
    if "cron" in given:
        Cron.parse(given["cron"])
    if "every" in given:
        Every.parse(given["every"])
    if "tz" in given:
        time_zone(given["tz"])
    return given


def _tell(store: Target, schedule: Schedule, words: str, as_json: bool) -> None:
    if as_json:
        document({"schedule": schedule_view(store.masked_schedule(schedule), store.profile)})
        return
    due = ""
    if schedule.enabled and schedule.next_at is not None:
        due = f"; next {clock(schedule.next_at)}, {age(schedule.next_at, store.engine.now())}"
    say(f"{safe(schedule.name)}  {words}{due}")


def _plan(schedule: Schedule) -> str:
    off = "" if schedule.enabled else ", off"
    return f"{safe(schedule.task)}, {timing(schedule)}{off}"


def timing(schedule: Schedule) -> str:
    """Its interval, or its expression and time zone."""
    if schedule.cron is None:
        return f"every {span(schedule.every or 0)}"
    return safe(f"{schedule.cron} {schedule.timezone}")


def _row(schedule: Schedule, now: datetime) -> tuple[str | Text, ...]:
    name, *rest = _narrow_row(schedule, now)
    return (safe(schedule.tenant), name, safe(schedule.task), *rest, safe(schedule.last_job or ""))


def _narrow_row(schedule: Schedule, now: datetime) -> tuple[str | Text, ...]:
    """Without the task and the last job, which go below."""
    last = "" if schedule.last_at is None else age(schedule.last_at, now)
    due = age(schedule.next_at, now) if schedule.enabled and schedule.next_at is not None else ""
    return safe(schedule.name), timing(schedule), standing(schedule), last, due


def standing(schedule: Schedule) -> Text:
    """Whether it is on, and whether code declares it no more."""
    state = "on" if schedule.enabled else "off"
    return coloured(state, f"{state}, gone" if schedule.gone else state)


def _below(schedule: Schedule, several: bool, room: int) -> Text:
    whose = f"{schedule.tenant}: " if several else ""
    job = f"  {schedule.last_job}" if schedule.last_job else ""
    return Text(preview(f"{whose}{schedule.task}", max(room - 2 - len(job), 20)) + safe(job), "dim")
