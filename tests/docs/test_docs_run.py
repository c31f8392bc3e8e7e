"""README and docs are true: their Python and treadle blocks are run, page by page, in a fresh directory.

A block of output right below a block that was run is what it must have printed.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import dynamo_servers, forks, provision

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n```output\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
DYNAMODB, POSTGRES = "dynamodb://", "DATABASE_URL"  # what a page mentions that needs one
ONE_AFTER_THE_OTHER = """
import shlex, sys
from treadle.cli.commands import run
for words in sys.argv[1:]:
    if code := run(shlex.split(words)):
        sys.exit(f"exit code {code}: treadle {words}")
"""  # the commands of a block, in one process: to put the command line together takes longer than most of them
FILE = re.compile(r"# file: (\S+)\n")


@pytest.fixture
def surroundings(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """What the blocks of a page find in their environment: a database of their own, if the page speaks of one."""
    with database_of(request.getfixturevalue("page")) as found:
        yield found


def page_with_its_needs(page: Path) -> object:
    text = page.read_text("utf-8")
    server = [pytest.mark.server] if DYNAMODB in text or POSTGRES in text else []
    return pytest.param(page, marks=server, id=page.stem)


@contextmanager
def database_of(page: Path) -> Iterator[dict[str, str]]:
    text = page.read_text("utf-8")
    if DYNAMODB in text:
        with dynamo_servers.dynamodb() as address:
            keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
            yield {"AWS_ENDPOINT_URL_DYNAMODB": address, **keys}
        return
    if POSTGRES not in text:
        yield {}
        return
    url = provision.fresh_database(provision.shared_postgres())
    yield {"DATABASE_URL": url}
    provision.drop_database(url)


def run(command: list[str], cwd: Path, surroundings: dict[str, str]) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}
    env = {**clean, **surroundings, "PYTHONPATH": str(cwd), "NO_COLOR": "1", "COLUMNS": "200"}
    done = forks.run(command, cwd=cwd, env=env)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("page", [*map(page_with_its_needs, PAGES)])
def test_the_blocks_of_a_page_run_as_printed(page: Path, tmp_path: Path, surroundings: dict[str, str]) -> None:
    for language, code, output in BLOCK.findall(page.read_text("utf-8")):
        if language == "python":
            named = FILE.match(code)
            if named:
                (tmp_path / named.group(1)).write_text(code)
            printed = run([sys.executable, "-c", code], tmp_path, surroundings)
        else:
            lines = code.splitlines()
            assert all(line.startswith("$ treadle ") for line in lines), f"{page.name}: only treadle commands: {code}"
            commands = [line.removeprefix("$ treadle ") for line in lines]
            printed = run([sys.executable, "-c", ONE_AFTER_THE_OTHER, *commands], tmp_path, surroundings)
        if output:
            assert lines_of(printed) == lines_of(output), f"{page.name} prints something else:\n{code}"


def test_every_output_stands_right_below_what_printed_it() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert text.count("```output\n") == sum(bool(output) for *_, output in BLOCK.findall(text)), page.name


def test_the_first_app_in_the_readme_is_six_lines() -> None:
    first = next(code for language, code, _ in BLOCK.findall(PAGES[0].read_text("utf-8")) if language == "python")
    lines = [line for line in first.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 6


def test_the_first_screens_of_the_readme_show_what_people_choose_it_for() -> None:
    beginning = "\n".join(PAGES[0].read_text("utf-8").splitlines()[:75])
    transaction, asynchronous, policy, schedule = "using(tx=", "async def", "retry=Retry(", "cron="
    install, result, migration = "pip install", "app.result_of(job)", "treadle migrate"
    for shown in (transaction, asynchronous, policy, schedule, install, result, migration):
        assert shown in beginning, shown


def links(page: Path) -> list[tuple[str, str]]:
    """Where a page links to within the repository: files, and headings in them."""
    return re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8"))


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, heading in links(page):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(place), f"{page.name} links to {target}#{heading}"


def test_every_page_is_linked_from_the_readme() -> None:
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= {target for target, _ in links(PAGES[0])}
