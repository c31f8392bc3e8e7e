"""A map that is wrong is refused in one line that names the key."""

import math

import pytest

from tests.importers.tables import MAP
from treadle import ConfigError, Profile, Retry
from treadle.importers import as_toml, checked_map, map_of, read_map

WRONG = {
    "column: is not a section, did you mean 'columns'": {"column": {}},
    r"columns: must be a table, written \[columns\]": {"columns": "id"},
    "columns.stat: is not a field of a job, did you mean 'state'": {"columns": {**MAP["columns"], "stat": "x"}},
    "columns.task: must be the name of a column": {"columns": {**MAP["columns"], "task": 7}},
    "columns.tenant: must be the name of a column": {"columns": {**MAP["columns"], "tenant": ["a", ""]}},
    "columns.id: is required$": {"columns": {"task": "kind", "state": "status"}},
    "columns.task: is required, or defaults.task": {"columns": {"id": "id", "state": "status"}},
    "columns.state: is required, or defaults.state": {"columns": {"id": "id", "task": "kind"}},
    "states: is required": {"states": {}},
    "states.done: 'success' is not a state, did you mean 'succeeded'": {"states": {"done": "success"}},
    "states.done: 7 is not a state": {"states": {"done": 7}},
    "defaults.prioritty: is not known, did you mean 'priority'": {"defaults": {"prioritty": 1}},
    "defaults.priority: 1.5 must be a whole number": {"defaults": {"priority": 1.5}},
    "defaults.retry_base: True must be a number": {"defaults": {"retry_base": True}},
    "defaults.queue: 7 must be a text": {"defaults": {"queue": 7}},
    "defaults.key_scope: 'window' must be one of pending, active, ever": {"defaults": {"key_scope": "window"}},
    "defaults.lease: ": {"defaults": {"lease": "soon"}},
    "defaults.state: 'open' is not a state": {"defaults": {"state": "open"}},
    "defaults.max_attempts: ": {"defaults": {"max_attempts": 0}},
    "defaults.retry_base: -1": {"defaults": {"retry_base": -1}},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_map_is_refused_by_its_key(message: str) -> None:
    with pytest.raises(ConfigError, match=f"^jobs.toml: {message}"):
        checked_map({**MAP, **WRONG[message]}, "jobs.toml")


def test_a_file_that_is_no_map_is_refused_by_its_name(tmp_path) -> None:
    file = tmp_path / "jobs.toml"
    for text in (None, "columns =", "\udcff"):
        if text is not None:
            file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match=r"--map: .*jobs\.toml' cannot be read"):
            read_map(str(file))


def test_what_no_column_says_has_a_default(tmp_path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(
        '[columns]\nid = "n"\n[defaults]\ntask = "send"\nstate = "pending"\nqueue = "mail"\nretry_cap = inf\n'
    )
    table_map = read_map(str(file))
    assert table_map.columns == {"id": ("n",)}
    assert (table_map.lease, table_map.retry) == (30.0, Retry(cap=None))


def test_the_map_of_a_profile_says_its_words_its_retries_and_its_lease() -> None:
    profile = Profile(
        settings={"lease": "5m"},
        task={"retry": Retry(4, 10, None, 0), "unique": "ever"},
        states={"pending": "wartet", "succeeded": 'gr\u00fcn "ja"'},
        fields={
            "id": "id",
            "Art der Arbeit": "task",
            "status": "state",
            "error": {"text": "error_text"},
            "x": "progress",
        },
    )
    table_map = map_of(profile)
    assert table_map.columns == {
        "id": ("id",), "task": ("Art der Arbeit",), "state": ("status",), "error_text": ("error", "text"),
    }  # fmt: skip
    assert table_map.states['gr\u00fcn "ja"'] == "succeeded"
    assert (table_map.retry, table_map.lease) == (Retry(4, 10, None, 0), 300.0)
    assert table_map.defaults["retry_cap"] == math.inf
    assert 'task = "Art der Arbeit"' in as_toml(table_map)
    with pytest.raises(ConfigError, match="it has no fields"):
        map_of(Profile())
