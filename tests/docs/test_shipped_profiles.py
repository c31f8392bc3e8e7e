"""docs/shipped-profiles.md shows each profile of treadle.profiles row by row: all that is in it, and nothing else."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Profile, Retry, Treadle, Unique, profiles
from treadle.app.profile import LABELS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "shipped-profiles.md"
NAMES = [module.name for module in pkgutil.iter_modules(profiles.__path__) if not module.name.startswith("_")]
IN_CODE = re.compile(r"`([^`]*)`")


def profile_of(name: str) -> Profile:
    return importlib.import_module(f"treadle.profiles.{name}").PROFILE  # type: ignore[no-any-return]


def tables(name: str) -> dict[str, list[list[str]]]:
    """The tables of a profile's section, by the heading of their first column: the cells of each row."""
    [section] = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found = {}
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        first, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        found[first[0].strip("| ")] = [[cell.strip("| ") for cell in row] for row in rows]
    return found


def flat(fields: Any, prefix: str = "") -> dict[str, Any]:
    """A mapping of mappings, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        nested = isinstance(value, dict) and prefix == "" and value
        found.update({f"{name}.{part}": held for part, held in value.items()} if nested else {name: value})
    return found


def columns(rows: list[list[str]]) -> dict[str, str]:
    return {name.strip("`"): field.strip("`") for name, field in rows}


def test_every_module_of_profiles_has_a_section_and_a_line_at_the_top() -> None:
    text = PAGE.read_text("utf-8")
    assert sorted(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == sorted(NAMES)
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\(#\1\)", text, re.MULTILINE)) == sorted(NAMES)
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_every_number_and_switch_stands_beside_the_sentence_it_keeps(name: str) -> None:
    profile = profile_of(name)
    told: dict[str, Any] = {}
    for row in tables(name)["the document"]:
        assert len(row) == 2, row
        for code in IN_CODE.findall(row[1]):
            path, _, value = code.partition(" = ")
            assert path not in told, path
            told[path] = eval(value, {"Retry": Retry, "Unique": Unique})  # noqa: S307 - our own page
    held = {f"settings.{setting}": value for setting, value in profile.settings.items()}
    held |= {f"task.{option}": value for option, value in profile.task.items()}
    held |= {} if profile.empty is None else {"empty": profile.empty}
    assert told == held


@pytest.mark.parametrize("name", NAMES)
def test_every_column_stands_beside_its_field_in_the_order_of_print(name: str) -> None:
    profile, found = profile_of(name), tables(name)
    assert list(columns(found.get("column") or found["attribute"]).items()) == list(flat(profile.fields).items())
    assert columns(found.get("column of a schedule", [])) == (profile.schedules or {})


@pytest.mark.parametrize("name", NAMES)
def test_every_word_stands_beside_all_that_it_is_printed_for(name: str) -> None:
    profile = profile_of(name)
    told = {word.strip("`"): set(IN_CODE.findall(labels)) for word, labels in tables(name)["word"]}
    assert told == {
        word: {label for labels in LABELS.values() for label in labels if profile.word(label) == word}
        for word in profile.words()
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_app_takes_the_profile_whole_and_has_its_numbers(name: str, make_app: Callable[..., Treadle]) -> None:
    profile = profile_of(name)
    app = make_app(profile=profile)
    job = app.register("work", lambda: None).using(tenant="ada").enqueue()
    assert job.retry == profile.task["retry"]
    assert list(app.view(job)) == list(profile.fields or ())
