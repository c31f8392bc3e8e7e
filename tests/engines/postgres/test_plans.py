"""A connection keeps the plans of our functions: one made on an empty, never analysed table must do on a full one.

Each call is made on a connection that planned it before, on a table that was as different as can be. A plan that has
become wrong reads a whole table or index, so no statement may read more than some hundred rows or pages.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.engines.postgres.explained import Explained, Statement, explained
from tests.support import stores
from tests.support.making import LEASE, a_job, an_error, claim, enqueued
from treadle.engines import connect
from treadle.engines.postgres import settle
from treadle.engines.postgres.cursors import ClaimCursor
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.schema import named
from treadle.engines.postgres.turn import TURN, parameters, request
from treadle.engines.values import Claim, Lease
from treadle.model import Job, Reason, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded, Success

pytestmark = [pytest.mark.slow, pytest.mark.server]

TABLES = ("jobs", "finished", "keys", "events")
DAY = timedelta(days=1)
MAX_ROWS = 200
MANY = 25  # jobs that a token holds: if each were found by the token, that would be too many rows
MAX_PAGES = 500  # a job claimed or stored has a row and an entry in each of some indexes

CROWD = """
insert into @.jobs (task, queue, priority, due_at, lane, later, tenant, task_version, parked, parked_by_tenant)
select 'greet', 'default', 9, now() + interval '1 year', '', false, 'default', 1, false, false
from generate_series(1, 8000)
union all
select 'greet', 'default', 0, now(), '', false, 'default', 1, false, false from generate_series(1, 8000)
union all
select 'greet', 'default', 0, now(), 'l' || n % 4000, false, 'default', 1, false, false from generate_series(1, 8000) n
union all
select 'greet', 'default', 0, now() + interval '1 year', 'future' || n, true, 'default', 1, false, false
from generate_series(1, 8000) n
union all
select 'stranger' || n % 3, 'default', 5, now(), '', false, 'default', 1, true, false from generate_series(1, 8000) n
union all
select 'greet', 'default', 0, now(), '', false, 'default', 1 + n % 3, true, false from generate_series(1, 8000) n
union all
select 'greet', 'default', 0, now(), '', false, 't' || n % 3, 1, true, true from generate_series(1, 8000) n;
insert into @.jobs (task, state, attempt, revision, lease_until, lease_token, worker, expires_at)
select 'greet', 'running', 1, 1, now() + interval '1 hour', 'token' || n % 400, 'w2', now() + interval '1 day'
from generate_series(1, 8000) n;
insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
    max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
    cost_micros, revision)
select @.new_id(), 'greet', '{}', now(), now(), 'default', 'default', '', 1, 0, 5, 5, 1, 'succeeded', 1, 0, 0, now(),
    false, 0, 2
from generate_series(1, 20000);
insert into @.keys (tenant, task, key, job, scope)
select 'default', 'greet', 'old' || n, gen_random_uuid(), 'active' from generate_series(1, 20000) n;
insert into @.events (job, revision, at, kind, actor, note, tenant)
select gen_random_uuid(), 1, now(), 'failed', 'w1', '', 'default' from generate_series(1, 20000) n;
"""


class Store(NamedTuple):
    """A store that nobody vacuums or analyses, with an engine that has one connection."""

    engine: PostgresEngine
    connection: psycopg.Connection[Any]

    def run(self, sql: str) -> None:
        for statement in sql.split(";"):
            self.connection.execute(named(statement, self.engine.schema))

    def fill(self) -> None:
        self.run(CROWD)

    def analyze(self) -> None:
        self.run("; ".join(f"analyze @.{table}" for table in TABLES))

    def empty(self) -> None:
        self.run("; ".join(f"truncate @.{table}" for table in TABLES))

    def called(self) -> dict[str, Explained]:
        """Make every call once and take back what it has written; how each was done."""
        return {
            name: explained(self.engine, lambda call=call: call(self.engine), undo=True)  # type: ignore[misc]
            for name, call in CALLS.items()
        }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stores.fresh_store("postgres", tmp_path) as url:
        engine = connect(url, audit_all=True)
        engine.open()
        try:
            with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
                for table in TABLES:
                    connection.execute(f"alter table {engine.schema}.{table} set (autovacuum_enabled = off)")
                yield Store(engine, connection)
        finally:
            engine.close()


# ------------------------------------------------------------------------------------------------- the calls


def send(engine: PostgresEngine, sql: str) -> None:
    engine.session.read(sql)


def turn(engine: PostgresEngine, limit: int = 5, *, cursors: Any = (), **fields: Any) -> None:
    """A claim, sent as it is: what an engine remembers of slow claims depends on how busy this machine is."""
    wish = Claim(**{"token": new_id(), "worker": "w1", "limit": limit, "lease": LEASE, "tasks": ("greet",), **fields})
    values = parameters([], [], request(wish, audit_all=True, cursors=cursors), None)
    engine.session.run(lambda connection: engine.session.call(connection, TURN, values))


def held(engine: PostgresEngine, number: int, **fields: object) -> list[Job]:
    """New jobs in a queue of their own, claimed."""
    now, queue = engine.now(), new_id()
    engine.enqueue([a_job(now, queue=queue, **fields) for _ in range(number)])
    return claim(engine, number, queues=[queue])


def enqueue_alike(engine: PostgresEngine) -> None:
    now = engine.now()
    engine.enqueue([a_job(now) for _ in range(5)])


def enqueue_mixed(engine: PostgresEngine) -> None:
    now = engine.now()
    engine.enqueue([a_job(now, priority=n, lane=f"l{n}", due_at=now + n * DAY) for n in range(5)])


def enqueue_known_ids(engine: PostgresEngine) -> None:
    [job] = held(engine, 1)
    waiting = enqueued(engine)
    engine.turn([lifecycle.settle(job, Succeeded(), engine.now())])
    now = engine.now()
    engine.enqueue([a_job(now, id=job.id), a_job(now, id=waiting.id)])
    engine.enqueue([a_job(now, id=job.id, priority=1), a_job(now, id=waiting.id)])


def enqueue_new_keys(engine: PostgresEngine) -> None:
    now = engine.now()
    scopes = ("pending", "active", "ever")
    engine.enqueue([a_job(now, key=f"new-{scope}", key_scope=scope) for scope in scopes])
    engine.enqueue([a_job(now, key="new-window", key_scope="window", key_until=now + DAY)])


def enqueue_taken_keys(engine: PostgresEngine) -> None:
    enqueue_new_keys(engine)
    enqueue_new_keys(engine)


def enqueue_dead_keys(engine: PostgresEngine) -> None:
    send(
        engine,
        "insert into @.keys (tenant, task, key, job, scope, until) values"
        " ('default', 'greet', 'new-window', @.new_id(), 'window', now() + interval '1 day')",
    )
    enqueue_new_keys(engine)


def enqueue_known_id_with_a_key(engine: PostgresEngine) -> None:
    job = enqueued(engine)
    engine.enqueue([a_job(engine.now(), id=job.id, key="k", key_scope="active")])


def enqueue_by_sql(engine: PostgresEngine) -> None:
    for n in range(7):  # a plan is kept from the sixth time on
        send(engine, "select * from @.enqueue('greet')")
        send(engine, f"select * from @.enqueue('greet', key => 'sql{n % 4}', lane => 'a')")


def insert_by_hand(engine: PostgresEngine) -> None:
    id_ = new_id()
    send(
        engine, f"insert into @.jobs (id, task, lane, due_at) values ('{id_}', 'greet', 'a', now() + interval '1 day')"
    )
    send(engine, f"update @.jobs set due_at = now(), priority = 1 where id = '{id_}'")


def claim_many(engine: PostgresEngine) -> None:
    assert len(held(engine, MANY)) == MANY


def claim_named_lanes(engine: PostgresEngine) -> None:
    enqueued(engine, lane="l7")
    turn(engine, lanes=("l7", "l8", "none"))


def claim_from_cursors(engine: PostgresEngine) -> None:
    first = enqueued(engine)
    enqueue_alike(engine)
    turn(engine, cursors=[ClaimCursor("default", "", 0, first.due_at, first.id)])


def claim_parked_by_task(engine: PostgresEngine) -> None:
    enqueued(engine, task="stranger", priority=10)
    enqueued(engine, task="stranger", task_version=2, lane="l1", priority=10)
    turn(engine)
    turn(engine, tasks=("stranger", "greet"), versions={"stranger": 2})
    turn(engine, tasks=None)


def claim_parked_by_tenant(engine: PostgresEngine) -> None:
    now = engine.now()
    engine.enqueue([a_job(now, tenant=f"t{n}", priority=10, lane=f"l{n}") for n in range(5)])
    send(engine, "insert into @.pauses (tenant) select 't' || n from generate_series(0, 4) n")
    turn(engine)
    send(engine, "delete from @.pauses")
    turn(engine)


def claim_what_was_later(engine: PostgresEngine) -> None:
    jobs = [enqueued(engine, lane=f"x{n}", due_at=engine.now() + DAY) for n in range(3)]
    ids = ", ".join(f"'{job.id}'" for job in jobs)
    send(engine, f"update @.jobs set due_at = now() where id in ({ids})")
    turn(engine)


def claim_keyed(engine: PostgresEngine) -> None:
    now, queue = engine.now(), new_id()
    engine.enqueue([a_job(now, queue=queue, key=f"p{n}", key_scope="pending") for n in range(3)])
    turn(engine, queues=(queue,))


def claim_again(engine: PostgresEngine) -> None:
    enqueued(engine)
    token = new_id()
    turn(engine, token=token)
    turn(engine, token=token)


def turn_with_all(engine: PostgresEngine) -> None:
    now = engine.now()
    plain, [retried], [keyed] = (
        held(engine, MANY),
        held(engine, 1, lane="l1"),
        held(engine, 1, key="t", key_scope="active"),
    )
    ends = [Success(job.id, job.lease_token or "", job.revision, now, "1", lambda job=job: job) for job in plain]
    changes = [
        lifecycle.settle(retried, Failed(an_error(now), 60.0), now),
        lifecycle.settle(keyed, FailedForGood(Reason.PERMANENT, an_error(now)), now),
    ]
    wish = Claim(new_id(), "w1", 5, LEASE, tasks=("greet",))
    engine.turns.cursors.forget()
    verdicts = engine.turn([*ends, *changes], wish).verdicts
    assert all(verdict.ruling.value == "applied" for verdict in verdicts)


def settle_changes(engine: PostgresEngine) -> None:
    changes = [lifecycle.settle(job, Succeeded("1"), engine.now()) for job in held(engine, MANY)]
    settle.settle(engine._store, changes, None)
    settle.settle(engine._store, changes, None)


def read(engine: PostgresEngine) -> None:
    jobs = held(engine, 3)
    engine.turn([lifecycle.settle(jobs[0], Succeeded(), engine.now())])
    assert [job.id for job in engine.get([job.id for job in jobs]) if job] == [job.id for job in jobs]


CALLS: dict[str, Callable[[PostgresEngine], None]] = {
    "enqueue jobs that are alike": enqueue_alike,
    "enqueue jobs that differ": enqueue_mixed,
    "enqueue known ids": enqueue_known_ids,
    "enqueue new keys": enqueue_new_keys,
    "enqueue taken keys": enqueue_taken_keys,
    "enqueue keys of dead jobs": enqueue_dead_keys,
    "enqueue a known id with a key": enqueue_known_id_with_a_key,
    "enqueue by SQL": enqueue_by_sql,
    "insert by hand": insert_by_hand,
    "claim": turn,
    "claim any task": lambda engine: turn(engine, tasks=None, unless=("other",)),
    "claim more than an answer carries": claim_many,
    "claim in named lanes": claim_named_lanes,
    "claim from cursors": claim_from_cursors,
    "claim what was parked by task": claim_parked_by_task,
    "claim what was parked by tenant": claim_parked_by_tenant,
    "claim what was later": claim_what_was_later,
    "claim jobs with keys": claim_keyed,
    "claim under the same token again": claim_again,
    "settle, succeed and claim": turn_with_all,
    "settle": settle_changes,
    "read": read,
}


# ---------------------------------------------------------------------------------------------------- the plans


def check(calls: dict[str, Explained]) -> None:
    """No statement reads more than the few rows that it needs."""
    wrong = [f"{name}: {each}" for name, call in calls.items() for each in call.statements if reads_too_much(each)]
    assert not wrong, "\n".join(wrong)


def reads_too_much(statement: Statement) -> bool:
    whole = {scan for scan in statement.scans if scan.startswith("whole table")} - {"whole table pauses"}
    # A call of a function reads nothing itself; what is counted for it are its statements, and planning them.
    pages = statement.pages if statement.scans else 0
    return bool(whole) or statement.rows > MAX_ROWS or pages > MAX_PAGES


def test_plans_made_on_an_empty_store_do_on_a_full_one_that_nobody_analysed(store: Store) -> None:
    store.called()
    store.fill()

    check(store.called())


def test_plans_made_on_an_empty_store_do_on_a_full_one_that_was_analysed(store: Store) -> None:
    store.called()
    store.fill()
    store.analyze()

    check(store.called())


def test_plans_of_a_full_store_that_nobody_analysed_are_right(store: Store) -> None:
    store.fill()

    check(store.called())


def test_renewals_find_their_jobs_by_id_beside_thousands_of_leases_that_nobody_analysed(store: Store) -> None:
    store.fill()
    engine = store.engine
    jobs = held(engine, 5)

    check({"renew": explained(engine, lambda: renew(engine, jobs))})


def renew(engine: PostgresEngine, jobs: list[Job]) -> None:
    renewed = engine.extend([Lease(job.id, job.lease_token or "") for job in jobs], lease=LEASE)
    assert [each.renewal.value for each in renewed] == ["renewed"] * len(jobs)
    engine.extend([Lease(job.id, "another") for job in jobs], lease=LEASE)
    engine.expired(limit=50)


def test_plans_made_on_a_full_store_do_on_one_that_was_emptied_and_filled_again(store: Store) -> None:
    store.fill()
    store.analyze()
    check(store.called())
    store.empty()
    check(store.called())
    store.fill()

    check(store.called())
