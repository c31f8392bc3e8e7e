"""One change, one atom; the server's own time; and answers that were lost on their way."""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.making import LEASE, a_job, an_error, claim, current, ended, enqueued, running, write
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.session import Session
from treadle.engines.values import Claim, JobFilter, Lease, Retention, Ruling
from treadle.model import Job, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.retry import Retry
from treadle.testing import FakeClock


def test_a_job_whose_audit_line_cannot_be_written_is_not_written_either(
    make_engine: Callable[..., PostgresEngine], clock: FakeClock
) -> None:
    engine = make_engine(audit_all=True)
    job = a_job(clock.now())
    spoil(engine, job, revision=0)

    [receipt] = engine.enqueue([job])

    assert receipt.refused
    assert engine.get([job.id]) == [None]


def test_a_retry_that_is_refused_takes_no_key(engine: PostgresEngine, clock: FakeClock) -> None:
    job = ended(engine, State.FAILED, key="k", key_scope=Scope.ACTIVE)
    change = lifecycle.retry(job, clock.now(), actor="ann")
    spoil(engine, job, revision=change.after.revision)

    assert write(engine, change).ruling is Ruling.REFUSED
    assert current(engine, job) == job
    [receipt] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)])
    assert receipt.created


def spoil(engine: PostgresEngine, job: Job, *, revision: int) -> None:
    """Let the next audit line of this job be refused: there is one of that revision and moment already."""
    sql = "insert into @.events select %s, %s, %s, 'enqueued', 'a stranger', '', 'default' returning 1"
    engine.session.read(sql, [job.id, revision, engine.now()])


# ------------------------------------------------------------------------------------------- the server's time


def test_an_engine_without_a_clock_never_tells_the_server_the_time(
    near: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    call, execute, read = Session.call, Session.execute, Session.read

    def called(self: Session, connection: Any, sql: str, values: Any) -> Any:
        alone = ".turn(" in sql or ".add_job(" in sql  # they take the time as a parameter, the others within a text
        told.append({"now": values[0]} if alone else json.loads(values[0]) if "{" in values[0] else None)
        return call(self, connection, sql, values)

    def executed(self: Session, connection: Any, sql: str, text: str) -> Any:
        told.append(json.loads(text) if "{" in text else None)
        return execute(self, connection, sql, text)

    def been_read(self: Session, sql: str, values: Any = ()) -> Any:
        told.append(values)
        return read(self, sql, values)

    monkeypatch.setattr(Session, "call", called)
    monkeypatch.setattr(Session, "execute", executed)
    monkeypatch.setattr(Session, "read", been_read)

    near.enqueue([a_job(near.now())])
    [job] = claim(near)
    near.extend([Lease(job.id, job.lease_token or "")], lease=LEASE)
    near.turn([lifecycle.settle(job, Succeeded(), near.now())])
    near.expired(limit=10)
    near.prune(Retention({State.SUCCEEDED: timedelta(days=1)}), limit=10)

    said = [each["now"] for each in told if isinstance(each, dict) and "now" in each]
    assert len(said) >= 6
    assert not any(said)


def test_a_repeated_retry_is_known_as_our_own_though_the_same_turn_claims_the_job(near: PostgresEngine) -> None:
    """Our idea of the server's time lags, so the change is not thought due; by the server's clock it is."""
    job = running(near, retry=Retry(base=0.1, jitter=0))
    change = lifecycle.settle(job, Failed(an_error(near.now())), near.now())
    assert near.turn([change]).verdicts[0].ruling is Ruling.APPLIED
    time.sleep(0.2)
    near._store.clock.sync(near.now() - timedelta(hours=1))

    turn = near.turn([change], Claim(new_id(), "w2", 1, LEASE))

    assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.ALREADY]
    assert [(got.id, got.worker) for got in turn.jobs] == [(job.id, "w2")]


def test_a_claim_of_several_rounds_whose_answer_was_lost_claims_no_more_than_the_limit(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lane, size in {"full": 20, "small": 1}.items():
        for _ in range(size):
            enqueued(engine, lane=lane)
    call, sent = Session.call, []

    def cut(self: Session, connection: Any, sql: str, values: Any) -> Any:
        answer = call(self, connection, sql, values)
        if ".turn(" in sql:
            sent.append(values)
            if len(sent) == 1:
                raise psycopg.OperationalError("the connection was cut after the commit")
        return answer

    monkeypatch.setattr(Session, "call", cut)

    got = claim(engine, 6)

    assert len(sent) == 2
    assert len(got) == 6
    assert engine.count(JobFilter(state=State.RUNNING)) == {State.RUNNING: 6}
