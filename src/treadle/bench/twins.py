"""Bare SQL that does a queue's work and nothing else: the yardstick of every ratio.

A narrow table with one partial index; a batch is claimed in one statement and finished in another. There are no
retries, no leases that end, no keys, no audit trail, no tenants. A worker without promises cannot do much better.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

PAYLOAD = {"user_id": 12345, "template": "welcome", "locale": "en"}
PAYLOAD_JSON = json.dumps(PAYLOAD)
STEP = 1000  # jobs of one bulk insert
POLL = 0.005  # seconds between two looks at an empty file

Handle = Callable[[dict[str, Any]], None]


class Twin(Protocol):
    """A queue of bare SQL."""

    def create(self) -> None:
        """Make its table."""
        ...

    def insert(self, payload: str) -> None:
        """Store one job, durably, and wake the worker."""
        ...

    def fill(self, jobs: int) -> None:
        """Store many jobs, a thousand a statement."""
        ...

    def work(self, handle: Handle, stopped: Callable[[], bool]) -> None:
        """Run jobs until `stopped` says so."""
        ...

    def open_jobs(self) -> int:
        """How many jobs have not ended, at most 1."""
        ...

    def close(self) -> None: ...


class BarePostgres:
    """The twin on PostgreSQL, in a schema that exists."""

    BATCH = 500

    def __init__(self, url: str, schema: str) -> None:
        import psycopg  # noqa: PLC0415 - SQLite's users need not have it

        self._url, self._psycopg, self._channel = url, psycopg, f"{schema}_bare"
        self._connection: Any = None
        self._sql = {name: text.replace("@", schema) for name, text in POSTGRES.items()}
        self._claim, self._done, self._insert = (self._sql[name] for name in ("claim", "done", "insert"))

    def create(self) -> None:
        for statement in ("table", "index"):
            self.connection.execute(self._sql[statement])

    def insert(self, payload: str) -> None:
        self.connection.execute(self._insert, (payload, self._channel), binary=True)

    def fill(self, jobs: int) -> None:
        for start in range(0, jobs, STEP):
            several = array_text([json.dumps(PAYLOAD_JSON)] * min(STEP, jobs - start))
            self.connection.execute(self._sql["fill"], (several,), binary=True).fetchall()

    def work(self, handle: Handle, stopped: Callable[[], bool]) -> None:
        with self._connect() as listening, self._connect() as connection, event_loop() as loop:
            listening.execute(f"listen {self._channel}")
            while not stopped():
                cursor = connection.execute(self._claim, (self.BATCH,), binary=True)
                if rows := cursor.fetchall():
                    loop.run_until_complete(_all_of(handle, [row[1] for row in rows]))
                    connection.execute(self._done, (array_text([str(row[0]) for row in rows]),))
                else:
                    for _ in listening.notifies(timeout=0.2, stop_after=1):
                        pass

    def open_jobs(self) -> int:
        return len(self.connection.execute(self._sql["open"]).fetchall())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> Any:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Any:
        connection = self._psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        [[pid]] = connection.execute("select pg_backend_pid()").fetchall()
        if pid == connection.info.backend_pid:  # else a pooler is in between, where nothing stays prepared
            connection.prepare_threshold = 0
        return connection


class BareSqlite:
    """The twin on SQLite: a file in WAL mode that is synced at every commit."""

    BATCH = 100

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        for setting in ("journal_mode = wal", "synchronous = full", "cache_size = -64000"):
            self._connection.execute(f"pragma {setting}")

    def create(self) -> None:
        for statement in ("table", "index"):
            self._connection.execute(SQLITE[statement])

    def insert(self, payload: str) -> None:
        self._connection.execute(SQLITE["insert"], (payload,))

    def fill(self, jobs: int) -> None:
        for start in range(0, jobs, STEP):
            with self._transaction():
                self._connection.executemany(SQLITE["insert"], [(PAYLOAD_JSON,)] * min(STEP, jobs - start))

    def work(self, handle: Handle, stopped: Callable[[], bool]) -> None:
        while not stopped():
            now = time.time()
            with self._transaction():
                rows = self._connection.execute(SQLITE["claim"], (now, now + 60, now, self.BATCH)).fetchall()
            if not rows:
                time.sleep(POLL)
                continue
            for row in rows:
                handle(json.loads(row[1]))
            now = time.time()
            with self._transaction():
                self._connection.executemany(SQLITE["done"], [(now, row[0]) for row in rows])

    def open_jobs(self) -> int:
        return len(self._connection.execute(SQLITE["open"]).fetchall())

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        yield
        self._connection.execute("commit")


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A new loop, closed at the end."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def array_text(elements: list[str]) -> str:
    """An array as PostgreSQL writes it: ten times quicker than a list that the driver takes apart."""
    return "{" + ",".join(elements) + "}"


async def _all_of(handle: Handle, payloads: list[dict[str, Any]]) -> None:
    """A task a job, as a worker of coroutines has it."""

    async def run(payload: dict[str, Any]) -> None:
        handle(payload)

    await asyncio.gather(*[asyncio.ensure_future(run(payload)) for payload in payloads])


POSTGRES = {
    "table": """
        create table @.bare (
            id bigint generated always as identity primary key,
            type text not null, queue text not null default 'default', payload jsonb not null,
            priority smallint not null default 0, state smallint not null default 0,
            run_at timestamptz not null default now(), attempts smallint not null default 0,
            max_attempts smallint not null default 5, lease_until timestamptz, lease_owner text, unique_key text,
            created_at timestamptz not null default now(), started_at timestamptz, finished_at timestamptz, error text
        ) with (autovacuum_vacuum_scale_factor = 0.02)
    """,
    "index": "create index bare_ready on @.bare (queue, priority desc, run_at, id) where state = 0",
    "insert": """
        with stored as (insert into @.bare (type, payload) values ('noop', %s::text::jsonb) returning id)
        select id, pg_notify(%s::text, 'default') from stored
    """,
    "fill": "insert into @.bare (type, payload) select 'noop', one from unnest(%s::text::jsonb[]) one returning id",
    # An array, not `id in (select …)`: the planner could run that again for each row.
    "claim": """
        update @.bare
        set state = 1, attempts = attempts + 1, started_at = now(), lease_until = now() + interval '60 s',
            lease_owner = 'worker'
        where id = any(array(
            select id from @.bare
            where state = 0 and queue = 'default' and run_at <= now()
            order by priority desc, run_at, id
            limit %s
            for update skip locked
        ))
        returning id, payload, type, attempts
    """,
    "done": "update @.bare set state = 2, finished_at = now(), lease_until = null where id = any(%s::text::bigint[])",
    "open": "select 1 from @.bare where state < 2 limit 1",
}

SQLITE = {
    "table": """
        create table bare (
            id integer primary key, type text not null default 'noop', queue text not null default 'default',
            payload text not null, priority int not null default 0, state int not null default 0,
            run_at real not null default 0, attempts int not null default 0, max_attempts int not null default 5,
            lease_until real, lease_owner text, unique_key text, created_at real not null default 0, started_at real,
            finished_at real, error text
        )
    """,
    "index": "create index bare_ready on bare (queue, priority desc, run_at, id) where state = 0",
    "insert": "insert into bare (payload) values (?)",
    "claim": """
        update bare
        set state = 1, attempts = attempts + 1, started_at = ?, lease_until = ?, lease_owner = 'worker'
        where id in (
            select id from bare
            where state = 0 and queue = 'default' and run_at <= ?
            order by priority desc, run_at, id
            limit ?
        )
        returning id, payload, type, attempts
    """,
    "done": "update bare set state = 2, finished_at = ?, lease_until = null where id = ?",
    "open": "select 1 from bare where state < 2 limit 1",
}
