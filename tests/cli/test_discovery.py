"""Which app and which store a command works on."""

import pytest

GREET = ("enqueue", "greet", '{"name": "Ada"}')


def test_the_app_is_found_by_option_variable_and_both_files(call, project, monkeypatch):
    assert call(*GREET, "-A", "tasks:app").code == 0
    (project / "pyproject.toml").write_text('[tool.treadle]\napp = "tasks:app"\n')
    assert call(*GREET).code == 0
    (project / "pyproject.toml").unlink()
    (project / "treadle.toml").write_text('app = "tasks:app"\n')
    assert call(*GREET).code == 0
    (project / "treadle.toml").unlink()
    monkeypatch.setenv("TREADLE_APP", "tasks:app")
    assert call(*GREET).code == 0
    assert call("jobs", "count", "--json").json["total"] == 4


def test_the_option_wins_over_the_variable(call, monkeypatch):
    monkeypatch.setenv("TREADLE_APP", "nowhere:app")
    assert call(*GREET, "--app", "tasks:app").code == 0


def test_an_app_in_a_package_and_inside_an_object_is_found(call, project):
    (project / "shop").mkdir()
    (project / "shop" / "__init__.py").write_text("")
    (project / "shop" / "jobs.py").write_text("import tasks\nclass holder:\n    app = tasks.app\n")
    assert call(*GREET, "--app", "shop.jobs:holder.app").code == 0


def test_the_console_script_finds_modules_of_the_current_directory(spawn):
    assert spawn(*GREET, TREADLE_APP="tasks:app").code == 0


def test_the_url_option_wins_over_the_apps_own(call, project):
    (project / "own.py").write_text(
        "from tasks import *\napp.settings = app.settings.model_copy(update={'url': 'sqlite:///own.db'})\n"
    )
    assert call(*GREET, "--app", "own:app", "--url", "sqlite:///given.db").code == 0
    assert call("jobs", "count", "--url", "sqlite:///given.db", "--json").json["total"] == 1
    assert not (project / "own.db").exists()


def test_a_url_as_sqlalchemy_writes_it_is_understood_beside_an_app_too(call, project):
    assert call(*GREET, "--app", "tasks:app", "--url", "sqlite+pysqlite:///there.db").code == 0
    assert (project / "there.db").exists()


def test_the_apps_own_store_is_looked_at(call, project):
    (project / "own.py").write_text("from treadle import Treadle\napp = Treadle('sqlite:///own.db')\n")
    assert call("migrate", "--app", "own:app").code == 0
    assert (project / "own.db").exists()


def test_a_url_alone_needs_no_app(call, monkeypatch):
    monkeypatch.setenv("TREADLE_APP", "nowhere:app")
    url = ("--url", "sqlite:///x.db")
    assert call("migrate", *url).code == 0
    assert call("doctor", *url).code == 0
    assert call("jobs", "list", *url).code == 0
    assert call("enqueue", "t", "--unchecked", *url).code == 0


def test_a_url_after_the_app_has_opened_its_own_is_refused(call, project):
    (project / "eager.py").write_text("from tasks import app, greet\ngreet.enqueue('Ada')\n")
    refused = call(*GREET, "--app", "eager:app", "--url", "sqlite:///x.db")
    assert refused.code == 2
    assert "comes too late" in refused.err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere' (from --app: nowhere:app); looked in"),
        ("tasks.deeper:app", "there is no module 'tasks.deeper'"),
        ("tasks", "must be module:name, for example tasks:app"),
        ("tasks.py:app", "must be module:name, for example tasks:app"),
        ("tasks:", "must be module:name"),
        (":app", "must be module:name"),
        ("", "must be module:name"),
        ("a/b:app", "must be module:name"),
        ("tasks:ap", "module tasks has no 'ap'; it has tasks:app, tasks:second"),
        ("json:app", "module json has no 'app'; it has no Treadle at all"),
        ("tasks:not_an_app", "is of type str, not a Treadle"),
        ("tasks:greet", "is of type Task, not a Treadle"),
        ("needy:app", "importing needy failed: ModuleNotFoundError: No module named 'not_installed'"),
        ("broken:app", "importing broken failed: ZeroDivisionError: division by zero ("),
        ("typo:app", "importing typo failed: SyntaxError"),
        ("leaver:app", "importing leaver failed: SystemExit: 3"),
    ],
)
def test_an_app_that_cannot_be_had_is_explained(call, project, spec, said):
    (project / "needy.py").write_text("import not_installed\n")
    (project / "broken.py").write_text("\n\n1 / 0\n")
    (project / "typo.py").write_text("def f(:\n")
    (project / "leaver.py").write_text("raise SystemExit(3)\n")
    for command in (GREET, ("worker",)):
        answer = call(*command, "--app", spec)
        assert (answer.code, answer.out) == (2, "")
        assert said in answer.err
        assert len(answer.err.splitlines()) == 1
    if spec == "broken:app":
        assert "broken.py, line 3;" in answer.err


def test_without_any_app_all_the_ways_to_name_one_are_said(call):
    answer = call("worker")
    assert answer.code == 2
    for way in ("--app", "TREADLE_APP", "treadle.toml", "[tool.treadle]"):
        assert way in answer.err
