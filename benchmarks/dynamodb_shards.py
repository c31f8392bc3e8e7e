"""How many jobs a second a DynamoDB table carries, by its number of shards, in the fault layer's model of partitions.

python -m benchmarks.dynamodb_shards shards.svg

One machine cannot drive 256 shards, so the units that each partition is charged for a life of some jobs are measured,
and the rate is computed at which the hottest one reaches what AWS gives it: 1,000 write and 3,000 read units a second.
For a few shards the layer also throttles for real, at a tenth of that, and what gets through is measured.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import log2, log10
from pathlib import Path
from typing import NamedTuple, cast
from uuid import uuid4

from tests.support import dynamo_servers
from tests.support.faults_dynamodb import FaultLayer
from tests.support.making import a_job
from treadle.engines import connect
from treadle.engines.dynamodb.engine import DynamoEngine
from treadle.engines.values import Claim, Ruling
from treadle.model import Change, lifecycle, new_id
from treadle.model.lifecycle import Succeeded

SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPREAD = 256  # of the id items, so that they are not what limits
JOBS = 500  # at least; ten a shard
WRITE, READ = 1000, 3000  # units a second that a partition gives
BATCH = 25
SLOWER = 10  # times: the throttled runs get a tenth of what AWS gives, for a laptop cannot ask for more
SECONDS = 10  # that a throttled run should take
CREW = 4  # at once, a shard, each with five jobs at a time


class Modelled(NamedTuple):
    """One number of shards, and how many jobs a second it carries."""

    shards: int
    units: float  # written a job
    hottest: float  # jobs a second when the hottest partition, as measured, is full
    even: float  # and when jobs were spread evenly
    limit: str  # which partition that is


@contextmanager
def table(layer: FaultLayer, shards: int) -> Iterator[DynamoEngine]:
    """A fresh table behind the layer."""
    url = f"dynamodb://t{uuid4().hex[:20]}?endpoint={layer.url}&region=us-east-1&spread={SPREAD}&shards={shards}"
    engine = cast("DynamoEngine", connect(url))
    engine.migrate()
    yield engine
    layer.calm()
    engine.client.call("DeleteTable", {"TableName": engine.client.table})
    engine.close()


def lives(engine: DynamoEngine, jobs: int, batch: int = BATCH) -> None:
    """Enqueue so many jobs, and run as many."""
    for start in range(0, jobs, batch):
        engine.enqueue([a_job(engine.now()) for _ in range(min(batch, jobs - start))])
    done, changes = 0, list[Change]()
    while done < jobs:
        room = min(batch, jobs - done - len(changes))
        turn = engine.turn(changes, Claim(new_id(), "benchmark", room, 300.0) if room else None)
        busy = [c for c, v in zip(changes, turn.verdicts, strict=True) if v.ruling is Ruling.BUSY]
        done += len(changes) - len(busy)
        changes = busy + [lifecycle.settle(job, Succeeded(), turn.now) for job in turn.jobs]


def modelled(shards: int) -> Modelled:
    jobs = max(JOBS, 10 * shards)
    with FaultLayer(dynamo_servers.shared_dynamodb(), seed=1) as layer, table(layer, shards) as engine:
        lives(engine, BATCH)  # what is paid once is paid
        layer.forget()
        lives(engine, jobs)
        spent = layer.spent
    full = {
        (partition.value or "", kind): units / jobs / gives
        for kind, found, gives in (
            ("write", spent.partition_writes, WRITE), ("read", spent.partition_reads, READ),
        )
        for partition, units in found.items()
    }  # fmt: skip
    (value, kind), share = max(full.items(), key=lambda entry: entry[1])
    groups: dict[tuple[str, str], list[float]] = {}
    for (name, what), part in full.items():
        groups.setdefault((name.partition("#")[0], what), []).append(part)
    sizes = {"job": shards, "id": SPREAD}
    even = max(sum(parts) / sizes.get(group, 1) for (group, _), parts in groups.items())
    units = sum(spent.writes.values()) / jobs
    return Modelled(shards, units, 1 / share, 1 / even, f"{value.partition('#')[0]}, {kind}")


def throttled(shards: int) -> float:
    """Jobs a second through partitions that give a tenth of what AWS gives, by several at once."""
    each = SECONDS * WRITE // SLOWER // 5 // CREW
    with FaultLayer(dynamo_servers.shared_dynamodb(), seed=1) as layer, table(layer, shards) as engine:
        lives(engine, BATCH)
        layer.limit_partitions(WRITE / SLOWER, READ / SLOWER)
        start = time.perf_counter()
        with ThreadPoolExecutor(CREW * shards) as crew:
            done = [crew.submit(lives, engine, each, 5) for _ in range(CREW * shards)]
        for one in done:
            one.result()
        return each * len(done) / (time.perf_counter() - start)


# --------------------------------------------------------------------------------------------------- the plot

WIDE, HIGH, EDGE = 720, 460, 70


def plot(points: list[Modelled], measured: dict[int, float]) -> str:
    """A drawing of jobs a second against shards, both in powers."""
    rates = [rate for point in points for rate in (point.hottest, point.even)]
    rates += [rate * SLOWER for rate in measured.values()]
    low, high = 10 ** int(log10(min(rates))), 10 ** (int(log10(max(rates))) + 1)

    def x(shards: float) -> float:
        return EDGE + (WIDE - 2 * EDGE) * log2(shards) / log2(SHARDS[-1])

    def y(rate: float) -> float:
        return HIGH - EDGE - (HIGH - 2 * EDGE) * (log10(rate) - log10(low)) / (log10(high) - log10(low))

    def line(name: str, colour: str, found: list[tuple[int, float]], place: int) -> list[str]:
        where = " ".join(f"{x(shards):.1f},{y(rate):.1f}" for shards, rate in found)
        return [
            f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x(shards):.1f}" cy="{y(rate):.1f}" r="3.5" fill="{colour}"/>' for shards, rate in found),
            f'<rect x="{EDGE + 14}" y="{EDGE + place * 20}" width="12" height="3" fill="{colour}"/>',
            f'<text x="{EDGE + 32}" y="{EDGE + 6 + place * 20}">{name}</text>',
        ]

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="white"/>',
        f'<text x="{WIDE / 2}" y="30" text-anchor="middle" font-size="15">DynamoDB: jobs a second, by shards</text>',
        f'<text x="{WIDE / 2}" y="{HIGH - 18}" text-anchor="middle">shards</text>',
    ]
    for shards in SHARDS:
        drawn.append(f'<line x1="{x(shards)}" x2="{x(shards)}" y1="{y(low)}" y2="{y(high)}" stroke="#eee"/>')
        drawn.append(f'<text x="{x(shards)}" y="{y(low) + 20}" text-anchor="middle">{shards}</text>')
    for power in range(int(log10(low)), int(log10(high)) + 1):
        drawn.append(f'<line x1="{x(1)}" x2="{x(SHARDS[-1])}" y1="{y(10**power)}" y2="{y(10**power)}" stroke="#ccc"/>')
        drawn.append(f'<text x="{x(1) - 10}" y="{y(10**power) + 4}" text-anchor="end">{10**power:,}</text>')
    drawn += line("spread evenly", "#9bbbe0", [(point.shards, point.even) for point in points], 0)
    drawn += line("hottest partition, as measured", "#1f5fa8", [(point.shards, point.hottest) for point in points], 1)
    scaled = [(shards, rate * SLOWER) for shards, rate in measured.items()]
    drawn += line(f"throttled for real at 1/{SLOWER}, times {SLOWER}", "#c0392b", scaled, 2)
    return "\n".join([*drawn, "</svg>", ""])


def main(path: str) -> None:
    points = []
    print("| shards | write units a job | jobs/s, hottest partition | jobs/s, spread evenly | what is full first |")
    print("|---|---|---|---|---|")
    for shards in SHARDS:
        point = modelled(shards)
        points.append(point)
        print(
            f"| {shards} | {point.units:.2f} | {point.hottest:,.0f} | {point.even:,.0f} | {point.limit} |", flush=True
        )
    print(f"\n| shards | jobs/s measured at 1/{SLOWER} of the limits | times {SLOWER} |")
    print("|---|---|---|")
    measured = {}
    for shards in (1, 2, 4):
        measured[shards] = throttled(shards)
        print(f"| {shards} | {measured[shards]:.1f} | {measured[shards] * SLOWER:,.0f} |", flush=True)
    Path(path).write_text(plot(points, measured), encoding="utf-8")
    print(f"\n{path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
