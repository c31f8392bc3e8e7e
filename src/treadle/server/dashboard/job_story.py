"""What the page of a job says of it: why it does not run, what to do, what can be done, and what cannot."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from treadle.server.dashboard.holding import holding
from treadle.server.dashboard.words import Row, moment, sentence

MOST_ATTEMPTS, MOST_EVENTS = 25, 60
LONGEST_ERROR = 2_000


class JobAct(NamedTuple):
    """An act: its name in addresses, its button, and why it cannot be done now."""

    name: str
    label: str
    icon: str
    command: Sequence[str]
    why_not: str = ""
    note: str = ""  # the first act that cannot be done for the same reason


class Way(NamedTuple):
    """A way out: what it is, and the command."""

    text: str
    command: Sequence[str]


class Why(NamedTuple):
    """The sentence that the page opens with. `tone`: the class for the colour of its rule."""

    title: str
    tone: str
    quote: str
    sentences: Sequence[str]
    ways: Sequence[Way]


def before(attempts: Sequence[Row], shown: int) -> int:
    """How many attempts came before the last so many: their numbers tell, though the earliest were not read."""
    rest = len(attempts) - shown
    first = attempts[max(0, rest)]["number"] if attempts else None
    return max(0, rest) if first is None else int(first) - 1


def acts(job: Row, at: str, no_payload: str) -> list[JobAct]:
    """All acts on a job, in the order of their buttons."""
    id_, state = job["id"], job["state"]
    ended = state in ("failed", "cancelled", "succeeded")
    edit = ["jobs", "edit", id_, "--payload", "-"] if state == "pending" else ["jobs", "retry", id_, "--payload", "-"]
    made = [
        JobAct("retry", "Retry", "s-retrying", ["jobs", "retry", id_], _no_retry(state)),
        JobAct(
            "edit",
            "Edit" if state == "pending" else "Edit and retry",
            "",
            [*edit, "--revision", str(job["revision"])],
            _no_edit(state, no_payload),
        ),
        JobAct("run-now", "Run now", "", ["jobs", "run-now", id_], _no_run_now(job, at)),
        JobAct("cancel", "Cancel", "", ["jobs", "cancel", id_], _no_cancel(job, ended)),
        JobAct(
            "delete", "Delete", "", ["jobs", "delete", id_], "" if state != "running" else "it runs: cancel it first"
        ),
    ]
    first = {one.why_not: one.name for one in reversed(made)}
    return [one._replace(note=first[one.why_not]) for one in made]


def refusals(acts: Sequence[JobAct]) -> list[tuple[str, str]]:
    """What cannot be done now, and why, each reason once; by the name of its first act."""
    found: dict[str, list[JobAct]] = {}
    for one in acts:
        if one.why_not:
            found.setdefault(one.note, []).append(one)
    return [
        (note, f"{', '.join([some[0].label, *(one.label.lower() for one in some[1:])])}: {some[0].why_not}.")
        for note, some in found.items()
    ]


def _no_retry(state: str) -> str:
    words = {"pending": "it waits to be run", "running": "it runs", "succeeded": "it has succeeded; enqueue a new one"}
    return words.get(state, "")


def _no_edit(state: str, no_payload: str) -> str:
    if state == "pending":
        return ""
    return {"running": "it runs", "succeeded": "it has succeeded; enqueue a new one"}.get(state, no_payload)


def _no_run_now(job: Row, at: str) -> str:
    if job["state"] != "pending":
        return "it runs already" if job["state"] == "running" else "it has ended"
    due, now = moment(job["due_at"]), moment(at)
    return "" if due and now and due > now else "it is due already"


def _no_cancel(job: Row, ended: bool) -> str:
    if ended:
        return "it has ended: there is nothing to cancel"
    return "it was asked to stop already" if job["cancel_requested"] else ""


# ------------------------------------------------------------------------------------------------ why


def why(job: Row, obstacles: Sequence[Mapping[str, str]], pauses: Sequence[Row], events: Sequence[Row]) -> Why:
    """Why it does not run, or what became of it; and what to do."""
    sentences = [sentence(one["text"]) for one in obstacles]
    ways = [way for one in obstacles for way in _ways(one["kind"], job, pauses)]
    state, error = job["state"], job["error"]
    quote = "" if error is None else f"{error['type']}: {error['message']}"[:LONGEST_ERROR]
    if state == "failed":
        return Why("What went wrong", "", quote, [*sentences, *_for_good(job)], [_again(job)])
    if state == "running":
        return Why("Where it runs", "on", "", sentences, ways)
    if state != "pending":
        return Why("How it ended", "calm", "", [*sentences, *_by_whom(job, events)], [])
    kinds = {one["kind"] for one in obstacles}
    tone = "calm" if kinds <= {"due", "next", "busy"} and error is None else "held"
    return Why("Why is it not running?", tone, quote, sentences, ways)


def _for_good(job: Row) -> list[str]:
    """Why it is not tried again by itself."""
    most = job["max_attempts"]
    spent = f"All of its {most} attempts are spent." if most > 1 else "It had one attempt."
    words = {
        "permanent": "It is not tried again by itself: its handler gave up, or such an error is final for its task.",
        "invalid_payload": "Its payload does not fit its task.",
        "unknown_task": "No worker that took it knew its task.",
        "exhausted": spent,
        "timeout": spent,
        "crashed": spent,
    }
    return [words[job["reason"]]] if job["reason"] in words else []


def _again(job: Row) -> Way:
    retry = ["jobs", "retry", job["id"]]
    if job["reason"] == "invalid_payload":
        return Way("Edit it, and retry.", [*retry, "--payload", "-"])
    return Way("Retry it once the cause is gone: it gets a fresh budget of attempts.", retry)


def _ways(kind: str, job: Row, pauses: Sequence[Row]) -> list[Way]:
    """What to do about an obstacle."""
    worker = ["worker"] if job["queue"] == "default" else ["worker", "--queue", job["queue"]]
    ways = {
        "due": Way("Run now lets it begin earlier.", ["jobs", "run-now", job["id"]]),
        "no_worker": Way("Start a worker that serves its queue.", worker),
        "no_queue": Way("Start a worker that serves its queue.", worker),
        "busy": Way("Wait for a slot, or start another worker.", worker),
        "unknown_task": Way("Deploy the code with this task to a worker of its queue; these are alive:", ["workers"]),
        "budget": Way("It goes on when the budget is raised, or the day is over.", ["pauses"]),
        "superseded": Way("Retry it when the other job has ended.", ["jobs", "retry", job["id"]]),
    }
    if kind == "paused":
        return [_resume(pause) for pause in holding(pauses, job) if pause["actor"]]
    return [ways[kind]] if kind in ways else []


def _resume(pause: Row) -> Way:
    scope = [part for field in ("tenant", "queue", "task") if pause[field] for part in (f"--{field}", pause[field])]
    return Way(f"Resume {pause['scope']} when its reason is gone.", ["resume", *(scope or ["--all"])])


def _by_whom(job: Row, events: Sequence[Row]) -> list[str]:
    """Who cancelled it, and why."""
    if job["state"] != "cancelled":
        return []
    last = next((one for one in reversed(events) if one["kind"] in ("cancelled", "cancel_requested")), None)
    if last is None:
        return []
    return [f"{last['actor']} cancelled it{': ' if last['note'] else ''}{last['note']}."]
