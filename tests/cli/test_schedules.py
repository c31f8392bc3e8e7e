"""`treadle schedules`: rows that make jobs, from making one to deleting it."""

import getpass
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from treadle import Treadle
from treadle.model import new_id
from treadle.model.records import Schedule

GREET = ("--task", "greet", "--payload", '{"name": "Ada"}')
BERLIN = ("--cron", "30 2 * * MON-FRI", "--tz", "Europe/Berlin")
CREATE = ("schedules", "create")
STORE = "sqlite:///treadle.db"


@pytest.fixture
def nightly(ready):
    """A store with one schedule, nightly, that greets Ada in Berlin."""
    assert ready(*CREATE, "nightly", *GREET, *BERLIN).code == 0
    return ready


def only(treadle, *options: str) -> dict:
    [schedule] = treadle("schedules", "list", "--json", *options).json["schedules"]
    return schedule


def trail(treadle) -> list[tuple[str, str, str]]:
    """What was done, oldest first: what, by whom, and the note."""
    events = treadle("audit", "--json").json["events"]
    return [(event["kind"], event["actor"], event["note"]) for event in reversed(events)]


def fired(name: str, tenant: str = "default", **ago: float) -> str:
    """Let a schedule have made a job so long ago; the job's id."""
    app, job = Treadle(STORE), new_id()
    schedule = app.schedules.get(name, tenant=tenant)
    last = app.engine.now() - timedelta(**ago)
    app.engine.save(schedule.evolve(last_at=last, last_job=job, revision=schedule.revision + 1), before=schedule)
    app.close()
    return job


# ------------------------------------------------------------------------------------------------ making


@pytest.mark.covers("002-L2.b")
def test_create_takes_name_task_cron_zone_payload_and_enabled(ready):
    made = ready(*CREATE, "nightly", *GREET, *BERLIN, "--enabled", "false", "--json").json["schedule"]
    assert made == only(ready)
    assert (made["name"], made["task"], made["payload"]) == ("nightly", "greet", {"name": "Ada"})
    assert (made["cron"], made["timezone"], made["every"]) == ("30 2 * * MON-FRI", "Europe/Berlin", None)
    assert (made["enabled"], made["tenant"], made["declared"]) == (False, "default", False)


@pytest.mark.covers("002-L2.b")
def test_create_takes_the_spellings_of_seed_002_too(ready):
    words = ("--name", "nightly", "--job-type", "greet", "--cron", "30 2 * * *", "--timezone", "Asia/Tokyo")
    made = ready(*CREATE, *words, "--payload", '{"name": "Ada"}', "--enabled", "TRUE", "--json").json["schedule"]
    assert (made["name"], made["task"], made["timezone"], made["enabled"]) == ("nightly", "greet", "Asia/Tokyo", True)


def test_create_takes_everything_else_that_may_be_said_of_a_schedule(ready):
    words = ("--every", "15m", "--queue", "mail", "--lane", "l", "--priority", "-5", "--max-attempts", "7", "--timeout",
             "5m", "--misfire", "all", "--misfire-limit", "9", "--misfire-age", "2h", "--overlap", "queue_one",
             "--jitter", "30s", "--for-each", "users", "--tenant", "acme")  # fmt: skip
    made = ready(*CREATE, "often", "--task", "greet", *words, "--json").json["schedule"]
    said = {
        "every": 900.0, "queue": "mail", "lane": "l", "priority": -5, "max_attempts": 7, "timeout": 300.0,
        "misfire": "all", "misfire_limit": 9, "misfire_age": 7200.0, "overlap": "queue_one", "jitter": 30.0,
        "for_each": "users", "tenant": "acme", "cron": None, "timezone": "UTC",
    }  # fmt: skip
    assert {name: made[name] for name in said} == said


def test_what_follows_the_jobs_of_a_schedule_has_names_in_json(ready, project):
    more = "\n\n@app.task(on_failed='whatever')\ndef followed() -> None: ...\n"
    (project / "tasks.py").write_text((project / "tasks.py").read_text() + more)
    ready(*CREATE, "a", "--task", "followed", "--every", "1m")
    follow = only(ready)["on_end"]
    assert (follow["succeeded"], follow["failed"]["task"]) == (None, "whatever")
    assert follow["failed"]["retry"]["max_attempts"] == 5


def test_what_is_not_said_comes_from_the_task(ready):
    made = ready(*CREATE, "b", "--task", "boom", "--payload", '{"text": "x"}', "--every", "1d", "--json").json
    assert (made["schedule"]["queue"], made["schedule"]["max_attempts"]) == ("mail", 2)


def test_create_says_when_it_runs_next_and_whether_it_is_off(ready):
    said = ready(*CREATE, "nightly", *GREET, *BERLIN).out
    due = r"next \d{4}-\d\d-\d\d 0[01]:30:00 UTC, in \d+[dhms]"
    assert re.fullmatch(rf"nightly  created: greet, 30 2 \* \* MON-FRI Europe/Berlin; {due}\n", said)
    off = ready(*CREATE, "often", *GREET, "--every", "90m", "--enabled", "false").out
    assert off == "often  created: greet, every 1h30m, off\n"


def test_a_payload_may_come_from_stdin(ready, spawn):
    done = spawn(*CREATE, "a", "--task", "greet", "--every", "1m", "--payload", "-", stdin='{"name": "Ada"}')
    assert done.code == 0
    assert only(ready)["payload"] == {"name": "Ada"}


def test_a_name_is_taken_once_in_each_tenant(nightly):
    again = nightly(*CREATE, "nightly", *GREET, "--every", "1m")
    assert (again.code, again.out) == (1, "")
    assert "there is a schedule 'nightly' already" in again.err
    assert nightly(*CREATE, "nightly", *GREET, "--every", "1m", "--tenant", "acme").code == 0
    assert only(nightly, "--tenant", "acme")["every"] == 60.0


def test_unchecked_needs_no_app_and_makes_a_schedule_of_a_task_that_is_known_elsewhere(call, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", STORE)
    made = call(
        *CREATE, "a", "--task", "elsewhere", "--every", "1m", "--payload", '{"any": 1}', "--unchecked", "--json"
    )
    assert made.json["schedule"]["task"] == "elsewhere"
    checked = call(*CREATE, "b", "--task", "elsewhere", "--every", "1m")
    assert (checked.code, checked.out) == (2, "")
    assert "which app?" in checked.err


# ------------------------------------------------------------------------------- refused before anything


@pytest.fixture
def sealed_off(call, project, monkeypatch):
    """`call`, where an app that is imported and a store that is opened would both be errors of another kind."""
    (project / "broken.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("TREADLE_APP", "broken:app")
    monkeypatch.setenv("TREADLE_URL", "sqlite:////nowhere/at/all.db")
    monkeypatch.setattr("treadle.app.store.connect", lambda *_, **__: pytest.fail("a store was opened"))
    return call


COMMANDS = [(*CREATE, "a", "--task", "greet", "--every", "1m"), ("schedules", "update", "a")]


@pytest.mark.covers("002-L3.a")
@pytest.mark.parametrize("command", COMMANDS, ids=["create", "update"])
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ("{name: Ada}", "--payload: is no JSON: Expecting property name enclosed in double quotes at line 1, column 2; "
         """write an object such as '{"name": "Ada"}'"""),
        ("", "--payload: is no JSON: Expecting value at line 1, column 1; write an object such as"),
        ("[1]", '--payload: must be a JSON object such as {"name": "Ada"}, not an array'),
        ("NaN", "--payload: is no JSON: NaN is not a value of JSON"),
        ('{"a": 1, "a": 2}', "--payload: names 'a' twice"),
    ],
)  # fmt: skip
def test_a_payload_that_is_no_json_is_refused_the_same_every_time_and_nothing_is_opened(
    sealed_off, command, payload, said
):
    first, again = (sealed_off(*command, "--payload", payload) for _ in range(2))
    assert first == again
    assert (first.code, first.out) == (2, "")
    assert said in first.err


@pytest.mark.covers("002-L3.b")
@pytest.mark.parametrize("command", COMMANDS, ids=["create", "update"])
@pytest.mark.parametrize("word", ["yes", "1", "", "truee", "null"])
def test_an_enabled_that_is_neither_true_nor_false_is_refused_likewise(sealed_off, command, word):
    first, again = (sealed_off(*command, "--enabled", word) for _ in range(2))
    assert first == again
    assert (first.code, first.out) == (2, "")
    assert first.err == f"error: --enabled: {word!r} is neither true nor false; write --enabled false\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--cron", "61 * * * *"),
        ("--tz", "Mars/Olympus"),
        ("--jitter", "soon"),
        ("--misfire", "odd"),
        ("--priority", "x"),
    ],
    ids=lambda words: words[0],
)
def test_whatever_can_be_refused_without_a_store_is(sealed_off, words):
    answer = sealed_off("schedules", "update", "a", *words)
    assert (answer.code, answer.out) == (2, "")
    assert words[0].strip("-").replace("tz", "timezone") in answer.err


# ----------------------------------------------------------------------------------------------- listing


@pytest.mark.covers("002-L2.a")
def test_schedules_are_listed_as_a_table_and_as_json(nightly):
    nightly(*CREATE, "often", *GREET, "--every", "15m", "--enabled", "false")
    job = fired("nightly", hours=5)
    header, *rows = [re.split(r" {2,}", line) for line in nightly("schedules", "list").out.splitlines()]
    assert header == ["name", "task", "when", "state", "last", "next", "last job"]
    assert rows[0][:5] == ["nightly", "greet", "30 2 * * MON-FRI Europe/Berlin", "on", "5h ago"]
    assert rows[0][5].startswith("in ")
    assert rows[0][6] == job
    assert rows[1] == ["often", "greet", "every 15m", "off"]  # what is off has no next run
    listed = nightly("schedules", "list", "--json").json["schedules"]
    assert [schedule["name"] for schedule in listed] == ["nightly", "often"]
    assert listed[0]["last_job"] == job
    assert listed[0].keys() == {"id", "gone", "declared_in", *Schedule._fields} - {"own_id"}
    assert datetime.fromisoformat(listed[0]["next_at"]) > datetime.now(UTC)


def test_a_list_names_the_tenants_where_there_is_more_than_our_own(nightly):
    nightly(*CREATE, "often", *GREET, "--every", "15m", "--tenant", "acme")
    rows = [re.split(r" {2,}", line)[:2] for line in nightly("schedules", "list").out.splitlines()]
    assert rows == [["tenant", "name"], ["acme", "often"], ["default", "nightly"]]
    assert only(nightly, "--tenant", "acme")["name"] == "often"


def test_where_there_is_none_the_list_says_how_to_make_one(ready):
    assert ready("schedules", "list").out.startswith("no schedules; `treadle schedules create` makes one")
    assert ready("schedules", "list", "--tenant", "acme").out.startswith("no schedules of tenant acme; ")
    assert ready("schedules", "list", "--json").json == {"schedules": [], "cursor": None}


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal_every_line_of_the_list_fits_and_ids_are_whole(nightly, monkeypatch, columns):
    nightly(*CREATE, "a_schedule_of_a_rather_long_name", *GREET, "--cron", "*/15 8-18 * * MON-FRI", "--tz",
            "America/Argentina/Buenos_Aires", "--tenant", "acme")  # fmt: skip
    job = fired("a_schedule_of_a_rather_long_name", "acme", minutes=3)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", nightly("schedules", "list").out).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert len(lines) == (5 if columns < 110 else 3)  # a narrow list has task and job below
    assert sum(job in line for line in lines) == 1
    assert sum("greet" in line for line in lines) == 2
    assert "3m ago" in lines[1]


def test_nothing_in_a_schedule_reaches_the_terminal_raw(ready):
    app = Treadle(STORE)
    moment = app.engine.now()
    evil = Schedule("a\x1b[31m", "b\u202e", moment, "c\x07", cron="d\x9b", timezone="e\x7f", next_at=moment)
    app.engine.save(evil.evolve(last_job="f\x1b"), before=None)
    app.close()
    name = ("a\x1b[31m", "--tenant", "c\x07")
    for words in (("list",), ("list", "--json"), ("show", *name), ("show", *name, "--json"), ("delete", *name)):
        answer = ready("schedules", *words)
        assert answer.code == 0
        assert not set("\x1b\u202e\x07\x9b\x7f") & set(answer.out)


# ---------------------------------------------------------------------------------------------- changing


@pytest.mark.covers("002-L2.c")
def test_update_changes_what_is_said_and_leaves_the_rest(nightly):
    before = only(nightly)
    words = ("--every", "15m", "--payload", '{"name": "Bob"}', "--priority", "3", "--reason", "more often")
    assert nightly("schedules", "update", "nightly", *words).out.startswith("nightly  changed: greet, every 15m; next ")
    after = only(nightly)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"every", "cron", "payload", "priority", "next_at", "updated_at", "revision"}
    assert (after["every"], after["cron"], after["payload"]) == (900.0, None, {"name": "Bob"})
    assert trail(nightly)[-1] == ("changed", getpass.getuser(), "schedule nightly: more often")


def test_update_checks_a_payload_against_the_task_unless_no_app_is_asked(nightly):
    wrong = ("schedules", "update", "nightly", "--payload", '{"nam": 1}')
    refused = nightly(*wrong)
    assert (refused.code, refused.out) == (2, "")
    assert "does not fit task greet(name: str)" in refused.err
    unasked = nightly(*wrong, "--unchecked", "--url", STORE, "--json")
    assert unasked.json["schedule"]["payload"] == {"nam": 1}  # who can open the database may read it
    assert '"nam": 1' in nightly("schedules", "show", "nightly", "--json").out


def test_what_does_not_concern_the_task_is_changed_without_an_app(nightly, monkeypatch):
    monkeypatch.delenv("TREADLE_APP")
    done = nightly("schedules", "update", "nightly", "--cron", "@daily", "--url", STORE, "--json")
    assert done.json["schedule"]["cron"] == "@daily"
    assert "which app?" in nightly("schedules", "update", "nightly", "--payload", "{}", "--url", STORE).err


@pytest.mark.covers("002-L2.c")
def test_disable_and_enable_switch_a_schedule_and_say_who_did_it(nightly):
    assert nightly("schedules", "disable", "nightly", "--reason", "too slow").out == (
        "nightly  is off: it makes no more jobs\n"
    )
    assert only(nightly)["enabled"] is False
    assert nightly("schedules", "enable", "nightly").out.startswith("nightly  is on: greet, 30 2 * * MON-FRI")
    assert only(nightly)["enabled"] is True
    assert nightly("schedules", "disable", "nightly", "--json").json["schedule"]["enabled"] is False
    assert nightly("schedules", "update", "nightly", "--enabled", "true", "--json").json["schedule"]["enabled"] is True
    me = getpass.getuser()
    assert trail(nightly)[1:] == [
        ("disabled", me, "schedule nightly: too slow"),
        ("enabled", me, "schedule nightly"),
        ("disabled", me, "schedule nightly"),
        ("enabled", me, "schedule nightly"),
    ]


@pytest.mark.covers("002-L2.c")
def test_delete_removes_a_schedule_and_keeps_its_jobs(nightly):
    job = nightly("schedules", "run", "nightly", "--json").json["job"]
    assert nightly("schedules", "delete", "nightly").out == "nightly  deleted; the jobs it has made stay\n"
    assert nightly("schedules", "list", "--json").json == {"schedules": [], "cursor": None}
    assert nightly("jobs", "show", job["id"], "--json").json["job"]["schedule"] == "nightly"
    assert nightly("schedules", "delete", "nightly").code == 1
    assert trail(nightly)[-1][0] == "deleted"


def test_who_deletes_what_code_declares_is_told_that_it_comes_back(ready, project):
    app = Treadle(STORE)
    app.engine.save(Schedule("coded", "greet", app.engine.now(), every=60.0, declared="abc"), before=None)
    app.close()
    assert only(ready)["declared"] is True
    assert "the next worker brings it back: disable it instead" in ready("schedules", "delete", "coded").out


def test_a_schedule_of_another_tenant_is_named_with_the_way_to_it(nightly):
    nightly(*CREATE, "often", *GREET, "--every", "15m", "--tenant", "acme")
    for words in (("show", "often"), ("enable", "often"), ("disable", "often"), ("run", "often"), ("preview", "often"),
                  ("update", "often", "--every", "1m"), ("delete", "often")):  # fmt: skip
        answer = nightly("schedules", *words)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == "error: tenant default has no schedule 'often', but tenant acme has: --tenant acme\n"
        assert nightly("schedules", *words, "--tenant", "acme").code == 0


# ----------------------------------------------------------------------------------------------- running


def test_run_makes_a_job_now(nightly, work):
    job = nightly("schedules", "run", "nightly", "--json").json["job"]
    assert (job["task"], job["payload"], job["schedule"]) == ("greet", {"name": "Ada"}, "nightly")
    work()
    assert nightly("jobs", "show", job["id"], "--json").json["job"]["result"] == "hello Ada"
    said = nightly("schedules", "run", "nightly", "--reason", "Ada asked").out
    assert trail(nightly)[-1] == ("run_requested", getpass.getuser(), "schedule nightly: Ada asked")
    assert re.fullmatch(r"[0-9a-f-]{36}  created: greet on queue default, by schedule nightly\n", said)


def test_a_run_that_would_overlap_is_refused_and_names_the_job(nightly):
    nightly("schedules", "update", "nightly", "--overlap", "skip")
    first = nightly("schedules", "run", "nightly", "--json").json["job"]
    refused = nightly("schedules", "run", "nightly")
    assert (refused.code, refused.out) == (1, "")
    assert f"must not overlap, and job {first['id']} has not ended" in refused.err


def test_where_the_command_line_may_not_enqueue_it_runs_no_schedule_now_but_makes_and_changes_them(
    nightly, monkeypatch
):
    monkeypatch.setenv("TREADLE_ENQUEUE_ALLOW", "[]")
    for words in (("enqueue", "greet", '{"name": "Ada"}'), ("schedules", "run", "nightly")):
        answer = nightly(*words)
        assert (answer.code, answer.out) == (1, "")
        assert "enqueue_allow" in answer.err
    assert nightly("jobs", "list").out == "no jobs\n"
    assert nightly("schedules", "create", "b", *GREET, "--every", "1m").code == 0
    assert nightly("schedules", "update", "nightly", *GREET, "--every", "1h").code == 0
    assert nightly("schedules", "disable", "nightly").code == 0


def test_a_schedule_is_found_by_its_id_too(ready):
    made = [ready(*CREATE, "nightly", *GREET, "--every", "1m", "--tenant", name, "--json").json for name in ("a", "b")]
    ids = [answer["schedule"]["id"] for answer in made]
    assert len({*ids, str(UUID(ids[0]))}) == 2
    assert ready("schedules", "update", ids[1].upper(), "--every", "2m", "--json").json["schedule"]["tenant"] == "b"
    assert ready("schedules", "show", ids[1], "--json").json["schedule"]["tenant"] == "b"
    assert ready("schedules", "disable", ids[1]).code == 0
    assert ready("schedules", "preview", ids[1], "-n", "1", "--json").json["tenant"] == "b"
    assert ready("schedules", "enable", ids[1]).code == 0
    assert ready("schedules", "run", ids[1], "--json").json["job"]["tenant"] == "b"
    [changed] = [one for one in ready("schedules", "list", "--json").json["schedules"] if one["tenant"] == "b"]
    assert (changed["every"], changed["enabled"], changed["id"]) == (120.0, True, ids[1])
    assert ready("schedules", "delete", ids[1]).code == 0
    assert [one["id"] for one in ready("schedules", "list", "--json").json["schedules"]] == ids[:1]
    assert ready("schedules", "delete", ids[1]).code == 1


# -------------------------------------------------------------------------------------------- previewing


def test_a_schedule_is_previewed_by_name_in_its_own_zone(nightly):
    after = ("--after", "2026-03-27T12:00Z", "-n", "2")
    answer = nightly("schedules", "preview", "nightly", *after)
    assert answer.out.splitlines() == [
        "utc                      local                        note",
        "2026-03-30 00:30:00 UTC  Mon 2026-03-30 02:30 +02:00",
        "2026-03-31 00:30:00 UTC  Tue 2026-03-31 02:30 +02:00",
        "wall clock: a time that comes twice runs once, one that is leapt over runs at the end of the gap",
    ]
    machine = nightly("schedules", "preview", "nightly", *after, "--json").json
    assert (machine["name"], machine["tenant"], machine["enabled"]) == ("nightly", "default", True)
    assert (machine["cron"], machine["every"], machine["timezone"]) == ("30 2 * * MON-FRI", None, "Europe/Berlin")
    assert machine["runs"][0] == {"at": "2026-03-30T00:30:00+00:00", "local": "2026-03-30T02:30:00+02:00", "note": ""}


def test_the_preview_of_an_interval_says_so_and_that_it_is_off_or_late(ready):
    ready(*CREATE, "often", *GREET, "--every", "90s", "--jitter", "1m30s", "--enabled", "false")
    lines = ready("schedules", "preview", "often", "-n", "1").out.splitlines()
    assert lines[2:] == [
        "interval: counts real time from its start; changes of the clock do not concern it",
        "each up to 1m30s later, for its jitter",
        "it is off: `treadle schedules enable often` lets it run",
    ]
    machine = ready("schedules", "preview", "often", "-n", "3", "--json").json
    assert (machine["law"], machine["every"], len(machine["runs"])) == ("interval", 90.0, 3)
    assert ready("schedules", "preview", "often", "-n", "1001").code == 2
