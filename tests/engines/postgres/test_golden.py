"""The texts of the turn: each can be opened and reviewed whole, and is what the server is sent."""

import re

import pytest

from tests.engines.postgres.golden import FOLDER, name, texts
from treadle.engines.postgres import settle, turn

EVERY_FORM = pytest.mark.parametrize("form", turn.FORMS, ids=name)


def test_the_texts_in_the_folder_are_current():
    stored = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.sql")}

    assert stored == texts(), "run: python -m tests.engines.postgres.golden"


@EVERY_FORM
def test_what_is_sent_is_the_text_without_its_comments(form):
    golden = (FOLDER / f"{name(form)}.sql").read_text("utf-8")

    code = [line for line in golden.splitlines() if line and not line.lstrip().startswith("--")]
    assert turn.statement(form) == "\n".join(code)
    assert "--" not in turn.statement(form)


@EVERY_FORM
def test_a_text_has_no_mark_left_and_one_parameter(form):
    text = turn.statement(form)

    assert not re.search(r"[{}]", text)
    assert text.count("$1") == 1


def test_every_part_is_in_some_text_and_missing_in_another():
    marks = set(re.findall(r"^-- if (?:not )?(\w+)$", turn.source(), re.MULTILINE))

    assert marks == set().union(*(form.parts for form in turn.FORMS))
    assert len({turn.statement(form) for form in turn.FORMS}) == len(turn.FORMS) == 12


@EVERY_FORM
def test_a_turn_settles_by_the_same_steps_as_a_settle_alone(form):
    steps = settle.SETTLED.strip()

    assert (steps in turn.commented(form)) == form.settles
    assert steps in settle.SETTLE_COMMENTED
