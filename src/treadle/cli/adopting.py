"""`treadle own-table` and `treadle import`: the table of jobs that an application had, and the way from there."""

import importlib
import sys
from contextlib import closing
from typing import Annotated

import typer

import treadle.profiles
from treadle.app.profile import Profile, check_profile
from treadle.cli import options
from treadle.cli.discovery import broken, check_spec, find_app, find_ready_store
from treadle.cli.progress import bar
from treadle.cli.terminal import document, safe, say
from treadle.errors import ConfigError
from treadle.importers import BATCH, MAX_BATCH, ImportResult, TableMap, as_toml, bring, map_of, own_table_sql, read_map

OfProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="A profile that comes with treadle, such as chat_server, or module:name; else the app's.",
        show_default=False,
    ),
]
SHIPPED = ("backend", "chat_server", "companion", "mail_assistant", "tenant_ops")


def own_table(
    profile: OfProfile = None,
    app: options.App = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL; so far there is nothing else to do.")] = False,
    schema: Annotated[str, typer.Option(metavar="NAME", help="Where treadle's tables lie.")] = "treadle",
    into: Annotated[str, typer.Option(metavar="NAME", help="The schema of the view.")] = "public",
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the view; else the profile's.", show_default=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write the SQL of a view for PostgreSQL in the place of the table of jobs that an application had.

    Old code goes on reading and inserting. A role that owns treadle's tables runs it, after each migration.
    """
    if not sql:
        raise ConfigError("--sql: own-table only prints; give it, and let psql run what it prints")
    text = own_table_sql(find_profile(profile, app), schema=schema, into=into, table=table)
    document({"sql": text}) if as_json else sys.stdout.write(text)


def import_table(
    table: Annotated[
        str | None, typer.Option("--from", metavar="TABLE", help="The table, or a view of it.", show_default=False)
    ] = None,
    map_file: Annotated[
        str | None, typer.Option("--map", metavar="FILE", help="What is in its columns: TOML.", show_default=False)
    ] = None,
    profile: OfProfile = None,
    app: options.App = None,
    url: options.Url = None,
    from_url: Annotated[
        str | None,
        typer.Option(
            "--from-url",
            metavar="URL",
            help="The database of the table, postgresql://… or sqlite:///…; else the store's.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be, and what does not fit.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=MAX_BATCH, metavar="N", help="Rows at a time.")] = BATCH,
    show_map: Annotated[
        bool, typer.Option("--show-map", help="Print the map of the profile as a file to edit; nothing is read.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Bring the rows of a table of jobs that an application had, with their past.

    A job that is there already stays as it is. Interrupt it and run it again as often as you like: nothing comes twice.
    Exit code 1 if a row does not fit; all others are brought. Old code should not work on the table any more.
    """
    if map_file is not None and profile is not None:
        raise ConfigError("--map and --profile cannot be given together")
    if show_map:
        text = as_toml(_map(map_file, profile, app))
        document({"map": text}) if as_json else sys.stdout.write(text)
        return
    if table is None:
        raise ConfigError("--from: is required; name the table")
    with closing(find_ready_store(app, url)) as store:
        table_map = _map(map_file, profile, app)
        source = from_url or store.settings.url
        if from_url is None and source.startswith("dynamodb:"):
            raise ConfigError("--from-url: is required; a table of DynamoDB holds the store, and no other jobs")
        with bar("import", None, as_json=as_json) as progress:
            brought = bring(store, source, table, table_map, batch=batch, dry_run=dry_run, progress=progress)
    _tell(table, brought, dry_run=dry_run, as_json=as_json)
    if brought.unfit:
        raise typer.Exit(1)


MAX_LINES = 50  # of rows that do not fit


def _tell(table: str, brought: ImportResult, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        misfits = [misfit._asdict() for misfit in brought.misfits]
        document({**brought._asdict(), "misfits": misfits, "dry_run": dry_run})
        return
    for misfit in brought.misfits[:MAX_LINES]:
        say(safe(str(misfit)), stderr=True)
    if brought.unfit > MAX_LINES:
        say(f"and {brought.unfit - MAX_LINES:,} more; --json tells of the first {len(brought.misfits):,}", stderr=True)
    number = sum(brought.brought.values())
    states = ", ".join(f"{count:,} {state}" for state, count in brought.brought.items())
    verb = "would be brought" if dry_run else "brought"
    say(
        f"{safe(table)}: {brought.read:,} row{'s' * (brought.read != 1)}: {number:,} {verb}"
        f"{f' ({states})' if states else ''}, {brought.known:,} there already, {brought.unfit:,} do not fit"
    )


def _map(map_file: str | None, profile: str | None, app: str | None) -> TableMap:
    return map_of(find_profile(profile, app)) if map_file is None else read_map(map_file)


def find_profile(name: str | None, app: str | None) -> Profile:
    """The profile of that name; without one, that of the app."""
    if name is None:
        return find_app(app, None).profile
    if name in SHIPPED:
        found = importlib.import_module(f"{treadle.profiles.__name__}.{name}").PROFILE
    elif ":" not in name:
        raise ConfigError(f"--profile: {name!r} must be one of {', '.join(SHIPPED)}, or module:name")
    else:
        found = _named(*check_spec(name, "--profile"))
    if not isinstance(found, Profile):
        raise ConfigError(f"--profile: {name} is of type {type(found).__name__}, not a Profile")
    return check_profile(found)


def _named(module: str, name: str) -> object:
    sys.path[:0] = [""] if "" not in sys.path else []
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--profile: {module}:{name} cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:
        raise broken(module, error, "--profile") from error
