"""Log lines: which job they belong to, one line each, and nothing in them that a terminal would act on."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workbench import ended, working
from treadle import Context, Retry, Treadle
from treadle.integrations.logging import JobContext, JsonFormatter, LineFormatter
from treadle.testing import run_until_idle

log = logging.getLogger("shop")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler with our filter and formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(JobContext())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)


def lines(stream: io.StringIO, logger: str = "shop") -> list[dict[str, Any]]:
    read = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [one for one in read if one["logger"] == logger]


def one_line(formatter: logging.Formatter, message: object, *args: object, **fields: object) -> str:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, message, args, None)
    vars(record).update(fields)
    return formatter.format(record)


@pytest.mark.parametrize("way", ["worker", "testing"])
def test_every_record_of_a_handler_says_which_job_it_belongs_to(app: Treadle, written: io.StringIO, way: str) -> None:
    @app.task(queue="mail")
    def plain(n: int) -> None:
        log.info("plain")

    @app.task(queue="mail", retry=Retry(2, 0, 0, 0))
    async def on_the_loop(ctx: Context, n: int) -> None:
        await asyncio.to_thread(log.info, "from a thread")
        log.info("again", extra={"task": "mine", "n": n})
        ctx.log.info("by the context")
        if ctx.attempt == 1:
            raise ValueError

    acme = app.tenant("acme")
    jobs = [acme.enqueue(name, {"n": 7}) for name in ("plain", "on_the_loop")]
    if way == "worker":
        with working(app, queues=["mail"]):
            ended(app, *jobs)
    else:
        run_until_idle(app)
        log.info("after")
    by = {(one["message"], one.get("attempt")): one for one in lines(written)}
    about = {"queue": "mail", "tenant": "acme"}
    assert by["plain", 1].items() >= {"job_id": jobs[0].id, "task": "plain", **about}.items()
    assert by["from a thread", 2].items() >= {"job_id": jobs[1].id, "task": "on_the_loop", **about}.items()
    assert by["again", 2].items() >= {"job_id": jobs[1].id, "task": "mine", "n": 7, **about}.items()
    [first, _] = lines(written, "treadle.task")
    assert first.items() >= {"job_id": jobs[1].id, "attempt": 1, "message": "by the context", **about}.items()
    assert "job_id" not in by.get(("after", None), {})
    ends = [one for one in lines(written, "treadle.worker") if "succeeded" in one["message"]]
    assert {one["job_id"] for one in ends} == {job.id for job in jobs}
    assert all(one.items() >= about.items() for one in ends)


def test_a_line_of_json_is_one_line_of_ascii() -> None:
    line = one_line(JsonFormatter(), "a\n\x1b[31mb\x7f\u202e\u2028 %s", "c\r", path="/x", task="t\n")
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) | {"time": ""} == {
        "time": "", "level": "info", "logger": "shop", "message": "a\n\x1b[31mb\x7f\u202e\u2028 c\r",
        "path": "/x", "task": "t\n",
    }  # fmt: skip


def test_a_line_of_text_has_no_control_characters() -> None:
    assert one_line(LineFormatter(), "a\n\x1b[31m", job_id="7\n", task="t\x9b")[9:] == (
        "INFO    a\\n\\x1b[31m  [t\\x9b 7\\n]"
    )


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    "odd", [Unprintable(), circle, {(1, 2): 3}, float, b"\xff"], ids=lambda odd: type(odd).__name__
)
def test_no_extra_and_no_argument_keeps_a_line_from_being_written(odd: object) -> None:
    assert json.loads(one_line(JsonFormatter(), "fine", odd=odd))["message"] == "fine"
    assert json.loads(one_line(JsonFormatter(), "only %s %s", "one"))["message"] == "only %s %s ('one',)"
    assert "only" in one_line(LineFormatter(), "only %s %s", "one")


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord("shop", logging.ERROR, "", 1, "no", (), (ValueError, error, error.__traceback__))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: a\nb")
