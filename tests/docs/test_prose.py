"""The pages read easily: short sentences, a table of contents that has every page, a glossary in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LONGEST_SENTENCE = 35  # words, outside tables and code


def prose(text: str) -> str:
    """A page without its code, tables, headings, pictures and the targets of its links."""
    text = re.sub(r"^```.*?^```$", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\||#|!\[).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[str]:
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose(text))
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?])[\s\"')*]+(?=\S)", " ".join(block.split()))]
    return [part for part in parts if part]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_is_longer_than_a_reader_can_hold(page: Path) -> None:
    long = [part for part in sentences(page.read_text("utf-8")) if len(part.split()) > LONGEST_SENTENCE]
    assert long == []


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    words = "word " * (LONGEST_SENTENCE + 1)
    assert max(len(part.split()) for part in sentences(f"Short.\n\n- Also short. {words}end.")) > LONGEST_SENTENCE
    assert max(len(part.split()) for part in sentences(f"| {words} |\n\n```text\n{words}\n```\n\nShort.")) == 1


def test_every_page_stands_in_the_table_of_contents() -> None:
    contents = (DOCS / "README.md").read_text("utf-8")
    missing = [page.name for page in PAGES[1:] if page.name != "README.md" and f"]({page.name})" not in contents]
    assert missing == []


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(words) > 80
    assert words == sorted(set(words), key=str.lower)


def test_the_glossary_explains_each_state_and_each_scope() -> None:
    text = (DOCS / "glossary.md").read_text("utf-8")
    for word in ("pending", "running", "succeeded", "failed", "cancelled", "active", "window", "ever", "parked"):
        assert word in text
