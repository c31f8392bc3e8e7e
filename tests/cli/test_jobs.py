"""`treadle jobs`."""

import getpass
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from treadle.app.profile import Profile
from treadle.app.views import standing
from treadle.cli.jobs import _account, _attempts
from treadle.model import Job, Reason, State, new_id

EVIL = "\x1b]0;owned\x07\x1b[31mred \x9b2J [bold]x[/bold] [/nope] \u202etxt \u2028 \x7f"
RAW = ("\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\x7f", "\r")


@pytest.fixture
def store(treadle, work):
    """One job that succeeded, one that failed, one that waits."""
    treadle("enqueue", "greet", '{"name": "Ada"}')
    treadle("enqueue", "boom", '{"text": "no\\nluck"}', "--tenant", "acme")
    work()
    treadle("enqueue", "greet", '{"name": "Bob"}', "--run-after", "1h")
    return treadle


def only(store, *options: str) -> dict:
    [job] = store("jobs", "list", "--json", *options).json["jobs"]
    return job


def test_jobs_are_listed_filtered_and_limited(store):
    everything = store("jobs", "list", "--json").json
    assert [job["state"] for job in everything["jobs"]] == ["pending", "failed", "succeeded"]
    assert everything["cursor"] is None
    assert only(store, "--state", "failed")["task"] == "boom"
    assert only(store, "--task", "boom")["error"]["message"] == "no\nluck"
    assert only(store, "--queue", "mail")["task"] == "boom"
    assert only(store, "--tenant", "acme")["task"] == "boom"
    assert only(store, "--state", "succeeded")["result"] == "hello Ada"
    assert store("jobs", "list", "--task", "nobody").out == "no jobs\n"


def test_the_list_is_read_page_by_page(store):
    first = store("jobs", "list", "--limit", "2", "--json").json
    rest = store("jobs", "list", "--limit", "2", "--cursor", first["cursor"], "--json").json
    assert [len(first["jobs"]), len(rest["jobs"])] == [2, 1]
    assert not {job["id"] for job in first["jobs"]} & {job["id"] for job in rest["jobs"]}
    assert f"more: --cursor {first['cursor']}" in store("jobs", "list", "--limit", "2").out


def test_the_spellings_of_audit_are_understood_too(store):
    jobs = store("jobs", "list", "--json").json["jobs"]
    assert store("jobs", "list", "-n", "1", "--json").json["jobs"] == jobs[:1]
    last = jobs[0]["created_at"]  # the others have ended before it was stored
    assert store("jobs", "list", "--until", last, "--json").json["jobs"] == jobs[1:]
    assert store("jobs", "list", "--before", last, "--json").json["jobs"] == jobs[1:]
    assert store("jobs", "delete", "--until", last, "--dry-run", "--json").json["found"] == 2
    shown = store("jobs", "list", "--help").out
    assert "-n, --limit N" in shown
    assert "--before, --until TIME" in shown


def test_the_table_in_a_pipe_has_whole_ids_and_one_line_a_job(store):
    ids = [job["id"] for job in store("jobs", "list", "--json").json["jobs"]]
    header, *lines = store("jobs", "list").out.splitlines()
    assert header.split() == ["id", "state", "task", "queue", "attempts", "when", "took", "error"]
    assert [line.split()[0] for line in lines] == ids
    rows = [re.split(r" {2,}", line)[1:] for line in lines]
    assert [row[0] for row in rows] == ["scheduled", "failed (exhausted)", "succeeded"]
    assert [row[3] for row in rows] == ["0/5", "2/2", "1/5"]
    assert rows[0][4] == "in 59m"
    assert rows[2][4].endswith("s ago")
    assert re.fullmatch(r"\d+ms|\d+\.\ds", rows[2][5])
    assert lines[1].endswith("RuntimeError: no luck")


def test_show_tells_everything(store):
    job = only(store, "--state", "failed")
    shown = store("jobs", "show", job["id"])
    for words in ("failed (exhausted)", "boom", "tenant acme", "2 of 2, claimed 2 times", "took",
                  "finished", '"text": "no\\nluck"',
                  "RuntimeError: no", "Traceback (most recent call last)", "history", "retrying"):  # fmt: skip
        assert words in shown.out
    machine = store("jobs", "show", job["id"], "--json").json
    assert machine["job"] == {**job, "label": machine["job"]["label"]}
    assert [event["kind"] for event in machine["events"]] == ["retrying", "failed"]
    assert "lease_token" not in machine["job"]


@pytest.mark.covers("002-L1.b")
def test_retry_makes_a_failed_job_pending_and_names_who_did_it(store):
    id = only(store, "--state", "failed")["id"]
    assert store("jobs", "retry", id, "--reason", "the network is back").out == f"{id}  boom waits to be run again\n"
    assert only(store, "--task", "boom")["failures"] == 0
    event = store("jobs", "show", id, "--json").json["events"][-1]
    assert (event["kind"], event["actor"], event["note"]) == ("retried", getpass.getuser(), "the network is back")
    assert store("jobs", "retry", id).code == 1  # it waits already


def test_retry_can_keep_the_attempts(store):
    id = only(store, "--state", "failed")["id"]
    job = store("jobs", "retry", id, "--keep-attempts", "--json").json["job"]
    assert (job["state"], job["failures"]) == ("pending", 2)


@pytest.mark.covers("002-L1.c")
def test_cancel_cancels_a_waiting_job_once(store):
    id = only(store, "--state", "pending")["id"]
    cancelled = store("jobs", "cancel", id, "--reason", "typo", "--json").json["job"]
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "by_request")
    again = store("jobs", "cancel", id)
    assert (again.code, again.out) == (1, "")
    assert "already ended cancelled" in again.err


def test_count_names_every_state(store):
    counted = store("jobs", "count", "--json").json
    assert counted == {
        "counts": {"pending": 1, "running": 0, "succeeded": 1, "failed": 1, "cancelled": 0},
        "labels": {"scheduled": 1, "retrying": 0},
        "total": 3,
        "exact": True,
        "estimates": [],
    }
    assert store("jobs", "count", "--queue", "mail", "--json").json["total"] == 1
    said = [line.split() for line in store("jobs", "count").out.splitlines()]
    assert (said[:2], said[-1]) == ([["pending", "1"], ["scheduled", "1"]], ["total", "3"])


def test_a_count_of_too_many_pending_jobs_says_of_how_many_it_knows_that_they_are_scheduled(treadle, monkeypatch):
    monkeypatch.setattr("treadle.app.queries.MOST_COUNTED", 2)
    for _ in range(3):
        treadle("enqueue", "greet", '{"name": "Bob"}', "--run-after", "1h")
    said = [line.split() for line in treadle("jobs", "count").out.splitlines()]
    assert said[:2] == [["pending", "2", "estimate"], ["scheduled", "2+"]]


def test_looking_at_a_store_that_is_not_there_does_not_create_it(call, project):
    looked = call("jobs", "list", "--url", "sqlite:///nowhere.db")
    assert (looked.code, looked.out) == (1, "")
    assert looked.err == (
        f"error: there is no {project}/nowhere.db. Wrong directory? Give --url or set TREADLE_URL; "
        "`treadle migrate` makes a new one\n"
    )
    assert not (project / "nowhere.db").exists()


def test_nothing_in_a_job_reaches_the_terminal_raw(treadle, work, monkeypatch):
    treadle("enqueue", "whatever", json.dumps({EVIL.strip(): EVIL}), "--key", "[red]k[/red]")
    treadle("enqueue", "give_up", json.dumps({"text": EVIL}))
    work()
    ids = [job["id"] for job in treadle("jobs", "list", "--json").json["jobs"]]
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("NO_COLOR", "1")  # so that no escape code is our own
        outputs = [treadle("jobs", "list"), *(treadle("jobs", "show", id) for id in ids)]
        for output in outputs:
            assert output.code == 0
            assert not [raw for raw in RAW if raw in output.out.replace("\x1b[2m", "").replace("\x1b[0m", "")]
        assert "[bold]x[/bold] [/nope]" in "".join(output.out for output in outputs)
    for id in ids:
        assert not [raw for raw in RAW if raw in treadle("jobs", "show", id, "--json").out]


def test_colours_are_for_terminals_and_no_color_is_obeyed(store, monkeypatch):
    assert "\x1b[" not in store("jobs", "list").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in store("jobs", "list").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in store("jobs", "list").out


def test_a_narrow_terminal_still_shows_whole_ids(store, monkeypatch):
    ids = [job["id"] for job in store("jobs", "list", "--json").json["jobs"]]
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns in ("60", "40", "30"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = store("jobs", "list").out
        assert all(id in shown for id in ids)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_in_a_terminal_every_line_fits_and_no_word_is_broken(treadle, work, monkeypatch, columns):
    treadle("enqueue", "boom", json.dumps({"text": "no luck with\nthe server " * 20}))
    work()
    treadle("enqueue", "greet", '{"name": "Ada"}', "--run-after", "10m", "--queue", "a_queue_of_a_long_name")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", treadle("jobs", "list").out).splitlines()
    assert all(len(line) <= columns for line in lines)
    narrow = columns < 110
    header = "id state task attempts when" if narrow else "id state task queue attempts when took error"
    assert lines[0].split() == header.split()
    assert len(lines) == (4 if narrow else 3)  # a narrow list has the error below its job
    assert lines[1].split()[1:3] == ["scheduled", "greet"]
    assert "in 9m" in lines[1]
    assert lines[2].split()[1] == "failed"
    assert "RuntimeError: " in lines[-1]
    assert lines[-1].endswith("…")


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": State.FAILED, "reason": Reason.CRASHED}, "failed (crashed)"),
        ({"state": State.CANCELLED, "reason": Reason.EXPIRED}, "cancelled (expired)"),
        ({"state": State.SUCCEEDED}, "succeeded"),
        ({"failures": 1}, "retrying"),
        ({"due_at": NOW + timedelta(hours=1)}, "scheduled"),
        ({"state": State.RUNNING}, "claimed"),
    ],
)
def test_a_final_state_is_said_in_the_words_that_state_knows(fields, said):
    assert standing(Job(new_id(), "t", "{}", NOW, NOW).evolve(**fields), NOW, Profile()) == said


def test_the_help_of_list_explains_the_states(call):
    said = " ".join(call("jobs", "list", "--help").out.split())
    for word in (*State, "scheduled", "retrying", "claimed", '"attempts"', '"took"', '"when"'):
        assert word in said


def test_what_a_job_has_spent_is_said_rightly():
    job = Job(new_id(), "t", "{}", NOW, NOW, attempt=4, failures=1, crashes=1, lease_until=NOW)
    assert _attempts(job) == "1/5"  # a snooze is an attempt that spends nothing
    lines = [line.plain for line in _account(job, [], NOW, Profile())]
    assert "  attempts    1 of 5, claimed 4 times, 1 crash" in lines
    assert "  lease ends  2026-01-01 00:00:00 UTC  0s ago" in lines
    twice = _account(job.evolve(crashes=2), [], NOW, Profile())
    assert any(line.plain.endswith("2 crashes") for line in twice)


def test_an_id_may_be_written_as_people_write_uuids(store):
    id = only(store, "--state", "failed")["id"]
    for written in (id.upper(), id.replace("-", "")):
        assert store("jobs", "show", written, "--json").json["job"]["id"] == id
