"""Promise 8 beside lanes: a claim of twenty touches as many pages beside ten thousand lanes as beside ten.

Counted on the server around the whole call: every page of our tables and their indexes that any statement, function or
trigger of it has touched. The number of rows is the same in both stores; only the number of lanes, or of unknown tasks,
differs. Where the jobs come from these lanes, ten are twenty, so that each job has a lane of its own in both stores.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support import stores
from tests.support.making import LEASE, a_job, an_error, claim
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.postgres.schema import named
from treadle.engines.values import Claim
from treadle.model import lifecycle, new_id
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.records import Pause
from treadle.testing import FakeClock

pytestmark = [pytest.mark.slow, pytest.mark.server]

FEW = 10
MANY = ROWS = size(2_500, long=10_000)
LIMIT = 20
MEASURED = 5  # claims of which the median counts
WARM_UP = 30  # claims within which everything that may not be taken was met once
TIMES = 1.3
DAY = timedelta(days=1)
QUEUES = ("default", "mail")

PAGES = """
select coalesce(sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
    + coalesce(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit, 0)), 0)::bigint
from pg_statio_user_tables where schemaname = %s
"""


class Counted(NamedTuple):
    """A store, and a connection that reads its counters."""

    engine: Any
    connection: psycopg.Connection[Any]

    def run(self, sql: str) -> None:
        self.connection.execute(named(sql, self.engine.schema))

    def pages(self, act: Callable[[], Any]) -> int:
        """How many pages of our tables this act touches, on whichever connection of the engine."""
        before = self._total()
        act()
        return self._total() - before

    def _total(self) -> int:
        """Pages touched so far; a session tells its own when it is asked to."""
        for connection in self.engine.server._idle:
            connection.execute("select pg_stat_force_next_flush()")
        [(total,)] = self.connection.execute(PAGES, [self.engine.schema]).fetchall()
        return int(total)


@contextmanager
def counted(folder: Path) -> Iterator[Counted]:
    with stores.fresh_store("postgres", folder) as url:
        # By a clock of our own: what an engine remembers of slow claims depends on how busy this machine is.
        engine = connect(url, clock=FakeClock().now)
        engine.open()
        try:
            with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
                # What autovacuum does between two claims is not theirs.
                connection.execute(f"alter table {engine.schema}.jobs set (autovacuum_enabled = off)")
                yield Counted(engine, connection)
        finally:
            engine.close()


# ------------------------------------------------------------------------------------------------ the crowds


def backlogged(store: Counted, lanes: int) -> None:
    now = store.engine.now()
    store.engine.enqueue([a_job(now, lane=f"l{n % lanes}") for n in range(ROWS)])


def future_by_enqueue(store: Counted, lanes: int) -> None:
    now = store.engine.now()
    store.engine.enqueue([a_job(now, lane=f"l{n % lanes}", due_at=now + DAY, priority=9) for n in range(ROWS)])
    default_lane(store)


def future_by_plain_sql(store: Counted, lanes: int) -> None:
    store.run(
        "insert into @.jobs (task, lane, due_at, priority)"
        f" select 'greet', 'l' || n % {lanes}, now() + interval '1 day', 9 from generate_series(1, {ROWS}) n"
    )
    default_lane(store)


def future_by_retries(store: Counted, lanes: int) -> None:
    """As an outage leaves them."""
    engine = store.engine
    backlogged(store, lanes)
    while jobs := claim(engine, 500):
        now = engine.now()
        engine.turn([lifecycle.settle(job, Failed(an_error(now), DAY.total_seconds()), now) for job in jobs])
    default_lane(store)


def of_one_unknown_task(store: Counted, lanes: int) -> None:
    now = store.engine.now()
    store.engine.enqueue([a_job(now, lane=f"l{n % lanes}", task="unknown", priority=9) for n in range(ROWS)])
    default_lane(store)


def of_unknown_tasks_in_one_lane(store: Counted, tasks: int) -> None:
    now = store.engine.now()
    store.engine.enqueue([a_job(now, task=f"unknown{n % tasks}", priority=9) for n in range(ROWS)])
    default_lane(store)


def paused(**scope: str) -> Callable[[Counted, int], None]:
    def stock(store: Counted, lanes: int) -> None:
        now = store.engine.now()
        store.engine.enqueue([a_job(now, **{"lane": f"l{n % lanes}", "priority": 9, **scope}) for n in range(ROWS)])
        assert store.engine.save(Pause(**scope, at=now), before=None).done  # type: ignore[arg-type]
        default_lane(store)

    return stock


def resumed(**scope: str) -> Callable[[Counted, int], None]:
    """Met behind a pause that is over."""

    def stock(store: Counted, lanes: int) -> None:
        paused(**scope)(store, lanes)
        warm_up(store)
        assert store.engine.drop(*store.engine.records(Pause))

    return stock


def default_lane(store: Counted) -> None:
    """Jobs that may be taken."""
    now = store.engine.now()
    store.engine.enqueue([a_job(now) for _ in range((WARM_UP + 4 * MEASURED) * LIMIT)])


SERVED: dict[str, Callable[[Counted, int], None]] = {
    "lanes with backlogs": backlogged,
    "lanes after a pause of their task": resumed(task="render"),
    "lanes after a pause of their tenant": resumed(tenant="acme"),
}
CROWDS: dict[str, Callable[[Counted, int], None]] = {
    **SERVED,
    "lanes with future jobs, by enqueue": future_by_enqueue,
    "lanes with future jobs, by plain SQL": future_by_plain_sql,
    "lanes with future jobs, by retries": future_by_retries,
    "lanes full of one unknown task": of_one_unknown_task,
    "one lane full of unknown tasks": of_unknown_tasks_in_one_lane,
    "lanes behind a pause of their task": paused(task="render"),
    "lanes behind a pause of their tenant": paused(tenant="acme"),
    "lanes behind a pause of their queue": paused(queue="mail"),
}


# --------------------------------------------------------------------------------------------------- the claim


def twenty(store: Counted) -> None:
    """Claim twenty jobs, which must be there."""
    wish = Claim(new_id(), "w1", LIMIT, LEASE, QUEUES, tasks=("greet", "render"))
    given = len(store.engine.turn([], wish).claimed)
    assert given == LIMIT, f"a claim of {LIMIT} gave {given} of the thousands that are due"


def warm_up(store: Counted) -> None:
    """Claim until all that may not be taken was met, and the claims after that find their twenty."""
    for _ in range(WARM_UP):
        wish = Claim(new_id(), "w1", LIMIT, LEASE, QUEUES, tasks=("greet", "render"))
        store.engine.turn([], wish)


def cost(store: Counted) -> float:
    return median(store.pages(lambda: twenty(store)) for _ in range(MEASURED))


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_a_claim_touches_no_more_pages_beside_ten_thousand_lanes_than_beside_ten(
    crowd: Callable[[Counted, int], None], tmp_path: Path
) -> None:
    costs: dict[str, list[float]] = {"never analysed": [], "analysed": []}
    few_lanes = LIMIT if crowd in SERVED.values() else FEW
    for lanes in (few_lanes, MANY):
        with counted(tmp_path) as store:
            crowd(store, lanes)
            warm_up(store)
            store.run("vacuum @.jobs")  # index entries of dead rows are its business; it comes after 2,000 of them
            costs["never analysed"].append(cost(store))
            store.run("vacuum analyze @.jobs")
            costs["analysed"].append(cost(store))

    for few, many in costs.values():
        assert many <= TIMES * few, f"pages beside {few_lanes} and beside {MANY}: {costs}"


def test_a_look_that_finds_nothing_touches_no_more_pages_beside_ten_thousand_lanes_than_beside_ten(
    tmp_path: Path,
) -> None:
    """An idle worker looks every second; lanes that wait for their time must not cost it anything."""
    costs = []
    for lanes in (FEW, MANY):
        with counted(tmp_path) as store:
            now = store.engine.now()
            store.engine.enqueue([a_job(now, lane=f"l{n % lanes}", due_at=now + DAY) for n in range(ROWS)])
            assert claim(store.engine) == []
            costs.append(median(store.pages(lambda: claim(store.engine)) for _ in range(MEASURED)))

    few, many = costs
    assert many <= TIMES * few, f"pages of an empty claim beside {FEW} and beside {MANY}: {costs}"


def test_a_drain_of_lanes_with_one_job_each_touches_at_most_twice_the_pages_of_a_plain_drain(tmp_path: Path) -> None:
    costs = []
    for lanes in (1, 2_000):
        with counted(tmp_path) as store:
            now = store.engine.now()
            store.engine.enqueue([a_job(now, lane=f"l{n % lanes}") for n in range(2_000)])
            costs.append(store.pages(lambda: drain(store)))

    plain, laned = costs
    assert laned <= 2 * plain, f"pages of 2,000 jobs in one lane and in as many: {costs}"


def drain(store: Counted) -> None:
    """Claim and settle until all of them have ended, as a worker does: one that got nothing looks everywhere."""
    ended, jobs = 0, claim(store.engine, 100)
    for _ in range(200):
        now = store.engine.now()
        changes = [lifecycle.settle(job, Succeeded(), now) for job in jobs]
        wish = Claim(new_id(), "w1", 100, LEASE, thorough=not jobs)
        jobs, ended = store.engine.turn(changes, wish).jobs, ended + len(changes)
        if ended == 2_000:
            return
    raise AssertionError(f"{ended} of 2,000 jobs in 200 turns")
