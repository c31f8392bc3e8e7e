"""How one application speaks of jobs, and what it takes for granted of them."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from treadle.errors import ConfigError, InvalidJob
from treadle.model import FollowUp, Job, JobError, OnEnd, State
from treadle.model.records import Schedule

LABELS: Mapping[State, tuple[str, ...]] = {
    State.PENDING: ("pending", "scheduled", "retrying"),
    State.RUNNING: ("running", "claimed"),
    State.SUCCEEDED: ("succeeded",),
    State.FAILED: ("failed", "dead"),
    State.CANCELLED: ("cancelled", "expired"),
}
"""What `Job.label` may say of a job in each state; the first is the state's own word."""

Meaning = Mapping[State, tuple[str, ...]]
"""What a word stands for: stored states, and which labels of each."""

_STATE_OF = {label: state for state, labels in LABELS.items() for label in labels}
_AS_TEXT = ("payload_json", "result_json")
_SECRET = ("lease_token",)
_COMPUTED = ("label", "max_attempts", "payload", "result", "retry", "error", "progress")
OURS = (*(name for name in Job._fields if name not in (*_AS_TEXT, *_SECRET, *_COMPUTED)), *_COMPUTED)
"""Every field of a job but its fencing token, as `--json` prints them without a profile."""
DERIVED = (
    "max_retries", "retries", "retry_at", "succeeded_at", "cancelled_at", "cost_cents", "error_type", "error_text",
    "error_traceback", "error_at", "updated_at", "schedule_id",
)  # fmt: skip
"""What a profile may print beside our own fields."""
OF_A_SCHEDULE = ("id", *(name for name in Schedule._fields if name != "own_id"), "declared_in", "gone")
"""Every field of a schedule, as `--json` prints them without a profile."""


class OwnTable(NamedTuple):
    """What a profile's fields do not say of a table of jobs: its name, types, defaults and comments.

    `types` and `defaults` are SQL by column, where they are not the usual ones of the field. A column is never null if
    it has a default, or if it is the id, the task or the tenant. `words` are those of the states in the order of the
    table; if the states have a type of their own, it is an enumeration of them. `comments` are by column; "" is the
    table. `checks` are statements of PL/pgSQL about the row `new` that each insert runs. `script` is a package and a
    file of SQL in it, run after the view is there: what belonged to the table besides.
    """

    name: str
    types: Mapping[str, str] = {}
    defaults: Mapping[str, str | None] = {}
    words: tuple[str, ...] = ()
    comments: Mapping[str, str] = {}
    checks: str = ""
    script: tuple[str, str] | None = None


class Profile(NamedTuple):
    """One application's words and defaults: `Treadle(url, profile=Profile(...))`.

    `settings` are as in treadle.toml, and every other source wins over them; `task` are options of every task, and the
    task's own win. `states` goes from our labels to the application's words; a label left out has its state's word.
    `fields` goes from the application's field names, in the order they are printed, to ours (see docs/profiles.md) or
    to a mapping of such fields. `empty` is what a result or error that is not there is printed as. `schedules` are the
    fields of a schedule, as `fields` are those of a job. `table` is the table of jobs that the application had, for the
    view that takes its place.
    """

    settings: Mapping[str, Any] = {}
    task: Mapping[str, Any] = {}
    states: Mapping[str, str] = {}
    fields: Mapping[str, Any] | None = None
    empty: Any = None
    schedules: Mapping[str, str] | None = None
    table: OwnTable | None = None

    def word(self, label: str) -> str:
        """The application's word for a job of this label."""
        state = _STATE_OF[label]
        return self.states.get(label, self.states.get(state, state.value))

    def words_of(self, state: State) -> dict[str, tuple[str, ...]]:
        """The words for jobs in this state, each with the labels that it is said of."""
        words: dict[str, tuple[str, ...]] = {}
        for label in LABELS[state]:
            words[self.word(label)] = (*words.get(self.word(label), ()), label)
        return words

    def words(self) -> list[str]:
        """Every word a job's state is printed as."""
        return list(dict.fromkeys(self.word(label) for label in _STATE_OF))

    def meaning(self, word: State | str) -> Meaning:
        """The labels that are printed as this word, by state; a State is itself. Both spellings of cancel are taken."""
        if isinstance(word, State):
            return {word: LABELS[word]}
        labels = [label for label in _STATE_OF if _spelt(self.word(label)) == _spelt(word)]
        if not self.states and word in _STATE_OF:
            labels = labels or [word]  # what lists print of a job, they can be asked for
        if not labels:
            raise InvalidJob(
                "state", f"{word!r} must be one of {', '.join(self.words())}{_resembling(word, self.words())}"
            )
        return {
            state: tuple(label for label in labels if _STATE_OF[label] is state)
            for state in dict.fromkeys(_STATE_OF[label] for label in labels)
        }

    def prints(self, field: str) -> bool:
        """Whether one of its fields is this one of ours."""
        return field in _sources(self.fields or {})

    def view(self, job: Job, now: datetime, schedule_id: str | None = None) -> dict[str, Any]:
        """The job under the application's names; plain data, times are ISO 8601 in UTC."""
        facts = {**_facts(job, now), "state": self.word(job.label(now)), "schedule_id": schedule_id}
        for name in ("result", "error"):
            facts[name] = self.empty if facts[name] is None else facts[name]
        if self.fields is None:
            return {name: facts[name] for name in OURS}
        return self._printed(self.fields, facts)

    def _printed(self, fields: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: (self._part(source, facts) if isinstance(source, Mapping) else facts[source])
            for name, source in fields.items()
        }

    def _part(self, fields: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
        part = self._printed(fields, facts)
        return self.empty if all(value is None for value in part.values()) else part


def check_profile(profile: Profile) -> Profile:
    """The profile itself, if it names only labels and fields that there are; settings and options are checked later."""
    for label in profile.states:
        if label not in _STATE_OF:
            raise ConfigError(f"profile: states: {label!r} is not a label{_meant(label, list(_STATE_OF))}")
    for source in _sources(profile.fields or {}):
        if source not in (*OURS, *DERIVED):
            raise ConfigError(f"profile: fields: {source!r} is not a field{_meant(source, [*OURS, *DERIVED])}")
    for source in (profile.schedules or {}).values():
        if source not in OF_A_SCHEDULE:
            raise ConfigError(
                f"profile: schedules: {source!r} is not a field of a schedule{_meant(source, [*OF_A_SCHEDULE])}"
            )
    return profile


def _sources(fields: Mapping[str, Any]) -> Iterator[Any]:
    for source in fields.values():
        if isinstance(source, Mapping):
            yield from _sources(source)
        else:
            yield source


def _meant(name: object, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a name that is wrong

    near = get_close_matches(str(name), known, 1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _resembling(word: object, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a word that is wrong

    near = get_close_matches(str(word)[:100].lower(), known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _spelt(word: str) -> str:
    return str(word).replace("cancelled", "canceled")


def _facts(job: Job, now: datetime) -> dict[str, Any]:
    """Everything that may be printed of a job, by our names."""
    error, progress = job.error, job.progress
    facts = {
        **job._asdict(),
        "label": job.label(now),
        "max_attempts": job.max_attempts,
        "payload": job.payload,
        "result": job.result,
        "retry": job.retry._asdict(),
        "error": error and error._asdict(),
        "progress": progress and progress._asdict(),
        "on_end": job.on_end and _on_end(job.on_end),
        **_derived(job),
        **_of_error(error),
    }
    return {name: _plain(value) for name, value in facts.items()}


def _derived(job: Job) -> dict[str, Any]:
    retries = job.max_attempts - 1
    waits = job.state is State.PENDING and job.failures > 0
    return {
        "max_retries": retries,
        "retries": min(job.failures, retries),
        "retry_at": job.due_at if waits else None,
        "succeeded_at": job.finished_at if job.state is State.SUCCEEDED else None,
        "cancelled_at": job.finished_at if job.state is State.CANCELLED else None,
        "cost_cents": -(-job.cost_micros // 10_000),
        "updated_at": max(moment for moment in _moments(job) if moment is not None),
    }


def _of_error(error: JobError | None) -> dict[str, Any]:
    if error is None:
        return dict.fromkeys(("error_type", "error_text", "error_traceback", "error_at"))
    return {
        "error_type": error.type,
        "error_text": error.message,
        "error_traceback": error.traceback or error.message,
        "error_at": error.at,
    }


def _on_end(on_end: OnEnd) -> dict[str, Any]:
    return {name: follow and _follow_up(follow) for name, follow in on_end._asdict().items()}


def _follow_up(follow: FollowUp) -> dict[str, Any]:
    on_end = follow.on_end and _on_end(follow.on_end)
    return {**follow._asdict(), "retry": follow.retry._asdict(), "on_end": on_end}


def _moments(job: Job) -> Iterator[datetime | None]:
    """When something happened to a job, as far as it tells."""
    yield from (job.created_at, job.claimed_at, job.started_at, job.finished_at)
    if job.error is not None and job.error.at:
        yield datetime.fromisoformat(job.error.at)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
