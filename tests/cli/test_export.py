"""`treadle export`: a line a job, and a file that is whole or not there."""

import json
import os
from pathlib import Path

import pytest

from treadle import Treadle
from treadle.cli import export


@pytest.fixture
def filled(ready, work):
    """Seven jobs of two tasks, one of them failed."""
    ready("enqueue", "give_up", '{"text": "no\\u007f\\u001b"}')
    work()
    for name in "abcdef":
        ready("enqueue", "greet", f'{{"name": "{name}"}}')
    return ready


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_is_what_show_prints_of_the_job(filled):
    whole = filled("export", "--events")
    assert (whole.code, whole.err, whole.out.isascii(), "\x7f" in whole.out) == (0, "", True, False)
    for line in lines(whole.out):
        shown = filled("jobs", "show", line["job"]["id"], "--json").json
        assert {**line, "job": line["job"]} == shown
    assert [{"job": line["job"]} for line in lines(whole.out)] == lines(filled("export").out)


def test_pages_join_without_a_gap_and_filters_fit_all(filled, monkeypatch):
    monkeypatch.setattr(export, "LARGEST_PAGE", 2)
    app = Treadle("sqlite:///treadle.db")
    ids = [job.id for job in app.find(limit=100).jobs]
    app.close()
    assert [line["job"]["id"] for line in lines(filled("export").out)] == ids
    assert len(ids) == 7
    failed = lines(filled("export", "--state", "failed", "--error", "GiveUp", "--since", "1h").out)
    assert [line["job"]["task"] for line in failed] == ["give_up"]
    assert filled("export", "--task", "greet", "--before", "1h").out == ""


def test_a_file_is_replaced_when_it_is_whole_and_keeps_its_mode(filled, project):
    target = project / "out.ndjson"
    target.write_text("old")
    target.chmod(0o640)
    link = project / "link"
    link.symlink_to(target)
    assert filled("export", "-o", "link").out == "exported 7 jobs to link\n"
    assert (len(lines(target.read_text())), target.stat().st_mode & 0o777, link.is_symlink()) == (7, 0o640, True)
    assert filled("export", "--output", "new", "--json").json == {"exported": 7, "output": "new"}
    assert filled("export", "-o", os.devnull).code == 0
    assert Path(os.devnull).is_char_device()


def test_a_file_that_is_not_finished_leaves_nothing_behind(filled, project, monkeypatch):
    def interrupted(*_: object) -> dict:
        raise KeyboardInterrupt

    there = sorted(path.name for path in project.iterdir())
    monkeypatch.setattr(export, "event_view", interrupted)
    assert filled("export", "--state", "failed", "--events", "-o", "out").code == 130
    assert sorted(path.name for path in project.iterdir()) == there


@pytest.mark.parametrize(("where", "why"), [("no/where", "No such file"), (".", "directory"), ("a\0b", "null")])
def test_a_place_that_cannot_be_written_is_named(filled, where, why):
    refused = filled("export", "-o", where)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: --output: ")
    assert why in refused.err


def test_a_name_that_is_mistyped_is_answered_with_the_nearest(filled):
    for arguments in (("export",), ("jobs", "list"), ("jobs", "retry", "--dry-run"), ("tail", "--no-follow")):
        assert "there is no queue 'defualt' here, did you mean default?" in filled(*arguments, "--queue", "defualt").err
        assert "there is no task 'gret' here, did you mean greet?" in filled(*arguments, "--task", "gret").err
        assert filled(*arguments, "--queue", "mail").err == ""  # a queue of the app: it is empty, no more
    assert "did you mean failed?" in filled("jobs", "list", "--state", "faild").err
