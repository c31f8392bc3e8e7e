"""`treadle enqueue`."""

import io
import json

import pytest

from treadle.model import new_id


def test_a_job_is_stored_and_its_id_is_printed(treadle):
    stored = treadle("enqueue", "greet", '{"name": "Ada"}')
    assert (stored.code, stored.err) == (0, "")
    id, words = stored.out.split("  ")
    assert words == "created: greet on queue default\n"
    assert treadle("jobs", "show", id, "--json").json["job"]["payload"] == {"name": "Ada"}


def test_every_option_reaches_the_job(treadle):
    id = new_id()
    stored = treadle(
        "enqueue", "boom", '{"text": "x"}', "--run-after", "2h", "--priority", "-7", "--queue", "slow", "--lane", "l1",
        "--tenant", "acme", "--key", "k", "--unique", "window=1d", "--expires", "2099-01-31T12:00:00+01:00",
        "--max-attempts", "9", "--id", id.upper(), "--json",
    ).json  # fmt: skip
    job = stored["job"]
    assert stored["id"] == job["id"] == id
    assert stored["outcome"] == "created"
    assert stored["created"] is True
    assert (job["priority"], job["queue"], job["lane"], job["tenant"]) == (-7, "slow", "l1", "acme")
    assert (job["key"], job["key_scope"], job["max_attempts"]) == ("k", "window", 9)
    assert job["expires_at"] == "2099-01-31T11:00:00+00:00"
    assert job["label"] == "scheduled"
    assert job["retry"]["base"] == 0  # the rest of the task's own policy stays


def test_the_same_id_twice_is_one_job_and_says_so(treadle):
    id = new_id()
    first = treadle("enqueue", "greet", '{"name": "Ada"}', "--id", id, "--json").json
    again = treadle("enqueue", "greet", '{"name": "Ada"}', "--id", id, "--json").json
    assert (first["outcome"], again["outcome"], again["created"]) == ("created", "existed", False)
    assert first["id"] == again["id"] == id
    assert "existed already" in treadle("enqueue", "greet", '{"name": "Ada"}', "--id", id).out


def test_a_taken_key_answers_with_its_holder_replaces_it_or_fails_as_asked(treadle):
    first = treadle("enqueue", "greet", '{"name": "Ada"}', "--key", "k", "--json").json
    second = treadle("enqueue", "greet", '{"name": "Bob"}', "--key", "k", "--json").json
    assert (second["id"], second["outcome"]) == (first["id"], "existed")
    third = treadle("enqueue", "greet", '{"name": "Cy"}', "--key", "k", "--on-conflict", "replace", "--json").json
    assert (third["id"], third["outcome"], third["job"]["payload"]) == (first["id"], "replaced", {"name": "Cy"})
    refused = treadle("enqueue", "greet", '{"name": "Di"}', "--key", "k", "--on-conflict", "raise")
    assert refused.code == 1
    assert first["id"] in refused.err


def test_an_unchecked_job_needs_no_app(call):
    stored = call("enqueue", "unheard_of", '{"a": 1}', "--unchecked", "--url", "sqlite:///other.db", "--json")
    assert stored.code == 0
    assert stored.json["job"]["task"] == "unheard_of"


def test_a_dash_reads_the_payload_from_stdin(treadle, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "Ada"}'))
    assert treadle("enqueue", "greet", "-", "--json").json["job"]["payload"] == {"name": "Ada"}


@pytest.mark.covers("002-L3.a")
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"name": ', "line 1, column 10"),
        ('{"name":\n "Ada"\n, 1}', "line 3, column 3"),
        ("", "line 1, column 1"),
        ("[1, 2]", "not an array"),
        ('"Ada"', "not a string"),
        ("null", "not null"),
        ("7", "not a number"),
        ("true", "not true or false"),
        ("NaN", "NaN is not a value of JSON"),
        ('{"name": Infinity}', "Infinity is not a value of JSON"),
        ('{"name": "a", "name": "b"}', "names 'name' twice"),
        ('{"name": %s}' % ("[" * 100_000 + "]" * 100_000), "nested too deeply"),
        ('{"name": %s}' % ("9" * 5000), "is no JSON"),
    ],
)
def test_a_payload_that_is_no_json_object_is_refused_before_a_store_is_touched(call, project, payload, said):
    first = call("enqueue", "greet", payload, "--app", "nowhere:app")  # not even the app is looked for
    again = call("enqueue", "greet", payload, "--app", "nowhere:app")
    assert first == again
    assert (first.code, first.out) == (2, "")
    assert first.err.startswith("error: payload: ")
    assert said in first.err
    assert len(first.err.splitlines()) == 1
    assert not (project / "treadle.db").exists()


def test_who_writes_no_json_is_shown_an_object(treadle):
    refused = treadle("enqueue", "greet", "Ada")
    assert refused.code == 2
    assert refused.err.endswith("""; write an object such as '{"name": "Ada"}'\n""")


def test_the_error_is_json_on_stderr_when_json_was_asked_for(treadle):
    refused = treadle("enqueue", "greet", '{"nam": "Ada"}', "--json")
    assert (refused.code, refused.out) == (2, "")
    error = json.loads(refused.err)["error"]
    assert error["type"] == "InvalidPayload"
    assert "name: Field required" in error["message"]
