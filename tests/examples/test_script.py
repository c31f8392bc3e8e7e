"""examples/script: a list worked through by jobs, stopped and killed in the middle."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.examples.conftest import Example, Running
from tests.support.workbench import until
from treadle import State, Treadle

SCRIPT = "python prices.py"
ASKS = "asking for the price of"
ROW = re.compile(r"^\w+ +(?:pending|running|succeeded|failed) .*\n", re.MULTILINE)


@pytest.fixture
def script(example: Callable[[str], Example]) -> Example:
    return example("script")


@pytest.fixture
def app(script: Example) -> Iterator[Treadle]:
    """The script's store, as another process sees it."""
    with closing(Treadle(f"sqlite:///{script.folder}/prices.db")) as app:
        yield app


def asked(printed: str) -> int:
    return printed.count(ASKS)


def table(printed: str) -> str:
    return "".join(ROW.findall(printed))


@contextmanager
def slow_shop(script: Example, seconds: int) -> Iterator[None]:
    """The script's requests take so long: a busy machine must not be too late to stop it."""
    program = script.folder / "prices.py"
    text = program.read_text("utf-8")
    assert "sleep(0.5)" in text
    program.write_text(text.replace("sleep(0.5)", f"sleep({seconds})"), "utf-8")
    yield
    program.write_text(text, "utf-8")


def started(script: Example) -> Running:
    """The script, with two jobs at work."""
    running = script.start(SCRIPT)
    running.says(ASKS)
    running.says(ASKS)
    return running


@pytest.mark.slow
def test_it_prints_the_table_of_its_readme_and_asks_for_nothing_twice(script: Example) -> None:
    [expected] = script.outputs
    first, second = script.run(SCRIPT), script.run(SCRIPT)
    assert (asked(first), table(first)) == (9, expected)  # eight fruits, and figs once more
    assert second == expected


@pytest.mark.slow
def test_a_second_start_goes_on_where_ctrl_c_has_stopped_the_first(script: Example) -> None:
    [expected] = script.outputs
    with slow_shop(script, 3):
        stopped = started(script).end(signal.SIGINT)
    assert "pending" in table(stopped)
    assert "running" not in table(stopped)
    rest = script.run(SCRIPT)
    assert 2 + asked(stopped) + asked(rest) == 9
    assert table(rest) == expected


@pytest.mark.slow
def test_what_was_at_work_when_it_was_killed_runs_again_when_its_lease_is_over(script: Example, app: Treadle) -> None:
    script.environment["TREADLE_LEASE"] = "1s"  # nobody wants to wait for 30
    with slow_shop(script, 60):
        started(script).end(signal.SIGKILL)
    held = app.find(state=State.RUNNING).jobs
    assert len(held) == 2
    until(lambda: all(job.lease_until < app.engine.now() for job in held), "the end of the killed script's leases")
    assert table(script.run(SCRIPT)).count("succeeded") == 7
    assert [app.get(job.id).attempt for job in held] == [2, 2]
