"""`treadle tasks`: what an app can be asked to do, and what each task takes."""

from contextlib import closing
from datetime import timedelta
from typing import Annotated, Any

import typer

from treadle.app.treadle import Treadle
from treadle.app.views import task_view
from treadle.cli import options
from treadle.cli.discovery import Target, find_target_app
from treadle.cli.terminal import document, lasted, safe, say, table
from treadle.errors import NotPossible, UnknownTask

COLUMNS = ("task", "queue", "version", "priority", "attempts", "timeout", "takes")
NUMBERS = COLUMNS[2:5]
NO_TASKS = "the server's app has no tasks: it serves the store alone"


def tasks(
    app: options.App = None,
    url: options.Url = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="Print the JSON Schema of this task's payload.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the tasks of your app, with what their jobs are given unless somebody says otherwise.

    With --server it lists those of the server's app. --json has the whole retry policy and the JSON Schema of each.
    """
    with closing(find_target_app(app, url)) as store:
        found = _views(store)
    if schema is not None:
        document(_schema(found, schema))
    elif as_json:
        document({"tasks": found})
    elif not found:
        say(NO_TASKS)
    else:
        table(COLUMNS, [_row(task) for task in found], right=NUMBERS)


def _views(store: Target) -> list[dict[str, Any]]:
    if isinstance(store, Treadle):
        return [task_view(store.tasks[name]) for name in sorted(store.tasks)]
    return store.task_views()


def _schema(found: list[dict[str, Any]], name: str) -> Any:
    for task in found:
        if task["name"] == name:
            if task["payload_schema"] is None:
                raise NotPossible(f"task {name!r} has no JSON Schema: a type of its payload has none")
            return task["payload_schema"]
    raise UnknownTask(name, [task["name"] for task in found])


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    timeout = task["timeout"]
    return (
        safe(task["name"]),
        safe(task["queue"]),
        str(task["version"]),
        str(task["priority"]),
        str(task["retry"]["max_attempts"]),
        "-" if timeout is None else lasted(timedelta(seconds=timeout)),
        _takes(task["payload_schema"]),
    )


def _takes(schema: dict[str, Any] | None) -> str:
    """The fields of a payload; one that may be left out has a question mark."""
    fields = (schema or {}).get("properties", {})
    needed = {*(schema or {}).get("required", ())}
    return safe(", ".join(f"{name}{'?' * (name not in needed)}" for name in fields))
