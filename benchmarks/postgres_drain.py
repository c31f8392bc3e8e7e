"""How many no-op jobs a second one worker drains from PostgreSQL, beside bare SQL doing the same in the same run.

python -m benchmarks.postgres_drain            a server of its own, synchronous_commit=on, fsync=off
"""

import json
import statistics
import threading
import time

import psycopg

from tests.support import provision
from treadle import State, Treadle

JOBS, ROUNDS, BATCH = 20_000, 3, 500
PAYLOAD = {"user_id": 12345, "template": "welcome", "locale": "en"}

SCHEMA = """
drop table if exists bare;
create table bare (id bigint generated always as identity primary key, payload json not null,
    state int not null default 0, due timestamptz not null default now());
create index ready on bare (due, id) where state = 0;
"""
INSERT = "insert into bare (payload) select value from json_array_elements(%s::json)"
TURN = """
with done as (update bare set state = 2 where id = any(%s) and state = 1),
picked as (select id from bare where state = 0 and due <= statement_timestamp() order by due, id limit %s
    for update skip locked)
update bare set state = 1 where id = any(array(select id from picked)) and state = 0 returning id, payload::text
"""


def bare(url: str) -> tuple[float, float]:
    """Insert, claim and finish in one fused statement a batch, with one partial index and nothing else."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)
        start = time.perf_counter()
        for _ in range(0, JOBS, 1000):
            connection.execute(INSERT, [json.dumps([PAYLOAD] * 1000)])
        stored = time.perf_counter() - start
        done: list[int] = []
        start = time.perf_counter()
        while True:
            rows = connection.execute(TURN, [done, BATCH]).fetchall()
            if not rows:
                break
            for row in rows:
                json.loads(row[1])
            done = [row[0] for row in rows]
        return JOBS / stored, JOBS / (time.perf_counter() - start)


def treadle(url: str) -> tuple[float, float]:
    app = Treadle(url, concurrency=100)
    app.migrate()
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute("truncate treadle.jobs, treadle.finished, treadle.keys, treadle.events")

    @app.task
    async def noop(user_id: int, template: str, locale: str) -> None: ...

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
    rates: dict[str, list[float]] = {}
    with provision.Cluster(synchronous_commit="on") as cluster:
        runs = {"bare": (bare, ""), "treadle": (treadle, ""), "treadle, prepare=on": (treadle, "?prepare=on")}
        for _ in range(ROUNDS):
            for who, (run, options) in runs.items():
                enqueue, drain = run(cluster.url + options)
                rates.setdefault(f"{who}: enqueue", []).append(enqueue)
                rates.setdefault(f"{who}: drain", []).append(drain)
    for case, figures in rates.items():
        yardstick = rates[f"bare: {case.rpartition(' ')[2]}"]
        shares = [a / b for a, b in zip(figures, yardstick, strict=True)]
        print(
            f"{case:30} {statistics.median(figures):9,.0f} jobs/s  ({min(figures):,.0f}-{max(figures):,.0f}),"
            f" {statistics.median(shares):.0%} of bare SQL"
        )


if __name__ == "__main__":
    main()
