"""`treadle schedules`: see when a schedule would run, before it does."""

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from treadle.cli import options
from treadle.cli.terminal import clock, document, say, table
from treadle.clock import SystemClock
from treadle.cron import Cron, Tick, preview
from treadle.errors import ConfigError

COLUMNS = ("utc", "local", "note")
LAWS = {
    True: "wall clock: a time that comes twice runs once, one that is leapt over runs at the end of the gap",
    False: "real time (a * in minute or hour): runs whenever the local time matches, twice if it comes twice",
}


def preview_ticks(
    cron: Annotated[str, typer.Option("--cron", metavar="EXPR", help="Five fields, or @daily.", show_default=False)],
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="An IANA time zone, such as Europe/Berlin.")] = "UTC",
    after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Later than: 2030-01-31T12:00Z; else than now.", show_default=False),
    ] = None,
    n: Annotated[int, typer.Option("-n", metavar="N", help="How many, up to 1000.")] = 5,
    as_json: options.Json = False,
) -> None:
    """Show the next runs of a cron expression, and what happens where clocks are changed.

    The fields are minute, hour, day of month, month and day of week. No database is asked.
    """
    ticks = preview(cron, tz, _moment(after), n)
    wall_clock = Cron.parse(cron).wall_clock
    if as_json:
        law = "wall_clock" if wall_clock else "real_time"
        document({"cron": cron, "timezone": tz, "law": law, "runs": [_as_dict(tick) for tick in ticks]})
        return
    table(COLUMNS, [(clock(tick.at), _local(tick.local), tick.note) for tick in ticks])
    say(Text(LAWS[wall_clock], "dim"))


def _moment(text: str | None) -> datetime:
    if text is None:
        return SystemClock().now()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--after: {text!r} is no time; write one such as 2030-01-31T12:00Z") from None
    if moment.tzinfo is None:
        raise ConfigError(f"--after: {text!r} has no time zone; write {moment.isoformat()}Z for UTC, or +01:00")
    return moment


def _as_dict(tick: Tick) -> dict[str, str]:
    return {"at": tick.at.isoformat(), "local": tick.local.isoformat(), "note": tick.note}


def _local(moment: datetime) -> str:
    return f"{moment:%a %Y-%m-%d %H:%M} {moment.isoformat()[-6:]}"
