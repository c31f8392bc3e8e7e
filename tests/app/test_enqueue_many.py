"""Many jobs at once: a list is checked as a whole, an iterator is stored in chunks; receipts are made on demand."""

import asyncio
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.marks import any_store
from treadle import InvalidJob, InvalidPayload, Job, JobNotFound, KeyTaken, Receipt, State, Task, Treadle, Unique
from treadle.engines.batches import Receipts, write_halved
from treadle.model import new_id, new_ids
from treadle.tasks.task import CHUNK

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def greet(app: Treadle) -> Task[[str], None]:
    @app.task
    def greet(name: str) -> None: ...

    return greet


class Batches:
    """An engine that notes how many jobs it was given at a time, and keeps none."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def enqueue(self, jobs: Sequence[Job]) -> Sequence[Receipt]:
        self.sizes.append(len(jobs))
        return Receipts(jobs, NOON)

    def close(self) -> None: ...


@pytest.fixture
def batches(app: Treadle) -> Batches:
    batches = Batches()
    app._store.engine = batches  # type: ignore[assignment]
    return batches


def calls(count: int) -> Iterator[tuple[str]]:
    return ((f"name {n}",) for n in range(count))


# ------------------------------------------------------------------------------------------ lists and iterators


def test_a_list_goes_to_the_store_in_one_go(greet: Task[[str], None], batches: Batches) -> None:
    assert len(greet.enqueue_many(list(calls(2 * CHUNK + 1)))) == 2 * CHUNK + 1
    assert batches.sizes == [2 * CHUNK + 1]


def test_an_iterator_goes_to_the_store_in_chunks(greet: Task[[str], None], batches: Batches) -> None:
    assert len(greet.enqueue_many(calls(2 * CHUNK + 1))) == 2 * CHUNK + 1
    assert batches.sizes == [CHUNK, CHUNK, 1]


def test_an_iterator_is_read_no_further_than_the_chunk_that_is_stored(
    greet: Task[[str], None], batches: Batches
) -> None:
    ahead: list[int] = []

    def read() -> Iterator[tuple[str]]:
        for place, call in enumerate(calls(3 * CHUNK)):
            ahead.append(place - sum(batches.sizes))
            yield call

    greet.enqueue_many(read())
    assert max(ahead) < CHUNK


def test_an_iterator_of_any_length_needs_little_memory(greet: Task[[str], None], batches: Batches) -> None:
    greet.enqueue_many(calls(CHUNK))
    tracemalloc.start()
    try:
        receipts = greet.enqueue_many(calls(30 * CHUNK))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(receipts) == 30 * CHUNK
    assert kept < 30 * CHUNK * 25  # bytes: 16 a job, and room to grow
    assert peak < 5_000_000


def test_no_calls_make_no_jobs(greet: Task[[str], None], batches: Batches) -> None:
    assert greet.enqueue_many(iter(())) == []
    assert batches.sizes == []


def test_async_code_stores_an_iterator_in_chunks(greet: Task[[str], None], batches: Batches) -> None:
    receipts = asyncio.run(greet.aenqueue_many(calls(CHUNK + 1)))
    assert (len(receipts), batches.sizes) == (CHUNK + 1, [CHUNK, 1])


def test_a_bad_call_of_an_iterator_is_named_and_the_chunks_before_it_stay(
    app: Treadle, greet: Task[[str], None]
) -> None:
    def some() -> Iterator[Any]:
        yield from calls(CHUNK + 5)
        yield (7,)

    with pytest.raises(InvalidPayload, match=rf"call {CHUNK + 5}: payload: .*name"):
        greet.enqueue_many(some())
    assert app.count()[State.PENDING] == CHUNK


def test_an_error_of_the_iterator_itself_is_not_changed(app: Treadle, greet: Task[[str], None]) -> None:
    def broken() -> Iterator[tuple[str]]:
        yield from calls(CHUNK)
        raise InvalidJob("mine", "of the iterator")

    with pytest.raises(InvalidJob, match=r"^mine: of the iterator$"):
        greet.enqueue_many(broken())
    assert app.count()[State.PENDING] == CHUNK


def test_with_a_transaction_an_iterator_is_checked_as_a_whole(greet: Task[[str], None]) -> None:
    def some() -> Iterator[Any]:
        yield from calls(CHUNK + 5)
        yield (7,)

    items: list[Any] = []
    with pytest.raises(InvalidPayload, match=rf"call {CHUNK + 5}"):
        greet.using(tx=items).enqueue_many(some())
    assert items == []


# ---------------------------------------------------------------------------------------------------- receipts


@any_store
def test_the_receipts_of_an_iterator_read_their_jobs_from_the_store(app: Treadle, greet: Task[[str], None]) -> None:
    receipts = greet.enqueue_many(calls(7))
    ids = [receipt.job.id for receipt in receipts]
    assert ids == sorted(ids)
    assert receipts[-1].job.payload == {"name": "name 6"}
    assert receipts == [Receipt(app.get(id_), created=True) for id_ in ids]
    assert receipts[2:4] == list(receipts)[2:4]
    app.cancel(ids[0])
    assert receipts[0].job.state is State.CANCELLED


def test_the_receipt_of_a_job_that_is_gone_says_so(app: Treadle, greet: Task[[str], None], batches: Batches) -> None:
    receipts = greet.enqueue_many(calls(1))
    del app._store.engine
    with pytest.raises(JobNotFound):
        receipts[0]


@any_store
def test_a_taken_key_among_those_of_an_iterator_is_told_by_its_receipt(app: Treadle, greet: Task[[str], None]) -> None:
    receipts = greet.using(key="k").enqueue_many(calls(3))
    assert [receipt.created for receipt in receipts] == [True, False, False]
    assert len({receipt.job.id for receipt in receipts}) == 1


def test_a_taken_key_is_raised_when_the_whole_iterator_is_stored(app: Treadle, greet: Task[[str], None]) -> None:
    read: list[int] = []

    def some() -> Iterator[tuple[str]]:
        for place, call in enumerate(calls(CHUNK + 2)):
            read.append(place)
            yield call

    with pytest.raises(KeyTaken):
        greet.using(key="k", unique=Unique(on_conflict="raise")).enqueue_many(some())
    assert len(read) == CHUNK + 2
    assert app.count()[State.PENDING] == 1


def test_a_key_may_be_replaced_by_each_call_of_an_iterator(app: Treadle, greet: Task[[str], None]) -> None:
    greet.using(key="k", unique=Unique(on_conflict="replace")).enqueue_many(calls(3))
    [job] = app.find().jobs
    assert job.payload == {"name": "name 2"}


def test_an_id_of_another_task_is_refused_for_an_iterator_too(app: Treadle, greet: Task[[str], None]) -> None:
    @app.task
    def other() -> None: ...

    job = other.enqueue()
    with pytest.raises(InvalidJob, match="is taken by a job of task 'other'"):
        greet.using(id=job.id).enqueue_many(calls(1))


# ------------------------------------------------------------------------------------------------ lazy receipts


def jobs(count: int) -> list[Job]:
    return [Job(id_, "task", str(place), NOON, NOON) for place, id_ in enumerate(new_ids(count))]


def test_lazy_receipts_are_like_a_list_of_them() -> None:
    made = jobs(5)
    first = Receipt(made[0].evolve(id=new_id()), created=False)
    plain = [Receipt(job.stored_at(NOON), created=True) for job in made]
    plain[2] = first
    lazy = Receipts(made, NOON, {2: first})
    assert lazy == plain
    assert plain == lazy
    assert lazy == Receipts(made, NOON, {2: first})
    assert lazy != plain[:4]
    assert lazy != Receipts(made, NOON)
    assert list(lazy) == [lazy[place] for place in range(5)] == plain
    assert (lazy[-1], lazy[1:4], lazy[::-2]) == (plain[-1], plain[1:4], plain[::-2])
    assert list(reversed(lazy)) == plain[::-1]
    assert first in lazy
    assert lazy.index(first) == 2
    assert repr(lazy) == "<5 receipts>"
    assert lazy != "no list"
    with pytest.raises(IndexError):
        lazy[5]


def test_a_batch_that_is_refused_in_part_is_answered_by_a_list() -> None:
    made = jobs(3)

    def write(some: Sequence[Job]) -> Sequence[Receipt]:
        if made[1] in some:
            raise ValueError("no")
        return Receipts(some, NOON)

    answers = write_halved(
        made, write, lambda job, error: Receipt(job, created=False, refused=str(error)), (ValueError,)
    )
    assert [answer.refused for answer in answers] == ["", "no", ""]
    assert isinstance(
        write_halved(made[:1], write, lambda job, _: Receipt(job, created=False), (ValueError,)), Receipts
    )
