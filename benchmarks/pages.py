"""Fill docs/performance.md from the results: tables between marks, plots beside the page; nothing by hand."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import plots

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"
NOT_MEASURED = "not measured yet"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

RATES = (
    ("jobs/s", "jobs_per_second", "{:,.0f}"), ("CPU worker", "worker_cpu_us", "{:.1f} us"),
    ("CPU server", "server_cpu_us", "{:.1f} us"), ("WAL", "wal_bytes_a_job", "{:,.0f} B"),
    ("commits", "commits_a_job", "{:.3f}"),
)  # fmt: skip
CALLS = (
    ("jobs/s", "jobs_per_second", "{:,.0f}"), ("CPU client", "client_cpu_us", "{:.1f} us"),
    ("CPU server", "server_cpu_us", "{:.1f} us"), ("p50", "p50_ms", "{:.2f} ms"), ("p99", "p99_ms", "{:.2f} ms"),
)  # fmt: skip
WAITS = (("p50", "p50_ms", "{:.2f} ms"), ("p95", "p95_ms", "{:.2f} ms"), ("p99", "p99_ms", "{:.2f} ms"))
BULK = (*CALLS[:3], ("memory", "grew_mb", "+{:.0f} MB"))
CLAIMS = (("claim p50", "claim_p50_ms", "{:.2f} ms"), ("p95", "claim_p95_ms", "{:.2f} ms"))
LONG = (
    *WAITS, ("most backlog", "backlog_most", "{:,.0f}"), ("end/begin", "last_over_first", "{:.2f}"),
    ("hot table", "hot_table_mb_most", "{:.0f} MB"),
)  # fmt: skip
SERVED = (
    ("pickup p50", "p50_ms", "{:.2f} ms"), ("p99", "p99_ms", "{:.2f} ms"), ("most backlog", "backlog_most", "{:,.0f}"),
    ("requests", "requests", "{:,.0f}"), ("request p50", "request_p50_ms", "{:.1f} ms"),
    ("p95", "request_p95_ms", "{:.1f} ms"), ("list p95", "list_p95_ms", "{:.1f} ms"),
    ("stats p95", "stats_p95_ms", "{:.1f} ms"), ("job p95", "job_p95_ms", "{:.1f} ms"),
    ("count p95", "count_p95_ms", "{:.1f} ms"), ("status p95", "status_p95_ms", "{:.1f} ms"),
)  # fmt: skip
LOCKS = (
    *RATES[:1], ("busy settles", "busy_share", "{:.2%}"), ("deadlocks", "deadlocks", "{:.0f}"),
    ("lock waits over 50 ms", "lock_waits_over_50_ms", "{:.0f}"),
)  # fmt: skip
PINNED = (
    ("claim p50", "claim_p50_ms", "{:.2f} ms"),
    ("before", "before_p50_ms", "{:.2f} ms"),
    ("times", "times", "{:.2f}"),
)
SMALL = (("CPU", "import_ms", "{:.1f} ms"), ("memory", "rss_mb", "{:.0f} MB"))

# By the name of a block: which scenarios it shows (a pattern), and which columns.
TABLES: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "drain": (r"\w+-drain(-def)?", RATES),
    "workers": (r"\w+-workers", (*RATES, *LOCKS[2:])),
    "busy": (r"postgres-busy", LOCKS),
    "enqueue": (r"\w+-enqueue", CALLS),
    "bulk": (r"\w+-bulk(-memory)?", BULK),
    "latency": (r"\w+-latency", WAITS),
    "open-loop": (r"\w+-(open-loop|soak)", LONG),
    "served": (r"\w+-served", SERVED),
    "beside": (r"\w+-(beside-.*|priorities|lanes.*|backlog)", RATES[:3]),
    "claim": (r"\w+-claim-lanes", CLAIMS),
    "pinned": (r"postgres-pinned", PINNED),
    "small": (r"import|\w+-memory", SMALL),
}

SHOWN_BELOW = {
    "workers": {"workers": "Jobs a second against worker processes"},
    "latency": {"latency": "How long jobs wait on an idle queue"},
    "beside": {"backlog": "Jobs a second against backlog", "lanes": "Jobs a second against lanes"},
}
"""By the name of a block, the plots below its table."""


def write(folder: Path) -> int:
    """Write tables and plots from the results in this folder."""
    found = sorted(folder.glob("results-*.json"))
    if not found:
        print(f"there are no results in {folder}; run python3 dev.py bench first", file=sys.stderr)
        return 2
    results = {path.stem.removeprefix("results-"): json.loads(path.read_text()) for path in found}
    PAGE.write_text(filled(PAGE.read_text("utf-8"), results), "utf-8")
    PLOTS.mkdir(exist_ok=True)
    for name, svg in drawn(next(iter(results.values()))["scenarios"]):
        (PLOTS / f"{name}.svg").write_text(svg, "utf-8")
    print(f"{PAGE.relative_to(ROOT)} and {PLOTS.relative_to(ROOT)} are written")
    return 0


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its blocks filled; one for which nothing was measured says so."""

    pictures = dict(drawn(next(iter(results.values()))["scenarios"]))

    def block(match: re.Match[str]) -> str:
        head, name, end = match.groups()
        text = _about(results) if name == "about" else _tables(name, results)
        shown = [
            f"![{words}](plots/{plot}.svg)" for plot, words in SHOWN_BELOW.get(name, {}).items() if plot in pictures
        ]
        parts = "\n\n".join([text or NOT_MEASURED, *shown])
        return f"{head}{parts}\n{end}"

    return BLOCK.sub(block, page)


def _about(results: dict[str, Any]) -> str:
    rows = ["| | |", "|---|---|"]
    for version, found in results.items():
        known = found.get("versions", {})
        words = ", ".join(f"{name} {value}" for name, value in known.items() if name != "settings")
        rows.append(
            f"| Python {version} | {words}; the {found.get('set', '')} sizes, taken {found.get('taken', '')[:10]} |"
        )
        rows.append(f"| PostgreSQL settings | `{known.get('settings', '')}` |")
    return "\n".join(rows)


def _tables(name: str, results: dict[str, Any]) -> str:
    pattern, columns = TABLES[name]
    rows = [
        (version, scenario, told)
        for version, found in results.items()
        for scenario, told in found["scenarios"].items()
        if re.fullmatch(pattern, scenario)
    ]
    if not rows:
        return ""
    present = [column for column in columns if any(column[1] in side["figures"] for side in _sides(rows))]
    titles = [
        "scenario",
        *(["Python"] if len(results) > 1 else []),
        "side",
        "times as long" if all(told.get("key", "").endswith("_ms") for _, _, told in rows) else "ratio",
        *(title for title, _, _ in present),
    ]
    lines = [f"| {' | '.join(titles)} |", f"|---|---|{'--:|' * (len(titles) - 2)}"]
    for version, scenario, told in rows:
        for side, found in told["sides"].items():
            size = f"{told['jobs']:,} jobs" + (f", {told['crowd']:,} rows beside" if told["crowd"] else "")
            first = f"{scenario}: {size}" if side == next(iter(told["sides"])) else ""
            cells = [first, *([version] if len(results) > 1 else []), side, _ratio(found)]
            cells += [_cell(found["figures"].get(figure), words) for _, figure, words in present]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _sides(rows: list[tuple[str, str, Any]]) -> Iterator[Any]:
    for _, _, told in rows:
        yield from told["sides"].values()


def _ratio(side: dict[str, Any]) -> str:
    ratio, once = side["ratio"], len(side.get("runs", ())) == 1
    spread = "" if once or not ratio else f" ({ratio['least']:.2f}-{ratio['most']:.2f})"
    return f"{ratio['median']:.2f}{spread}" if ratio else ""


def _cell(figure: dict[str, float] | None, words: str) -> str:
    return "" if figure is None else words.format(figure["median"])


def drawn(scenarios: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The plots for which something was measured."""
    kinds: dict[str, tuple[str, str, str, bool, Callable[[Any], list[tuple[float, float]]]]] = {
        "backlog": ("Throughput against backlog", "jobs that wait", "jobs/s", True, _rates),
        "workers": ("Throughput against workers", "worker processes", "jobs/s", False, _rates),
        "lanes": ("Throughput against lanes", "lanes", "jobs/s", True, _rates),
    }
    for name, (title, x, y, logarithmic, points) in kinds.items():
        series = {told["store"]: points(told) for told in scenarios.values() if told["plot"] == name}
        if series:
            yield name, plots.lines(title, series, x=x, y=y, logarithmic=logarithmic)
    waits = {
        f"{told['store']}, {side}": _distribution(found)
        for told in scenarios.values()
        if told["plot"] == "latency"
        for side, found in told["sides"].items()
    }
    if waits:
        yield "latency", plots.lines("Pickup on an idle queue", waits, x="share of the jobs, %", y="ms")


def _rates(told: dict[str, Any]) -> list[tuple[float, float]]:
    return [
        (_first_number(side), found["figures"]["jobs_per_second"]["median"]) for side, found in told["sides"].items()
    ]


def _first_number(words: str) -> float:
    found = re.search(r"[\d,]+", words)
    return float(found[0].replace(",", "")) if found else 1.0


def _distribution(side: dict[str, Any]) -> list[tuple[float, float]]:
    figures = side["figures"]
    return [(float(name[1:]), figures[name]["median"]) for name in figures if re.fullmatch(r"d\d\d", name)]
