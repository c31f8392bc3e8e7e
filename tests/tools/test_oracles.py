"""The oracles of treadle.testing.fakes: each stand-in has one, and bugs that are planted to test it."""

import re
from pathlib import Path

import pytest

from tests.oracles import planted, run
from treadle.testing import fakes

CLIENTS = Path(run.__file__).with_name("requirements.txt").read_text("utf-8")


def test_every_stand_in_has_a_judge_and_a_planted_bug() -> None:
    makers = {name for name in fakes.__all__ if name.islower()}
    assert set(run.NAMES) == makers == {bug.vendor for bug in planted.BUGS}


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: f"{bug.vendor}: {bug.what}")
def test_a_bug_can_be_planted_and_is_python(bug: planted.Bug) -> None:
    path = run.ROOT / run.FAKES / bug.file
    compile(bug.planted_in(path.read_text("utf-8")), bug.file, "exec")


def test_the_clients_are_pinned() -> None:
    lines = [line for line in CLIENTS.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.match(r"[\w.-]+==[\w.]+( ;|$)", line)] == []
    wanted = re.findall(r"^([\w-]+)", Path(run.__file__).with_name("requirements.in").read_text("utf-8"), re.MULTILINE)
    assert {name.replace("_", "-") for name in wanted} <= set(re.findall(r"^([\w.-]+)==", CLIENTS, re.MULTILINE))


def test_a_name_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["resent"]) == 2
    assert "resent: not known; take some of" in capsys.readouterr().err
