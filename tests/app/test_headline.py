"""The first sentence that an operator reads: the worst of what there is, and what to do about it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from treadle.app.failures import FailureGroup
from treadle.app.headline import RECENT, headline
from treadle.app.rates import Rate
from treadle.app.status import Group, Status
from treadle.model.records import Pause, WorkerInfo

NOW = datetime(2026, 3, 27, 3, 12, tzinfo=UTC)
LATE = NOW - timedelta(minutes=31)


def status(*queues: Group, problems: tuple[str, ...] = (), workers: Any = (), pauses: Any = ()) -> Status:
    return Status(NOW, queues, [], [], 0.0, [], pauses, workers, problems)


def failing(**fields: Any) -> FailureGroup:
    given: dict[str, Any] = {"failed": 0, "retrying": 0, "queues": ["mail"], "tasks": ["send"], "last_seen": NOW}
    return FailureGroup(
        **{
            "fingerprint": "f1",
            "type": "ConnectionError",
            "message": "no answer",
            "frame": "mail.py send",
            "first_seen": LATE,
            "job_id": "1",
            "over_time": [],
            **given,
            **fields,
        }
    )


def test_nothing_needs_anybody() -> None:
    found = headline(status(Group("mail", succeeded=3, running=1)), [], [])
    assert (found.level, found.steps) == ("calm", ())
    assert found.facts == ["3 jobs done in the last hour, 1 running, 0 waiting."]


def test_jobs_that_nobody_works_on_come_before_all_else() -> None:
    found = headline(status(Group("mail", due=2, oldest=LATE), problems=("no worker is alive",)), [failing()], ["late"])
    assert (found.level, found.sentence, found.since) == ("bad", "No worker is alive", LATE)
    assert [step.command for step in found.steps] == ["treadle worker"]


def test_workers_that_serve_other_queues_are_told_which_one_waits() -> None:
    groups = Group("mail", due=20, oldest=LATE), Group("reports", due=9, oldest=NOW)
    worker = WorkerInfo("w1", "box", 7, ["mail"], None, {}, 10, 0, False, LATE, NOW, 30.0)
    found = headline(status(*groups, problems=("nobody serves reports",), workers=[worker]), [], [])
    assert found.steps[0].command == "treadle worker --queue reports"
    assert found.since == NOW  # the jobs of mail wait longer, but are served


def test_a_queue_that_fails_says_so_since_when_and_with_which_commands() -> None:
    found = headline(status(Group("mail")), [failing(failed=1, retrying=214)], ["late"])
    assert found.sentence == "Queue mail has been failing for 31m"
    assert found.quote == "ConnectionError: no answer"
    assert found.facts == ["1 job failed for good, 214 jobs will be tried again, of send."]
    assert [step.command for step in found.steps] == [
        "treadle pause --queue mail", "treadle failures", "treadle jobs retry --fingerprint f1",
    ]  # fmt: skip


def test_the_kind_of_failure_that_hits_most_jobs_is_told() -> None:
    few, many = failing(failed=1), failing(failed=9, queues=["a", "b"], tasks=["send", "call"])
    assert headline(status(), [few, many], []).sentence.startswith("2 tasks have been failing")


def test_seconds_are_told_of_what_began_minutes_ago() -> None:
    def sentence(**ago: float) -> str:
        return headline(status(), [failing(failed=1, first_seen=NOW - timedelta(**ago))], []).sentence

    assert sentence(minutes=2, seconds=5) == "Queue mail has been failing for 2m5s"
    assert sentence(minutes=17, seconds=58) == "Queue mail has been failing for 17m"
    assert sentence(hours=3, seconds=1) == "Queue mail has been failing for 3h"


def test_failures_of_an_hour_ago_are_not_what_happens_now() -> None:
    old = failing(failed=9, last_seen=NOW - RECENT)
    assert headline(status(), [old], []).level == "calm"
    assert headline(status(), [old], ["all slots are busy"]).sentence == "All slots are busy"


def test_a_few_failures_beside_many_successes_are_no_alarm() -> None:
    steady = failing(failed=5, queues=["default"], tasks=["charge"])
    assert headline(status(Group("default", succeeded=262, failed=5)), [steady], []).level == "calm"
    rates = [Rate("default", ended=40.0, failed=1.0)]
    assert headline(status(Group("default", failed=5)), [steady], [], rates).level == "calm"


def test_a_queue_fails_since_its_minutes_say_so_whatever_was_retried() -> None:
    since = NOW - timedelta(minutes=31)
    rates = [Rate("mail", ended=1.0, failed=1.0, retrying=30.0, failing_since=since)]
    kind = failing(failed=1, first_seen=NOW - timedelta(minutes=2))
    found = headline(status(Group("mail", succeeded=900)), [kind], [], rates)
    assert (found.sentence, found.since) == ("Queue mail has been failing for 31m", since)


def test_a_queue_that_is_paused_is_seen_to() -> None:
    pause = Pause(queue="mail", actor="ada", reason="the relay is away", at=LATE, until=NOW + timedelta(hours=2))
    kinds = [failing(failed=9)]
    found = headline(status(Group("mail", due=4, failed=9), pauses=[pause]), kinds, [])
    assert (found.level, found.sentence, found.since) == ("warn", "Queue mail is paused by ada", LATE)
    assert found.facts[:2] == ["4 jobs are due and held back.", "The reason given: the relay is away"]
    assert [step.command for step in found.steps] == ["treadle resume --queue mail"]
    of_a_task = Pause(queue="mail", task="send", actor="ada", at=LATE)  # stops a part of it
    assert headline(status(Group("mail", due=4, failed=9), pauses=[of_a_task]), kinds, []).level == "bad"
    everything = Pause(actor="ada", at=LATE)
    found = headline(status(Group("mail", due=1), pauses=[everything]), [], [])
    assert (found.sentence, found.steps[0].command) == ("Everything is paused by ada", "treadle resume --all")
