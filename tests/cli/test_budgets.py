"""`treadle budgets`: who has spent how much of what it may."""

import pytest

APP = """
from treadle import Context, Treadle

app = Treadle(budgets={budgets})


@app.task
def spend(ctx: Context, micros: int) -> None:
    ctx.add_cost(micros)
"""


@pytest.fixture
def with_budgets(ready, project, monkeypatch):
    """A project with these budgets; acme has spent 1.2 units, birch 0.5."""

    def with_budgets(budgets: dict):
        (project / "budgeted.py").write_text(APP.replace("{budgets}", repr(budgets)))
        monkeypatch.setenv("TREADLE_APP", "budgeted:app")
        return ready

    return with_budgets


@pytest.fixture
def spent(with_budgets):
    call = with_budgets({"acme": 1_000_000, "*": 2_000_000})
    for micros, tenant in ((1_200_000, "acme"), (500_000, "birch")):
        call("enqueue", "spend", f'{{"micros": {micros}}}', "--tenant", tenant)
    assert call("worker", "--until-idle").code == 0
    return call


def test_what_is_spent_stands_beside_what_may_be(spent):
    spent("pause", "--tenant", "birch", "--reason", "moves")
    lines = [line.split() for line in spent("budgets").out.splitlines()]
    assert lines[0] == ["tenant", "spent", "budget", "state", "paused"]
    assert lines[1][:4] == ["acme", "1.20", "1.00", "spent"]
    assert lines[2][:5] == ["birch", "0.50", "2.00", "within", "by"]
    machine = spent("budgets", "--json").json
    assert machine["others"] == 2_000_000
    assert [(one["tenant"], one["spent"], one["budget"], one["state"]) for one in machine["budgets"]] == [
        ("acme", 1_200_000, 1_000_000, "spent"),
        ("birch", 500_000, 2_000_000, "within"),
    ]
    assert [one["tenant"] for one in spent("budgets", "--tenant", "birch", "--json").json["budgets"]] == ["birch"]


def test_without_budgets_it_says_how_to_give_one(with_budgets):
    assert with_budgets({})("budgets").out == (
        "no tenant has a budget; `budgets` in the settings gives one: docs/costs.md\n"
    )
    assert (
        "of 5 micros a day, no tenant has spent any" in with_budgets({"*": 5})("budgets", "--app", "budgeted:app").out
    )
