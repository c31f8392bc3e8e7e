"""`treadle schedules list` with filters and pages, and of what code no longer declares."""

import pytest

from treadle import Treadle
from treadle.model.records import RETIRED

LIST = ("schedules", "list")
STORE = "sqlite:///treadle.db"


@pytest.fixture
def many(ready):
    """Five schedules; `report` was declared by code once."""
    app = Treadle(STORE)
    for number in range(3):
        app.schedules.create(f"acme:{number}", "greet", {"name": "Ada"}, every="1h", checked=False)
    app.schedules.create("off", "other", every="1h", enabled=False, checked=False)
    report = app.schedules.create("report", "other", every="1h", checked=False)
    declared = f"0123456789abcdef shop.tasks{RETIRED}"
    app.engine.save(report.evolve(declared=declared, enabled=False, revision=1), before=report)
    app.close()
    return ready


def names(answer) -> list[str]:
    return [schedule["name"] for schedule in answer.json["schedules"]]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (("--prefix", "acme:"), ["acme:0", "acme:1", "acme:2"]),
        (("--task", "other"), ["off", "report"]),
        (("--enabled", "false"), ["off", "report"]),
        (("--declared",), ["report"]),
        (("--undeclared", "--task", "other"), ["off"]),
        (("--gone",), ["report"]),
    ],
    ids=str,
)
def test_a_list_takes_filters(many, filters, wanted):
    assert names(many(*LIST, *filters, "--json")) == wanted


def test_a_list_is_shown_by_the_page_and_says_how_to_go_on(many):
    page = many(*LIST, "--limit", "2")
    assert page.out.splitlines()[-1] == "more: --cursor default/acme%3A1"
    rest = many(*LIST, "--limit", "3", "--cursor", "default/acme%3A1")
    assert [line.split()[0] for line in rest.out.splitlines()[1:]] == ["acme:2", "off", "report"]
    document = many(*LIST, "--limit", "4", "--json").json
    assert (len(document["schedules"]), document["cursor"]) == (4, "default/off")
    assert names(many(*LIST, "-n", "1", "--json")) == ["acme:0"]  # as in other lists


def test_what_code_no_longer_declares_is_marked(many):
    [line] = [line for line in many(*LIST).out.splitlines() if line.startswith("report")]
    assert "off, gone" in line
    [gone] = many(*LIST, "--gone", "--json").json["schedules"]
    assert (gone["declared"], gone["gone"]) == (True, True)
    assert many("schedules", "delete", "report").out == "report  deleted; the jobs it has made stay\n"


def test_doctor_says_it_too(many):
    assert "schedule report: module shop.tasks no longer declares it; it is disabled" in many("doctor").out


def test_an_empty_list_says_that_it_was_filtered(many):
    assert many(*LIST, "--prefix", "nobody").out.startswith("no schedules like that; ")


def test_a_bad_page_is_refused(many):
    assert "limit: 0 must be a number from 1 on" in many(*LIST, "--limit", "0").err
    assert "'x' is not a valid cursor: pass the cursor of the page before" in many(*LIST, "--cursor", "x").err
