"""Prometheus' text format: metrics as text, and times in buckets as histograms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from treadle.model.stats import STEPS, upper_end

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EDGES = range(0, 14 * 2 * STEPS, 2 * STEPS)  # of our buckets, each four times the one before: 0.1 ms to 2 hours

Labels = Mapping[str, str]


class Metric(NamedTuple):
    """One metric: its name, what it means, and a value for each set of labels."""

    name: str
    help: str
    values: Sequence[tuple[Labels, float]]
    kind: Literal["gauge", "counter"] = "gauge"


class Histogram(NamedTuple):
    """Times by set of labels, as the numbers of those in each of our buckets."""

    name: str
    help: str
    values: Sequence[tuple[Labels, Mapping[int, int]]]


def exposition(metrics: Iterable[Metric | Histogram]) -> str:
    """The metrics as a scrape reads them."""
    return "".join(line for metric in metrics for line in lines(metric))


def lines(metric: Metric | Histogram) -> Iterator[str]:
    """The lines of one metric."""
    kind = metric.kind if isinstance(metric, Metric) else "histogram"
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {kind}\n"
    if isinstance(metric, Metric):
        yield from (_line(metric.name, labels, value) for labels, value in metric.values)
        return
    for labels, times in metric.values:
        for edge in EDGES:
            within = sum(number for place, number in times.items() if place <= edge)
            yield _line(f"{metric.name}_bucket", {**labels, "le": f"{upper_end(edge):.6g}"}, within)
        number = sum(times.values())
        yield _line(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, number)
        yield _line(f"{metric.name}_sum", labels, sum(upper_end(place) * many for place, many in times.items()))
        yield _line(f"{metric.name}_count", labels, number)


def _line(name: str, labels: Labels, value: float) -> str:
    words = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{f'{{{words}}}' if words else ''} {value:.15g}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
