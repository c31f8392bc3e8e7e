"""`treadle stats` and `treadle tasks`: what has ended and how long it took, and what an app can do."""

from datetime import timedelta

import pytest

from tests.cli.conftest import Call
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model.records import Minute
from treadle.model.stats import Counts, hour_of

STORE = "sqlite:///treadle.db"
ENDS = (("succeeded", 0.5, 2.0), ("succeeded", 0.5, 2.0), ("failed", 90.0, None), ("retrying", 0.5, 2.0))


def settled(queue: str, task: str, *, minutes: int = 5) -> None:
    """A minute in which a worker has settled these jobs, so many minutes ago."""
    counts = Counts()
    for end in ENDS:
        counts.note(*end)
    with Treadle(STORE) as app:
        at = app.engine.now() - timedelta(minutes=minutes)
        app.engine.save(Minute(hour_of(at), at.minute, f"w1 {queue}", {queue: {task: counts.data()}}), before=OVERWRITE)


# ------------------------------------------------------------------------------------------------- stats


def test_stats_count_what_ended_by_queue_and_task_with_a_total(ready: Call) -> None:
    settled("mail", "boom")
    settled("default", "greet")
    header, first, second, total, note = ready("stats").out.splitlines()
    assert header.split() == [
        "queue",
        "task",
        "succeeded",
        "failed",
        "cancelled",
        "retrying",
        "wait",
        "p50",
        "p95",
        "p99",
        "run",
        "p50",
        "p95",
        "p99",
    ]
    assert first.split()[:6] == ["default", "greet", "2", "1", "-", "1"]
    assert second.split()[:6] == ["mail", "boom", "2", "1", "-", "1"]
    assert total.split()[:5] == ["total", "4", "2", "-", "2"]
    assert "1m" in first.split()[8]  # of the one that waited longest
    assert note.startswith("of what ended since 20")


def test_stats_are_of_the_span_queue_and_task_that_were_asked_for(ready: Call) -> None:
    settled("mail", "boom", minutes=90)
    settled("default", "greet")
    for options, tasks in {
        (): ["greet"], ("--span", "2h"): ["greet", "boom"], ("--span", "2h", "--queue", "mail"): ["boom"],
        ("--span", "2h", "--task", "greet"): ["greet"], ("--span", "2h", "--queue", "mail", "--task", "greet"): [],
    }.items():  # fmt: skip
        found = ready("stats", *options, "--json").json
        assert [one["task"] for one in found["tasks"]] == tasks
        assert found["total"]["succeeded"] == 2 * len(tasks)
    assert [*found] == ["at", "since", "total", "tasks", "minutes"]


def test_where_nothing_ended_stats_name_the_queue_that_may_be_meant(ready: Call) -> None:
    assert ready("stats").out.startswith("no job ended since 20")
    settled("mail", "boom")
    done = ready("stats", "--queue", "mial", "--app", "tasks:app")
    assert done.code == 0
    assert done.out.endswith("there is no queue 'mial' here, did you mean mail?\n")


@pytest.mark.parametrize("span", ["", "soon", "59s", "8d", "-1h"])
def test_a_span_that_cannot_be_is_refused(ready: Call, span: str) -> None:
    refused = ready("stats", f"--span={span}")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith("error: span: ")


# ------------------------------------------------------------------------------------------------- tasks


def test_tasks_are_listed_with_what_their_jobs_are_given_and_take(call: Call) -> None:
    header, *lines = call("tasks", "--app", "tasks:app").out.splitlines()
    assert header.split() == ["task", "queue", "version", "priority", "attempts", "timeout", "takes"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["boom"] == ["mail", "1", "0", "2", "-", "text"]
    assert rows["greet"] == ["default", "1", "0", "5", "-", "name"]
    assert [*rows] == sorted(rows)


def test_a_tasks_json_has_its_policy_and_its_schema(call: Call) -> None:
    tasks = {task["name"]: task for task in call("tasks", "--app", "tasks:app", "--json").json["tasks"]}
    assert tasks["boom"]["retry"] == {"max_attempts": 2, "base": 0, "cap": 300.0, "jitter": 0}
    schema = call("tasks", "--app", "tasks:app", "--schema", "boom").json
    assert schema == tasks["boom"]["payload_schema"]
    assert schema["required"] == ["text"]


def test_a_task_that_is_not_there_is_answered_with_the_nearest(call: Call) -> None:
    refused = call("tasks", "--app", "tasks:app", "--schema", "gret")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: no task 'gret' is registered here (did you mean 'greet'?)\n"


def test_tasks_need_an_app_and_no_store(call: Call) -> None:
    assert call("tasks").err.startswith("error: which app?")
    assert call("tasks", "--app", "tasks:app", "--url", "sqlite:////nowhere/at/all.db").code == 0
