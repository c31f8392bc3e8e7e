"""The texts that PostgreSQL is sent for a turn, each whole in a file beside this one, to read and to review as a diff.

`python -m tests.engines.postgres.golden` writes them anew; test_golden.py fails while they are not current.
"""

from pathlib import Path

from treadle.engines.postgres import settle, turn

FOLDER = Path(__file__).parent


def texts() -> dict[str, str]:
    """By file name: the statement with its comments, and what it is for."""
    found = {f"{name(form)}.sql": f"-- {purpose(form)}\n\n{turn.commented(form)}\n" for form in turn.FORMS}
    found["settle.sql"] = f"-- A turn that settles alone (settle.py).\n\n{settle.SETTLE_COMMENTED.strip()}\n"
    return found


def name(form: turn.TurnForm) -> str:
    """A file name that says what the form does: settle_claim_all_lanes_parked."""
    return "_".join(["settle"] * form.settles + ["claim", form.lanes] + ["parked"] * form.parked)


def purpose(form: turn.TurnForm) -> str:
    """One sentence about the form."""
    doing = "settles and claims" if form.settles else "claims and has nothing to settle"
    lanes = {"all_lanes": "from any lane", "named_lanes": "from named lanes", "resumes": "from cursors"}[form.lanes]
    state = "something may be parked or paused" if form.parked else "nothing is thought to be parked or paused"
    return f"A turn that {doing}, {lanes}, while {state} (sql/turn.sql)."
