"""OpenTelemetry: a span for each enqueue and each attempt, linked across processes, and metrics of both.

>>> from treadle import Treadle
>>> from treadle.integrations.opentelemetry import instrument
>>> app = Treadle("sqlite:///:memory:")
>>> instrument(app)

It needs the API alone (the extra `otel`). Without an SDK in the program, nothing is recorded.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle import __version__
from treadle.app.treadle import Treadle
from treadle.errors import Cancelled, ConfigError, Snooze
from treadle.model import Job
from treadle.model.checks import trace_from
from treadle.tasks.context import Context
from treadle.tasks.hooks import AttemptEnd
from treadle.tasks.secrets import EVERYTHING, hide, stand_in

__all__ = ["instrument"]

_log = logging.getLogger("treadle.telemetry")
_W3C = TraceContextTextMapPropagator()
_NO_ERRORS = (Snooze, Cancelled)  # what a handler raises to say how the attempt ends


def instrument(
    app: Treadle, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Let this app make spans and metrics; the providers are the global ones, unless they are given.

    Call it once, where the app is made: in the programs that enqueue, and in the workers.
    """
    if any(isinstance(getattr(hook, "__self__", None), _Telemetry) for hook in app.hooks.run):
        raise ConfigError("opentelemetry: this app is instrumented already; call instrument(app) once")
    telemetry = _Telemetry(app, tracer_provider, meter_provider)
    app.hooks.around_enqueue(telemetry.enqueue)
    app.hooks.around_run(telemetry.run)
    app.hooks.on_settle(telemetry.settled)


class _Telemetry:
    """The hooks, and the instruments that they write to. Names are those of the conventions for messaging."""

    def __init__(
        self, app: Treadle, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        self._app, self._has_failed = app, False
        self._tracer = trace.get_tracer("treadle", __version__, tracer_provider)
        meter = metrics.get_meter("treadle", __version__, meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self._duration = meter.create_histogram("messaging.process.duration", "s", "How long handlers ran.")
        self._wait = meter.create_histogram("treadle.job.wait", "s", "From when a job was due to its claim.")
        self._ended = meter.create_counter("treadle.attempts", "{attempt}", "Attempts, by how they ended.")

    def enqueue(self, jobs: Sequence[Job]) -> Iterator[str | None]:
        """Around an enqueue: a span of the producer, whose context the jobs keep."""
        if not jobs:
            yield None
            return
        one, number = jobs[0], len(jobs)
        facts = {**_facts(one), "messaging.operation.name": "enqueue"}
        details: dict[str, Any] = {**facts, "messaging.operation.type": "send", "treadle.tenant": one.tenant}
        details |= {"messaging.message.id": one.id} if number == 1 else {"messaging.batch.message_count": number}
        span, given = self._start(f"enqueue {one.queue}", SpanKind.PRODUCER, details), None
        with self._harmless():
            given = _trace_of(span)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield given
        except BaseException as error:
            facts["error.type"] = _name(error)
            self._note(span, error, lambda text: self._conceal(jobs, text))
            raise
        finally:
            with self._harmless():
                span.end()
            with self._harmless():
                self._sent.add(number, facts)

    def run(self, ctx: Context) -> Iterator[None]:
        """Around a handler: a span of the consumer, in a trace by itself, linked to whoever enqueued the job."""
        job = ctx.job
        details: dict[str, Any] = {
            **_facts(job),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": job.id,
            "messaging.client.id": job.worker or "",
            "treadle.tenant": job.tenant,
            "treadle.attempt": job.attempt,
        }
        if job.claimed_at is not None:
            with self._harmless():
                self._wait.record(max((job.claimed_at - job.due_at).total_seconds(), 0.0), _facts(job))
        span = self._start(
            f"process {job.queue}", SpanKind.CONSUMER, details, context=TraceContext(), links=_links(job)
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except _NO_ERRORS:
            raise
        except BaseException as error:
            self._note(span, error, ctx._attempt.conceal if ctx._attempt.secrets.paths else None)
            raise
        finally:
            with self._harmless():
                span.end()

    def settled(self, end: AttemptEnd) -> None:
        """The end of an attempt is stored: count it, and measure how long its handler ran."""
        facts = _facts(end.job)
        self._ended.add(1, {**facts, "treadle.outcome": str(end.kind)})
        if end.duration is not None:
            if end.exception is not None and not isinstance(end.exception, _NO_ERRORS):
                facts["error.type"] = _name(end.exception)
            self._duration.record(end.duration, {**facts, "messaging.operation.name": "process"})

    def _start(self, name: str, kind: SpanKind, details: dict[str, Any], **more: Any) -> Span:
        """A span that has begun; where that fails, one that records nothing."""
        with self._harmless():
            return self._tracer.start_span(name, kind=kind, attributes=details, **more)
        return trace.NonRecordingSpan(trace.get_current_span().get_span_context())

    def _note(self, span: Span, error: BaseException, conceal: Callable[[str], str] | None) -> None:
        """Say in a span what went wrong, without what is secret in the payload."""
        with self._harmless():
            span.set_attribute("error.type", _name(error))
            span.set_status(Status(StatusCode.ERROR))
            if not isinstance(error, Exception):
                span.set_status(Status(StatusCode.ERROR, "stopped before its end"))
                return
            shown = error if conceal is None else stand_in(error, conceal)
            with suppress(Exception):  # one that cannot be printed
                span.record_exception(shown)
                span.set_status(Status(StatusCode.ERROR, str(shown)))

    def _conceal(self, jobs: Sequence[Job], text: str) -> str:
        """A text about jobs that are enqueued, without what is secret in their payloads; the store is not asked."""
        for job in jobs:
            task = self._app.tasks.get(job.task)
            text = hide(text, (EVERYTHING if task is None else task.payload.secrets).values(job.payload))
        return text

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Around what calls the SDK and its processors: their errors are logged, the first one, and harm no job."""
        try:
            yield
        except Exception as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            _log.log(level, "telemetry failed; jobs are not affected", exc_info=error)
            self._has_failed = True


def _facts(job: Job) -> dict[str, str]:
    """What every span and every measure says of a job; few values, for each makes a series."""
    return {"messaging.system": "treadle", "messaging.destination.name": job.queue, "treadle.task": job.task}


def _trace_of(span: Span) -> str | None:
    """The context of this span, as a job keeps it; None if there is none, for no SDK is configured."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return trace_from(carrier.get("traceparent"), carrier.get("tracestate"))


def _links(job: Job) -> list[Link]:
    """A link to the span that the job's trace names; none if it names none, for somebody else may have written it."""
    if job.trace is None:
        return []
    parent, _, state = job.trace.partition(" ")
    producer = trace.get_current_span(_W3C.extract({"traceparent": parent, "tracestate": state}, TraceContext()))
    context = producer.get_span_context()
    return [Link(context)] if context.is_valid else []


def _name(error: BaseException) -> str:
    """The type of an error, as a job's own errors name it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
