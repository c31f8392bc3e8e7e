"""Commands: those that pages and deployment files name, and those that show what others have written."""

from collections.abc import Iterator, Sequence
from typing import Any

from treadle.cli.commands import command

LOOKS = (
    "jobs list", "jobs list -n 500", "jobs show {job}", "jobs count", "why {job}", "status", "stats", "top --once",
    "tail --no-follow -n 500", "failures", "export", "export --events", "tasks", "workers", "pauses", "costs",
    "budgets", "schedules list", "schedules show {schedule}", "schedules preview {schedule}", "audit", "audit -n 500",
    "audit verify", "doctor", "config show", "config get url", "config check", "tokens list",
)  # fmt: skip
"""Commands that only look at a store or its settings; `{job}` and `{schedule}` are of that store."""
ACTS = {
    "audit seal", "bench drain", "bench enqueue", "bench latency", "completion", "config set", "demo", "dev", "drain",
    "enqueue", "import", "init", "jobs cancel", "jobs delete", "jobs edit", "jobs retry", "jobs run-now", "migrate",
    "own-table", "pause", "prune", "resume", "rls", "schedules create", "schedules delete", "schedules disable",
    "schedules enable", "schedules explain", "schedules run", "schedules update", "serve", "tokens create",
    "tokens revoke", "version", "worker",
}  # fmt: skip
"""Commands that do something, or look at no store."""


def every_command() -> set[str]:
    """All that `treadle` has."""

    def walk(found: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
        inner = getattr(found, "commands", {})
        if words and (not inner or found.invoke_without_command):
            yield " ".join(words)
        for name, one in inner.items():
            yield from walk(one, (*words, name))

    return set(walk(command()))


def looks(job: str, schedule: str) -> Iterator[list[str]]:
    """The words of every command that only looks, for people and as JSON."""
    for words in LOOKS:
        given = [word.format(job=job, schedule=schedule) for word in words.split()]
        yield given
        if words.startswith("export"):  # it writes JSON already
            continue
        yield [*given, "--json"]


def check_command(words: Sequence[str]) -> None:
    """See that `treadle` has this command, and the command its options."""
    program, *rest = words
    assert program == "treadle", words
    found: Any = command()
    while rest and rest[0] in getattr(found, "commands", {}):
        found = found.commands[rest.pop(0)]
    assert not hasattr(found, "commands") or found.invoke_without_command, words
    known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    assert {word.split("=")[0] for word in rest if word.startswith("-") and word != "-"} <= known, words
