"""The pages that are printed from something else are current, and hold all of it."""

import re

import pytest

from tests.support import pages
from tests.support.requirements import load


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    return {page.name: text for page, text in pages.pages().items()}


@pytest.mark.covers("002-O1.e")
def test_every_printed_page_is_current(printed: dict[str, str]) -> None:
    for name, text in printed.items():
        assert (pages.DOCS / name).read_text("utf-8") == text, f"docs/{name}: run python3 dev.py pages"


@pytest.mark.covers("002-O1.d")
def test_the_api_reference_names_every_endpoint_with_its_parameters(printed: dict[str, str]) -> None:
    text = printed["api.md"]
    named = set(re.findall(r"### `([A-Z]+ \S+)`", text))
    paths = pages.openapi()["paths"]
    assert named == {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert len([one for one in named if " /api/admin/" in one]) == 11
    listing = text.partition("### `GET /api/v1/jobs`")[2].partition("###")[0]
    assert "| `limit` | query | integer, 1 to 500; default `50` |" in listing
    enqueue = text.partition("### `POST /api/v1/jobs`")[2].partition("###")[0]
    assert "| `task` | body, required | string" in enqueue


@pytest.mark.covers("002-O1.e")
def test_the_matrix_has_every_clause_and_the_tests_that_are_marked_for_it(printed: dict[str, str]) -> None:
    text = printed["requirements-002.md"]
    rows = dict(re.findall(r"^\| (002-\S+) \| .* \| (.*) \|$", text, re.MULTILINE))
    asked = {f"{row.id}.{letter}" for row in load().values() if row.id.startswith("002") for letter in row.clauses}
    assert set(rows) == asked
    assert "`docs/test_printed_pages.py::test_every_printed_page_is_current`" in rows["002-O1.e"]
    for test in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text):
        source = (pages.TESTS / test[0]).read_text("utf-8")
        assert f"def {test[1]}" in source
