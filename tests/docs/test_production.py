"""What docs/production.md says about limits and backups is so."""

import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import provision
from treadle import State, Treadle
from treadle.app.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "production.md").read_text("utf-8")


def test_every_command_on_the_page_names_the_default_grace_time() -> None:
    assert {int(found) for found in re.findall(r"--grace\W+(\d+)s", PAGE)} == {Settings().grace}


@pytest.mark.slow
def test_a_store_that_was_dumped_and_restored_is_whole() -> None:
    server = provision.shared_postgres()
    before, after = provision.fresh_database(server), provision.fresh_database(server)
    try:
        with closing(Treadle(before)) as app:
            app.migrate()
            double = app.register("double", lambda n: 2 * n)
            done, waits = double.enqueue(1), double.using(run_after="1h", key="once").enqueue(2)
            app.run_worker(until_idle=True)
        tools = provision.binaries()[provision.DEFAULT]
        dump = subprocess.run([tools / "pg_dump", "--schema=treadle", before], capture_output=True, check=True)
        restore = [tools / "psql", "--quiet", "--set=ON_ERROR_STOP=1", after]
        subprocess.run(restore, input=dump.stdout, capture_output=True, check=True)
        with closing(Treadle(after)) as app:
            assert app.check_schema() == []
            assert app.get(done.id).result == 2
            assert app.get(waits.id).state is State.PENDING
            again = app.register("double", lambda n: 2 * n).using(key="once").enqueue(3)
            assert again.id == waits.id
    finally:
        provision.drop_database(before)
        provision.drop_database(after)
