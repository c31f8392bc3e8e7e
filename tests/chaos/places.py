"""Where the jobs of a run are kept, one kind of store each, and the harm that can be done to it."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import psycopg

from provision import Cluster, StopMode
from treadle import Treadle

PATIENCE = 10.0  # seconds for the server to finish what a dead process asked of it


class Outage(NamedTuple):
    """A restart of the server: from when nobody got an answer, and when it took connections again."""

    mode: StopMode
    down: float
    up: float


class Store(Protocol):
    """A store of a run's own, from `with` on."""

    has_server: bool
    lag: float  # seconds by which what a worker takes for the store's time may be behind

    def __init__(self, folder: Path) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def url(self, name: str) -> str:
        """For the process of this name."""
        ...

    def quiet(self, name: str) -> None:
        """Return once the store has done what this process, which is dead or stands still, had asked for."""
        ...

    def damage(self) -> str:
        """What the store's own check finds wrong afterwards, "" for nothing."""
        ...

    def restart(self, mode: StopMode, away: float) -> Outage:
        """Stop the server, and start it again `away` seconds later."""
        ...

    def terminate(self, random: Random) -> Sequence[str]:
        """Cut one of the workers' connections; what it was doing, or nothing if there was none."""
        ...


class SqliteFile:
    """A file; whoever writes to it is one of the run's own processes."""

    has_server = False
    lag = 0.0

    def __init__(self, folder: Path) -> None:
        self._path = folder / "treadle.db"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def url(self, name: str) -> str:
        return f"sqlite:///{self._path}"

    def quiet(self, name: str) -> None:
        pass  # a process that stands still has nobody who works for it

    def damage(self) -> str:
        connection = sqlite3.connect(self._path)
        try:
            found = [row[0] for row in connection.execute("pragma integrity_check")]
        except sqlite3.DatabaseError as error:
            found = [str(error)]
        finally:
            connection.close()
        return "" if found == ["ok"] else "; ".join(found)

    def restart(self, mode: StopMode, away: float) -> Outage:
        raise NotImplementedError("there is no server")

    def terminate(self, random: Random) -> Sequence[str]:
        raise NotImplementedError("there is no server")


class PostgresServer:
    """A cluster of the run's own, which keeps what it has acknowledged even when it is stopped at once."""

    has_server = True
    lag = 0.1

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster = Cluster(synchronous_commit="on")

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        app = Treadle(self._cluster.url)
        app.migrate()
        app.close()
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "server.txt").write_text(self._cluster.log)
        self._cluster.close()

    def url(self, name: str) -> str:
        return f"{self._cluster.url}?application_name={name}"

    def quiet(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._ask(AT_WORK, [name]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server works for {name} since {PATIENCE:g} s: {self._ask(AT_WORK, [name])}")
            time.sleep(0.002)

    def damage(self) -> str:
        app = Treadle(self._cluster.url)
        found = [*app.check_schema(), *(str(row[0]) for row in self._ask(BROKEN, []))]
        app.close()
        log = [line for line in self._cluster.log.splitlines() if "PANIC" in line or "corrupt" in line]
        return "; ".join([*found, *log][:10])

    def restart(self, mode: StopMode, away: float) -> Outage:
        down = time.time()
        self._cluster.stop(mode)
        time.sleep(away)
        self._cluster.start()
        return Outage(mode, down, time.time())

    def terminate(self, random: Random) -> Sequence[str]:
        backends = self._ask(OURS, [])
        if not backends:
            return ()
        pid, doing = random.choice([b for b in backends if b[1] != "idle"] or backends)
        return (doing,) if self._ask("select 1 where pg_terminate_backend(%s)", [pid]) else ()

    def _ask(self, sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        with psycopg.connect(self._cluster.url, autocommit=True, application_name="place") as connection:
            return connection.execute(sql, values).fetchall()


STORES: dict[str, type[Store]] = {"sqlite": SqliteFile, "postgres": PostgresServer}

AT_WORK = """
select pid, wait_event, left(query, 100) from pg_stat_activity
where application_name = %s and state = 'active' and wait_event_type is distinct from 'Client'
"""

OURS = r"""
select pid, case when state = 'active' and query not like 'listen%%' then 'at work' else 'idle' end
from pg_stat_activity where application_name similar to '[wp][0-9]*\.[0-9]+'
"""

# What no single statement may leave behind: a job in both tables, or a key whose job has no claim to it.
BROKEN = """
select 'job ' || j.id || ' is live and finished' from treadle.jobs j join treadle.finished f using (id)
union all
select 'key ' || k.key || ' is held by job ' || k.job || ', which is ' || coalesce(j.state, 'over')
from treadle.keys k left join treadle.jobs j on j.id = k.job
where k.scope = 'active' and j.id is null or k.scope = 'pending' and j.state is distinct from 'pending'
union all
select 'job ' || j.id || ' does not hold its key' from treadle.jobs j
where j.key_scope = 'active' and not exists (select 1 from treadle.keys k where k.job = j.id and k.key = j.key)
"""
