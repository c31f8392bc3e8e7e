"""Async code asks the same app: every blocking method has an async face, and the event loop goes on meanwhile."""

import asyncio
import inspect
import socket
import time
from pathlib import Path

import pytest

from treadle import EngineUnavailable, State, Treadle


@pytest.fixture
def app(tmp_path: Path) -> Treadle:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    return app


FACES = [
    "aget", "afind", "acount", "aevents", "awhy", "acosts", "abudgets", "acancel", "aretry", "apause", "aresume",
    "apauses", "aaudit", "aaudit_page", "aedit", "arun_now", "adelete", "aretry_many", "acancel_many", "adelete_many",
    "aresolve_id", "astatus", "aworkers", "adrain", "astats", "adoctor",
]  # fmt: skip


@pytest.mark.parametrize("name", FACES)
def test_an_async_face_takes_what_its_method_takes(app: Treadle, name: str) -> None:
    face, method = getattr(app, name), getattr(app, name[1:])
    assert inspect.iscoroutinefunction(face)
    assert inspect.signature(face) == inspect.signature(method)
    assert face.__name__ == name


def test_a_day_in_async_code(app: Treadle) -> None:
    async def day() -> None:
        job = await app.tasks["add"].aenqueue(1, 2)
        assert (await app.aget(job.id)).id == job.id
        assert [one.id for one in (await app.afind(task="add")).jobs] == [job.id]
        assert (await app.acount())[State.PENDING] == 1
        assert await app.awhy(job.id)
        await app.apause(queue="default", reason="night")
        assert [pause.queue for pause in await app.apauses()] == ["default"]
        await app.aresume(queue="default")
        assert (await app.acancel(job.id)).state is State.CANCELLED
        assert (await app.aretry(job.id)).state is State.PENDING
        assert await app.aevents(job.id)
        assert await app.aaudit()
        assert await app.tenant("default").aget(job.id)

    asyncio.run(day())


def test_the_loop_goes_on_while_the_server_is_away() -> None:
    with socket.socket() as silent:  # accepts connections, and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        app = Treadle(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/nowhere?connect_timeout=2")

        async def longest_gap() -> float:
            longest, last = 0.0, time.monotonic()
            asked = asyncio.create_task(app.aget("01920000-0000-7000-8000-000000000000"))
            while not asked.done():
                await asyncio.sleep(0.01)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            with pytest.raises(EngineUnavailable):
                await asked
            return longest

        assert asyncio.run(longest_gap()) < 1.0


def test_a_job_and_a_task_may_be_given_themselves(app: Treadle) -> None:
    add = app.tasks["add"]
    job = add.enqueue(1, 2)
    app.register("other", lambda: None).enqueue()
    assert app.get(job).id == job.id
    assert [one.id for one in app.find(task=add).jobs] == [job.id]
    assert app.count(task=add)[State.PENDING] == 1
    assert app.cancel(job).state is State.CANCELLED
    assert app.retry(app.get(job)).state is State.PENDING
    assert app.events(job)
    assert app.why(job)


def test_a_job_is_enqueued_by_name_in_async_code(app: Treadle) -> None:
    async def scene() -> None:
        job = await app.aenqueue("add", {"a": 1, "b": 2}, queue="mail")
        assert (job.task, job.queue) == ("add", "mail")
        assert (await app.tenant("acme").aenqueue("add", {"a": 1, "b": 2})).tenant == "acme"

    asyncio.run(scene())
