"""Log lines that say which job they belong to, for people and for programs; control characters are written out."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.model.text import printable
from treadle.tasks.context import running_attempt

ABOUT = ("job_id", "task", "queue", "tenant", "attempt")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "facts", *ABOUT}


class JobContext(logging.Filter):
    """Gives each record written inside a handler `job_id`, `task`, `queue`, `tenant` and `attempt`: a filter.

    What the record has already, by `extra` or from `ctx.log`, stays. No record is held back.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = running_attempt.get()
        if attempt is not None:
            job = attempt.job
            about = (job.id, job.task, job.queue, job.tenant, job.attempt)
            if getattr(record, "job_id", job.id) == job.id:  # else it speaks of another job
                for name, value in zip(ABOUT, about, strict=True):
                    record.__dict__.setdefault(name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: time, level, logger, message, the job, what `extra` has, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        about = {name: getattr(record, name, None) for name in ABOUT}
        fields |= {name: value for name, value in about.items() if value is not None}
        extra = {name: value for name, value in vars(record).items() if name not in _OWN}
        for name, value in {**extra, **getattr(record, "facts", {})}.items():
            fields.setdefault(name, value)
        if traces := _traces(self, record):
            fields["traceback"] = "\n".join(traces)
        return _json(fields)


class LineFormatter(logging.Formatter):
    """Time, level, message, and the job it is about; only a traceback has more than one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        job = getattr(record, "job_id", None)
        message = printable(_message(record))
        named = f"  [{printable(getattr(record, 'task', ''))} {printable(job)}]"
        about = named if job and str(job) not in message else ""
        line = f"{moment:%H:%M:%S} {record.levelname:<7} {message}{about}"
        return "\n".join([line, *(printable(text, lines=True) for text in _traces(self, record))])


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # its arguments do not fit: what is known is worth more than a traceback of logging itself
        return f"{record.msg} {record.args!r}"


def _json(fields: dict[str, Any]) -> str:
    try:
        text = json.dumps(fields, default=str)
    except Exception:  # somebody's extra: a circle, a key that is no text, an object that cannot be printed
        text = json.dumps({name: _plain(value) for name, value in fields.items()})
    return text.replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except Exception:
        try:
            return repr(value)
        except Exception:
            return f"<{type(value).__qualname__} that cannot be printed>"
    return value


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> Sequence[str]:
    trace = formatter.formatException(record.exc_info) if record.exc_info else ""
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return [text for text in (trace, stack) if text]
