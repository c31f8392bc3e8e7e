"""Whatever is wrong is said in one line on stderr, with exit code 1 or 2, and never as a traceback."""

import json

import pytest

NOBODY = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"
GREET = ("enqueue", "greet", '{"name": "Ada"}')
EVERY = ("schedules", "create", "a", "--task", "whatever", "--every", "1m")
READERS = (
    "schedules list", "schedules show a", "schedules update a --every 1m", "schedules enable a", "schedules disable a",
    "schedules delete a", "schedules run a", "schedules preview a", "pause --all", "resume --all", "pauses",
    f"why {NOBODY}", "workers", "audit", "audit verify", "costs", "budgets", "prune",
)  # fmt: skip

CASES = [
    # what was asked, the exit code, what the error says
    ("nonsense", 2, "No such command 'nonsense'"),
    ("--nonsense", 2, "No such option: --nonsense"),
    ("jobs", 2, "Missing command"),
    ("jobs show", 2, "Missing argument"),
    ("jobs list --nonsense", 2, "No such option"),
    ("jobs list --state odd", 2, "'odd' must be one of"),
    ("jobs list --limit 0", 2, "0 must be from 1 to 500"),
    ("jobs list --limit 501", 2, "501 must be from 1 to 500"),
    ("jobs list --limit many", 2, "--limit"),
    ("jobs list --state failed --cursor rubbish", 2, "cursor: 'rubbish'"),
    (("jobs", "list", "--state", "failed", "--cursor", f"{10**30}:x"), 2, "cursor"),
    (f"jobs show {NOBODY}", 1, f"there is no job {NOBODY}"),
    ("jobs show 123", 2, "error: '123' is neither a job id (a UUID)"),
    ("jobs retry rubbish", 2, "'rubbish' is neither a job id"),
    ("jobs cancel rubbish", 2, "'rubbish' is neither a job id"),
    (("jobs", "show", "\x1b[31m"), 2, "\\x1b[31m"),
    (f"jobs retry {NOBODY}", 1, "there is no job"),
    (f"jobs cancel {NOBODY}", 1, "there is no job"),
    ("migrate --sql --check", 2, "cannot be given together"),
    ("enqueue", 2, "Missing argument"),
    (("enqueue", "gret", "{}"), 2, "did you mean 'greet'?"),
    (("enqueue", "greet", '{"nam": 1}'), 2, "does not fit task greet(name: str)"),
    ((*GREET, "--priority", "high"), 2, "--priority"),
    ((*GREET, "--priority", "99999999999"), 2, "fits 32 bits"),
    ((*GREET, "--run-after", "soon"), 2, "'soon' is not a valid duration"),
    ((*GREET, "--run-after", "-5m"), 2, "run_after"),
    ((*GREET, "--run-after", "2099-01-31T12:00"), 2, "no time zone"),
    ((*GREET, "--expires", "never"), 2, "'never' is not a valid duration"),
    ((*GREET, "--unique", "ever"), 2, "give --key"),
    ((*GREET, "--key", "k", "--unique", "always"), 2, "'always' must be"),
    ((*GREET, "--key", "k", "--unique", "window"), 2, "window=1d"),
    ((*GREET, "--key", "k", "--unique", "window=wide"), 2, "'wide' is not a valid duration"),
    ((*GREET, "--key", "k", "--on-conflict", "panic"), 2, "'panic' is not one of"),
    ((*GREET, "--key", "k" * 1001), 2, "the limit is 1,000"),
    ((*GREET, "--max-attempts", "0"), 2, "must be from 1 to 10,000"),
    ((*GREET, "--id", "7"), 2, "'7' is not a valid UUID"),
    ((*GREET, "--id", ""), 2, "--id: is empty"),
    ((*GREET, "--queue", ""), 2, "queue: '' is not a valid name"),
    ((*GREET, "--tenant", "a\x07"), 2, "control character"),
    ((*GREET, "--lane", "x" * 201), 2, "the limit is 200"),
    ((*GREET, "--url", "treadle.db"), 2, "write sqlite:///treadle.db"),
    ((*GREET, "--url", ""), 2, "has no scheme"),
    ((*GREET, "--url", "oracle://scott:tiger@host/db"), 2, "no engine for 'oracle'"),
    ((*GREET, "--url", "sqlite:////nowhere/at/all.db"), 1, "cannot be opened"),
    ("jobs list --url sqlite:///tasks.py", 1, "not an SQLite database"),
    ("jobs list --url sqlite:////nowhere/at/all.db", 1, "there is no /nowhere/at/all.db. Wrong directory?"),
    ("worker --concurrency 0", 2, "must be from 1 to 1,000"),
    ("worker --concurrency some", 2, "--concurrency"),
    ("worker --lease 10ms", 2, "lease: '10ms' is out of range; it must be from 0.5s to 1d"),
    ("worker --grace never", 2, "'never' is not a valid duration"),
    ("worker --poll 0", 2, "poll: '0' is out of range; it must be from 0.01s to 1h"),
    (("worker", "--queue", ""), 2, "queues: '' is not a valid name"),
    (("worker", "--name", "a\x1b"), 2, "control character"),
    ("worker --url sqlite:////nowhere/at/all.db", 1, "cannot be opened"),
    ("demo --fast", 2, "No such option"),
    ("schedules create", 2, "Give it one NAME"),
    ("schedules create a --name a --task greet --every 1m", 2, "Give it one NAME"),
    ("schedules create a --every 1m", 2, "--task: which one?"),
    ("schedules create a --task greet", 2, "when? Give --cron"),
    ("schedules create a --task greet --cron @daily --every 1m", 2, "--cron and --every cannot be given together"),
    ("schedules create a --task greet --every soon", 2, "--every: 'soon' is not a valid duration"),
    ("schedules create a --task greet --every 0.5s", 2, "every: 0.5 is too short"),
    ("schedules create a --task greet --cron @dayly", 2, "'@dayly' is not a valid nickname"),
    (("schedules", "create", "a", "--task", "greet", "--cron", "0 0 31 2 *"), 2, "never comes in month"),
    ("schedules create a --task greet --cron @daily --tz Europe/Berln", 2, "did you mean 'Europe/Berlin'?"),
    ("schedules create a --task gret --every 1m", 2, "did you mean 'greet'?"),
    ("schedules create a --task greet --every 1m", 2, "does not fit task greet(name: str)"),
    ((*EVERY, "--priority", "high"), 2, "--priority"),
    ((*EVERY, "--priority", "99999999999"), 2, "fits 32 bits"),
    ((*EVERY, "--max-attempts", "0"), 2, "must be from 1 to 10,000"),
    ((*EVERY, "--timeout", "never"), 2, "--timeout: 'never' is not a valid duration"),
    ((*EVERY, "--jitter", "-1s"), 2, "--jitter"),
    ((*EVERY, "--misfire", "later"), 2, "'later' is not one of"),
    ((*EVERY, "--misfire-limit", "0"), 2, "misfire_limit: 0 must be from 1 to 10,000"),
    ((*EVERY, "--misfire-age", "old"), 2, "--misfire-age: 'old' is not a valid duration"),
    ((*EVERY, "--misfire-age", "60d"), 2, "misfire_age"),
    ((*EVERY, "--overlap", "maybe"), 2, "'maybe' is not one of"),
    ((*EVERY, "--for-each", "usrs"), 2, "for_each: no rows are registered as 'usrs'"),
    ((*EVERY, "--queue", ""), 2, "queue: '' is not a valid name"),
    ((*EVERY, "--tenant", "a\x07"), 2, "control character"),
    (("schedules", "create", "", *EVERY[3:]), 2, "name: '' is not a valid name"),
    ("schedules update a", 2, "nothing to change"),
    ("schedules update a --cron @daily --every 1m", 2, "cannot be given together"),
    ("schedules update a --every 1m", 1, "there is no schedule 'a'; `treadle schedules list` shows"),
    ("schedules show", 2, "Missing argument"),
    ("schedules show a", 1, "there is no schedule 'a'"),
    ("schedules enable", 2, "Missing argument"),
    ("schedules enable a", 1, "there is no schedule 'a'"),
    ("schedules disable a", 1, "there is no schedule 'a'"),
    ("schedules delete a", 1, "there is no schedule 'a'"),
    ("schedules run a", 1, "there is no schedule 'a'"),
    ("schedules preview a", 1, "there is no schedule 'a'"),
    ("schedules preview a --cron @daily", 2, "Give either the NAME of a schedule or --cron"),
    ("schedules preview a --tz Europe/Berlin", 2, "--tz goes with --cron"),
    ("pause", 2, "Give --tenant, --queue or --task, or --all for everything"),
    ("resume", 2, "Give --tenant, --queue or --task, or --all for everything"),
    ("pause --queue mail --queue web", 2, "--queue was given 2 times; each is a pause of its own"),
    ("resume --tenant a --tenant b", 2, "--tenant was given 2 times"),
    ("pause --all --queue mail", 2, "leave out either --all or --queue"),
    ("resume --all --task greet", 2, "leave out either --all or --task"),
    ("pause --queue mail --until later", 2, "--until: 'later' is no time; write 2030-01-31T12:00Z, or from now"),
    ("pause --queue mail --until 2099-01-31T12:00", 2, "write 2099-01-31T12:00:00Z for UTC"),
    ("pause --queue mail --until 2020-01-31T12:00Z", 2, "is past"),
    ("pause --queue mail --until 0s", 2, "is past"),
    ("pause --queue mail --wait --timeout long", 2, "--timeout: 'long' is not a valid duration"),
    (("pause", "--queue", ""), 2, "queue: '' is not a valid name"),
    ("resume --queue mail", 1, "queue mail is not paused by itself; paused: nothing"),
    ("why", 2, "Missing argument"),
    ("why 123", 2, "'123' is neither a job id (a UUID)"),
    (f"why {NOBODY}", 1, f"there is no job {NOBODY}"),
    ("workers --nonsense", 2, "No such option"),
    ("audit nonsense", 2, "No such command 'nonsense'"),
    ("audit -n 0", 2, "-n: 0 must be from 1 to 1,000"),
    ("audit -n 1001", 2, "-n: 1001 must be from 1 to 1,000"),
    ("audit --tenant acme verify", 2, "--tenant must stand after verify"),
    ("audit --nonsense verify", 2, "No such option"),
    ("costs --day yesterday", 2, "--day: 'yesterday' is no day; write one such as 2026-11-15"),
    ("costs --day 9999-12-31", 2, "the year 9999 is out of range"),
    ("costs --days 0", 2, "--days: 0 must be from 1 to 3,660"),
    ("costs --days 99999999999", 2, "--days: 99999999999 must be from 1 to 3,660"),
    *((f"{command} --url sqlite:///nowhere.db", 1, "nowhere.db. Wrong directory?") for command in READERS),
]


@pytest.mark.parametrize(("asked", "code", "said"), CASES, ids=lambda value: str(value)[:60])
def test_bad_input_is_one_clear_line(ready, asked, code, said):
    words = asked.split() if isinstance(asked, str) else asked
    answer = ready(*words)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err
    assert "\x1b" not in answer.err
    machine = ready(*words, "--json")
    assert (machine.code, machine.out) == (code, "")
    assert json.loads(machine.err)["error"].keys() == {"type", "message"}


def test_a_password_in_a_url_is_never_shown(ready):
    for url in ("sqlite://me:hunter2@host/x.db", "sqlite:///x.db?password=hunter2"):
        answer = ready("doctor", "--url", url)
        assert answer.code == 2
        assert "hunter2" not in answer.err


def test_a_setting_that_is_none_is_named(call, monkeypatch):
    monkeypatch.setenv("TREADLE_QUEUE", "mail")
    answer = call("jobs", "list")
    assert (answer.code, answer.out) == (2, "")
    assert "TREADLE_QUEUE is not a setting, did you mean queues?" in answer.err


def test_a_broken_settings_file_is_named(call, project):
    (project / "treadle.toml").write_text("app = [")
    answer = call("jobs", "list")
    assert (answer.code, answer.out) == (2, "")
    assert "not valid TOML" in answer.err


def test_an_unexpected_error_is_one_line_and_debug_shows_its_traceback(ready, monkeypatch):
    monkeypatch.setattr("treadle.app.treadle.Treadle.doctor", lambda self: 1 / 0)
    answer = ready("doctor")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: unexpected ZeroDivisionError: division by zero; --debug shows the traceback\n"
    for words in (("--debug", "doctor"), ("doctor", "--debug"), ("doctor", "--debug", "--url", "sqlite:///treadle.db")):
        answer = ready(*words)
        assert answer.err.startswith("Traceback (most recent call last)")
        assert answer.err.endswith("error: unexpected ZeroDivisionError: division by zero\n")


def test_debug_may_stand_anywhere_but_after_a_double_dash(ready):
    counted = ready("jobs", "count", "--json").json
    for words in (("--debug", "jobs", "count"), ("jobs", "--debug", "count"), ("jobs", "count", "--debug")):
        assert ready(*words, "--json").json == counted
    wrong = ready("worker", "--app", "x:app", "--debug")
    assert wrong.code == 2
    assert wrong.err.splitlines()[-1].startswith("error: app: there is no module 'x'")
    assert "'--debug' is neither a job id" in ready("jobs", "show", "--", "--debug").err
