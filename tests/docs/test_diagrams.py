"""The diagrams are drawn from text, and what lies in the tree is what the text says now."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DIAGRAMS = ROOT / "docs" / "diagrams"
PICTURES = [*sorted(DIAGRAMS.glob("*.svg")), ROOT / "docs" / "demo.svg"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

sys.path.append(str(DIAGRAMS))

import make  # noqa: E402
import terminal  # noqa: E402

HEAD = 'size 300 200\ntitle "Test"\n'


def test_the_diagrams_in_the_tree_are_what_their_descriptions_draw() -> None:
    command = [sys.executable, DIAGRAMS / "make.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run python3 docs/diagrams/make.py"


def test_every_description_has_its_picture_and_every_picture_its_description() -> None:
    assert {path.stem for path in DIAGRAMS.glob("*.svg")} == {path.stem for path in DIAGRAMS.glob("*.txt")}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_sound_and_some_page_shows_it(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()  # noqa: S314 - our own file
    assert root.tag.endswith("svg")
    assert any(re.search(rf"{picture.name}[)\"]", page.read_text("utf-8")) for page in PAGES)


@pytest.mark.parametrize(
    ("commands", "complaint"),
    [
        ('text 20,100 left ink "one text"\ntext 30,104 left ink "another"', "overlap"),
        ('box 20,60 60x40 blue "much too long for it"', "its box"),
        ('text 250,100 left ink "beyond the edge"', "leaves the picture"),
        ('text 20,100 left ink "struck through"\nline 10,97 200,97 grey', "a line crosses 'struck through'"),
        ('box 20,60 200x40 mauve "a colour"', "line 3: 'mauve' is not a style; known: ink"),
        ("circle 20,60", "line 3: 'circle' is not a command; known: size"),
    ],
)
def test_a_picture_that_cannot_be_read_is_not_drawn(commands: str, complaint: str) -> None:
    with pytest.raises(make.Trouble, match=re.escape(complaint)):
        make.draw(HEAD + commands)


def test_code_in_a_text_has_the_font_of_code_and_everything_is_escaped() -> None:
    svg = make.draw(HEAD + 'text 20,100 left ink "if `a < b` & so on"')
    assert "a &lt; b</tspan> &amp; so on</text>" in svg


def test_a_line_of_a_terminal_keeps_its_columns_and_colours() -> None:
    line = "ok  ␛[1;31mkilled  it␛[0m"
    found = [(run.column, run.text, sorted(run.codes)) for run in terminal.runs(line)]
    assert found == [(0, "ok", []), (4, "killed", ["1", "31"]), (12, "it", ["1", "31"])]


def test_the_picture_of_the_rooms_has_every_room() -> None:
    drawn = (DIAGRAMS / "rooms.txt").read_text("utf-8")
    source = ROOT / "src" / "treadle"
    rooms = [path.stem for path in source.iterdir() if path.stem[0] not in "_." and path.suffix in ("", ".py")]
    assert [room for room in rooms if not re.search(rf'["*, ]{room}["*,]', drawn)] == []
