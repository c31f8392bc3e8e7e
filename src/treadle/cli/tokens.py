"""`treadle tokens`: who may use the REST API."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.app.reading import soon_from
from treadle.app.views import token_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.jobs import actor
from treadle.cli.terminal import age, clock, coloured, document, safe, say, table
from treadle.model.records import ApiToken

COLUMNS = ("name", "label", "scopes", "bound to", "made", "state")


def create(
    label: Annotated[
        str, typer.Argument(metavar="LABEL", help="What people call it: grafana, ci.", show_default=False)
    ],
    app: options.App = None,
    url: options.Url = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="read, enqueue, operate or admin; repeatable. read if left out."),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="For the rows of this tenant only.")] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", "-q", help="For this queue only; repeatable.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", metavar="TIME", help="Ends in 30d, or at a time.")] = None,
    as_json: options.Json = False,
) -> None:
    """Make a token. It is printed this once; the store keeps only a hash of it.

    read looks; enqueue stores jobs, and no more; operate also acts on jobs, schedules and pauses; admin does it all.
    """
    end = soon_from(expires, "--expires")
    with closing(find_target(app, url)) as store:
        made = store.tokens.create(
            label, scopes=scope or ["read"], tenant=tenant, queues=queue, expires=end, actor=actor()
        )
    if as_json:
        document({"token": token_view(made.token), "secret": made.secret})
        return
    say(
        f"token {safe(label)} ({made.token.name}) may {', '.join(made.token.scopes)}; it is shown this once:",
        stderr=True,
    )
    say(made.secret)


def list_tokens(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """List the tokens, the newest first; their secrets are not kept."""
    with closing(find_target(app, url)) as store:
        tokens, now = store.tokens.list(), store.engine.now()
    if as_json:
        document({"tokens": [token_view(token) for token in tokens]})
        return
    if not tokens:
        say("no tokens; `treadle tokens create NAME` makes one")
        return
    rows = [
        (
            token.name,
            safe(token.label),
            ", ".join(token.scopes),
            safe(_bound(token)),
            age(token.created_at, now),
            coloured("on" if token.usable(now) else "off", _state(token, token.usable(now))),
        )
        for token in tokens
    ]
    table(COLUMNS, rows)


def revoke(
    which: Annotated[str, typer.Argument(metavar="NAME", help="Its name, or its label.", show_default=False)],
    app: options.App = None,
    url: options.Url = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> None:
    """Let a token be used no more, from now on."""
    with closing(find_target(app, url)) as store:
        token = store.tokens.revoke(which, actor=actor(), reason=reason)
    if as_json:
        document({"token": token_view(token)})
    else:
        say(f"token {safe(token.label)} ({token.name}) is revoked")


def _bound(token: ApiToken) -> str:
    tenant = [] if token.only_tenant is None else [f"tenant {token.only_tenant}"]
    return ", ".join([*tenant, *(f"queue {queue}" for queue in token.only_queues or ())])


def _state(token: ApiToken, usable: bool) -> str:
    if token.revoked_at is not None:
        return f"revoked {clock(token.revoked_at)}"
    if token.expires_at is None:
        return "usable"
    return f"until {clock(token.expires_at)}" if usable else f"expired {clock(token.expires_at)}"
