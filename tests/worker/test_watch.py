"""The watch: looks at what runs for long, a bounded number at a time, and at nothing else."""

import time
from collections.abc import Sequence

from tests.support.making import a_job
from treadle.engines.values import ClaimedJob
from treadle.errors import EngineUnavailable
from treadle.model import Progress, lifecycle
from treadle.tasks.context import StopReason
from treadle.testing import FakeClock
from treadle.worker.attempt import Attempt
from treadle.worker.watch import MAX_LOOK, AttemptWatch


def attempts(number: int, *, age: float = 10.0) -> list[Attempt]:
    now = FakeClock().now()
    claimed = [lifecycle.claim(a_job(now), now, worker="w1", token="t", lease=30.0).after for _ in range(number)]
    return [Attempt(ClaimedJob.of(job), lease_ends=1e9, queued_at=time.monotonic() - age) for job in claimed]


class Asked:
    """A store that notes what it is asked, and says that these are cancelled."""

    def __init__(self, cancelled: Sequence[str] = ()) -> None:
        self.looks: list[list[str]] = []
        self.renewed: list[list[Attempt]] = []
        self.stopped: list[Attempt] = []
        self.cancelled = set(cancelled)

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        self.looks.append(list(job_ids))
        return self.cancelled & set(job_ids)

    def renew(self, attempts: Sequence[Attempt]) -> bool:
        self.renewed.append(list(attempts))
        for attempt in attempts:
            attempt.progress_written = attempt.progress
        return True

    def request_stop(self, attempt: Attempt, why: StopReason) -> None:
        assert why is StopReason.CANCEL
        self.stopped.append(attempt)
        attempt.request_stop(why)

    def watch(self) -> AttemptWatch:
        return AttemptWatch(self, 0.5, held=list, renew=self.renew, request_stop=self.request_stop)  # type: ignore[arg-type]


def test_short_jobs_cost_no_look() -> None:
    store = Asked()
    store.watch().look(attempts(5, age=0.1))
    assert (store.looks, store.renewed) == ([], [])


def test_what_has_ended_or_was_asked_to_stop_is_not_looked_at() -> None:
    store = Asked()
    ended, stopped = attempts(2)
    ended.ended, stopped.stop_reason = True, StopReason.TIMEOUT
    store.watch().look([ended, stopped])
    assert store.looks == []


def test_progress_is_written_once_and_not_again_until_it_changes() -> None:
    store, [one] = Asked(), attempts(1)
    one.progress = Progress(0.5)
    watch = store.watch()
    watch.look([one])
    watch.look([one])
    assert (store.renewed, store.looks) == ([[one]], [[one.id]])
    one.progress = Progress(0.6)
    watch.look([one])
    assert store.renewed == [[one], [one]]


def test_one_look_is_bounded_and_the_others_have_their_turn() -> None:
    many = attempts(2 * MAX_LOOK + 7)
    store = Asked([many[-1].id])
    watch = store.watch()
    for _ in range(3):
        watch.look(many)
    assert [len(look) for look in store.looks] == [MAX_LOOK] * 3
    assert {id_ for look in store.looks for id_ in look} == {one.id for one in many}
    assert store.stopped == [many[-1]]


def test_a_store_that_is_away_stops_nothing() -> None:
    class Away(Asked):
        def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
            raise EngineUnavailable("away")

    store = Away()
    watch = AttemptWatch(store, 0.01, held=lambda: attempts(1), renew=store.renew, request_stop=store.request_stop)  # type: ignore[arg-type]
    watch.start()
    time.sleep(0.1)  # a few looks; whatever they do, it stops nobody
    watch.stop()
    assert store.stopped == []
