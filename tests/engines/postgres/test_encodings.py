"""A database need not be UTF8: what its encoding has can be stored, and the rest is refused by name."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.support import provision
from treadle import InvalidJob, State, Treadle
from treadle.engines.postgres.schema import migrations

CHECKSUM_OF_0002 = "76e88765c22660d1"


@pytest.fixture
def url() -> Iterator[str]:
    url = provision.fresh_database(provision.shared_postgres(), options="encoding 'LATIN1' locale 'C'")
    yield url
    provision.drop_database(url)


@pytest.fixture
def latin1(url: str) -> Iterator[Treadle]:
    with closing(Treadle(url)) as app:
        yield app


@pytest.mark.server
def test_a_latin1_database_is_migrated_and_runs_jobs(latin1: Treadle) -> None:
    latin1.migrate()
    echo = latin1.register("echo", lambda text: text)
    job = echo.enqueue("café")

    latin1.run_worker(until_idle=True)

    assert latin1.check_schema() == []
    assert (latin1.get(job.id).state, latin1.get(job.id).result) == (State.SUCCEEDED, "café")


@pytest.mark.server
def test_what_a_latin1_database_cannot_hold_is_refused_and_harms_no_other_job(latin1: Treadle) -> None:
    latin1.migrate()
    character = latin1.register("character", lambda number: "" + chr(number))
    job, neighbour = character.enqueue(0x1F600), character.enqueue(0xE9)

    latin1.run_worker(until_idle=True)

    assert (latin1.get(job.id).state, latin1.get(job.id).reason) == (State.FAILED, "invalid_result")
    assert latin1.get(neighbour.id).result == "é"
    with pytest.raises(InvalidJob, match=r"payload: .*LATIN1"):
        latin1.register("echo", lambda text: text).enqueue("日本")


@pytest.mark.server
def test_the_script_of_the_migrations_runs_on_a_latin1_database(latin1: Treadle, url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(latin1.schema_sql())

    assert latin1.check_schema() == []


def test_the_file_behind_the_mended_migration_is_the_one_that_stores_have_recorded() -> None:
    [step] = [step for step in migrations() if step.name == "0002_policies.pre"]
    assert step.checksum == CHECKSUM_OF_0002


def test_only_comments_between_statements_are_sent_otherwise_than_written() -> None:
    for step in migrations():
        for line in step.sql.splitlines():
            assert line.isascii() or line.startswith("--"), f"{step.name}: {line}"
