"""A schedule that code once declared and no longer does: marked, told of, disabled; after a rename one fires."""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.marks import any_store
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model import EventKind
from treadle.model.records import WorkerInfo
from treadle.schedules import retirement
from treadle.schedules.firing import Scheduler
from treadle.schedules.modules import can_judge, module_name
from treadle.testing import FakeClock, run_until_idle

HERE = __name__


def declaring(app: Treadle, *names: str, module: str = HERE, every: str = "1h") -> Treadle:
    """The app, whose code declares a task and a schedule for each of these names, in this module."""
    for name in names:

        def handler() -> None: ...

        handler.__module__ = module
        app.register(name, handler, every=every)
    return app


def start(app: Treadle, worker: str = "w1", **options: object) -> Scheduler:
    """What a worker does first when it starts."""
    scheduler = Scheduler(app.engine, worker, app.declared(), **options)
    scheduler.run_due()
    return scheduler


def states(app: Treadle) -> dict[str, str]:
    return {one.name: f"{'on' if one.enabled else 'off'}{' gone' * one.gone}" for one in app.schedules.list()}


@any_store
def test_after_a_rename_only_the_new_name_fires(
    make_app: Callable[..., Treadle], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    start(declaring(make_app(), "report", "other"))
    new = declaring(make_app(), "daily_report", "other")
    with caplog.at_level(logging.WARNING):
        start(new, "w2")
    assert states(new) == {"daily_report": "on", "other": "on", "report": "off gone"}
    assert f"schedule report: module {HERE} no longer declares it" in caplog.messages
    event = new.schedules.events("report")[-1]
    assert (event.kind, event.actor) == (EventKind.DISABLED, "w2")
    assert event.note == f"schedule report: module {HERE} no longer declares it"
    clock.advance(hours=1)
    start(new)
    assert sorted(job.task for job in new.find().jobs) == ["daily_report", "other"]
    assert [one.name for one in new.schedules.list(gone=True)] == ["report"]
    assert [one.name for one in new.schedules.list(declared=True, gone=False)] == ["daily_report", "other"]


def test_a_program_that_declares_nothing_any_more_retires_what_it_had(make_app: Callable[..., Treadle]) -> None:
    start(declaring(make_app(), "report"))
    new = make_app()
    run_until_idle(new)
    assert states(new) == {"report": "off gone"}


def test_what_another_program_declares_is_not_touched(make_app: Callable[..., Treadle]) -> None:
    other = declaring(make_app(), "theirs", module="their_program.tasks")
    start(other)
    new = declaring(make_app(), "ours")
    start(new)
    assert states(new) == {"ours": "on", "theirs": "on"}


def test_what_people_made_by_hand_is_not_touched(make_app: Callable[..., Treadle]) -> None:
    app = declaring(make_app(), "ours")
    app.schedules.create("by hand", "ours", every="1h")
    start(app)
    assert states(app) == {"by hand": "on", "ours": "on"}


def test_a_module_that_was_deleted_from_a_package_of_ours_is_judged_and_one_not_loaded_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.py").write_text("")
    package = ModuleType("a_shop")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "a_shop", package)
    assert can_judge("a_shop")
    assert can_judge("a_shop.deleted")
    assert not can_judge("a_shop.idle")  # it is there, but not loaded: another worker may run it
    assert not can_judge("b_shop.tasks")
    assert not can_judge("")


def test_a_script_is_known_by_the_name_under_which_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert module_name("__main__") == "__main__"
    main.__file__ = "/srv/shop/office.py"
    assert module_name("__main__") == "office"
    assert module_name("a.b") == "a.b"


def test_the_setting_keeps_it_on_but_marks_it_and_warns(
    make_app: Callable[..., Treadle], caplog: pytest.LogCaptureFixture
) -> None:
    start(declaring(make_app(), "report"))
    new = make_app(gone_schedules="keep")
    with caplog.at_level(logging.WARNING):
        run_until_idle(new)
    assert states(new) == {"report": "on gone"}
    assert any("no longer declares it" in message for message in caplog.messages)


def test_what_an_operator_enables_stays_enabled(make_app: Callable[..., Treadle]) -> None:
    start(declaring(make_app(), "report"))
    new = make_app()
    run_until_idle(new)
    new.schedules.enable("report", actor="ann")
    run_until_idle(make_app())
    assert states(new) == {"report": "on gone"}
    new.schedules.disable("report", actor="ann")
    start(declaring(make_app(), "report"))
    assert states(new) == {"report": "off"}  # by the operator, who counts for more than the code


@any_store
def test_code_that_declares_it_again_enables_it_and_it_has_missed_nothing(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    old = declaring(make_app(), "report")
    start(old)
    due = old.schedules.get("report").next_at
    start(declaring(make_app(), "other"), "w2")
    clock.advance(hours=3)
    again = declaring(make_app(), "report", "other")
    start(again)
    assert states(again) == {"other": "on", "report": "on"}
    schedule = again.schedules.get("report")
    assert schedule.last_at is not None
    assert schedule.last_at > due  # the latest of what had passed, as misfire says
    assert again.schedules.events("report")[-1].kind is EventKind.ENABLED


def test_what_an_operator_had_disabled_stays_so_through_gone_and_back(make_app: Callable[..., Treadle]) -> None:
    old = declaring(make_app(), "report")
    start(old)
    old.schedules.disable("report", actor="ann")
    start(declaring(make_app(), "other"))
    assert states(old) == {"other": "on", "report": "off gone"}
    start(declaring(make_app(), "report", "other"))
    assert states(old) == {"other": "on", "report": "off"}


def test_a_row_of_an_older_treadle_learns_its_module_and_keeps_what_an_operator_edited(
    make_app: Callable[..., Treadle],
) -> None:
    app = declaring(make_app(), "report")
    start(app)
    app.schedules.update("report", jitter="5s", actor="ann")
    found = app.schedules.get("report")
    bare = found.evolve(declared=found.declared.partition(" ")[0], revision=found.revision + 1)
    app.engine.save(bare, before=found)
    start(declaring(make_app(), "other"))
    assert states(app)["report"] == "on"  # nobody knows whose it was
    start(app)
    found = app.schedules.get("report")
    assert (found.declared_in, found.jitter) == (HERE, 5.0)
    assert [event.kind.value for event in app.schedules.events("report")] == ["created", "changed"]


@any_store
def test_old_and_new_workers_side_by_side_do_not_flap(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "LOOK_AGAIN", 0.0)
    fast = {"heartbeat": 0.1, "schedule_interval": 0.05}
    looks: Counter[str] = Counter()
    look = retirement.Retirement.run_due

    def counted(self: retirement.Retirement) -> None:
        look(self)
        looks[self._actor] += 1

    monkeypatch.setattr(retirement.Retirement, "run_due", counted)

    async def until(app: Treadle, wanted: dict[str, str]) -> None:
        ends = time.monotonic() + 60
        while await asyncio.to_thread(states, app) != wanted:
            assert time.monotonic() < ends, states(app)
            await asyncio.sleep(0.02)

    async def all_have_looked() -> None:
        """Wait until each of the three workers has looked a few times more."""
        looks.clear()
        ends = time.monotonic() + 60
        while len(looks) < 3 or min(looks.values()) < 4:
            assert time.monotonic() < ends, looks
            await asyncio.sleep(0.02)

    async def deploy() -> None:
        old, new = declaring(make_app(**fast), "report"), declaring(make_app(**fast), "daily_report")
        async with AsyncExitStack() as stack:
            async with old.worker(name="old"):
                await until(old, {"report": "on"})
                await stack.enter_async_context(new.worker(name="new"))
                await until(new, {"daily_report": "on", "report": "on"})
                async with old.worker(name="another old one"):  # as a scaler starts it in the middle of the deploy
                    await all_have_looked()
                    assert states(new) == {"daily_report": "on", "report": "on"}
            await until(new, {"daily_report": "on", "report": "off gone"})
        kinds = [[event.kind.value for event in new.schedules.events(name)] for name in ("report", "daily_report")]
        assert kinds == [["created", "disabled"], ["created"]]

    asyncio.run(deploy())


def test_doctor_tells_of_what_is_gone_and_of_tasks_that_no_live_worker_knows(make_app: Callable[..., Treadle]) -> None:
    old = declaring(make_app(), "report")
    start(old)
    start(declaring(make_app(), "daily_report"))
    old.schedules.create("by hand", "report", every="1h")
    told = [finding.text for finding in old.doctor() if finding.level == "warning" and "schedule" in finding.text]
    assert told == [
        f"schedule report: module {HERE} no longer declares it; it is disabled: "
        "`treadle schedules delete 'report'` removes it"
    ]

    async def beside() -> list[str]:
        new = declaring(make_app(), "daily_report")
        async with new.worker():
            ends = time.monotonic() + 60
            while not new.workers():
                assert time.monotonic() < ends
                await asyncio.sleep(0.02)
            return [finding.text for finding in new.doctor() if "known to no live worker" in finding.text]

    [unknown] = asyncio.run(beside())
    assert unknown.startswith("task report is known to no live worker, but has schedules: by hand;")


def test_an_old_worker_of_the_same_name_keeps_its_schedules_while_it_lives(make_app: Callable[..., Treadle]) -> None:
    old = declaring(make_app(), "nightly")
    before = old.worker(name="web")
    before._presence.beat()
    start(old, "web")
    [info] = old.engine.records(WorkerInfo)
    old.engine.save(info._replace(pid=info.pid + 1), before=OVERWRITE)  # it lives in another process
    new = declaring(make_app(), "other")
    new.worker(name="web")._presence.beat()
    start(new, "web")
    assert states(new)["nightly"] == "on"
