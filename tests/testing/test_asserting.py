"""assert_enqueued and assert_not_enqueued: what a test expects, and what its author reads when it is not so."""

import re

import pytest

from treadle import InvalidJob, Task, Treadle
from treadle.testing import FakeClock, assert_enqueued, assert_not_enqueued, run_until_idle

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def memory(clock: FakeClock) -> Treadle:
    return Treadle("sqlite:///:memory:", clock=clock)


@pytest.fixture
def welcome(memory: Treadle) -> Task:
    @memory.task(queue="mail")
    def welcome(user: str, polite: bool = True) -> str:
        return f"welcome {user}"

    return welcome


@pytest.fixture
def report(memory: Treadle) -> Task:
    return memory.register("report", lambda: None)


def message(error: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return ID.sub("ID", str(error.value)).splitlines()


def test_an_enqueued_job_can_be_asserted_by_any_of_its_fields(memory: Treadle, welcome: Task) -> None:
    first = welcome.enqueue("Ada")
    second = welcome.using(priority=5).enqueue("Bob")
    assert assert_enqueued(memory, "welcome").id == second.id  # the newest
    assert assert_enqueued(memory, welcome, payload={"user": "Ada"}).id == first.id
    assert assert_enqueued(memory, "welcome", priority=5, queue="mail").id == second.id


def test_among_many_jobs_it_is_found(memory: Treadle, welcome: Task) -> None:
    first = welcome.enqueue("Ada")
    welcome.enqueue_many([(str(n),) for n in range(1200)])
    assert assert_enqueued(memory, welcome, payload={"user": "Ada"}).id == first.id
    with pytest.raises(AssertionError, match="1201 pending jobs of task 'welcome' should not be there"):
        assert_not_enqueued(memory, welcome)


def test_the_handle_of_a_tenant_sees_its_own(memory: Treadle, welcome: Task) -> None:
    memory.tenant("acme").using(welcome).enqueue("Ada")
    assert_enqueued(memory.tenant("acme"), welcome)
    assert_not_enqueued(memory.tenant("birch"), welcome)
    with pytest.raises(AssertionError, match="nothing at all is pending"):
        assert_enqueued(memory.tenant("birch"), welcome)


def test_a_missing_job_is_compared_with_those_that_are_there(memory: Treadle, welcome: Task, clock: FakeClock) -> None:
    welcome.enqueue("Ada")
    welcome.using(run_after="1h").enqueue("Cy", polite=False)
    with pytest.raises(AssertionError) as error:
        assert_enqueued(memory, welcome, payload={"user": "Bob", "polite": True}, queue="mail")
    assert message(error) == [
        "no pending job of task 'welcome' with payload={'user': 'Bob', 'polite': True}, queue='mail'",
        "pending jobs of this task, newest first (2):",
        "  welcome {'user': 'Cy', 'polite': False} (job ID, queue mail, due 2026-01-01 13:00:00)",
        "    payload['user'] is 'Cy', not 'Bob'",
        "    payload['polite'] is False, not True",
        "  welcome {'user': 'Ada'} (job ID, queue mail, due 2026-01-01 12:00:00)",
        "    payload['user'] is 'Ada', not 'Bob'",
        "    payload['polite'] is missing, not True",
    ]
    with pytest.raises(AssertionError, match=r"payload\['polite'\] is False, and was not asked for"):
        assert_enqueued(memory, welcome, payload={"user": "Cy"})
    with pytest.raises(AssertionError, match="queue is 'mail', not 'default'"):
        assert_enqueued(memory, welcome, queue="default")


def test_where_the_jobs_of_a_task_went_is_told(memory: Treadle, welcome: Task, report: Task) -> None:
    welcome.enqueue("Ada")
    run_until_idle(memory)
    report.enqueue()
    with pytest.raises(AssertionError) as error:
        assert_enqueued(memory, "welcome")
    assert message(error) == [
        "no pending job of task 'welcome'",
        "not pending any more: 1 succeeded",
        "pending job of other tasks, newest first (1):",
        "  report {} (job ID, queue default, due 2026-01-01 12:00:00)",
    ]


def test_a_task_that_the_app_does_not_have_is_told_apart(memory: Treadle, welcome: Task) -> None:
    with pytest.raises(AssertionError, match=r"the app has no such task; did you mean 'welcome'\?"):
        assert_enqueued(memory, "welcom")


def test_a_long_list_is_cut(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue_many([(str(n),) for n in range(9)])
    for call in (lambda: assert_enqueued(memory, welcome, priority=3), lambda: assert_not_enqueued(memory)):
        with pytest.raises(AssertionError) as error:
            call()
        assert message(error)[-1] == "  and 4 more"


def test_what_should_not_be_there_is_shown(memory: Treadle, welcome: Task, report: Task) -> None:
    assert_not_enqueued(memory)
    welcome.enqueue("Ada")
    assert_not_enqueued(memory, report)
    assert_not_enqueued(memory, welcome, payload={"user": "Bob"})
    with pytest.raises(AssertionError) as error:
        assert_not_enqueued(memory, welcome, payload={"user": "Ada"})
    assert message(error) == [
        "1 pending job of task 'welcome' with payload={'user': 'Ada'} should not be there:",
        "  welcome {'user': 'Ada'} (job ID, queue mail, due 2026-01-01 12:00:00)",
    ]
    run_until_idle(memory)
    assert_not_enqueued(memory)


@pytest.mark.parametrize("check", [assert_enqueued, assert_not_enqueued])
def test_a_field_that_jobs_do_not_have_is_no_match_but_a_mistake(memory: Treadle, check: object) -> None:
    with pytest.raises(InvalidJob, match=r"priorty: is not a field of a job; did you mean priority\?"):
        check(memory, "welcome", priorty=5)
    with pytest.raises(InvalidJob, match="to: is not a field of a job; compare one of id, task"):
        check(memory, "welcome", to="ada")
    with pytest.raises(InvalidJob, match="task: 5 is not a valid task"):
        check(memory, 5)
