"""Promise 11: once a pause is saved, no claim in its scope commits; what it stops waits, and comes in its turn."""

import threading
from collections import Counter
from datetime import timedelta
from itertools import product

import pytest

from tests.engines.conformance.crowds import crowd_of
from tests.support.making import (
    LEASE,
    a_job,
    an_error,
    claim,
    crashed,
    current,
    ended,
    enqueued,
    running,
    settle,
    several,
    write,
)
from tests.support.sizes import size
from treadle.engines.fence import in_order
from treadle.engines.values import Claim, Lease, Renewal, Ruling
from treadle.model import Retry, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded
from treadle.model.records import ANY, Pause

TENANTS, QUEUES, TASKS = ("acme", "zeta"), ("mail", "web"), ("greet", "render")
NAMED = {"tenant": "acme", "queue": "mail", "task": "render"}
SCOPES = [dict(zip(NAMED, names, strict=True)) for names in product(*((ANY, name) for name in NAMED.values()))]
every_scope = pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: Pause(**scope).scope)
# Where engines put what they meet: left out with its queue, filed by its task, parked by its tenant.
PLACES = {"a queue": {"queue": "mail"}, "a task": {"task": "render"}, "a tenant": {"tenant": "acme"}}
every_place = pytest.mark.parametrize("scope", PLACES.values(), ids=PLACES)
CROWD = 2_000
ROUNDS = size(8, long=25)


def paused(engine, **fields):
    """A pause of ann's, saved."""
    pause = Pause(**{"actor": "ann", "reason": "maintenance", "at": engine.now(), **fields})
    assert engine.save(pause, before=None).done
    return pause


def resumed(engine, pause):
    assert engine.drop(pause)


def stock(engine, **fields):
    """A job of each tenant, queue and task."""
    made = [a_job(engine.now(), tenant=t, queue=q, task=k, **fields) for t, q, k in product(TENANTS, QUEUES, TASKS)]
    return [receipt.job for receipt in engine.enqueue(made)]


def in_scope(job, scope):
    return all(name in (ANY, getattr(job, field)) for field, name in scope.items())


def drained(engine, **wish):
    """The ids of all that can be claimed, sorted."""
    got, empty = [], 0
    while empty < 2:  # a claim that put a crowd away may come back with nothing
        jobs = claim(engine, **{"limit": 100, "queues": QUEUES, **wish})
        got += [job.id for job in jobs]
        empty = 0 if jobs else empty + 1
    return sorted(got)


def ids(jobs):
    return sorted(job.id for job in jobs)


# ----------------------------------------------------------------------------------------- what a pause stops


@every_scope
def test_a_pause_stops_exactly_the_jobs_in_its_scope(engine, scope):
    jobs = stock(engine)
    pause = paused(engine, **scope)
    jobs += stock(engine)
    stopped = [job for job in jobs if in_scope(job, scope)]

    assert drained(engine) == ids(job for job in jobs if job not in stopped)
    assert engine.get([job.id for job in stopped]) == stopped
    resumed(engine, pause)
    assert drained(engine) == ids(stopped)


@every_scope
def test_what_comes_after_a_pause_has_put_others_away_is_stopped_too(engine, scope):
    stopped = [job for job in stock(engine) if in_scope(job, scope)]
    pause = paused(engine, **scope)
    drained(engine)
    later = stock(engine)
    stopped += [job for job in later if in_scope(job, scope)]

    assert drained(engine) == ids(job for job in later if not in_scope(job, scope))
    resumed(engine, pause)
    assert drained(engine) == ids(stopped)


@every_scope
def test_a_claim_that_names_queue_lane_and_task_is_stopped_too(engine, scope):
    jobs = stock(engine)
    paused(engine, **scope)
    free = [job for job in jobs if (job.queue, job.task) == ("mail", "render") and not in_scope(job, scope)]

    assert drained(engine, queues=["mail"], lanes=[""], tasks=["render"]) == ids(free)


def test_every_scope_at_once_stops_what_any_of_them_stops(engine):
    jobs = stock(engine)
    narrow = [scope for scope in SCOPES if list(scope.values()).count(ANY) == 1]
    pauses = [paused(engine, **scope) for scope in narrow]

    stopped = [job for job in jobs if any(in_scope(job, scope) for scope in narrow)]
    assert drained(engine) == ids(job for job in jobs if job not in stopped)
    for pause in pauses:
        resumed(engine, pause)
    assert drained(engine) == ids(stopped)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_job_that_several_pauses_stop_waits_for_the_last_of_them(engine, first):
    job = enqueued(engine, **NAMED)
    pauses = [paused(engine, **scope) for scope in PLACES.values()]
    assert drained(engine) == []

    for pause in pauses[first:] + pauses[:first]:
        assert drained(engine) == []
        resumed(engine, pause)
    assert drained(engine) == [job.id]


@every_place
def test_a_job_that_one_pause_put_away_is_stopped_by_the_next(engine, scope):
    job = enqueued(engine, **NAMED)

    for each in (scope, *PLACES.values()):
        pause = paused(engine, **each)
        assert drained(engine) == []
        resumed(engine, pause)
    assert drained(engine) == [job.id]


def test_names_that_look_alike_are_not_stopped(engine):
    paused(engine, tenant="acme")
    paused(engine, queue="mail")
    paused(engine, task="render")
    names = ("acm", "acme ", "acme2", "Acme", "ácme", "mail.x", "Mail", "rende", "render*", "*render")
    jobs = [enqueued(engine, **{field: name}) for name in names for field in ("tenant", "task")]
    jobs += [enqueued(engine, queue=name) for name in names]

    assert drained(engine, queues=["default", *names]) == ids(jobs)


def test_hundreds_of_pauses_hold_at_once(engine):
    for number in range(150):
        paused(engine, tenant=f"t{number}", task="greet" if number % 2 else ANY)
    stopped = [enqueued(engine, tenant=f"t{number}") for number in range(0, 150, 10)]
    free = [enqueued(engine, tenant="acme"), enqueued(engine, tenant="t1", task="render")]

    assert drained(engine, queues=["default"]) == ids(free)
    for pause in engine.records(Pause):
        resumed(engine, pause)
    assert drained(engine, queues=["default"]) == ids(stopped)


def test_a_pause_by_one_process_holds_for_all_at_once(make_engine):
    engines = several(make_engine, 3)
    for round_ in range(5):
        jobs = stock(engines[0])
        first = [claim(engine, 1, queues=QUEUES)[0] for engine in engines]  # whatever they remember, they have seen
        pause = paused(engines[round_ % 3])

        assert [drained(engine) for engine in engines] == [[], [], []]
        resumed(engines[(round_ + 1) % 3], pause)
        assert sorted(drained(engines[2]) + ids(first)) == ids(jobs)


# ---------------------------------------------------------------------------------------------- until when


@every_place
def test_a_pause_is_over_at_its_until_and_not_before(engine, clock, scope):
    job = enqueued(engine, **NAMED)
    pause = paused(engine, **scope, until=clock.now() + timedelta(minutes=1))
    assert drained(engine) == []
    clock.advance(seconds=59, microseconds=999_999)

    assert drained(engine) == []
    clock.advance(microseconds=1)
    assert drained(engine) == [job.id]
    assert engine.records(Pause) == [pause]


@every_place
def test_a_pause_that_is_prolonged_holds_on(engine, clock, scope):
    job = enqueued(engine, **NAMED)
    pause = paused(engine, **scope, until=clock.now() + timedelta(minutes=1))
    longer = pause.evolve(until=clock.now() + timedelta(minutes=2), revision=1)
    assert engine.save(longer, before=pause).done
    clock.advance(minutes=1)

    assert drained(engine) == []
    clock.advance(minutes=1)
    assert drained(engine) == [job.id]


def test_a_pause_that_is_over_does_not_lift_another(engine, clock):
    job = enqueued(engine, **NAMED)
    paused(engine, tenant="acme", until=clock.now() + timedelta(minutes=1))
    paused(engine, tenant="acme", task="render")
    drained(engine)
    clock.advance(minutes=1)

    assert drained(engine) == []
    assert current(engine, job) == job


# ------------------------------------------------------------------------------------- in their turn afterwards


@every_scope
def test_resumed_jobs_come_in_the_order_of_priority_due_time_and_id(engine, clock, scope):
    def some(first):
        return [
            enqueued(engine, **NAMED, priority=number % 3, due_at=clock.now() + timedelta(seconds=1 + number % 4))
            for number in range(first, first + 10)
        ]

    jobs = some(0)
    clock.advance(seconds=5)
    pause = paused(engine, **scope)
    assert drained(engine) == []
    jobs += some(3)  # these nobody has met
    clock.advance(seconds=5)
    resumed(engine, pause)

    got = [claim(engine, 1, queues=QUEUES)[0].id for _ in jobs]

    assert got == [job.id for job in in_order(jobs)]


@every_place
def test_a_big_claim_after_a_pause_takes_them_in_order_too(engine, scope):
    jobs = [enqueued(engine, **NAMED, priority=number % 3) for number in range(12)]
    pause = paused(engine, **scope)
    drained(engine)
    jobs += [enqueued(engine, **NAMED, priority=number % 3) for number in range(12)]
    resumed(engine, pause)

    assert [job.id for job in claim(engine, 20, queues=QUEUES)] == [job.id for job in in_order(jobs)][:20]


def test_resumed_jobs_do_not_overtake_those_of_others_in_their_lane(engine):
    jobs = [enqueued(engine, tenant=TENANTS[number % 2], task=TASKS[number // 2 % 2]) for number in range(12)]
    pauses = [paused(engine, tenant="acme"), paused(engine, task="render")]
    pending = [job for job in jobs if job.tenant == "acme" or job.task == "render"]
    assert drained(engine, queues=["default"]) == ids(job for job in jobs if job not in pending)
    for pause in pauses:
        resumed(engine, pause)

    assert [claim(engine, 1)[0].id for _ in pending] == [job.id for job in pending]


def test_lanes_take_turns_among_jobs_that_were_put_away(engine):
    for lane, tenant in product("abc", TENANTS):
        for _ in range(5):
            enqueued(engine, lane=lane, tenant=tenant, priority=5 if lane == "a" else 0)
    pauses = [paused(engine, tenant=tenant) for tenant in TENANTS]
    assert drained(engine, queues=["default"]) == []
    for pause in pauses:
        resumed(engine, pause)

    assert Counter(claim(engine, 1)[0].lane for _ in range(9)) == {"a": 3, "b": 3, "c": 3}
    assert sorted(Counter(job.lane for job in claim(engine, 4)).values()) == [1, 1, 2]


def test_a_lane_with_nothing_but_paused_jobs_takes_nothing_from_the_others(engine):
    for _ in range(20):
        enqueued(engine, lane="a", tenant="acme", priority=9)
    free = [enqueued(engine, lane=lane) for lane in "bc" for _ in range(10)]
    paused(engine, tenant="acme")

    assert ids(claim(engine, 20)) == ids(free)


@pytest.mark.slow
@every_place
def test_free_jobs_behind_thousands_of_paused_ones_come_with_the_first_or_second_claim(engine, clock, scope):
    stopped = [
        a_job(clock.now(), **{"queue": "web", **scope}, priority=9)
        for _ in range(crowd_of(engine, CROWD, size(300, long=CROWD)))
    ]
    engine.enqueue(stopped)
    free = [enqueued(engine, queue="web") for _ in range(5)]
    pause = paused(engine, **scope)

    got = claim(engine, queues=QUEUES) + claim(engine, queues=QUEUES)

    assert ids(got) == ids(free)
    free = [enqueued(engine, queue="web") for _ in range(5)]
    assert ids(claim(engine, queues=QUEUES)) == ids(free)
    resumed(engine, pause)
    got = [job.id for _ in range(10) for job in claim(engine, 400, queues=QUEUES)]  # one may be cut short
    assert got == [job.id for job in stopped]


# -------------------------------------------------------------------- what may happen to a job behind a pause


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def put_away(engine, clock, request):
    """A pause, and a job that a claim has met behind it."""
    pause = paused(engine, **request.param)
    job = enqueued(engine, **NAMED, expires_at=clock.now() + timedelta(hours=1))
    assert drained(engine) == []
    return pause, job


def test_a_paused_job_can_be_cancelled(engine, clock, put_away):
    pause, job = put_away

    assert write(engine, lifecycle.cancel(job, clock.now(), actor="ann")).ruling is Ruling.APPLIED
    resumed(engine, pause)
    assert drained(engine) == []
    assert current(engine, job).state is State.CANCELLED


def test_a_paused_job_expires(engine, clock, put_away):
    pause, job = put_away
    clock.advance(hours=1)

    assert engine.expired(limit=10) == [job]
    assert write(engine, lifecycle.expire(job, clock.now(), actor="upkeep")).ruling is Ruling.APPLIED
    resumed(engine, pause)
    assert drained(engine) == []


def test_a_paused_job_is_not_claimed_past_its_expiry_once_it_is_free(engine, clock, put_away):
    pause, _ = put_away
    clock.advance(hours=1)
    resumed(engine, pause)

    assert drained(engine) == []


def test_a_paused_job_can_be_replaced_and_waits_on_as_the_new_one(engine, clock, put_away):
    pause, job = put_away
    newer = a_job(clock.now(), **NAMED, payload_json='"new"', lane="l", priority=7)

    assert write(engine, lifecycle.replace(job, newer, clock.now(), actor="producer")).ruling is Ruling.APPLIED
    assert drained(engine) == []
    resumed(engine, pause)
    [got] = claim(engine, queues=QUEUES, lanes=["l"])
    assert (got.id, got.payload, got.priority) == (job.id, "new", 7)


def test_a_paused_job_that_is_moved_to_another_queue_is_free(engine, clock):
    paused(engine, queue="mail")
    job = enqueued(engine, **NAMED)
    assert drained(engine) == []

    write(engine, lifecycle.replace(job, a_job(clock.now(), queue="web"), clock.now(), actor="producer"))

    assert drained(engine) == [job.id]


def test_a_job_that_is_moved_into_a_paused_queue_is_stopped(engine, clock):
    paused(engine, queue="mail")
    job = enqueued(engine, queue="web")

    write(engine, lifecycle.replace(job, a_job(clock.now(), queue="mail"), clock.now(), actor="producer"))

    assert drained(engine) == []


def test_a_cancelled_job_that_is_retried_behind_a_pause_waits(engine, clock, put_away):
    pause, job = put_away
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))

    assert write(engine, lifecycle.retry(current(engine, job), clock.now(), actor="ann")).ruling is Ruling.APPLIED
    assert drained(engine) == []
    resumed(engine, pause)
    assert drained(engine) == [job.id]


@every_scope
def test_a_job_that_failed_before_the_pause_and_is_retried_behind_it_waits(engine, clock, scope):
    failed = ended(engine, State.FAILED, **NAMED)
    pause = paused(engine, **scope)

    write(engine, lifecycle.retry(failed, clock.now(), actor="ann"))

    assert drained(engine) == []
    resumed(engine, pause)
    assert drained(engine) == [failed.id]


# ---------------------------------------------------------------------------------------- what runs already


@every_scope
def test_a_running_job_is_settled_and_renewed_behind_a_pause(engine, clock, scope):
    done, renewed = running(engine, **NAMED), running(engine, **NAMED)
    paused(engine, **scope)

    assert settle(engine, done, Succeeded("1")).ruling is Ruling.APPLIED
    assert current(engine, done).state is State.SUCCEEDED
    [held] = engine.extend([Lease(renewed.id, renewed.lease_token)], lease=LEASE)
    assert held.renewal is Renewal.RENEWED


BACK = {
    "failed": lambda now: Failed(an_error(now), 0.0),
    "snoozed": lambda now: Snoozed(0.0),
    "released": lambda now: Released(),
}


@pytest.mark.parametrize("outcome", BACK.values(), ids=BACK)
@every_place
def test_an_attempt_that_ends_behind_a_pause_is_not_followed_by_another(engine, clock, scope, outcome):
    job = running(engine, **NAMED, retry=Retry(max_attempts=5))
    pause = paused(engine, **scope)
    change = lifecycle.settle(job, outcome(clock.now()), clock.now())

    turn = engine.turn([change], Claim(token=new_id(), worker="w2", limit=5, lease=LEASE, queues=QUEUES))

    assert (turn.verdicts[0].ruling, turn.jobs) == (Ruling.APPLIED, [])
    assert drained(engine) == []
    resumed(engine, pause)
    assert drained(engine) == [job.id]


@every_scope
def test_a_lease_that_runs_out_behind_a_pause_is_recovered_and_the_job_waits(engine, clock, scope):
    job = running(engine, **NAMED)
    pause = paused(engine, **scope)

    assert crashed(engine, clock, job).state is State.PENDING
    assert drained(engine) == []
    resumed(engine, pause)
    assert drained(engine) == [job.id]


@every_scope
def test_a_repeated_claim_gets_the_same_jobs_although_they_are_paused_by_now(engine, scope):
    jobs = [enqueued(engine, **NAMED) for _ in range(3)]
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=LEASE, queues=QUEUES)
    first = engine.turn([], wish).jobs
    paused(engine, **scope)

    assert engine.turn([], wish).jobs == first == [current(engine, job) for job in jobs[:2]]


@every_place
def test_a_claim_that_got_nothing_behind_a_pause_may_be_repeated_when_it_is_over(engine, scope):
    job = enqueued(engine, **NAMED)
    pause = paused(engine, **scope)
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=LEASE, queues=QUEUES)
    assert engine.turn([], wish).jobs == []
    resumed(engine, pause)

    assert ids(engine.turn([], wish).jobs) == [job.id]


# ------------------------------------------------------------------------------- strangers, unless, versions


def test_a_task_named_in_unless_is_not_taken_and_is_left_to_others(engine):
    greet, render = enqueued(engine), enqueued(engine, task="render", priority=9)

    assert ids(claim(engine, unless=["render"])) == [greet.id]
    assert claim(engine, unless=["render", "greet"]) == []
    assert ids(claim(engine, unless=["greet"])) == [render.id]


def test_unless_outweighs_tasks_and_versions(engine):
    job = enqueued(engine, task="render")

    assert claim(engine, tasks=["render"], versions={"render": 9}, unless=["render"]) == []
    assert ids(claim(engine, tasks=["render"], versions={"render": 9})) == [job.id]


WISHES = {
    "who knows it not": {"tasks": ["greet"]},
    "who leaves it out": {"unless": ["render"]},
    "who knows an older one": {"versions": {"render": 1}},
}


@pytest.mark.parametrize("paused_first", [True, False])
@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
@every_place
def test_a_job_is_taken_when_it_is_neither_paused_nor_strange(engine, scope, wish, paused_first):
    job = enqueued(engine, **NAMED, task_version=2)
    if not paused_first:
        assert drained(engine, **wish) == []
    pause = paused(engine, **scope)

    assert drained(engine) == drained(engine, **wish) == drained(engine) == []
    resumed(engine, pause)
    assert drained(engine, **wish) == []
    again = paused(engine, **scope)
    assert drained(engine) == []
    resumed(engine, again)
    assert drained(engine, versions={"render": 2}) == [job.id]


def test_versions_of_one_task_are_told_apart_behind_a_pause(engine):
    old, new = enqueued(engine, **NAMED), enqueued(engine, **NAMED, task_version=2)
    pause = paused(engine, tenant="acme")
    assert drained(engine) == []
    resumed(engine, pause)

    assert drained(engine, versions={"render": 1}) == [old.id]
    assert drained(engine, unless=["render"]) == []
    assert drained(engine) == [new.id]


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
def test_tenants_of_one_task_are_told_apart_behind_a_pause(engine, order):
    jobs = {tenant: enqueued(engine, tenant=tenant) for tenant in "abc"}
    pauses = {tenant: paused(engine, tenant=tenant) for tenant in jobs}
    assert drained(engine, queues=["default"]) == []

    for tenant in order:
        resumed(engine, pauses[tenant])
        assert drained(engine, queues=["default"]) == [jobs[tenant].id]


# ----------------------------------------------------------------------------------------------------- a race


class Claimers:
    """Threads that claim, each with an engine of its own, until the end of the block.

    Those that go round give back what they hold with the turn that claims the next.
    """

    def __init__(self, engines, queue, *, round_and_round):
        self._claims = [0] * len(engines)
        self._moved = threading.Condition()
        self._over = False
        self._errors = []
        work = self._go_round if round_and_round else self._take
        self._threads = [
            threading.Thread(target=work, args=(place, engine, queue)) for place, engine in enumerate(engines)
        ]

    def _take(self, place, engine, queue):
        self._run(place, lambda held: claim(engine, 1, queues=[queue]))

    def _go_round(self, place, engine, queue):
        def turn(held):
            changes = [lifecycle.settle(job, Released(), engine.now()) for job in held]
            wish = Claim(token=new_id(), worker=f"w{place}", limit=2, lease=LEASE, queues=[queue])
            answer = engine.turn(changes, wish)
            missed = [job for job, verdict in zip(held, answer.verdicts, strict=True) if verdict.ruling is Ruling.BUSY]
            return answer.jobs + missed

        self._run(place, turn)

    def _run(self, place, act):
        held = []
        try:
            while not self._over:
                held = act(held)
                with self._moved:
                    self._claims[place] += 1
                    self._moved.notify_all()
        except BaseException as error:
            with self._moved:
                self._errors.append(error)
                self._moved.notify_all()

    def go_on(self, claims):
        """Wait until each of them has made so many more."""
        with self._moved:
            wanted = [done + claims for done in self._claims]
            stamped = self._moved.wait_for(
                lambda: self._errors or all(done >= goal for done, goal in zip(self._claims, wanted, strict=True)), 60
            )
        assert stamped, "the claimers hang"

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for thread in self._threads:
            thread.join(60)
        assert self._errors == []


@pytest.mark.slow
@pytest.mark.parametrize("round_and_round", [False, True], ids=["claiming", "settling and claiming"])
def test_once_a_pause_is_saved_nothing_in_its_scope_is_claimed_any_more(
    make_engine, engine_kind, clock, round_and_round
):
    operator, *engines = several(make_engine, 4)
    many = 60 if engine_kind in ("dynamodb", "ministack") else 400  # more than they claim until the pause is saved
    number = 20 if round_and_round else many
    stopped = 0
    for round_ in range(ROUNDS):
        names = {"tenant": f"t{round_}", "queue": f"q{round_}", "task": f"k{round_}"}
        made = [receipt.job.id for receipt in operator.enqueue([a_job(clock.now(), **names) for _ in range(number)])]
        named = SCOPES[round_ % len(SCOPES)]
        scope = {field: ANY if named[field] == ANY else name for field, name in names.items()}
        with Claimers(engines, names["queue"], round_and_round=round_and_round) as claimers:
            claimers.go_on(1 + round_ % 2)
            pause = paused(operator, **scope)
            before = [job.attempt for job in operator.get(made)]
            claimers.go_on(3)
        after = operator.get(made)

        assert [job.attempt for job in after] == before, f"claimed in round {round_} although {pause.scope} was paused"
        stopped += sum(job.state is State.PENDING for job in after)
        resumed(operator, pause)
    assert stopped > ROUNDS  # or there was nothing left to claim, and no race
