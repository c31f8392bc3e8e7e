"""`treadle own-table`: the table of jobs that an application had, and the way from there."""

import importlib
import sys
from typing import Annotated

import typer

import treadle.profiles
from treadle.app.profile import Profile, check_profile
from treadle.cli import options
from treadle.cli.discovery import check_spec, find_app
from treadle.cli.terminal import document
from treadle.errors import ConfigError
from treadle.importers import own_table_sql

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
