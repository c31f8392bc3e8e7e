"""Every scenario as data: what is measured, on which store, on which sides, with how many jobs.

The sides of a scenario run in turns, round by round. The first side is what the others are compared with: mostly bare
SQL, else the same on an empty table or with one worker.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Side = Mapping[str, Any]

BARE: Side = {"bare": True}
TREADLE: Side = {}
LATER = "later"  # a word for an expression of either store: an hour from now


class Size(NamedTuple):
    """How many jobs: in the quick set, in the usual one, in the full one. 0: it is not in that set."""

    quick: int
    usual: int
    full: int


class Scenario(NamedTuple):
    """One measurement. `keeps` its tables from round to round: they were dear to fill."""

    name: str
    store: str  # postgres, sqlite, or python for what needs none
    measure: str  # a function in measures.py
    sides: Mapping[str, Side]
    jobs: Size
    rounds: int | None = None  # None: as many as were asked for
    crowd: Size = Size(0, 0, 0)  # rows beside the jobs
    keeps: bool = False
    plot: str = ""


# By name, what a row of the crowd is: a task, and columns that differ from a plain job's. `n` counts the rows.
CROWDS: dict[str, dict[str, str]] = {
    "finished": {"table": "finished"},
    "future, higher priority": {"due_at": LATER, "priority": "10"},
    "other queues": {"queue": "'other ' || n % 10"},
    "a paused queue": {"queue": "'paused'"},
    "another tenant": {"tenant": "'other'", "priority": "-1"},
    "leases of dead workers": {
        "task": "'held'", "state": "'running'", "attempt": "1", "worker": "'dead'", "lease_token": "'dead ' || n",
        "lease_until": LATER,
    },
    "lanes, future, by SQL": {"lane": "'lane ' || n", "due_at": LATER},
}  # fmt: skip

SMALL_CROWDS = {"leases of dead workers": 10, "lanes, future, by SQL": 10}  # a tenth of the rows: 100,000 of a million


def scenarios() -> Iterator[Scenario]:
    """All of them, the headline first."""
    for store in ("postgres", "sqlite"):
        yield from _of(store)
    yield Scenario(
        "import", "python", "import_time", {"asyncio": {"module": "asyncio"}, "treadle": {"module": "treadle"}},
        Size(1, 1, 1),
    )  # fmt: skip


def _of(store: str) -> Iterator[Scenario]:
    both = {"bare": BARE, "treadle": TREADLE}
    yield Scenario(f"{store}-drain", store, "drain", both, Size(5_000, 50_000, 200_000))
    yield Scenario(
        f"{store}-drain-def", store, "drain", {"bare": BARE, "def": {"handler": "def"}}, Size(0, 20_000, 50_000), 3
    )
    workers = {f"{count} worker{'s' * (count > 1)}": {"workers": count} for count in (1, 2, 4, 8)}
    yield Scenario(f"{store}-workers", store, "drain", workers, Size(0, 30_000, 100_000), 3, plot="workers")
    yield Scenario(
        f"{store}-enqueue", store, "enqueue",
        {"bare": BARE, "treadle": TREADLE, "key new": {"how": "key_new"}, "key taken": {"how": "key_taken"}},
        Size(200, 1_000, 5_000),
    )  # fmt: skip
    yield Scenario(
        f"{store}-bulk", store, "enqueue", {"bare": {**BARE, "how": "bulk"}, "treadle": {"how": "bulk"}},
        Size(5_000, 50_000, 50_000),
    )  # fmt: skip
    yield Scenario(
        f"{store}-bulk-memory", store, "enqueue", {"treadle": {"how": "bulk"}}, Size(0, 200_000, 1_000_000), 1
    )
    same_process = {"same process": {"embedded": True}} if store == "sqlite" else {}
    yield Scenario(
        f"{store}-latency", store, "latency", {**both, **same_process}, Size(30, 200, 500), 3, plot="latency"
    )
    yield Scenario(
        f"{store}-open-loop", store, "open_loop", {"treadle": {"rate": 1_000}}, Size(2_000, 20_000, 60_000), 1,
    )  # fmt: skip
    beside = {"rate": 1_000, "crowd": "finished"}
    yield Scenario(
        f"{store}-served", store, "served",
        {"no clients": beside, "20 clients": {**beside, "pause": 1.0}, "20 without a pause": {**beside, "pause": 0.0}},
        Size(0, 20_000, 30_000), 1, Size(0, 100_000, 1_000_000),
    )  # fmt: skip
    sizes = {f"backlog {size:,}": {"backlog": size} for size in (10_000, 100_000)}
    million = {"backlog 1,000,000": {"backlog": 1_000_000, "only": "full"}}
    yield Scenario(f"{store}-backlog", store, "drain", {**sizes, **million}, Size(0, 10_000, 10_000), 2, plot="backlog")
    for crowd in CROWDS:
        small = SMALL_CROWDS.get(crowd, 1)
        yield Scenario(
            f"{store}-beside-{crowd.replace(',', '').replace(' ', '-')}", store, "drain",
            {"empty": {}, crowd: {"crowd": crowd}}, Size(0, 10_000, 20_000), 2,
            Size(0, 100_000, 1_000_000 // small), keeps=True,
        )  # fmt: skip
    yield Scenario(
        f"{store}-priorities", store, "drain", {"1 priority": {}, "100 priorities": {"row": {"priority": "n % 100"}}},
        Size(0, 20_000, 50_000), 2,
    )  # fmt: skip
    lanes = {f"{count:,} lanes": {"row": {"lane": f"'lane ' || n % {count}"}} for count in (10, 1_000, 20_000)}
    yield Scenario(f"{store}-lanes", store, "drain", {"no lane": {}, **lanes}, Size(0, 20_000, 20_000), 2, plot="lanes")
    for how in ("enqueue", "retries"):
        yield Scenario(
            f"{store}-lanes-future-by-{how}", store, "drain", {"empty": {}, how: {"lanes_by": how}},
            Size(0, 0, 20_000), 3, Size(0, 0, 20_000), keeps=True,
        )  # fmt: skip
    yield Scenario(
        f"{store}-claim-lanes", store, "claim",
        {"10 lanes": {"lanes": 10}, "many, due": {"lanes": None}, "many, future": {"lanes": None, "later": True}},
        Size(0, 50, 50), 3, Size(0, 100_000, 100_000),
    )  # fmt: skip
    yield Scenario(
        f"{store}-memory", store, "memory", {"treadle": {}}, Size(0, 5_000, 5_000), 1, Size(0, 200_000, 1_000_000)
    )
    if store == "postgres":
        yield Scenario(
            "postgres-busy", store, "busy", {"8 workers, 1 ms": {"workers": 8, "handler": "def", "busy": 0.001}},
            Size(0, 20_000, 40_000), 1,
        )  # fmt: skip
        yield Scenario("postgres-pinned", store, "pinned", {"treadle": {}}, Size(0, 20_000, 100_000), 1)
        yield Scenario(
            "postgres-soak", store, "soak", {"treadle": {"rate": 4_000, "workers": 2}}, Size(0, 80_000, 960_000), 1
        )


PEERS: dict[str, dict[str, Any]] = {
    "pgqueuer": {
        "store": "postgres", "install": ["pgqueuer[asyncpg]"],
        "open": "select count(*) from pgqueuer where status in ('queued', 'picked')",
    },
    "procrastinate": {
        "store": "postgres", "install": ["procrastinate", "psycopg[binary]", "psycopg_pool"], "share": 10,
        "open": "select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
    },
    "graphile": {
        "store": "postgres", "node": ["graphile-worker", "pg"],
        "open": "select count(*) from graphile_worker._private_jobs",
    },
    "huey": {"store": "sqlite", "install": ["huey"], "share": 10, "open": "select count(*) from task"},
}  # fmt: skip
"""By name: its store, its packages, which share of the jobs it drains in decent time, and the query for open jobs."""

PEER_SCENARIOS = ("drain", "enqueue", "bulk", "latency")
