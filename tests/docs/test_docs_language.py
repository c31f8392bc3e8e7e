"""README and docs stay readable: short sentences, one word per idea, and a page that leads to every other page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LONGEST_SENTENCE = 35  # words

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = re.compile(r"^\s*(\||#|<|!\[|\[!\[).*$", re.MULTILINE)  # tables, headings, HTML, images, badges
BLOCK_BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )")  # paragraphs, and the items of lists
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"(`+).*?\1", re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])[*_\")]*\s+")

RETIRED_NAMES = {
    r"\bpatience=|--patience\b": "timeout",
    r"\.what\b": "event.kind",
    r"\btreadle walls\b|\bapp\.walls\b": "treadle rls, app.rls",
    r"\bfrom treadle import\b[^\n]*\b(What|Member|Spent|Trail)\b": "EventKind, WorkerInfo, Cost, AuditReport",
}
"""What stands in code too: names that were replaced before the first release."""

RETIRED_WORDS = {
    r"\bwalls\b": "row-level security, or: separation",
    r"\b(by|of|from) the house\b": "for everybody",
    r"\bpatien(ce|t)\b": "timeout",
    r"\bfiled\b|\bput away\b|\baside\b|\bstrangers?\b": "parked",
    r"\baudit lines?\b|\blines? (of|in) (the|its) (audit )?trail\b|\blines? (not )?sealed\b": "event",
    r"\b(one|same) atom\b|\batoms\b": "transaction",
    r"\blease keeper\b|\bupkeep\b|\bhousekeeping\b|\btimetable\b": "lease renewal, maintenance, schedule",
    r"\bmembership\b": "presence",
}

RETIRED_GRAMMAR = {
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more\b)\w+": "is not a valid …",
    r", for (it|they|he|she|we|there|this|that|these|what|nobody|nothing|no)\b": "because",
    r"(?:^|(?<=[.!?:] ))Who [^?]*(?:$|\.)": "the worker that …",
    r"\ban? [\w-]+ of (its|their|his|her) own\b|\bof (its|their|his|her) own(?=[.,;:)]|$)": "a separate …",
    r"\bfiles? of SQLite\b": "a SQLite file",
}


def blocks(text: str) -> Iterator[str]:
    """The paragraphs and list items of a page in plain words: no code, no tables, no marks."""
    prose = NO_PROSE.sub("", COMMENT.sub("", FENCE.sub("", text)))
    for block in BLOCK_BREAK.split(prose):
        plain = CODE.sub("code", LINK.sub(r"\1", block))
        plain = re.sub(r"^\s*(?:[-*+]|\d+\.|>) ", "", plain)
        if words := " ".join(re.sub(r"[*_]{1,2}(?=\w)|(?<=[\w.:!?)])[*_]{1,2}", "", plain).split()):
            yield words


def sentences(text: str) -> Iterator[str]:
    for block in blocks(text):
        yield from SENTENCE_END.split(block)


def word_count(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_of_a_page_is_longer_than_35_words(page: Path) -> None:
    found = [one for one in sentences(page.read_text("utf-8")) if word_count(one) > LONGEST_SENTENCE]
    assert not found, f"{page.name}: split {found}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_uses_no_retired_word_or_grammar(page: Path) -> None:
    text = page.read_text("utf-8")
    found = [(match[0], better) for name, better in RETIRED_NAMES.items() for match in re.finditer(name, text)]
    for block in blocks(text):
        for pattern, better in {**RETIRED_WORDS, **RETIRED_GRAMMAR}.items():
            found += [(match[0], better) for match in re.finditer(pattern, block, re.IGNORECASE)]
    assert not found, f"{page.name}: write instead of {found}"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("The value is no JSON.", True),
        ("There is no leader.", False),
        ("It is no longer yours.", False),
        ("Who finds one writes it.", True),
        ("Who fires a schedule?", False),
        ("It waits, for it is paused.", True),
        ("Use a number, for example 5.", False),
        ("A thread of its own renews it.", True),
        ("It runs jobs of its own version.", False),
    ],
)
def test_the_grammar_that_costs_a_reader_a_second_is_told_from_good_english(said: str, wrong: bool) -> None:
    found = any(re.search(pattern, said, re.IGNORECASE) for pattern in RETIRED_GRAMMAR)
    assert found is wrong


def test_sentences_are_counted_in_paragraphs_and_lists_without_code_and_tables() -> None:
    page = "# Title\n\nOne `two three` [four five](x.md). **Six.** Seven\n- eight\n  nine\n\n```sh\nten\n```\n| 11 |\n"
    assert [word_count(one) for one in sentences(page)] == [4, 1, 1, 2]


def test_every_page_is_linked_from_the_table_of_contents() -> None:
    contents = (DOCS / "README.md").read_text("utf-8")
    linked = set(re.findall(r"\]\(([\w.-]+\.md)(?:#[^)]*)?\)", contents))
    assert {page.name for page in PAGES[1:]} - {"README.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_files_of_this_repository_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:tests|benchmarks|src|examples)/[\w./-]*)`", page.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_rooms_and_stops_that_the_page_on_the_source_names_exist() -> None:
    source = ROOT / "src" / "treadle"
    named = re.findall(
        r"`((?:[a-z_]+|\*)(?:/(?:[a-z_]+|\*))*(?:\.py|/))`", (DOCS / "how-it-works.md").read_text("utf-8")
    )
    paths = [path for path in named if path not in ("sqlite/", "postgres/", "dynamodb/")]  # named inside engines/
    assert "model/lifecycle.py" in paths
    assert [path for path in paths if not [*source.glob(path.rstrip("/"))]] == []
