"""Promise 8 at a million rows: every statement of the way of a job uses its index and touches a handful of pages."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.engines.postgres.explained import Explained, Statement, explained
from tests.support import stores
from tests.support.making import LEASE, a_job, claim, enqueued
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.postgres import audit, leases, queries, records, retention, settle
from treadle.engines.postgres.cursors import ClaimCursor
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.rows import change_record, packed
from treadle.engines.postgres.schema import named
from treadle.engines.postgres.turn import TURN, parameters, request
from treadle.engines.retention import Rule
from treadle.engines.values import Claim, JobFilter, Lease
from treadle.model import State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded, Success
from treadle.model.records import Schedule, Seal

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

pytestmark = [pytest.mark.slow, pytest.mark.server]

MILLION = """
insert into @.jobs (task, priority, due_at, queue, tenant, parked, parked_by_tenant)
select 'greet', 0, now(), 'back', 't' || n % 300, true, true from generate_series(1, 60 * #) n
union all
select 'greet', 9, now() + interval '1 year', 'default', 'default', false, false from generate_series(1, 300 * #)
union all
select 'greet', 0, now(), 'other', 'default', false, false from generate_series(1, 200 * #)
union all
select 'stranger', 5, now(), 'default', 'default', true, false from generate_series(1, 250 * #)
union all
select 'greet', 5, now(), 'default', 't' || n % 20, true, true from generate_series(1, 250 * #) n;
insert into @.pauses (tenant, queue) select 't' || n, 'default' from generate_series(0, 19) n;
insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
    max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
    cost_micros, revision)
select @.new_id(), 'greet', '{}', now(), now(), 'default', 'default', '', 1, 0, 5, 5, 1,
    (array['succeeded', 'failed', 'cancelled'])[1 + n % 3], 1, 0, 0, now() - n * interval '1 second', false,
    case when n % 10 = 0 then 5 else 0 end, 2
from generate_series(1, 250 * #) n;
insert into @.events (job, revision, at, kind, actor, note, tenant, seal)
select gen_random_uuid(), 1, now() - n * interval '1 second', 'failed', 'w1', '', 't' || n % 20,
    case when n > 100 * # then n / 100 end
from generate_series(1, 200 * #) n;
insert into @.schedules (name, task, cron, enabled, next_at)
select 's' || n, 'greet', '* * * * *', n % 2 = 0, now() + n * interval '1 minute' from generate_series(1, 20000) n;
insert into @.keys (tenant, task, key, job, scope)
select 'default', 'greet', 'k' || n, gen_random_uuid(), 'ever' from generate_series(1, 50 * #) n;
""".replace("#", str(size(100, long=1000)))


JIT_ABOVE_COST = 100_000  # a server's default; to compile a statement takes it seconds


class FullStore(NamedTuple):
    """A store with a million jobs, and a hundred that are due."""

    engine: PostgresEngine
    connection: psycopg.Connection[Any]

    def explain(self, act: Callable[[], Any]) -> Explained:
        """How the server does this; it is undone."""
        return explained(self.engine, act, undo=True)

    def statement(self, sql: str, values: Any) -> Explained:
        """How the server runs this statement."""
        session = self.engine.session
        if isinstance(values, str):
            plan = self.explain(lambda: session.send(sql, values))
        else:
            plan = self.explain(lambda: session.read(sql, values))
        assert not any(is_dear(each) for each in plan.statements if not each.function), str(plan)
        return plan

    def claim(self, claim: Claim, *, settled: Sequence[Success] = (), cursors: Sequence[ClaimCursor] = ()) -> Explained:
        """How the server does a turn, which is sent as it is: what an engine remembers of slow claims varies."""
        session = self.engine.session
        values = parameters([], settled, request(claim, audit_all=False, cursors=cursors), None)
        return self.explain(lambda: session.run(lambda connection: session.call(connection, TURN, values)))


def is_dear(statement: Statement) -> bool:
    """Whether a server with jit, which our connections do without unless a pooler refuses the option, compiles it."""
    return statement.cost >= JIT_ABOVE_COST


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullStore]:
    folder: Path = tmp_path_factory.mktemp("crowded")
    with stores.fresh_store("postgres", folder) as url:
        engine = connect(url)
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            connection.execute(named(MILLION, engine.schema))
            for table in ("jobs", "finished", "keys", "events", "pauses", "schedules"):
                connection.execute(f"vacuum analyze {engine.schema}.{table}")
            now = engine.now()
            engine.enqueue([a_job(now) for _ in range(150)])
            yield FullStore(engine, connection)
        engine.close()


def a_wish(limit: int = 10, **fields: object) -> Claim:
    given = {"token": new_id(), "worker": "w1", "limit": limit, "lease": LEASE, "tasks": ("greet",)}
    return Claim(**{**given, **fields})


PARKED = {"jobs_parked_by_task", "jobs_parked_by_tenant"}
LANES = {"jobs_lanes", "jobs_later"}
CLAIM = PARKED | LANES | {"jobs_claim", "jobs_lease", "jobs_pkey", "keys_job", "pauses_pkey"}


@pytest.mark.parametrize("lanes", [None, ("",)])
def test_a_claim_steps_over_future_foreign_unknown_and_paused_jobs(crowded, lanes):
    plan = crowded.claim(a_wish(lanes=lanes))

    assert plan.scans <= CLAIM
    assert plan.pages < 700, f"ten jobs and their index entries, not a million\n{plan}"


@pytest.mark.parametrize("lanes", [None, ("",)])
def test_a_claim_where_nothing_is_parked_looks_whether_it_is_so_and_no_further(crowded, lanes):
    plan = crowded.claim(a_wish(queues=("other",), lanes=lanes))

    [look] = [statement for statement in plan.statements if statement.scans & PARKED]
    assert look.pages < 30, f"one entry of each index\n{plan}"
    assert plan.pages < 300, f"ten jobs, claimed\n{plan}"


def test_a_claim_that_finds_nothing_costs_next_to_nothing(crowded):
    plan = crowded.claim(a_wish(queues=("nowhere",)))

    assert plan.pages < 100, str(plan)


def test_a_claim_from_a_wholly_paused_queue_looks_at_none_of_its_jobs(crowded):
    crowded.connection.execute(f"insert into {crowded.engine.schema}.pauses (queue) values ('default')")
    try:
        plan = crowded.claim(a_wish(queues=("default",)))
    finally:
        crowded.connection.execute(f"delete from {crowded.engine.schema}.pauses where tenant = '*'")

    assert "jobs_claim" not in plan.scans
    assert plan.pages < 100


def test_jobs_of_hundreds_of_tenants_come_back_without_a_walk_over_all_of_them(crowded):
    plan = crowded.claim(a_wish(queues=("back",)))

    assert plan.scans <= CLAIM
    assert plan.pages < 8000, f"some pages a tenant, and some jobs of the few that come first; not 60,000\n{plan}"
    assert len(claim(crowded.engine, 10, queues=["back"])) == 10


def test_a_settle_finds_its_jobs_by_id(crowded):
    jobs = claim(crowded.engine, 20, tasks=("greet",))
    records = [change_record(lifecycle.settle(j, Succeeded("1"), crowded.engine.now()), audit_all=True) for j in jobs]

    plan = crowded.statement(settle.SETTLE, packed(records, None))

    assert plan.scans <= {"jobs_pkey", "keys_job"}
    assert plan.pages < 1500


def test_a_turn_with_plain_successes_finds_them_by_id_and_claims_at_no_higher_cost(crowded):
    now, queue = crowded.engine.now(), "turned"
    crowded.engine.enqueue([a_job(now, queue=queue) for _ in range(40)])
    jobs = claim(crowded.engine, 20, queues=[queue])
    ends = [Success(job.id, job.lease_token, job.revision, now, "1", lambda: jobs[0]) for job in jobs]

    plan = crowded.claim(a_wish(20, queues=(queue,)), settled=ends)

    [locked] = [statement for statement in plan.statements if "turn.revisions" in statement.text]
    [moved] = [statement for statement in plan.statements if "insert into" in statement.text]
    assert (locked.scans, locked.rows) == ({"jobs_pkey"}, 20)
    assert moved.scans == frozenset()  # they are moved by their places
    assert plan.scans <= CLAIM
    assert plan.pages < 1500, str(plan)


def test_what_a_token_holds_is_found_by_the_token(crowded):
    [job] = claim(crowded.engine, 1, tasks=("greet",))

    held = crowded.explain(lambda: crowded.engine.turns._held(job.lease_token))

    assert held.scans == {"jobs_lease"}
    assert held.pages < 20


def test_a_server_with_jit_compiles_no_statement_of_our_functions(crowded):
    engine = crowded.engine
    settings = dict(
        engine.session.read(
            "select proname::text, proconfig::text from pg_proc where pronamespace = %s::regnamespace", [engine.schema]
        )
    )

    plan = crowded.claim(a_wish())

    dear = [each for each in plan.statements if is_dear(each) and "jit=off" not in (settings[each.function] or "")]
    assert not dear, "\n".join(f"{each.cost:,.0f} {each}" for each in dear)


def test_a_renewal_finds_its_jobs_by_id(crowded):
    jobs = claim(crowded.engine, 20, tasks=("greet",))

    plan = crowded.statement(
        leases.EXTEND, packed([leases.renewal_record(Lease(j.id, j.lease_token)) for j in jobs], None, lease=30.0)
    )

    assert plan.scans <= {"jobs_pkey", "jobs_lease"}
    assert plan.pages < 1500


def test_recovery_looks_at_running_and_expiring_jobs_only(crowded):
    plan = crowded.statement(leases.EXPIRED, {"now": None, "limit": 200})

    assert plan.scans == {"jobs_lease", "jobs_expiry"}
    assert plan.pages < 500


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (JobFilter(state=State.FAILED), {"finished_state"}),
        (JobFilter(state=State.SUCCEEDED, task="greet"), {"finished_pkey"}),
        (JobFilter(), {"jobs_pkey", "finished_pkey"}),
        (JobFilter(queue="default"), {"jobs_pkey", "finished_pkey"}),
    ],
)
def test_a_list_reads_one_page_of_it(crowded, where, index):
    plan = crowded.statement(*queries.find_sql(where, 50, None))

    assert plan.scans == index
    assert plan.pages < 500


@pytest.mark.parametrize("kind", ["alike", "that differ", "with keys"])
def test_an_enqueue_and_a_lookup_go_by_id_and_by_key(crowded, kind):
    engine, now = crowded.engine, crowded.engine.now()
    jobs = [a_job(now, queue="elsewhere", priority=n if kind == "that differ" else 0) for n in range(5)]
    if kind == "with keys":
        jobs = [job.evolve(key=f"k{n}", key_scope="active") for n, job in enumerate(jobs)]  # k0 is free

    stored = crowded.explain(lambda: engine.enqueue(jobs))
    looked = crowded.explain(lambda: engine.get([enqueued(engine, queue="elsewhere").id]))

    assert stored.scans <= {"jobs_pkey", "finished_pkey", *(["keys_pkey", "keys_job"] if kind == "with keys" else [])}
    assert stored.pages < 800, str(stored)  # what a function reads counts for its caller too
    assert looked.scans == {"jobs_pkey", "finished_pkey"}
    assert looked.pages < 80, str(looked)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(State.FAILED, HOUR, frozenset(), these=False),
        Rule(State.FAILED, HOUR, frozenset(("greet",)), these=False),
        Rule(State.FAILED, HOUR, frozenset(("greet",)), these=True),
        Rule(State.FAILED, HOUR, frozenset(("another",)), these=True),
    ],
    ids=["all", "all but some", "of a task", "of a task that has none"],
)
def test_pruning_takes_the_oldest_of_a_state(crowded, rule):
    plan = crowded.statement(*retention.prune_sql(rule, None, crowded.engine.now() - HOUR, 100))

    assert "finished_state" in plan.scans
    assert not [scan for scan in plan.scans if scan in ("whole table finished", "whole table jobs")]
    assert plan.pages < 10_000


def asked(act, *arguments):
    """The query that this function would run, and its values."""
    said = []
    act(lambda sql, values: said.append((sql, values)) or [], *arguments)
    [query] = said
    return query


def test_schedules_that_are_due_are_found_among_those_that_are_not(crowded):
    plan = crowded.statement(*asked(records.due, 100, 60.0, None))

    assert plan.scans == {"schedules_due"}
    assert plan.pages < 50


def test_audit_lines_that_are_not_sealed_are_read_in_order_by_their_index(crowded):
    plan = crowded.statement(*asked(audit.unsealed, 100))

    assert plan.scans == {"events_seal"}
    assert plan.pages < 500


def test_sealing_finds_its_lines_by_their_key_and_forgetting_by_their_seal(crowded):
    lines = crowded.engine.unsealed(limit=90)
    seal = Seal("t1", 5000, 90, EPOCH, EPOCH, "d", "p", "h", EPOCH)
    sealing = crowded.statement(*asked(audit.seal, seal, lines))
    reading = crowded.statement(*asked(audit.sealed, Seal("t1", 1500, 90, EPOCH, EPOCH, "d", "p", "h", EPOCH)))

    assert "events_pkey" in sealing.scans
    assert sealing.pages < 3000
    assert reading.scans == {"events_seal"}
    assert reading.pages < 50


def test_costs_are_added_up_from_the_jobs_that_cost_something(crowded):
    now = crowded.engine.now()

    plan = crowded.statement(queries.COSTS, {"since": now - 10 * HOUR, "until": now, "tenant": None})

    assert plan.scans == {"finished_cost"}
    assert plan.pages < 4000


def test_jobs_of_unknown_tasks_at_the_head_are_parked_in_bounded_steps_and_met_once(crowded):
    engine, queue = crowded.engine, "mixed"
    now = engine.now()
    engine.enqueue([a_job(now, queue=queue, task="stranger", priority=9) for _ in range(3000)])
    engine.enqueue([a_job(now, queue=queue) for _ in range(5)])

    assert len(claim(engine, 5, queues=[queue], tasks=["greet"])) == 5, "from behind three thousand strangers"

    wish = a_wish(queues=(queue,))
    plan = crowded.claim(wish)
    assert plan.pages < 150, "they are met no more"
    assert len(claim(engine, 10, queues=[queue], tasks=["stranger"])) == 10, "who knows them finds them"


def test_claims_go_on_where_the_last_one_ended_while_a_long_transaction_pins_the_horizon(crowded):
    engine, queue = crowded.engine, "pinned"
    now = engine.now()
    engine.enqueue([a_job(now, queue=queue) for _ in range(12_000)])
    with psycopg.connect(crowded.connection.info.dsn) as pinning:
        pinning.execute("set transaction isolation level repeatable read")
        pinning.execute("select 1")
        for _ in range(20):
            jobs = claim(engine, 500, queues=[queue])
            engine.turn([lifecycle.settle(job, Succeeded(), engine.now()) for job in jobs])
        wish = a_wish(queues=(queue,))
        cursor = ClaimCursor(queue, "", 0, jobs[-1].due_at, jobs[-1].id)

        walked = crowded.claim(wish)
        resumed = crowded.claim(wish, cursors=[cursor])

    assert walked.pages > 5 * resumed.pages, "what was claimed is still in the index"
    assert resumed.scans <= CLAIM


def test_a_claim_walks_over_no_future_job_of_a_lane_that_plain_sql_stored_while_a_transaction_pins_the_horizon(crowded):
    engine, queue = crowded.engine, "timed"
    with psycopg.connect(crowded.connection.info.dsn) as pinning:
        pinning.execute("set transaction isolation level repeatable read")
        pinning.execute("select 1")
        crowded.connection.execute(
            f"insert into {engine.schema}.jobs (task, queue, lane, due_at)"
            f" select 'greet', '{queue}', 'l' || n, now() + interval '1 day' from generate_series(1, 5000) n"
        )

        plan = crowded.claim(a_wish(queues=(queue,)))

    assert plan.pages < 100, str(plan)


def test_a_schedule_is_read_by_its_key_beside_thousands(crowded):
    name = crowded.engine.schema
    crowded.connection.execute(
        f"insert into {name}.schedules (name, task, tenant, every, enabled)"
        " select 's' || n, 'greet', 'crowd', 3600, false from generate_series(1, 20000) n"
    )
    try:
        plan = crowded.explain(lambda: crowded.engine.records(Schedule, tenant="crowd", name="s777"))
    finally:
        crowded.connection.execute(f"delete from {name}.schedules where tenant = 'crowd'")

    assert plan.scans == {"schedules_pkey"}
    assert plan.pages < 20, str(plan)
