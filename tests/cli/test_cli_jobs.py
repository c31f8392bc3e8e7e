"""`treadle jobs`."""

import getpass

import pytest

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


@pytest.mark.covers("002-L1.a", "002-T1.m")
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


def test_the_table_in_a_pipe_has_whole_ids_and_one_line_a_job(store):
    ids = [job["id"] for job in store("jobs", "list", "--json").json["jobs"]]
    header, *lines = store("jobs", "list").out.splitlines()
    assert header.split() == ["id", "state", "task", "queue", "attempt", "created", "error"]
    assert [line.split()[0] for line in lines] == ids
    assert [line.split()[1] for line in lines] == ["scheduled", "dead", "succeeded"]
    assert lines[1].endswith("RuntimeError: no luck")


def test_show_tells_everything(store):
    job = only(store, "--state", "failed")
    shown = store("jobs", "show", job["id"])
    for words in ("dead (exhausted)", "boom", "tenant acme", "2 of 2 failures", "finished", '"text": "no\\nluck"',
                  "RuntimeError: no", "Traceback (most recent call last)", "history", "retrying"):  # fmt: skip
        assert words in shown.out
    machine = store("jobs", "show", job["id"], "--json").json
    assert machine["job"] == {**job, "label": machine["job"]["label"]}
    assert [event["what"] for event in machine["events"]] == ["retrying", "failed"]
    assert "lease_token" not in machine["job"]


@pytest.mark.covers("002-L1.b")
def test_retry_makes_a_failed_job_pending_and_names_who_did_it(store):
    id = only(store, "--state", "failed")["id"]
    assert store("jobs", "retry", id, "--reason", "the network is back").out == f"{id}  boom waits to be run again\n"
    assert only(store, "--task", "boom")["failures"] == 0
    event = store("jobs", "show", id, "--json").json["events"][-1]
    assert (event["what"], event["actor"], event["note"]) == ("retried", getpass.getuser(), "the network is back")
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
        "total": 3,
    }
    assert store("jobs", "count", "--queue", "mail", "--json").json["total"] == 1
    assert [line.split() for line in store("jobs", "count").out.splitlines()][-1] == ["total", "3"]


def test_looking_at_a_store_that_is_not_there_does_not_create_it(call, project):
    looked = call("jobs", "list", "--url", "sqlite:///nowhere.db")
    assert (looked.code, looked.out) == (1, "")
    assert "treadle migrate" in looked.err
    assert not (project / "nowhere.db").exists()


def test_nothing_in_a_job_reaches_the_terminal_raw(treadle, work, monkeypatch):
    import json

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
    monkeypatch.setenv("COLUMNS", "60")
    shown = store("jobs", "list").out
    assert all(id in shown for id in ids)
