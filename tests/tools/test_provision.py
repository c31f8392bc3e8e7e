"""The servers the other tests stand on: they start, survive what they should and leave nothing behind."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import processes, provision
from tests.support.provision import (
    Cluster,
    PgBouncer,
    ServerTrouble,
    binaries,
    drop_database,
    fresh_database,
    pgbouncer_available,
    promote,
    shared_postgres,
    standby,
)
from tests.support.server import Server

pytestmark = [pytest.mark.server, pytest.mark.postgres]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def test_every_postgresql_of_this_machine_keeps_its_data_and_its_port_over_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TREADLE_TEST_POSTGRES_BIN", raising=False)
    found = binaries()
    assert "18" in found
    for label in found:
        with Cluster(label) as cluster:
            before = cluster.url
            assert ask(cluster.url, "show server_version").startswith(label)
            tell(cluster.url, "create table kept as select 7 as n")
            cluster.restart()
            cluster.restart("immediate")
            cluster.kill()
            cluster.start()
            cluster.stop()
            cluster.start()
            assert cluster.url == before
            assert ask(cluster.url, "select n from kept") == 7
        with pytest.raises(psycopg.OperationalError):
            ask(before, "select 1")
        assert not cluster.folder.exists()


def test_a_killed_server_cuts_off_even_a_client_in_the_middle_of_a_query(cluster: Cluster) -> None:
    killer = threading.Timer(0.2, cluster.kill)
    with psycopg.connect(cluster.url) as connection, pytest.raises(psycopg.OperationalError):
        killer.start()
        connection.execute("select pg_sleep(30)")
    killer.join()
    assert not cluster.is_running
    cluster.start()


def test_settings_reach_the_server_and_can_be_changed_while_it_runs() -> None:
    with Cluster(max_connections="30") as cluster:
        assert ask(cluster.url, "show max_connections") == "30"
        assert ask(cluster.url, "show fsync") == "off"
        tell(cluster.url, "alter system set fsync = on")
        tell(cluster.url, "select pg_reload_conf()")
        until(lambda: ask(cluster.url, "show fsync") == "on")


def test_a_server_that_cannot_start_shows_its_log(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.stop()
    with monkeypatch.context() as broken, pytest.raises(ServerTrouble, match="no_such_setting"):
        broken.setitem(cluster.settings, "no_such_setting", "1")
        cluster.start()
    cluster.start()


def test_a_server_outlives_the_thread_that_started_it(cluster: Cluster) -> None:
    starter = threading.Thread(target=cluster.restart)
    starter.start()
    starter.join()
    postmaster = cluster.pid
    time.sleep(0.5)
    assert cluster.pid == postmaster
    assert ask(cluster.url, "select 1") == 1


def test_a_server_dies_with_a_killed_test_run_and_its_folder_goes_too() -> None:
    script = (
        "from tests.support import provision; import time; c = provision.Cluster(); c.start(); "
        "print(c.pid, c.folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=processes.environment(), stdout=subprocess.PIPE, text=True
    ) as run:
        pid, folder = run.stdout.readline().split()
        assert alive(int(pid))
        run.send_signal(signal.SIGKILL)
    until(lambda: not alive(int(pid)) and not Path(folder).exists())


def test_servers_started_in_the_background_where_signals_are_ignored_stop_at_once() -> None:
    script = (
        "from tests.support import provision as p; import signal; "
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGQUIT)]; "
        "c = p.Cluster(); c.start(); b = p.PgBouncer(c); b.start(); print(b.folder, flush=True); b.close(); c.close()"
    )
    assert pgbouncer_available() == ""
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert not Path(run.stdout.strip()).exists()


class Stubborn(Server):
    """Two processes that ignore the signal they are asked to stop by."""

    stop_signal = signal.SIGTERM
    grace = 0.3

    def start(self) -> None:
        ready = self.folder / "ready"
        deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork()"
        script = f"{deaf}; open({str(ready)!r}, 'w').close(); time.sleep(60)"
        self._start([sys.executable, "-c", script], is_ready=ready.exists)

    @property
    def processes(self) -> set[int]:
        """The server's own processes: those below its guard."""
        parents = provision._processes()
        server = {pid for pid, parent in parents.items() if parent == self._guard.pid}
        return server | {pid for pid, parent in parents.items() if parent in server}


def test_a_server_that_does_not_heed_its_signal_is_killed_with_its_children() -> None:
    with Stubborn() as server:
        until(lambda: len(server.processes) == 2)
        running = server.processes
    until(lambda: not any(map(alive, running)))


def test_a_server_dies_with_its_guard(cluster: Cluster) -> None:
    postmaster = cluster.pid
    cluster._guard.kill()
    until(lambda: not alive(postmaster))
    cluster.start()
    assert ask(cluster.url, "select 1") == 1


def test_a_standby_follows_and_takes_over_what_was_acknowledged() -> None:
    synchronous = {"synchronous_commit": "on", "synchronous_standby_names": "second"}
    with Cluster(**synchronous) as primary, standby(primary, name="second") as second:
        tell(primary.url, "create table followed as select 7 as n")
        assert ask(second.url, "select pg_is_in_recovery()") is True
        primary.kill()
        promote(second)
        tell(second.url, "insert into followed values (8)")
        assert ask(second.url, "select sum(n) from followed") == 15


def test_pgbouncer_gives_its_server_connection_back_after_each_transaction(cluster: Cluster) -> None:
    assert pgbouncer_available() == ""
    with PgBouncer(cluster, default_pool_size="1") as bouncer:
        one = psycopg.connect(bouncer.url, prepare_threshold=None)
        other = psycopg.connect(bouncer.url, prepare_threshold=None)
        backends = set()
        for connection in (one, other, one, other):
            backends |= {connection.execute("select pg_backend_pid()").fetchone()}
            connection.commit()
        assert len(backends) == 1
        one.close()
        other.close()


def test_a_fresh_database_is_empty_and_can_be_dropped_under_its_clients() -> None:
    server = shared_postgres()
    assert shared_postgres() == server
    first, second = fresh_database(server), fresh_database(server)
    tell(first, "create table mine ()")
    tell(second, "create table mine ()")
    with psycopg.connect(first):
        drop_database(first)
    drop_database(second)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        ask(first, "select 1")


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        [answer] = connection.execute(query).fetchone()
    return answer


def tell(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def alive(pid: int) -> bool:
    return pid in provision._processes()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
