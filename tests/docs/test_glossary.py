"""The glossary has every word once, in order, and the words that the code uses."""

import re
from pathlib import Path

from treadle import EventKind, Reason, Scope, State

GLOSSARY = (Path(__file__).resolve().parent.parent.parent / "docs" / "glossary.md").read_text("utf-8")
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, re.MULTILINE)


def test_each_word_is_explained_once_and_in_order() -> None:
    assert len(WORDS) > 80
    assert sorted(set(WORDS), key=str.lower) == WORDS


def test_each_state_reason_scope_and_kind_of_event_can_be_found() -> None:
    found = set(re.findall(r"\w+", GLOSSARY.lower()))
    missing = [str(word) for kind in (State, Reason, Scope, EventKind) for word in kind if str(word) not in found]
    assert missing == []
