"""The way of one enqueue on SQLite is short: a newcomer who follows it opens few files, and none of them twice."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import treadle
from treadle import Task, Treadle

ROOT = str(Path(treadle.__file__).parent)
MOST_FILES = 9
MOST_HOPS = 12
ABOVE_THE_ENGINE = ["tasks/task.py", "tasks/payload.py", "app/enqueue.py", "model/job.py"]


class Way:
    """The files of treadle that a call enters, in order; `above` without those that the engine enters.

    A hop is a call from one file into another.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.above: list[str] = []
        self.hops = 0
        self._engine: FrameType | None = None

    def __enter__(self) -> "Way":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame is self._engine:
            self._engine = None
        if event == "call" and (file := _file_of(frame)):
            if file.startswith("engines/") and self._engine is None:
                self._engine = frame
            self._enter(file, _file_of(frame.f_back))

    def _enter(self, file: str, caller: str) -> None:
        self.hops += file != caller
        for files in (self.files, *([] if self._engine else [self.above])):
            if file not in files:
                files.append(file)


def _file_of(frame: FrameType | None) -> str:
    """The file of treadle whose code this frame runs, or nothing."""
    name = "" if frame is None else frame.f_code.co_filename
    return name[len(ROOT) + 1 :] if name.startswith(ROOT) else ""


@pytest.fixture
def greet() -> Iterator[Task[[str], None]]:
    with Treadle("sqlite:///:memory:") as app:

        @app.task
        def greet(name: str) -> None: ...

        greet.enqueue("first")  # opens the store, and loads what is loaded on first use
        yield greet


def test_one_enqueue_enters_few_files(greet: Task[[str], None]) -> None:
    with Way() as way:
        greet.enqueue("Ada")
    print(f"{len(way.files)} files, {way.hops} hops: {', '.join(way.files)}")
    assert len(way.files) <= MOST_FILES
    assert way.hops <= MOST_HOPS


def test_above_the_engine_it_is_a_task_its_payload_and_the_enqueuer(greet: Task[[str], None]) -> None:
    with Way() as way:
        greet.enqueue("Ada")
    assert way.above == ABOVE_THE_ENGINE


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"priority": 3, "lane": "a"}, {"id": treadle.model.new_id()}])
def test_the_store_is_not_asked_for_a_time_that_it_writes_itself(
    greet: Task[[str], None], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    asked: list[str] = []
    engine = greet._enqueuer._store.engine  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "now", lambda: asked.append("now"))
    job = greet.using(**options).enqueue("Ada")
    assert not asked
    assert job.created_at == job.due_at
    assert job.created_at.year > 2000
