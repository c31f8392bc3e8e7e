"""`treadle migrate`, `doctor`, `rls` and `prune`: the store itself."""

import sys
from contextlib import closing
from typing import Annotated, Literal

import typer

from treadle.app.views import kept_view
from treadle.cli import options
from treadle.cli.discovery import find_app, find_ready_store, find_store, ready
from treadle.cli.progress import bar
from treadle.cli.servers import find_server
from treadle.cli.terminal import coloured, document, masked, safe, say
from treadle.errors import ConfigError
from treadle.model.clock import span

MARKS = {"ok": "✓", "warning": "!", "error": "✗"}


def migrate(
    app: options.App = None,
    url: options.Url = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the schema instead, for your own tool.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what differs; exit code 1 if anything does.")
    ] = False,
    pre: Annotated[bool, typer.Option("--pre", help="Only what new code needs; old code works on.")] = False,
    post: Annotated[bool, typer.Option("--post", help="Only what must wait until no old code runs.")] = False,
    as_json: options.Json = False,
) -> None:
    """Create the tables, or bring them up to date."""
    given = {"--sql": sql, "--check": check, "--pre": pre, "--post": post}
    for one, other in (("--sql", "--check"), ("--pre", "--post"), ("--check", "--pre"), ("--check", "--post")):
        if given[one] and given[other]:
            raise ConfigError(f"{one} and {other} cannot be given together")
    half: Literal["pre", "post"] | None = "pre" if pre else "post" if post else None
    with closing(find_store(app, url)) as store:
        where = safe(masked(store.settings.url))
        if sql:
            text = store.schema_sql(half)
            document({"sql": text}) if as_json else sys.stdout.write(text.rstrip() + "\n")
        elif check:
            differences = store.check_schema()
            if as_json:
                document({"differences": differences})
            else:
                for line in differences or [f"{where} is up to date"]:
                    say(safe(line))
            if differences:
                raise typer.Exit(1)
        else:
            applied = store.migrate(half)
            differences = store.check_schema() if not applied and half is None else []
            if as_json:
                document({"applied": applied, "differences": differences})
            elif differences:
                say(f"{where}: nothing to apply, yet it is not as expected (compare with --sql):")
                for line in differences:
                    say(f"  {safe(line)}")
            else:
                say(f"{where}: applied {', '.join(map(safe, applied))}" if applied else f"{where} is up to date")
            if differences:
                raise typer.Exit(1)


def doctor(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Look the store over and say what an operator should know; exit code 1 if there is an error.

    That jobs are due which no live worker serves is an error too, as in `treadle status`. Warnings alone exit with 0.
    """
    with closing(find_server(app, url) or find_store(app, url)) as store:
        findings = store.doctor()
    healthy = all(finding.level != "error" for finding in findings)
    if as_json:
        document({"ok": healthy, "findings": [{"level": finding.level, "text": finding.text} for finding in findings]})
    else:
        for finding in findings:
            mark = MARKS.get(finding.level, "?")
            say(coloured(finding.level, f"{mark} {finding.level:<8}"), safe(finding.text))
    if not healthy:
        raise typer.Exit(1)


def rls(
    worker_role: Annotated[str, typer.Option(metavar="ROLE", help="Sees every row: workers.", show_default=False)],
    app_role: Annotated[str, typer.Option(metavar="ROLE", help="Sees one tenant at a time.", show_default=False)],
    owner: Annotated[
        str,
        typer.Option(
            metavar="CONDITION", help="SQL that lets a row be seen too: is_owner(tenant::uuid).", show_default=False
        ),
    ] = "",
    app: options.App = None,
    url: options.Url = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead.")] = False,
    as_json: options.Json = False,
) -> None:
    """Keep tenants apart in PostgreSQL itself, by row-level security; again after each migration."""
    find = find_store if sql else find_ready_store  # to print them needs no server
    with closing(find(app, url)) as store:
        text = store.rls(worker_role=worker_role, app_role=app_role, owner=owner, only_sql=sql)
        where = safe(masked(store.settings.url))
    if as_json:
        document({"sql": text, "applied": not sql})
    elif sql:
        sys.stdout.write(text)
    else:
        say(f"{where}: {safe(app_role)} sees one tenant at a time, {safe(worker_role)} all of them")


def prune(app: options.App = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Delete finished jobs and audit events past their retention, as workers do by themselves.

    How long they are kept is said by the app's settings keep_succeeded, keep_cancelled, keep_failed, keep_tasks and
    keep_audit. Unlike a worker it deletes the jobs of tasks that the app does not know, too.
    """
    with closing(ready(find_app(app, url))) as store:  # what its settings keep must be kept
        kept = kept_view(store.settings)
        with bar("prune", None, as_json=as_json) as progress:
            deleted = store.prune(progress=progress)
    if as_json:
        document({"deleted": deleted, "keep": kept})
        return
    ages = ", ".join(f"{what} {'for ever' if age is None else span(age)}" for what, age in kept.items())
    say(f"deleted {deleted:,} job{'s' * (deleted != 1)}; kept are: {safe(ages)}")
