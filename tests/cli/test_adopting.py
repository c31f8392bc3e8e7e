"""`treadle own-table` and `treadle import`: a table of the application's own, from its view to its rows."""

import sqlite3
from pathlib import Path

import pytest

from tests.support import stores
from treadle import Treadle
from treadle.importers import as_toml, map_of, own_table_sql
from treadle.profiles import backend, chat_server, mail_assistant, tenant_ops

COLUMNS = "id, job_type, user_id, payload, status, attempts, max_attempts, error_message, created_at, completed_at"
ROWS = [
    (1, "greet", "ada", '{"name": "Ada"}', "pending", 0, 3, None, "2026-03-01 12:00:00", None),
    (2, "greet", "ada", '{"name": "Bob"}', "completed", 0, 3, None, "2026-03-01 12:00:00", "2026-03-01 12:01:00"),
    (3, "greet", "bob", "{}", "failed", 3, 3, "no name", "2026-03-01 12:00:00", "2026-03-01 12:01:00"),
    (4, "greet", "bob", "{}", "weird\x1b[31m", 0, 3, None, "2026-03-01 12:00:00", None),
    (5, "greet", "bob", "not json", "pending", 0, 3, None, "2026-03-01 12:00:00", None),
]
ASSISTANT = ("--from", "jobs", "--profile", "mail_assistant", "--from-url", "sqlite:///own.db")


@pytest.fixture
def own(project: Path) -> Path:
    """A SQLite file with the assistant's table."""
    path = project / "own.db"
    connection = sqlite3.connect(path)
    connection.execute(f"create table jobs ({COLUMNS})")
    connection.executemany(f"insert into jobs values ({', '.join('?' * 10)})", ROWS)
    connection.commit()
    connection.close()
    return path


# -------------------------------------------------------------------------------------------------- own-table


@pytest.mark.parametrize("module", [backend, chat_server, tenant_ops])
def test_it_prints_the_sql_of_the_view_of_a_profile(call, module):
    name = module.__name__.rpartition(".")[2]
    plain = call("own-table", "--sql", "--profile", name)
    assert (plain.code, plain.err, plain.out) == (0, "", own_table_sql(module.PROFILE))
    there = call("own-table", "--sql", "--profile", name, "--schema", "queue", "--into", "shop", "--json")
    assert there.json == {"sql": own_table_sql(module.PROFILE, schema="queue", into="shop")}
    assert "treadle.jobs" not in there.json["sql"]


def test_the_profile_may_be_the_apps_or_one_of_your_own(call, project):
    (project / "shop.py").write_text(
        "from treadle import Treadle\nfrom treadle.profiles import tenant_ops\n"
        "OURS = tenant_ops.PROFILE\napp = Treadle(profile=OURS)\nplain = Treadle()\n"
    )
    (project / "torn.py").write_text("def (")
    (project / "leaves.py").write_text("raise SystemExit(4)")
    wanted = own_table_sql(tenant_ops.PROFILE, table="Job")
    for named in (("--app", "shop:app"), ("--profile", "shop:OURS")):
        assert call("own-table", "--sql", "--table", "Job", *named).out == wanted
    for named, why in (
        (("--app", "shop:plain"), "it has no table"),
        (("--profile", "shop:app"), "of type Treadle, not a Profile"),
        (("--profile", "shop:nope"), "cannot be imported"),
        (("--profile", "torn:OURS"), "--profile: importing torn failed: SyntaxError"),
        (("--profile", "leaves:OURS"), "--profile: importing leaves failed: SystemExit"),
        (("--profile", "backend", "--schema", "x" * 64), "schema: 'xxx"),
        (("--profile", "backend", "--into", "x" * 64), "a name of 1 to 63 small letters"),
        (("--profile", "nope"), "must be one of backend, chat_server"),
        (("--profile", "companion"), "it has no table"),
    ):
        refused = call("own-table", "--sql", *named)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert why in refused.err
    assert "--sql" in call("own-table", "--profile", "backend").err


# ----------------------------------------------------------------------------------------------------- import


def test_rows_are_brought_and_those_that_do_not_fit_are_told(ready, own):
    dry = ready("import", *ASSISTANT, "--dry-run")
    assert dry.out == (
        "jobs: 5 rows: 3 would be brought (1 pending, 1 succeeded, 1 failed), 0 there already, 2 do not fit\n"
    )
    assert ready("jobs", "list", "--json").json["jobs"] == []
    real = ready("import", *ASSISTANT, "--batch", "2")
    assert (dry.code, real.code, real.err) == (1, 1, dry.err)
    assert real.out == dry.out.replace("would be brought", "brought")
    word, payload = real.err.splitlines()
    assert word.startswith("row 4: status: 'weird")
    assert "\x1b" not in word
    assert payload.startswith("row 5: payload: 'not json' is not JSON")
    again = ready("import", *ASSISTANT, "--json")
    assert (again.code, again.err) == (1, "")
    assert {name: again.json[name] for name in ("read", "brought", "known", "unfit", "dry_run")} == {
        "read": 5, "brought": {}, "known": 3, "unfit": 2, "dry_run": False,
    }  # fmt: skip
    assert [misfit["row"] for misfit in again.json["misfits"]] == ["4", "5"]
    assert again.json["misfits"][1].keys() == {"row", "column", "why", "way_out"}


def test_what_was_brought_is_run_and_listed_as_any_other(ready, own, work):
    connection = sqlite3.connect(own)
    connection.execute("delete from jobs where id > 3")
    connection.commit()
    connection.close()
    assert ready("import", *ASSISTANT).code == 0
    work()
    app = Treadle("sqlite:///treadle.db")
    found = {job.payload.get("name", job.tenant): (job.state.value, job.result) for job in app.find().jobs}
    app.close()
    assert found == {"Ada": ("succeeded", "hello Ada"), "Bob": ("succeeded", None), "bob": ("failed", None)}
    failed = ready("jobs", "list", "--state", "failed", "--json").json["jobs"]
    assert [(job["error"]["message"], job["failures"]) for job in failed] == [("no name", 3)]
    assert "imported" in ready("audit", "--json").out


def test_the_map_of_a_profile_is_a_file_to_edit(ready, own, project):
    shown = ready("import", "--profile", "mail_assistant", "--show-map")
    assert shown.out == as_toml(map_of(mail_assistant.PROFILE))
    assert ready("import", "--profile", "mail_assistant", "--show-map", "--json").json == {"map": shown.out}
    (project / "map.toml").write_text(shown.out.replace("[states]", '[states]\n"weird\\u001b[31m" = "cancelled"\n#'))
    brought = ready("import", "--from", "jobs", "--map", "map.toml", "--from-url", "sqlite:///own.db")
    assert "4 brought (1 pending, 1 succeeded, 1 failed, 1 cancelled)" in brought.out


def test_the_table_may_lie_in_the_store_itself(ready, own, project):
    store = sqlite3.connect(project / "treadle.db")
    store.execute(f"create table own_jobs ({COLUMNS})")
    store.executemany(f"insert into own_jobs values ({', '.join('?' * 10)})", ROWS[:3])
    store.commit()
    store.close()
    brought = ready("import", "--from", "own_jobs", "--profile", "mail_assistant")
    assert (brought.code, brought.out.split(": ")[2].split(" (")[0]) == (0, "3 brought")


def test_what_cannot_be_is_refused_in_one_line(ready, own, project):
    (project / "map.toml").write_text('[columns]\nid = "id"\ntask = "job_type"\nstat = "status"\n')
    for arguments, code, why in (
        ((), 2, "--from: is required"),
        (("--from", "jobs"), 2, "it has no fields"),
        (("--from", "jobs", "--map", "map.toml", "--profile", "backend"), 2, "cannot be given together"),
        (("--from", "jobs", "--map", "map.toml"), 2, "columns.stat: is not a field of a job, did you mean 'state'?"),
        (("--from", "jobs", "--map", "nowhere.toml"), 2, "cannot be read: No such file"),
        (("--from", "nowhere", "--profile", "mail_assistant"), 1, "there is no table nowhere"),
        ((*ASSISTANT[:4], "--from-url", "sqlite:///nowhere.db"), 1, "there is no file nowhere.db"),
        ((*ASSISTANT[:4], "--from-url", "redis://x"), 2, "'redis' has no tables"),
        ((*ASSISTANT[:4], "--from-url", "postgresql://me:hidden@[::1"), 2, "--from-url: write postgresql://user:"),
        ((ASSISTANT[0], "half\udc80", *ASSISTANT[2:]), 2, "is not the name of a table"),
        ((*ASSISTANT[:3], "chat_server", *ASSISTANT[4:]), 2, "has no column 'input'; it has id, job_type"),
        ((*ASSISTANT, "--batch", "0"), 2, "batch"),
    ):
        refused = ready("import", *arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (code, "", 1), refused
        assert why in refused.err
        assert "hidden" not in refused.err
    assert not (project / "nowhere.db").exists()


def test_rows_come_into_dynamodb_from_a_database_that_is_named(call, own, tmp_path):
    with stores.empty_store("dynamodb", tmp_path) as url:
        refused = call("import", "--from", "jobs", "--profile", "mail_assistant", "--url", url)
        assert (refused.code, "--from-url: is required" in refused.err) == (2, True)
        brought = call("import", *ASSISTANT, "--url", url)
        assert "3 brought (1 pending, 1 succeeded, 1 failed)" in brought.out
        assert len(call("jobs", "list", "--url", url, "--json").json["jobs"]) == 3
