"""When a schedule makes which job. Pure: a schedule and the time go in, a firing comes out.

A tick is one nominal time of a schedule. What was missed is decided by the schedule's misfire policy, and the job of a
tick has an id made from the schedule's name and the tick: no crash, no clock and no number of workers makes it twice.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from treadle.errors import ConfigError, InvalidJob, InvalidTiming
from treadle.model import Job, OnEnd, Scope, check_name, checked, json_text
from treadle.model.clock import seconds
from treadle.model.records import Misfire, Overlap, Schedule, derived_id
from treadle.model.retry import Retry
from treadle.schedules.cron import Cron, Every, Tick, next_after, time_zone
from treadle.tasks.task import name_of

LATE_AFTER = 60.0  # seconds: a tick that nobody has made into a job by then was missed
WRONG_CLOCK = timedelta(days=1)  # a last run further ahead than this was made by a clock that was wrong
OLDEST_MISFIRE = 30 * 86_400.0  # seconds that misfire `all` may reach back
SHORTEST_CRON_STEP = timedelta(minutes=1)  # between two ticks of a cron expression
MOST_MISFIRES = 10_000  # jobs that it may make up for
EXPANSION = "treadle.for_each:"  # the task that makes a job of every row is called this and the name of its rows


class Firing(NamedTuple):
    """What to do now: make the job of this tick (None: only go on), and look again at `next_at`."""

    tick: datetime | None
    next_at: datetime


def next_tick(schedule: Schedule, after: datetime) -> datetime:
    """The first tick strictly later than `after`."""
    if schedule.cron is not None:
        return next_after(schedule.cron, schedule.timezone, after)
    step = Every.parse(schedule.every or 0)
    return step.next_after(schedule.created_at + timedelta(seconds=step.seconds), after)


def preview(schedule: Schedule, after: datetime, n: int) -> list[Tick]:
    """The next ticks, with notes where clocks are changed."""
    if schedule.cron is not None:
        ticks = Cron.parse(schedule.cron).ticks(time_zone(schedule.timezone), after)
        return [tick for tick, _ in zip(ticks, range(n), strict=False)]
    zone, found = time_zone(schedule.timezone), []
    for _ in range(n):
        after = next_tick(schedule, after)
        found.append(Tick(after, after.astimezone(zone), ""))
    return found


def restarted(schedule: Schedule, now: datetime) -> Schedule:
    """The schedule with its next tick counted from now, and never again one that it has had."""
    return schedule.evolve(next_at=next_tick(schedule, _since(schedule, now)))


def _since(schedule: Schedule, now: datetime) -> datetime:
    """From when on it may run: not before its last run, unless that is so far ahead that a clock was wrong."""
    last = schedule.last_at
    return max(now, last) if last is not None and last - now < WRONG_CLOCK else now


def firing(schedule: Schedule, now: datetime, *, late: float = LATE_AFTER, counted: bool = False) -> Firing | None:
    """What is due of this schedule; None if nothing is. `counted`: what it missed was bounded a moment ago."""
    next_at = schedule.next_at
    if not schedule.enabled or (next_at is not None and next_at > now):
        return None
    if next_at is None:
        return Firing(None, next_tick(schedule, _since(schedule, now)))
    found = _due(schedule, next_at, now, late, counted)
    last = schedule.last_at
    if found.tick is not None and last is not None and found.tick <= last < now + WRONG_CLOCK:
        return found._replace(tick=None)  # it has had that one: the clock was set back
    return found


def _due(schedule: Schedule, next_at: datetime, now: datetime, late: float, counted: bool) -> Firing:
    missed_until = now - timedelta(seconds=late)
    if next_at > missed_until or (counted and schedule.misfire is Misfire.ALL):
        return Firing(next_at, next_tick(schedule, next_at))
    match schedule.misfire:
        case Misfire.SKIP:
            return Firing(None, next_tick(schedule, missed_until))
        case Misfire.ONCE:
            return Firing(_latest(schedule, next_at, now), next_tick(schedule, now))
        case Misfire.ALL:
            oldest = now - timedelta(seconds=schedule.misfire_age)
            since = next_at if next_at >= oldest else next_tick(schedule, oldest - timedelta(microseconds=1))
            if since > now:
                return Firing(None, since)
            tick = _last_of(schedule, since, now, schedule.misfire_limit)
            return Firing(tick, next_tick(schedule, tick))


def _last_of(schedule: Schedule, since: datetime, until: datetime, limit: int) -> datetime:
    """The first of the last `limit` ticks from `since` to `until`; counted from the near end, and only if need be."""
    if schedule.cron is None:
        step = timedelta(seconds=schedule.every or 0)
        return since + max(0, (until - since) // step + 1 - limit) * step
    span = (limit + 1) * SHORTEST_CRON_STEP
    while until - span > since:  # else there may be as many, but no more
        near = next_tick(schedule, until - span)
        kept: deque[datetime] = deque(maxlen=limit)
        kept.extend(_ticks(schedule, near, until))
        if len(kept) == limit:
            return kept[0]
        span *= 2
    if until - since < limit * SHORTEST_CRON_STEP:
        return since
    return deque(_ticks(schedule, since, until), maxlen=limit)[0]


def _ticks(schedule: Schedule, tick: datetime, until: datetime) -> Iterator[datetime]:
    """The ticks from this one to `until`."""
    while tick <= until:
        yield tick
        tick = next_tick(schedule, tick)


def _latest(schedule: Schedule, tick: datetime, until: datetime) -> datetime:
    """The last tick no later than `until`, of which there is at least this one; found from the near end."""
    for hours in (1, 24, 32 * 24, 366 * 24, 8 * 366 * 24):
        since = until - timedelta(hours=hours)
        if since > tick and (near := next_tick(schedule, since)) <= until:
            tick = near
            break
    for later in _ticks(schedule, tick, until):
        tick = later
    return tick


def job_of(schedule: Schedule, tick: datetime, now: datetime, *, id_: str | None = None) -> Job:
    """The job of one tick; `id_` for a run between the ticks."""
    made = derived_id(f"tick\x1f{schedule.tenant}\x1f{schedule.name}\x1f{tick.isoformat()}", tick)
    key, scope = None, None
    if schedule.overlap is not Overlap.ALLOW:
        key = f"schedule:{schedule.name}"
        scope = Scope.ACTIVE if schedule.overlap is Overlap.SKIP else Scope.PENDING
    delay = schedule.jitter * int(made[-8:], 16) / 2**32
    retry, timeout = schedule.retry, schedule.timeout
    if schedule.for_each is None:
        task, version, payload = schedule.task, schedule.task_version, schedule.payload
    else:  # the one that makes them is not as short-lived as they may be
        retry, timeout = Retry._make((max(retry.max_attempts, Retry().max_attempts), *retry[1:])), None
        task, version = f"{EXPANSION}{schedule.for_each}", 1
        payload = {"tick": tick.isoformat(), "schedule": _child(schedule)}
    return Job(
        id_ or made,
        task,
        json.dumps(payload, ensure_ascii=False, separators=(",", ":")),
        created_at=now,
        due_at=tick + timedelta(seconds=delay) if id_ is None else now,
        tenant=schedule.tenant,
        queue=schedule.queue,
        lane=schedule.lane,
        task_version=version,
        priority=schedule.priority,
        retry=retry,
        timeout=timeout,
        key=key,
        key_scope=scope,
        schedule=schedule.name,
        on_end=schedule.on_end if schedule.for_each is None else None,
    )


_CHILD = ("name", "task", "payload", "queue", "lane", "priority", "task_version", "max_attempts",
          "retry_base", "retry_cap", "retry_jitter", "timeout")  # fmt: skip


def _child(schedule: Schedule) -> dict[str, object]:
    """What the jobs of the rows need to know of their schedule."""
    return {name: getattr(schedule, name) for name in _CHILD}


def payload_of_row(parent: Job, row: object) -> object:
    """What the job of a row is given: the schedule's own payload and the row's."""
    own = parent.payload["schedule"]["payload"]
    if isinstance(row, dict) and isinstance(own, dict):
        return {**own, **row}
    if own:
        raise InvalidJob("row", "it is not a dict, so the schedule's payload cannot be joined to it")
    return row


def job_of_row(parent: Job, payload_json: str, on_end: OnEnd | None, now: datetime) -> Job:
    """The job of one row; made from schedule, tick and row, so that an expansion that is repeated doubles nothing."""
    kept = parent.payload
    schedule = Schedule(created_at=now, tenant=parent.tenant, **kept["schedule"])
    name = f"row\x1f{parent.id}\x1f{schedule.tenant}\x1f{schedule.name}\x1f{kept['tick']}\x1f{payload_json}"
    id_ = derived_id(name, now.fromisoformat(kept["tick"]))
    return checked(job_of(schedule, now, now, id_=id_).evolve(payload_json=payload_json, on_end=on_end))


def check(schedule: Schedule) -> Schedule:
    """The schedule itself, if it can be kept; otherwise an error that names the field and the way out."""
    check_name("name", schedule.name)
    check_name("tenant", schedule.tenant)
    if schedule.for_each is not None:
        check_name("for_each", schedule.for_each)
    _check_timing(schedule)
    _check_misfire(schedule)
    for field, words in WORDS.items():
        if getattr(schedule, field) not in list(words):
            raise InvalidJob(field, _one_of(words, getattr(schedule, field)))
    json_text(schedule.payload, "payload")
    for made in (schedule.evolve(for_each=None), schedule):  # the job of each row, if it is for rows; and its own
        checked(job_of(made, schedule.created_at, schedule.created_at))
    return schedule


def _check_timing(schedule: Schedule) -> None:
    if (schedule.cron is None) == (schedule.every is None):
        raise InvalidTiming("schedule: give it either cron='30 2 * * *' or every='15m'")
    time_zone(schedule.timezone)
    if schedule.cron is not None:
        Cron.parse(schedule.cron)
    else:
        Every.parse(schedule.every or 0)


def _check_misfire(schedule: Schedule) -> None:
    for field in ("jitter", "misfire_age"):
        value = getattr(schedule, field)
        if not 0 <= value <= OLDEST_MISFIRE:
            raise InvalidJob(
                field, f"{value} s must be from 0 seconds to {OLDEST_MISFIRE / 86_400:g} days, such as '1h'"
            )
    limit = schedule.misfire_limit
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_MISFIRES:
        raise InvalidJob("misfire_limit", f"{limit} must be from 1 to {MOST_MISFIRES:,}")


# ------------------------------------------------------------------------------- options as fields

TIMING = ("cron", "every", "timezone")
EDITABLE = (
    "task", "payload", "cron", "every", "tz", "enabled", "queue", "lane", "priority", "retry", "max_attempts",
    "timeout", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "for_each",
)  # fmt: skip
"""The options of a schedule, beside its name and tenant."""

WORDS: Mapping[str, type[Misfire | Overlap]] = {"misfire": Misfire, "overlap": Overlap}
_NULLABLE = ("cron", "every", "for_each", "timeout", "retry_cap")
_DURATIONS = ("every", "timeout", "misfire_age", "jitter")


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as fields of a schedule; an error names the option that cannot be."""
    unknown = options.keys() - set(EDITABLE)
    if unknown:
        raise ConfigError(f"schedule: {', '.join(sorted(unknown))}: no such option; known: {', '.join(EDITABLE)}")
    fields = dict(options)
    if "tz" in options:
        fields["timezone"] = fields.pop("tz")
    if "task" in options:
        fields["task"] = name_of(options["task"])
    policy = _retry_fields(fields.pop("retry", None))
    fields |= {name: seconds(fields[name], name) for name in _DURATIONS if fields.get(name) is not None}
    fields |= {name: _word(words, fields[name], name) for name, words in WORDS.items() if name in fields}
    if not isinstance(fields.get("enabled", True), bool):
        raise InvalidJob("enabled", f"{fields['enabled']!r} must be true or false")
    return {**policy, **{name: value for name, value in fields.items() if value is not None or name in _NULLABLE}}


def _retry_fields(retry: object) -> dict[str, Any]:
    if retry is None:
        return {}
    if not isinstance(retry, Retry):
        raise InvalidJob("retry", f"{retry!r} is not a valid policy; write Retry(max_attempts=3)")
    return dict(zip(("max_attempts", "retry_base", "retry_cap", "retry_jitter"), retry, strict=True))


def _word(words: type[Misfire | Overlap], value: Any, field: str) -> Misfire | Overlap:
    try:
        return words(value)
    except ValueError:
        raise InvalidJob(field, _one_of(words, value)) from None


def _one_of(words: type[Misfire | Overlap], value: object) -> str:
    return f"{value!r} must be {', '.join(word.value for word in words)}"
