"""DynamoDB at its worst: answers are lost, partitions throttle, transactions conflict, the service is away.

One fault at a time here; `python3 dev.py faults` throws all of them at thousands of operations, and a sample of that
is the last test.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.engines.dynamodb import faulty
from tests.support.faults_dynamodb import FaultLayer, Request
from tests.support.making import LEASE, a_job, an_error, claim, current, enqueued, running, settle, start, write
from treadle.engines.dynamodb import client, connection
from treadle.engines.dynamodb.audit import event_key
from treadle.engines.dynamodb.engine import DynamoEngine
from treadle.engines.dynamodb.items import ItemKey, ended_key, id_key, unique_key
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import EventKind, Job, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded
from treadle.testing import FakeClock

SLACK = 1.5  # seconds by which a busy machine may be late
KEYED = {"key": "k", "key_scope": Scope.PENDING}


@pytest.fixture
def far(open_engine: Callable[..., DynamoEngine], far_url: str, clock: FakeClock) -> DynamoEngine:
    """An engine behind the layer, audited as treadle does by default: one part is one plain call."""
    far = open_engine(far_url, clock=clock.now)
    far.open()
    return far


@pytest.fixture
def audited(open_engine: Callable[..., DynamoEngine], far_url: str, clock: FakeClock) -> DynamoEngine:
    """An engine behind the layer that audits everything: all it writes are transactions."""
    audited = open_engine(far_url, clock=clock.now, audit_all=True)
    audited.open()
    return audited


@pytest.fixture
def impatient() -> Iterator[None]:
    with faulty.impatience():
        yield


@pytest.fixture(params=["lost", "500", "503"])
def applied_but(request: pytest.FixtureRequest, layer: FaultLayer) -> Callable[[str], object]:
    """The next call of that operation is done, but its caller hears nothing, or that it failed."""

    def order(operation: str) -> object:
        if request.param == "lost":
            return layer.lose(operation, times=1)
        return layer.fail(operation, status=int(request.param), applied=True, times=1)

    return order


def whats(engine: DynamoEngine, job: Job) -> list[EventKind]:
    return [event.kind for event in engine.events(job.id)]


def of_partition(pk: str) -> Callable[[Request], bool]:
    """Whether a request writes to this partition."""

    def touches(request: Request) -> bool:
        parts = request.body.get("TransactItems") or [{"": request.body}]
        keys = [details.get("Key") or details["Item"] for part in parts for details in part.values()]
        return any(key["PK"]["S"] == pk for key in keys)

    return touches


def wish(**fields: object) -> Claim:
    return Claim(**{"token": new_id(), "worker": "w1", "limit": 10, "lease": LEASE, **fields})


# ------------------------------------------------------------------------- applied, but not answered


@pytest.mark.parametrize("fields", [{}, KEYED], ids=["plain", "with a key"])
def test_an_enqueue_whose_answer_is_lost_stores_the_job_once(far, layer, clock, applied_but, fields):
    order = applied_but("TransactWriteItems")

    [receipt] = far.enqueue([a_job(clock.now(), **fields)])

    order.wait()
    assert receipt.created
    assert [job.id for job in far.find(JobFilter(), limit=10).jobs] == [receipt.job.id]
    assert [job.id for job in claim(far)] == [receipt.job.id]


def test_a_bulk_enqueue_whose_answers_are_lost_stores_each_job_once(far, layer, clock):
    order = layer.lose("TransactWriteItems", times=3)
    jobs = [a_job(clock.now()) for _ in range(60)]

    receipts = far.enqueue(jobs)

    order.wait()
    assert all(receipt.created for receipt in receipts)
    assert {job.id for job in claim(far, 100)} == {job.id for job in jobs}


@pytest.mark.parametrize("fields", [{}, KEYED], ids=["one write", "transaction that frees a key"])
def test_a_claim_whose_answer_is_lost_gives_the_job_once(far, engine, layer, applied_but, fields):
    job = enqueued(far, **fields)
    order = applied_but("TransactWriteItems" if fields else "UpdateItem")

    [given] = claim(far)

    order.wait()
    assert (given.id, given.attempt, given.revision) == (job.id, 1, 1)
    assert given == current(engine, job)
    assert claim(engine) == claim(far) == []
    assert settle(far, given, Succeeded("1")).ruling is Ruling.APPLIED


def test_a_settle_whose_answer_is_lost_is_written_once(audited, layer, applied_but):
    job = running(audited)
    order = applied_but("TransactWriteItems")

    verdict = settle(audited, job, Succeeded("1"))

    order.wait()
    assert verdict.ruling in (Ruling.APPLIED, Ruling.ALREADY)
    assert current(audited, job).state is State.SUCCEEDED
    assert whats(audited, job) == [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SUCCEEDED]


def test_a_requeue_in_place_whose_answer_is_lost_is_known_as_our_own(far, engine, layer, applied_but):
    job = running(far)
    order = applied_but("PutItem")  # one part, no transaction: only the token tells

    verdict = settle(far, job, Released())

    order.wait()
    assert verdict.ruling is Ruling.ALREADY
    assert (current(engine, job).state, current(engine, job).revision) == (State.PENDING, 2)
    assert [given.attempt for given in claim(engine)] == [2]
    assert claim(engine) == []


def test_a_requeue_to_another_time_whose_answer_is_lost_leaves_one_job(far, engine, clock, layer, applied_but, table):
    job = running(far)
    order = applied_but("TransactWriteItems")

    verdict = settle(far, job, Snoozed(5.0))

    order.wait()
    assert verdict.ruling in (Ruling.APPLIED, Ruling.ALREADY)
    assert len(table.due()) == 1
    clock.advance(seconds=5)
    assert [given.id for given in claim(engine)] == [job.id]


def test_a_renewal_whose_answer_is_lost_is_a_renewal(far, clock, layer, applied_but):
    job = running(far)
    clock.advance(seconds=10)
    order = applied_but("UpdateItem")

    [held] = far.extend([Lease(job.id, job.lease_token)], lease=LEASE)

    order.wait()
    assert held.renewal is Renewal.RENEWED
    assert current(far, job).lease_until == clock.now() + timedelta(seconds=LEASE)


def test_a_new_slot_whose_answer_is_lost_is_known_to_everybody(far, engine, layer, applied_but):
    order = applied_but("UpdateItem")  # the slot; the job itself is a transaction

    job = enqueued(far, queue="mail", lane="new", priority=7)

    order.wait()
    assert [given.id for given in claim(engine, queues=["mail"])] == [job.id]


def test_a_cancel_request_whose_answer_is_lost_is_made_once(far, engine, layer, clock, applied_but):
    job = running(far)
    order = applied_but("TransactWriteItems")

    verdict = write(far, lifecycle.cancel(job, clock.now(), actor="operator"))

    order.wait()
    assert verdict.ruling is Ruling.APPLIED
    assert whats(engine, job) == [EventKind.CANCEL_REQUESTED]


def test_a_replacement_in_place_whose_answer_is_lost_is_not_called_lost(far, engine, clock, layer, applied_but):
    later = clock.now() + timedelta(minutes=1)
    job = enqueued(far, due_at=later, key="k", key_scope=Scope.ACTIVE)
    order = applied_but("TransactWriteItems")
    wanted = a_job(clock.now(), due_at=later, payload_json='{"n":2}')

    verdict = write(far, lifecycle.replace(job, wanted, clock.now(), actor="producer"))

    order.wait()
    assert verdict.ruling is Ruling.APPLIED
    assert current(engine, job).payload == {"n": 2}


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(open_engine, far_url, layer, clock, monkeypatch):
    monkeypatch.setattr(connection, "READ_TIMEOUT", 0.3)
    far = open_engine(far_url, clock=clock.now)
    job = enqueued(far)
    order = layer.lose("UpdateItem", held=True, times=1)
    began = time.monotonic()

    [given] = claim(far)

    order.wait()
    assert given.id == job.id
    assert time.monotonic() - began < 0.3 + SLACK


def test_a_claim_that_was_lost_and_then_throttled_strands_nothing(far, layer, impatient):
    job = enqueued(far)
    lost = layer.lose("UpdateItem", times=1)
    layer.refuse("ThrottlingException", "UpdateItem", when=lambda _: lost.count > 0)
    the_claim = wish()

    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        far.turn([], the_claim)  # an empty answer would leave the job to its lease
    layer.calm()

    assert [given.id for given in far.turn([], the_claim).jobs] == [job.id]


def test_a_migration_whose_answer_is_lost_is_whole(layer, open_engine, far_url):
    table = f"t{new_id()}"
    far = open_engine(far_url.replace(far_url.partition("://")[2].partition("?")[0], table))
    order = layer.lose("PutItem", times=1)

    far.migrate()

    order.wait()
    assert far.check() == []
    far.client.call("DeleteTable", {"TableName": table})


# --------------------------------------------------------------------- throttled, contended, refused


def test_a_throttled_partition_makes_its_changes_busy_while_its_neighbours_apply(far, layer, clock, impatient):
    hot, cool = running(far, queue="hot"), running(far, queue="cool")
    layer.refuse("ThrottlingException", "TransactWriteItems", when=of_partition("job#hot##0#0"))
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in (hot, cool)]

    verdicts = far.turn(changes).verdicts
    layer.calm()

    assert [verdict.ruling for verdict in verdicts] == [Ruling.BUSY, Ruling.APPLIED]
    assert [current(far, job).state for job in (hot, cool)] == [State.RUNNING, State.SUCCEEDED]
    assert [verdict.ruling for verdict in far.turn(changes).verdicts] == [Ruling.APPLIED, Ruling.ALREADY]


def test_a_partition_at_its_limit_makes_its_changes_busy_until_it_has_units_again(far, layer, clock, impatient):
    early, late = ([running(far, queue="hot") for _ in range(3)] for _ in range(2))
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in late]
    layer.limit_partitions(write=1, burst=1.0)

    far.turn([lifecycle.settle(job, Succeeded("1"), clock.now()) for job in early])  # spends more than a second's worth
    verdicts = far.turn(changes).verdicts
    layer.calm()

    assert [verdict.ruling for verdict in verdicts] == [Ruling.BUSY] * 3
    assert [current(far, job).state for job in late] == [State.RUNNING] * 3
    assert [verdict.ruling for verdict in far.turn(changes).verdicts] == [Ruling.APPLIED] * 3


def test_a_throttled_partition_keeps_no_claim_from_the_others(far, layer, impatient):
    enqueued(far, queue="hot")
    cool = enqueued(far, queue="cool")
    layer.refuse("ThrottlingException", "UpdateItem", when=of_partition("job#hot##0#0"))

    jobs = claim(far, queues=["hot", "cool"])

    assert [job.id for job in jobs] == [cool.id]


def test_a_throttled_partition_keeps_no_lease_of_another_from_being_renewed(far, layer, clock, impatient):
    hot, cool = running(far, queue="hot"), running(far, queue="cool")
    layer.refuse("ThrottlingException", "UpdateItem", when=of_partition("job#hot##0#0"))

    answers = far.extend([Lease(job.id, job.lease_token) for job in (hot, cool)], lease=LEASE)

    assert [held.renewal for held in answers] == [Renewal.MISSED, Renewal.RENEWED]


def test_renewals_do_not_wait_behind_settles_that_are_throttled(far, layer, clock):
    jobs = [running(far, queue="hot") for _ in range(40)]
    cool = [running(far, queue="cool") for _ in range(2)]
    layer.refuse("ThrottlingException", "TransactWriteItems")
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in jobs]
    settling = threading.Thread(target=far.turn, args=(changes,))
    settling.start()
    time.sleep(0.2)
    began = time.monotonic()

    answers = far.extend([Lease(job.id, job.lease_token) for job in cool], lease=LEASE)

    assert time.monotonic() - began < SLACK
    assert [held.renewal for held in answers] == [Renewal.RENEWED] * 2
    layer.calm()
    settling.join()


@pytest.mark.parametrize("times", [1, 4])
def test_a_transaction_that_conflicts_is_repeated_and_applied_once(audited, layer, times):
    job = running(audited)
    layer.forget()
    layer.conflict("TransactWriteItems", times=times)

    verdict = settle(audited, job, Failed(an_error(audited.now())))

    assert verdict.ruling is Ruling.APPLIED
    assert layer.count("TransactWriteItems") == times + 1
    assert whats(audited, job) == [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.RETRYING]


@pytest.mark.parametrize(
    "code", ["ThrottlingException", "RequestLimitExceeded", "ProvisionedThroughputExceededException"]
)
def test_throttling_of_every_name_is_waited_out(far, layer, clock, code):
    orders = [layer.refuse(code, operation, times=2) for operation in ("TransactWriteItems", "UpdateItem", "Query")]

    job = running(far)

    assert settle(far, job, Succeeded("1")).ruling is Ruling.APPLIED
    assert [order.count for order in orders] == [2, 2, 2]


def test_a_bulk_enqueue_in_a_narrow_partition_comes_through_whole(far, engine, layer, clock):
    layer.limit_partitions(write=100, burst=1.0)

    receipts = [receipt for _ in range(3) for receipt in far.enqueue([a_job(clock.now()) for _ in range(60)])]

    assert layer.count(fault="throttled")
    assert {receipt.job.id for receipt in receipts} == {job.id for job in claim(engine, 200)}


# --------------------------------------------------------------------------------- away for a while


@pytest.mark.parametrize("how", ["503", "cut"])
def test_a_server_that_is_away_is_told_and_afterwards_everything_goes_on(far, layer, clock, impatient, how):
    held, waiting = running(far), enqueued(far)
    away = layer.fail(status=503) if how == "503" else layer.lose(applied=False)
    changes, the_claim = [lifecycle.settle(held, Succeeded("1"), clock.now())], wish()
    new = a_job(clock.now())
    calls: list[Callable[[], object]] = [
        lambda: far.turn(changes, the_claim),
        lambda: far.enqueue([new]),
        lambda: far.extend([Lease(held.id, held.lease_token)], lease=LEASE),
        lambda: far.expired(limit=10),
        lambda: far.get([held.id]),
    ]

    for call in calls:
        with pytest.raises(EngineUnavailable, match="repeating is safe"):
            call()
    away.stop()

    turn = far.turn(changes, the_claim)
    assert turn.verdicts[0].ruling is Ruling.APPLIED
    assert [job.id for job in turn.jobs] == [waiting.id]
    assert far.enqueue([new])[0].created


def test_a_turn_of_which_a_part_was_applied_may_be_repeated(far, layer, clock, impatient):
    first, second, waiting = running(far), running(far), enqueued(far)
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in (first, second)]
    the_claim = wish()
    layer.fail("Query")

    with pytest.raises(EngineUnavailable):
        far.turn(changes, the_claim)  # both are settled, then the claim finds nobody
    layer.calm()
    turn = far.turn(changes, the_claim)

    assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.ALREADY] * 2
    assert [job.id for job in turn.jobs] == [waiting.id]


def test_an_engine_keeps_going_when_three_calls_of_ten_fail(far, engine, layer, clock, impatient):
    faults = [layer.fail(chance=0.1), layer.lose(chance=0.1), layer.lose(applied=False, chance=0.1)]
    jobs = [a_job(clock.now(), queue=queue) for queue in ("default", "mail") for _ in range(30)]
    run: list[str] = []

    for start_at in range(0, len(jobs), 10):
        insisted(lambda some=jobs[start_at : start_at + 10]: far.enqueue(some))
    while len(run) < len(jobs):
        the_claim = wish(queues=("default", "mail"))
        given = insisted(lambda wanted=the_claim: far.turn([], wanted)).jobs
        changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in given]
        verdicts = insisted(lambda settled=changes: far.turn(settled)).verdicts
        assert {verdict.ruling for verdict in verdicts} <= {Ruling.APPLIED, Ruling.ALREADY}
        run += [job.id for job in given]
    layer.calm()

    assert sorted(run) == sorted(job.id for job in jobs)
    assert engine.count(JobFilter()) == {State.SUCCEEDED: len(jobs)}
    assert all(order.count for order in faults)


def insisted(call: Callable[[], object]) -> object:
    """As a worker does: the same call until there is an answer."""
    for _ in range(100):
        try:
            return call()
        except EngineUnavailable:
            pass
    raise AssertionError("a hundred calls, and no answer")


# --------------------------------------------------------------------------- how often, for how long


def test_no_call_is_repeated_but_by_us(far, layer, clock):
    job = enqueued(far)
    layer.forget()

    far.enqueue([job])  # known already: a condition that fails is an answer
    assert layer.count("TransactWriteItems") == 1
    far.get([job.id])
    layer.forget()
    layer.fail("UpdateItem", times=1)
    [given] = claim(far)
    assert layer.count("UpdateItem") == 2
    layer.forget()
    layer.refuse("ThrottlingException", "TransactWriteItems", times=3)
    settle(far, given, Succeeded("1"))
    assert layer.count("TransactWriteItems") == 4


def test_a_call_is_repeated_for_a_bounded_time(far, layer, clock, impatient):
    layer.refuse("ThrottlingException")
    began = time.monotonic()

    with pytest.raises(EngineUnavailable):
        far.enqueue([a_job(clock.now())])

    assert time.monotonic() - began < 0.5 + 0.1 + SLACK
    assert layer.count("TransactWriteItems") < 60


def test_repeats_come_later_and_later_and_never_in_step(far, layer, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(client.time, "sleep", slept.append)
    waits = []
    for _ in range(2):
        layer.refuse("ThrottlingException", "BatchGetItem", times=8)
        far.get([new_id()])
        waits.append(slept[:])
        slept.clear()

    first, second = waits
    assert len(first) == len(second) == 8
    assert all(one != two for one, two in zip(first, second, strict=True))
    limits = [min(0.025 * 2**n, 1.0) for n in range(8)]
    assert all(0 <= pause <= most for pause, most in zip(first, limits, strict=True))


def test_no_read_may_be_stale(far, layer, clock):
    layer.lag(60.0, indexes_only=False)
    job = running(far, **KEYED, expires_at=clock.now() + timedelta(minutes=1))
    start(far, job)
    far.expired(limit=10)
    settle(far, current(far, job), Failed(an_error(clock.now())))
    far.find(JobFilter(state=State.FAILED), limit=10)
    far.count(JobFilter())
    far.events(job.id)

    assert layer.count(fault="stale") == 0
    assert current(far, job).failures == 1


# ------------------------------------------------------------------------------------ all of them at once


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("audit_all", [True, False], ids=["audited", "plain"])
def test_many_operations_among_many_faults_break_no_promise(audit_all):
    outcome = faulty.run(200, seed=3 if audit_all else 4, audit_all=audit_all)

    assert outcome.problems == []
    assert outcome.jobs > 20
    assert sum(outcome.faults.values()) > 100


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("id", "is no job's"),
        ("due", "where nothing is"),
        ("key", "without its key"),
        ("line", "is missing"),
        ("slot", "a slot that no claim knows of"),
    ],
)
def test_the_checker_sees_what_lies_wrong_in_the_table(engine, table, clock, damage, complaint):
    job = enqueued(engine, queue="mail", key="k", key_scope=Scope.ACTIVE)
    failed = running(engine, queue="other")
    settle(engine, failed, lifecycle.Stopped("enough"))
    spread = 4
    assert list(faulty.disorder(faulty.look(engine, clock.now()), spread)) == []
    places = {
        "id": id_key(job.id, spread),
        "due": next(place for place in table.places("job#mail")),
        "key": unique_key(job.tenant, job.task, "k"),
        "line": ended_key(current(engine, failed), spread),
        "slot": ItemKey("slots", "mail##0"),
    }

    table.remove(places[damage])

    assert complaint in "\n".join(faulty.disorder(faulty.look(engine, clock.now()), spread))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [("event", "one by one"), ("job", "acknowledged and is lost"), ("verdict", "its sender was told")],
)
def test_the_checker_sees_what_the_table_and_the_answers_do_not_agree_on(make_engine, clock, table, damage, complaint):
    engine, ticking, book = make_engine(audit_all=True), faulty.Clock(), faulty.Book()
    actor = faulty.Actor("w1", engine, ticking, book, [], "1")
    job = a_job(ticking.now())
    actor.store([job])
    actor.turn([], wish())
    actor.turn([lifecycle.settle(actor.held[job.id], Succeeded("1"), ticking.now())])

    def problems() -> str:
        seen = faulty.look(engine, ticking.now())
        return "\n".join(faulty.Ledger(book, seen, audit_all=True).broken_promises())

    assert problems() == ""
    if damage == "event":
        table.remove(event_key(engine.events(job.id)[1]))
    elif damage == "job":
        table.remove(id_key(job.id, 4))
    else:
        book.sent = [sent._replace(ruling=Ruling.LOST) for sent in book.sent]

    assert complaint in problems()
