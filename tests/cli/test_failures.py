"""`treadle failures`, and what an operator does next: list a kind, edit a payload, retry."""

import getpass
import re
import tomllib

import pytest

from treadle.app.settings import Settings


@pytest.fixture
def night(ready, work):
    """Two jobs that gave up alike, one that gave up otherwise, one that failed twice."""
    for number in (1, 2):
        ready("enqueue", "give_up", f'{{"text": "order {number} is gone"}}', "--tenant", "acme")
    ready("enqueue", "give_up", '{"text": "no \\u001b[31mred"}')
    ready("enqueue", "boom", '{"text": "no luck"}', "--lane", "slow")
    work()
    return ready


def test_failures_are_grouped_and_a_group_is_listed_and_retried(night):
    found = night("failures", "--json").json
    assert (found["failures"][0]["failed"], found["failures"][0]["message"]) == (2, "order 2 is gone")
    assert sorted(group["failed"] for group in found["failures"]) == [1, 1, 2]
    kind = found["failures"][0]["fingerprint"]
    shown = night("failures").out
    assert f"{kind}  2 failed  treadle.errors.GiveUp\n    order 2 is gone\n    task give_up" in shown
    assert "\x1b" not in shown
    assert len(night("jobs", "list", "--fingerprint", kind, "--json").json["jobs"]) == 2
    assert night("jobs", "retry", "--fingerprint", kind, "--yes").out == "retried 2 jobs\n"
    assert kind not in night("failures").out
    assert night("failures", "--task", "greet").out == "no failures\n"
    wrong = night("jobs", "list", "--fingerprint", "x")
    assert (wrong.code, "must be 12 hex digits" in wrong.err) == (2, True)


def test_jobs_are_listed_by_lane_and_text(night):
    [job] = night("jobs", "list", "--lane", "slow", "--json").json["jobs"]
    page = night("jobs", "list", "--text", "NO LUCK", "--json").json
    assert ([one["id"] for one in page["jobs"]], page["looked"]) == ([job["id"]], 4)
    assert night("jobs", "list", "--text", "nowhere").out == "no jobs\n"
    assert night("jobs", "count", "--lane", "slow", "--json").json["total"] == 1


def test_attempts_are_shown_by_themselves(night):
    [job] = night("jobs", "list", "--task", "boom", "--json").json["jobs"]
    attempts = night("jobs", "show", job["id"], "--json").json["attempts"]
    assert [(one["number"], one["outcome"], one["complete"]) for one in attempts] == [
        (1, "retrying", False), (2, "failed", True),
    ]  # fmt: skip
    shown = night("jobs", "show", job["id"]).out
    assert "   1 retrying   to " in shown
    [hint] = re.findall(r"; (\w+ = .+) in the settings does", shown)
    assert Settings.model_validate(tomllib.loads(hint)).audit == "everything"


def test_a_job_is_retried_and_edited_with_another_payload(night, work):
    [job] = night("jobs", "list", "--task", "boom", "--json").json["jobs"]
    revision = str(job["revision"])
    for words, problem in (
        (("--payload", "{"), "--payload: is no JSON"),
        (("--payload", '{"text": 3}'), "text: Input should be a valid string"),
        (("--payload", '{"text": "new"}', "--dry-run"), "--payload and --revision are of one job"),
    ):
        refused = night("jobs", "retry", job["id"], *words)
        assert (refused.code, problem in refused.err) == (2, True), refused.err
    stale = night("jobs", "retry", job["id"], "--payload", '{"text": "new"}', "--revision", "0")
    assert (stale.code, "has changed since" in stale.err) == (1, True)
    words = ("--payload", '{"text": "new"}', "--revision", revision, "--reason", "typo", "--json")
    assert night("jobs", "retry", job["id"], *words).json["job"]["payload"] == {"text": "new"}
    edited = night("jobs", "edit", job["id"], "--payload", '{"text": "newer"}', "--json").json["job"]
    assert (edited["payload"], edited["state"]) == ({"text": "newer"}, "pending")
    events = night("jobs", "show", job["id"], "--json").json["events"]
    assert [(event["kind"], event["actor"], event["note"]) for event in events][-2:] == [
        ("retried", getpass.getuser(), "payload edited: typo"), ("changed", getpass.getuser(), "payload edited"),
    ]  # fmt: skip
