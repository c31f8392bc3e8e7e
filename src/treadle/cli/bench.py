"""`treadle bench`: how fast treadle is on your own database, beside bare SQL that does the same work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import treadle
from treadle.app.settings import Settings, load
from treadle.bench import measure
from treadle.bench.places import BenchPlace, place_in
from treadle.bench.work import Order, make_twin
from treadle.cli import options
from treadle.cli.terminal import console, document, masked, safe, say
from treadle.errors import ConfigError

MOST_JOBS = 10_000_000
MOST_PICKUPS = 100_000

Bare = Annotated[bool, typer.Option("--bare", help="Measure bare SQL too, on a narrow table, and say the ratio.")]


def drain(
    jobs: Annotated[int, typer.Option("--jobs", help="How many jobs; the first thousands are slower.")] = 20_000,
    url: options.Url = None,
    bare: Bare = False,
    as_json: options.Json = False,
) -> None:
    """Store jobs that do nothing and let one worker run them: jobs a second."""
    settings, found = _asked(url, jobs, MOST_JOBS), _figures("drain", jobs)
    with _place(settings, bare) as place, _progress(as_json) as progress:
        if place.twin and bare:
            twin = measure.drain_twin(place, jobs, progress("bare SQL", jobs))
            found |= {"bare_per_second": round(twin.rate, 1), "bare_cpu_us": round(twin.cpu, 2)}
        drained = measure.drain_treadle(
            place, jobs, _order("worker", place, settings), progress("treadle", jobs), progress("filling", jobs)
        )
        found |= {"jobs_per_second": round(drained.rate, 1), "cpu_us": round(drained.cpu, 2)}
    _show(found, settings, as_json)


def enqueue(
    jobs: Annotated[int, typer.Option("--jobs", help="How many jobs, one call and one commit each.")] = 2_000,
    bulk: Annotated[bool, typer.Option("--bulk", help="All in one call of enqueue_many.")] = False,
    url: options.Url = None,
    bare: Bare = False,
    as_json: options.Json = False,
) -> None:
    """Enqueue jobs from one thread: jobs a second, and how long a call takes."""
    settings, found = _asked(url, jobs, MOST_JOBS), _figures("enqueue", jobs)
    order = Order("enqueue", jobs=jobs, how="bulk" if bulk else "one")
    with _place(settings, bare) as place, _progress(as_json) as progress:
        if place.twin and bare:
            _make_twin(place)
            report = measure.enqueue(order._replace(twin=place.twin), progress("bare SQL", jobs))
            found |= {"bare_per_second": round(jobs / report["seconds"], 1)}
            found |= {"bare_cpu_us": round(report["spent"] / jobs * 1e6, 2)}
        there = order._replace(url=place.url, listen_url=settings.listen_url)
        report = measure.enqueue(there, progress("treadle", jobs))
        found |= {"jobs_per_second": round(jobs / report["seconds"], 1)}
        found |= {"cpu_us": round(report["spent"] / jobs * 1e6, 2)}
        if not bulk:
            found |= measure.percentiles([wait * 1000 for wait in report["waits"]])
    _show(found, settings, as_json)


def latency(
    jobs: Annotated[int, typer.Option("--jobs", help="How many jobs, 50 a second.")] = 200,
    url: options.Url = None,
    bare: Bare = False,
    as_json: options.Json = False,
) -> None:
    """Enqueue jobs one by one beside an idle worker: milliseconds until each starts."""
    settings, found = _asked(url, jobs, MOST_PICKUPS), _figures("latency", jobs)
    pace = Order("pace", jobs=jobs, rate=measure.RATE)
    with _place(settings, bare) as place, _progress(as_json) as progress:
        if place.twin and bare:
            _make_twin(place)
            worker = Order("worker", twin=place.twin)
            waits = measure.latency(worker, pace._replace(twin=place.twin), progress("bare SQL", jobs))
            found |= {f"bare_{name}": value for name, value in measure.percentiles(waits).items()}
        order = _order("worker", place, settings)
        waits = measure.latency(order, pace._replace(url=place.url), progress("treadle", jobs))
        found |= measure.percentiles(waits)
    _show(found, settings, as_json)


def _asked(url: str | None, jobs: int, most: int) -> Settings:
    if not 1 <= jobs <= most:
        raise ConfigError(f"--jobs: {jobs:,} must be from 1 to {most:,}")
    return load(url=url)


@contextmanager
def _place(settings: Settings, bare: bool) -> Iterator[BenchPlace]:
    if bare and settings.url.lower().startswith("dynamodb"):
        raise ConfigError("--bare: DynamoDB has no SQL to compare with; leave --bare out")
    try:
        with place_in(settings.url) as place:
            yield place
    except (KeyboardInterrupt, SystemExit):
        say("interrupted: the processes are stopped, what was made is removed", stderr=True)
        raise


def _order(role: str, place: BenchPlace, settings: Settings) -> Order:
    return Order(role, url=place.url, listen_url=settings.listen_url)


def _make_twin(place: BenchPlace) -> None:
    twin = make_twin(place.twin or {})
    twin.create()
    twin.close()


def _figures(measured: str, jobs: int) -> dict[str, Any]:
    """Every key, whatever is measured; one that does not apply is null."""
    keys = ("jobs_per_second", "bare_per_second", "ratio", "p50_ms", "p95_ms", "p99_ms", "cpu_us", "bare_cpu_us")
    return {"measured": measured, "jobs": jobs, **dict.fromkeys(keys)}


def _ratio(found: dict[str, Any]) -> float | None:
    """1 is as fast as bare SQL, 0.5 half as fast."""
    if found["measured"] == "latency":
        ours, theirs = found.get("bare_p50_ms"), found["p50_ms"]
    else:
        ours, theirs = found["jobs_per_second"], found["bare_per_second"]
    return round(ours / theirs, 3) if ours and theirs else None


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[str, int], measure.Notice]]:
    """What makes a line of progress: a bar in a terminal, nothing elsewhere."""
    out = console(stderr=True)
    if as_json or not out.is_terminal:
        yield lambda _title, _total: lambda _ran: None
        return
    columns = (TextColumn("{task.description:10}"), BarColumn(44), MofNCompleteColumn())
    with Progress(*columns, console=out, transient=True) as bars:

        def line(title: str, total: int) -> measure.Notice:
            number = bars.add_task(title, total=total)
            return lambda ran: bars.update(number, completed=min(ran, total))

        yield line


def _show(found: dict[str, Any], settings: Settings, as_json: bool) -> None:
    found["ratio"] = _ratio(found)
    where = masked(settings.url)
    if as_json:
        document({**found, "url": where, "version": treadle.__version__})
        return
    say(f"{found['measured']}: {found['jobs']:,} jobs, {safe(where)}")
    for line in _lines(found):
        say(f"  {line}")


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for title, rate, cpu in (("treadle", "jobs_per_second", "cpu_us"), ("bare SQL", "bare_per_second", "bare_cpu_us")):
        if found[rate] is not None:
            yield f"{title:<9}{found[rate]:>10,.0f} jobs/s  {found[cpu]:8.1f} us of CPU a job, without the server"
    what = "from enqueue to start" if found["measured"] == "latency" else "a call"
    for title, prefix in (("treadle", ""), ("bare SQL", "bare_")):
        if found.get(f"{prefix}p50_ms") is not None:
            shown = "  ".join(f"p{share} {found[f'{prefix}p{share}_ms']:.2f} ms" for share in (50, 95, 99))
            yield f"{title:<9}{shown}  {what}"
    if found["ratio"] is not None:
        yield f"ratio    {found['ratio']:>10.2f}  (1 is as fast as bare SQL)"
