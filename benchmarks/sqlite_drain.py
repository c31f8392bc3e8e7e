"""How many no-op jobs a second one worker drains from SQLite, beside bare SQL doing the same in the same run."""

import json
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path

from treadle import State, Treadle

JOBS, ROUNDS, BATCH = 20_000, 5, 500
PAYLOAD = {"user_id": 12345, "template": "welcome", "locale": "en"}


def bare(folder: Path) -> tuple[float, float]:
    """Insert, claim and finish in batches, with one partial index and nothing else."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(
        "create table jobs (id integer primary key, payload text, state int default 0, due real default 0)"
    )
    connection.execute("create index ready on jobs (due, id) where state = 0")
    start = time.perf_counter()
    for _ in range(0, JOBS, 1000):
        connection.execute("begin immediate")
        connection.executemany("insert into jobs (payload) values (?)", [(json.dumps(PAYLOAD),)] * 1000)
        connection.execute("commit")
    stored = time.perf_counter() - start
    done: list[tuple[int]] = []
    start = time.perf_counter()
    while True:
        connection.execute("begin immediate")
        connection.executemany("update jobs set state = 2 where id = ?", done)
        rows = connection.execute(
            "update jobs set state = 1 where id in (select id from jobs where state = 0 and due <= ? order by due, id"
            " limit ?) returning id, payload",
            (time.time(), BATCH),
        ).fetchall()
        connection.execute("commit")
        if not rows:
            break
        for row in rows:
            json.loads(row[1])
        done = [(row[0],) for row in rows]
    drained = time.perf_counter() - start
    connection.close()
    return JOBS / stored, JOBS / drained


def treadle(folder: Path) -> tuple[float, float]:
    app = Treadle(f"sqlite:///{folder}/treadle.db", concurrency=100)

    @app.task
    async def noop(user_id: int, template: str, locale: str) -> None: ...

    app.migrate()
    start = time.perf_counter()
    for _ in range(0, JOBS, 1000):
        noop.enqueue_many([PAYLOAD] * 1000)
    stored = time.perf_counter() - start
    worker = app.worker()
    thread = threading.Thread(target=worker.run, kwargs={"until_idle": True})
    start = time.perf_counter()
    thread.start()
    thread.join()
    drained = time.perf_counter() - start
    if app.count()[State.SUCCEEDED] != JOBS:
        raise SystemExit("some jobs did not succeed")
    app.close()
    return JOBS / stored, JOBS / drained


def main() -> None:
    rates: dict[str, list[float]] = {"bare enqueue": [], "treadle enqueue": [], "bare drain": [], "treadle drain": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            for who, run in (("bare", bare), ("treadle", treadle)):
                enqueue, drain = run(Path(name))
                rates[f"{who} enqueue"].append(enqueue)
                rates[f"{who} drain"].append(drain)
    for case, figures in rates.items():
        print(f"{case:16} {statistics.median(figures):9,.0f} jobs/s  ({min(figures):,.0f}-{max(figures):,.0f})")
    for what in ("enqueue", "drain"):
        shares = [a / b for a, b in zip(rates[f"treadle {what}"], rates[f"bare {what}"], strict=True)]
        print(f"{what}: {statistics.median(shares):.0%} of bare SQL ({min(shares):.0%}-{max(shares):.0%})")


if __name__ == "__main__":
    main()
