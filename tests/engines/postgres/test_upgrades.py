"""Stores that an older treadle has made, with rows in every place: they open, and work goes on."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.pq import ExecStatus

from tests.support import provision
from tests.support.making import a_job, claim, settle
from treadle.engines.postgres import schema
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import JobFilter, Ruling
from treadle.model import EventKind, Job, Scope, State, lifecycle
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause, Schedule, Seal

# ------------------------------------------------------------------------------------- what the first one stored

FIRST = """
insert into @.jobs (task) values ('greet');
insert into @.jobs (task, filed) values ('other', true);
select @.enqueue('greet', key => 'k');
insert into @.jobs (task, due_at) values ('later', now() + interval '1 day');
insert into @.jobs (task, expires_at) values ('stale', now() - interval '1 hour');
insert into @.jobs (task, state, attempt, revision, claimed_at, started_at, worker, lease_until, lease_token)
values ('held', 'running', 1, 1, now(), now(), 'w1', now() + interval '1 hour', 'mine'),
    ('lost', 'running', 1, 1, now(), now(), 'w1', now() - interval '1 hour', 'theirs');
insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
    max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
    cost_micros, revision)
select @.new_id(), 'greet', '{}', now(), now(), 'default', 'default', '', 1, 0, 5, 5, 1, state, 1, 1, 0, now(),
    false, 5, 2
from unnest(array['succeeded', 'failed', 'cancelled']) as state;
insert into @.events select id, 2, now(), 'failed', 'w1', 'boom', 'default' from @.finished where state = 'failed';
"""

# ------------------------------------------------------------------------------------ what the later ones stored

SECOND = """
insert into @.pauses (tenant) values ('acme');
insert into @.jobs (task, tenant, filed, parked) values ('greet', 'acme', true, true);
insert into @.schedules (name, task, every) values ('nightly', 'greet', 86400);
insert into @.events (job, revision, at, what, actor, note, tenant, seal)
values (gen_random_uuid(), 1, now(), 'failed', 'w1', '', 'acme', 1);
insert into @.seals (tenant, number, lines, first_at, last_at, digest, previous, hash, sealed_at)
values ('acme', 1, 1, now(), now(), 'd', '', 'h', now());
"""


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


def store(connection: psycopg.Connection, name: str, migrations: int) -> None:
    """Make a schema as a treadle with so many migrations did, and fill it."""
    steps = schema.migrations()[:migrations]
    words = ("what", "lines") if migrations < 3 else ("kind", "events")
    later = SECOND.replace("at, what,", f"at, {words[0]},").replace("number, lines,", f"number, {words[1]},")
    made = [schema.SCHEMA, schema.LEDGER, *(sql for step in steps for sql in (step.sql, step.record)), FIRST]
    for statement in [*made, later] if migrations > 1 else made:
        connection.execute(statement.replace("@", name))


@pytest.fixture(params=[1, 2, 3], ids=["first", "with records", "with kinds"])
def old(request: pytest.FixtureRequest, open_engine: Callable[..., PostgresEngine]) -> Iterator[PostgresEngine]:
    """A store of an older treadle, opened by this one."""
    server, name = provision.shared_postgres(), f"b{uuid4().hex[:20]}"
    with psycopg.connect(server, autocommit=True) as connection:
        store(connection, name, request.param)
        engine = open_engine(f"{server}?schema={name}", auto_migrate=True)
        if request.param == 1:  # it had no pauses yet
            engine.open()
            connection.execute(SECOND_AS_NOW.replace("@", name))
        yield engine
        engine.close()
        connection.execute(f"drop schema {name} cascade")


SECOND_AS_NOW = (
    SECOND.replace("tenant, filed, parked)", "tenant, parked, parked_by_tenant)")
    .replace("at, what,", "at, kind,")
    .replace("number, lines,", "number, events,")
)


def tasks(jobs: list[Job]) -> list[str]:
    return sorted(job.task for job in jobs)


def test_its_schema_is_as_expected_and_no_row_is_lost(old: PostgresEngine) -> None:
    old.open()

    assert old.check() == []
    finished = {State.SUCCEEDED: 1, State.FAILED: 1, State.CANCELLED: 1}
    assert old.count(JobFilter()) == {State.PENDING: 6, State.RUNNING: 2, **finished}
    assert all(job.schedule is None and job.on_end is None for job in old.find(JobFilter(), limit=20).jobs)


def test_what_is_due_is_claimed_and_what_is_paused_waits(old: PostgresEngine) -> None:
    got = claim(old, 10)

    assert tasks(got) == ["greet", "greet", "other"]
    assert {settle(old, job, Succeeded()).ruling for job in got} == {Ruling.APPLIED}
    assert claim(old, 10) == []
    old.drop(Pause(tenant="acme"))
    assert [(job.task, job.tenant) for job in claim(old, 10)] == [("greet", "acme")]


def test_a_job_parked_by_its_task_is_found_by_a_worker_that_knows_it(old: PostgresEngine) -> None:
    assert tasks(claim(old, 10, tasks=["greet"])) == ["greet", "greet"]
    assert tasks(claim(old, 10, tasks=["other"])) == ["other"]


def test_who_held_a_job_settles_it_and_past_leases_are_found(old: PostgresEngine) -> None:
    [held] = old.find(JobFilter(task="held"), limit=1).jobs
    past = old.expired(limit=10)

    assert settle(old, held, Succeeded("1")).ruling is Ruling.APPLIED
    assert tasks(past) == ["lost", "stale"]
    [lost] = [job for job in past if job.task == "lost"]
    assert old.turn([lifecycle.crash(lost, old.now(), actor="w2")]).verdicts[0].ruling is Ruling.APPLIED


def test_a_key_is_still_held_and_a_finished_job_can_be_retried(old: PostgresEngine) -> None:
    [receipt] = old.enqueue([a_job(old.now(), key="k", key_scope=Scope.ACTIVE)])
    [failed] = old.find(JobFilter(state=State.FAILED), limit=1).jobs

    assert (receipt.created, receipt.job.key) == (False, "k")
    assert old.turn([lifecycle.retry(failed, old.now(), actor="ann")]).verdicts[0].ruling is Ruling.APPLIED
    assert [event.kind for event in old.events(failed.id)] == [EventKind.FAILED, EventKind.RETRIED]


def test_events_seals_and_schedules_are_read(old: PostgresEngine) -> None:
    [seal] = old.records(Seal)
    [unsealed] = old.unsealed(limit=10)

    assert (seal.events, [event.kind for event in old.sealed(seal)]) == (1, [EventKind.FAILED])
    assert (unsealed.note, old.orphaned_events(limit=10)) == ("boom", [])
    assert [schedule.name for schedule in old.due(limit=10)] == ["nightly"]
    assert old.records(Schedule)[0].task == "greet"


# ------------------------------------------------------------------------- the treadle before traces, beside this one

BEFORE_TRACES = {
    "one": "select @.add_job(null, null, $1::uuid, '{}', 'greet', now(), now(), 'default', 'default', '', 1, 0, 5, 5,"
    " 3600, 1, null, null, null, null)",
    "many": "select @.add_jobs($1::text)",
    "turn": "select * from @.turn(null, null, $1::uuid[], $2::text[], '{1}', '{1700000000000000}', '{1}', $3)",
    "held": "select * from @.held_jobs($1)",
    "settle": "select id, now from @.settle($1::text)",
}
SHARED = """"job": {"created_at": "2026-01-01T00:00Z", "due_at": "2026-01-01T00:00Z", "task": "greet", "lane": "",
    "tenant": "default", "queue": "default", "task_version": 1, "priority": 0, "max_attempts": 5, "retry_base": 5,
    "retry_cap": 3600, "retry_jitter": 1}"""
REQUEST = """{"token": "%s", "worker": "old", "lease": 30, "limit": 9, "queues": ["default"], "lanes": null,
    "tasks": [], "versions": [], "any_task": true, "audit_all": false, "round": 0, "after": null}"""


def test_calls_that_the_treadle_before_has_prepared_go_on_beside_new_code(
    open_engine: Callable[..., PostgresEngine],
) -> None:
    server, name = provision.shared_postgres(), f"b{uuid4().hex[:20]}"
    with psycopg.connect(server, autocommit=True) as old:
        made = (sql for step in schema.migrations()[:12] for sql in (step.sql, step.record))
        for statement in (schema.SCHEMA, schema.LEDGER, *made):
            old.execute(statement.replace("@", name))
        for call, sql in BEFORE_TRACES.items():
            old.pgconn.prepare(call.encode(), sql.replace("@", name).encode())

        def call(name: str, *values: str | None) -> list[list[str | None]]:
            sent = [None if value is None else value.encode() for value in values]
            result = old.pgconn.exec_prepared(name.encode(), sent)
            assert result.status == ExecStatus.TUPLES_OK, result.error_message.decode()
            rows = [[result.get_value(row, place) for place in range(result.nfields)] for row in range(result.ntuples)]
            return [[None if value is None else value.decode() for value in row] for row in rows]

        def work(token: str) -> list[str | None]:
            """Enqueue, claim, succeed and fail, as code with twelve migrations does; the claimed ids."""
            ids = [str(uuid4()), str(uuid4())]
            assert call("one", ids[0])[0][0] is not None
            assert "now" in (call("many", f'{{"ids": ["{ids[1]}"], "payloads": ["1"], {SHARED}}}')[0][0] or "")
            summary, *jobs = call("turn", None, None, REQUEST % token)
            assert (summary[38] or "").startswith("{")
            assert [row[:38] for row in call("held", token)] == [row[:38] for row in jobs]
            call("turn", f"{{{jobs[0][0]}}}", f"{{{token}}}", '{"audit_all": false}')
            end = f'"state": "failed", "reason": "permanent", "finished_at": "2030-01-01T00:00Z", "id": "{jobs[1][0]}"'
            fence = f'"was": "running", "was_revision": 1, "was_token": "{token}", "revision": 2'
            more = '"failures": 1, "crashes": 0, "cost_micros": 0'
            assert call("settle", f'{{"rows": [{{{end}, {fence}, {more}}}]}}')[0][0] == jobs[1][0]
            return [row[0] for row in jobs]

        first = work("first")
        new = open_engine(f"{server}?schema={name}", auto_migrate=True)
        new.open()
        second = work("second")
        new.enqueue([a_job(new.now(), trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
        third = work("third")  # with the job of the new code

        assert [len(ids) for ids in (first, second, third)] == [2, 2, 3]
        ends = [[job and job.state for job in new.get([str(id_) for id_ in ids])] for ids in (first, second)]
        assert ends == [[State.SUCCEEDED, State.FAILED]] * 2
        [traced] = [job for job in new.get([str(id_) for id_ in third]) if job is not None and job.trace]
        assert traced.attempt == 1
        new.close()
        old.execute(f"drop schema {name} cascade")
