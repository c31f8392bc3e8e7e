"""`treadle schedules show`: everything about one schedule, on one page."""

import getpass
import re
import sqlite3

import pytest

from treadle import Treadle
from treadle.model import new_id
from treadle.model.records import GONE, Schedule

SHOW = ("schedules", "show")
STORE = "sqlite:///treadle.db"
GREET = ("--task", "greet", "--payload", '{"name": "Ada"}')


@pytest.fixture
def nightly(ready):
    """A store with a schedule that greets Ada in Berlin, which was disabled and enabled again."""
    ready("schedules", "create", "nightly", *GREET, "--cron", "30 2 * * MON-FRI", "--tz", "Europe/Berlin")
    ready("schedules", "disable", "nightly", "--reason", "too slow")
    ready("schedules", "enable", "nightly")
    return ready


def facts(answer) -> dict[str, str]:
    """The facts by their titles."""
    assert (answer.code, answer.err) == (0, "")
    return dict(re.findall(r"^  (\w[\w ]{,11}?)  +(\S.*)$", answer.out, re.MULTILINE))


def saved(**fields: object) -> Schedule:
    """A schedule as another program might have written it."""
    app = Treadle(STORE)
    made = Schedule("coded", "greet", app.engine.now(), every=60.0, **fields)
    app.engine.save(made, before=None)
    app.close()
    return made


def test_a_schedule_is_told_from_top_to_bottom(nightly):
    answer = nightly(*SHOW, "nightly")
    assert answer.out.splitlines()[0] == "nightly  on"
    told = facts(answer)
    assert told["when"] == "30 2 * * MON-FRI Europe/Berlin"
    assert told["in words"] == "at 02:30, Monday to Friday"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d 0[01]:30:00 UTC  in \d+[dhm]", told["next"])
    assert (told["last"], told["task"], told["attempts"]) == ("never yet", "greet", "5")
    assert told["queue"] == "default, priority 0, tenant default"
    assert (told["misfire"], told["overlap"], told["declared"]) == ("once", "allow", "not by code")
    assert told["revision"] == "2"
    assert re.fullmatch(r"20.* UTC  \d+s ago", told["changed"])
    assert '  payload\n    {\n      "name": "Ada"\n    }\n  history\n' in answer.out
    events = [line.split("UTC", 1)[1].split() for line in answer.out.splitlines()[-3:]]
    me = getpass.getuser()
    assert events == [
        ["created", "by", me, "schedule", "nightly"],
        ["disabled", "by", me, "schedule", "nightly:", "too", "slow"],
        ["enabled", "by", me, "schedule", "nightly"],
    ]


def test_json_has_the_schedule_as_the_list_has_it_and_its_events(nightly):
    machine = nightly(*SHOW, "nightly", "--json").json
    [listed] = nightly("schedules", "list", "--json").json["schedules"]
    assert machine["schedule"] == listed
    assert [event["kind"] for event in machine["events"]] == ["created", "disabled", "enabled"]
    assert machine["events"][1]["note"] == "schedule nightly: too slow"


def test_whatever_was_said_of_it_is_there(ready):
    words = ("--every", "15m", "--queue", "mail", "--lane", "l", "--priority", "-5", "--max-attempts", "7", "--timeout",
             "5m", "--misfire", "all", "--misfire-limit", "9", "--misfire-age", "2h", "--overlap", "queue_one",
             "--jitter", "30s", "--for-each", "users", "--tenant", "acme", "--enabled", "false")  # fmt: skip
    assert ready("schedules", "create", "often", "--task", "greet", *words).code == 0
    answer = ready(*SHOW, "often", "--tenant", "acme")
    assert answer.out.splitlines()[0] == "often  off"
    told = facts(answer)
    assert {title: told[title] for title in ("when", "next", "jitter", "for each", "queue", "attempts", "timeout")} == {
        "when": "every 15m",
        "next": "never while it is off",
        "jitter": "each run up to 30s later",
        "for each": "row of users",
        "queue": "mail, lane l, priority -5, tenant acme",
        "attempts": "7",
        "timeout": "5m",
    }
    assert (told["misfire"], told["overlap"]) == ("all: 9 at most, not older than 2h", "queue_one")
    assert "in words" not in told


def test_the_waits_of_a_task_and_what_follows_its_jobs_are_told(ready, project):
    more = """
@app.task(
    retry=Retry(4, "10s", None, 0), version=2, on_succeeded=greet, audit={"succeeded": "SENT", "exhausted": "LOST"}
)
def send() -> str: ...
"""
    (project / "tasks.py").write_text(
        (project / "tasks.py").read_text().replace("def greet(name", "def greet(task") + more
    )
    assert ready("schedules", "create", "sending", "--task", "send", "--every", "1h").code == 0
    answer = ready(*SHOW, "sending")
    told = facts(answer)
    assert (told["task"], told["attempts"]) == ("send (version 2)", "4, waits from 10s without a cap, jitter 0s")
    assert re.findall("  then +(.*)", answer.out) == [
        "succeeded: a job of greet, event SENT",
        "failed: event LOST when the attempts are spent",
    ]


def test_what_code_declares_and_what_it_declares_no_more_is_told(ready):
    saved(declared="0123456789abcdef shop.tasks", last_job=new_id())
    assert facts(ready(*SHOW, "coded"))["declared"] == "by module shop.tasks"
    ready("schedules", "delete", "coded")
    job = saved(declared=f"0123456789abcdef shop.tasks{GONE}", last_job=new_id()).last_job
    gone = ready(*SHOW, "coded")
    assert gone.out.splitlines()[0] == "coded  on, gone"
    told = facts(gone)
    assert told["declared"] == "no longer: module shop.tasks declared it once"
    assert (told["last job"], told["next"]) == (job, "not known yet: a worker finds it")


def test_a_row_that_cannot_be_read_is_shown_all_the_same(nightly):
    with sqlite3.connect("treadle.db") as store:
        store.execute("update treadle_schedules set cron = 'every full moon'")
    store.close()
    told = facts(nightly(*SHOW, "nightly"))
    assert told["in words"].startswith("it cannot be read: cron: 'every full moon' has 3 fields and must have 5")


def test_a_long_history_is_cut_and_the_way_to_the_rest_works(nightly):
    for _ in range(5):
        nightly("schedules", "disable", "nightly")
        nightly("schedules", "enable", "nightly")
    *_, last, more = nightly(*SHOW, "nightly").out.splitlines()
    assert "enabled" in last
    command = more.partition("earlier: treadle ")[2].split()
    assert len(nightly(*command, "--json").json["events"]) == 13
    assert len(nightly(*SHOW, "nightly", "--json").json["events"]) == 13
    assert nightly(*SHOW, "nightly").out.count(f" by {getpass.getuser()} ") == 10


def test_who_deleted_a_schedule_is_told(nightly):
    nightly("schedules", "delete", "nightly", "--reason", "nobody reads it")
    answer = nightly(*SHOW, "nightly")
    assert (answer.code, answer.out) == (1, "")
    assert f"error: schedule 'nightly' was deleted by {getpass.getuser()} at 2" in answer.err
    assert answer.err.endswith(" UTC (nobody reads it)\n")
    assert "there is no schedule 'nigthly'" in nightly(*SHOW, "nigthly").err
