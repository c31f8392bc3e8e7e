"""The command line speaks the words of the app it works on."""

import importlib
import re

import pytest

from treadle import Treadle
from treadle.testing import run_until_idle

WORDS = """
from treadle import Profile, Retry, Treadle

app = Treadle("sqlite:///words.db", profile=Profile(
    task={"retry": Retry(max_attempts=2, base=60, jitter=0)},
    states={"retrying": "failed", "succeeded": "completed", "failed": "dead_letter", "cancelled": "canceled"},
    fields={"job_id": "id", "status": "state", "type": "task", "last_error": "error_text"},
))


@app.task
def work(fails: bool) -> None:
    if fails:
        raise RuntimeError("no luck")
"""


@pytest.fixture
def words(call, project, monkeypatch):
    """One job that waits for a retry, one that was cancelled, one that succeeded, one that waits."""
    (project / "words.py").write_text(WORDS)
    monkeypatch.syspath_prepend(project)
    app: Treadle = importlib.import_module("words").app
    work = app.tasks["work"]
    work.enqueue(fails=True)
    app.cancel(work.enqueue(fails=False).id)
    work.enqueue(fails=False)
    run_until_idle(app)
    work.using(run_after="1h").enqueue(fails=False)
    app.close()
    return lambda *arguments: call(*arguments, "--app", "words:app")


def test_a_list_has_the_fields_and_words_of_the_profile(words):
    jobs = words("jobs", "list", "--json").json["jobs"]
    assert [job["status"] for job in jobs] == ["pending", "completed", "canceled", "failed"]
    assert list(jobs[3].items())[1:] == [("status", "failed"), ("type", "work"), ("last_error", "no luck")]
    rows = [re.split(r" {2,}", line)[1] for line in words("jobs", "list").out.splitlines()[1:]]
    assert rows == ["pending", "completed", "canceled (by_request)", "failed"]


@pytest.mark.parametrize("word", ["pending", "completed", "canceled", "cancelled", "failed"])
def test_a_list_is_filtered_by_the_words_of_the_profile(words, word):
    [job] = words("jobs", "list", "--state", word, "--json").json["jobs"]
    assert job["status"] == word.replace("cancelled", "canceled")


def test_a_word_of_ours_that_is_none_of_the_profile_is_refused_with_those_there_are(words):
    refused = words("jobs", "list", "--state", "succeeded")
    assert (refused.code, refused.out) == (2, "")
    assert "must be one of pending, failed, running, completed, dead_letter, canceled" in refused.err


def test_show_and_count_and_what_is_done_to_a_job_speak_the_same_words(words):
    [job] = words("jobs", "list", "--state", "failed", "--json").json["jobs"]
    assert words("jobs", "show", job["job_id"], "--json").json["job"] == job
    assert words("jobs", "show", job["job_id"]).out.splitlines()[0].split() == [job["job_id"], "failed"]
    assert words("jobs", "count", "--json").json == {
        "counts": {"pending": 1, "failed": 1, "running": 0, "completed": 1, "dead_letter": 0, "canceled": 1},
        "labels": {},
        "total": 4,
        "exact": True,
        "estimates": [],
    }
    assert words("jobs", "count").out.splitlines()[1].split() == ["failed", "1"]
    assert words("jobs", "cancel", job["job_id"], "--json").json["job"]["status"] == "canceled"
    made = words("enqueue", "work", '{"fails": false}', "--json").json
    assert made["job"] == {"job_id": made["id"], "status": "pending", "type": "work", "last_error": None}
