"""Calls that are wrong, a line each: every type checker flags each line that says so, and no other."""
# ruff: noqa: B018

from tests.tasks.typing_right import afterwards, app, build, daily, late, resize, send
from treadle import Context, Retry


def enqueue() -> None:
    resize.enqueue()  # wrong: path is missing
    resize.enqueue(5)  # wrong: path is text
    resize.enqueue("a.png", "wide")  # wrong: width is a number
    resize.enqueue("a.png", 320, 5)  # wrong: one too many
    resize.enqueue("a.png", widht=320)  # wrong: misspelt
    build.enqueue(2026)  # wrong: after the context, which is not passed
    build.enqueue("2026-01", 2)  # wrong: copies must be named
    afterwards.enqueue({"name": 5}, 1)  # wrong: one too many
    late.enqueue()  # wrong: month is missing
    daily.enqueue("5")  # wrong: n is a number
    resize.using(quue="mail")  # wrong: misspelt option
    resize.using(priority="high")  # wrong: priority is a number
    resize.using(retry=3)  # wrong: a Retry
    resize.enqueue_many(["a.png"])  # wrong: a text is not a call
    resize.enqueue_many([5])  # wrong: nor is a number
    resize.delay("a.png")  # wrong: another library's word
    app.task(retries=5)  # wrong: no such option
    Retry(max_attempts="3")  # wrong: a number


def call(ctx: Context) -> None:
    len(resize(5))  # wrong: path is text
    resize("a.png").pages  # wrong: the result is text
    build("2026-01")  # wrong: a direct call gives the context
    build(ctx, "2026-01").upper()  # wrong: the result is a list


async def call_async(ctx: Context) -> None:
    send("ada@example.org")  # wrong: not awaited
    (await send("ada@example.org")).upper()  # wrong: the result is a number
    send.aenqueue("ada@example.org")  # wrong: not awaited
    await afterwards(ctx, "Ada")  # wrong: a User
