"""The forms of requests: what may be in them, and nothing else."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from treadle.app.payloads import LONGEST_TEXT
from treadle.app.queries import LARGEST_PAGE
from treadle.model import KEY_CAP

MOST_QUEUES = 100  # that a token may be bound to
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("holds a control character; remove it")
    return text


Printable = AfterValidator(_printable)
Name = Annotated[str, Field(min_length=1, max_length=200), Printable]
Key = Annotated[str, Field(min_length=1, max_length=KEY_CAP), Printable]
Words = Annotated[str, Field(max_length=2000)]
Lane = Annotated[str, Field(max_length=200), Printable]
When = Annotated[str, Field(max_length=64, description="A moment with a zone, or a duration such as 30m.")]
Span = Annotated[str, Field(max_length=64, description="A duration such as 30m.")]
Limit = Annotated[int, Field(ge=1, le=LARGEST_PAGE)]
Cursor = Annotated[str, Field(max_length=1000), Printable]


class Form(BaseModel):
    """A body or a query: what is not known is refused, and nothing is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """A query: its values arrive as text, so numbers are read from it."""

    model_config = ConfigDict(extra="forbid")


class JobQuery(Query):
    """Which jobs are listed."""

    state: Name | None = None
    task: Name | None = None
    queue: Name | None = None
    tenant: Name | None = None
    key: Key | None = None
    lane: Lane | None = None
    error: Name | None = None
    fingerprint: Name | None = None
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)] | None = None
    since: When | None = None
    before: When | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class CountQuery(Query):
    """Which jobs are counted."""

    task: Name | None = None
    queue: Name | None = None
    tenant: Name | None = None
    lane: Lane | None = None


class FailureQuery(Query):
    """Which failures are grouped."""

    task: Name | None = None
    queue: Name | None = None
    tenant: Name | None = None
    since: When | None = None
    before: When | None = None
    cursor: Cursor | None = None


class NewJob(Form):
    """A job to store. With an `id` of the caller's own, to store it twice is one job."""

    task: Name
    id: Name | None = None
    payload: JsonValue = None
    tenant: Name | None = None
    queue: Name | None = None
    lane: Annotated[str, Field(max_length=200)] | None = None
    priority: int | None = None
    key: Key | None = None
    unique: Literal["pending", "active", "window", "ever"] | None = None
    window: Span | None = None
    on_conflict: Literal["first", "raise", "replace"] | None = None
    max_attempts: int | None = None
    run_after: When | None = None
    expires_at: When | None = None
    timeout: Span | None = None


class ReasonForm(Form):
    """An act that needs no more than why."""

    reason: Words = ""


class ActForm(Form):
    """An act on one job; `revision` is that of the job as it was looked at, and must be its own still."""

    reason: Words = ""
    revision: int | None = None


class RetryForm(ActForm):
    """A retry; a `payload` takes the place of the job's own."""

    keep_attempts: bool = False
    payload: JsonValue = None


class EditForm(ActForm):
    """What a waiting job is given instead."""

    queue: Name | None = None
    lane: Annotated[str, Field(max_length=200)] | None = None
    priority: int | None = None
    run_after: When | None = None
    payload: JsonValue = None


class BulkFilter(Form):
    """Which jobs are meant by an act on many; all of what is named must fit."""

    ids: Annotated[list[Name], Field(min_length=1, max_length=LARGEST_PAGE)] | None = None
    state: Name | None = None
    task: Name | None = None
    queue: Name | None = None
    tenant: Name | None = None
    key: Key | None = None
    lane: Lane | None = None
    error: Name | None = None
    fingerprint: Name | None = None
    since: When | None = None
    before: When | None = None
    everything: bool = False


class BulkForm(Form):
    """An act on many jobs: first without `confirm`, which counts them; then with the `confirm` of that answer."""

    action: Literal["retry", "cancel", "delete"]
    filter: BulkFilter
    keep_attempts: bool = False
    reason: Words = ""
    confirm: Annotated[str, Field(max_length=200)] | None = None
    expect: Annotated[int, Field(ge=0, description="How many fit, as they were counted.")] | None = None


class ScheduleQuery(Query):
    tenant: Name | None = None
    task: Name | None = None
    name: Name | None = None
    prefix: Name | None = None
    enabled: bool | None = None
    declared: bool | None = None
    gone: bool | None = None
    last: Annotated[bool, Field(description="Also tell how the last job of each did, and who switched it off.")] = False
    limit: Limit = 50
    cursor: Cursor | None = None


class ScheduleForm(Form):
    """What a schedule can be told; what is left out comes from the task, or stays."""

    task: Name | None = None
    payload: JsonValue = None
    cron: Annotated[str, Field(max_length=200)] | None = None
    every: Span | None = None
    tz: Annotated[str, Field(max_length=100)] | None = None
    enabled: bool | None = None
    queue: Name | None = None
    lane: Annotated[str, Field(max_length=200)] | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout: Span | None = None
    misfire: Literal["skip", "once", "all"] | None = None
    misfire_limit: int | None = None
    misfire_age: Span | None = None
    overlap: Literal["allow", "skip", "queue_one"] | None = None
    jitter: Span | None = None
    for_each: Name | None = None
    reason: Words = ""

    def options(self) -> dict[str, Any]:
        """What was given, beside the reason."""
        return {
            name: value for name in self.model_fields_set - {"reason"} if (value := getattr(self, name)) is not None
        }


class NewSchedule(ScheduleForm):
    name: Name
    task: Name
    tenant: Name | None = None


class ScheduleCheck(ScheduleForm):
    """A schedule that somebody is writing, maybe to change the one of this id: what is not there yet is not wrong."""

    name: Name | None = None
    tenant: Name | None = None
    id: Name | None = None


class PauseForm(Form):
    """What is paused: at least one of them, or everything.

    `revision` is that of the pause as it was looked at, which must be there still; -1 says that there was none.
    """

    tenant: Name | None = None
    queue: Name | None = None
    task: Name | None = None
    everything: bool = False
    reason: Words = ""
    until: When | None = None
    revision: int | None = None


class AuditQuery(Query):
    """Which acts are listed; `by_hand` leaves out what workers do."""

    tenant: Name | None = None
    actor: Name | None = None
    kind: Name | None = None
    job: Name | None = None
    since: When | None = None
    until: When | None = None
    by_hand: bool = False
    limit: Limit = 100
    cursor: Cursor | None = None


class TokenForm(Form):
    """A token to make."""

    label: Name
    scopes: Annotated[list[Literal["read", "enqueue", "operate", "admin"]], Field(min_length=1)]
    tenant: Name | None = None
    queues: Annotated[list[Name], Field(min_length=1, max_length=MOST_QUEUES)] | None = None
    expires: When | None = None
