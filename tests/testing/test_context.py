"""FakeContext: a handler with a Context is called directly, as a plain function, and what it told is looked at."""

import asyncio
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from treadle import Context, InvalidJob, LeaseLost, Progress, State, Task, Treadle
from treadle.testing import FakeContext, Settlement, run_until_idle


@pytest.fixture
def memory() -> Treadle:
    return Treadle("sqlite:///:memory:")


@pytest.fixture
def imports(memory: Treadle) -> Task:
    """A handler that uses all of its context."""

    @memory.task
    def imports(ctx: Context, rows: list[int]) -> int:
        for place, row in enumerate(rows):
            if ctx.cancelled:
                return place
            ctx.log.info("row %s", row)
            ctx.progress((place + 1) / len(rows), f"row {row}")
            ctx.add_cost(10)
        return len(rows)

    return imports


def test_a_handler_is_called_with_it_and_what_it_told_is_there(imports: Task) -> None:
    ctx = FakeContext(imports, {"rows": [7, 8]})
    assert imports(ctx, [7, 8]) == 2
    assert ctx.reported == [Progress(0.5, "row 7"), Progress(1.0, "row 8")]
    assert ctx.cost_micros == 20
    assert ctx.messages == ["row 7", "row 8"]
    assert (ctx.records[0].levelno, ctx.records[0].task) == (logging.INFO, "imports")
    assert ctx.settled is None


def test_it_says_what_a_running_job_says(imports: Task) -> None:
    ctx = FakeContext(imports, {"rows": []})
    assert (ctx.attempt, ctx.tick, ctx.cancelled) == (1, None, False)
    assert (ctx.job.task, ctx.job.payload, ctx.job.attempt, ctx.job.state) == ("imports", {"rows": []}, 1, "running")
    assert FakeContext().job.task == "test"
    assert FakeContext().job.id != FakeContext().job.id


def test_the_attempt_and_the_tick_can_be_chosen() -> None:
    night = datetime(2026, 3, 29, 1, 30, 0, 123000, UTC)
    ctx = FakeContext("report", attempt=3, tick=night)
    assert (ctx.attempt, ctx.job.attempt) == (3, 3)
    assert (ctx.tick, ctx.job.tick, ctx.job.schedule) == (night, night, "report")


def test_it_takes_a_job_that_was_enqueued(memory: Treadle, imports: Task) -> None:
    job = imports.using(priority=5).enqueue([1])
    ctx = FakeContext(job=job)
    assert (ctx.job.id, ctx.job.priority, ctx.attempt) == (job.id, 5, 1)
    assert FakeContext(job=job.evolve(attempt=4, cost_micros=7)).attempt == 4
    assert FakeContext(job=job.evolve(attempt=4, cost_micros=7)).cost_micros == 0
    assert memory.get(job.id).state is State.PENDING, "nothing is written"


def test_a_handler_that_is_cancelled_on_its_way_stops(imports: Task) -> None:
    assert imports(FakeContext(cancelled=True), [1, 2, 3]) == 0
    ctx = FakeContext()

    def rows() -> list[int]:
        class Rows(list):
            def __iter__(self):
                yield 1
                ctx.cancel()
                yield 2

        return Rows([1, 2, 3])

    assert imports(ctx, rows()) == 1
    assert ctx.messages == ["row 1"]


def test_a_lost_lease_refuses_what_a_real_one_refuses() -> None:
    ctx = FakeContext()
    ctx.lose_lease()
    assert ctx.cancelled
    for write in (lambda: ctx.progress(0.5), lambda: ctx.add_cost(1), lambda: ctx.settle(None)):
        with pytest.raises(LeaseLost, match="is no longer yours"):
            write()
    assert (ctx.reported, ctx.cost_micros, ctx.settled) == ([], 0, None)


def test_what_is_settled_is_kept_with_its_transaction() -> None:
    tx = object()
    ctx = FakeContext()
    ctx.settle(tx, {"sent": True})
    assert ctx.settled == Settlement(tx, {"sent": True})
    with pytest.raises(LeaseLost, match="settled before"):
        ctx.settle(tx)
    later = FakeContext()
    asyncio.run(later.asettle(tx))
    assert later.settled == Settlement(tx, None)


def test_it_refuses_what_the_real_one_refuses() -> None:
    ctx = FakeContext()
    with pytest.raises(InvalidJob, match="progress"):
        ctx.progress(2)
    with pytest.raises(InvalidJob, match="cost"):
        ctx.add_cost(-1)
    with pytest.raises(InvalidJob, match="result"):
        ctx.settle(None, object())
    assert (ctx.reported, ctx.cost_micros, ctx.settled) == ([], 0, None)


def test_what_cannot_be_is_refused_with_its_field() -> None:
    with pytest.raises(InvalidJob, match="attempt: 0 must be a whole number, 1 or more"):
        FakeContext(attempt=0)
    with pytest.raises(InvalidJob, match=r"tick: .* has no time zone"):
        FakeContext(tick=datetime(2026, 3, 29))  # noqa: DTZ001 - on purpose
    with pytest.raises(InvalidJob, match="tick: belongs to the job"):
        FakeContext(tick=datetime(2026, 3, 29, tzinfo=UTC), job=FakeContext().job)
    with pytest.raises(InvalidJob, match="payload"):
        FakeContext("test", object())


def test_what_is_logged_reaches_pytests_own_caplog_too(caplog: pytest.LogCaptureFixture) -> None:
    ctx = FakeContext("send")
    ctx.log.warning("slow")
    assert [(record.message, record.task, record.job_id) for record in caplog.records] == [("slow", "send", ctx.job.id)]


def test_it_tells_the_same_as_a_context_at_work(memory: Treadle) -> None:
    """What a handler reads of one, it reads of the other."""

    @memory.task
    def look(ctx: Context) -> list[object]:
        return [ctx.attempt, ctx.tick, ctx.cancelled, ctx.job.task, ctx.job.payload, ctx.job.state]

    look.enqueue()
    [job] = run_until_idle(memory)
    assert job.result == look(FakeContext(look))


def test_a_handler_called_without_its_context_says_what_is_missing(imports: Task, memory: Treadle) -> None:
    with pytest.raises(
        TypeError, match=r"task 'imports' takes a Context; in a test, pass treadle\.testing\.FakeContext"
    ):
        imports([1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'lines'"):
        imports(FakeContext(), lines=[1])

    @memory.task
    def plain(n: int) -> None:
        raise TypeError("of the handler")

    with pytest.raises(TypeError, match=r"^of the handler$"):
        plain(1)


PROGRAM = """
from treadle import Context, Job, Treadle
from treadle.testing import FakeContext

app = Treadle()

@app.task
def plain(to: str) -> int:
    return len(to)

@app.task(queue="mail")
async def asked(ctx: Context, to: str) -> int:
    return ctx.attempt

def handler(ctx: Context, to: str) -> int:
    return ctx.attempt

async def tests() -> None:
    one: int = handler(FakeContext(attempt=2), "ada")
    two: int = await asked(FakeContext(), "ada")
    three: int = plain("ada")
    job: Job = FakeContext(plain, {"to": "ada"}).job
    with app.override("sqlite:///:memory:") as same:
        same.tasks
    handler(FakeContext(atempt=2), "ada")  # wrong: call-arg
    asked(FakeContext(), "ada")  # wrong: unused-coroutine
    four: str = await asked(FakeContext(), "ada")  # wrong: assignment
    plain(5)  # wrong: arg-type
    plain("ada", "bob")  # wrong: call-arg
    await asked(to="ada")  # wrong: call-arg

@app.override("sqlite:///:memory:")
def decorated(n: int) -> int:
    return n

five: str = decorated(5)  # wrong: assignment
"""


@pytest.mark.slow
def test_a_strict_type_checker_takes_it_for_a_context_and_knows_what_handlers_return(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", "program.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    found = {(int(place), code) for place, code in re.findall(r":(\d+): error: .*\[(.+)\]", done.stdout)}
    lines = enumerate(PROGRAM.splitlines(), 1)
    wrong = {(number, line.rpartition("# wrong: ")[2]) for number, line in lines if "# wrong" in line}
    assert found == wrong, done.stdout
