"""What the command line prints of a store is the same, byte for byte, on the store and over a server."""

import json
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tests.client.conftest import Call, Served, fill, ids, make_app
from treadle import Profile, State, Treadle
from treadle.client import RemoteTreadle
from treadle.profiles import backend

AGES = re.compile(r"\b(in )?\d+(\.\d+)?(ms|s|m|h|d)( ago)?\b")
TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00| UTC)?")
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

LOOKS = [
    "jobs list", "jobs list --state failed", "jobs list --state pending --task greet", "jobs list --queue mail",
    "jobs list --tenant acme --key k", "jobs list --error ConnectionError --since 1h", "jobs list --limit 2",
    "jobs list --before 1d", "jobs list --lane left", "jobs list --text Ada", "jobs count", "jobs count --queue mail",
    "workers", "workers --silent", "pauses", "schedules list", "schedules list --limit 2",
    "schedules list --enabled false", "schedules list --declared", "schedules list --gone",
    "schedules list --task greet",
    "schedules list --prefix ho --tenant default", "schedules show hourly", "schedules show other --tenant acme",
    "schedules preview hourly --after 2030-01-31T12:00Z", "schedules preview other --tenant acme -n 120",
    "audit", "audit -n 3", "audit --kind cancelled --actor ada", "audit --tenant acme", "audit --since 1h --until 0s",
    "audit --by-hand",
    "costs", "costs --days 3000", "costs --day 2026-01-01 --tenant acme", "tokens list",
    "audit verify", "audit verify --tenant acme", "doctor", "export", "export --state failed --events",
    "export --queue mail --text Ada", "export --key k --tenant acme --events",
]  # fmt: skip


@pytest.mark.parametrize("command", LOOKS)
def test_a_look_prints_the_same(there: Served, local: Call, remote: Call, command: str) -> None:
    words = command.split()
    assert remote(*words, "--json") == local(*words, "--json")
    here, over_there = local(*words), remote(*words)
    assert (over_there.code, AGES.sub("…", over_there.out)) == (here.code, AGES.sub("…", here.out))
    assert here.code == 0


def test_everything_about_each_job_is_the_same(there: Served, local: Call, remote: Call) -> None:
    jobs = there.app.find(limit=500).jobs
    assert {job.state for job in jobs} == {*State} - {State.RUNNING}
    for job in jobs:
        words = ("jobs", "show", job.id)
        assert remote(*words, "--json") == local(*words, "--json")
        assert AGES.sub("…", remote(*words).out) == AGES.sub("…", local(*words).out)
    for job in {job.state: job for job in jobs}.values():
        for words in (("why", job.id), ("audit", "--job", job.id[:23])):
            assert remote(*words, "--json") == local(*words, "--json")


@pytest.mark.parametrize(
    "command", ["status", "failures", "budgets", "top --once", "stats", "stats --span 7d --task greet"]
)
def test_an_overview_is_the_same_but_for_its_moment(there: Served, local: Call, remote: Call, command: str) -> None:
    here, over_there = within_a_minute(local, remote, *command.split(), "--json")
    moments = {"at": "", "since": ""}
    assert {**over_there.json, **moments} == {**here.json, **moments}
    assert [*over_there.json] == [*here.json]
    assert over_there.code == here.code


def within_a_minute(local: Call, remote: Call, *words: str) -> tuple[Result, Result]:
    """What both say in one and the same minute: rates are of whole minutes."""
    while True:
        before = datetime.now(UTC).minute
        found = local(*words), remote(*words)
        if datetime.now(UTC).minute == before:
            return found


@pytest.mark.parametrize("command", ["top --once", "stats", "stats --queue default", "stats --queue nowhere"])
def test_an_overview_for_people_is_the_same_but_for_its_moment(local: Call, remote: Call, command: str) -> None:
    here, over_there = within_a_minute(local, remote, *command.split())
    assert without_moments(over_there.out) == without_moments(here.out)
    assert ("greet" in here.out) == ("nowhere" not in command)
    assert (over_there.code, over_there.err) == (here.code, here.err) == (0, "")


def without_moments(text: str) -> str:
    return re.sub(r" +", " ", AGES.sub("…", re.sub(r"\d\d:\d\d:\d\d", "T", text)))


def test_the_tasks_of_the_app_are_the_same(
    there: Served, call: Call, remote: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "at_home.py").write_text(
        "from tests.client import conftest\napp = conftest.make_app('sqlite:///x.db')\n"
    )
    for words in ([], ["--json"], ["--schema", "greet"], ["--schema", "gret"]):
        assert remote("tasks", *words) == call("tasks", *words, "--app", "at_home:app")
    listed = remote("tasks", "--json").json["tasks"]
    assert [task["name"] for task in listed] == sorted(there.app.tasks)
    assert remote("tasks", "--schema", "send").json["required"] == ["to"]


def test_an_export_is_written_to_a_file_here(there: Served, remote: Call, tmp_path: Path) -> None:
    done = remote("export", "--output", "jobs.ndjson", "--json")
    assert done.json == {"exported": len(there.app.find(limit=500).jobs), "output": "jobs.ndjson"}
    lines = [json.loads(line) for line in (tmp_path / "jobs.ndjson").read_text().splitlines()]
    assert [line["job"]["id"] for line in lines] == [job.id for job in there.app.find(limit=500).jobs]


def test_the_events_of_a_schedule_are_the_same_values(there: Served) -> None:
    remote = RemoteTreadle(there.url, there.token).schedules
    for schedule in there.app.schedules.list():
        local = there.app.schedules.events(schedule.name, tenant=schedule.tenant)
        assert local == list(remote.events(schedule.name, tenant=schedule.tenant))


def test_pages_go_on_with_their_cursor(there: Served, remote: Call) -> None:
    for command in ("jobs list", "audit", "schedules list"):
        found, cursor = [], []
        while True:
            page = remote(*command.split(), "-n", "2", "--json", *cursor).json
            found += page[command.split()[0] if command != "audit" else "events"]
            if page["cursor"] is None:
                break
            cursor = ["--cursor", page["cursor"]]
        whole = remote(*command.split(), "-n", "400", "--json").json
        assert found == whole[command.split()[0] if command != "audit" else "events"]


ACTS = [
    "jobs retry {failed} --reason again", "jobs retry {cancelled} --keep-attempts", "jobs cancel {pending}",
    "jobs run-now {pending}",
    "jobs retry {failed} --payload {{\"why\":\"yes\"}}",
    "jobs edit {pending} --queue mail --priority 5 --lane left --run-after 2030-01-31T12:00Z",
    "jobs delete {succeeded} --reason gone --yes", "jobs retry --state failed --yes", "jobs retry --all --dry-run",
    "jobs cancel {pending} {succeeded} 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11", "jobs delete --task give_up --yes",
    "jobs cancel --queue nowhere --yes", "jobs delete --all --since 1d --before 0s --dry-run",
    "pause --queue mail --reason slow --until 2h", "pause --all", "pause --task greet --tenant acme --wait",
    "resume --queue slow --tenant acme", "schedules disable hourly --reason slow",
    "schedules enable other --tenant acme",
    "schedules delete hourly", "schedules run hourly",
    "schedules update hourly --every 15m --enabled false --unchecked",
    "schedules update other --tenant acme --cron @daily --tz Europe/Berlin --max-attempts 3 --timeout 5m --jitter 1s",
    "schedules create new --task greet --every 90s --payload {{\"name\":\"x\"}} --misfire all --misfire-limit 7 "
    "--misfire-age 1h --overlap queue_one --lane l --priority 2 --queue q --unchecked",
    "enqueue greet {{\"name\":\"Ada\"}} --run-after 5m --priority 3 --queue q --lane l --tenant t --unchecked",
    "enqueue greet {{\"name\":\"Ada\"}} --key k --unique window=1d --on-conflict replace --max-attempts 9 --unchecked",
    "enqueue greet {{\"name\":\"Ada\"}} --expires 1h --id 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11 --unchecked",
    "tokens create ci --scope enqueue --scope operate --queue mail --tenant acme --expires 30d",
    "tokens revoke grafana",
]  # fmt: skip


def test_an_act_prints_the_same_and_leaves_the_same_store(
    there: Served, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each act is done to two copies of one store: to one by its file, to the other by the server."""
    whole = there.file.parent / "copies"
    whole.mkdir(exist_ok=True)
    places = {state: job.id for job in there.app.find(limit=500).jobs for state in [job.state.value]}
    places |= {"failed": ids(there.app, state="failed", task="give_up")[0]}
    there.app.close()
    for number, act in enumerate(ACTS):
        files = [whole / f"{number}-{side}.db" for side in ("here", "there")]
        for file in files:
            shutil.copy(there.file, file)
        words = [word.format(**places) if "{" in word else word for word in act.split(" ")]
        app = make_app(f"sqlite:///{files[1]}")
        there.server.serve_app(app)
        token = app.tokens.create("ops2", scopes=["admin"]).secret
        Treadle(f"sqlite:///{files[0]}").tokens.create("ops2", scopes=["admin"])
        monkeypatch.setenv("TREADLE_TOKEN", token)
        here = call(*words, "--json", "--url", f"sqlite:///{files[0]}")
        over_there = call(*words, "--json", "--server", there.url)
        assert here.code in (0, 1), (act, here.err)
        assert same(over_there.out) == same(here.out), act
        assert (over_there.code, same(over_there.err)) == (here.code, same(here.err)), act
        stores = [state_of(Treadle(f"sqlite:///{file}")) for file in files]
        assert stores[1] == stores[0], act
        app.close()
    there.server.serve_app(there.app)


def same(text: str) -> str:
    """Without what cannot be the same: moments, new ids and secrets, and who acts."""
    text = re.sub(r"01[0-9a-f]{6}-[0-9a-f-]{27}", "id", TIMES.sub("T", text))
    return re.sub(r'"actor": "[^"]*"', "", re.sub(r"treadle_[\w-]+|\b[0-9a-f]{12}\b", "secret", text))


def state_of(app: Treadle) -> str:
    with app:
        jobs = [app.view(job) for job in app.find(limit=500).jobs]
        rest = [str(one) for one in (*app.schedules.list(), *app.pauses())]
    text = same(json.dumps([jobs, rest]))
    return re.sub(r"datetime\([^)]*\)|actor='[^']*'|declared=[^,]*", "…", text)


WORDS = Profile(
    states={"pending": "queued", "succeeded": "completed", "dead": "exhausted"},
    fields={"jobId": "id", "status": "state", "error": {"kind": "error_type", "text": "error_text"}, "out": "result"},
    empty={},
)
IN_WORDS = ("jobs list", "jobs list --state queued", "jobs list --state exhausted", "jobs list --state odd")
OF_THE_BACKEND = ("jobs list", "jobs list --state canceled", "schedules list", "schedules show hourly")


@pytest.mark.parametrize(
    ("profile", "commands", "word"),
    [("test_same_output.WORDS", IN_WORDS, "jobId"), ("backend.PROFILE", OF_THE_BACKEND, "schedule_id")],
)
def test_a_profile_of_the_server_is_spoken_here_too(
    there: Served,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    profile: str,
    commands: tuple[str, ...],
    word: str,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "profiled.py").write_text(
        "from tests.client import conftest, test_same_output\n"
        "from treadle.profiles import backend\n"
        f"app = conftest.make_app({url!r}, {profile})\n"
    )
    monkeypatch.delitem(sys.modules, "profiled", raising=False)
    app = make_app(url, WORDS if profile.endswith("WORDS") else backend.PROFILE)
    app.migrate()
    fill(app)
    app.schedules.run("hourly")
    monkeypatch.setenv("TREADLE_TOKEN", app.tokens.create("ops", scopes=["operate"]).secret)
    there.server.serve_app(app)
    try:
        for command in commands:
            for more in ([], ["--json"]):
                here = call(*command.split(), *more, "--app", "profiled:app")
                over_there = call(*command.split(), *more, "--server", there.url)
                assert (over_there.code, AGES.sub("…", over_there.out)) == (here.code, AGES.sub("…", here.out))
                assert over_there.err == here.err
        assert word in call("jobs", "list", "--json", "--server", there.url).out
    finally:
        there.server.serve_app(there.app)
        app.close()
