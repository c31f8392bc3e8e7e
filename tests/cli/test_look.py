"""`treadle why`, `workers` and `costs`."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.test_worker import until
from tests.support import forks
from tests.support.making import claim
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model.records import MEMORY, VERSION, WorkerInfo

STORE = "sqlite:///treadle.db"
GREET = ("enqueue", "greet", '{"name": "Ada"}', "--json")


def alive(**fields: object) -> WorkerInfo:
    """A worker that has just said that it is alive, in the store."""
    app = Treadle(STORE)
    now = app.engine.now()
    given = {
        "name": "w1", "host": "box", "pid": 1, "queues": ["default"], "lanes": None, "tasks": {"greet": 1},
        "concurrency": 10, "running": 3, "stopping": False, "started_at": now - timedelta(hours=3), "seen_at": now,
        "period": 60.0,
    }  # fmt: skip
    member = WorkerInfo(**{**given, **fields})
    app.engine.save(member, before=OVERWRITE)
    app.close()
    return member


def obstacles(treadle, id: str) -> list[str]:
    return [obstacle["kind"] for obstacle in treadle("why", id, "--json").json["obstacles"]]


# --------------------------------------------------------------------------------------------------- why


def test_why_says_in_sentences_what_keeps_a_job_from_running(ready):
    id = ready(*GREET, "--run-after", "1h").json["id"]
    ready("pause", "--queue", "default", "--reason", "deploy")
    first, *lines = ready("why", id).out.splitlines()
    assert first == f"{id}  greet on queue default, tenant default: scheduled"
    assert re.fullmatch(r"  queue default is paused by \S+ since \S+ \S+ UTC: deploy", lines[0])
    assert re.fullmatch(r"  it is due at \S+ \S+ UTC, in 59 min", lines[1])
    assert lines[2] == "  no worker is alive; start one with `treadle worker`"
    machine = ready("why", id, "--json").json
    assert machine["job"]["id"] == id
    assert [obstacle["kind"] for obstacle in machine["obstacles"]] == ["paused", "due", "no_worker"]
    assert [f"  {obstacle['text']}" for obstacle in machine["obstacles"]] == lines


def test_why_knows_the_workers_that_are_alive(ready):
    id = ready(*GREET).json["id"]
    assert obstacles(ready, id) == ["no_worker"]
    alive(queues=["mail"])
    assert obstacles(ready, id) == ["no_queue"]
    alive(tasks={"boom": 1})
    assert obstacles(ready, id) == ["unknown_task"]
    alive(running=10)
    assert obstacles(ready, id) == ["busy"]
    alive()
    assert obstacles(ready, id) == ["next"]


def test_why_says_who_has_a_job_and_how_one_ended(ready, work):
    running, ended = ready(*GREET, "--priority", "1").json["id"], ready(*GREET).json["id"]
    app = Treadle(STORE)
    claim(app.engine, 1, worker="w7")
    app.close()
    work()
    assert "worker w7 has it" in ready("why", running).out
    assert "it has ended: succeeded at" in ready("why", ended).out


def test_an_id_may_be_written_as_people_write_uuids(ready):
    id = ready(*GREET).json["id"]
    assert ready("why", id.upper().replace("-", ""), "--json").json["job"]["id"] == id


# ----------------------------------------------------------------------------------------------- workers


def test_workers_are_listed_as_they_last_said(ready):
    assert ready("workers").out == "no worker is alive; `treadle worker` starts one\n"
    told = {f"{VERSION}0.9.0": 1, MEMORY: 96 * 1024**2}
    alive(queues=["default", "mail"], lanes=["a", "b"], tasks={"greet": 1, "boom": 2, **told})
    alive(name="w2", stopping=True, running=0)
    alive(name="gone", seen_at=datetime.now(UTC) - timedelta(hours=1))
    header, *rows = [re.split(r" {2,}", line) for line in ready("workers").out.splitlines()]
    assert header == ["name", "host", "queues", "tasks", "slots", "since", "seen", "memory", "version"]
    assert [row[:6] for row in rows] == [
        ["w1", "box", "default, mail (lanes a, b)", "2", "3/10", "3h ago"],
        ["w2", "box", "default", "1", "0/10, stopping", "3h ago"],
    ]
    assert all(row[6].endswith("s ago") for row in rows)
    assert [row[7:] for row in rows] == [["96 MiB", "0.9.0"], []]  # an older one tells neither
    first, second = ready("workers", "--json").json["workers"]
    assert (first["name"], first["tasks"], first["lanes"]) == ("w1", {"greet": 1, "boom": 2}, ["a", "b"])
    assert (second["stopping"], second["lanes"]) == (True, None)
    assert [(one["version"], one["memory"]) for one in (first, second)] == [("0.9.0", 96 * 1024**2), (None, None)]


def test_workers_that_are_silent_are_listed_if_asked_for(ready):
    alive(name="gone", seen_at=datetime.now(UTC) - timedelta(hours=1))
    assert ready("workers").out == "no worker is alive; `treadle worker` starts one\n"
    assert "3/10, silent" in ready("workers", "--silent").out
    alive()
    found = ready("workers", "--silent", "--json").json["workers"]
    assert {one["name"]: one["silent"] for one in found} == {"gone": True, "w1": False}


def test_workers_say_who_asked_one_to_stop(ready):
    alive()
    alive(name="w2")
    ready("drain", "w1", "--reason", "a deploy")
    asked = {one["name"]: one["drain"] for one in ready("workers", "--json").json["workers"]}
    assert (asked["w1"]["reason"], asked["w2"]) == ("a deploy", None)
    line = ready("workers").out.splitlines()[-1]
    assert line == f"w1 was asked to stop by {asked['w1']['actor']}: a deploy"
    alive(started_at=datetime.now(UTC))  # it was started again: that request was not for this one
    assert ready("workers", "--json").json["workers"][0]["drain"] is None


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal_every_line_of_the_workers_fits(ready, monkeypatch, columns):
    alive(name="production-worker-7.eu-central-1:12345", host="production-worker-7.eu-central-1",
          queues=["default", "mail", "reports", "thumbnails"])  # fmt: skip
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ready("workers").out).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert ("host" in lines[0]) == (columns >= 110)
    assert "3/10" in lines[1]


def test_nothing_a_worker_says_reaches_the_terminal_raw(ready):
    alive(name="a\x1b", host="b\x07", queues=["c\x9b"], lanes=["d\u202e"])
    for words in ((), ("--json",)):
        assert not set("\x1b\x07\x9b\u202e") & set(ready("workers", *words).out)


def test_a_real_worker_is_on_the_list_while_it_runs(ready):
    command = [sys.executable, "-m", "treadle", "worker", "--app", "tasks:app", "--name", "w9", "-q", "mail", "-c", "4"]
    process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: ready("workers", "--json").json["workers"])
        [worker] = ready("workers", "--json").json["workers"]
        assert (worker["name"], worker["queues"], worker["concurrency"]) == ("w9", ["mail"], 4)
        assert worker["pid"] == process.pid
        assert "greet" in worker["tasks"]
        said = ready("drain", "w9", "--reason", "a deploy").out
        assert said == "w9 was asked to stop; it finishes 0 running jobs first\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate(timeout=20)
    assert ready("workers", "--json").json == {"workers": []}
    gone = ready("drain", "w9")
    assert (gone.code, gone.err) == (1, "error: no live worker is called 'w9'; alive: none\n")


# ------------------------------------------------------------------------------------------------- costs


SPENDING = """
from treadle import Context, Treadle

app = Treadle()


@app.task
def spend(ctx: Context, micros: int) -> None:
    ctx.add_cost(micros)


@app.task
def free() -> None:
    pass
"""


@pytest.fixture
def spent(ready, project, monkeypatch):
    """Jobs of two tenants have ended today: 1.25 and 0.0042 of ours, 1,000 of acme's, and one that cost nothing."""
    (project / "spending.py").write_text(SPENDING)
    monkeypatch.setenv("TREADLE_APP", "spending:app")
    for micros, tenant in ((1_250_000, "default"), (4_200, "default"), (1_000_000_000, "acme")):
        ready("enqueue", "spend", f'{{"micros": {micros}}}', "--tenant", tenant)
    ready("enqueue", "free")
    assert ready("worker", "--until-idle").code == 0
    return ready


def test_costs_are_added_up_by_tenant_and_task_in_micros_and_in_units(spent):
    today = datetime.now(UTC).date()
    lines = [line.split() for line in spent("costs").out.splitlines()]
    assert lines == [
        ["tenant", "task", "micros", "units"],
        ["acme", "spend", "1,000,000,000", "1,000.0000"],
        ["default", "spend", "1,254,200", "1.2542"],
        ["total", "1,001,254,200", "1,001.2542"],
        f"of jobs that ended on {today} (UTC)".split(),
    ]
    machine = spent("costs", "--tenant", "default", "--days", "7", "--json").json
    assert machine == {
        "first_day": str(today - timedelta(days=6)),
        "last_day": str(today),
        "costs": [{"tenant": "default", "task": "spend", "micros": 1_254_200, "units": "1.2542"}],
        "total": {"micros": 1_254_200, "units": "1.2542"},
    }


def test_a_million_micros_are_one_unit(spent):
    assert spent("costs", "--tenant", "acme", "--json").json["total"] == {"micros": 10**9, "units": "1,000.00"}


def test_costs_are_of_the_days_that_are_asked_for(spent):
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
    assert spent("costs", "--day", str(yesterday)).out == f"nothing was spent on {yesterday} (UTC)\n"
    assert spent("costs", "--day", "2020-01-07", "--days", "7").out == (
        "nothing was spent from 2020-01-01 to 2020-01-07 (UTC)\n"
    )
    nothing = spent("costs", "--day", str(yesterday), "--json").json
    assert (nothing["costs"], nothing["total"]) == ([], {"micros": 0, "units": "0.00"})


def test_workers_of_one_name_and_jobs_that_wait_for_a_slot_are_said(ready):
    alive(running=17)
    alive(name="w1 #9", pid=9)
    shown = ready("workers")
    assert "10/10 +7" in shown.out
    assert "2 live workers are called w1: give each a --name of its own" in shown.out
    first, _ = ready("workers", "--json").json["workers"]
    assert (first["running"], first["waiting"], first["concurrency"]) == (10, 7, 10)
