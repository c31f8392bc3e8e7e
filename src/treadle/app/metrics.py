"""The numbers of a store as Prometheus reads them. Each is of the store as a whole: ask one server, not every one."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from treadle.app.oversight import Oversight

SPAN = "5m"  # of waits and run times


class Metric(NamedTuple):
    """One metric: its name, what it means, and a value for each set of labels. All of them are gauges."""

    name: str
    help: str
    values: list[tuple[dict[str, str], float]]


def exposition(app: "Oversight") -> str:
    """All metrics, in Prometheus' text format."""
    return "".join(line for metric in metrics(app) for line in _lines(metric))


def metrics(app: "Oversight") -> list[Metric]:
    """What is measured, each with its values now."""
    status, stats = app.status(), app.stats(SPAN)
    groups = [({"queue": group.queue, "task": group.task}, group) for group in status.tasks]
    ends = [
        ({**labels, "outcome": outcome}, float(getattr(group, outcome)))
        for labels, group in groups
        for outcome in ("succeeded", "failed", "cancelled")
    ]
    ages = [
        ({"queue": group.queue}, (status.at - group.oldest).total_seconds() if group.oldest else 0.0)
        for group in status.queues
    ]
    times = [
        ({"queue": one.queue, "task": one.task, "quantile": quantile}, one)
        for one in stats.tasks
        for quantile in ("0.5", "0.95", "0.99")
    ]
    place = {"0.5": 0, "0.95": 1, "0.99": 2}
    workers = [({"worker": worker.name}, worker) for worker in status.workers]
    return [
        Metric("treadle_up", "Whether the store answers.", [({}, 1.0)]),
        Metric("treadle_problems", "What needs an operator now.", [({}, float(len(status.problems)))]),
        Metric("treadle_jobs_waiting", "Pending jobs.", [(labels, group.waiting) for labels, group in groups]),
        Metric("treadle_jobs_due", "Pending jobs that are due.", [(labels, group.due) for labels, group in groups]),
        Metric("treadle_jobs_running", "Running jobs.", [(labels, group.running) for labels, group in groups]),
        Metric("treadle_oldest_due_seconds", "How long the oldest due job of a queue has waited.", ages),
        Metric("treadle_jobs_ended_last_hour", "Jobs that ended in the last hour.", ends),
        Metric(
            "treadle_wait_seconds",
            "From due to started, in the last 5 minutes.",
            [(labels, one.wait[place[labels["quantile"]]] or 0.0) for labels, one in times],
        ),
        Metric(
            "treadle_run_seconds",
            "How long attempts ran, in the last 5 minutes.",
            [(labels, one.run[place[labels["quantile"]]] or 0.0) for labels, one in times],
        ),
        Metric("treadle_paused", "Pauses that hold.", [({}, float(len(status.pauses)))]),
        Metric("treadle_worker_slots", "Slots of a worker.", [(labels, one.concurrency) for labels, one in workers]),
        Metric("treadle_worker_busy", "Busy slots of a worker.", [(labels, one.busy) for labels, one in workers]),
    ]


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} gauge\n"
    for labels, value in metric.values:
        yield f"{metric.name}{_written(labels.items())} {value:.15g}\n"


def _written(labels: Iterable[tuple[str, str]]) -> str:
    words = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{words}}}" if words else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
