"""From the JSON of the API to the values that it was made of."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, TypeVar

from treadle import Finding
from treadle.app.audit import AuditReport, EventPage
from treadle.app.budgets import DayOfBudgets, TenantBudget
from treadle.app.bulk import BulkReport, Problem
from treadle.app.failures import Bucket, FailureGroup, Failures
from treadle.app.headline import Headline, Step
from treadle.app.operations import Cost
from treadle.app.profile import Profile
from treadle.app.queries import JobPage
from treadle.app.rates import Rate
from treadle.app.stats import Stats, Throughput, Times
from treadle.app.status import ErrorGroup, Group, Status
from treadle.app.top import Overview
from treadle.errors import EngineError
from treadle.model import Event, EventKind, FollowUp, Job, JobError, OnEnd, Progress, Reason, Scope, State
from treadle.model.records import (
    ANY,
    GONE,
    MEMORY,
    VERSION,
    ApiToken,
    Drain,
    Misfire,
    Overlap,
    Pause,
    PauseOwner,
    Schedule,
    WorkerInfo,
)
from treadle.model.retry import Retry
from treadle.model.seals import Verified
from treadle.model.why import Obstacle
from treadle.schedules.cron import Tick

View = Mapping[str, Any]
Value = TypeVar("Value")

MOMENTS = frozenset(
    {
        "at", "until", "since", "oldest", "local", "created_at", "due_at", "expires_at", "key_until", "claimed_at",
        "started_at", "finished_at", "lease_until", "next_at", "last_at", "updated_at", "seen_at", "revoked_at",
        "first_seen", "last_seen", "back_to", "failing_since",
    }
)  # fmt: skip
"""The fields that are moments, whatever they are fields of."""


def read(make: Callable[[], Value]) -> Value:
    """What an answer says; EngineError if this treadle cannot read it."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        words = f"{type(error).__name__}: {error}"
        raise EngineError(
            f"the server's answer cannot be read ({words:.100}); is the server newer or older than this treadle?"
        ) from error


def job_from(view: View) -> Job:
    """A job that is told under our own names; its fencing token is not told."""
    return Job(
        **{
            **_fields(Job, view),
            "payload_json": json.dumps(view["payload"]),
            "result_json": _maybe(json.dumps, view["result"]),
            "state": State(view["state"]),
            "reason": _maybe(Reason, view["reason"]),
            "key_scope": _maybe(Scope, view["key_scope"]),
            "retry": Retry(**view["retry"]),
            "error": _maybe(lambda error: JobError(**error), view["error"]),
            "progress": _maybe(lambda progress: Progress(**progress), view["progress"]),
            "on_end": _on_end(view["on_end"]),
        }
    )


def event_from(view: View, job_id: str, tenant: str) -> Event:
    facts = {**_fields(Event, view), "kind": EventKind(view["kind"])}
    return Event(**{**facts, "job_id": job_id, "tenant": tenant})


def trail_from(answer: View) -> EventPage:
    """A page of the audit trail."""
    events = [event_from(event, event["job"], event["tenant"]) for event in answer["events"]]
    return EventPage(events, answer["cursor"])


def schedule_from(view: View) -> Schedule:
    """A schedule; of what code declares it is told whether, where, and whether it still does."""
    module = f" {view['declared_in']}" if view["declared_in"] else ""
    declared = f"-{module}{GONE * view['gone']}" if view["declared"] else None
    return Schedule(
        **{
            **_fields(Schedule, {**view, "own_id": view["id"]}),
            "misfire": Misfire(view["misfire"]),
            "overlap": Overlap(view["overlap"]),
            "on_end": _on_end(view["on_end"]),
            "declared": declared,
        }
    )


def tick_from(view: View) -> Tick:
    return Tick(**_fields(Tick, view))


def pause_from(view: View) -> Pause:
    scope = {name: ANY if view[name] is None else view[name] for name in Pause._fields[:3]}
    return Pause(**{**_fields(Pause, view), **scope, "owner": PauseOwner(view["owner"])})


def worker_from(view: View) -> WorkerInfo:
    tasks = dict(view["tasks"])
    if view.get("version") is not None:
        tasks[f"{VERSION}{view['version']}"] = 1
    if view.get("memory") is not None:
        tasks[MEMORY] = view["memory"]
    return WorkerInfo(**{**_fields(WorkerInfo, view), "tasks": tasks, "running": view["running"] + view["waiting"]})


def drain_from(view: View) -> Drain:
    return Drain(**_fields(Drain, view))


def token_from(view: View) -> ApiToken:
    """A token, whose hash is not told."""
    return ApiToken(**{**_fields(ApiToken, view), "hash": ""})


def obstacle_from(view: View) -> Obstacle:
    return Obstacle(**_fields(Obstacle, view))


def cost_from(view: View) -> Cost:
    return Cost(**_fields(Cost, view))


def budgets_from(view: View) -> DayOfBudgets:
    tenants = [TenantBudget(**{**one, "pause": one["pause"] and pause_from(one["pause"])}) for one in view["budgets"]]
    return DayOfBudgets(_moment(view["at"]), date.fromisoformat(view["day"]), view["others"], tenants)


def report_from(view: View) -> BulkReport:
    problems = [Problem(**_fields(Problem, problem)) for problem in view["problems"]]
    return BulkReport(**{**_fields(BulkReport, view), "problems": problems})


def page_from(answer: View) -> JobPage:
    page = JobPage([job_from(job) for job in answer["jobs"]], answer["cursor"], answer["looked"])
    page.back_to = _maybe(_moment, answer["back_to"])
    return page


def failures_from(view: View) -> Failures:
    groups = [
        FailureGroup(
            **{
                **_fields(FailureGroup, group),
                "over_time": [Bucket(**_fields(Bucket, bucket)) for bucket in group["over_time"]],
            }
        )
        for group in view["failures"]
    ]
    return Failures(**{**_fields(Failures, view), "groups": groups})


def status_from(view: View) -> Status:
    return Status(
        **{
            **_fields(Status, view),
            "queues": [group_from(group) for group in view["queues"]],
            "tasks": [group_from(group) for group in view["tasks"]],
            "errors": [ErrorGroup(**_fields(ErrorGroup, error)) for error in view["errors"]],
            "more": [State(state) for state in view["more"]],
            "pauses": [pause_from(pause) for pause in view["pauses"]],
            "workers": [worker_from(worker) for worker in view["workers"]],
        }
    )


def overview_from(view: View) -> Overview:
    """What `treadle top` shows; of its status only what that shows."""
    status = status_from({"tasks": [], "rate": 0.0, "more": [], **_without(view, "rate")})
    return Overview(
        **{
            **_fields(Overview, view),
            "headline": _headline(view["headline"]),
            "status": status,
            "rate": _rate(view["rate"]),
            "rates": [_rate(rate) for rate in view["rates"]],
            "running": [job_from(job) for job in view["running"]],
            "schedules": [schedule_from(schedule) for schedule in view["schedules"]],
        }
    )


def finding_from(view: View) -> Finding:
    return Finding(**_fields(Finding, view))


def audit_report_from(view: View) -> AuditReport:
    return AuditReport([Verified(**_fields(Verified, one)) for one in view["tenants"]], view["unsealed"])


def group_from(view: View) -> Group:
    return Group(**_fields(Group, view))


def stats_from(view: View) -> Stats:
    lists = {name: [_throughput(one) for one in view[name]] for name in ("tasks", "minutes")}
    return Stats(**{**_fields(Stats, view), "total": _throughput(view["total"]), **lists})


def profile_from(view: View) -> Profile:
    """The words of the server's profile; its settings and options stay there."""
    return Profile(states=view["states"], fields=view["fields"], empty=view["empty"], schedules=view.get("schedules"))


def _headline(view: View) -> Headline:
    steps = [Step(**_fields(Step, step)) for step in view["steps"]]
    return Headline(**{**_fields(Headline, view), "steps": steps})


def _rate(view: View) -> Rate:
    return Rate(**_fields(Rate, view))


def _without(view: View, name: str) -> dict[str, Any]:
    return {key: value for key, value in view.items() if key != name}


def _throughput(view: View) -> Throughput:
    times = {name: Times(**view[name]) for name in ("wait", "run")}
    return Throughput(**{**_fields(Throughput, view), **times})


def _on_end(view: View | None) -> OnEnd | None:
    return None if view is None else OnEnd(**{state: _maybe(_follow_up, follow) for state, follow in view.items()})


def _follow_up(view: View) -> FollowUp:
    return FollowUp(**{**_fields(FollowUp, view), "retry": Retry(**view["retry"]), "on_end": _on_end(view["on_end"])})


def _fields(kind: Any, view: View) -> dict[str, Any]:
    """What the view says of each field of such a value; a field that we do not know yet is left out."""
    return {
        name: _moment(view[name]) if name in MOMENTS and view[name] is not None else view[name]
        for name in kind._fields
        if name in view
    }


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _maybe(make: Callable[[Any], Value], value: Any) -> Value | None:
    return None if value is None else make(value)
