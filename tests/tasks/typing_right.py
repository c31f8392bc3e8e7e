"""Calls that are right: no type checker complains. Read by tests/tasks/test_typing.py, run by nobody."""

from datetime import UTC, datetime
from typing import Any, assert_type

from pydantic import BaseModel

from treadle import Context, Job, Retry, Treadle, Unique

app = Treadle("sqlite:///:memory:")


class User(BaseModel):
    name: str


@app.task
def resize(path: str, width: int = 640) -> str:
    return f"{path} at {width}"


@app.task(queue="mail", retry=Retry(max_attempts=3), timeout="5m")
async def send(to: str) -> int:
    return len(to)


@app.task
def build(ctx: Context, month: str, *, copies: int = 1) -> list[str]:
    return [f"{ctx.attempt} {month}"] * copies


@app.task(name="reports.afterwards")
async def afterwards(ctx: Context, user: User) -> None:
    ctx.log.info("%s", user.name)


@app.task
def late(month: str, ctx: Context | None = None) -> str:
    return month if ctx is None else ctx.job.id


@app.task
def anything(payload: Any) -> int:
    return len(payload)


@app.task
def objects(first: object, second: int) -> int:
    return second


@app.task(on_succeeded=resize, on_failed="late", cron="@daily", payload={"n": 1})
def daily(n: int) -> None: ...


def enqueue() -> None:
    assert_type(resize.enqueue("a.png"), Job)
    resize.enqueue("a.png", width=320)
    resize.enqueue(path="a.png")
    resize.using(run_after="5m", priority=3, key="a", unique=Unique("ever")).enqueue("a.png", 320)
    resize.using(run_after=datetime.now(UTC)).enqueue("a.png")
    resize.enqueue_many([("a.png",), {"path": "b.png", "width": 1}])
    build.enqueue("2026-01", copies=2)
    afterwards.enqueue(User(name="Ada"))
    late.enqueue("2026-01")
    anything.enqueue({"any": "thing"})
    objects.enqueue("first", 2)
    daily.enqueue(5)


def call(ctx: Context) -> None:
    assert_type(resize("a.png"), str)
    assert_type(build(ctx, "2026-01", copies=2), list[str])
    assert_type(late("2026-01"), str)
    assert_type(late("2026-01", ctx), str)
    assert_type(objects("first", 2), int)


async def call_async(ctx: Context) -> None:
    assert_type(await send("ada@example.org"), int)
    await afterwards(ctx, User(name="Ada"))
    assert_type(await send.aenqueue("ada@example.org"), Job)
    await send.aenqueue_many([("a@example.org",)])
