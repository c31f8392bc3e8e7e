"""The standard library's logging: which job a line belongs to, and lines of JSON; for your own `dictConfig`."""

from treadle.app.logs import JobContext, JsonFormatter, LineFormatter

__all__ = ["JobContext", "JsonFormatter", "LineFormatter"]
