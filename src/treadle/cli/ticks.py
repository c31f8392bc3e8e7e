"""`treadle schedules preview` and `explain`: see when a schedule will run, before it does."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from treadle.app.views import tick_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.schedules import opened
from treadle.cli.terminal import clock, document, safe, say, table
from treadle.errors import ConfigError
from treadle.model.clock import SystemClock, span
from treadle.model.records import Schedule
from treadle.schedules.cron import Cron, Tick, preview
from treadle.schedules.words import explain

COLUMNS = ("utc", "local", "note")
LAWS = {
    "wall_clock": "wall clock: a time that comes twice runs once, one that is leapt over runs at the end of the gap",
    "real_time": "real time (a * in minute or hour): runs whenever the local time matches, twice if it comes twice",
    "interval": "interval: counts real time from its start; changes of the clock do not concern it",
}


def preview_ticks(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A schedule that there is.")] = None,
    app: options.App = None,
    url: options.Url = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, or @daily.", show_default=False)
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option("--tz", "--timezone", metavar="ZONE", help="With --cron: such as Europe/Berlin; UTC if left out."),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="With NAME: whose schedule it is.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Later than: 2030-01-31T12:00Z; else than now.", show_default=False),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--limit", metavar="N", help="How many, up to 1000.")] = 5,
    as_json: options.Json = False,
) -> None:
    """Show the next runs of a schedule or a cron expression, with notes where clocks are changed.

    The fields of an expression are minute, hour, day of month, month and day of week. With --cron no database is asked.
    """
    if (name is None) == (cron is None):
        raise ConfigError('which runs? Give either the NAME of a schedule or --cron "30 2 * * MON-FRI"')
    moment = _moment(after)
    if cron is None:
        if tz is not None:
            raise ConfigError("--tz goes with --cron; the schedule has a zone of its own")
        _preview_schedule(name or "", app, url, tenant, moment, n, as_json)
        return
    zone = "UTC" if tz is None else tz
    ticks = preview(cron, zone, moment or SystemClock().now(), n)
    _show({"cron": cron, "timezone": zone}, _law(cron), ticks, as_json)


def explain_expression(
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="Five fields, or @daily.", show_default=False)],
    as_json: options.Json = False,
) -> None:
    """Say in words what a cron expression means. No database is asked."""
    words = explain(expression)
    if as_json:
        document({"cron": expression, "words": words, "law": _law(expression)})
        return
    say(words)
    say(Text(LAWS[_law(expression)], "dim"))


def _preview_schedule(
    name: str, app: str | None, url: str | None, tenant: str | None, after: datetime | None, n: int, as_json: bool
) -> None:
    with opened(find_target, app, url, name, tenant) as (store, which):
        schedule = store.schedules.get(**which)
        ticks = store.schedules.preview(**which, n=n, after=after)
    fields = ("name", "tenant", "enabled", "cron", "every", "timezone", "jitter")
    _show({field: getattr(schedule, field) for field in fields}, _law(schedule.cron), ticks, as_json)
    if not as_json:
        for line in _warnings(schedule):
            say(Text(line, "dim"))


def _warnings(schedule: Schedule) -> list[str]:
    late = f"each up to {span(schedule.jitter)} later, for its jitter" if schedule.jitter else ""
    off = "" if schedule.enabled else f"it is off: `treadle schedules enable {safe(schedule.name)}` lets it run"
    return [line for line in (late, off) if line]


def _law(cron: str | None) -> str:
    if cron is None:
        return "interval"
    return "wall_clock" if Cron.parse(cron).wall_clock else "real_time"


def _show(what: dict[str, Any], law: str, ticks: Sequence[Tick], as_json: bool) -> None:
    if as_json:
        document({**what, "law": law, "runs": [tick_view(tick) for tick in ticks]})
        return
    to_the_second = any(tick.local.second for tick in ticks)
    table(COLUMNS, [(clock(tick.at), _local(tick.local, to_the_second), tick.note) for tick in ticks])
    say(Text(LAWS[law], "dim"))


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--after: {text!r} is no time; write one such as 2030-01-31T12:00Z") from None
    if moment.tzinfo is None:
        raise ConfigError(f"--after: {text!r} has no time zone; write {moment.isoformat()}Z for UTC, or +01:00")
    return moment


def _local(moment: datetime, to_the_second: bool) -> str:
    time = "%H:%M:%S" if to_the_second else "%H:%M"
    return f"{moment:%a %Y-%m-%d {time}} {moment.isoformat()[-6:]}"
