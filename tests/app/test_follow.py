"""`app.follow`: the audit trail as it grows, every event once."""

from collections.abc import Callable
from itertools import chain

import pytest

from tests.support.marks import any_store
from treadle import Treadle
from treadle.app import audit, follow
from treadle.app.follow import FollowedEvent
from treadle.errors import EngineUnavailable
from treadle.testing import FakeClock


def ids(found: list[FollowedEvent]) -> list[str]:
    return [one.event.job_id for one in found]


def quiet(app: Treadle) -> Callable[..., str]:
    @app.task
    def beep(n: int = 0) -> None: ...

    @app.task(queue="mail")
    def send() -> None: ...

    return lambda name="beep": app.enqueue(name).id


@any_store
def test_every_event_comes_once_though_some_are_sealed_and_some_are_committed_late(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(audit="everything")
    enqueue = quiet(app)
    before = enqueue()
    following = app.follow()
    assert ids(following.latest(10)[0]) == [before]
    came, stored = [], []
    for step in range(8):
        stored.append(enqueue())
        if step % 3 == 0:
            app.seal_audit()  # before anybody has looked
        clock.advance(seconds=-30 if step % 2 else 40)  # the next one is older than what came
        came.append(ids(following.news()))
        if step % 3 == 1:
            app.seal_audit()  # what was seen
    came += [ids(following.news()), ids(following.news())]
    assert list(chain.from_iterable(came)) == stored
    assert came[-2:] == [[], []]


@any_store
def test_it_begins_with_the_latest_and_repeats_none_of_those_before(make_app: Callable[..., Treadle]) -> None:
    app = make_app(audit="everything")
    enqueue = quiet(app)
    first, second, third = enqueue(), enqueue(), enqueue()
    following = app.follow()
    found, more = following.latest(2)
    assert (ids(found), more) == ([second, third], True)
    assert following.news() == []
    later = app.follow()
    app.seal_audit()
    assert ids(later.latest(5)[0]) == [first, second, third]
    fourth = enqueue()
    assert (ids(following.news()), ids(later.news())) == ([fourth], [fourth])


@any_store
def test_events_can_be_those_of_a_task_a_queue_a_kind_a_job_or_a_tenant(make_app: Callable[..., Treadle]) -> None:
    app = make_app(audit="everything")
    enqueue = quiet(app)
    first = enqueue()
    asked = {
        "task": app.follow(task="send"), "queue": app.follow(queue="mail"), "kind": app.follow(kind="cancelled"),
        "job": app.follow(job_id=first), "tenant": app.follow(tenant="nobody"),
    }  # fmt: skip
    assert {name: len(one.latest(5)[0]) for name, one in asked.items()} == {
        "task": 0, "queue": 0, "kind": 0, "job": 1, "tenant": 0,
    }  # fmt: skip
    beep, send = enqueue(), enqueue("send")
    app.cancel(first)
    app.pause(queue="mail")
    assert {name: ids(one.news()) for name, one in asked.items()} == {
        "task": [send], "queue": [send], "kind": [first], "job": [first], "tenant": [],
    }  # fmt: skip
    app.delete(beep)
    [[_, gone]] = [app.follow(job_id=beep).latest(2)[0]]
    assert (gone.event.kind, gone.task) == ("deleted", None)


@any_store
def test_events_come_with_the_next_look_if_the_store_did_not_answer(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LOOK_AT_SEALS", 0.0)
    app = make_app()
    enqueue = quiet(app)
    jobs = [enqueue() for _ in range(3)]
    following = app.follow()
    following.latest(10)
    for id in jobs[:2]:
        app.cancel(id)
    app.seal_audit()
    for method in ("sealed", "get"):
        with monkeypatch.context() as patch, pytest.raises(EngineUnavailable):
            patch.setattr(app.engine, method, unavailable)
            following.news()
    app.cancel(jobs[2])
    assert ids(following.news()) == jobs


def unavailable(*arguments: object) -> None:
    raise EngineUnavailable("the store did not answer")


@any_store
def test_of_too_many_unsealed_events_the_newest_come_and_none_comes_twice(
    make_app: Callable[..., Treadle], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (follow, audit):
        monkeypatch.setattr(module, "MOST_UNSEALED", 5)
    monkeypatch.setattr(follow, "FORGET", 1e-9)  # all but what the last look found
    app = make_app(audit="everything")
    enqueue = quiet(app)

    def store(number: int) -> list[str]:
        stored = []
        for _ in range(number):
            stored.append(enqueue())
            clock.advance(seconds=1)
        return stored

    old = store(7)
    following = app.follow()
    assert ids(following.latest(3)[0]) == old[-3:]
    new = store(4)
    assert [event.job_id for event in app.audit(limit=2)] == new[:1:-1]
    assert ids(following.news()) == new
    app.seal_audit()
    later = store(2)
    assert (ids(following.news()), ids(following.news())) == (later, [])
