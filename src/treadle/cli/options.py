"""The options that many commands share."""

from typing import Annotated

import typer

App = Annotated[
    str | None,
    typer.Option(
        "--app", "-A", metavar="MODULE:NAME", help="Your app, such as tasks:app (or TREADLE_APP).", show_default=False
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store: sqlite:///treadle.db, postgresql://… or dynamodb://table (or TREADLE_URL).",
        show_default=False,
    ),
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="text|json", help="How log lines look.", show_default=False)
]
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name it is asked by; repeatable.")
]
WithWorker = Annotated[bool, typer.Option("--worker/--no-worker", help="Whether it runs jobs, too.")]
WithSchedules = Annotated[
    bool | None,
    typer.Option(
        "--schedules/--no-schedules",
        help="Whether its worker fires schedules (or TREADLE_SCHEDULES).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit trail.", show_default=False)]
