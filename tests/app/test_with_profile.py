"""An app with a profile: defaults that everything else wins over, and jobs found and counted by its own words."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import any_store
from treadle import ConfigError, GiveUp, InvalidJob, Profile, Retry, State, Task, Treadle, Unique
from treadle.app import queries
from treadle.testing import FakeClock, run_until_idle

WORDS = Profile(
    states={"retrying": "failed", "running": "in_progress", "failed": "dead_letter", "cancelled": "dead_letter"}
)
ONCE_MORE = Retry(max_attempts=2, base=60, jitter=0)


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app(profile=WORDS)


@pytest.fixture
def work(app: Treadle) -> Task:
    @app.task(retry=ONCE_MORE)
    def work(how: str) -> str:
        match how:
            case "fail":
                raise RuntimeError("no")
            case "give up":
                raise GiveUp("never")
            case _:
                return how

    return work


# ------------------------------------------------------------------------------------------------ defaults


def test_the_settings_of_a_profile_stand_where_nobody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"poll": 7, "grace": "7s", "lease": "7m", "concurrency": 7, "queues": ["seven"], "audit": "everything"}
    (tmp_path / "pyproject.toml").write_text("[tool.treadle]\ngrace = 1\n")
    (tmp_path / "treadle.toml").write_text("lease = 2\n")
    monkeypatch.setenv("TREADLE_CONCURRENCY", "3")
    settings = Treadle(profile=Profile(settings=quiet), poll=4).settings
    assert (settings.grace, settings.lease, settings.concurrency, settings.poll) == (1, 2, 3, 4)
    assert (settings.queues, settings.audit, settings.batch) == (["seven"], "everything", None)


def test_a_profile_may_name_the_store_and_an_argument_another(tmp_path: Path) -> None:
    profile = Profile(settings={"url": "sqlite:///of-the-profile.db"})
    assert Treadle(profile=profile).settings.url == "sqlite:///of-the-profile.db"
    assert Treadle("sqlite:///mine.db", profile=profile).settings.url == "sqlite:///mine.db"


@pytest.mark.parametrize(
    ("settings", "said"), [({"leese": 5}, "leese.*did you mean lease"), ({"concurrency": 0}, "concurrency.*profile")]
)
def test_a_setting_of_a_profile_that_cannot_be_used_is_refused_by_name(settings: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Treadle(profile=Profile(settings=settings)).settings  # noqa: B018


def test_tasks_have_the_options_of_the_profile_unless_they_have_their_own(make_app: Callable[..., Treadle]) -> None:
    unique = Unique("ever", on_conflict="raise")
    placed = {"queue": "slow", "lane": "l", "priority": 3}
    options = {"retry": ONCE_MORE, "unique": unique, "timeout": "1m", "version": 2}
    app = make_app(profile=Profile(task={**placed, **options}))
    plain = app.register("plain", lambda: None).enqueue()
    assert (plain.retry, plain.queue, plain.lane, plain.priority) == (ONCE_MORE, "slow", "l", 3)
    assert (plain.timeout, plain.task_version) == (60, 2)
    assert app.tasks["plain"].options.unique == unique
    own = app.register("own", lambda: None, queue="fast", timeout=None, unique="pending").enqueue()
    assert (own.queue, own.lane, own.timeout, own.retry) == ("fast", "l", None, ONCE_MORE)
    assert app.tasks["own"].options.unique == Unique("pending")
    assert app.enqueue("elsewhere", {}, checked=False).queue == "slow"


def test_an_option_that_no_task_has_is_refused(make_app: Callable[..., Treadle]) -> None:
    with pytest.raises(ConfigError, match="unknown option retries"):
        make_app(profile=Profile(task={"retries": 3})).register("x", lambda: None)


# -------------------------------------------------------------------------------------------------- finding


def ids(app: Treadle, **where: object) -> list[str]:
    """The jobs of every page, each page with at most two."""
    found, cursor, pages = [], None, 0
    while pages < 50:
        page = app.find(limit=2, cursor=cursor, **where)
        assert page.jobs or page.cursor is None  # no page is empty but the last
        assert len(page.jobs) <= 2
        found += [job.id for job in page.jobs]
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


@any_store
def test_a_word_for_some_jobs_of_a_state_finds_these_page_by_page_and_no_others(
    app: Treadle, work: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BATCH_SIZE", 2)
    failed = [work.enqueue("fail").id for _ in range(3)]
    run_until_idle(app)
    waiting = [work.using(run_after="1h").enqueue("x").id for _ in range(5)]
    failed += [work.enqueue("fail").id for _ in range(2)]
    run_until_idle(app)
    assert ids(app, state="failed") == failed[::-1]
    assert ids(app, state="pending") == waiting[::-1]
    assert ids(app, state=State.PENDING) == (failed[:3] + waiting + failed[3:])[::-1]
    assert app.count(state="failed") == {**dict.fromkeys(State, 0), State.PENDING: 5}
    assert app.count(state="pending", task="work")[State.PENDING] == 5
    assert app.count(state=State.PENDING)[State.PENDING] == app.count()[State.PENDING] == 10
    assert app.count(state="failed", queue="other")[State.PENDING] == 0
    monkeypatch.setattr(queries, "MOST_READ", 1)  # jobs; none is read for these numbers
    counted = app.counts()
    assert (counted["counts"]["failed"], counted["counts"]["pending"], counted["labels"]) == (5, 5, {})
    assert (counted["total"], counted["exact"]) == (10, True)


@any_store
def test_a_word_for_several_states_finds_the_jobs_of_each(app: Treadle, work: Task, clock: FakeClock) -> None:
    given_up = [work.enqueue("give up").id for _ in range(3)]
    run_until_idle(app)
    cancelled = [app.cancel(work.enqueue("x").id).id for _ in range(3)]
    done = work.enqueue("done").id
    run_until_idle(app)
    assert sorted(ids(app, state="dead_letter")) == sorted(given_up + cancelled)
    assert ids(app, state="dead_letter", task="other") == []
    assert app.count(state="dead_letter") == {**dict.fromkeys(State, 0), State.FAILED: 3, State.CANCELLED: 3}
    assert ids(app, state="succeeded") == [done]


def test_only_the_words_of_the_profile_are_taken_from_a_caller(app: Treadle, work: Task) -> None:
    with pytest.raises(InvalidJob, match=r"'running' must be one of pending, failed, in_progress"):
        app.find(state="running")
    with pytest.raises(InvalidJob, match="state"):
        app.count(state="cancelled")


@pytest.mark.parametrize("cursor", ["rubbish", "failed/", "succeeded/x", "pending/x"])
def test_a_cursor_of_something_else_is_refused(app: Treadle, work: Task, cursor: str) -> None:
    work.enqueue("x")
    with pytest.raises(InvalidJob, match="cursor"):
        app.find(state="pending", cursor=cursor)


def test_both_spellings_of_cancel_find_what_was_cancelled(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    job = app.cancel(app.register("x", lambda: None).enqueue().id)
    assert [[found.id for found in app.find(state=word).jobs] for word in ("canceled", "cancelled")] == [[job.id]] * 2


def test_a_job_is_viewed_in_the_words_of_the_profile_and_as_it_is_without_one(
    app: Treadle, work: Task, make_app: Callable[..., Treadle]
) -> None:
    job = work.enqueue("fail")
    run_until_idle(app)
    assert app.view(app.get(job.id))["state"] == "failed"
    assert make_app().view(app.get(job.id))["state"] == "pending"
    assert app.view(app.get(job.id))["error"]["message"] == "no"
