"""An app's connections and threads end with the app: at `close`, at the end of a `with`, or when nobody has it."""

import gc
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import NotPossible, Task, Treadle
from treadle.engines import connect
from treadle.engines.contract import Engine

sqlite_only = pytest.mark.parametrize("engine_kind", ["sqlite"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the engines that were closed, in order."""
    urls: list[str] = []

    def open_noted(url: str, **options: Any) -> Engine:
        engine = connect(url, **options)

        class Noted(type(engine)):  # type: ignore[misc]
            def close(self) -> None:
                urls.append(url)
                super().close()

        engine.__class__ = Noted
        return engine

    monkeypatch.setattr("treadle.app.store.connect", open_noted)
    return urls


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    """What ends here ends at once, not when somebody looks for garbage; and no warning is given on the way."""
    gc.collect()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    gc.enable()


def opened(url: str) -> tuple[Treadle, Task]:
    app = Treadle(url)

    @app.task
    def greet(name: str) -> str:
        return f"hello {name}"

    greet.enqueue("Ada")
    return app, greet


def test_an_app_that_nobody_has_any_more_is_closed(store_url: str, closed: list[str]) -> None:
    app, greet = opened(store_url)
    acme = app.tenant("acme")
    acme.using(greet).enqueue("Bob")
    assert not closed
    del app, acme, greet
    assert closed == [store_url]


@pytest.mark.parametrize("engine_kind", ["sqlite", "postgres"])
def test_its_threads_end_with_it(store_url: str) -> None:
    before = set(threading.enumerate())
    app, greet = opened(store_url)
    app.engine.wait(["default"], 0.01)
    del app, greet
    assert set(threading.enumerate()) <= before


@sqlite_only
def test_its_file_is_left_as_a_clean_close_leaves_it(store_url: str, tmp_path: Path) -> None:
    app, greet = opened(store_url)
    assert list(tmp_path.rglob("*-wal"))
    del app, greet
    assert not list(tmp_path.rglob("*-wal"))


def test_a_task_or_a_tenant_keeps_its_app_open(closed: list[str]) -> None:
    app, greet = opened("sqlite:///:memory:")
    acme, schedules = app.tenant("acme"), app.schedules
    del app
    assert greet.enqueue("Eve").id
    del greet
    assert acme.enqueue("greet", {"name": "Eve"}).id
    del acme
    assert schedules.list() == []
    assert not closed
    del schedules
    assert closed == ["sqlite:///:memory:"]


def entangled(url: str) -> None:
    """An app whose handlers refer to its tasks, as many do."""
    app, greet = opened(url)
    app.register("again", lambda: greet.enqueue("again"))
    app.for_each(lambda: [greet], name="rows")


@sqlite_only
def test_an_app_in_a_cycle_is_closed_with_the_garbage_and_without_a_warning(store_url: str, closed: list[str]) -> None:
    entangled(store_url)
    assert not closed
    gc.collect()
    assert closed == [store_url]


def test_the_end_of_a_with_block_closes_the_app(store_url: str, closed: list[str]) -> None:
    with Treadle(store_url) as app:
        app.register("greet", lambda: None).enqueue()
        assert not closed
    assert closed == [store_url]
    assert app.count(task="greet")  # the next call opens it again
    app.close()


def test_an_app_that_opened_nothing_has_nothing_to_close(closed: list[str]) -> None:
    with Treadle("sqlite:///:memory:") as app:
        app.register("greet", lambda: None)
    app.close()
    assert not closed


@sqlite_only
def test_a_forked_child_does_not_close_what_its_parent_has_opened(store_url: str, closed: list[str]) -> None:
    app, greet = opened(store_url)
    child = os.fork()
    if child == 0:
        del app, greet
        os._exit(len(closed))
    assert os.waitpid(child, 0)[1] == 0
    assert greet.enqueue("still here").id
    assert not closed
    app.close()


@sqlite_only
def test_settings_can_be_replaced_until_the_store_is_open(store_url: str) -> None:
    app = Treadle("sqlite:///elsewhere.db")
    app.settings = app.settings.model_copy(update={"url": store_url})
    app.register("greet", lambda: None).enqueue()
    assert not Path("elsewhere.db").exists()
    app.settings = app.settings.model_copy(update={"concurrency": 3})
    with pytest.raises(NotPossible, match="open already"):
        app.settings = app.settings.model_copy(update={"url": "sqlite:///elsewhere.db"})
    assert (app.settings.url, app.worker().config.concurrency) == (store_url, 3)
    app.close()
