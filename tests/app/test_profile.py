"""A profile says an application's words for ours, and is refused where it names what there is not."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.making import a_job, an_error
from treadle import ConfigError, InvalidJob, Job, Profile, Reason, Retry, State, Treadle
from treadle.app.profile import DERIVED, LABELS, OURS
from treadle.model import Progress

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUE = Profile(states={"pending": "queued", "retrying": "again", "cancelled": "canceled", "expired": "dropped"})


def job(**fields: object) -> Job:
    return a_job(NOW, **fields)


EVERY_LABEL = {
    "pending": job(),
    "scheduled": job(due_at=NOW + timedelta(hours=1)),
    "retrying": job(failures=1),
    "claimed": job(state=State.RUNNING),
    "running": job(state=State.RUNNING, started_at=NOW),
    "succeeded": job(state=State.SUCCEEDED),
    "failed": job(state=State.FAILED, reason=Reason.PERMANENT),
    "dead": job(state=State.FAILED, reason=Reason.EXHAUSTED),
    "cancelled": job(state=State.CANCELLED, reason=Reason.BY_REQUEST),
    "expired": job(state=State.CANCELLED, reason=Reason.EXPIRED),
}


# --------------------------------------------------------------------------------------------------- words


def test_every_label_a_job_can_have_is_known_under_its_state():
    labels = {label: example.label(NOW) for label, example in EVERY_LABEL.items()}
    assert labels == {label: label for label in EVERY_LABEL}
    known = {label: state for state, labels in LABELS.items() for label in labels}
    assert known == {label: example.state for label, example in EVERY_LABEL.items()}


def test_a_label_without_a_word_has_the_word_of_its_state_and_that_without_one_is_ours():
    said = {label: QUEUE.word(label) for label in EVERY_LABEL}
    assert said == {
        "pending": "queued", "scheduled": "queued", "retrying": "again", "claimed": "running", "running": "running",
        "succeeded": "succeeded", "failed": "failed", "dead": "failed", "cancelled": "canceled", "expired": "dropped",
    }  # fmt: skip
    assert QUEUE.words() == ["queued", "again", "running", "succeeded", "failed", "canceled", "dropped"]
    assert Profile().words() == list(State)


@pytest.mark.parametrize("word", ["canceled", "cancelled"])
@pytest.mark.parametrize("profile", [Profile(), QUEUE])
def test_both_spellings_of_cancel_are_understood(profile: Profile, word: str):
    assert list(profile.meaning(word)) == [State.CANCELLED]


def test_a_word_means_the_labels_that_are_printed_as_it():
    assert QUEUE.meaning("queued") == {State.PENDING: ("pending", "scheduled")}
    assert QUEUE.meaning("again") == {State.PENDING: ("retrying",)}
    both = Profile(states={"failed": "over", "cancelled": "over"})
    assert both.meaning("over") == {State.FAILED: ("failed", "dead"), State.CANCELLED: ("cancelled", "expired")}


def test_a_state_of_ours_means_itself_whatever_the_profile_calls_by_that_name():
    upside_down = Profile(states={"retrying": "failed", "failed": "dead_letter"})
    assert upside_down.meaning(State.FAILED) == {State.FAILED: ("failed", "dead")}
    assert upside_down.meaning("failed") == {State.PENDING: ("retrying",)}


@pytest.mark.parametrize("word", ["pending", "odd", "", 7])
def test_a_word_that_nothing_is_printed_as_is_refused_with_those_there_are(word: str):
    with pytest.raises(InvalidJob, match=r"state.*must be one of queued, again, running"):
        QUEUE.meaning(word)


# -------------------------------------------------------------------------------------------------- fields


def test_without_fields_a_job_is_printed_under_our_names_but_for_its_token():
    printed = Profile().view(job(lease_token="secret", progress=Progress(0.5, "half")), NOW)
    assert list(printed) == list(OURS)
    assert set(Job._fields) - set(printed) == {"payload_json", "result_json", "lease_token"}
    assert (printed["state"], printed["label"], printed["created_at"]) == ("pending", "pending", NOW.isoformat())
    assert (printed["payload"], printed["retry"]["base"], printed["progress"]["note"]) == ({}, 5.0, "half")


def test_fields_are_printed_in_their_order_under_their_names_with_the_word_for_the_state():
    profile = QUEUE._replace(fields={"status": "state", "type": "task", "who": {"worker": "worker", "q": "queue"}})
    printed = profile.view(job(worker="w1"), NOW)
    assert list(printed.items()) == [("status", "queued"), ("type", "greet"), ("who", {"worker": "w1", "q": "default"})]


def derived(example: Job) -> dict:
    return Profile(fields={name: name for name in DERIVED}).view(example, NOW)


@pytest.mark.parametrize(
    ("micros", "cents"), [(0, 0), (1, 1), (10_000, 1), (10_001, 2), (2**62 + 1, 2**62 // 10_000 + 1)]
)
def test_cost_is_whole_cents_rounded_up(micros: int, cents: int):
    assert derived(job(cost_micros=micros))["cost_cents"] == cents


def test_retries_are_the_attempts_after_the_first_and_no_more_are_counted_than_there_were():
    spent = [derived(job(failures=failures, retry=Retry(max_attempts=4))) for failures in range(5)]
    assert [line["retries"] for line in spent] == [0, 1, 2, 3, 3]
    assert {line["max_retries"] for line in spent} == {3}


def test_the_time_of_a_retry_or_a_cancel_is_there_when_there_is_one():
    assert [label for label, example in EVERY_LABEL.items() if derived(example)["retry_at"]] == ["retrying"]
    ended = {label: derived(example.evolve(finished_at=NOW))["cancelled_at"] for label, example in EVERY_LABEL.items()}
    assert [label for label, at in ended.items() if at] == ["cancelled", "expired"]


def test_an_error_can_be_printed_in_parts():
    printed = derived(job(error=an_error(NOW)))
    assert [printed[f"error_{part}"] for part in ("type", "text", "traceback", "at")] == [
        "RuntimeError", "boom", "Traceback: boom", NOW.isoformat(),
    ]  # fmt: skip
    crashed = derived(job(error=an_error(NOW)._replace(traceback="")))
    assert crashed["error_traceback"] == "boom"  # what there is to say


def test_a_result_or_error_that_is_not_there_is_printed_as_empty_and_one_that_is_as_it_is():
    fields = {"result": "result", "error": "error", "part": {"message": "error_text"}, "text": "error_text"}
    profile = Profile(fields=fields, empty={})
    assert profile.view(job(), NOW) == {"result": {}, "error": {}, "part": {}, "text": None}
    there = profile.view(job(result_json="0", error=an_error(NOW)), NOW)
    assert (there["result"], there["part"], there["error"]["attempt"]) == (0, {"message": "boom"}, 1)
    assert Profile().view(job(), NOW)["result"] is None


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (Profile(states={"pendign": "queued"}), r"states: 'pendign' is not a label, did you mean 'pending'\?"),
        (Profile(states={"xyzzy": "queued"}), r"'xyzzy' is not a label; known: pending, scheduled"),
        (Profile(fields={"x": "due"}), r"fields: 'due' is not a field, did you mean 'due_at'\?"),
        (Profile(fields={"x": {"y": "lease_token"}}), r"'lease_token' is not a field"),
        (Profile(fields={"x": 7}), r"7 is not a field"),
    ],
)
def test_a_profile_that_names_what_there_is_not_is_refused_when_the_app_is_made(profile: Profile, said: str):
    with pytest.raises(ConfigError, match=said):
        Treadle(profile=profile)
