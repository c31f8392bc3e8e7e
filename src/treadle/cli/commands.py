"""The commands, put together: groups, help, and the one place where errors become a line and an exit code.

Exit codes: 0 done, 1 the operation failed, 2 it was asked for in a wrong way, 130 interrupted.
"""

import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
import typer.main
from typer.core import TyperGroup

import treadle
from treadle.cli import (
    acts,
    adopting,
    audit,
    bench,
    completion,
    config,
    dev,
    enqueue,
    export,
    failures,
    gate,
    jobs,
    look,
    options,
    schedule_facts,
    schedules,
    serve,
    servers,
    start,
    stats,
    status,
    store,
    tail,
    tasks,
    ticks,
    tokens,
    top,
    work,
)
from treadle.cli.terminal import INTERRUPTED, console, document, masked, one_line, safe, say
from treadle.demo import show
from treadle.errors import ConfigError, InvalidInput, TreadleError, UnknownTask

WRONG_USAGE = (ConfigError, InvalidInput, UnknownTask)
WIDTH = 100
ORDER = START, RUN, JOBS, GATE, ACCOUNT, STORE, COMMANDS = (
    "Start here",
    "Run",
    "Look and act",
    "Hold and let go",
    "Keep account",
    "The store and this program",
    "Commands",
)


class Sections(TyperGroup):
    """Help in sections, each command one sentence and one example."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by section, groups first, each with the example of its epilog."""
        sections: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                sections.setdefault(getattr(command, "rich_help_panel", None) or COMMANDS, []).append((name, command))
        for title, commands in sorted(sections.items(), key=lambda section: ORDER.index(section[0])):
            with formatter.section(title):
                rows = []
                for name, command in sorted(commands, key=lambda named: not hasattr(named[1], "commands")):
                    rows.append((name, command.get_short_help_str(WIDTH)))
                    example = (command.epilog or "").partition("Example: ")[2].split("\n")[0]
                    rows += [("", f"$ {example}")] if example else []
                formatter.write_dl(rows)


cli = typer.Typer(
    name="treadle",
    cls=Sections,
    help="A job queue in the database you already have.",
    epilog="\b\nEvery command has --help, --json and --debug, most take --server. Settings: options, TREADLE_*\n"
    "variables, treadle.toml, [tool.treadle] of pyproject.toml. Exit codes: 0 done, 1 failed, 2 wrong usage.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": WIDTH},
    pretty_exceptions_enable=False,
)


def _example(command: str) -> str:
    return f"\b\nExample: {command}"


cli.command("demo", rich_help_panel=START, epilog=_example("treadle demo"))(show.demo)
cli.command("init", rich_help_panel=START, epilog=_example("treadle init shop"))(start.init)
cli.command("worker", rich_help_panel=RUN, epilog=_example("treadle worker --app tasks:app --queue mail"))(work.worker)
cli.command("serve", rich_help_panel=RUN, epilog=_example("treadle serve --app tasks:app"))(serve.serve)
cli.command("dev", rich_help_panel=RUN, epilog=_example("treadle dev --app tasks:app"))(dev.dev)
cli.command(
    "enqueue", rich_help_panel=RUN, epilog=_example("""treadle enqueue greet '{"name": "Ada"}' --app tasks:app""")
)(enqueue.enqueue)

jobs_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
jobs_cli.command("list", epilog=_example("treadle jobs list --state failed --task greet"))(jobs.list_jobs)
jobs_cli.command("show", epilog=_example("treadle jobs show 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"))(jobs.show)
jobs_cli.command("retry", epilog=_example("treadle jobs retry --state failed --task greet --since 1h"))(acts.retry)
jobs_cli.command("cancel", epilog=_example('treadle jobs cancel 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11 --reason "typo"'))(
    acts.cancel
)
jobs_cli.command("delete", epilog=_example('treadle jobs delete 0199e0c5 --reason "a password was in it"'))(acts.delete)
jobs_cli.command("edit", epilog=_example("treadle jobs edit 0199e0c5 --priority 5 --queue mail --run-after 5m"))(
    acts.edit
)
jobs_cli.command("run-now", epilog=_example("treadle jobs run-now 0199e0c5"))(acts.run_now)
jobs_cli.command("count", epilog=_example("treadle jobs count --queue mail"))(jobs.count)
cli.add_typer(
    jobs_cli,
    name="jobs",
    help="List, show, count, retry, cancel, delete and edit jobs.",
    rich_help_panel=JOBS,
    epilog=_example("treadle jobs list --state failed"),
)

cli.command("status", rich_help_panel=JOBS, epilog=_example("treadle status --watch"))(status.status)
cli.command("stats", rich_help_panel=JOBS, epilog=_example("treadle stats --span 1d --queue mail"))(stats.stats)
cli.command("top", rich_help_panel=JOBS, epilog=_example("treadle top"))(top.top)
cli.command("tail", rich_help_panel=JOBS, epilog=_example("treadle tail --queue mail --kind failed"))(tail.tail)
cli.command("failures", rich_help_panel=JOBS, epilog=_example("treadle failures --since 1h"))(failures.failures)
cli.command("why", rich_help_panel=JOBS, epilog=_example("treadle why 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"))(look.why)

NIGHTLY = 'nightly --task report --cron "30 2 * * *" --tz Europe/Berlin'

schedules_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
schedules_cli.command("list", epilog=_example("treadle schedules list"))(schedules.list_schedules)
schedules_cli.command("show", epilog=_example("treadle schedules show nightly"))(schedule_facts.show)
schedules_cli.command("create", epilog=_example(f"treadle schedules create {NIGHTLY}"))(schedules.create)
schedules_cli.command("update", epilog=_example("treadle schedules update nightly --every 15m"))(schedules.update)
schedules_cli.command("enable", epilog=_example("treadle schedules enable nightly"))(schedules.enable)
schedules_cli.command("disable", epilog=_example('treadle schedules disable nightly --reason "too slow"'))(
    schedules.disable
)
schedules_cli.command("delete", epilog=_example("treadle schedules delete nightly"))(schedules.delete)
schedules_cli.command("run", epilog=_example("treadle schedules run nightly"))(schedules.run)
schedules_cli.command(
    "preview", epilog=_example('treadle schedules preview --cron "30 2 * * MON-FRI" --tz Europe/Berlin')
)(ticks.preview_ticks)
schedules_cli.command("explain", epilog=_example('treadle schedules explain "0 9 * * MON#2"'))(ticks.explain_expression)
cli.add_typer(
    schedules_cli,
    name="schedules",
    help="List, show, create, change, run and preview schedules.",
    rich_help_panel=JOBS,
    epilog=_example(f"treadle schedules create {NIGHTLY}"),
)
cli.command("tasks", rich_help_panel=JOBS, epilog=_example("treadle tasks --app tasks:app"))(tasks.tasks)
cli.command("workers", rich_help_panel=JOBS, epilog=_example("treadle workers"))(look.workers)

cli.command("pause", rich_help_panel=GATE, epilog=_example('treadle pause --queue mail --until 2h --reason "outage"'))(
    gate.pause
)
cli.command("resume", rich_help_panel=GATE, epilog=_example("treadle resume --queue mail"))(gate.resume)
cli.command("drain", rich_help_panel=GATE, epilog=_example('treadle drain worker-7 --reason "a new version"'))(
    look.drain
)
cli.command("pauses", rich_help_panel=GATE, epilog=_example("treadle pauses"))(gate.pauses)

audit_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
audit_cli.callback(invoke_without_command=True, epilog=_example("treadle audit --tenant acme -n 20"))(audit.audit)
audit_cli.command("seal", epilog=_example("treadle audit seal"))(audit.seal)
audit_cli.command("verify", epilog=_example("treadle audit verify"))(audit.verify)
cli.add_typer(audit_cli, name="audit", rich_help_panel=ACCOUNT)
cli.command("costs", rich_help_panel=ACCOUNT, epilog=_example("treadle costs --days 7"))(look.costs)
cli.command("budgets", rich_help_panel=ACCOUNT, epilog=_example("treadle budgets"))(look.budgets)

config_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
config_cli.command("show", epilog=_example("treadle config show"))(config.show)
config_cli.command("get", epilog=_example("treadle config get lease"))(config.get)
config_cli.command("set", epilog=_example("treadle config set lease 1m"))(config.set_value)
config_cli.command("check", epilog=_example("treadle config check --app tasks:app"))(config.check)
cli.add_typer(
    config_cli,
    name="config",
    help="Show, check and change the settings.",
    rich_help_panel=STORE,
    epilog=_example("treadle config show"),
)

tokens_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
tokens_cli.command("create", epilog=_example("treadle tokens create grafana --scope read --expires 90d"))(tokens.create)
tokens_cli.command("list", epilog=_example("treadle tokens list"))(tokens.list_tokens)
tokens_cli.command("revoke", epilog=_example('treadle tokens revoke grafana --reason "leaked"'))(tokens.revoke)
cli.add_typer(
    tokens_cli,
    name="tokens",
    help="Make, list and revoke tokens of the REST API.",
    rich_help_panel=STORE,
    epilog=_example("treadle tokens create ci --scope enqueue"),
)

cli.command("migrate", rich_help_panel=STORE, epilog=_example("treadle migrate --check"))(store.migrate)
cli.command("doctor", rich_help_panel=STORE, epilog=_example("treadle doctor --url sqlite:///treadle.db"))(store.doctor)

cli.command("rls", rich_help_panel=STORE, epilog=_example("treadle rls --worker-role worker --app-role web --sql"))(
    store.rls
)
cli.command("prune", rich_help_panel=STORE, epilog=_example("treadle prune --app tasks:app"))(store.prune)
cli.command("export", rich_help_panel=STORE, epilog=_example("treadle export --state failed -o failed.ndjson"))(
    export.export
)

cli.command(
    "import",
    rich_help_panel=STORE,
    epilog=_example("treadle import --from jobs_before --profile chat_server --dry-run"),
)(adopting.import_table)
cli.command(
    "own-table",
    rich_help_panel=STORE,
    epilog=_example("treadle own-table --sql --profile chat_server | psql -v ON_ERROR_STOP=1 shop"),
)(adopting.own_table)

bench_cli = typer.Typer(cls=Sections, rich_markup_mode=None, no_args_is_help=False)
bench_cli.command("drain", epilog=_example("treadle bench drain --url sqlite:///treadle.db --jobs 20000 --bare"))(
    bench.drain
)
bench_cli.command("enqueue", epilog=_example("treadle bench enqueue --url sqlite:///treadle.db --bare"))(bench.enqueue)
bench_cli.command("latency", epilog=_example("treadle bench latency --url sqlite:///treadle.db"))(bench.latency)
cli.add_typer(
    bench_cli,
    name="bench",
    help="Measure how fast treadle is on your database.",
    rich_help_panel=STORE,
    epilog=_example("treadle bench drain --url sqlite:///treadle.db --bare"),
)


cli.command("completion", rich_help_panel=STORE, epilog=_example("treadle completion bash"))(completion.completion)


@cli.command("version", rich_help_panel=STORE, epilog=_example("treadle version --json"))
def version(as_json: options.Json = False) -> None:
    """Say which treadle and which Python this is."""
    if as_json:
        document({"version": treadle.__version__, "python": platform.python_version()})
    else:
        say(f"treadle {treadle.__version__} on Python {platform.python_version()}")


def _version_option(wanted: bool) -> None:
    if wanted:
        say(f"treadle {treadle.__version__}")
        raise typer.Exit


@cli.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version_option, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A server to ask instead of the database (or TREADLE_SERVER); may stand anywhere.",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Its token; better in TREADLE_TOKEN, where nobody sees it.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Send the token in the clear, by http://.")] = False,
) -> None:
    """A job queue in the database you already have."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """The exit code of one command; whatever goes wrong is one line on stderr."""
    arguments, debug = _without_debug(arguments)
    as_json = "--json" in arguments
    if not arguments:
        arguments = ["--help"]
    completion.prepare()
    try:
        arguments, server = servers.split_options(arguments)
        with servers.asked_for(server):
            code = command()(arguments, prog_name="treadle", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # `treadle jobs list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        if debug:
            sys.stderr.write(safe(masked("".join(traceback.format_exception(error))), lines=True))
        return _complain(error, as_json, debug)


@cache
def command() -> Callable[..., Any]:
    """What typer makes of all declarations: as long in the making as most commands take, and good for many."""
    return typer.main.get_command(cli)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without --debug, which may stand before or after a command, and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [word for word in arguments[:end] if word != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _complain(error: Exception, as_json: bool, debug: bool) -> int:
    """Say what went wrong, in one line; the exit code it means."""
    kind = type(error).__name__
    if hasattr(error, "format_message"):  # Typer's own: a wrong option, argument or command
        code, kind, message = 2, "UsageError", _usage(error)
    elif isinstance(error, TreadleError):
        code, message = 2 if isinstance(error, WRONG_USAGE) else 1, str(error)
    else:
        hint = "" if debug else "; --debug shows the traceback"
        code, message = 1, f"unexpected {kind}: {error}{hint}"
    message = " ".join(masked(message).split())
    if as_json:
        sys.stderr.write(one_line({"error": {"type": kind, "message": message}}) + "\n")
    else:
        console(stderr=True).print(f"error: {safe(message)}", soft_wrap=True)
    return code


def _usage(error: Any) -> str:
    message = str(error.format_message()).rstrip(".").replace("Value error, ", "")
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"{message} (see {command} --help)" if command else message
