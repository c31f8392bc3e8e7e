"""Where the jobs of a run are kept, one kind of store each, and the harm that can be done to it."""

import argparse
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import psycopg

from tests.chaos.gate import REGION, Absence, Gate
from tests.support.dynamo_servers import dynamodb
from tests.support.provision import Cluster, StopMode
from treadle import State, Treadle
from treadle.engines import connect
from treadle.engines.dynamodb.items import ItemKey, unique_key
from treadle.model import Scope

ABSENCES: Sequence[Absence] = ("silent", "unavailable", "crowded")
BRIEFLY = 0.1  # seconds
PATIENCE = 10.0  # seconds for the server to finish what a dead process asked of it


class Outage(NamedTuple):
    """The server was away: from when nobody got an answer, and when it took connections again."""

    mode: StopMode | Absence
    down: float
    up: float


class Store(Protocol):
    """A store of a run's own, from `with` on."""

    harms: frozenset[str]  # what a run may ask for: restarts, terminations, troubles, latency
    lag: float  # seconds by which what a worker takes for the store's time may be behind
    stamps_first: bool  # audit lines carry the time at which somebody decided to write them, and may arrive much later
    margin: float  # seconds past its end in which a lease is nobody's to take

    def __init__(self, folder: Path, options: argparse.Namespace) -> None: ...
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

    def outage(self, number: int, away: float) -> Outage:
        """Let the server be away for so many seconds; for the how-manieth time, from 0."""
        ...

    def terminate(self, random: Random) -> Sequence[str]:
        """Cut one of the workers' connections; what it was doing, or nothing if there was none."""
        ...

    def calm(self) -> str:
        """Do no more harm; what the harm was that nobody asked for one by one, "" for none."""
        ...


class SqliteFile:
    """A file; whoever writes to it is one of the run's own processes."""

    harms = frozenset[str]()
    lag = 0.0
    stamps_first = False
    margin = 0.0

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
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

    def outage(self, number: int, away: float) -> Outage:
        raise NotImplementedError("there is no server")

    def terminate(self, random: Random) -> Sequence[str]:
        raise NotImplementedError("there is no server")

    def calm(self) -> str:
        return ""


class PostgresServer:
    """A cluster of the run's own, which keeps what it has acknowledged even when it is stopped at once."""

    harms = frozenset({"restarts", "terminations"})
    lag = 0.1
    stamps_first = False
    margin = 0.0

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
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

    def outage(self, number: int, away: float) -> Outage:
        mode: StopMode = "immediate" if number % 2 else "fast"
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

    def calm(self) -> str:
        return ""

    def _ask(self, sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        with psycopg.connect(self._cluster.url, autocommit=True, application_name="place") as connection:
            return connection.execute(sql, values).fetchall()


class DynamoTable:
    """A table of the run's own in an emulator, which forgets it when it stops: so it is away without being stopped.

    Workers and producer reach it through a gate; the harness goes there directly.
    """

    harms = frozenset({"troubles", "latency"})
    lag = 0.0  # everybody stamps with the clock of this machine
    stamps_first = True
    margin = 0.5  # the engine's own default, for clocks that differ

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._seed, self._latency = options.seed, options.latency / 1000
        self._table = f"chaos-{folder.name}"
        self._open = ExitStack()

    def __enter__(self) -> Self:
        os.environ.update(AWS_ACCESS_KEY_ID="chaos", AWS_SECRET_ACCESS_KEY="chaos")  # or botocore looks around for some
        with ExitStack() as opened:
            self._server = opened.enter_context(dynamodb())
            self._gate = Gate(self._server, self._folder, self._seed, self._latency)
            opened.callback(self._gate.close)
            engine = connect(self.url("harness"))
            opened.callback(engine.close)
            engine.migrate()
            self._client = engine.client  # type: ignore[attr-defined]
            opened.callback(self._client.call, "DeleteTable", {"TableName": self._table})
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def url(self, name: str) -> str:
        gated = name.startswith(("w", "p."))
        endpoint, region = (self._gate.url, name) if gated else (self._server, REGION)
        return f"dynamodb://{self._table}?endpoint={endpoint}&region={region}&spread=4&skew={self.margin}"

    def quiet(self, name: str) -> None:
        if not self._gate.quiet(name, PATIENCE):
            raise TimeoutError(f"the gate works for {name} since {PATIENCE:g} s")

    def damage(self) -> str:
        app = Treadle(self.url("harness"))
        found = [*app.check_schema(), *misplaced(self._items())]
        app.close()
        return "; ".join(found[:10])

    def outage(self, number: int, away: float) -> Outage:
        if number == 0:
            self._gate.trouble()
        how = ABSENCES[number % len(ABSENCES)]
        down = time.time()
        self._gate.go_away(how, max(away, BRIEFLY))
        return Outage(how, down, time.time())

    def terminate(self, random: Random) -> Sequence[str]:
        raise NotImplementedError("troubles lose answers anyway")

    def calm(self) -> str:
        met = self._gate.met()
        self._gate.calm()
        faults = ", ".join(f"{n} {fault}" for fault, n in met.most_common() if fault)
        return f"{met.total()} requests, of which {faults or 'none met a fault'}"

    def _items(self) -> dict[ItemKey, dict[str, Any]]:
        """The whole table, with plain values, by key."""
        found: dict[ItemKey, dict[str, Any]] = {}
        start: Mapping[str, Any] = {}
        while True:
            reply = self._client.call("Scan", {"TableName": self._table, "ConsistentRead": True, **start})
            for item in reply["Items"]:
                plain = {name: next(iter(value.values())) for name, value in item.items()}
                found[ItemKey(plain["PK"], plain["SK"])] = plain
            if "LastEvaluatedKey" not in reply:
                return found
            start = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}


def misplaced(items: Mapping[ItemKey, Mapping[str, Any]]) -> Iterator[str]:
    """What no single transaction may leave behind: a job in two places or in none, or a line or key of no such job."""
    homes = {sk: item for (pk, sk), item in items.items() if pk.startswith("id#")}
    places = {id_: ItemKey(home["job_pk"], home["job_sk"]) for id_, home in homes.items() if "job_pk" in home}
    jobs = {id_: items.get(places[id_]) if id_ in places else home for id_, home in homes.items()}
    yield from (f"job {id_} is not where its id item says" for id_, job in jobs.items() if job is None)
    listed: Counter[tuple[str, str]] = Counter()
    for (pk, sk), item in items.items():
        id_, kind = sk.rpartition("#")[2], pk.partition("#")[0]
        job = jobs.get(id_)
        if kind == "job" and job is not item:
            yield f"there is a due item of job {id_} in {pk} at {sk}, and its id item does not say so"
        elif kind in ("failed", "cancelled"):
            listed[kind, id_] += 1
            if job is None or job["status"] != kind:
                yield f"job {id_} is listed as {kind}, and is {job and job['status']}"
        elif kind == "key":
            owner = jobs.get(item["job"])
            state = State(owner["status"]) if owner else None
            active, pending = state in (State.PENDING, State.RUNNING), state is State.PENDING
            if (item["scope"] == Scope.ACTIVE and not active) or (item["scope"] == Scope.PENDING and not pending):
                yield f"{pk} is held by job {item['job']}, which is {state or 'gone'}"
    for id_, job in jobs.items():
        state = State(job["status"]) if job else State.SUCCEEDED
        if state in (State.FAILED, State.CANCELLED) and listed[state.value, id_] != 1:
            yield f"job {id_} is {state} and listed {listed[state.value, id_]} times"
        if job and not state.final and job.get("key_scope") == Scope.ACTIVE:
            held = items.get(unique_key(job.get("tenant", "default"), job["job_type"], job["key"]))
            if held is None or held["job"] != id_:
                yield f"job {id_} does not hold its key, {held['job'] if held else 'nobody'} does"


STORES: dict[str, type[Store]] = {"sqlite": SqliteFile, "postgres": PostgresServer, "dynamodb": DynamoTable}

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
