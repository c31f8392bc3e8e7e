"""examples/tested_app: a test suite with the plugin, in one process, in two, and on PostgreSQL."""

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.examples.conftest import Example
from tests.support import provision

ALONE = "pytest"
WIDE = "pytest -n 2"
ON_POSTGRES = "pytest -o treadle_url='$DATABASE_URL'"


@pytest.fixture
def shop(example: Callable[[str], Example]) -> Example:
    opened = example("tested_app")
    opened.environment["PYTEST_ADDOPTS"] = (
        "-p no:faker -p no:hypothesispytest -p no:schemathesis"  # they take their time, for nothing
    )
    return opened


@pytest.fixture
def database() -> Iterator[str]:
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)


@pytest.mark.slow
@pytest.mark.parametrize("command", [ALONE, WIDE])
def test_its_tests_pass_and_leave_the_shops_store_alone(shop: Example, command: str) -> None:
    [expected] = shop.outputs
    assert expected.strip() in shop.run(command)
    assert not [*shop.folder.glob("*.db")]


@pytest.mark.slow
@pytest.mark.server
def test_its_tests_pass_on_postgresql_and_leave_nothing_there(shop: Example, database: str) -> None:
    shop.environment["DATABASE_URL"] = database
    assert "6 passed" in shop.run(ON_POSTGRES)
    with psycopg.connect(database) as connection:
        assert connection.execute("select nspname from pg_namespace where nspname like 'treadle%'").fetchall() == []
    assert not [*shop.folder.glob("*.db")]


@pytest.mark.slow
def test_they_notice_a_shop_that_forgets_its_reminders(shop: Example) -> None:
    """The example is worth copying only if its tests fail when they should."""
    program = shop.folder / "reminders.py"
    program.write_text(program.read_text("utf-8").replace('remind.using(run_after="1d").enqueue(order)', "pass"))
    running = shop.start(ALONE)
    running.says(r"no pending job of task 'remind' with payload=\{'order': 7\}")
    assert re.search(r"2 failed, 4 passed", running.says(r"\d failed, \d passed"))
