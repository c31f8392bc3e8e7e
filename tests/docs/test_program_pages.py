"""The pages of the programs in examples/ say of every row of their document where it is."""

import re
from collections.abc import Iterator

import pytest

from tests.support.pages import DOCS, PROGRAMS
from tests.support.requirements import load

ROW = re.compile(r"([A-Z]+-?)(\d+)(?: to \1(\d+))?")


def rows_of(words: str) -> Iterator[str]:
    """The rows that a cell such as `D1 to D6, L1` names."""
    for letters, first, last in ROW.findall(words):
        yield from (f"{letters}{number}" for number in range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("document", PROGRAMS)
def test_the_page_of_a_program_says_where_each_row_of_its_document_is(document: str) -> None:
    text = (DOCS / f"{PROGRAMS[document]}.md").read_text("utf-8")
    table = text.partition("## Which row is where")[2].partition("\n## ")[0]
    named = [row for cell in re.findall(r"^\| ([A-Z][^|]*\d) \|", table, re.MULTILINE) for row in rows_of(cell)]
    asked = [row for id in load() if id.startswith(document) for row in rows_of(id.partition("-")[2])]
    assert sorted(named) == sorted(asked)


def test_a_page_of_a_program_leads_to_its_matrix_its_readme_and_back() -> None:
    for document, page in PROGRAMS.items():
        text = (DOCS / f"{page}.md").read_text("utf-8")
        assert f"(requirements-{document}.md)" in text
        assert f"(../examples/{page.replace('-', '_')}/README.md)" in text
        assert f"(diagrams/{page}.svg)" in text
        assert f"({page}.md)" in (DOCS / f"requirements-{document}.md").read_text("utf-8")
