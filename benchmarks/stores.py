"""The stores that are measured: each makes places with tables of their own, fills them, and tells what they cost."""

import json
import os
import platform
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from tests.support import provision
from treadle import Treadle, __version__
from treadle.bench.places import BenchPlace
from treadle.bench.twins import PAYLOAD, Twin
from treadle.bench.work import make_twin
from treadle.model import new_id

POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "log_lock_waits": "on",
    "deadlock_timeout": "50ms",  # so that the log names every wait for a lock that is longer
}
SCHEMA = "treadle"
Row = Mapping[str, str]


class StorePlace:
    """Tables for one side of a scenario. `costs` are running totals; two of them make a difference."""

    table = "jobs"
    later = ""

    def __init__(self, place: BenchPlace) -> None:
        self.url, self.twin_place = place.url, place.twin or {}
        self.app = Treadle(self.url)
        self.task = self.app.register("noop", _noop)
        self.failing = self.app.register("failing", _noop)

    @cached_property
    def twin(self) -> Twin:
        return make_twin(self.twin_place)

    def rest(self) -> None:
        """Close every connection but the one that looks; the next call opens them again."""
        self.app.close()
        if "twin" in self.__dict__:
            self.__dict__.pop("twin").close()

    def fill(self, jobs: int, row: Row | None = None, task: str = "noop") -> None:
        """Store many jobs with plain SQL: copies of one that was enqueued, in which the columns of `row` differ."""
        row = dict(row or {})
        name = row.pop("table", self.table)
        model = self.app.enqueue(task, PAYLOAD, checked=False)
        if name == "finished":
            self.app.cancel(model.id)
        stored = self.qualified(name)
        columns = self.columns(name)
        given = {column: words.replace("later", self.later) for column, words in row.items()}
        values = {column: given.get(column, f"model.{column}") for column in columns}
        values["id"] = self.new_id
        copies = f"select {', '.join(values.values())} from {stored} model, {self.series(jobs)}"
        self.execute(f"insert into {stored} ({', '.join(columns)}) {copies} where model.id = '{model.id}'")
        if name == self.table:
            self.app.cancel(model.id)

    def analyze(self) -> None:
        """What a server does by itself within a minute after so many rows: without statistics it reads them all."""

    def close(self) -> None:
        self.rest()

    new_id = ""

    def qualified(self, table: str) -> str:
        raise NotImplementedError

    def columns(self, table: str) -> list[str]:
        raise NotImplementedError

    def series(self, jobs: int) -> str:
        raise NotImplementedError

    def execute(self, sql: str) -> list[Any]:
        raise NotImplementedError

    def costs(self) -> dict[str, float]:
        """What the server has spent so far, while the processes that it serves still live."""
        raise NotImplementedError

    def commits(self) -> dict[str, float]:
        """What the server counts only when those processes are gone."""
        return {}

    def state(self) -> dict[str, float]:
        """What is left behind after a run: dead rows, bytes of the hot table."""
        raise NotImplementedError


class PostgresPlace(StorePlace):
    """A database of its own: PostgreSQL counts commits by database."""

    later = "(now() + interval '1 hour')"
    new_id = f"{SCHEMA}.new_id()"

    def __init__(self, cluster: provision.Cluster) -> None:
        self._cluster = cluster
        self.server = provision.fresh_database(cluster.url)
        self._connection = psycopg.connect(self.server, autocommit=True)
        super().__init__(BenchPlace(self.server, {"url": self.server, "schema": SCHEMA}))
        self.app.migrate()

    def qualified(self, table: str) -> str:
        return f"{SCHEMA}.{table}"

    def columns(self, table: str) -> list[str]:
        found = self.execute(
            "select column_name from information_schema.columns"
            f" where table_schema = '{SCHEMA}' and table_name = '{table}' and is_generated = 'NEVER'"
        )
        return [name for (name,) in found]

    def series(self, jobs: int) -> str:
        return f"generate_series(1, {jobs}) n"

    def execute(self, sql: str) -> list[Any]:
        cursor = self._connection.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def costs(self) -> dict[str, float]:
        [(wal,)] = self.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        waits = len(re.findall("still waiting for", self._cluster.log))
        return {**server_cpu(self._cluster.pid), "wal": float(wal), "lock_waits": waits}

    def commits(self) -> dict[str, float]:
        """A backend adds to these counts when it ends or rests: wait until those of our processes are gone."""
        others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        self.rest()
        for _ in range(40):
            if not self.execute(others)[0][0]:
                break
            time.sleep(0.05)
        counts = "select xact_commit, deadlocks from pg_stat_database where datname = current_database()"
        [(commits, deadlocks)] = self.execute(counts)
        return {"commits": commits, "deadlocks": deadlocks}

    def analyze(self) -> None:
        self.execute("analyze")

    def state(self) -> dict[str, float]:
        [(dead, size)] = self.execute(
            "select n_dead_tup, pg_table_size(relid) from pg_stat_user_tables"
            f" where schemaname = '{SCHEMA}' and relname = 'jobs'"
        )
        return {"dead_tuples": dead, "hot_table_bytes": size}

    def close(self) -> None:
        super().close()
        self._connection.close()
        provision.drop_database(self.server)


class SqlitePlace(StorePlace):
    """A folder of its own."""

    later = "(cast((julianday('now') - 2440587.5 + 1.0 / 24) * 86400000000 as integer))"  # in microseconds
    new_id = "new_id()"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-benchmark-"))
        super().__init__(BenchPlace(f"sqlite:///{self.folder}/treadle.db", {"path": str(self.folder / "bare.db")}))
        self.app.migrate()
        self._connection = sqlite3.connect(self.folder / "treadle.db", isolation_level=None, timeout=30)
        self._connection.create_function("new_id", 0, new_id)

    def qualified(self, table: str) -> str:
        return f"treadle_{table}"

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.execute(f"pragma table_info(treadle_{table})")]

    def series(self, jobs: int) -> str:
        counted = f"select 1 n union all select n + 1 from counted where n < {jobs}"
        return f"(with recursive counted as ({counted}) select n from counted)"

    def execute(self, sql: str) -> list[Any]:
        return self._connection.execute(sql).fetchall()

    def costs(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, float]:
        self.execute("pragma wal_checkpoint(truncate)")
        return {"file_bytes": (self.folder / "treadle.db").stat().st_size}

    def close(self) -> None:
        super().close()
        self._connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Stores:
    """Makes places; the one PostgreSQL server is started when it is first needed."""

    def __init__(self) -> None:
        self._cluster: provision.Cluster | None = None

    def place(self, store: str) -> StorePlace:
        if store == "sqlite":
            return SqlitePlace()
        return PostgresPlace(self.cluster)

    @property
    def cluster(self) -> provision.Cluster:
        if self._cluster is None:
            self._cluster = provision.Cluster(**POSTGRES_SETTINGS)
            self._cluster.start()
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


@contextmanager
def opened() -> Iterator[Stores]:
    """Stores whose server is gone afterwards."""
    stores = Stores()
    try:
        yield stores
    finally:
        stores.close()


def server_cpu(postmaster: int) -> dict[str, float]:
    """CPU seconds of each of the server's processes that live now; nothing where there is no /proc."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == postmaster:
                found[f"cpu {folder.name}"] = int((folder / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            continue
    return found


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was spent between two `costs`; the CPU of all server processes as one figure."""
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    cpu = sum(found.pop(name) for name in list(found) if name.startswith("cpu "))
    return {**found, "server_cpu": cpu} if after else {}


def versions(stores: Stores) -> dict[str, str]:
    """What the figures were taken with."""
    found = {"treadle": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    found |= {"psycopg": psycopg.__version__, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    with psycopg.connect(stores.cluster.url) as connection:
        [server] = connection.execute("show server_version").fetchone() or ["?"]
    return {**found, "postgresql": str(server), "settings": json.dumps(POSTGRES_SETTINGS)}


def _noop(user_id: int, template: str, locale: str) -> None:
    """Only enqueued here; the worker is another process."""
