"""Promise 8 at a million rows: every statement of the way of a job uses its index and touches a handful of pages."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support import stores
from tests.support.making import LEASE, a_job, claim, enqueued
from treadle.engines import connect
from treadle.engines.postgres import audit, leases, queries, records, retention, settle, turn
from treadle.engines.postgres.cursors import ClaimCursor, ClaimCursors
from treadle.engines.postgres.rows import change_record, packed
from treadle.engines.postgres.schema import named
from treadle.engines.retention import Rule
from treadle.engines.values import Claim, JobFilter, Lease
from treadle.model import State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Seal

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

pytestmark = [pytest.mark.slow, pytest.mark.server]

MILLION = """
insert into @.jobs (task, priority, due_at, queue, tenant, parked, parked_by_tenant)
select 'greet', 0, now(), 'back', 't' || n % 300, true, true from generate_series(1, 60000) n
union all
select 'greet', 9, now() + interval '1 year', 'default', 'default', false, false from generate_series(1, 300000)
union all
select 'greet', 0, now(), 'other', 'default', false, false from generate_series(1, 200000)
union all
select 'stranger', 5, now(), 'default', 'default', true, false from generate_series(1, 250000)
union all
select 'greet', 5, now(), 'default', 't' || n % 20, true, true from generate_series(1, 250000) n;
insert into @.pauses (tenant, queue) select 't' || n, 'default' from generate_series(0, 19) n;
insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
    max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
    cost_micros, revision)
select @.new_id(), 'greet', '{}', now(), now(), 'default', 'default', '', 1, 0, 5, 5, 1,
    (array['succeeded', 'failed', 'cancelled'])[1 + n % 3], 1, 0, 0, now() - n * interval '1 second', false,
    case when n % 10 = 0 then 5 else 0 end, 2
from generate_series(1, 250000) n;
insert into @.events (job, revision, at, kind, actor, note, tenant, seal)
select gen_random_uuid(), 1, now() - n * interval '1 second', 'failed', 'w1', '', 't' || n % 20,
    case when n > 100000 then n / 100 end
from generate_series(1, 200000) n;
insert into @.schedules (name, task, cron, enabled, next_at)
select 's' || n, 'greet', '* * * * *', n % 2 = 0, now() + n * interval '1 minute' from generate_series(1, 20000) n;
insert into @.keys (tenant, task, key, job, scope)
select 'default', 'greet', 'k' || n, gen_random_uuid(), 'ever' from generate_series(1, 50000) n;
"""


class WorkerConfig(NamedTuple):
    """How a statement was run."""

    scans: set[str]  # "Seq Scan on jobs", "Index Scan using jobs_claim"
    pages: int


class Crowded(NamedTuple):
    """A store with a million jobs, and a hundred that are due."""

    engine: Any
    connection: psycopg.Connection[Any]

    def explain(self, sql: str, values: Any) -> WorkerConfig:
        """Run the statement for real, look at its plan, and undo it."""
        raw = isinstance(values, str)
        cursor = (psycopg.RawCursor if raw else psycopg.Cursor)(self.connection)
        text = f"explain (analyze, buffers, format json) {named(sql, self.engine.schema)}"
        self.connection.execute("begin")
        try:
            [[[plan]]] = cursor.execute(text, [values] if raw else values).fetchall()
        finally:
            self.connection.execute("rollback")
        found: set[str] = set()
        _walk(plan["Plan"], found)
        top = plan["Plan"]
        assert top["Total Cost"] < 100_000, "from there on a server with jit compiles a statement for seconds"
        return WorkerConfig(found, top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def _walk(node: dict[str, Any], found: set[str]) -> None:
    if node.get("Actual Loops", 0) and "Index Name" in node:
        found.add(node["Index Name"])
    elif node.get("Actual Loops", 0) and node["Node Type"] in ("Seq Scan", "Parallel Seq Scan"):
        found.add(f"whole table {node['Relation Name']}")
    for child in node.get("Plans", ()):
        _walk(child, found)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowded]:
    folder: Path = tmp_path_factory.mktemp("crowded")
    with stores.fresh_store("postgres", folder) as url:
        engine = connect(url)
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            connection.execute(named(MILLION, engine.schema))
            for table in ("jobs", "finished", "keys", "events", "pauses", "schedules"):
                connection.execute(f"vacuum analyze {engine.schema}.{table}")
            now = engine.now()
            engine.enqueue([a_job(now) for _ in range(150)])
            yield Crowded(engine, connection)
        engine.close()


def claim_sql(wish: Claim, *, settles: bool = True, parked: bool = True, cursors: Any = ()) -> tuple[str, str]:
    """The statement of a turn with this claim, and its parameter."""
    form = turn.turn_form(wish, settles=settles, parked=parked, resumes=bool(cursors))
    return turn.statement(form), turn.parameter([], wish, None, cursors=cursors)


def a_wish(limit: int = 10, **fields: object) -> Claim:
    given = {"token": new_id(), "worker": "w1", "limit": limit, "lease": LEASE, "tasks": ("greet",)}
    return Claim(**{**given, **fields})


PARKED = {"jobs_parked_by_task", "jobs_parked_by_tenant", "whole table pauses"}
CLAIM = PARKED | {"jobs_claim", "jobs_lease", "jobs_pkey", "keys_job"}


@pytest.mark.parametrize("lanes", [None, ("",)])
def test_a_claim_steps_over_future_foreign_unknown_and_paused_jobs(crowded, lanes):
    wish = a_wish(lanes=lanes)

    plan = crowded.explain(*claim_sql(wish))

    assert plan.scans <= CLAIM
    assert plan.pages < 700, "ten jobs and their index entries, not a million"


@pytest.mark.parametrize("lanes", [None, ("",)])
@pytest.mark.parametrize("queue", ["default", "other"])
def test_a_claim_that_expects_nothing_to_be_parked_looks_whether_it_is_so_and_no_further(crowded, lanes, queue):
    wish = a_wish(queues=(queue,), lanes=lanes)

    plan = crowded.explain(*claim_sql(wish, parked=False))

    assert plan.scans <= CLAIM
    assert plan.pages < (100 if queue == "default" else 600), "where there is, it takes nothing"


@pytest.mark.parametrize("parked", [False, True])
def test_a_claim_that_finds_nothing_costs_next_to_nothing(crowded, parked):
    wish = a_wish(queues=("nowhere",))

    plan = crowded.explain(*claim_sql(wish, settles=False, parked=parked))

    assert plan.pages < 100


def test_a_claim_from_a_wholly_paused_queue_does_not_even_look_at_its_jobs(crowded):
    wish = a_wish(queues=("default",))
    crowded.connection.execute(f"insert into {crowded.engine.schema}.pauses (queue) values ('default')")
    try:
        plan = crowded.explain(*claim_sql(wish, settles=False))
    finally:
        crowded.connection.execute(f"delete from {crowded.engine.schema}.pauses where tenant = '*'")

    assert not plan.scans & {"jobs_claim", "jobs_parked_by_task", "jobs_parked_by_tenant"}
    assert plan.pages < 100


def test_jobs_of_hundreds_of_tenants_come_back_without_a_walk_over_all_of_them(crowded):
    wish = a_wish(queues=("back",))

    plan = crowded.explain(*claim_sql(wish))

    assert plan.scans <= CLAIM
    assert plan.pages < 8000, "some pages a tenant, and some jobs of the few that come first; not 60,000"
    assert len(claim(crowded.engine, 10, queues=["back"])) == 10


def test_a_settle_finds_its_jobs_by_id(crowded):
    jobs = claim(crowded.engine, 20, tasks=("greet",))
    records = [change_record(lifecycle.settle(j, Succeeded("1"), crowded.engine.now()), audit_all=True) for j in jobs]

    plan = crowded.explain(settle.SETTLE, packed(records, None))

    assert plan.scans <= {"jobs_pkey", "keys_job"}
    assert plan.pages < 1500


def test_a_renewal_finds_its_jobs_by_id(crowded):
    jobs = claim(crowded.engine, 20, tasks=("greet",))

    plan = crowded.explain(
        leases.EXTEND, packed([leases.renewal_record(Lease(j.id, j.lease_token)) for j in jobs], None, lease=30.0)
    )

    assert plan.scans <= {"jobs_pkey", "jobs_lease"}
    assert plan.pages < 1500


def test_recovery_looks_at_running_and_expiring_jobs_only(crowded):
    plan = crowded.explain(leases.EXPIRED, {"now": None, "limit": 200})

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
    plan = crowded.explain(*queries.find_sql(where, 50, None))

    assert plan.scans == index
    assert plan.pages < 500


def test_an_enqueue_and_a_lookup_go_by_id(crowded):
    job = enqueued(crowded.engine, queue="elsewhere")

    looked = crowded.explain(queries.READ, json.dumps([job.id]))

    assert looked.scans == {"jobs_pkey", "finished_pkey"}
    assert looked.pages < 50


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
    plan = crowded.explain(*retention.prune_sql(rule, None, crowded.engine.now() - HOUR, 100))

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
    plan = crowded.explain(*asked(records.due, 100, 60.0, None))

    assert plan.scans == {"schedules_due"}
    assert plan.pages < 50


def test_audit_lines_that_are_not_sealed_are_read_in_order_by_their_index(crowded):
    plan = crowded.explain(*asked(audit.unsealed, 100))

    assert plan.scans == {"events_seal"}
    assert plan.pages < 500


def test_sealing_finds_its_lines_by_their_key_and_forgetting_by_their_seal(crowded):
    lines = crowded.engine.unsealed(limit=90)
    seal = Seal("t1", 5000, 90, EPOCH, EPOCH, "d", "p", "h", EPOCH)
    sealing = crowded.explain(*asked(audit.seal, seal, lines))
    reading = crowded.explain(*asked(audit.sealed, Seal("t1", 1500, 90, EPOCH, EPOCH, "d", "p", "h", EPOCH)))

    assert "events_pkey" in sealing.scans
    assert sealing.pages < 3000
    assert reading.scans == {"events_seal"}
    assert reading.pages < 50


def test_costs_are_added_up_from_the_jobs_that_cost_something(crowded):
    now = crowded.engine.now()

    plan = crowded.explain(queries.COSTS, {"since": now - 10 * HOUR, "until": now, "tenant": None})

    assert plan.scans == {"finished_cost"}
    assert plan.pages < 4000


def test_jobs_of_unknown_tasks_at_the_head_are_parked_in_bounded_steps_and_met_once(crowded):
    engine, queue = crowded.engine, "mixed"
    now = engine.now()
    engine.enqueue([a_job(now, queue=queue, task="stranger", priority=9) for _ in range(3000)])
    engine.enqueue([a_job(now, queue=queue) for _ in range(5)])

    assert len(claim(engine, 5, queues=[queue], tasks=["greet"])) == 5, "from behind three thousand strangers"

    wish = a_wish(queues=(queue,))
    plan = crowded.explain(*claim_sql(wish))
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

        walked = crowded.explain(*claim_sql(wish))
        resumed = crowded.explain(*claim_sql(wish, cursors=[cursor]))

    assert walked.pages > 5 * resumed.pages, "what was claimed is still in the index"
    assert resumed.scans <= CLAIM


def test_a_claim_that_was_slow_is_followed_by_claims_that_go_on_for_a_second_and_then_look_everywhere():
    cursors, wish = ClaimCursors(), a_wish(limit=2)
    jobs = [a_job(EPOCH, id=f"00000000-0000-7000-8000-00000000000{n}") for n in (1, 2)]

    cursors.learn(wish, jobs, took=0.2, resumed=False, now=100.0)

    [cursor] = cursors.of(wish, 100.5)
    assert cursor.id == jobs[1].id, "everything up to the second was taken"
    assert cursors.of(a_wish(queues=("other",)), 100.5) == [], "another claim looks for itself"
    cursors.learn(wish, [a_job(EPOCH, id="00000000-0000-7000-8000-000000000009")], took=0.001, resumed=True, now=100.6)
    assert cursors.of(wish, 100.9)[0].id.endswith("9")
    assert cursors.of(wish, 101.1) == [], "a full scan at least every second"


def test_a_quick_claim_and_one_that_found_too_little_look_everywhere_the_next_time():
    for took, jobs in ((0.01, 2), (0.2, 1)):
        cursors, wish = ClaimCursors(), a_wish(limit=2)

        cursors.learn(wish, [a_job(EPOCH) for _ in range(jobs)], took=took, resumed=False, now=100.0)

        assert cursors.of(wish, 100.1) == []
