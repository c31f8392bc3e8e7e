"""Each *Coming from* page answers the same questions in the same order, and every one of them is in both indexes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("coming-from-*.md"))
SECTIONS = [
    "The same program",
    "Word by word",
    "Option by option",
    "After a crash",
    "What is different, and why",
    "What treadle does not have",
    "Moving over, step by step",
]


def test_the_systems_that_people_come_from_have_a_page() -> None:
    names = {page.stem.removeprefix("coming-from-") for page in PAGES}
    assert names == {"apscheduler", "arq", "celery", "django-tasks", "dramatiq", "huey", "procrastinate", "rq"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_same_sections_in_the_same_order(page: Path) -> None:
    text = page.read_text("utf-8")
    headings = re.findall(r"^## (The same program|.*$)", text, re.MULTILINE)
    assert [*dict.fromkeys(headings)] == SECTIONS  # the program may be shown in two ways
    assert re.search(r"This page compares\s+with [A-Z]?\w+", text)  # the version that was read


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_last_section_is_a_list_of_steps(page: Path) -> None:
    steps = re.findall(r"^(\d+)\. ", page.read_text("utf-8").partition(f"## {SECTIONS[-1]}")[2], re.MULTILINE)
    assert len(steps) >= 5
    assert steps == [str(number) for number in range(1, len(steps) + 1)]
