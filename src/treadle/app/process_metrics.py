"""The numbers of one worker process, for Prometheus."""

from treadle.app.exposition import Histogram, Metric
from treadle.model.stats import ENDS
from treadle.worker.worker import Worker


def metrics_of(worker: Worker) -> list[Metric | Histogram]:
    """What is measured of this worker since it started."""
    measured = worker.measured()
    counts = [({"queue": queue, "task": task}, one) for (queue, task), one in sorted(measured.ends.items())]
    ended = [
        ({**labels, "outcome": kind.value}, float(one.ends.get(kind, 0))) for labels, one in counts for kind in ENDS
    ]
    waits, runs = [(at, one.waits) for at, one in counts], [(at, one.runs) for at, one in counts]
    about = "the sum is taken from the buckets, and at most a fifth too high"
    return [
        Metric("treadle_process_slots", "Slots of this worker.", [({}, measured.slots)]),
        Metric("treadle_process_running", "Slots that run a job.", [({}, measured.running)]),
        Metric("treadle_process_held", "Jobs that it holds, with those that wait for a slot.", [({}, measured.held)]),
        Metric("treadle_process_abandoned", "Slots lost to handlers that did not end.", [({}, measured.abandoned)]),
        Metric("treadle_process_stopping", "Whether it takes no more jobs.", [({}, float(measured.stopping))]),
        Metric("treadle_process_claimed_total", "Jobs that it has claimed.", [({}, measured.claimed)], "counter"),
        Metric("treadle_process_ended_total", "Attempts that have ended.", ended, "counter"),
        Histogram("treadle_process_wait_seconds", f"From due to started; {about}.", waits),
        Histogram("treadle_process_run_seconds", f"How long attempts ran; {about}.", runs),
        Metric(
            "treadle_process_heartbeat_age_seconds",
            "How long ago the store took its last heartbeat.",
            [] if measured.heartbeat_age is None else [({}, measured.heartbeat_age)],
        ),
    ]  # fmt: skip
