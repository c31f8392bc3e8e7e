"""The examples' READMEs are short and plain, name real files, and every command in them is run by a test."""

from pathlib import Path

import pytest

from tests.docs import test_docs_language as language
from tests.docs.test_docs_run import headings, links
from tests.examples.conftest import EXAMPLES, commands

READMES = sorted(EXAMPLES.glob("*/README.md"))
PAGES = [EXAMPLES / "README.md", *READMES]
SCREEN = 72  # lines

by_folder = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)


@pytest.mark.parametrize("readme", READMES, ids=lambda page: page.parent.name)
def test_every_command_of_a_readme_is_run_by_a_test(readme: Path) -> None:
    tests = (Path(__file__).parent / f"test_{readme.parent.name}.py").read_text("utf-8")
    told = commands(readme.read_text("utf-8"))
    assert len(told) >= 2
    assert [command for command in told if command not in tests] == []


@by_folder
def test_a_readme_reads_like_a_page_of_the_documentation(page: Path) -> None:
    language.test_no_sentence_of_a_page_is_longer_than_35_words(page)
    language.test_a_page_uses_no_retired_word_or_grammar(page)
    assert len(page.read_text("utf-8").splitlines()) <= SCREEN


@by_folder
def test_the_links_of_a_readme_lead_somewhere(page: Path) -> None:
    for target, heading in links(page):
        place = page.parent / target
        assert place.exists(), target
        assert not heading or heading in headings(place), f"{target}#{heading}"


def test_every_example_is_in_the_list() -> None:
    listed = {target for target, _ in links(EXAMPLES / "README.md")}
    assert {f"{readme.parent.name}/README.md" for readme in READMES} == listed
    assert {folder for folder in EXAMPLES.iterdir() if folder.is_dir()} == {readme.parent for readme in READMES}


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*/*.py")), ids=lambda path: path.name)
def test_a_program_is_short_enough_to_be_copied(program: Path) -> None:
    assert len(program.read_text("utf-8").splitlines()) < 100
