"""`treadle config`: an operator looks at the settings, changes one, and asks whether all is well."""

import os
import stat
import tomllib
from pathlib import Path

import pytest

from treadle.app.settings import Settings

FILE = """# our settings
lease = "30s"  # long enough

# where it is
url = "postgresql://me:s3cret@db.example.org/shop"
"""
APP = """
from treadle import Profile, Treadle

app = Treadle("sqlite:///own.db", profile=Profile(settings={"poll": "5s", "lease": "9s", "budgets": {"a": 1}}), grace=7)
"""


@pytest.fixture
def file(project: Path) -> Path:
    path = project / "treadle.toml"
    path.write_text(FILE)
    return path


# ------------------------------------------------------------------------------------------------------ show, get


def test_show_prints_every_setting_with_its_value_and_its_source(call, file, project, monkeypatch):
    monkeypatch.setenv("TREADLE_CONCURRENCY", "4")
    (project / "pyproject.toml").write_text('[tool.treadle]\nqueues = ["mail"]\nlease = "1s"\n')
    lines = {line.split()[0]: line.split()[1:] for line in call("config", "show").out.splitlines()}
    assert list(lines) == ["setting", *Settings.model_fields]
    assert lines["lease"] == ["30s", "treadle.toml"]
    assert lines["concurrency"] == ["4", "TREADLE_CONCURRENCY"]
    assert lines["queues"] == ['["mail"]', "[tool.treadle]", "in", "pyproject.toml"]
    assert lines["keep_failed"] == ["30d", "default"]
    assert lines["batch"] == ["–", "default"]
    assert lines["log_jobs"] == ["true", "default"]


def test_show_tells_what_the_app_and_its_profile_say(call, project, file, monkeypatch):
    (project / "shop.py").write_text(APP)
    monkeypatch.setenv("TREADLE_BUDGETS", '{"b": 2}')
    shown = {one["name"]: one for one in call("config", "show", "--app", "shop:app", "--json").json["settings"]}
    assert shown["url"] == {"name": "url", "value": "sqlite:///own.db", "source": "argument", "from": "an argument"}
    assert (shown["grace"]["value"], shown["grace"]["source"]) == ("7s", "argument")
    assert (shown["poll"]["value"], shown["poll"]["source"]) == ("5s", "profile")
    assert (shown["lease"]["value"], shown["lease"]["source"]) == ("30s", "file")
    assert (shown["budgets"]["value"], shown["budgets"]["from"]) == ({"b": 2}, "TREADLE_BUDGETS")


def test_a_table_of_several_sources_names_them_all(call, file, monkeypatch):
    file.write_text("[budgets]\na = 1\n")
    monkeypatch.setenv("TREADLE_BUDGETS", '{"b": 2}')
    one = call("config", "get", "budgets", "--json").json
    assert (one["value"], one["from"]) == ({"a": 1, "b": 2}, "TREADLE_BUDGETS and treadle.toml")


def test_an_app_that_cannot_be_imported_does_not_keep_the_settings_from_being_seen(call, file):
    file.write_text('app = "nowhere:app"\nlease = "1m"\n')
    shown = call("config", "get", "lease")
    assert (shown.code, shown.out) == (0, "1m\n")
    assert "note: app: there is no module 'nowhere'" in shown.err
    assert call("config", "get", "lease", "--app", "nowhere:app").code == 2


def test_get_prints_one_value(call, file):
    assert call("config", "get", "lease").out == "30s\n"
    assert call("config", "get", "queues").out == '["default"]\n'
    assert call("config", "get", "batch").out == "\n"
    assert call("config", "get", "lease", "--json").json == {
        "name": "lease",
        "value": "30s",
        "source": "file",
        "from": "treadle.toml",
        "description": Settings.model_fields["lease"].description,
        "default": '"30s"',
        "range": "from 0.5s to 1d",
        "example": '"1m"',
    }


@pytest.mark.parametrize("password", ["s3cret", "s3'cret", 's3"cret', "s3/cret", "s3:cret", "s3@cret", "s3 cret"])
@pytest.mark.parametrize("command", ["show", "get url", "show --json", "get url --json"])
def test_a_password_is_masked_wherever_it_is_printed(call, monkeypatch, command, password):
    monkeypatch.setenv("TREADLE_URL", f"postgresql://me:{password}@db.example.org/shop?sslpassword=s3cret2")
    shown = call("config", *command.split())
    assert shown.code == 0
    assert "postgresql://me:***@db.example.org/shop?sslpassword=***" in shown.out
    assert "cret" not in shown.out + shown.err


def test_settings_that_are_wrong_are_said_and_not_shown(call, monkeypatch):
    monkeypatch.setenv("TREADLE_LEASE", "10ms")
    shown = call("config", "show")
    assert (shown.code, shown.out) == (2, "")
    assert "lease: '10ms' is out of range; it must be from 0.5s to 1d (TREADLE_LEASE)" in shown.err


# ------------------------------------------------------------------------------------------------------------ set


def test_set_changes_one_line_and_nothing_else(call, file):
    done = call("config", "set", "lease", "1m")
    assert (done.code, done.out) == (0, "treadle.toml: lease = 1m (it was 30s)\n")
    assert file.read_text() == FILE.replace('"30s"', '"1m"')
    assert call("config", "get", "lease").out == "1m\n"


@pytest.mark.parametrize(
    ("name", "given", "written"),
    [
        ("concurrency", "4", 4),
        ("auto_migrate", "true", True),
        ("schedules", "off", False),
        ("lease", "90", "90s"),
        ("lease", "1h30m", "1h30m"),
        ("keep_failed", "forever", "forever"),
        ("keep_failed", "0.5", "0.5s"),
        ("queues", '["mail", "default"]', ["mail", "default"]),
        ("queues", "['mail']", ["mail"]),
        ("budgets", '{"acme": 5, "*": 1}', {"acme": 5, "*": 1}),
        ("budgets", "{acme = 5}", {"acme": 5}),
        ("keep_tasks", '{"a.b": {"failed": 3600}}', {"a.b": {"failed": "3600s"}}),
        ("keep_tasks", '{"a": {"failed": null}}', {"a": {"failed": "forever"}}),
        ("crash_message", 'a "quoted" \\ é 🙂', 'a "quoted" \\ é 🙂'),
        ("gone_schedules", "keep", "keep"),
        ("url", "postgresql+asyncpg://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("listen_url", "postgresql://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("app", "shop.tasks:app", "shop.tasks:app"),
    ],
)  # fmt: skip
def test_set_writes_values_with_their_types(call, project, name, given, written):
    done = call("config", "set", name, given, "--json")
    assert done.code == 0, done.err
    assert done.json["before"] is None
    assert done.json["file"] == "treadle.toml"
    found = tomllib.loads((project / "treadle.toml").read_text("utf-8"))
    assert found == {name: written}
    assert type(found[name]) is type(written)
    assert "pw" not in done.out
    assert call("config", "check").code == (1 if name == "app" else 0)  # there is no such module here


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("leese", "1m", "'leese' is not a setting, did you mean lease?"),
        ("xyzzy", "1m", "'xyzzy' is not a setting; known: url"),
        ("lease", "10ms", "lease: '10ms' is out of range; it must be from 0.5s to 1d"),
        ("lease", "soon", "lease: 'soon' is not a valid duration"),
        ("lease", "", "lease: '' is not a valid duration"),
        ("concurrency", "1001", "concurrency: '1001' is out of range; it must be from 1 to 1,000"),
        ("concurrency", "4.5", "concurrency: '4.5' is not valid; it must be from 1 to 1,000"),
        ("auto_migrate", "perhaps", "auto_migrate: 'perhaps' is not valid; it must be true or false"),
        ("queues", "mail", """queues: 'mail' is not a list; write it like '["mail", "default"]'"""),
        ("queues", '[""]', "queues: '' is not a valid name"),
        ("queues", '["mail"]\nlease = 5', "is not a list"),
        ("budgets", "5", "budgets: 5 is not valid; it must be a table of tenants"),
        ("keep_tasks", '{"a": {"ended": 5}}', "it must be a table of tasks"),
        ("gone_schedules", "drop", "gone_schedules: 'drop' is not valid; it must be disable or keep"),
        ("url", "mysql://host/db", "url: no engine for 'mysql'"),
        ("url", "treadle.db", "write sqlite:///treadle.db"),
        ("listen_url", "host", "listen_url: write postgresql://"),
        ("crash_message", "a\ud800", "half a character"),
    ],
)
def test_set_refuses_what_cannot_be_used_and_writes_nothing(call, file, name, given, reason):
    refused = call("config", "set", name, given)
    assert (refused.code, refused.out) == (2, "")
    assert reason in refused.err
    assert file.read_text() == FILE


def test_set_refuses_what_does_not_go_with_the_rest(call, file):
    file.write_text('keep_failed = "1h"\n')
    refused = call("config", "set", "budgets", '{"acme": 5}')
    assert refused.code == 2
    assert "each keep_… must be '1d' or more" in refused.err
    assert file.read_text() == 'keep_failed = "1h"\n'


def test_set_mends_a_file_that_is_wrong(call, file):
    file.write_text('lease = "10ms"\npoll = "soon"\n')
    assert call("config", "show").code == 2
    assert call("config", "set", "lease", "1m").code == 0
    assert call("config", "set", "poll", "1s").code == 0
    assert call("config", "check").code == 0
    assert file.read_text() == 'lease = "1m"\npoll = "1s"\n'


@pytest.mark.parametrize("content", [b"lease = = 5\n", b"\xff\xfe", b"\xef\xbb\xbflease = 5\n", b"x = " + b"[" * 9999])
def test_set_leaves_a_file_that_is_not_toml_as_it_is(call, file, content):
    file.write_bytes(content)
    refused = call("config", "set", "lease", "1m")
    assert refused.code == 2
    assert "treadle.toml is not valid TOML" in refused.err
    assert file.read_bytes() == content


def test_set_says_when_a_variable_wins_over_the_file(call, file, monkeypatch):
    monkeypatch.setenv("TREADLE_LEASE", "2m")
    assert "note: TREADLE_LEASE is set, and wins over treadle.toml" in call("config", "set", "lease", "1m").err
    assert call("config", "set", "lease", "1m", "--json").json["hidden_by"] == "TREADLE_LEASE"


def test_set_keeps_the_mode_of_the_file_and_a_link_to_it(call, file, project):
    file.chmod(0o640)
    (project / "real.toml").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to("real.toml")
    (project / "real.toml").chmod(0o640)
    assert call("config", "set", "lease", "1m").code == 0
    assert file.is_symlink()
    assert stat.S_IMODE((project / "real.toml").stat().st_mode) == 0o640
    assert 'lease = "1m"' in (project / "real.toml").read_text()


def test_set_leaves_the_old_file_when_the_disk_refuses(call, file, project, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused = call("config", "set", "lease", "1m")
    assert refused.code == 1
    assert "treadle.toml cannot be written: No space left on device" in refused.err
    assert file.read_text() == FILE
    assert {path.name for path in project.iterdir()} == {"tasks.py", "treadle.toml"}


def test_set_refuses_when_somebody_else_has_written_meanwhile(call, file, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: file.write_text("poll = 2\n"))  # at this moment
    refused = call("config", "set", "lease", "1m")
    assert refused.code == 1
    assert "changed by somebody else" in refused.err
    assert file.read_text() == "poll = 2\n"


# ---------------------------------------------------------------------------------------------------------- check


def test_check_is_content_with_settings_that_are_valid(call, file):
    assert call("config", "check").out == "the settings are valid, from every source\n"
    assert call("config", "check", "--json").json == {"ok": True, "problems": []}


def test_check_names_the_problems_of_every_source(call, file, project, monkeypatch):
    file.write_text('lease = "10ms"\nleese = 5\n')
    (project / "pyproject.toml").write_text("[tool.treadle]\nlease = true\n")
    monkeypatch.setenv("TREADLE_LEASE", "1m")  # it wins, and the others are wrong all the same
    monkeypatch.setenv("TREADLE_QUEUES", "mail")
    monkeypatch.setenv("TREADLE_POLL", "2h")
    monkeypatch.setenv("TREADLE_GRASE", "1m")
    checked = call("config", "check")
    assert checked.code == 1
    for problem in (
        "lease: '10ms' is out of range; it must be from 0.5s to 1d (treadle.toml)\n",
        "leese: is not a setting, did you mean lease? (treadle.toml)\n",
        "lease: True is not a valid duration",
        "([tool.treadle] in pyproject.toml)\n",
        """TREADLE_QUEUES is not valid JSON; write it like TREADLE_QUEUES='["mail", "default"]'\n""",
        "poll: '2h' is out of range; it must be from 0.01s to 1h (TREADLE_POLL)\n",
        "TREADLE_GRASE is not a setting, did you mean grace?\n",
    ):
        assert problem in checked.out
    machine = call("config", "check", "--json")
    assert machine.code == 1
    assert machine.json["ok"] is False
    assert len(machine.json["problems"]) == 6


@pytest.mark.parametrize("name", ["treadle.toml", "pyproject.toml"])
def test_check_names_a_file_that_is_not_toml(call, project, name):
    (project / name).write_text("= 5")
    checked = call("config", "check")
    assert checked.code == 1
    assert checked.out.startswith(f"{name} is not valid TOML: ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("lease='10ms'", "lease: '10ms' is out of range; it must be from 0.5s to 1d (an argument)"),
        ("profile=Profile(settings={'poll': 'soon'})", "(the profile)"),
        ("'mysql://host/db'", "url: no engine for 'mysql'"),
        ("budgets={'a': 1}, keep_failed='1h'", "each keep_… must be '1d' or more"),
        ("1 / 0", "app: importing shop failed: ZeroDivisionError"),
    ],
)
def test_check_looks_at_what_the_app_says(call, project, arguments, problem):
    (project / "shop.py").write_text(f"from treadle import Profile, Treadle\napp = Treadle({arguments})\n")
    checked = call("config", "check", "--app", "shop:app")
    assert checked.code == 1
    assert problem in checked.out
