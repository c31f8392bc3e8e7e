"""OpenTelemetry with its real SDK: spans of two programs that share nothing but the store, and metrics of both."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.marks import any_store
from tests.support.workbench import until
from treadle import Cancelled, ConfigError, Context, InvalidJob, Job, Retry, Snooze, Treadle, Unique
from treadle.integrations.opentelemetry import instrument
from treadle.testing import FakeClock, run_until_idle


class Program:
    """One program: its own app on the shared store, its own SDK, its own handlers of the same tasks."""

    def __init__(self, app: Treadle) -> None:
        self.app = app
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = tracers.get_tracer("test")
        instrument(app, tracers, MeterProvider([self.reader]))

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def measured(self, name: str) -> dict[tuple[Any, ...], Any]:
        """The points of an instrument, by task and what else distinguishes them."""
        read = self.reader.get_metrics_data()
        several = [] if read is None else [one for all_ in read.resource_metrics for one in all_.scope_metrics]
        points = [
            point
            for one in several
            for metric in one.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        more = ("treadle.outcome", "error.type")
        return {
            (p.attributes["treadle.task"], *(p.attributes[it] for it in more if it in p.attributes)): p for p in points
        }


@pytest.fixture
def web(make_app: Callable[..., Treadle]) -> Program:
    return Program(with_tasks(make_app()))


@pytest.fixture
def worker(make_app: Callable[..., Treadle]) -> Program:
    return Program(with_tasks(make_app()))


def with_tasks(app: Treadle) -> Treadle:
    @app.task(queue="mail")
    def send(to: str) -> str:
        return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)

    @app.task(queue="mail")
    async def asend(to: str) -> str:
        await asyncio.sleep(0)
        return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)

    @app.task(queue="mail", retry=Retry(max_attempts=2, base=0, jitter=0))
    def fail(to: str) -> None:
        raise ConnectionError(f"no route to {to}")

    @app.task(queue="mail", retry=Retry(max_attempts=2, base=0, jitter=0))
    def put_off(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Snooze("1s")
        raise Cancelled("no longer wanted")

    return app


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def named(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


# ------------------------------------------------------------------------------------------- from producer to consumer


@any_store
def test_the_attempt_of_another_program_is_linked_to_the_enqueue(web: Program, worker: Program) -> None:
    with web.tracer.start_as_current_span("request") as request:
        job = web.app.tasks["send"].enqueue("ada")
    with worker.tracer.start_as_current_span("whatever the worker runs in"):
        run_until_idle(worker.app)

    [producer], [consumer] = web.spans(SpanKind.PRODUCER), worker.spans(SpanKind.CONSUMER)
    assert (producer.name, consumer.name) == ("enqueue mail", "process mail")
    assert producer.parent is not None
    assert (producer.parent.span_id, producer.context.trace_id) == named(request)[::-1]  # type: ignore[arg-type]
    trace_id, span_id, flags = producer.context.trace_id, producer.context.span_id, producer.context.trace_flags
    assert job.trace == f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    assert (linked(consumer), consumer.parent) == ([named(producer)], None)
    assert consumer.context.trace_id != producer.context.trace_id
    shared = {"messaging.system": "treadle", "messaging.destination.name": "mail", "messaging.message.id": job.id}
    shared |= {"treadle.task": "send", "treadle.tenant": "default"}
    sent = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    ran = {"messaging.operation.name": "process", "messaging.operation.type": "process", "treadle.attempt": 1}
    assert producer.attributes == {**shared, **sent}
    assert consumer.attributes == {**shared, **ran, "messaging.client.id": "testing"}
    assert consumer.status.status_code is StatusCode.UNSET
    assert worker.app.get(job.id).result == f"{consumer.context.trace_id:032x}"  # the handler ran inside it


def test_each_attempt_is_a_span_with_its_error_and_all_are_linked_to_one_enqueue(
    web: Program, worker: Program, clock: FakeClock
) -> None:
    job = web.app.tasks["fail"].enqueue("ada")
    run_until_idle(worker.app)
    clock.advance(minutes=10)
    run_until_idle(worker.app)

    [producer], attempts = web.spans(SpanKind.PRODUCER), worker.spans(SpanKind.CONSUMER)
    assert [span.attributes["treadle.attempt"] for span in attempts if span.attributes] == [1, 2]
    assert [linked(span) for span in attempts] == [[named(producer)]] * 2
    for span in attempts:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no route to ada")
        assert span.attributes is not None
        assert span.attributes["error.type"] == "ConnectionError"
        [event] = span.events
        assert (event.name, event.attributes["exception.message"]) == ("exception", "no route to ada")  # type: ignore[index]
    assert worker.app.get(job.id).trace == job.trace


def test_a_snooze_and_a_cancellation_are_no_errors(web: Program, clock: FakeClock) -> None:
    web.app.tasks["put_off"].enqueue()
    run_until_idle(web.app)
    clock.advance(minutes=1)
    run_until_idle(web.app)

    spans = web.spans(SpanKind.CONSUMER)
    assert [(span.status.status_code, list(span.events)) for span in spans] == [(StatusCode.UNSET, [])] * 2
    assert set(web.measured("treadle.attempts")) == {("put_off", "snoozed"), ("put_off", "cancelled")}


def test_handlers_in_threads_and_on_the_event_loop_run_inside_their_span(web: Program) -> None:
    tasks = web.app.tasks
    jobs = [*(tasks["send"].enqueue("a") for _ in range(3)), *(tasks["asend"].enqueue("a") for _ in range(3))]
    web.app.run_worker(until_idle=True, queues=["mail"])

    spans = {span.attributes["messaging.message.id"]: span for span in web.spans(SpanKind.CONSUMER) if span.attributes}
    assert {job.id: web.app.get(job.id).result for job in jobs} == {
        job.id: f"{spans[job.id].context.trace_id:032x}" for job in jobs
    }
    assert len({span.context.trace_id for span in spans.values()}) == 6


def test_what_a_handler_enqueues_is_a_child_of_its_attempt(web: Program) -> None:
    @web.app.task(queue="mail")
    async def chain() -> None:
        await web.app.tasks["send"].aenqueue("ada")

    chain.enqueue()
    run_until_idle(web.app)

    first, second = web.spans(SpanKind.PRODUCER)
    attempt, last = web.spans(SpanKind.CONSUMER)
    assert second.parent is not None
    assert (second.context.trace_id, second.parent.span_id) == named(attempt)
    assert [linked(attempt), linked(last)] == [[named(first)], [named(second)]]


def test_what_follows_a_job_is_linked_to_the_same_enqueue(web: Program) -> None:
    @web.app.task(on_succeeded="send_result")
    def work() -> None: ...

    @web.app.task
    def send_result(job_id: str) -> None: ...

    work.enqueue()
    run_until_idle(web.app)

    [producer], consumers = web.spans(SpanKind.PRODUCER), web.spans(SpanKind.CONSUMER)
    assert [linked(span) for span in consumers] == [[named(producer)]] * 2


# --------------------------------------------------------------------------------------------------- ways to enqueue


def test_many_jobs_are_one_span_and_share_its_trace(web: Program) -> None:
    receipts = web.app.tasks["send"].enqueue_many([("a",), ("b",), ("c",)])
    assert list(web.app.tasks["send"].enqueue_many([])) == []

    [producer] = web.spans(SpanKind.PRODUCER)
    assert producer.attributes is not None
    assert producer.attributes["messaging.batch.message_count"] == 3
    assert {web.app.get(receipt.job.id).trace for receipt in receipts} == {receipts[0].job.trace}
    assert f"{producer.context.span_id:016x}" in (receipts[0].job.trace or "")


def test_in_a_transaction_and_from_async_code_the_job_has_the_trace_of_the_caller(web: Program, store_url: str) -> None:
    async def request() -> Job:
        with web.tracer.start_as_current_span("request"):
            return await web.app.tasks["send"].aenqueue("ada")

    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection, web.tracer.start_as_current_span("web"):
        web.app.engine.open()
        connection.execute("begin")
        inside = web.app.tasks["send"].using(tx=connection).enqueue("ada")
    connection.close()

    jobs = [inside, asyncio.run(request())]
    producers = web.spans(SpanKind.PRODUCER)
    assert [(web.app.get(job.id).trace or "")[3:52] for job in jobs] == [
        f"{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in producers
    ]
    assert all(span.parent is not None for span in producers)


def test_a_replaced_job_belongs_to_the_newer_request(web: Program) -> None:
    once = web.app.tasks["send"].using(key="k", unique=Unique("active", on_conflict="replace"), run_after="1h")
    first, second = once.enqueue("a"), once.enqueue("b")

    assert first.id == second.id
    assert f"{web.spans(SpanKind.PRODUCER)[1].context.span_id:016x}" in (web.app.get(first.id).trace or "")


def test_a_trace_that_is_given_by_hand_stays(web: Program, worker: Program) -> None:
    web.app.tasks["send"].using(trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 v=1").enqueue("ada")
    run_until_idle(worker.app)

    [consumer] = worker.spans(SpanKind.CONSUMER)
    assert linked(consumer) == [(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)]
    assert consumer.links[0].context.trace_state.to_header() == "v=1"


def test_an_enqueue_that_is_refused_is_an_error_of_its_span(web: Program) -> None:
    @web.app.hooks.around_enqueue
    def refuse(jobs: Sequence[Job]) -> Iterator[None]:
        raise InvalidJob("tenant", "is banned")
        yield

    with pytest.raises(InvalidJob):
        web.app.tasks["send"].enqueue("ada")

    [span] = web.spans(SpanKind.PRODUCER)
    assert (span.status.status_code, len(span.events)) == (StatusCode.ERROR, 1)
    assert set(web.measured("messaging.client.sent.messages")) == {("send", "treadle.errors.InvalidJob")}


# -------------------------------------------------------------------------------------------- what it must not do


class Broken(SpanProcessor):
    """A processor of somebody's own, with a bug."""

    def __init__(self, at: str) -> None:
        setattr(self, at, self._fail)

    def _fail(self, *_: object) -> None:
        raise KeyError("card")


@pytest.mark.parametrize("at", ["on_start", "on_end"])
def test_an_error_of_a_span_processor_harms_no_job_and_is_logged_once(
    make_app: Callable[..., Treadle], at: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = with_tasks(make_app())
    tracers = TracerProvider()
    tracers.add_span_processor(Broken(at))
    instrument(app, tracers)

    jobs = [app.tasks["send"].enqueue("ada"), app.tasks["asend"].enqueue("ada")]
    run_until_idle(app)

    assert [(app.get(job.id).state, app.get(job.id).attempt) for job in jobs] == [("succeeded", 1)] * 2
    lines = [record for record in caplog.records if record.name == "treadle.telemetry"]
    assert len([line for line in lines if line.levelno == logging.WARNING]) == 1


def test_a_secret_of_the_payload_leaves_in_no_span(web: Program) -> None:
    @web.app.task(secret=["password"], retry=Retry(max_attempts=1))
    def log_in(user: str, password: str) -> None:
        raise ValueError(f"no login with {password}")

    log_in.enqueue("ada", "canary-1")
    run_until_idle(web.app)

    @web.app.hooks.around_enqueue
    def refuse(jobs: Sequence[Job]) -> Iterator[None]:
        raise InvalidJob("payload", f"{jobs[0].payload} is refused")
        yield

    with pytest.raises(InvalidJob):
        log_in.enqueue("ada", "canary-2")

    texts = [span.to_json() for span in web.exporter.get_finished_spans()]
    assert [text for text in texts if "canary" in text] == []
    [consumer] = web.spans(SpanKind.CONSUMER)
    assert (consumer.status.description, consumer.attributes["error.type"]) == ("no login with ***", "ValueError")
    [event] = consumer.events
    assert (event.attributes["exception.type"], event.attributes["exception.message"]) == (
        "ValueError", "no login with ***",
    )  # fmt: skip
    assert "log_in" in event.attributes["exception.stacktrace"]


# ---------------------------------------------------------------------------------------------- where there is none


def test_without_an_sdk_there_is_no_trace_and_a_current_span_is_passed_on(make_app: Callable[..., Treadle]) -> None:
    app = with_tasks(make_app())
    instrument(app, trace.NoOpTracerProvider())
    context = trace.SpanContext(7, 9, is_remote=False)

    alone = app.tasks["send"].enqueue("ada")
    with trace.use_span(trace.NonRecordingSpan(context)):
        inside = app.tasks["send"].enqueue("ada")
    run_until_idle(app)

    assert (alone.trace, inside.trace) == (None, f"00-{7:032x}-{9:016x}-00")
    assert {app.get(job.id).state for job in (alone, inside)} == {"succeeded"}


def test_an_app_that_is_not_instrumented_takes_no_trace_from_a_current_span(
    make_app: Callable[..., Treadle], web: Program, worker: Program
) -> None:
    plain = with_tasks(make_app())
    with web.tracer.start_as_current_span("request"):
        job = plain.tasks["send"].enqueue("ada")
    run_until_idle(worker.app)

    assert job.trace is None
    assert linked(worker.spans(SpanKind.CONSUMER)[0]) == []


def test_what_somebody_else_has_written_as_a_trace_does_no_harm(web: Program, store_url: str) -> None:
    job = web.app.tasks["send"].enqueue("ada")
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        connection.execute("update treadle_jobs set trace = 'rubbish'")
    connection.close()
    run_until_idle(web.app)

    assert web.app.get(job.id).state == "succeeded"
    assert linked(web.spans(SpanKind.CONSUMER)[0]) == []


def test_an_app_is_instrumented_once(web: Program) -> None:
    with pytest.raises(ConfigError, match="already"):
        instrument(web.app)


def test_an_error_that_cannot_be_printed_ends_the_attempt_as_itself(web: Program) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @web.app.task(retry=Retry(1))
    def mumble() -> None:
        raise Silent

    job = mumble.enqueue()
    run_until_idle(web.app)

    assert (web.app.get(job.id).error.type).endswith("Silent")  # type: ignore[union-attr]
    assert web.spans(SpanKind.CONSUMER)[0].status.status_code is StatusCode.ERROR


# ------------------------------------------------------------------------------------------------------- metrics


def test_metrics_tell_of_waits_durations_and_ends(web: Program, worker: Program, clock: FakeClock) -> None:
    web.app.tasks["send"].enqueue_many([("a",), ("b",)])
    web.app.tasks["fail"].enqueue("c")
    clock.advance(seconds=7)
    run_until_idle(worker.app)

    assert {key: point.value for key, point in web.measured("messaging.client.sent.messages").items()} == {
        ("send",): 2, ("fail",): 1,
    }  # fmt: skip
    waits = worker.measured("treadle.job.wait")
    assert (waits[("send",)].count, waits[("send",)].sum) == (2, 14.0)
    ends = {key: point.value for key, point in worker.measured("treadle.attempts").items()}
    assert ends == {("send", "succeeded"): 2, ("fail", "retrying"): 1, ("fail", "failed"): 1}
    durations = worker.measured("messaging.process.duration")
    assert {key: point.count for key, point in durations.items()} == {("send",): 2, ("fail", "ConnectionError"): 2}


def test_a_real_worker_counts_what_it_has_settled(web: Program) -> None:
    web.app.tasks["asend"].enqueue("ada")
    web.app.run_worker(until_idle=True, queues=["mail"])

    ends = until(lambda: web.measured("treadle.attempts"), "the count")
    assert {key: point.value for key, point in ends.items()} == {("asend", "succeeded"): 1}
