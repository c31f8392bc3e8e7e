"""Run the benchmarks: `python3 dev.py bench`.

    --quick              the main scenarios in about a minute: fewer jobs, one round, no crowds; never published
    --full               the largest sizes: a million rows beside, 200,000 jobs, four minutes of soak
    --only NAME          only scenarios whose name holds NAME; repeatable; --list shows the names
    --rounds N           how often each side runs, in turns with the others; the median counts (5)
    --peers              install other queues outside this tree, and run them beside treadle
    --against COMMIT     compare with another commit: CPU a job of enqueue and drain, in pairs
    --write-docs         fill the tables and draw the plots of docs/performance.md from the results; runs nothing
    --out FILE           where results are kept; a run replaces the scenarios it ran, and leaves the others

Run it on a quiet machine. Each figure is a median with its spread, and has the CPU a job beside it, which is steadier.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import against, measures, pages
from benchmarks.measures import Figures, Run
from benchmarks.peers import Peer
from benchmarks.scenarios import PEER_SCENARIOS, PEERS, Scenario, Side, scenarios
from benchmarks.stores import StorePlace, Stores, opened, versions

ROOT = Path(__file__).resolve().parent.parent
KEY = {
    "served": "p99_ms",
    "latency": "p50_ms",
    "open_loop": "p99_ms",
    "claim": "claim_p50_ms",
    "pinned": "times",
    "memory": "rss_mb",
}
KEY |= {"soak": "last_over_first", "busy": "busy_share", "import_time": "import_ms"}
SETS = ("quick", "usual", "full")


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    if asked.write_docs:
        return pages.write(results_folder(asked))
    if asked.list:
        print("\n".join(scenario.name for scenario in scenarios()))
        return 0
    try:
        with opened() as stores:
            if asked.against:
                return against.compare(
                    asked.against, stores, rounds=asked.rounds or 5, jobs=2_000 if asked.quick else 20_000
                )
            return Session(stores, asked).run()
    except KeyboardInterrupt:
        print("\ninterrupted: the processes are stopped, what was made is removed", file=sys.stderr)
        return 130


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev.py bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true")
    size.add_argument("--full", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.rounds is not None and asked.rounds < 1:
        parser.error(f"--rounds: {asked.rounds} must be 1 or more")
    names = [scenario.name for scenario in scenarios()]
    for part in asked.only:
        if not any(part in name for name in names):
            parser.error(f"--only: no scenario has {part!r} in its name; --list shows them all")
    return asked


def results_folder(asked: argparse.Namespace) -> Path:
    return asked.out.parent if asked.out else ROOT / ".cache" / "bench"


class Session:
    """One call: which scenarios, with which sizes, and what came out."""

    def __init__(self, stores: Stores, asked: argparse.Namespace) -> None:
        self.stores, self.asked = stores, asked
        self.set = "quick" if asked.quick else "full" if asked.full else "usual"
        minor = ".".join(platform.python_version_tuple()[:2])
        kind = "quick" if asked.quick else "results"  # a quick look is never published
        self.out = asked.out or results_folder(asked) / f"{kind}-{minor}.json"
        self.results: dict[str, Any] = json.loads(self.out.read_text()) if self.out.exists() else {"scenarios": {}}
        self.failed: list[str] = []
        self.peers = [peer for peer in map(Peer, PEERS) if asked.peers and self.installed(peer)]

    def run(self) -> int:
        begun = time.monotonic()
        for scenario in self.chosen():
            self.measure(scenario)
            self.results |= {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "set": self.set}
            self.results["versions"] = versions(self.stores)
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.results, indent=1))
        print(f"\n{time.monotonic() - begun:.0f} s; results in {self.out}")
        for line in self.failed:
            print(f"failed: {line}", file=sys.stderr)
        return 1 if self.failed else 0

    def chosen(self) -> Iterator[Scenario]:
        for scenario in scenarios():
            wanted = not self.asked.only or any(part in scenario.name for part in self.asked.only)
            if wanted and self.size(scenario.jobs):
                yield scenario
            elif wanted and self.asked.only:
                print(f"{scenario.name}: not in the {self.set} set; try --full")

    def size(self, sizes: Any) -> int:
        return int(sizes[SETS.index(self.set)])

    def installed(self, peer: Peer) -> bool:
        reason = peer.install()
        if reason:
            print(f"{peer.name} is left out: {reason}", file=sys.stderr)
        return not reason

    def measure(self, scenario: Scenario) -> None:
        """Run every side of a scenario in turns, round by round."""
        rounds = self.asked.rounds or (1 if self.set == "quick" else scenario.rounds or 5)
        if scenario.rounds == 1:
            rounds = 1
        begun, found = time.monotonic(), {name: [] for name, _, _ in self.sides(scenario)}
        kept: dict[str, StorePlace] = {}
        print(f"\n{scenario.name}: {self.size(scenario.jobs):,} jobs, {rounds} round{'s' * (rounds > 1)}", flush=True)
        try:
            for _ in range(rounds):
                for name, side, peer in self.sides(scenario):
                    found[name].append(self.once(scenario, name, side, peer, kept))
        except Exception as error:
            self.failed.append(f"{scenario.name}: {type(error).__name__}: {error}")
            print(f"  failed: {error}", flush=True)
            return
        finally:
            for place in kept.values():
                place.close()
        self.results["scenarios"][scenario.name] = told = summary(
            scenario, found, KEY.get(scenario.measure, "jobs_per_second")
        )
        told |= {"jobs": self.size(scenario.jobs), "crowd": self.size(scenario.crowd), "set": self.set}
        told["seconds"] = round(time.monotonic() - begun, 1)
        show(told)

    def sides(self, scenario: Scenario) -> Iterator[tuple[str, Side, Peer | None]]:
        for name, side in scenario.sides.items():
            if side.get("only", self.set) == self.set:
                yield name, side, None
        for peer in self.peers:
            kind = scenario.name.removeprefix(f"{peer.store}-")
            if scenario.store == peer.store and kind in PEER_SCENARIOS:
                yield peer.name, scenario.sides["treadle"], peer

    def once(
        self, scenario: Scenario, name: str, side: Side, peer: Peer | None, kept: dict[str, StorePlace]
    ) -> Figures:
        if scenario.store == "python":
            return measures.import_time(Run(None, side, 0, 0, True))  # type: ignore[arg-type]
        place = kept.get(name) or self.stores.place(scenario.store)
        first = name not in kept
        if scenario.keeps:
            kept[name] = place
        share = peer.facts.get("share", 1) if peer else 1
        slow = peer is not None and scenario.measure != "latency"
        jobs = self.size(scenario.jobs) // (share if slow else 1)
        try:
            function = getattr(measures, scenario.measure)
            return function(Run(place, side, jobs, self.size(scenario.crowd), first, peer))
        finally:
            if not scenario.keeps:
                place.close()


def summary(scenario: Scenario, found: dict[str, list[Figures]], key: str) -> dict[str, Any]:
    """Medians and spreads of every figure, and each side as a share of the first one, pair by pair."""
    yardstick = next(iter(found.values()))
    sides = {}
    for name, runs in found.items():
        figures = {
            figure: {"median": statistics.median(values), "least": min(values), "most": max(values)}
            for figure in runs[0]
            for values in [[run[figure] for run in runs]]
        }
        shares = [run[key] / first[key] for run, first in zip(runs, yardstick, strict=True) if first.get(key)]
        ratio = {"median": statistics.median(shares), "least": min(shares), "most": max(shares)} if shares else None
        sides[name] = {"figures": figures, "ratio": ratio, "runs": runs}
    return {"store": scenario.store, "measure": scenario.measure, "plot": scenario.plot, "key": key, "sides": sides}


SHOWN = {
    "jobs_per_second": "{:,.0f} jobs/s", "worker_cpu_us": "worker {:.1f} us", "client_cpu_us": "client {:.1f} us",
    "server_cpu_us": "server {:.1f} us", "p50_ms": "p50 {:.2f} ms", "p95_ms": "p95 {:.2f}", "p99_ms": "p99 {:.2f}",
    "claim_p50_ms": "claim p50 {:.2f} ms", "claim_p95_ms": "p95 {:.2f}", "wal_bytes_a_job": "WAL {:,.0f} B",
    "commits_a_job": "{:.3f} commits", "dead_tuples": "{:,.0f} dead", "backlog_most": "backlog {:,.0f}",
    "deadlocks": "{:.0f} deadlocks", "lock_waits_over_50_ms": "{:.0f} lock waits", "busy_share": "busy {:.2%}",
    "rss_mb": "{:.0f} MB", "grew_mb": "grew {:.0f} MB", "import_ms": "{:.1f} ms", "times": "{:.2f} x the claim before",
    "hot_table_mb_most": "hot table {:.0f} MB", "last_over_first": "end/begin {:.2f}",
}  # fmt: skip


def show(told: dict[str, Any]) -> None:
    """A line a side: the medians, the ratio to the first side, and the spread of what counts."""
    for name, side in told["sides"].items():
        figures = side["figures"]
        words = [text.format(figures[figure]["median"]) for figure, text in SHOWN.items() if figure in figures]
        ratio = f"{side['ratio']['median']:.2f} x " if side["ratio"] else ""
        main_figure = figures[told["key"]]
        cut = ", CUT" if figures.get("cut", {}).get("most") else ""
        spread = f"({main_figure['least']:,.4g} to {main_figure['most']:,.4g})"
        print(f"  {name:24} {ratio:8}{', '.join(words)}{cut} {spread}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
