"""docs/settings.md says of every setting what its field says: default, range, example and meaning."""

import re
import tomllib
from pathlib import Path

import pytest

from treadle.app.settings import Settings, load, values_model
from treadle.app.settings_reference import as_written, markdown_table, meant, range_of, reference, variable_of
from treadle.app.toml_text import toml_value

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "settings.md"
NAMES = list(Settings.model_fields)


def test_the_page_holds_the_table_that_the_fields_make() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE)
    assert tables == [markdown_table()], "write what markdown_table() of treadle.app.settings_reference returns"


def test_the_page_has_no_word_of_a_setting_that_does_not_exist() -> None:
    after = PAGE.read_text("utf-8").partition("## More about some of them")[2]
    named = {name for item in re.findall(r"^- (.*?):", after, re.MULTILINE) for name in re.findall(r"`(\w+)`", item)}
    assert named <= set(NAMES)
    assert named


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_says_all_that_its_user_must_know(name: str) -> None:
    known = reference(name)
    assert known.description
    assert "\n" not in known.description
    assert len(known.description) < 110
    assert known.range
    assert "|" not in "".join(filter(None, known))


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_setting_can_be_used_and_is_not_its_default(name: str) -> None:
    example = tomllib.loads(f"{name} = {reference(name).example}")
    accepted = getattr(values_model().model_validate(example), name)
    assert accepted != getattr(load(), name)
    assert as_written(name, accepted) == example[name] or reference(name).range.endswith("or forever")


@pytest.mark.parametrize("name", NAMES)
def test_the_default_of_a_setting_is_what_the_program_uses(name: str, tmp_path: Path) -> None:
    default = reference(name).default
    if default is None:
        assert getattr(load(), name) is None
        return
    before = getattr(load(), name)
    (tmp_path / "treadle.toml").write_text(f"{name} = {default}\n")
    assert getattr(load(), name) == before
    assert toml_value(as_written(name, before)) == default


def test_an_example_of_an_error_on_the_page_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of("lease"), "10ms")
    with pytest.raises(Exception, match="lease") as refused:
        load()
    assert f"\n{refused.value}\n" in PAGE.read_text("utf-8")


def test_ranges_and_suggestions_are_read_off_the_fields() -> None:
    assert range_of("concurrency") == "from 1 to 1,000"
    assert range_of("poll") == "from 0.01s to 1h"
    assert range_of("enqueue_allow") == "a list of api, cli and sql, or an empty one"
    assert meant("concurency") == ", did you mean concurrency?"
