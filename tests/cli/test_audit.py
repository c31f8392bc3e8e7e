"""`treadle audit`, `audit verify` and `prune`."""

import getpass
import json
import re
import sqlite3

import pytest

from treadle import Treadle

STORE = "sqlite:///treadle.db"
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def busy(ready, work):
    """A job of acme's that failed, a queue that was paused, a schedule that was made."""
    ready("enqueue", "give_up", '{"text": "no\\nluck"}', "--tenant", "acme")
    work()
    ready("pause", "--queue", "mail", "--reason", "outage")
    ready("schedules", "create", "often", "--task", "whatever", "--every", "1m")
    return ready


def seal() -> None:
    """Seal what is not sealed, as a worker would a minute later."""
    app = Treadle(STORE)
    app.seal_audit()
    app.close()


def tampered(statement: str) -> None:
    with sqlite3.connect("treadle.db") as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


# ------------------------------------------------------------------------------------------------ the list


def test_the_latest_lines_are_listed_newest_first(busy):
    header, *rows = [re.split(r" {2,}", line) for line in busy("audit").out.splitlines()]
    assert header == ["at", "kind", "by", "tenant", "job", "note"]
    me = getpass.getuser()
    assert [row[1:] for row in rows[:2]] == [
        ["created", me, "default", "schedule often"],
        ["paused", me, "*", "queue mail: outage"],
    ]
    assert rows[2][1:4] == ["failed", "testing", "acme"]
    assert ID.fullmatch(rows[2][4])
    assert rows[2][5] == "no luck"


def test_lines_are_limited_and_filtered_and_have_stable_names_in_json(busy):
    events = busy("audit", "--json").json["events"]
    assert [event["kind"] for event in events] == ["created", "paused", "failed"]
    assert events[2].keys() == {"job", "tenant", "revision", "at", "kind", "actor", "note"}
    assert busy("audit", "-n", "1", "--json").json["events"] == events[:1]
    assert busy("audit", "--tenant", "acme", "--json").json["events"] == events[2:]
    assert busy("audit", "--by-hand", "--json").json["events"] == events[:2]
    assert busy("audit", "--tenant", "nobody").out == "no audit events\n"
    seal()
    assert busy("audit", "--json").json["events"] == events  # sealed or not


def test_the_spellings_of_jobs_list_are_understood_too(busy):
    events = busy("audit", "--json").json["events"]
    assert busy("audit", "--limit", "1", "--json").json["events"] == events[:1]
    assert busy("audit", "--before", events[0]["at"], "--json").json["events"] == events[1:]
    assert busy("audit", "--until", events[0]["at"], "--json").json["events"] == events[1:]
    shown = busy("audit", "--help").out
    assert "-n, --limit N" in shown
    assert "--until, --before TIME" in shown


def test_a_mistyped_kind_is_answered_with_the_nearest_ones(busy):
    for typed, hint in {
        "retryed": "did you mean retried or created?",
        "retry": "did you mean retrying or retried?",
        "DELETE": "did you mean deleted?",
        "banana": "the kinds: enqueued, claimed, succeeded,",
        "": "the kinds: enqueued, claimed, succeeded,",
        "\x1b[31m": "the kinds: enqueued, claimed, succeeded,",
    }.items():
        answer = busy("audit", "--kind", typed)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("no audit events; --kind: ")
        assert f"is not a known kind; {hint}" in answer.out
        assert "\x1b" not in answer.out
        assert busy("audit", "--kind", typed, "--json").json == {"events": [], "cursor": None}
    assert busy("audit", "--kind", "resumed").out == "no audit events\n"  # known, only nobody did it


def test_the_words_of_the_app_itself_are_known_kinds(busy, project):
    own = "@app.task(audit={'failed': 'MAIL_LOST', 'exhausted': 'MAIL_GIVEN_UP'})\ndef mail(): ...\n"
    (project / "tasks.py").write_text((project / "tasks.py").read_text() + own)
    assert busy("audit", "--kind", "MAIL_LOST").out == "no audit events\n"
    answer = busy("audit", "--kind", "mail_givenup").out
    assert "'mail_givenup' is not a known kind; did you mean MAIL_GIVEN_UP?" in answer


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal_every_line_fits_and_ids_are_whole(ready, work, monkeypatch, columns):
    ready("enqueue", "give_up", json.dumps({"text": "no luck with the server " * 20}))
    work()
    ready("pause", "--queue", "mail", "--reason", "the mail server is being mended; " * 9)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ready("audit").out).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert len(lines) == (4 if columns < 110 else 3)  # a narrow list has a job and its note below
    assert ID.search(lines[-1])
    assert all(line.endswith("…") for line in (lines[1], lines[-1]))


def test_nothing_in_a_line_reaches_the_terminal_raw(ready):
    ready("pause", "--queue", "mail", "--reason", "\x1b[31m\x07\u202e\x9b")
    for words in (("audit",), ("audit", "--json"), ("pauses",), ("pauses", "--json")):
        assert not set("\x1b\x07\u202e\x9b") & set(ready(*words).out)


# ------------------------------------------------------------------------------------------------ verify


def test_verify_counts_what_is_sealed_and_what_is_not_yet(busy):
    assert busy("audit", "verify").out == "nothing is sealed yet; 3 events are waiting for a worker to do it\n"
    seal()
    busy("resume", "--queue", "mail")
    answer = busy("audit", "verify")
    assert answer.code == 0
    header, *rows, end = answer.out.splitlines()
    assert re.split(r" {2,}", header) == ["tenant", "seals", "events", "pruned", "problems", "last hash"]
    assert [row.split()[:5] for row in rows] == [
        [tenant, "1", "1", "0", "0"] for tenant in ("*", "acme", "default")
    ]  # fmt: skip
    assert all(re.fullmatch("[0-9a-f]{64}", row.split()[5]) for row in rows)
    assert end == "✓ sound; 1 event is not sealed yet"
    machine = busy("audit", "verify", "--json").json
    assert (machine["sound"], machine["unsealed"]) == (True, 1)
    assert machine["tenants"][1] == {
        "tenant": "acme", "seals": 1, "events": 1, "pruned": 0, "early": 0, "problems": [], "hash": rows[1].split()[5]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("update treadle_events set note = 'nothing' where kind = 'failed'", "seal 1: an event was edited or moved"),
        ("update treadle_events set actor = 'eve' where kind = 'failed'", "seal 1: an event was edited or moved"),
        ("delete from treadle_events where kind = 'failed'", "seal 1: 1 of its 1 events are gone"),
        ("update treadle_seals set digest = 'x' where tenant = 'acme'", "seal 1 was edited"),
    ],
    ids=["edited", "another actor", "removed", "another seal"],
)
def test_verify_names_what_was_tampered_with_and_exits_with_1(busy, statement, problem):
    seal()
    tampered(statement)
    answer = busy("audit", "verify")
    assert (answer.code, answer.err) == (1, "")
    assert f"✗ tenant acme: {problem}" in answer.out.splitlines()
    assert answer.out.splitlines()[-1] == "✗ not sound; every event is sealed"
    machine = busy("audit", "verify", "--json")
    assert machine.code == 1
    assert problem in machine.json["tenants"][1]["problems"]
    assert busy("audit", "verify", "--tenant", "acme").code == 1
    assert busy("audit", "verify", "--tenant", "default").code == 0


def test_verify_of_a_tenant_without_a_single_line_is_an_error(busy):
    answer = busy("audit", "verify", "--tenant", "amce")
    assert (answer.code, answer.out) == (1, "")
    assert "tenant 'amce' has no audit events, sealed or not: there is nothing to verify" in answer.err
    assert busy("audit", "verify", "--tenant", "acme").code == 0  # not sealed yet


def test_verify_says_if_lines_went_sooner_than_they_would_now(busy, monkeypatch):
    seal()
    monkeypatch.setenv("TREADLE_KEEP_AUDIT", "0")
    busy("prune")
    assert busy("audit", "verify").out.count("sooner") == 0
    monkeypatch.setenv("TREADLE_KEEP_AUDIT", "90d")
    answer = busy("audit", "verify", "--tenant", "acme")
    assert answer.code == 0  # it may have been an older setting
    assert [line.split()[:5] for line in answer.out.splitlines()[1:2]] == [["acme", "1", "0", "1", "0"]]
    assert "! tenant acme: 1 of the pruned seals went sooner than keep_audit says now" in answer.out.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal_the_last_hash_is_whole(busy, monkeypatch, columns):
    seal()
    hashes = [tenant["hash"] for tenant in busy("audit", "verify", "--json").json["tenants"]]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", busy("audit", "verify").out).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert all(any(line.endswith(hash) for line in lines) for hash in hashes)


# ------------------------------------------------------------------------------------------------- prune


def test_prune_deletes_what_is_past_its_retention_and_says_how_many(ready, work, monkeypatch):
    for _ in range(3):
        ready("enqueue", "greet", '{"name": "Ada"}')
    ready("enqueue", "give_up", '{"text": "x"}')
    work()
    assert ready("prune").out == (
        "deleted 0 jobs; kept are: succeeded 7d, cancelled 7d, failed 30d, audit events 90d\n"
    )
    monkeypatch.setenv("TREADLE_KEEP_SUCCEEDED", "0")
    monkeypatch.setenv("TREADLE_KEEP_FAILED", "forever")
    monkeypatch.setenv("TREADLE_KEEP_TASKS", '{"greet": {"failed": "12h"}}')
    assert ready("prune", "--json").json == {
        "deleted": 3,
        "keep": {
            "succeeded": 0, "cancelled": 604800, "failed": None, "greet failed": 43200, "audit events": 7776000,
        },
    }  # fmt: skip
    assert ready("jobs", "count", "--json").json["counts"]["failed"] == 1
    assert "failed for ever, greet failed 12h" in ready("prune").out


def test_prune_heeds_what_the_app_says_is_kept_also_with_a_url(ready, work, project, monkeypatch):
    (project / "keeping.py").write_text("from treadle import Treadle\napp = Treadle(keep_succeeded='forever')\n")
    ready("enqueue", "greet", '{"name": "Ada"}')
    work()
    monkeypatch.setenv("TREADLE_APP", "keeping:app")
    monkeypatch.setenv("TREADLE_KEEP_SUCCEEDED", "0")
    assert ready("prune", "--url", STORE, "--json").json["deleted"] == 0
    assert ready("prune", "--json").json["deleted"] == 0
    monkeypatch.setenv("TREADLE_APP", "tasks:app")
    assert ready("prune").out.startswith("deleted 1 job; kept are: succeeded 0s, ")
    monkeypatch.delenv("TREADLE_APP")
    unknown = ready("prune", "--url", STORE)
    assert (unknown.code, unknown.out) == (2, "")
    assert "which app? Give --app module:name" in unknown.err


def test_lines_are_sealed_on_request(busy):
    assert busy("audit", "seal").out == "sealed 3 events\n"
    assert busy("audit", "seal", "--json").json == {"sealed": 0}


def test_a_store_without_walls_of_its_own_says_so(ready):
    said = ready("rls", "--worker-role", "worker", "--app-role", "web")
    assert said.code == 1
    assert "only PostgreSQL has row-level security" in said.err


def test_walls_are_printed_without_a_server(call):
    nowhere = ("--url", "postgresql://nobody@127.0.0.1:1/shop", "--worker-role", "worker", "--app-role", "web")
    said = call("rls", "--sql", *nowhere)
    assert (said.code, said.err) == (0, "")
    assert "force row level security" in said.out
    assert "to worker using (true)" in said.out
