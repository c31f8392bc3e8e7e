"""The gate, raced for real: by the machine's clock, in threads with engines of their own, with requests held back."""

import threading
import time
from datetime import UTC, datetime
from itertools import cycle
from types import SimpleNamespace

import pytest

from tests.support.dynamo_servers import shared_dynamodb
from tests.support.making import LEASE, a_job, claim, current, enqueued, settle
from treadle.engines.dynamodb import gate
from treadle.engines.dynamodb.engine import DynamoEngine
from treadle.engines.dynamodb.items import GATE, ItemKey, Slot
from treadle.engines.values import OVERWRITE, Claim, JobFilter
from treadle.model import State, new_id
from treadle.model.lifecycle import Released, Succeeded
from treadle.model.records import Pause

LONGEST = 0.5  # seconds that a request takes here; the service may take longer
SCOPES = {
    "everything": {},
    "a queue": {"queue": "default"},
    "a task": {"task": "greet"},
    "a tenant": {"tenant": "default"},
    "a task of a tenant": {"tenant": "default", "task": "greet"},
}
every_scope = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)


@pytest.fixture
def _quick(monkeypatch):
    """A first pause that waits for requests as long as this server takes."""
    monkeypatch.setattr(gate, "MAX_REQUEST_TIME", LONGEST)


@pytest.fixture
def real(open_engine, store_url):
    """Opens engines that go by the machine's clock, as workers' do."""

    def opened():
        engine = open_engine(store_url)
        engine.open()
        return engine

    return opened


def paused(engine, **scope):
    pause = Pause(**scope, actor="ann", at=engine.now())
    assert engine.save(pause, before=None).done
    return pause


def armed(engine):
    """A table that had a pause once; by an engine under a clock for tests, which does not wait."""
    assert engine.drop(paused(engine, tenant="nobody"))


def stocked(engine, number, **fields):
    engine.enqueue([a_job(datetime.now(UTC), **fields) for _ in range(number)])


def running(engine, queue="default"):
    return {job.id for job in engine.find(JobFilter(state=State.RUNNING, queue=queue), limit=10_000).jobs}


class HeldCalls:
    """Keeps an engine's calls of one kind back until they are let go."""

    def __init__(self, engine, operation, when=lambda body: True):
        self.waiting, self._go = threading.Event(), threading.Event()
        self._call = engine.client.call

        def call(name, body, **how):
            if name == operation and when(body):
                self.waiting.set()
                assert self._go.wait(30)
            return self._call(name, body, **how)

        engine.client.call = call

    def let_go(self):
        self._go.set()


class ClaimThread:
    """A thread that claims once; `got` waits for what it was given."""

    def __init__(self, engine, limit=5):
        self._jobs = None
        self._thread = threading.Thread(target=self._claim, args=(engine, limit))
        self._thread.start()

    def _claim(self, engine, limit):
        self._jobs = claim(engine, limit)

    def got(self):
        self._thread.join(30)
        return self._jobs


class Crowd:
    """Threads that claim on and on, each with an engine and a lane of its own, until the end of the block."""

    def __init__(self, engines, queue="default", limit=3):
        self.queue, self._limit = queue, limit
        self.rounds = [0] * len(engines)
        self._over, self._errors = False, []
        self._threads = [
            threading.Thread(target=self._run, args=(place, engine)) for place, engine in enumerate(engines)
        ]

    def _run(self, place, engine):
        try:
            while not self._over:
                claim(engine, self._limit, queues=[self.queue], lanes=[str(place)])
                self.rounds[place] += 1
        except BaseException as error:
            self._errors.append(error)

    def go_on(self, rounds):
        """Wait until each of them has claimed so many times more."""
        wanted, deadline = [done + rounds for done in self.rounds], time.monotonic() + 60
        while not self._errors and any(done < goal for done, goal in zip(self.rounds, wanted, strict=True)):
            assert time.monotonic() < deadline, "the claimers hang"
            time.sleep(0.001)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for thread in self._threads:
            thread.join(60)
        assert self._errors == []


def nothing_is_claimed_after(operator, crowd, scope):
    """Pause in the middle of it; what runs then is all that ever runs."""
    with crowd:
        crowd.go_on(1)
        pause = paused(operator, **scope)
        before = running(operator, crowd.queue)
        crowd.go_on(3)
    assert running(operator, crowd.queue) == before
    assert operator.count(JobFilter(state=State.PENDING, queue=crowd.queue))  # or there was nothing left, and no race
    assert operator.drop(pause)


def slowly(engine, delays):
    """The engine, with a network that takes its time from the look to the write."""
    call = engine.client.call

    def late(name, body, **how):
        if name in ("UpdateItem", "TransactWriteItems"):
            time.sleep(next(delays))
        return call(name, body, **how)

    engine.client.call = late
    return engine


# ------------------------------------------------------------------------------------------------------ a race


@pytest.mark.slow
def test_nothing_is_claimed_once_a_pause_is_saved(real, engine):
    armed(engine)
    operator, delays = real(), cycle((0.0, 0.03, 0.01, 0.05))  # so that some claims are always on their way
    engines = [slowly(real(), delays) for _ in range(3)]
    for number in range(20):
        queue = f"q{number}"
        for lane in "012":
            stocked(operator, 40, queue=queue, lane=lane)
        scope = list(SCOPES.values())[number % len(SCOPES)]
        named = {**scope, "queue": queue} if "queue" in scope else scope
        nothing_is_claimed_after(operator, Crowd(engines, queue), named)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("scope", list(SCOPES.values())[1:4], ids=list(SCOPES)[1:4])
def test_nothing_is_claimed_once_the_first_pause_of_a_table_is_saved(real, scope):
    """It takes up to a second from the look to the write, so some claims are always on their way."""
    operator, delays = real(), cycle((0.9, 0.0, 0.4, 0.7, 0.2))
    for lane in "012":
        stocked(operator, 40, lane=lane)
    nothing_is_claimed_after(operator, Crowd([slowly(real(), delays) for _ in range(3)], limit=1), scope)


# -------------------------------------------------------------------------------------------- one after the other


@every_scope
def test_a_claim_that_has_looked_before_the_pause_and_writes_after_it_gets_nothing(real, engine, scope):
    armed(engine)
    operator, slow = real(), real()
    stocked(operator, 5)
    held = HeldCalls(slow, "TransactWriteItems", lambda body: "ConditionCheck" in body["TransactItems"][0])
    claimer = ClaimThread(slow)
    assert held.waiting.wait(10)
    paused(operator, **scope)
    held.let_go()
    assert claimer.got() == []
    assert running(operator) == set()


def test_a_claim_that_a_pause_of_others_has_overtaken_looks_again_and_goes_on(real, engine):
    armed(engine)
    operator, slow = real(), real()
    stocked(operator, 5)
    held = HeldCalls(slow, "TransactWriteItems", lambda body: "ConditionCheck" in body["TransactItems"][0])
    claimer = ClaimThread(slow)
    assert held.waiting.wait(10)
    paused(operator, tenant="another")
    held.let_go()
    assert len(claimer.got()) == 5


@pytest.mark.usefixtures("_quick")
def test_a_claim_that_froze_before_the_first_pause_and_woke_after_it_puts_back_what_it_took(real, monkeypatch):
    monkeypatch.setattr(gate, "GATE_LIFETIME", 0.1)
    operator, frozen = real(), real()
    job, free = enqueued(operator, tenant="acme"), enqueued(operator)
    held = HeldCalls(frozen, "UpdateItem", lambda body: body["Key"]["PK"]["S"] == "job")
    claimer = ClaimThread(frozen)
    assert held.waiting.wait(10)
    paused(operator, tenant="acme")
    held.let_go()
    assert [got.id for got in claimer.got()] == [free.id]
    left = current(operator, job)
    assert (left.state, left.worker, left.lease_until, left.started_at) == (State.PENDING, None, None, None)
    assert (left.attempt, left.failures, left.crashes, left.due_at) == (1, 0, 0, job.due_at)
    assert claim(operator) == []


def test_a_claim_whose_look_is_too_old_minds_the_gate_although_there_is_none(real, layer, far_url, open_engine):
    """Without that, a store that answers slowly would be claimed from by nobody, or by everybody."""
    engine = open_engine(far_url)
    stocked(engine, 3)
    looked = engine._claimer._pause_gate.seen
    old = float("-inf")
    engine._claimer._pause_gate.seen = lambda now: looked(now)._replace(at=old)
    engine._claimer._pause_gate.read = lambda now: looked(now)._replace(at=old)
    layer.forget()
    assert len(claim(engine)) == 3
    assert layer.count("TransactWriteItems") == 3
    assert layer.count("UpdateItem") == 0


# -------------------------------------------------------------------------------------------- the first of a table


class Naps:
    """The module `time`, whose sleep is only noted."""

    def __init__(self):
        self.slept = []
        self.time = SimpleNamespace(monotonic=time.monotonic, sleep=self.slept.append)


@pytest.fixture
def naps(monkeypatch):
    naps = Naps()
    monkeypatch.setattr(gate, "time", naps.time)
    return naps


def test_only_the_first_pause_of_a_table_waits(real, naps):
    first, second = real(), real()
    pause = paused(first)
    assert naps.slept == [gate.GATE_LIFETIME + gate.MAX_REQUEST_TIME]
    first.drop(pause)
    paused(first)
    paused(second, tenant="acme")
    assert len(naps.slept) == 1


def test_who_comes_while_the_first_is_still_waiting_waits_too(real, naps, monkeypatch):
    first, second = real(), real()

    def killed(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(naps.time, "sleep", killed)
        paused(first)
    paused(second, tenant="acme")
    paused(second, tenant="zeta")
    assert naps.slept == [gate.GATE_LIFETIME + gate.MAX_REQUEST_TIME]


def test_in_a_table_that_was_made_with_a_gate_nobody_waits(store_url, table, naps):
    engine = DynamoEngine(f"{table.name}-gated", region="us-east-1", endpoint=shared_dynamodb(), gate=True)
    assert engine.migrate() == ["0001_table"]
    assert engine.migrate() == []
    job = enqueued(engine)
    assert [got.id for got in claim(engine)] == [job.id]
    paused(engine)
    enqueued(engine)
    assert claim(engine) == []
    assert naps.slept == []
    engine.client.call("DeleteTable", {"TableName": engine.client.table})
    engine.close()


def test_under_a_clock_for_tests_nobody_waits(engine, naps):
    paused(engine)
    assert naps.slept == []


def test_under_a_clock_for_tests_the_first_pause_waits_for_the_claims_of_its_process(make_engine, clock):
    operator, slow = make_engine(), make_engine()
    job = enqueued(operator)
    held = HeldCalls(slow, "UpdateItem", lambda body: body["Key"]["PK"]["S"] == "job")
    claimer = ClaimThread(slow)
    assert held.waiting.wait(10)
    pausing = threading.Thread(target=paused, args=(operator,))
    pausing.start()
    pausing.join(0.3)
    assert pausing.is_alive()
    held.let_go()
    pausing.join(10)
    assert [got.id for got in claimer.got()] == [job.id]


def test_a_table_without_a_pause_has_no_gate(engine, table, clock):
    settle(engine, claim_of_one(engine), Succeeded("1"))
    assert [place for place in table.places() if place == GATE or place.pk.startswith("gate#")] == []
    armed(engine)
    copies = [ItemKey(f"gate#{number}", "gate") for number in range(gate.GATE_COPIES)]
    assert table.places("gate#") == copies
    assert table.item(*GATE)["version"] == {"N": "2"}
    assert {table.item(*copy)["version"]["N"] for copy in copies} == {"1"}  # a resume stops nobody


def claim_of_one(engine):
    enqueued(engine)
    [job] = claim(engine, 1)
    return job


# ------------------------------------------------------------------------------------------- claims of several


@pytest.fixture
def guarded(open_engine, far_url, clock):
    """An engine behind the layer, on a table that had a pause."""
    engine = open_engine(far_url, clock=clock.now)
    armed(engine)
    return engine


def test_jobs_are_claimed_ten_in_a_transaction(guarded, layer, clock):
    guarded.enqueue([a_job(clock.now()) for _ in range(25)])
    layer.forget()
    assert len(claim(guarded, 25)) == 25
    assert layer.count("TransactWriteItems") == 3


def test_claims_look_at_every_copy_by_and_by(guarded, clock):
    looked = set()
    call = guarded.client.call

    def watched(operation, body, **how):
        for part in body.get("TransactItems", ()):
            looked.update([part["ConditionCheck"]["Key"]["PK"]["S"]] if "ConditionCheck" in part else [])
        return call(operation, body, **how)

    guarded.client.call = watched
    for _ in range(100):
        claim_of_one(guarded)
    assert looked == {f"gate#{number}" for number in range(gate.GATE_COPIES)}


def test_a_job_that_another_was_quicker_to_take_does_not_cost_the_others(guarded, engine, clock):
    jobs = [receipt.job for receipt in guarded.enqueue([a_job(clock.now()) for _ in range(10)])]
    held = HeldCalls(guarded, "TransactWriteItems", lambda body: "ConditionCheck" in body["TransactItems"][0])
    claimer = ClaimThread(guarded, 10)
    assert held.waiting.wait(10)
    quicker = claim(engine, 3)
    held.let_go()
    assert {job.id for job in claimer.got()} == {job.id for job in jobs} - {job.id for job in quicker}


def test_a_copy_that_is_busy_is_left_for_another(guarded, layer, clock):
    guarded.enqueue([a_job(clock.now()) for _ in range(10)])
    layer.conflict("TransactWriteItems", at=0, times=5)
    assert len(claim(guarded, 10)) == 10
    assert layer.count("TransactWriteItems") >= 6


def test_a_job_that_is_busy_is_left_and_the_others_are_claimed(guarded, layer, clock):
    guarded.enqueue([a_job(clock.now()) for _ in range(10)])
    layer.conflict("TransactWriteItems", at=4, times=1)
    assert len(claim(guarded, 10)) == 9
    assert len(claim(guarded, 10)) == 1


def test_a_claim_whose_answer_was_lost_is_given_again(guarded, layer, clock):
    guarded.enqueue([a_job(clock.now()) for _ in range(10)])
    layer.lose("TransactWriteItems", times=1)
    wish = Claim(token=new_id(), worker="w1", limit=10, lease=LEASE)
    got = guarded.turn([], wish).jobs
    assert len(got) == 10
    assert guarded.turn([], wish).jobs == got


def test_a_pause_is_saved_although_every_copy_is_busy_now_and_then(guarded, layer, clock):
    enqueued(guarded)
    layer.conflict("UpdateItem", chance=0.5)
    paused(guarded)
    layer.calm()
    assert claim(guarded) == []


def test_two_who_pause_at_once_are_both_obeyed(guarded, engine, clock):
    job = enqueued(engine, tenant="acme")
    held = HeldCalls(guarded, "TransactWriteItems")
    saving = threading.Thread(target=paused, args=(guarded,), kwargs={"tenant": "acme"})
    saving.start()
    assert held.waiting.wait(10)
    other = paused(engine, task="greet")
    held.let_go()
    saving.join(30)
    assert claim(engine) == []
    engine.drop(other)
    assert claim(engine) == []
    engine.drop(Pause(tenant="acme"))
    assert [got.id for got in claim(engine)] == [job.id]


# ----------------------------------------------------------------------------------------------------- parked

BY_TENANT = Slot("default", "", 0, task="greet", version=1, tenant="acme")
BY_TASK = Slot("default", "", 0, task="greet", version=1)
CROWD = 60


def slots(table):
    return [place.sk for place in table.places("slots") if place != GATE]


@pytest.mark.parametrize(("scope", "slot"), [({"tenant": "acme"}, BY_TENANT), ({"task": "greet"}, BY_TASK)])
def test_a_slot_of_parked_jobs_goes_when_it_is_empty(engine, table, clock, scope, slot):
    engine.enqueue([a_job(clock.now(), tenant="acme") for _ in range(CROWD)])
    pause = paused(engine, **scope)
    assert claim(engine) == []
    assert slots(table) == ["default##0", slot.name]
    assert len(table.items(slot.partition(0))) == CROWD
    engine.drop(pause)
    jobs = claim(engine, CROWD)
    assert len(jobs) == CROWD
    assert claim(engine) == []
    assert slot.name in slots(table)  # what runs there may come back
    settle(engine, jobs[0], Released())
    for job in (*jobs[1:], *claim(engine)):
        settle(engine, job, Succeeded("1"))
    assert claim(engine) == []
    assert slots(table) == ["default##0"]


def test_a_slot_in_which_jobs_were_put_since_it_was_seen_empty_stays(make_engine, table, clock):
    engine, other = make_engine(), make_engine()
    engine.enqueue([a_job(clock.now(), tenant="acme") for _ in range(CROWD)])
    pause = paused(engine, tenant="acme")
    claim(engine)
    engine.drop(pause)
    for job in claim(engine, CROWD):
        settle(engine, job, Succeeded("1"))
    discard = engine._ranges.discard

    def late(*seen):
        paused(other, tenant="acme")
        other.enqueue([a_job(clock.now(), tenant="acme") for _ in range(CROWD)])
        assert claim(other) == []
        discard(*seen)

    engine._ranges.discard = late
    assert claim(engine) == []
    assert BY_TENANT.name in slots(table)
    other.drop(Pause(tenant="acme"))
    assert len(claim(engine, 2 * CROWD)) == CROWD


def test_jobs_parked_by_a_process_of_more_shards_are_found_by_one_of_fewer(open_engine, store_url, clock):
    wide, narrow = (open_engine(f"{store_url}&shards={shards}", clock=clock.now) for shards in (4, 1))
    for engine in (wide, narrow):
        engine.enqueue([a_job(clock.now(), tenant="acme") for _ in range(CROWD)])
    pause = paused(wide, tenant="acme")
    assert claim(wide) == claim(narrow) == []
    narrow.drop(pause)
    assert len(claim(narrow, 3 * CROWD)) == 2 * CROWD


def test_a_few_paused_jobs_are_stepped_over_where_they_are(engine, table, clock):
    engine.enqueue([a_job(clock.now(), tenant="acme") for _ in range(20)])
    free = enqueued(engine)
    paused(engine, tenant="acme")
    assert [job.id for job in claim(engine)] == [free.id]
    assert slots(table) == ["default##0"]


def test_lanes_that_share_a_slot_share_it_where_they_are_parked(engine, table, clock):
    lanes = [f"lane {number}" for number in range(100)]
    engine.enqueue([a_job(clock.now(), lane=lane, tenant="acme") for lane in lanes])
    pause = paused(engine, tenant="acme")
    assert claim(engine) == []
    assert len(slots(table)) <= 2 * (48 + 16)
    engine.drop(pause)
    assert {job.lane for job in claim(engine, 200, lanes=lanes[90:])} == set(lanes[90:])
    assert len(claim(engine, 200)) == 90


def test_a_paused_queue_is_not_read_at_all(guarded, layer, clock):
    guarded.enqueue([a_job(clock.now()) for _ in range(100)])
    guarded.save(Pause(queue="default"), before=OVERWRITE)
    claim(guarded)
    layer.forget()
    assert claim(guarded) == []
    assert [exchange.operation for exchange in layer.log] == ["Query"]  # of the slots
