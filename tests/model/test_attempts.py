"""The attempts of a job are told from what the job and its audit trail know, and no more is claimed than that."""

from datetime import UTC, datetime, timedelta

from tests.support.making import a_job, an_error
from treadle.model import Change, Event, Job, Reason, Retry, lifecycle
from treadle.model.attempts import attempts_of
from treadle.model.edit import Edit
from treadle.model.lifecycle import Failed, FailedForGood, Snoozed, Succeeded

START = datetime(2026, 11, 18, tzinfo=UTC)


class Life:
    """A job and its events, a minute from step to step; `all` is what audit = "everything" keeps."""

    def __init__(self) -> None:
        self.job: Job = a_job(START, retry=Retry(max_attempts=3))
        self.all: list[Event] = []
        self.kept: list[Event] = []
        self.now = START

    def step(self, change: Change) -> None:
        self.job = change.after
        self.all.append(change.event)
        self.kept += [change.event] if change.audited(False) else []
        self.now += timedelta(minutes=1)

    def claim(self, worker: str = "w1") -> None:
        self.step(lifecycle.claim(self.job, self.now, worker=worker, token="t", lease=30.0))

    def run(self, outcome: lifecycle.Outcome, worker: str = "w1") -> None:
        self.claim(worker)
        self.job = self.job.evolve(started_at=self.now)
        self.step(lifecycle.settle(self.job, outcome, self.now))

    def fail(self, message: str, worker: str = "w1") -> None:
        self.run(Failed(an_error(self.now, message, self.job.attempt + 1)), worker)


def seen(job: Job, events: list[Event]) -> list[tuple]:
    return [(one.number, one.outcome, one.worker, one.complete) for one in attempts_of(job, events)]


def test_a_job_that_never_ran_has_none() -> None:
    assert attempts_of(a_job(START), []) == []


def test_with_every_event_each_attempt_has_its_times_and_its_worker() -> None:
    life = Life()
    life.run(Snoozed(5.0))
    life.fail("first")
    life.run(Succeeded("1"), worker="w2")
    attempts = attempts_of(life.job, life.all)
    assert seen(life.job, life.all) == [
        (1, "snoozed", "w1", True), (2, "retrying", "w1", False), (3, "succeeded", "w2", True),
    ]  # fmt: skip
    assert [one.claimed_at for one in attempts] == [START + timedelta(minutes=minute) for minute in (0, 2, 4)]
    assert [one.ended_at for one in attempts] == [START + timedelta(minutes=minute) for minute in (1, 3, 5)]
    assert attempts[1].error is not None
    assert (attempts[1].error.message, attempts[1].error.type) == ("first", "")  # of this the store keeps no more


def test_at_the_default_level_attempts_are_numbered_though_claims_are_not_kept() -> None:
    life = Life()
    life.run(Snoozed(5.0))
    life.fail("first")
    life.fail("second", worker="w2")
    assert [event.kind.value for event in life.kept] == ["retrying", "retrying"]
    assert seen(life.job, life.kept) == [
        (1, None, None, False),
        (2, "retrying", "w1", False),
        (3, "retrying", "w2", True),
    ]
    last = attempts_of(life.job, life.kept)[-1]
    assert last.error is not None
    assert (last.error.type, last.error.message, last.error.traceback) == ("RuntimeError", "second", "Traceback: boom")
    life.run(Succeeded("1"))
    assert seen(life.job, life.kept)[-1] == (4, "succeeded", "w1", True)


def test_a_running_attempt_and_one_that_was_asked_to_stop() -> None:
    life = Life()
    life.fail("first")
    life.claim("w2")
    assert seen(life.job, life.kept)[-1] == (2, "running", "w2", True)
    life.step(lifecycle.cancel(life.job, life.now, actor="ada"))
    assert seen(life.job, life.kept)[-1] == (2, "running", "w2", True)
    life.step(lifecycle.settle(life.job, lifecycle.Stopped("asked"), life.now))
    assert seen(life.job, life.kept)[-1] == (2, "cancelled", "w2", True)


def test_acts_of_operators_between_two_attempts_are_not_attempts() -> None:
    life = Life()
    life.run(FailedForGood(Reason.PERMANENT, an_error(life.now, "no", 1)))
    life.step(lifecycle.retry(life.job, life.now, actor="ada"))
    life.step(lifecycle.edit(life.job, Edit(priority=3), life.now, actor="ada"))
    life.step(lifecycle.cancel(life.job, life.now, actor="ada"))
    life.step(lifecycle.retry(life.job, life.now, actor="ada"))
    assert seen(life.job, life.kept) == [(1, "failed", None, False)]
    life.run(Succeeded("1"))
    assert [number for number, *_ in seen(life.job, life.kept)] == [1, 2]


def test_a_lost_lease_is_not_put_down_to_the_worker_that_found_it() -> None:
    life = Life()
    life.claim("w1")
    life.step(lifecycle.crash(life.job, life.now, actor="w9"))
    life.run(Succeeded("1"))
    assert seen(life.job, life.kept) == [(1, "crashed", None, False), (2, "succeeded", "w1", True)]


def test_where_the_revisions_do_not_add_up_earlier_attempts_have_no_number() -> None:
    life = Life()
    life.step(lifecycle.replace(life.job, life.job, life.now, actor="enqueue"))  # which leaves no event
    life.fail("first")
    life.fail("second")
    assert seen(life.job, life.kept) == [(None, "retrying", "w1", False), (2, "retrying", "w1", True)]
    life.claim("w2")
    assert seen(life.job, life.kept)[-1] == (3, "running", "w2", True)


def test_a_trail_that_was_pruned_leaves_what_the_job_knows() -> None:
    life = Life()
    life.fail("first")
    life.run(FailedForGood(Reason.PERMANENT, an_error(life.now, "no", 2)))
    assert seen(life.job, []) == [(1, None, None, False), (2, "failed", "w1", True)]


def test_of_the_last_events_the_last_attempts_are_told_with_their_numbers() -> None:
    life = Life()
    for number in range(6):
        life.run(Snoozed(5.0)) if number % 2 else life.fail(f"no {number}")
        life.step(lifecycle.cancel(life.job, life.now, actor="ann"))
        life.step(lifecycle.retry(life.job, life.now, actor="ann"))
    life.run(Succeeded("1"))
    for events in (life.all, life.kept):
        whole = attempts_of(life.job, events)
        for latest in range(1, len(events) + 2):
            told = attempts_of(life.job, events[-latest:], latest=latest)
            assert told[1:] == whole[len(whole) - len(told) + 1 :]  # of the first, what began it may be missing
            assert [one.number for one in told] == [one.number for one in whole[len(whole) - len(told) :]]
