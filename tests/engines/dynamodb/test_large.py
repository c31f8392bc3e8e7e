"""What is too large for an item lies beside it in pieces, and nobody can tell: not its reader, not its renewal."""

import json
import threading
from datetime import timedelta

import pytest

from tests.support.making import (
    a_job,
    an_error,
    claim,
    claimed,
    crashed,
    current,
    ended,
    enqueued,
    running,
    settle,
    write,
)
from treadle.engines.dynamodb.pieces import MAX_INLINE, PIECE_SIZE
from treadle.engines.values import JobFilter, Lease, Renewal, Retention, Ruling
from treadle.model import PAYLOAD_CAP, JobError, Scope, State, lifecycle
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded
from treadle.model.retry import Retry

SIZES = [MAX_INLINE, MAX_INLINE + 1, 5_000, PIECE_SIZE, PIECE_SIZE + 1, 400_000, 400 * 1024, PAYLOAD_CAP]
HALF_MIB = 512 * 1024


def text(size: int, letter: str = "x") -> str:
    """JSON of so many bytes."""
    return json.dumps(letter * (size - 2))


def an_error_of(size: int) -> JobError:
    return JobError("RuntimeError", "boom", "t" * size, 1, "2026-01-01T12:00:00+00:00")


def pieces(table):
    return table.places("large#")


@pytest.mark.parametrize("size", SIZES)
def test_a_payload_of_any_size_comes_back_equal_everywhere(engine, table, clock, size):
    payload = text(size)
    assert len(payload) == size
    job = enqueued(engine, payload_json=payload)
    assert current(engine, job).payload_json == payload
    assert engine.find(JobFilter(), limit=1).jobs[0].payload_json == payload
    assert engine.find(JobFilter(state=State.PENDING), limit=1).jobs[0].payload_json == payload
    got = claimed(engine, job)
    assert got.payload_json == payload
    clock.advance(seconds=30)
    assert engine.expired(limit=1)[0].payload_json == payload
    assert len(pieces(table)) == (0 if size <= MAX_INLINE else -(-size // PIECE_SIZE))


@pytest.mark.parametrize("size", SIZES)
def test_a_result_of_any_size_comes_back_equal(engine, table, clock, size):
    job = running(engine)
    assert settle(engine, job, Succeeded(text(size))).ruling is Ruling.APPLIED
    done = current(engine, job)
    assert (done.state, done.result_json) == (State.SUCCEEDED, text(size))
    assert engine.find(JobFilter(state=State.SUCCEEDED), limit=1).jobs == [done]


@pytest.mark.parametrize("size", [4_000, 5_000, 400 * 1024, PAYLOAD_CAP])
@pytest.mark.parametrize("attempts", [1, 5], ids=["for good", "with a retry"])
def test_an_error_of_any_size_comes_back_equal(engine, clock, size, attempts):
    error = an_error_of(size)
    job = running(engine, retry=Retry(max_attempts=attempts))
    assert settle(engine, job, Failed(error)).ruling is Ruling.APPLIED
    assert current(engine, job).error == error
    if attempts == 1:
        assert engine.find(JobFilter(state=State.FAILED), limit=1).jobs[0].error == error


def test_a_character_is_not_broken_where_a_piece_ends(engine, clock):
    """Each has four bytes, so whatever the piece's size, one of these texts has one across its end."""
    for shift in range(4):
        payload = json.dumps("x" * shift + "🙂" * 200_000, ensure_ascii=False)
        job = enqueued(engine, payload_json=payload)
        assert current(engine, job).payload_json == payload


def test_payload_result_and_error_are_large_at_once_and_not_mixed_up(engine, clock):
    job = running(engine, payload_json=text(HALF_MIB, "p"), retry=Retry(max_attempts=3, base=0, jitter=0))
    settle(engine, job, Failed(an_error_of(300_000)))
    job = claimed(engine, job)
    assert (job.payload_json, job.error) == (text(HALF_MIB, "p"), an_error_of(300_000))
    settle(engine, job, Succeeded(text(HALF_MIB, "r")))
    done = current(engine, job)
    assert (done.payload_json, done.result_json, done.error) == (text(HALF_MIB, "p"), text(HALF_MIB, "r"), None)


@pytest.mark.parametrize("how", ["failure", "snooze", "release", "crash", "operator retry"])
def test_a_large_payload_follows_its_job(engine, clock, how):
    payload = text(HALF_MIB)
    job = running(engine, payload_json=payload, retry=Retry(max_attempts=1 if how == "operator retry" else 5))
    if how == "crash":
        crashed(engine, clock, job)
    elif how == "operator retry":
        settle(engine, job, Failed(an_error(clock.now())))
        engine.turn([lifecycle.retry(current(engine, job), clock.now(), actor="ada")])
    else:
        outcome = {"failure": Failed(an_error(clock.now())), "snooze": Snoozed(60.0), "release": Released()}[how]
        settle(engine, job, outcome)
    clock.advance(minutes=10)
    [again] = claim(engine)
    assert (again.id, again.payload_json) == (job.id, payload)


# ---------------------------------------------------------------------------------------------------- replaced

REPLACED = [(10, HALF_MIB), (HALF_MIB, 10), (PAYLOAD_CAP, 5_000), (5_000, PAYLOAD_CAP), (HALF_MIB, HALF_MIB)]


@pytest.mark.parametrize(("old", "new"), REPLACED)
def test_a_replaced_payload_is_the_new_one_whole(engine, clock, old, new):
    job = enqueued(engine, payload_json=text(old, "o"), key="ada", key_scope=Scope.ACTIVE)
    asked = a_job(clock.now(), payload_json=text(new, "n"))
    [verdict] = engine.turn([lifecycle.replace(job, asked, clock.now(), actor="ada")]).verdicts
    assert verdict.ruling is Ruling.APPLIED
    assert current(engine, job).payload_json == text(new, "n")
    assert claimed(engine, job).payload_json == text(new, "n")


@pytest.mark.parametrize(("old", "new"), REPLACED)
def test_of_a_replaced_payload_no_piece_outlives_its_job(engine, table, clock, old, new):
    job = enqueued(engine, payload_json=text(old, "o"), key="ada", key_scope=Scope.ACTIVE)
    asked = a_job(clock.now(), payload_json=text(new, "n"))
    engine.turn([lifecycle.replace(job, asked, clock.now(), actor="ada")])
    settle(engine, claimed(engine, job), Succeeded("1"))
    assert engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10, now=clock.now() + timedelta(days=1)) == 1
    assert pieces(table) == []


# ------------------------------------------------------------------------------------------------------ pruned


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_pieces_go_with_their_job(engine, table, clock, state):
    job = ended(engine, state, payload_json=text(PAYLOAD_CAP))
    kept = enqueued(engine, payload_json=text(5_000))
    assert len(pieces(table)) == 4
    clock.advance(days=2)
    assert engine.prune(Retention({state: timedelta(days=1)}), limit=10) == 1
    assert engine.get([job.id]) == [None]
    assert [place.pk for place in pieces(table)] == [f"large#{kept.id}"]
    assert current(engine, kept).payload_json == text(5_000)


def test_a_reader_never_sees_parts_of_two_payloads(engine, clock):
    texts = [text(3 * PIECE_SIZE, letter) for letter in "ab"]
    job = enqueued(engine, payload_json=texts[0], key="k", key_scope=Scope.PENDING)
    done = threading.Event()

    def replace() -> None:
        for number in range(20):
            now = current(engine, job)
            write(engine, lifecycle.replace(now, now.evolve(payload_json=texts[number % 2]), clock.now(), actor="x"))
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(current(engine, job).payload_json)
    writer.join()

    assert seen <= set(texts)


def test_a_job_that_ends_while_its_pieces_are_read_is_found_where_it_is_now(engine, clock, monkeypatch):
    """Its error went when it succeeded, and its item is no longer where it was when the reader began."""
    job = running(engine, retry=Retry(max_attempts=3, base=0, jitter=0))
    settle(engine, job, Failed(an_error_of(5_000)))
    again = claimed(engine, job)
    send, ends = engine.client.send, [again]

    def end_meanwhile(operation, data):
        if operation == "BatchGetItem" and b"large#" in (data if isinstance(data, bytes) else data.encode()) and ends:
            settle(engine, ends.pop(), Succeeded("1"))
        return send(operation, data)

    monkeypatch.setattr(engine.client, "send", end_meanwhile)
    [found] = engine.get([job.id])
    assert ends == []
    assert found.state is State.SUCCEEDED


def test_errors_of_many_attempts_leave_the_pieces_of_the_last_one_only(engine, table, clock):
    job = running(engine, retry=Retry(max_attempts=3, base=0, jitter=0))
    for size in (PAYLOAD_CAP, 400_000, 5_000):
        settle(engine, job, Failed(an_error_of(size)))
        job = current(engine, job) if size == 5_000 else claimed(engine, job)
    assert (job.state, job.error) == (State.FAILED, an_error_of(5_000))
    clock.advance(days=2)
    assert engine.prune(Retention({State.FAILED: timedelta(days=1)}), limit=10) == 1
    assert pieces(table) == []


# ------------------------------------------------------------------------------------------------ what it costs


def test_a_renewal_does_not_pay_for_the_payload(meter, clock):
    """It comes every ten seconds, for hours: were the payload in its item, each would cost 300 units."""
    job = running(meter.engine, payload_json=text(300_000))
    units = meter.of(lambda: meter.engine.extend([Lease(job.id, job.lease_token)], lease=30.0))
    assert units.writes == 1
    assert current(meter.engine, job).payload_json == text(300_000)


def test_a_claim_does_not_write_the_payload_nor_does_a_success(meter, clock):
    job = enqueued(meter.engine, payload_json=text(300_000))
    with meter:
        settle(meter.engine, claimed(meter.engine, job), Succeeded("1"))
    assert meter.last.writes == 5


def test_a_failure_writes_its_error_and_not_the_payload(meter, clock):
    job = running(meter.engine, payload_json=text(300_000))
    units = meter.of(lambda: settle(meter.engine, job, Failed(an_error_of(30_000))))
    assert 8 + 2 * 30 <= units.writes <= 8 + 2 * 31


# ------------------------------------------------------------------------------------------------------ in bulk


def test_many_large_jobs_are_stored_at_once(engine, clock):
    """One transaction takes 4 MB: these are 9."""
    jobs = [a_job(clock.now(), payload_json=text(300_000, letter)) for letter in "abcdefghijklmnopqrstuvwxyz1234"]
    receipts = engine.enqueue(jobs)
    assert all(receipt.created for receipt in receipts)
    assert [job.payload_json for job in engine.get([job.id for job in jobs])] == [job.payload_json for job in jobs]


def test_no_transaction_is_larger_than_the_service_takes(engine, clock, monkeypatch):
    """4 MB. What is larger is sent for nothing, and over 16 MB the answer does not even say why."""
    sizes = []
    send = engine.client.send

    def weigh(operation, data):
        if operation == "TransactWriteItems":
            sizes.append(sum(_weight(part) for part in json.loads(data)["TransactItems"]))
        return send(operation, data)

    monkeypatch.setattr(engine.client, "send", weigh)
    engine.enqueue([a_job(clock.now(), payload_json=text(size)) for size in [PAYLOAD_CAP] * 6 + [300_000] * 24])
    assert sum(sizes) > 12_000_000
    assert max(sizes) <= 4 * 1024 * 1024


def _weight(part):
    [details] = part.values()
    values = details.get("Item", {}).values()
    return sum(len(value.get("B", "")) * 3 // 4 + len(value.get("S", "")) for value in values)


def test_a_claim_of_more_than_one_answer_can_hold_has_every_payload(engine, clock):
    """A BatchGetItem answers with 16 MB at most: these are 18."""
    jobs = [a_job(clock.now(), payload_json=text(300_000, chr(97 + n % 26))) for n in range(60)]
    engine.enqueue(jobs)
    got = claim(engine, 60)
    assert [job.payload_json for job in got] == [job.payload_json for job in jobs]


def test_one_refused_value_leaves_its_large_neighbours_alone(engine, table, clock):
    jobs = [a_job(clock.now(), payload_json=text(300_000)) for _ in range(4)]
    jobs[2] = jobs[2].evolve(payload_json='"\\u0000"')
    receipts = engine.enqueue(jobs)
    assert [receipt.created for receipt in receipts] == [True, True, False, True]
    assert len(pieces(table)) == 3


def test_a_renewal_says_nothing_of_the_payload_and_leaves_it(engine, clock):
    job = running(engine, payload_json=text(PAYLOAD_CAP))
    held = engine.extend([Lease(job.id, job.lease_token, started_at=clock.now())], lease=30.0)
    assert [one.renewal for one in held] == [Renewal.RENEWED]
    assert current(engine, job).payload_json == text(PAYLOAD_CAP)
