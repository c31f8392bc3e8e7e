"""`treadle migrate`, `treadle doctor`, `treadle version` and the help."""

import sqlite3

import pytest

import treadle as package
from treadle.cli.commands import cli

URL = ("--url", "sqlite:///x.db")
TOP = (
    "demo", "init", "worker", "serve", "enqueue", "status", "stats", "tasks", "why", "workers", "pause", "resume",
    "pauses", "costs", "drain", "failures", "dev", "top", "tail", "budgets", "export", "completion", "migrate",
    "doctor", "rls", "prune", "version", "own-table", "import",
)  # fmt: skip
GROUPS = {
    "jobs": ("list", "show", "retry", "cancel", "delete", "edit", "run-now", "count"),
    "schedules": ("list", "show", "create", "update", "enable", "disable", "delete", "run", "preview", "explain"),
    "audit": ("seal", "verify"),
    "tokens": ("create", "list", "revoke"),
    "bench": ("drain", "enqueue", "latency"),
    "config": ("show", "get", "set", "check"),
}


def test_migrate_creates_the_tables_once(call):
    first = call("migrate", *URL, "--json")
    assert first.json["applied"]
    assert call("migrate", *URL, "--json").json["applied"] == []
    assert call("migrate", *URL).out == "sqlite:///x.db is up to date\n"


def test_migrate_sql_prints_a_schema_that_another_tool_can_apply(call, project):
    printed = call("migrate", "--sql", *URL)
    assert not (project / "x.db").exists()
    connection = sqlite3.connect(":memory:")
    connection.executescript(printed.out)
    assert connection.execute("select count(*) from treadle_jobs").fetchone() == (0,)
    connection.close()
    assert call("migrate", "--sql", "--json", *URL).json["sql"].strip() == printed.out.strip()


def test_migrate_check_names_differences_and_writes_nothing(call, project):
    missing = call("migrate", "--check", *URL)
    assert missing.code == 1
    assert "does not exist yet" in missing.out
    assert not (project / "x.db").exists()
    call("migrate", *URL)
    assert call("migrate", "--check", *URL, "--json").json == {"differences": []}
    connection = sqlite3.connect("x.db")
    connection.execute("drop table treadle_events")
    connection.close()
    broken = call("migrate", "--check", *URL, "--json")
    assert broken.code == 1
    assert any("treadle_events" in line for line in broken.json["differences"])
    assert call("jobs", "list", *URL).code == 1


def test_doctor_tells_health_by_its_exit_code(call):
    ill = call("doctor", *URL)
    assert ill.code == 1
    assert "✗ error" in ill.out
    call("migrate", *URL)
    well = call("doctor", *URL)
    assert well.code == 0
    assert "✓ ok" in well.out
    machine = call("doctor", *URL, "--json").json
    assert machine["ok"] is True
    assert {finding["level"] for finding in machine["findings"]} <= {"ok", "warning"}


def test_the_version_is_told(call):
    assert call("--version").out == f"treadle {package.__version__}\n"
    assert call("version").out.startswith(f"treadle {package.__version__} on Python 3.")
    assert call("version", "--json").json["version"] == package.__version__


def test_the_help_shows_every_command_with_an_example(call):
    overview = call("--help")
    assert overview.code == 0
    assert call() == overview
    for command in (*TOP, *GROUPS):
        assert f"\n  {command} " in overview.out
        assert f"$ treadle {command}" in overview.out
    for section in ("Start here:", "Run:", "Look and act:", "Hold and let go:", "Keep account:"):
        assert section in overview.out
    assert not set("│╭╰─") & set(overview.out)


@pytest.mark.parametrize("command", [*TOP, *(f"{group} {name}" for group in GROUPS for name in GROUPS[group]), "audit"])
def test_every_command_explains_itself_and_speaks_json(call, command):
    shown = call(*command.split(), "--help")
    assert shown.code == 0
    assert "--json" in shown.out
    assert f"Example: treadle {command}" in shown.out


def test_no_command_was_forgotten_here():
    assert {command.name for command in cli.registered_commands} == set(TOP)
    for group in cli.registered_groups:
        assert {command.name for command in group.typer_instance.registered_commands} == set(GROUPS[group.name])
    assert len(cli.registered_groups) == len(GROUPS)


def test_a_reader_that_leaves_early_is_no_error_worth_a_traceback(spawn, project):
    import subprocess
    import sys

    script = f"{sys.executable} -m treadle migrate --sql --url sqlite:///x.db | true"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
    assert done.stderr == ""


def test_a_terminal_of_few_characters_gets_them_written_out(spawn):
    done = spawn("doctor", *URL, PYTHONIOENCODING="ascii")
    assert done.code == 1
    assert "\\u2717 error" in done.out
