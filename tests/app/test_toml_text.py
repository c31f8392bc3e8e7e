"""One value of a TOML file is changed in its text, and not a character of anything else."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from treadle import ConfigError
from treadle.app.toml_text import toml_value, with_value

HOSTILE = '''# lease = "1s"  <- not this one

lease = "30s"  # "how" long # really
note = """
lease = "2s"  # nor this
[budgets]
"""
path = 'C:\\new # not a comment'
queues = [  # in this order
  "ma#il",  # the first
  "x]=y",
]  # all of them
"quoted = key" = 1
when = 2026-01-31T12:00:00Z

[budgets]  # a day, in millionths
# our best customer
acme = 5
"*" = 1  # all others

[keep_tasks.heartbeat]
succeeded = "1h"

[other]
lease = "3s"'''


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    assert with_value(HOSTILE, "lease", "1m") == HOSTILE.replace('lease = "30s"  #', 'lease = "1m"  #')


def test_the_same_value_changes_nothing() -> None:
    data = tomllib.loads(HOSTILE)
    for name in ("lease", "queues", "note", "budgets", "keep_tasks"):
        assert with_value(HOSTILE, name, data[name]) == HOSTILE


def test_a_new_value_stands_above_the_tables() -> None:
    expected = HOSTILE.replace("12:00:00Z\n", '12:00:00Z\npoll = "5s"\n')
    assert with_value(HOSTILE, "poll", "5s") == expected


def test_comments_between_the_lines_of_a_value_move_above_it() -> None:
    old = HOSTILE[HOSTILE.index("queues") : HOSTILE.index('"quoted')]
    new = '# in this order\n# the first\nqueues = ["mail"]  # all of them\n'
    assert with_value(HOSTILE, "queues", ["mail"]) == HOSTILE.replace(old, new)


def test_a_text_of_many_lines_is_replaced_as_a_whole() -> None:
    old = HOSTILE[HOSTILE.index("note") : HOSTILE.index("path")]
    assert with_value(HOSTILE, "note", "short") == HOSTILE.replace(old, 'note = "short"\n')


def test_a_table_is_changed_entry_by_entry() -> None:
    expected = HOSTILE.replace("acme = 5", "acme = 6").replace("# all others\n", '# all others\n"a b" = 2\n')
    assert with_value(HOSTILE, "budgets", {"acme": 6, "*": 1, "a b": 2}) == expected


def test_an_entry_that_is_left_out_goes_away() -> None:
    assert with_value(HOSTILE, "budgets", {"*": 1}) == HOSTILE.replace("acme = 5\n", "")
    assert tomllib.loads(with_value(HOSTILE, "budgets", {}))["budgets"] == {}


def test_a_table_of_tables_gets_a_header_for_a_new_one() -> None:
    value = {"heartbeat": {"succeeded": "1h", "failed": "2h"}, "app.mail": {"failed": "1d"}}
    edited = with_value(HOSTILE, "keep_tasks", value)
    assert edited == (
        HOSTILE.replace('succeeded = "1h"\n', 'succeeded = "1h"\nfailed = "2h"\n')
        + '\n\n[keep_tasks."app.mail"]\nfailed = "1d"\n'
    )


@pytest.mark.parametrize(
    ("text", "name", "value", "edited"),
    [
        ("", "lease", "1m", 'lease = "1m"\n'),
        ("# only a comment", "lease", "1m", '# only a comment\nlease = "1m"\n'),
        ("poll = 1", "lease", "1m", 'poll = 1\nlease = "1m"\n'),
        ("lease=1", "lease", "1m", 'lease="1m"'),
        ("\tlease\t=\t1\t# tab\n", "lease", "1m", '\tlease\t=\t"1m"\t# tab\n'),
        ("'lease' = 1\n", "lease", "1m", "'lease' = \"1m\"\n"),
        ("poll = 1\r\nlease = 2 # c\r\n", "lease", "1m", 'poll = 1\r\nlease = "1m" # c\r\n'),
        ("poll = 1\r\n", "lease", "1m", 'poll = 1\r\nlease = "1m"\r\n'),
        ("poll = 1\r\n[a]\r\nx = 1", "lease", "1m", 'poll = 1\r\nlease = "1m"\r\n[a]\r\nx = 1'),
        ("# of the table\n[a]\nx = 1\n", "lease", "1m", 'lease = "1m"\n# of the table\n[a]\nx = 1\n'),
        ("# of the file\n\n# of the table\n[a]\n", "y", 1, "# of the file\n\ny = 1\n# of the table\n[a]\n"),
        ("budgets.acme = 1\nb = 2\n", "budgets", {"acme": 1, "x": 2}, "budgets.acme = 1\nb = 2\nbudgets.x = 2\n"),
        ("budgets = { acme = 1 } # c", "budgets", {"x": 2}, "budgets = { x = 2 } # c"),
        ("[budgets]\n", "budgets", {"x": 2}, "[budgets]\nx = 2\n"),
        ("[budgets] # c", "budgets", {"x": 2}, "[budgets] # c\nx = 2\n"),
        ("count = 1\n", "count", True, "count = true\n"),
        ("count = true\n", "count", 1, "count = 1\n"),
        ("[lease]\nx = 1\n", "lease", "1m", 'lease = "1m"\n'),
        ("a = 1\n[[b]]\nx = 1\n[[b]]\nx = 2\n", "a", 2, "a = 2\n[[b]]\nx = 1\n[[b]]\nx = 2\n"),
        ("a = '''x # y\n# z'''  # c\n", "a", 2, "a = 2  # c\n"),
        ('a = """\\\n   x # y\\\n  """ # c\n', "a", 2, "a = 2 # c\n"),
    ],
)
def test_files_as_people_write_them(text: str, name: str, value: Any, edited: str) -> None:
    assert with_value(text, name, value) == edited


def test_what_cannot_be_changed_in_its_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="budgets is written in a way that cannot be changed here"):
        with_value("[[budgets]]\nacme = 1\n", "budgets", {"acme": 2})


words = some.text(some.characters(blacklist_categories=["Cs"]), max_size=12)
names = some.sampled_from(["lease", "budgets", "a b", "#", "=", "x.y", '"', "'", "é", ""])
leaves = words | some.booleans() | some.integers(-(2**60), 2**60)
lists = some.lists(leaves, max_size=3)
tables = some.dictionaries(names, leaves | lists | some.dictionaries(names, leaves, max_size=2), max_size=3)


@given(words | leaves | lists | tables)
def test_a_value_that_is_written_reads_back_as_it_was(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


@some.composite
def files(draw: some.DrawFn) -> str:
    """A file of comments, values over several lines, dotted keys and tables, with either line end."""
    comment = some.sampled_from(["", " # c", '\t#"""', " # x = 1", "#[t]"])
    lines: list[str] = []

    def entry(key: str, value: Any) -> None:
        text = toml_value(value)
        if isinstance(value, list) and draw(some.booleans()):
            text = f"[{draw(comment)}\n" + "".join(f"  {toml_value(one)},{draw(comment)}\n" for one in value) + "]"
        elif isinstance(value, str) and "\r" not in value and draw(some.booleans()):
            text = '"""' + toml_value(value)[1:-1].replace("\\n", "\n") + '"""'
        lines.append(f"{key} = {text}{draw(comment)}")

    def block(data: dict[str, Any], path: str) -> None:
        inner = {}
        for name, value in data.items():
            lines.extend(draw(some.lists(some.sampled_from(["", "# note", "  # a = 1"]), max_size=2)))
            form = draw(some.sampled_from(["table", "dotted", "inline"])) if isinstance(value, dict) else "inline"
            if form == "table":
                inner[name] = value
            elif form == "dotted" and value:
                for key, part in value.items():
                    entry(f"{toml_value(name)} . {toml_value(key)}", part)
            else:
                entry(toml_value(name), value)
        for name, value in inner.items():
            header = f"{path}.{toml_value(name)}" if path else toml_value(name)
            lines.append(f"[{header}]{draw(comment)}")
            block(value, header)

    block(draw(some.dictionaries(names, leaves | lists | tables, max_size=5)), "")
    end = draw(some.sampled_from(["\n", "\r\n"]))
    return "\n".join(lines).replace("\n", end) + draw(some.sampled_from(["", end]))


def comments(text: str) -> list[str]:
    """The lines that are nothing but a comment, or nothing."""
    return [line.strip() for line in text.split("\n") if line.strip() in ("# note", "# a = 1")]


@given(files(), names, leaves | lists | tables)
def test_any_value_of_any_file_can_be_set_and_everything_else_stays(text: str, name: str, value: Any) -> None:
    edited = with_value(text, name, value)
    assert tomllib.loads(edited) == {**tomllib.loads(text), name: value}
    assert comments(edited) == comments(text)
    assert ("\r\n" in text) <= ("\n" not in edited.replace("\r\n", ""))
    above_tables = text.partition("\n[")[0] if not text.startswith("[") else ""
    others = [line for line in above_tables.splitlines() if line.startswith('"x.y" = ')]
    assert name == "x.y" or all(line in edited for line in others)
