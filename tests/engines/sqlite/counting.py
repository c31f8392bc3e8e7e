"""Counting what SQLite does: the steps of its virtual machine, and the plans of its queries."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from treadle.engines.contract import Engine
from treadle.engines.rows import COLUMNS
from treadle.engines.sqlite.rows import JOB, row_from
from treadle.model import Job


def steps(engine: Engine, act: Callable[[], bool]) -> int:
    """How many instructions SQLite's virtual machine ran for this; `act` says whether it did what it should."""
    count = 0

    def one_more() -> int:
        nonlocal count
        count += 1
        return 0

    with engine.file.write() as connection:
        connection.set_progress_handler(one_more, 1)
    try:
        assert act()
    finally:
        connection.set_progress_handler(None, 1)
    return count


def plans(engine: Engine, act: Callable[[], object]) -> dict[str, list[str]]:
    """Every query that this ran, with its plan."""
    ran: list[str] = []
    with engine.file.write() as connection:
        connection.set_trace_callback(ran.append)
    try:
        act()
    finally:
        connection.set_trace_callback(None)
    words = ("select", "with", "insert", "update", "delete")
    queries = [sql for sql in dict.fromkeys(ran) if sql.lstrip().lower().startswith(words)]
    return {sql: [row[3] for row in connection.execute(f"explain query plan {sql}")] for sql in queries}


def insert(engine: Engine, jobs: Iterable[Job]) -> None:
    """Put jobs into their table as they are, many at a time."""
    marks = ", ".join("?" * len(COLUMNS))
    source = iter(jobs)
    with engine.file.write() as connection:
        while some := list(islice(source, 5000)):
            for table in ("treadle_jobs", "treadle_finished"):
                rows: Sequence[object] = [row_from(job) for job in some if job.state.final == (table != "treadle_jobs")]
                connection.executemany(f"insert into {table} ({JOB}) values ({marks})", rows)
