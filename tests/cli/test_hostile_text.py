"""Nothing that a job, a caller or another program has written acts on a terminal, or passes for a line of a log."""

import json
import logging
import re
import unicodedata

import pytest

from tests.support.commands import ACTS, LOOKS, every_command, looks
from treadle import Retry, Treadle
from treadle.app.logs import JsonFormatter, LineFormatter
from treadle.model.records import Pause, Schedule, WorkerInfo
from treadle.model.text import printable
from treadle.testing import run_until_idle

CORPUS = [
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "\x1b[31mred", "\x1bP+q\x1b\\",
    "\x1b[6n", "\x1b[?1049h", "\x9b31m", "\x9d0;x\x9c", "\x90x\x9c", "a\rb", "a\bb", "a\x0bb\x0c", "\x00", "\x7f\x7f",
    "\x07\x07", "\x0e\x0f", "\x85next", "\u2028line\u2029", "\u202egnp.exe", "\u2066x\u2069", "\u200bzero\u200d",
    "\ufeffbom", "\u061c", "\u2060", "[bold]x[/bold]", "[/nope]", ":smile:", "%s %d %(x)s", "{0} {x!r}", "\\x1b[31m",
    "ok\n12:00:00 ERROR   forged line", "ok\r\n2026-01-01 INFO forged", "\n\n\n", "\t\t",
    '{"level": "error"}\n{"level": "info"}', "=cmd|' /C calc'!A0", "é😀", "\u0300" * 20,
]  # fmt: skip
ALLOWED = re.compile(r"\x1b\[[0-9;]*m")  # colours are our own
BAR = re.compile(r"\x1b\[(2K|1A|\?25[lh])|\r")  # and what a progress bar, on stderr, moves the cursor with


def acts(text: str) -> list[str]:
    """What a terminal would act on."""
    return [one for one in text if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_every_control_character_is_written_out() -> None:
    every = "".join(map(chr, range(0x3000))) + "\ufeff\ud800\udfff"
    assert not acts(re.sub("[\u00ad\u0600-\u0605\u06dd\u070f\u0890-\u0891\u08e2\u180e]", "", printable(every)))
    assert "\n" not in printable(every)
    for text in CORPUS:
        assert not acts(printable(text, lines=True).replace("\t", ""))


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_line_of_the_log_is_one_line(formatter: logging.Formatter) -> None:
    for text in CORPUS:
        made = logging.makeLogRecord({"msg": "%s", "args": (text,), "job_id": text, "task": text, "facts": {"x": text}})
        line = formatter.format(made)
        assert not acts(line), text
        assert "\n" not in line, text
        if isinstance(formatter, JsonFormatter):
            assert json.loads(line)["message"] == text


def test_what_a_handler_says_forges_no_line_in_a_log_of_the_app(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    def fail(text: str) -> None:
        raise RuntimeError(text)

    for text in CORPUS:
        if "\x00" not in text:
            fail.enqueue(text)
    run_until_idle(app)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("treadle.worker")]
    assert len(messages) >= len(CORPUS) - 1
    for message in messages:
        assert "\n" not in message
        assert not acts(message)


def test_no_command_prints_what_others_have_written_as_it_is(ready, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Treadle("sqlite:///treadle.db")
    now = app.engine.now()

    @app.task(retry=Retry(max_attempts=1))
    def breaks(text: str) -> None:
        raise type(text, (Exception,), {})(text)

    for number, text in enumerate(one for one in CORPUS if "\x00" not in one):
        name = f"n{number}{text}"
        app.engine.save(Schedule(name, name, now, name, {text: text}, every=5.0, queue=name, lane=text), before=None)
        app.engine.save(Pause(name, name, name, name, text, now), before=None)
        app.engine.save(WorkerInfo(name, text, 1, [name], [text], {name: 1}, 1, 0, False, now, now, 60.0), before=None)
        job = app.enqueue("whatever", {text: text}, checked=False, priority=number)
        app.cancel(job, actor="ada", reason=text)
        breaks.enqueue(text)
    run_until_idle(app)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for words in looks(job.id, name):
        url = [] if words[0] == "config" else ["--url", "sqlite:///treadle.db"]
        answer = ready(*words, *url)
        assert answer.code in (0, 1), (words, answer)  # 1: something needs attention
        shown = ALLOWED.sub("", answer.out + (BAR.sub("", answer.err) if words[0] == "export" else answer.err))
        assert not acts(shown), words
        assert "forged" not in [line.split(" ")[0] for line in shown.splitlines()]
        assert not any(line.startswith(("12:00:00 ERROR", "2026-01-01 INFO")) for line in shown.splitlines())


def test_every_command_looks_or_acts() -> None:
    """A new one fails here until tests/support/commands.py has it: what it shows is then searched."""
    looked = {name for name in every_command() if any(f"{words} ".startswith(f"{name} ") for words in LOOKS)}
    assert looked == every_command() - ACTS
