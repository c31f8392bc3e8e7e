"""What cannot be done is refused over a server as it is on the store: the same line, the same exit code."""

import json
import random
import string
from collections.abc import Iterator

import pytest

from tests.client.conftest import Call, Served, ids
from tests.support.sizes import size
from treadle import Treadle

NOBODY = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"
SEED = 15
NUMBER = size(300, long=10_000)

SAME = [
    f"jobs show {NOBODY}", f"jobs show {NOBODY[:9]}", "jobs show 01a1", "jobs show rubbish", f"why {NOBODY}",
    "jobs list --state odd", "jobs list --limit 0", "jobs list --limit 501",
    "jobs list --state failed --cursor rubbish",
    "jobs list --since soon", f"jobs retry {NOBODY}", "jobs retry {succeeded}", "jobs cancel {succeeded}",
    "jobs run-now {failed}", "jobs edit {failed} --priority 1", "jobs edit {pending} --priority 99999999999",
    "jobs delete {deleted} --yes", "jobs show {deleted}", "jobs cancel --state failed --yes", "jobs retry --all",
    "schedules show hourli", "schedules show removed", "schedules show other", "schedules enable nothing",
    "schedules update hourly --cron x", "schedules update hourly --every 0.1s", "schedules preview hourly -n 2000",
    "schedules list --limit 0", "schedules list --cursor x", "schedules run busy", "resume --queue nowhere",
    "pause --queue mail --until 2020-01-01T00:00:00Z",
    "tokens revoke nobody", "tokens create x --scope everything", "audit --cursor x",
    "audit -n 0", "costs --days 0", "costs --day 2026-13-01", "status --interval 0",
    "stats --span x", "stats --span 1s", "stats --span 8d", "audit verify --tenant nobody", "export --state odd",
    "export --since soon", "top --once --interval 0",
]  # fmt: skip


@pytest.fixture(scope="module")
def places(there: Served) -> dict[str, str]:
    app: Treadle = there.app
    deleted = app.enqueue("greet", {"name": "deleted"}, run_after="1d")
    app.delete(deleted.id, actor="ada", reason="a password")
    app.schedules.create("busy", "greet", {"name": "x"}, every="1d", overlap="skip")
    app.schedules.run("busy")
    found = {state: ids(app, state=state)[0] for state in ("succeeded", "failed", "pending")}
    return {**found, "deleted": deleted.id}


@pytest.mark.parametrize("line", SAME)
def test_it_is_refused_with_the_same_line(
    there: Served, places: dict[str, str], local: Call, remote: Call, line: str
) -> None:
    words = line.format(**places).split()
    here, over_there = local(*words), remote(*words)
    assert here.code in (1, 2)
    assert (over_there.code, over_there.out) == (here.code, here.out)
    if over_there.err != here.err:  # the API has a form of its own for these
        assert line in OWN_WORDS, (over_there.err, here.err)
    assert over_there.err.count("\n") == here.err.count("\n")


OWN_WORDS = (
    "schedules preview hourly -n 2000", "tokens create x --scope everything",
    "jobs edit {pending} --priority 99999999999",
)  # fmt: skip


def test_a_task_or_payload_that_does_not_fit_is_refused_by_the_server(there: Served, remote: Call) -> None:
    assert "did you mean 'greet'?" in remote("enqueue", "gret", "{}").err
    done = remote("enqueue", "greet", '{"nam": 1}')
    assert (done.code, done.out) == (2, "")
    assert "does not fit task greet(name: str)" in done.err
    error = json.loads(remote("enqueue", "greet", "{}", "--json").err)["error"]
    assert error["type"] == "InvalidPayload"


# ------------------------------------------------------------------------------------------------ bad inputs

ODD = [
    "", " ", ".", "..", "/", "a/b", "%2e%2e%2f", "\x1b[31m", "a\nb", "\x7f", "x" * 300, "x" * 20_000, "-1", "0",
    "1e999",
    "NaN", "true", "null", "[]", '{"a": 1}', "'; drop table jobs; --", "\u202e", "Zoë\u2028", "\ud800",
    "999999999999999999",
    "2030-13-45", "2030-01-31T12:00", "5 parsecs", "@yearly2", "61 * * * *", "Europe/Atlantis", "?a=b&c=d", "#", "*",
]  # fmt: skip

# Each {} is something odd. No such line can be right.
SHAPES = [
    "jobs show {}", "why {}", "jobs retry {}", "jobs cancel {} --reason {}", "jobs run-now {}",
    "jobs edit {} --queue {}",
    "jobs list --state {}", "jobs list --limit {}x", "jobs list --since {}x", "jobs list --state failed --cursor {}x",
    "schedules show {}", "schedules enable {} --tenant {}", "schedules delete {}", "schedules run {}",
    "schedules preview {}",
    "schedules update hourly --cron {}", "schedules update hourly --tz {}", "schedules update {} --every {}",
    "schedules create {} --task greet --cron {}", "schedules create x --task {} --every 1h",
    "schedules list --enabled {}x", "pause --queue {} --until {}x", "resume --task {}", "tokens revoke {}",
    "tokens create x --scope {}", "tokens create x --expires {}x", "audit --cursor {}", "audit --since {}x",
    "audit -n {}x",
    "costs --day {}", "costs --days {}x", "enqueue {}", "enqueue greet {}", "enqueue greet {{}} --run-after {}",
    "jobs delete --state {} --yes", "jobs cancel --state {} --yes", "{}", "jobs {}", "schedules {}",
    "status --interval {}x", "stats --span {}x", "tasks --schema {}", "audit verify --tenant {}", "export --state {}",
]  # fmt: skip


def bad_lines() -> Iterator[list[str]]:
    luck = random.Random(SEED)
    while True:
        shape = luck.choice(SHAPES)
        if luck.random() < 0.3:
            odd = [
                luck.choice(ODD) + "".join(luck.choices(string.printable, k=luck.randrange(1, 12))) for _ in range(2)
            ]
        else:
            odd = luck.choices(ODD, k=2)
        words, numbers = [], iter(odd)
        for word in shape.split():
            words.append(word.replace("{}", next(numbers)) if word not in ("{{}}",) and "{}" in word else word)
        yield ["{}" if word == "{{}}" else word for word in words]


def test_lines_that_cannot_be_right_end_in_one_line(there: Served, remote: Call) -> None:
    before = (there.app.find(limit=500).jobs, [*there.app.schedules.list()], there.app.pauses())
    lines = bad_lines()
    for _ in range(NUMBER):
        words = next(lines)
        done = remote(*words)
        if any(word in ("--help", "-h") for word in words):
            continue
        assert done.code in (1, 2), (words, done)
        assert done.out == "", (words, done)
        assert done.err.count("\n") == 1, (words, done)
        assert done.err.startswith("error: "), (words, done)
        assert "Traceback" not in done.err
        assert "unexpected" not in done.err, (words, done)
        assert "is not a treadle" not in done.err, (words, done)
        assert "older than this treadle" not in done.err, (words, done)
        assert "answers 500" not in done.err, (words, done)
        assert "an error of the server" not in done.err, (words, done)
    assert before == (there.app.find(limit=500).jobs, [*there.app.schedules.list()], there.app.pauses())
