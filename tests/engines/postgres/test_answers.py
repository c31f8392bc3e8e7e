"""What a claim answers is whole, whatever has become of the connection it came by, and in whatever encoding it came."""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.making import LEASE, a_job, current, enqueued
from treadle.engines.postgres import wire
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Claim
from treadle.errors import EngineError
from treadle.model import FollowUp, OnEnd, Retry, new_id


def a_wish(limit: int = 10) -> Claim:
    return Claim(new_id(), "w1", limit, LEASE)


@pytest.mark.parametrize("number", [1, 30], ids=["with the answer", "read afterwards"])
def test_a_claimed_job_can_be_read_when_its_connection_is_closed(near: PostgresEngine, number: int) -> None:
    for _ in range(number):
        enqueued(near, lane="l", timeout=1.5, retry=Retry(cap=None), on_end=OnEnd(failed=FollowUp(event="x")))
    claimed = near.turn([], a_wish(number)).claimed

    near.server.close()

    for one in claimed:
        assert one.job() == one.job() == current(near, one.job())


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_no_setting_of_the_client_changes_what_is_read(
    open_engine: Callable[..., PostgresEngine], store_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    engine = open_engine(store_url)
    engine.enqueue([a_job(engine.now(), lane="café", queue="naïve", payload_json='{"to":"日本"}')])

    [job] = engine.turn([], a_wish()._replace(queues=("naïve",))).jobs

    assert (job.lane, job.queue, job.payload) == ("café", "naïve", {"to": "日本"})
    assert job == current(engine, job)


def test_a_value_that_nobody_can_read_is_named(near: PostgresEngine, store_url: str) -> None:
    job = enqueued(near)
    with psycopg.connect(store_url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"alter table {near.schema}.jobs disable trigger check_job")
        connection.execute(f"update {near.schema}.jobs set expires_at = 'infinity' where id = %s", [job.id])
        connection.execute(f"alter table {near.schema}.jobs enable trigger check_job")

    [claimed] = near.turn([], a_wish()).claimed

    with pytest.raises(EngineError, match="a job cannot be read"):
        claimed.job()


def test_an_answer_that_keeps_coming_is_read_to_its_end(near: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent again, it would be just as long."""
    monkeypatch.setattr(wire, "MAX_GAP", 5.0)
    slowly = "select pg_sleep(0.02), repeat('x', 20000) from generate_series(1, 40)"

    result = near.server.run(lambda connection: connection.call(slowly, []), answer_timeout=0.2)

    assert result.ntuples == 40
