"""The words of treadle as values: ids, labels, states, and text made storable."""

import multiprocessing
import time
import uuid
import warnings
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.making import a_job, an_error, race
from treadle.errors import InvalidJob
from treadle.model import EventKind, Job, Reason, Scope, State, checked, clean, json_text, new_id, new_ids
from treadle.model import job as job_module
from treadle.model.checks import trace_from
from treadle.model.retry import Retry
from treadle.testing import FakeClock

NOW = FakeClock().now()
LATER = NOW + timedelta(seconds=1)


# --------------------------------------------------------------------------------------------------- ids


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front():
    before = time.time_ns() // 1_000_000

    id = uuid.UUID(new_id())

    assert id.version == 7
    assert id.variant == uuid.RFC_4122
    assert before <= id.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_every_id_of_many_carries_version_and_variant_and_is_written_in_small_letters():
    for _ in range(2_000):
        id = new_id()
        assert (id[14], id[19] in "89ab") == ("7", True)
        assert str(uuid.UUID(id)) == id


def test_a_hundred_thousand_ids_are_unique_and_rising():
    ids = [new_id() for _ in range(100_000)]

    assert all(one < two for one, two in pairwise(ids))


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_ids_that_are_made_together_rise_among_themselves_and_beside_others(count):
    before, ids, after = new_id(), new_ids(count), new_id()
    every = [before, *ids, after]
    assert every == sorted(set(every))
    assert len(ids) == count
    assert all((id_[14], id_[19] in "89ab", str(uuid.UUID(id_))) == ("7", True, id_) for id_ in ids)


def test_ids_of_many_threads_are_unique_and_rising_in_each():
    batches = race(8, lambda _: [new_id() for _ in range(2_500)])

    assert len({id for batch in batches for id in batch}) == 20_000
    assert all(batch == sorted(batch) for batch in batches)


def test_a_child_forked_while_another_thread_makes_an_id_makes_its_own():
    child = multiprocessing.get_context("fork").Process(target=new_id)
    with job_module._id_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
        child.start()
        child.join(10)
        child.kill()
    child.join()

    assert child.exitcode == 0


def test_ids_go_on_rising_when_the_clock_is_set_back(monkeypatch):
    first = new_id()
    monkeypatch.setattr(job_module, "time", FrozenTime(time.time_ns() - 3_600 * 10**9))

    ids = [new_id() for _ in range(5_000)]

    assert [first, *ids] == sorted({first, *ids})


def test_ids_of_a_clock_that_stands_still_are_unique_and_rising(monkeypatch):
    monkeypatch.setattr(job_module, "time", FrozenTime(time.time_ns() + 10**9))
    monkeypatch.setattr(job_module, "_last_stamp", 0)

    ids = [new_id() for _ in range(10_000)]

    assert ids == sorted(set(ids))


def test_ids_of_two_processes_with_the_same_clock_differ(monkeypatch):
    monkeypatch.setattr(job_module, "time", FrozenTime(10**18))
    seen = set()
    for _ in range(1_000):  # each a process of its own, started at the same instant
        monkeypatch.setattr(job_module, "_last_stamp", 0)
        seen.add(new_id())

    assert len(seen) == 1_000


class FrozenTime:
    def __init__(self, nanoseconds):
        self._nanoseconds = nanoseconds

    def time_ns(self):
        return self._nanoseconds


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "pending"),
        ({"due_at": LATER}, "scheduled"),
        ({"due_at": LATER, "failures": 1}, "retrying"),
        ({"failures": 1}, "retrying"),
        ({"state": State.RUNNING}, "claimed"),
        ({"state": State.RUNNING, "failures": 1}, "claimed"),
        ({"state": State.RUNNING, "started_at": NOW}, "running"),
        ({"state": State.SUCCEEDED}, "succeeded"),
        ({"state": State.CANCELLED, "reason": Reason.BY_REQUEST}, "cancelled"),
        ({"state": State.CANCELLED, "reason": Reason.SUPERSEDED}, "cancelled"),
        ({"state": State.CANCELLED, "reason": Reason.EXPIRED}, "expired"),
        ({"state": State.FAILED, "reason": Reason.EXHAUSTED}, "dead"),
        ({"state": State.FAILED, "reason": Reason.TIMEOUT}, "dead"),
        ({"state": State.FAILED, "reason": Reason.CRASHED}, "dead"),
        ({"state": State.FAILED, "reason": Reason.PERMANENT}, "failed"),
        ({"state": State.FAILED, "reason": Reason.UNKNOWN_TASK}, "failed"),
    ],
    ids=lambda given: given if isinstance(given, str) else ",".join(given),
)
def test_a_job_is_labelled_as_people_read_it(fields, label):
    assert a_job(NOW, **fields).label(NOW) == label


def test_a_scheduled_job_is_pending_from_its_due_time_on():
    job = a_job(NOW, due_at=LATER)

    assert [job.label(NOW), job.label(LATER)] == ["scheduled", "pending"]


# ------------------------------------------------------------------------------------------------ values


def test_three_states_are_final():
    assert {state for state in State if state.final} == {State.SUCCEEDED, State.FAILED, State.CANCELLED}


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (Scope.PENDING, {State.PENDING}),
        (Scope.ACTIVE, {State.PENDING, State.RUNNING}),
        (Scope.WINDOW, set(State)),
        (Scope.EVER, set(State)),
    ],
)
def test_a_scope_covers_the_states_in_which_a_job_holds_its_key(scope, covered):
    assert {state for state in State if scope.covers(state)} == covered


def test_failures_and_acts_of_operators_are_noteworthy_and_routine_is_not():
    assert {what for what in EventKind if not what.noteworthy} == {
        EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SUCCEEDED, EventKind.SNOOZED, EventKind.RELEASED,
        EventKind.REPLACED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "suspect"),
    [
        ({}, False),
        ({"failures": 3}, False),
        ({"crashes": 1}, True),
        ({"retry": Retry(max_attempts=1)}, True),
        ({"retry": Retry(max_attempts=2)}, False),
    ],
)
def test_a_suspect_has_crashed_before_or_has_one_attempt_only(fields, suspect):
    assert a_job(NOW, **fields).suspect is suspect


def test_a_job_is_evolved_and_never_changed():
    job = a_job(NOW)

    other = job.evolve(priority=5)

    assert (job.priority, other.priority) == (0, 5)
    assert other.evolve(priority=0) == job
    with pytest.raises(AttributeError):
        job.priority = 7
    with pytest.raises(KeyError, match="unknown"):
        job.evolve(unknown=1)


def test_payload_and_result_are_read_from_their_json():
    job = a_job(NOW, payload_json='{"to":"ann"}')

    assert job.payload == {"to": "ann"}
    assert job.result is None
    assert job.evolve(result_json="[1,null]").result == [1, None]
    assert job.evolve(retry=Retry(max_attempts=7)).max_attempts == 7


def test_a_job_starts_with_nothing_spent():
    job = Job(id=new_id(), task="t", payload_json="{}", created_at=NOW, due_at=NOW)

    assert (job.state, job.tenant, job.queue, job.lane, job.priority) == (State.PENDING, "default", "default", "", 0)
    assert (job.attempt, job.failures, job.crashes, job.revision, job.cost_micros) == (0, 0, 0, 0, 0)


# -------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain ☃", "plain ☃"),
        ("", ""),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("half \ud800 a character", "half \\ud800 a character"),
        ("line\nline", "line\nline"),
    ],
)
def test_text_for_people_is_made_storable(text, cleaned):
    assert clean(text, 100) == cleaned


def test_long_text_keeps_its_beginning_or_if_asked_its_end():
    assert clean("abcdefgh", 3) == "abc [cut]"
    assert clean("abcdefgh", 3, keep_end=True) == "[cut] fgh"
    assert clean("abc", 3) == clean("abc", 3, keep_end=True) == "abc"


@given(st.text(st.characters(exclude_categories=[])), st.integers(1, 20), st.booleans())
def test_cleaned_text_can_be_stored_by_every_engine(text, cap, keep_end):
    cleaned = clean(text, cap, keep_end=keep_end)

    cleaned.encode()
    assert "\0" not in cleaned
    assert len(cleaned) <= cap + len(" [cut]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json_that_is_accepted_reads_back_as_it_was(value):
    if "\0" in flat(value):  # the only thing that is JSON and yet refused
        with pytest.raises(InvalidJob, match="NUL"):
            json_text(value, "payload")
        return

    text = json_text(value, "payload")

    assert a_job(NOW, payload_json=text).payload == value
    assert text.encode().decode() == text


def flat(value):
    """All the text in a value."""
    if isinstance(value, dict):
        return "".join(flat(key) + flat(inner) for key, inner in value.items())
    if isinstance(value, list):
        return "".join(map(flat, value))
    return value if isinstance(value, str) else ""


def test_an_error_is_a_value_with_its_attempt_and_time():
    assert an_error(NOW, "boom", attempt=3)._asdict() == {
        "type": "RuntimeError", "message": "boom", "traceback": "Traceback: boom", "attempt": 3, "at": NOW.isoformat(),
    }  # fmt: skip


def test_what_another_program_stored_that_is_no_json_is_shown_as_text():
    job = a_job(FakeClock().now(), payload_json="not json", result_json="{")

    assert (job.payload, job.result) == ("not json", "{")


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({}, 0),
        ({"failures": 1, "attempt": 1, "started_at": NOW}, 1),
        ({"attempt": 3, "started_at": NOW}, 0),  # snoozed three times
        ({"state": State.RUNNING, "attempt": 1}, 1),
        ({"state": State.SUCCEEDED, "attempt": 1, "started_at": NOW}, 1),
        ({"state": State.SUCCEEDED, "attempt": 4, "failures": 1, "started_at": NOW}, 2),
        ({"state": State.FAILED, "reason": Reason.EXHAUSTED, "attempt": 5, "failures": 5, "started_at": NOW}, 5),
        ({"state": State.FAILED, "reason": Reason.PERMANENT, "attempt": 1, "started_at": NOW}, 1),
        ({"state": State.FAILED, "reason": Reason.UNKNOWN_TASK, "attempt": 1}, 0),
        ({"state": State.CANCELLED, "reason": Reason.BY_REQUEST}, 0),
        ({"state": State.CANCELLED, "reason": Reason.BY_REQUEST, "attempt": 1, "started_at": NOW}, 1),
        ({"state": State.CANCELLED, "attempt": 1, "failures": 1, "started_at": NOW}, 1),
    ],
)
def test_the_attempts_that_a_job_has_made_are_counted_as_people_do(fields: dict, made: int) -> None:
    assert Job(new_id(), "t", "{}", NOW, NOW).evolve(**fields).attempts_made == made


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("trace", [TRACE, f"{TRACE} vendor=a b,other=2", TRACE.replace("00-", "01-")])
def test_a_trace_is_a_traceparent_with_a_tracestate_or_without(trace: str) -> None:
    assert checked(a_job(NOW, trace=trace)).trace == trace


@pytest.mark.parametrize(
    "trace",
    [
        "", "trace", TRACE.upper(), TRACE[:-1], f"{TRACE}-01", f"ff{TRACE[2:]}", f"{TRACE} é=1", f"{TRACE}\nvendor=1",
        f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        f"{TRACE} {'x' * 600}", 7,
    ],
)  # fmt: skip
def test_what_is_not_a_trace_is_refused_by_name(trace: object) -> None:
    with pytest.raises(InvalidJob, match=r"^trace: "):
        checked(a_job(NOW, trace=trace))


def test_of_a_callers_headers_what_is_broken_is_left_out() -> None:
    assert trace_from(TRACE, "vendor=1") == f"{TRACE} vendor=1"
    assert trace_from(TRACE) == trace_from(TRACE, "é") == trace_from(TRACE, "x" * 600) == TRACE
    assert trace_from(None) is trace_from(None, "vendor=1") is trace_from("00-1-1-01", "vendor=1") is None
