"""Promise 14: errors name the situation and the way out, and one bad value never takes its batch with it."""

from datetime import timedelta

import pytest

from tests.support.making import LEASE, a_job, a_policy, an_error, claim, current, enqueued, running, settle, write
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Ruling
from treadle.errors import InvalidJob
from treadle.model import (
    KEY_CAP,
    NAME_CAP,
    PAYLOAD_CAP,
    Job,
    Progress,
    Reason,
    Retry,
    Scope,
    State,
    check_json,
    checked,
    json_text,
    lifecycle,
    new_id,
)
from treadle.model.lifecycle import Failed, FailedForGood, Snoozed, Succeeded
from treadle.testing import FakeClock

HALF = "\ud800"  # half a character, which no database stores

BAD = {
    "result": lambda now: Succeeded(f'"{HALF}"'),
    "message": lambda now: Failed(an_error(now, HALF)),
    "traceback": lambda now: Failed(an_error(now)._replace(traceback=HALF)),
    "final message": lambda now: FailedForGood(Reason.PERMANENT, an_error(now, HALF)),
    "note": lambda now: lifecycle.Stopped(HALF),
}


# ------------------------------------------------------------------------------------------ in the engine


@pytest.mark.parametrize("place", [0, 29, 59])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_refused_alone_among_sixty_and_the_claim_still_works(engine, clock, bad, place):
    for _ in range(60):
        enqueued(engine)
    jobs = claim(engine, 60)
    waiting = [enqueued(engine) for _ in range(3)]
    outcomes = [Succeeded("1")] * 60
    outcomes[place] = BAD[bad](clock.now())
    changes = [lifecycle.settle(job, outcome, clock.now()) for job, outcome in zip(jobs, outcomes, strict=True)]

    turn = engine.turn(changes, Claim(token=new_id(), worker="w1", limit=2, lease=LEASE))

    wanted = [Ruling.APPLIED] * 60
    wanted[place] = Ruling.REFUSED
    assert [verdict.ruling for verdict in turn.verdicts] == wanted
    assert turn.verdicts[place].why
    assert turn.verdicts[place].holder is None
    assert current(engine, jobs[place]) == jobs[place]
    assert engine.events(jobs[place].id) == []
    assert engine.count(JobFilter(state=State.SUCCEEDED)) == {State.SUCCEEDED: 59}
    assert [job.id for job in turn.jobs] == [job.id for job in waiting[:2]]


def test_several_bad_values_are_refused_and_all_others_written(engine, clock):
    for _ in range(20):
        enqueued(engine)
    jobs = claim(engine, 20)
    changes = [
        lifecycle.settle(job, Succeeded(f'"{HALF}"') if at % 3 == 0 else Snoozed(5), clock.now())
        for at, job in enumerate(jobs)
    ]

    verdicts = engine.turn(changes).verdicts

    assert [verdict.ruling is Ruling.REFUSED for verdict in verdicts] == [at % 3 == 0 for at in range(20)]
    assert engine.count(JobFilter()) == {State.RUNNING: 7, State.PENDING: 13}


def test_a_job_whose_result_was_refused_can_be_ended_by_its_holder(engine, clock):
    job = running(engine)
    assert settle(engine, job, Succeeded(f'"{HALF}"')).ruling is Ruling.REFUSED

    verdict = settle(engine, job, FailedForGood(Reason.INVALID_RESULT, an_error(clock.now(), "the result was no text")))

    assert verdict.ruling is Ruling.APPLIED
    assert (current(engine, job).state, current(engine, job).reason) == (State.FAILED, Reason.INVALID_RESULT)


def test_a_bad_value_does_not_free_the_key_of_its_job(engine, clock):
    job = running(engine, key="k", key_scope=Scope.ACTIVE)

    settle(engine, job, Succeeded(f'"{HALF}"'))

    [rival] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)])
    assert rival.job == job


@pytest.mark.parametrize("field", ["payload_json", "task", "queue", "lane", "tenant", "key"])
@pytest.mark.parametrize("place", [0, 30, 59])
def test_a_bad_job_in_bulk_is_refused_alone(engine, clock, field, place):
    jobs = [a_job(clock.now()) for _ in range(60)]
    jobs[place] = jobs[place].evolve(key="k", key_scope=Scope.EVER).evolve(**{field: HALF})

    receipts = engine.enqueue(jobs)

    assert [receipt.created for receipt in receipts] == [at != place for at in range(60)]
    assert receipts[place].refused
    assert receipts[place].job.id == jobs[place].id
    assert [receipt.refused for receipt in receipts if receipt.created] == [""] * 59
    assert engine.get([jobs[place].id]) == [None]
    assert engine.count(JobFilter()) == {State.PENDING: 59}


def test_a_refused_job_does_not_keep_the_key(engine, clock):
    engine.enqueue([a_job(clock.now(), payload_json=f'"{HALF}"', key="k", key_scope=Scope.EVER)])

    [receipt] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.EVER)])

    assert receipt.created


def test_a_bad_note_does_not_cost_the_neighbours_their_leases(engine, clock):
    bad, *others = [running(engine) for _ in range(5)]
    clock.advance(seconds=10)
    holds = [Lease(job.id, job.lease_token) for job in others]

    held = engine.extend(
        [*holds[:2], Lease(bad.id, bad.lease_token, progress=Progress(0.5, HALF)), *holds[2:]], lease=60
    )

    assert [held[at].renewal for at in (0, 1, 3, 4)] == [Renewal.RENEWED] * 4
    assert [current(engine, job).lease_until for job in others] == [clock.now() + timedelta(seconds=60)] * 4


def test_a_job_with_a_bad_note_can_still_be_read_and_recovered(engine, clock):
    bad, other = running(engine), running(engine)

    engine.extend([Lease(bad.id, bad.lease_token, progress=Progress(0.5, HALF))], lease=LEASE)

    assert engine.get([bad.id, other.id])[1] == other
    clock.advance(seconds=LEASE)
    assert {job.id for job in engine.expired(limit=10)} == {bad.id, other.id}
    assert settle(engine, bad, Succeeded()).ruling is Ruling.APPLIED


@pytest.mark.parametrize(
    "bad",
    [
        {"priority": 2**70},
        {"timeout": float("inf")},
        {"retry": a_policy(cap=float("inf"))},
        {"task": "x" * 201},
        {"timeout": -1.0},
        {"key": "k"},
    ],
    ids=repr,
)
def test_a_number_out_of_bounds_in_bulk_does_not_cost_the_neighbours_their_jobs(engine, clock, bad):
    jobs = [a_job(clock.now()) for _ in range(5)]
    jobs[2] = jobs[2].evolve(**bad)

    receipts = engine.enqueue(jobs)

    assert [receipt.created for receipt in receipts[:2] + receipts[3:]] == [True] * 4


def test_a_cost_out_of_bounds_does_not_cost_the_neighbours_their_settle_or_their_lease(engine, clock):
    jobs = [running(engine) for _ in range(5)]
    holds = [Lease(job.id, job.lease_token, cost_micros=5) for job in jobs]
    holds[2] = holds[2]._replace(cost_micros=2**70)

    held = engine.extend(holds, lease=LEASE)
    told = [job.evolve(cost_micros=hold.cost_micros) for job, hold in zip(jobs, holds, strict=True)]
    verdicts = engine.turn([lifecycle.settle(job, Succeeded(), clock.now()) for job in told]).verdicts

    assert [held[at].renewal for at in (0, 1, 3, 4)] == [Renewal.RENEWED] * 4
    assert [verdicts[at].ruling for at in (0, 1, 3, 4)] == [Ruling.APPLIED] * 4


def test_a_nul_is_kept_or_refused_but_never_cuts_what_stands_behind_it(engine, clock):
    key, note = "a\0b", "stopped\0because"
    [keyed] = engine.enqueue([a_job(clock.now(), key=key, key_scope=Scope.EVER)])
    [other] = engine.enqueue([a_job(clock.now(), key="a\0c", key_scope=Scope.EVER)])
    job = running(engine, queue="q")
    verdict = settle(engine, job, lifecycle.Stopped(note))

    assert keyed.refused or current(engine, keyed.job).key == key
    assert other.refused or other.created
    assert verdict.ruling is Ruling.REFUSED or [event.note for event in engine.events(job.id)] == [note]


@pytest.mark.parametrize("field", ["task", "queue", "lane", "tenant", "schedule"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_nul_in_a_name_is_kept_or_refused_too_of_one_job_and_of_many(engine, clock, field, number):
    for receipt in engine.enqueue([a_job(clock.now(), **{field: "a\0b"}) for _ in range(number)]):
        assert receipt.refused or getattr(current(engine, receipt.job), field) == "a\0b"


def test_a_search_for_what_cannot_be_stored_finds_nothing(engine):
    enqueued(engine)

    for field in ("task", "queue", "tenant", "key"):
        for state in (None, State.PENDING, State.FAILED):
            where = JobFilter(state=state, **{field: HALF})
            assert engine.find(where, limit=10) == ([], None)
            assert engine.count(where) == {}
    assert engine.get([HALF]) == [None]
    assert engine.events(HALF) == []


def test_a_bad_value_that_comes_alone_is_refused_without_an_error(engine, clock):
    job = running(engine)
    [receipt] = engine.enqueue([a_job(clock.now(), payload_json=f'"{HALF}"')])

    assert write(engine, lifecycle.settle(job, Succeeded(f'"{HALF}"'), clock.now())).ruling is Ruling.REFUSED
    assert receipt.refused


# ------------------------------------------------------------------------------------- before the engine


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def cycle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "JSON compliant"),
        ({"x": [float("inf")]}, "JSON compliant"),
        (float("-inf"), "JSON compliant"),
        (b"bytes", "base64"),
        ({"x": bytearray(b"x")}, "base64"),
        (cycle(), "[Cc]ircular"),
        (object(), "plain data or a Pydantic model"),
        ("a\0b", "NUL character"),
        ({"a\0b": 1}, "NUL character"),
        (["\\\0"], "NUL character"),
        (HALF, "half a character"),
        ({HALF: 1}, "half a character"),
        ("x" * (PAYLOAD_CAP - 1), "the limit is 1,048,576"),
        ("é" * (PAYLOAD_CAP // 2), "the limit is 1,048,576"),
        (deep(100_000), "nested too deeply"),
        ({(1, 2): 3}, "cannot be JSON"),
    ],
    ids=[
        "nan", "inf inside", "-inf", "bytes", "bytearray", "cycle", "object", "nul", "nul in a key",
        "nul after a backslash",
        "surrogate", "surrogate in a key", "over the cap", "over the cap in bytes", "too deep", "tuple as key",
    ],
)  # fmt: skip
def test_what_some_engine_could_not_store_is_refused_by_name_with_the_way_out(value, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        json_text(value, "payload")

    assert caught.value.field == "payload"
    assert str(caught.value).startswith("payload: ")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "value",
    [
        "\\u0000",
        ["\\\\u0000", "\\\\\\u0000"],
        "é ☃ 𝄞 \u2028 \x7f \x01 \n",
        {"big": 10**30, "deep": deep(50), "none": None, "yes": True},
        "x" * (PAYLOAD_CAP - 2),
        "",
        None,
    ],
    ids=["the letters of an escaped nul", "more backslashes", "unicode", "plain", "at the cap", "empty", "none"],
)
def test_what_passes_is_stored_and_comes_back_the_same_everywhere(engine, clock, value):
    text = json_text(value, "payload")

    job = enqueued(engine, payload_json=text)
    held = claim(engine)[0]
    settle(engine, held, Succeeded(json_text(value, "result")))

    assert held.payload == value
    assert current(engine, job).payload == value
    assert current(engine, job).result == value
    assert check_json(text, "payload") == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"\\u0000"', "NUL character"),
        ('"\0"', "NUL character"),
        ('"a\\\\\\u0000"', "NUL character"),
        (f'"{HALF}"', "half a character"),
        ('"' + "x" * PAYLOAD_CAP + '"', "the limit is"),
    ],
    ids=["nul", "nul as it is", "nul after an escaped backslash", "surrogate", "over the cap"],
)
def test_text_made_elsewhere_is_held_to_the_same_rules(text, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        check_json(text, "result")

    assert caught.value.field == "result"


def test_the_letters_of_an_escaped_nul_are_text_like_any_other():
    assert check_json('"\\\\u0000"', "payload") == '"\\\\u0000"'
    assert check_json('"\\\\\\\\u0000"', "payload") == '"\\\\\\\\u0000"'


def test_a_cap_of_ones_own_is_kept_and_named():
    with pytest.raises(InvalidJob, match="is 12 bytes of JSON; the limit is 11"):
        json_text("x" * 10, "payload", cap=11)


NOW = FakeClock().now()
A_JOB = a_job(NOW)


@pytest.mark.parametrize("field", ["tenant", "queue", "task", "lane"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("\x7f", "control character"),
        ("x" * (NAME_CAP + 1), f"is {NAME_CAP + 1} bytes long; the limit is {NAME_CAP}"),
        ("é" * (NAME_CAP // 2 + 1), f"the limit is {NAME_CAP}"),
        (HALF, "half a character"),
        ("   ", "at least one letter"),
    ],
    ids=["newline", "nul", "delete", "too long", "too long in bytes", "surrogate", "blank"],
)
def test_a_name_some_engine_could_not_store_is_refused_with_its_field(field, name, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        checked(A_JOB.evolve(**{field: name}))

    assert caught.value.field == field


@pytest.mark.parametrize("field", ["tenant", "queue", "task"])
@pytest.mark.parametrize("name", ["", None, 7])
def test_a_name_is_text_and_not_empty(field, name):
    with pytest.raises(InvalidJob, match="is not a valid name") as caught:
        checked(A_JOB.evolve(**{field: name}))

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "named", "message"),
    [
        ({"key": "", "key_scope": Scope.EVER}, "key", "not empty"),
        ({"key": "a\tb", "key_scope": Scope.EVER}, "key", "control character"),
        ({"key": "x" * (KEY_CAP + 1), "key_scope": Scope.EVER}, "key", "shorten or hash"),
        ({"key": "k"}, "unique", "needs a scope"),
        ({"key": "k", "key_scope": Scope.WINDOW}, "unique", "needs a window"),
        ({"key": "k", "key_scope": Scope.EVER, "key_until": NOW}, "unique", "needs a window"),
        ({"priority": 2**31}, "priority", "32 bits"),
        ({"priority": -(2**31) - 1}, "priority", "32 bits"),
        ({"timeout": 0}, "timeout", "more than 0"),
        ({"timeout": -1.0}, "timeout", "more than 0"),
        ({"timeout": float("inf")}, "timeout", "None for no limit"),
        ({"timeout": float("nan")}, "timeout", "more than 0"),
        ({"retry": a_policy(max_attempts=0)}, "max_attempts", "from 1 to 10,000"),
        ({"retry": a_policy(max_attempts=10_001)}, "max_attempts", "from 1 to 10,000"),
        ({"retry": a_policy(max_attempts=2.5)}, "max_attempts", "from 1 to 10,000"),
        ({"retry": a_policy(base=-1)}, "base", "0 seconds or more"),
        ({"retry": a_policy(cap=-1)}, "cap", "0 seconds or more"),
        ({"retry": a_policy(jitter=float("nan"))}, "jitter", "0 seconds or more"),
        ({"retry": a_policy(cap=float("inf"))}, "cap", "0 seconds or more"),
        ({"id": "not a uuid"}, "id", "leave it out"),
        ({"id": new_id().upper()}, "id", "not a valid UUID"),
    ],
)
def test_a_field_out_of_bounds_is_refused_by_name_with_the_way_out(fields, named, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        checked(A_JOB.evolve(**fields))

    assert caught.value.field == named


@pytest.mark.parametrize(
    "job",
    [
        A_JOB,
        A_JOB.evolve(tenant="t" * NAME_CAP, queue="q" * NAME_CAP, task="k" * NAME_CAP, lane="l" * NAME_CAP),
        A_JOB.evolve(key="x" * KEY_CAP, key_scope=Scope.PENDING),
        A_JOB.evolve(key="k", key_scope=Scope.WINDOW, key_until=NOW),
        A_JOB.evolve(priority=2**31 - 1, timeout=0.001, retry=Retry(10_000, 0, None, 0)),
        A_JOB.evolve(priority=-(2**31), retry=Retry(1, 0, 0, 0)),
    ],
    ids=["plain", "longest names", "longest key", "window", "largest", "smallest"],
)
def test_a_job_within_the_bounds_passes_and_every_engine_takes_it(engine, job: Job):
    assert checked(job) is job

    [receipt] = engine.enqueue([job])

    assert receipt.created
    assert current(engine, job) == receipt.job
