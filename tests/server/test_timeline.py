"""The timeline of a job: what is drawn of its attempts, and how it is said."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle.server.dashboard.timeline import LEAST, MOST_SHOWN, timeline

BEGIN = datetime(2026, 3, 27, 2, 44, tzinfo=UTC)


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def job(state: str = "failed", ended: float | None = 100, due: float = 0) -> dict[str, Any]:
    return {"state": state, "created_at": at(0), "due_at": at(due), "finished_at": None if ended is None else at(ended)}


def attempt(number: int | None, begin: float | None, end: float | None, outcome: str | None) -> dict[str, Any]:
    begun, ended = None if begin is None else at(begin), None if end is None else at(end)
    return {"number": number, "claimed_at": begun, "started_at": begun, "ended_at": ended, "outcome": outcome}


def test_attempts_are_bars_and_what_lies_between_them_are_waits() -> None:
    found = timeline(job(), [attempt(1, 10, 20, "retrying"), attempt(2, 60, 100, "failed")], at(200))
    assert found is not None
    assert [(run.number, run.x, run.width, run.css) for run in found.runs] == [(1, 10, 10, "no"), (2, 60, 40, "no")]
    assert [(wait.x1, wait.x2, wait.text) for wait in found.waits] == [(0, 10, ""), (20, 60, "waits 40 s")]
    assert found.summary == "created to end 1 min 40 s; ran 50 s of it"
    assert found.now is None
    assert found.sentence == (
        "Created at 02:44:00 UTC. Attempt 1 failed at 02:44:20 UTC after 10 s. "
        "Attempt 2 failed at 02:45:40 UTC after 40 s."
    )
    assert [tick.text for tick in found.ticks] == ["02:44:30", "02:45:00", "02:45:30"]


@pytest.mark.parametrize(
    ("outcome", "css"),
    [
        ("succeeded", "ok"),
        ("cancelled", "ok"),
        ("failed", "no"),
        ("retrying", "no"),
        ("crashed", "gone"),
        ("new", "ok"),
    ],
)
def test_an_end_has_its_own_look(outcome: str, css: str) -> None:
    found = timeline(job(), [attempt(1, 10, 100, outcome)], at(200))
    assert found is not None
    assert found.runs[0].css == css


def test_a_running_attempt_reaches_to_now() -> None:
    found = timeline(job("running", None), [attempt(1, 50, None, "running")], at(100))
    assert found is not None
    assert [(run.x, run.width, run.css) for run in found.runs] == [(50, 50, "go")]
    assert found.now == 100
    assert "Attempt 1 runs since 02:44:50 UTC" in found.sentence


def test_a_job_that_waits_for_its_next_attempt_is_drawn_until_that() -> None:
    found = timeline(job("pending", None, due=200), [attempt(1, 0, 50, "retrying")], at(100))
    assert found is not None
    assert found.now == 50
    assert [(wait.x1, wait.x2) for wait in found.waits] == [(25, 100)]
    far = timeline(job("pending", None, due=9e6), [attempt(1, 0, 50, "retrying")], at(100))
    assert far is not None
    assert far.now == 100  # nothing is squeezed for what is months away


def test_what_was_not_kept_is_left_out_and_said() -> None:
    found = timeline(job(), [attempt(1, None, None, None), attempt(2, None, 50, "retrying")], at(200))
    assert found is not None
    assert (len(found.runs), found.more) == (1, 1)
    assert found.runs[0].width == LEAST
    assert "Attempt 1 was not kept" in found.sentence
    assert "ran at least" in found.summary
    assert timeline(job("pending", None), [], at(1)) is None
    assert timeline(job(), [attempt(None, None, None, None)], at(1)) is None


def test_many_attempts_stay_within_the_picture() -> None:
    many = [attempt(number, number, number + 0.5, "retrying") for number in range(1, 500)]
    found = timeline(job(ended=500), many, at(10**7))
    assert found is not None
    assert len(found.runs) == MOST_SHOWN
    assert all(run.x >= 0 and run.x + run.width <= 100.01 for run in found.runs)
    assert len(found.sentence) < 1000
    assert len(found.ticks) <= 6


@pytest.mark.parametrize("whole", [0, 0.001, 1, 59, 3600, 90_000, 10**7, 10**9])
def test_any_span_has_a_few_round_ticks(whole: float) -> None:
    found = timeline(job(ended=whole), [attempt(1, 0, whole, "failed")], at(whole))
    assert found is not None
    assert len(found.ticks) <= 6
    assert all(0 <= tick.x <= 100 for tick in found.ticks)
