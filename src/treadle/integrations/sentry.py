"""Sentry: the error of each failed attempt, with its job and without its secrets; check-ins of schedules."""

import contextvars
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.scope import Scope, use_isolation_scope
from sentry_sdk.types import Event, Hint, MonitorConfig
from sentry_sdk.utils import current_stacktrace, event_from_exception

from treadle.app.masking import secret_values
from treadle.app.treadle import Treadle
from treadle.errors import ConfigError, TreadleError
from treadle.integrations.redaction import Redaction
from treadle.model import EventKind, Job, State
from treadle.tasks.context import Context
from treadle.tasks.hooks import AttemptEnd
from treadle.worker.outcomes import own_frames

__all__ = ["instrument"]

EVERY_TASK = "*"
REMEMBERED = 1_000  # attempts that failed and are not settled yet, and failures that were sent
LONGEST_SLUG = 50  # characters, as Sentry has it

CheckIn = Literal["in_progress", "ok", "error"]


def instrument(
    app: Treadle,
    *,
    redact: Mapping[str, Collection[str]] | None = None,
    retries: bool = True,
    payloads: bool = True,
    local_variables: bool = False,
    monitors: bool | Collection[str] = True,
) -> None:
    """Send the errors of this app's jobs to Sentry, and the check-ins of its schedules.

    `redact` names payload fields by task, `"*"` is every task: neither they nor their values leave in an event. Without
    `retries` only jobs that failed for good are sent; without `payloads` no payload is. `local_variables` of the frames
    are left out unless asked for. `monitors` are the schedules with check-ins: all of them, none, or these.
    """
    if any(isinstance(getattr(hook, "__self__", None), Reporter) for hook in app.hooks.settle):
        raise ConfigError("sentry: this app is instrumented already; call instrument(app) once, where the app is made")
    for task, fields in (redact or {}).items():
        if isinstance(fields, str):
            raise ConfigError(f"sentry: redact[{task!r}] must be a list of field names, such as [{fields!r}]")
    reporter = Reporter(app, redact or {}, retries, payloads, local_variables)
    app.hooks.run.insert(0, reporter.around)  # the outermost: errors of other hooks belong to the attempt, too
    app.hooks.on_settle(reporter.report)
    app.hooks.on_failure(reporter.report)
    if monitors is not False:
        check_ins = CheckIns(app, None if monitors is True else frozenset(monitors))
        app.hooks.on_claim(check_ins.begin)
        app.hooks.on_settle(check_ins.end)
        app.hooks.on_failure(check_ins.end)
    _add_once(Scope.get_global_scope(), without_lines_of_jobs)


# ----------------------------------------------------------------------------------------------- errors


class Reporter:
    """Gives each run a scope of its own, and sends the error with that scope once the end of the attempt is stored."""

    def __init__(
        self,
        app: Treadle,
        redact: Mapping[str, Collection[str]],
        retries: bool,
        payloads: bool,
        local_variables: bool,
    ) -> None:
        self._app, self._redact, self._retries = app, redact, retries
        self._payloads, self._local_variables = payloads, local_variables
        self._scopes = Recent()  # of attempts that failed, until they are settled
        self._sent = Recent()

    def around(self, ctx: Context) -> Iterator[None]:
        """What is sent from inside the handler has the job's context and redaction, too."""
        job = ctx.job
        with sentry_sdk.isolation_scope() as scope:
            self._describe(scope, job)
            try:
                yield
            except BaseException:
                self._scopes[job.id, job.attempt] = scope
                raise

    def report(self, end: AttemptEnd) -> None:
        """Send the error of an attempt that failed; a job that failed for good is told twice, and sent once."""
        job, error = end.job, end.exception
        scope = self._scopes.pop((job.id, job.attempt))
        if job.state is not State.FAILED and not (self._retries and end.kind is EventKind.RETRYING):
            return
        if (job.id, job.revision) in self._sent:
            return
        self._sent[job.id, job.revision] = True
        # In an empty context: Sentry takes an exception that this thread has logged before for sent already.
        contextvars.Context().run(self._send, job, error, scope)

    def _send(self, job: Job, error: BaseException | None, scope: Scope | None) -> None:
        with use_isolation_scope(scope) if scope is not None else sentry_sdk.isolation_scope() as used:
            if scope is None:
                self._describe(used, job)
            used.set_context("job", self._context(job))
            event, hint = _event(job, error)
            event["level"] = "error" if job.state is State.FAILED else "warning"
            sentry_sdk.capture_event(event, hint)

    def _describe(self, scope: Scope, job: Job) -> None:
        scope.set_transaction_name(job.task, source="task")
        for name in ("task", "queue", "tenant"):
            scope.set_tag(f"treadle.{name}", getattr(job, name))
        scope.set_context("job", self._context(job))
        redaction = Redaction(self._hidden(job.task), job.payload, secret_values(self._app, job))

        def redacted(event: Event, hint: Hint) -> Event | None:  # noqa: ARG001
            try:
                return _redacted(event, redaction, self._local_variables)
            except Exception:  # Sentry sends an event as it is if a processor of it fails: better none
                return None

        scope.add_event_processor(redacted)

    def _hidden(self, task: str) -> set[str]:
        """The payload fields of this task that Sentry may not see, beside those that are secret to everybody."""
        return {*self._redact.get(EVERY_TASK, ()), *self._redact.get(task, ())}

    def _context(self, job: Job) -> dict[str, Any]:
        context: dict[str, Any] = {
            "job_id": job.id,
            "task": job.task,
            "queue": job.queue,
            "lane": job.lane,
            "tenant": job.tenant,
            "attempt": job.attempt,
            "failures": job.failures,
            "max_attempts": job.max_attempts,
            "schedule": job.schedule,
            "key": job.key,
            "worker": job.worker,
            "state": job.state.value,
        }
        if self._payloads:
            context["payload"] = self._app.masked(job).payload
        return context


def _event(job: Job, error: BaseException | None) -> tuple[Event, Hint]:
    """The error as Sentry takes it; a job whose process died, or that had no handler, has only words."""
    if error is not None:
        return event_from_exception(
            (type(error), error, own_frames(error.__traceback__)),
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "treadle", "handled": False},
        )
    kind, words = (job.error.type, job.error.message) if job.error is not None else ("Failed", "the job has failed")
    exception = {"type": kind, "value": words, "mechanism": {"type": "treadle", "handled": False}}
    return {"exception": {"values": [exception]}, "fingerprint": ["treadle", job.task, kind]}, {}


def _redacted(event: Event, redaction: Redaction, local_variables: bool) -> Event:
    whole: Any = event
    client = sentry_sdk.get_client()
    if client.options["attach_stacktrace"] and not {"exception", "threads", "stacktrace"} & whole.keys():
        stack = current_stacktrace(include_local_variables=False)  # else the client adds one with variables, later
        whole["threads"] = {"values": [{"stacktrace": stack, "crashed": False, "current": True}]}
    if not local_variables:
        _without_variables(whole)
    kept = {name: whole[name] for name in ("timestamp", "start_timestamp", "event_id", "type") if name in whole}
    left: Any = {**redaction(_plain_times(whole)), **kept}
    return left  # type: ignore[no-any-return] # an event as it came


def _without_variables(event: Any) -> None:
    for part in ("exception", "threads"):
        for value in (event.get(part) or {}).get("values") or ():
            for frame in ((value or {}).get("stacktrace") or {}).get("frames") or ():
                frame.pop("vars", None)


def _plain_times(event: Any) -> Any:
    """The event with the moments of breadcrumbs and spans as text: a redaction would take their `repr`."""
    match event:
        case Mapping():
            return {key: _plain_times(item) for key, item in event.items()}
        case list() | tuple():
            return [_plain_times(item) for item in event]
        case _:
            return event.isoformat() if hasattr(event, "isoformat") else event


def without_lines_of_jobs(event: Event, hint: Hint) -> Event | None:
    """What Sentry's own logging integration makes of treadle's log: it has said of jobs what we send, unredacted."""
    record = hint.get("log_record")
    if record is not None and record.name.startswith("treadle."):
        if getattr(record, "job_id", None) is not None and record.name != "treadle.task":
            return None
        _without_variables(event)
    crumbs: Any = event.get("breadcrumbs")
    if isinstance(crumbs, Mapping):
        values = crumbs.get("values", ())
        kept = [one for one in values if not _is_line_of_worker(one)]
        event["breadcrumbs"] = {**crumbs, "values": kept}
    return event


def _is_line_of_worker(crumb: Mapping[str, Any]) -> bool:
    category = str(crumb.get("category", ""))
    return category.startswith("treadle.") and category != "treadle.task"


def _add_once(scope: Scope, processor: Any) -> None:
    if processor not in scope._event_processors:
        scope.add_event_processor(processor)


class Recent:
    """What was noted lately, for one thread after the other; the oldest is forgotten when there is too much."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def __setitem__(self, key: tuple[str, int], value: Any) -> None:
        with self._lock:
            self._noted[key] = value
            if len(self._noted) > REMEMBERED:
                self._noted.popitem(last=False)

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._noted

    def pop(self, key: tuple[str, int]) -> Any:
        with self._lock:
            return self._noted.pop(key, None)


# -------------------------------------------------------------------------------------------- check-ins


class CheckIns:
    """Tells Sentry's monitors when a job of a schedule begins and how it ends. All attempts are one check-in."""

    def __init__(self, app: Treadle, names: frozenset[str] | None) -> None:
        self._app, self._names = app, names
        self._ended = Recent()

    def begin(self, jobs: Sequence[Job]) -> None:
        """These jobs were claimed."""
        for job in jobs:
            if job.schedule is not None and (config := self._config(job)) is not None:
                self._send(job, "in_progress", config=config or None)

    def end(self, end: AttemptEnd) -> None:
        """An attempt has ended; a job that will be tried again is still in progress."""
        job = end.job
        if job.schedule is None or not job.state.final or (job.id, job.revision) in self._ended:
            return
        if self._config(job) is not None:
            self._ended[job.id, job.revision] = True  # a failure is told twice
            self._send(job, "ok" if job.state is State.SUCCEEDED else "error", duration=end.duration)

    def _send(
        self, job: Job, status: CheckIn, *, duration: float | None = None, config: MonitorConfig | None = None
    ) -> None:
        capture_checkin(_slug(job), job.id.replace("-", ""), status, duration, config)

    def _config(self, job: Job) -> MonitorConfig | None:
        """When Sentry should expect it; empty: as the monitor there says. None: it has no check-ins."""
        if job.schedule is None or (self._names is not None and job.schedule not in self._names):
            return None
        try:
            schedule = self._app.schedules.get(job.schedule, tenant=job.tenant)
        except TreadleError:  # deleted meanwhile, or the store is away: the check-in is worth more than its monitor
            return {}
        if schedule.for_each is not None:
            return None  # one time makes many jobs: a monitor would take the second for a repetition of the first
        if schedule.every is not None:
            minutes = schedule.every / 60
            if minutes < 1:
                return None  # Sentry's clock has minutes
            return {"schedule": {"type": "interval", "value": round(minutes), "unit": "minute"}}
        if schedule.cron is None or len(schedule.cron.split()) != 5:
            return {}
        return {"schedule": {"type": "crontab", "value": schedule.cron}, "timezone": schedule.timezone}


def _slug(job: Job) -> str:
    """The monitor's name: that of the schedule as Sentry allows it, with a digest where something had to go."""
    name = job.schedule or ""
    whole = name if job.tenant == "default" else f"{name}-{job.tenant}"
    slug = re.sub(r"[^a-z0-9_-]+", "-", whole.lower()).strip("-_")
    if slug == whole and len(slug) <= LONGEST_SLUG and not slug.isdigit():
        return slug
    digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
    return f"{slug[: LONGEST_SLUG - 7]}-{digest}".lstrip("-")
