"""`treadle schedules preview`: when a schedule would run, without a database."""

import json

import pytest

NEW_YORK = ("--tz", "America/New_York")
PREVIEW = ("schedules", "preview")


def test_a_preview_shows_utc_local_time_with_its_offset_and_a_note(call):
    answer = call(*PREVIEW, "--cron", "30 2 * * *", *NEW_YORK, "--after", "2026-03-07T12:00Z", "-n", "2")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "utc                      local                        note",
        "2026-03-08 07:00:00 UTC  Sun 2026-03-08 03:00 -04:00  moved to the end of the gap",
        "2026-03-09 06:30:00 UTC  Mon 2026-03-09 02:30 -04:00",
        "wall clock: a time that comes twice runs once, one that is leapt over runs at the end of the gap",
    ]


def test_a_preview_says_which_law_rules_a_schedule(call):
    answer = call(*PREVIEW, "--cron", "30 * * * *", *NEW_YORK, "--after", "2026-11-01T05:00Z", "-n", "2")
    assert answer.out.splitlines()[1:] == [
        "2026-11-01 05:30:00 UTC  Sun 2026-11-01 01:30 -04:00  the first of two, both run",
        "2026-11-01 06:30:00 UTC  Sun 2026-11-01 01:30 -05:00  the second of two, both run",
        "real time (a * in minute or hour): runs whenever the local time matches, twice if it comes twice",
    ]


def test_a_preview_as_json(call):
    answer = call(*PREVIEW, "--cron", "30 1 * * *", *NEW_YORK, "--after", "2026-11-01T00:00-04:00", "-n", "2", "--json")
    assert answer.json == {
        "cron": "30 1 * * *",
        "timezone": "America/New_York",
        "law": "wall_clock",
        "runs": [
            {"at": "2026-11-01T05:30:00+00:00", "local": "2026-11-01T01:30:00-04:00", "note": "the first of two"},
            {"at": "2026-11-02T06:30:00+00:00", "local": "2026-11-02T01:30:00-05:00", "note": ""},
        ],
    }
    assert call(*PREVIEW, "--cron", "@hourly", "--json").json["law"] == "real_time"


def test_a_preview_is_of_five_runs_from_now_in_utc(call):
    answer = call(*PREVIEW, "--cron", "@daily", "--json").json
    assert (len(answer["runs"]), answer["timezone"]) == (5, "UTC")
    for option in ("-n", "--limit"):
        assert len(call(*PREVIEW, "--cron", "@daily", option, "2", "--json").json["runs"]) == 2


def test_a_preview_needs_no_database_and_makes_none(call, project, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", "postgresql://nobody@nowhere.invalid/none")
    before = sorted(project.iterdir())
    assert call(*PREVIEW, "--cron", "@daily").code == 0
    assert sorted(project.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("schedules",), "Missing command"),
        (PREVIEW, "Give either the NAME of a schedule or --cron"),
        ((*PREVIEW, "--cron", ""), "has 0 fields and must have 5"),
        ((*PREVIEW, "--cron", "0 0 * * * *"), "has 6 fields and must have 5"),
        ((*PREVIEW, "--cron", "61 * * * *"), "minute: '61' is out of range; it takes 0 to 59"),
        ((*PREVIEW, "--cron", "0 0 31 2 *"), "day of month: '31' never comes in month '2'"),
        ((*PREVIEW, "--cron", "\x1b[31m * * * *"), "minute: '\\x1b[31m' cannot be read"),
        ((*PREVIEW, "--cron", "@daily", "--tz", "Europe/Berln"), "did you mean 'Europe/Berlin'?"),
        ((*PREVIEW, "--cron", "@daily", "--tz", ""), "write an IANA name"),
        ((*PREVIEW, "--cron", "@daily", "--after", "soon"), "--after: 'soon' is no time; write one such as"),
        ((*PREVIEW, "--cron", "@daily", "--after", "2026-01-31"), "write 2026-01-31T00:00:00Z for UTC"),
        ((*PREVIEW, "--cron", "@daily", "--after", "9999-12-31T00:00Z"), "the year 9999 is out of range"),
        ((*PREVIEW, "--cron", "@daily", "--after", "0001-01-01T00:00+10:00"), "the year 1 is out of range"),
        ((*PREVIEW, "--cron", "@daily", "-n", "0"), "must be from 1 to 1,000"),
        ((*PREVIEW, "--cron", "@daily", "-n", "1001"), "must be from 1 to 1,000"),
        ((*PREVIEW, "--cron", "@daily", "-n", "many"), "-n"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_bad_input_is_one_clear_line(call, words, said):
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "\x1b" not in answer.err
    machine = call(*words, "--json")
    assert (machine.code, machine.out) == (2, "")
    assert json.loads(machine.err)["error"].keys() == {"type", "message"}


def test_help_has_the_group_and_an_example(call):
    assert "List, show, create, change, run and preview schedules." in call("--help").out
    assert "treadle schedules preview --cron" in call(*PREVIEW, "--help").out


def test_explain_says_an_expression_in_words(call):
    answer = call("schedules", "explain", "0 9 * * 1#2")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == "at 09:00 on the second Monday of the month"
    assert answer.out.splitlines()[1].startswith("wall clock: ")
    assert call("schedules", "explain", "*/5 * * * *", "--json").json == {
        "cron": "*/5 * * * *",
        "words": "every 5 minutes",
        "law": "real_time",
    }


def test_explain_refuses_what_cannot_be_read(call):
    answer = call("schedules", "explain", "0 9 * * 1#6")
    assert answer.code == 2
    assert "day of week: '1#6' has no number from 1 to 5 after the #" in answer.err
