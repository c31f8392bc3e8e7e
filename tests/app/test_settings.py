"""Settings: arguments before TREADLE_* before treadle.toml before [tool.treadle]; what is wrong is said by name."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from treadle import ConfigError, TreadleError
from treadle import Treadle as App
from treadle.app.settings import Settings, load
from treadle.app.settings_reference import kind_of

SOURCES = ("argument", "variable", "treadle.toml", "pyproject.toml")


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., App]:
    """`given(["variable"], lease=5)`: an app for which these sources say this, each with a number of its own."""

    def build(sources: list[str]) -> App:
        for place, source in enumerate(SOURCES, 1):
            if source in sources:
                match source:
                    case "variable":
                        monkeypatch.setenv("TREADLE_CONCURRENCY", str(place))
                    case "treadle.toml":
                        (tmp_path / source).write_text(f"concurrency = {place}\n")
                    case "pyproject.toml":
                        (tmp_path / source).write_text(f"[tool.treadle]\nconcurrency = {place}\n")
        return App(**({"concurrency": 1} if "argument" in sources else {}))

    return build


@pytest.mark.parametrize("first", range(4), ids=SOURCES)
def test_the_nearer_source_wins(given: Callable[..., App], first: int) -> None:
    assert given(list(SOURCES[first:])).settings.concurrency == first + 1


def given_by(source: str, name: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Let this source say so; the arguments that an app is given then."""
    match source:
        case "argument":
            return {name: value}
        case "variable":
            monkeypatch.setenv(f"TREADLE_{name.upper()}", value)
        case "treadle.toml":
            (folder / source).write_text(f'{name} = "{value}"\n')
        case "pyproject.toml":
            (folder / source).write_text(f'[tool.treadle]\n{name} = "{value}"\n')
    return {}


@pytest.mark.parametrize("first", range(4), ids=SOURCES)
def test_what_is_wrong_is_said_of_the_source_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    given: dict[str, object] = {}
    for source in SOURCES[first:]:
        given |= given_by(source, "lease", "soon", tmp_path, monkeypatch)
    named = ("an argument", "TREADLE_LEASE", "treadle.toml", "[tool.treadle] in pyproject.toml")[first]
    with pytest.raises(ConfigError, match=rf"lease: 'soon' is not a valid duration.* \({re.escape(named)}\)$"):
        load(poll="2s", **given)


def test_what_is_wrong_in_a_table_is_said_of_the_source_of_that_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_BUDGETS", '{"acme": 1000}')
    (tmp_path / "treadle.toml").write_text("[budgets]\nglobex = -5\n")
    with pytest.raises(ConfigError, match=r"^settings: budgets\.globex: .* \(treadle\.toml\)$"):
        load(budgets={"initech": 1})


def test_what_is_wrong_in_a_profile_is_said_of_the_profile() -> None:
    with pytest.raises(ConfigError, match=r"poll: 'soon' .* \(the profile\)$"):
        load({"poll": "soon"}, lease=5)


def test_sources_fill_each_others_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.treadle]\nqueues = ["mail", "default"]\n[tool.other]\nx = 1\n')
    (tmp_path / "treadle.toml").write_text('grace = "2m"\n')
    monkeypatch.setenv("TREADLE_LEASE", "90s")
    settings = App(poll=0.5).settings
    assert (settings.queues, settings.grace, settings.lease, settings.poll) == (["mail", "default"], 120, 90, 0.5)


def test_the_defaults_are_those_of_the_manual() -> None:
    settings = App().settings
    assert settings.url == "sqlite:///treadle.db"
    assert (settings.lease, settings.grace, settings.poll, settings.concurrency) == (30, 30, 1, 10)
    assert (settings.queues, settings.lanes, settings.unknown_tasks) == (["default"], None, "leave")
    assert (settings.keep_succeeded, settings.keep_cancelled, settings.keep_failed) == (604800, 604800, 2592000)
    assert (settings.sweep, settings.batch, settings.start, settings.expired_jobs) == (
        1,
        None,
        "with_next_write",
        "cancel",
    )
    assert (settings.cancel, settings.tenant_required) == ("any", False)
    assert (settings.crash_message, settings.count_claims) == ("", False)


def test_the_url_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_URL", f"sqlite:///{tmp_path}/elsewhere.db")
    app = App()
    app.register("tick", lambda: None).enqueue()
    app.close()
    assert (tmp_path / "elsewhere.db").exists()


def test_settings_are_read_on_first_use_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    monkeypatch.setenv("TREADLE_CONCURRENCY", "7")
    assert app.settings.concurrency == 7
    monkeypatch.setenv("TREADLE_CONCURRENCY", "8")
    assert app.settings.concurrency == 7


def test_making_an_app_touches_no_file(tmp_path: Path) -> None:
    app = App()
    app.task(name="tick")(lambda: None)
    app.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("1.5", 1.5), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h 30m", 5400), ("7d", 604800),
     ("250ms", 0.25),
     ("1w", 604800), (" 5M ", 300)],
)  # fmt: skip
def test_durations_are_written_as_people_write_them(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("TREADLE_GRACE", text)
    assert load().grace == seconds
    assert load(grace=text).grace == seconds


@pytest.mark.parametrize("value", ["soon", "5 parsecs", "-1", "1e400", "", "5m later", "nan"])
@pytest.mark.parametrize("field", ["lease", "keep_failed"])
def test_what_is_no_duration_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, field: str, value: str) -> None:
    monkeypatch.setenv(f"TREADLE_{field.upper()}", value)
    with pytest.raises(ConfigError, match=field):
        load()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 1001),
        ("concurrency", "ten"),
        ("queues", []),
        ("unknown_tasks", "ignore"),
        ("audit", "some"),
        ("batch", 0),
        ("sweep", "often"),
        ("start", "last"),
        ("expired_jobs", "fail"),
        ("crash_message", "a\0b"),
        ("crash_message", "x" * 100_000),
        ("count_claims", "perhaps"),
        ("cancel", "running"),
        ("tenant_required", "perhaps"),
        ("url", 7),
        ("keep_failed", True),
        ("lease", True),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        App(**{field: value}).settings  # noqa: B018


def test_an_age_that_is_none_is_told_of_the_word_for_ever() -> None:
    with pytest.raises(ConfigError, match=r"keep_failed: 'never' .*; it must be from 0s to 36500d, or forever"):
        App(keep_failed="never").settings  # noqa: B018
    with pytest.raises(ConfigError, match=r"keep_tasks\.a\.running: .*must be .*succeeded, failed or cancelled"):
        App(keep_tasks={"a": {"running": "1d"}}).settings  # noqa: B018


@pytest.mark.parametrize(("name", "example"), [("BUDGETS", '{"acme": 5000000}'), ("QUEUES", '["mail", "default"]')])
def test_a_variable_that_should_be_json_is_named_with_an_example(
    monkeypatch: pytest.MonkeyPatch, name: str, example: str
) -> None:
    monkeypatch.setenv(f"TREADLE_{name}", "{bad")
    with pytest.raises(ConfigError) as told:
        load()
    assert str(told.value) == f"settings: TREADLE_{name} is not valid JSON; write it like TREADLE_{name}='{example}'"


@pytest.mark.parametrize("source", SOURCES)
def test_an_unknown_setting_is_refused_with_a_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    given = given_by(source, "leese", "5", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"(?i)leese.*did you mean lease"):
        App(**given).settings  # noqa: B018


def test_an_unknown_setting_that_resembles_none_is_refused_with_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_XYZZY", "5")
    with pytest.raises(ConfigError, match=r"TREADLE_XYZZY.*known: url"):
        load()


def test_a_variable_that_should_hold_a_list_says_how_to_write_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_QUEUES", "mail")
    with pytest.raises(ConfigError, match=r"TREADLE_QUEUES is not valid JSON.*TREADLE_QUEUES='\[\"mail\", "):
        load()
    monkeypatch.setenv("TREADLE_QUEUES", '["mail", "default"]')
    assert load().queues == ["mail", "default"]


@pytest.mark.parametrize("name", ["treadle.toml", "pyproject.toml"])
@pytest.mark.parametrize("content", [b"this is = = no toml", b"\xff\xfe"], ids=["syntax", "bytes"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        load()


def test_a_project_without_our_table_is_fine(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load().concurrency == 10


# --------------------------------------------------------------------------------------------- urls, workers


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("treadle.db", "sqlite:///treadle.db"),
        ("", "sqlite:///treadle.db"),
        ("mysql://host/db", "mysql"),
        ("sqlite://treadle.db", "relative.db"),
        ("sqlite:///x.db?synchronous=off", "synchronous"),
        ("sqlite:///x.db?journal=wal", "journal"),
    ],
)
def test_a_url_that_cannot_be_opened_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match="url") as refused:
        App(url).count()
    assert said in str(refused.value)


def test_a_worker_takes_its_plan_from_the_settings_and_its_arguments(store_url: str) -> None:
    app = App(store_url, queues=["mail"], lease="45s", grace=9, poll=2, concurrency=4, unknown_tasks="fail")
    plan = app.worker(concurrency=2, name="w7", lanes=["a"]).config
    assert (plan.queues, plan.lease, plan.grace, plan.poll) == (("mail",), 45, 9, 2)
    assert (plan.concurrency, plan.name, plan.lanes, plan.fail_unknown) == (2, "w7", ("a",), True)
    assert (plan.sweep, plan.batch, plan.start_first, plan.end_expired) == (1, None, False, True)
    assert (plan.crash_message, plan.count_claims) == ("", False)
    app.close()
    app = App(store_url, sweep="5m", batch=25, start="first", expired_jobs="leave", crash_message="x", count_claims=1)
    plan = app.worker().config
    assert (plan.sweep, plan.batch, plan.start_first, plan.end_expired) == (300, 25, True, False)
    assert (plan.crash_message, plan.count_claims) == ("x", True)
    app.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1001}, "concurrency"),
        ({"lease": 0.1}, "lease"),
        ({"lease": "soon"}, "lease"),
        ({"poll": 0}, "poll"),
        ({"grace": -1}, "grace"),
        ({"queues": [""]}, "queue"),
        ({"queues": "mail"}, "queues"),
        ({"lanes": "acme"}, "lanes"),
        ({"lanes": [7]}, "lane"),
        ({"name": "a\nb"}, "name"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_by_name(store_url: str, options: dict, named: str) -> None:
    app = App(store_url)
    with pytest.raises(TreadleError, match=named):
        app.worker(**options)
    app.close()


# --------------------------------------------------------------------------------------------- ranges

RANGES = {
    "concurrency": (("1", "1000"), ("0", "1001", "-5", "1.5", "ten", "true"), "from 1 to 1,000"),
    "batch": (("1", "500"), ("0", "501"), "from 1 to 500"),
    "lease": (("0.5s", "1d"), ("0.49s", "25h", "-1", "1e400", "nan"), "from 0.5s to 1d"),
    "grace": (("0", "7d"), ("-1", "8d"), "from 0s to 7d"),
    "poll": (("10ms", "1h"), ("9ms", "61m"), "from 0.01s to 1h"),
    "watch": (("50ms", "1h"), ("49ms", "61m"), "from 0.05s to 1h"),
    "sweep": (("50ms", "1d"), ("49ms", "25h"), "from 0.05s to 1d"),
    "heartbeat": (("100ms", "1h"), ("99ms", "61m"), "from 0.1s to 1h"),
    "schedule_interval": (("50ms", "1h"), ("49ms", "61m"), "from 0.05s to 1h"),
    **dict.fromkeys(
        ("keep_succeeded", "keep_cancelled", "keep_failed", "keep_audit"),
        (("0s", "36500d", "forever"), ("-1", "36501d", "inf"), "from 0s to 36500d, or forever"),
    ),
}
"""Of each number and duration: what is just inside its range, what is not, and the range as the error has it."""


def test_no_number_and_no_duration_is_without_a_range() -> None:
    assert set(RANGES) == {name for name in Settings.model_fields if kind_of(name) in ("number", "duration")}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", RANGES)
def test_a_range_holds_wherever_the_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    inside, outside, allowed = RANGES[name]
    for value in inside:
        load(**given_by(source, name, value, tmp_path, monkeypatch))
    for value in outside:
        given = given_by(source, name, value, tmp_path, monkeypatch)
        with pytest.raises(ConfigError) as refused:
            load(**given)
        place = {"argument": "an argument", "variable": f"TREADLE_{name.upper()}"}.get(source, source)
        assert re.search(
            rf"^settings: {name}: '{re.escape(value)}' .*; it must be {allowed} \(.*{place}\)$", str(refused.value)
        )


@pytest.mark.parametrize("name", ["concurrency", "lease", "grace", "poll"])
def test_the_options_of_a_worker_have_the_same_ranges(store_url: str, name: str) -> None:
    inside, outside, allowed = RANGES[name]
    with App(store_url) as app:
        for value in inside:
            app.worker(**{name: value})
        for value in outside:
            with pytest.raises(ConfigError, match=rf"^{name}: '{re.escape(value)}' .*; it must be {allowed}$"):
                app.worker(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("budgets", {"acme": -1}, "budgets.acme: -1 is out of range; it must be a table of tenants, each from 0 to"),
        ("budgets", {"acme": 10**15 + 1}, "budgets.acme: 1000000000000001 is out of range"),
        ("budgets", {"acme": True}, "budgets.acme: True is not a whole number; it must be"),
        ("budgets", {"a\n": 1}, "control character"),
        ("budgets", {"a\n": 1}, "it must be a table of tenants, each from 0 to 1,000,000,000,000,000"),
        ("keep_tasks", {"a": {"failed": "-1"}}, "keep_tasks.a.failed: '-1' is out of range; it must be"),
        ("keep_tasks", {"": {"failed": "1d"}}, "'' is not a valid name"),
        ("concurrency", 10.0, "concurrency: 10.0 is not a whole number; it must be from 1 to 1,000"),
        ("lease", timedelta(days=2), "lease: datetime.timedelta(days=2) is out of range"),
        ("lease", 10**400, "lease: 1000000000"),
        ("queues", ["mail", "*"], "queues: '*' is not a valid name"),
        ("queues", "mail", "queues: 'mail' is not valid; it must be a list of at least one name"),
        ("lanes", [], "lanes: [] is out of range; it must be a list of at least one name"),
        ("gone_schedules", "drop", "gone_schedules: 'drop' is not valid; it must be disable or keep"),
        ("enqueue_allow", ["web"], "enqueue_allow: 'web' is not valid; it must be a list of api, cli and sql"),
        ("log_jobs", "perhaps", "log_jobs: 'perhaps' is not valid; it must be true or false"),
        ("crash_message", "x" * 9999, "it must be text of at most 4,000 characters"),
    ],
)
def test_an_error_has_the_field_the_value_and_what_it_must_be(name: str, value: object, place: str) -> None:
    with pytest.raises(ConfigError, match="settings: ") as refused:
        load(**{name: value})
    assert place in str(refused.value)
    assert len(str(refused.value)) < 400


def test_an_error_never_shows_what_may_hold_a_password() -> None:
    with pytest.raises(ConfigError, match="url: a value of type list is not valid") as refused:
        load(url=["postgresql://me:s3cret@host/db"])
    assert "s3cret" not in str(refused.value)


def test_budgets_want_jobs_that_are_kept_for_a_day_when_the_settings_are_read() -> None:
    with pytest.raises(ConfigError, match=r"budgets: .* each keep_… must be '1d' or more"):
        App(budgets={"acme": 1}, keep_failed="23h").settings  # noqa: B018
    with pytest.raises(ConfigError, match=r"budgets: "):
        load({"keep_tasks": {"a": {"failed": "1h"}}}, budgets={"acme": 1})
    assert load(budgets={"acme": 1}, keep_failed="1d").budgets == {"acme": 1}


@pytest.mark.parametrize("content", ["tool = 5", "[tool]\ntreadle = 5", "[[tool.treadle]]\nlease = 5"])
def test_a_project_file_with_something_else_in_our_place_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError, match=r"^settings: pyproject\.toml: \w+ must be a table$"):
        load()
