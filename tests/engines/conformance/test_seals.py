"""Promise 12, and evidence of it: audit lines are sealed in batches, and a seal outlives its lines."""

from datetime import timedelta
from itertools import product

import pytest

from tests.support.making import current, ended, enqueued, race, running, settle, several, write
from treadle.engines.values import OVERWRITE, Retention
from treadle.model import Event, EventKind, State, lifecycle, new_id
from treadle.model.lifecycle import Stopped
from treadle.model.records import Pause, Seal

ROUNDS = 25
AT_ONCE = 90  # lines in a seal: what upkeep asks for


def told(engine, **fields):
    """An audit line, stored as somebody's save of a record."""
    given = {
        "job_id": new_id(),
        "revision": 1,
        "at": engine.now(),
        "kind": EventKind.PAUSED,
        "actor": "ann",
        "note": "☃",
    }
    line = Event(**{**given, "tenant": "acme", **fields})
    assert engine.save(Pause(at=engine.now(), until=engine.now()), before=OVERWRITE, event=line).done
    return line


def lines_of(engine, number, **fields):
    return in_order([told(engine, **fields) for _ in range(number)])


def in_order(lines):
    return sorted(lines, key=lambda line: (line.tenant, line.at, line.job_id, line.revision))


def a_seal(lines, number=1, **fields):
    given = {"tenant": lines[0].tenant, "number": number, "events": len(lines), "first_at": lines[0].at}
    given |= {"last_at": lines[-1].at, "digest": "d" * 64, "previous": "p", "hash": f"h{number}"}
    return Seal(**{**given, "sealed_at": lines[-1].at, **fields})


def sealed(engine, lines, number=1):
    """A seal over these lines, stored."""
    seal = a_seal(lines, number)
    assert engine.seal(seal, lines)
    return seal


# ---------------------------------------------------------------------------------------------- what is open


def test_lines_of_jobs_and_of_records_wait_to_be_sealed(engine, clock):
    job = ended(engine, State.CANCELLED, tenant="acme")
    line = told(engine)

    assert engine.unsealed(limit=10) == in_order([*engine.events(job.id), line])


def test_unsealed_lines_come_by_tenant_time_job_and_revision(engine, clock):
    ids = {tenant: [new_id() for _ in range(3)] for tenant in "ba"}
    lines = []
    for _ in range(2):
        for tenant, revision in product("ba", (2, 10, 1)):
            lines += [told(engine, tenant=tenant, job_id=id_, revision=revision) for id_ in reversed(ids[tenant])]
        clock.advance(microseconds=1)

    assert engine.unsealed(limit=1000) == in_order(lines)


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 11])
def test_no_more_unsealed_lines_come_than_asked_for_and_they_are_the_first(engine, clock, limit):
    lines = []
    for tenant in ("b", "a"):
        for _ in range(5):
            lines.append(told(engine, tenant=tenant))
            clock.advance(seconds=1)

    assert engine.unsealed(limit=limit) == in_order(lines)[:limit]


@pytest.mark.parametrize("limit", [1, 6, 11])
def test_the_newest_unsealed_lines_come_first_whosever_they_are(engine, clock, limit):
    lines = []
    for tenant in ("b", "a") * 5:
        lines.append(told(engine, tenant=tenant))
        clock.advance(seconds=1)
    sealed(engine, [lines[9]])

    assert engine.unsealed(limit=limit, newest=True) == lines[8::-1][:limit]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_the_newest_unsealed_lines_are_read_on_from_any_of_them(engine, clock, limit):
    lines = []
    for _ in range(4):
        lines += [told(engine, tenant=tenant) for tenant in ("b", "a", "b c#~☃", "a" * 900)]
        clock.advance(microseconds=1)
    lines = sorted(lines, key=by_place, reverse=True)
    sealed(engine, [lines[3]])
    waiting = [*lines[:3], *lines[4:]]

    seen, before = [], None
    while some := engine.unsealed(limit=limit, newest=True, before=before):
        assert len(some) == min(limit, len(waiting) - len(seen))
        seen += some
        before = by_place(some[-1])

    assert seen == waiting
    assert engine.unsealed(limit=2, newest=True, before=by_place(lines[3])) == lines[4:6]


def by_place(line):
    return line.at, line.job_id, line.revision


def test_a_line_that_comes_late_takes_its_place(engine, clock):
    young = told(engine, at=clock.now() + timedelta(seconds=1))
    old = told(engine, at=clock.now())

    assert engine.unsealed(limit=1) == [old]
    assert engine.unsealed(limit=2) == [old, young]


# --------------------------------------------------------------------------------------------------- sealing


def test_a_seal_marks_exactly_its_lines(engine, clock):
    lines = lines_of(engine, 5)
    others = lines_of(engine, 2, tenant="zeta")

    seal = sealed(engine, [lines[0], lines[2], lines[3]])

    assert engine.sealed(seal) == [lines[0], lines[2], lines[3]]
    assert engine.unsealed(limit=100) == [lines[1], lines[4], *others]
    assert engine.records(Seal) == [seal]


def test_a_sealed_line_stays_in_the_trail_of_its_job(engine, clock):
    job = ended(engine, State.CANCELLED)
    trail = engine.events(job.id)

    sealed(engine, trail)

    assert engine.events(job.id) == trail


def test_the_lines_of_a_seal_come_by_time_job_and_revision(engine, clock):
    ids = sorted(new_id() for _ in range(3))
    lines = []
    for _ in range(3):
        lines += [told(engine, job_id=id_, revision=revision) for id_ in ids for revision in (2, 10, 1)]
        clock.advance(seconds=1)

    seal = sealed(engine, lines[::-1])

    assert engine.sealed(seal) == in_order(lines)


def test_as_many_lines_as_upkeep_asks_for_are_sealed_at_once(engine, clock):
    lines = lines_of(engine, AT_ONCE + 3)

    seal = sealed(engine, lines[:AT_ONCE])

    assert engine.sealed(seal) == lines[:AT_ONCE]
    assert engine.unsealed(limit=1000) == lines[AT_ONCE:]


def test_seals_of_two_tenants_may_have_the_same_number(engine, clock):
    ours, theirs = lines_of(engine, 3), lines_of(engine, 2, tenant="zeta")

    seals = [sealed(engine, ours), sealed(engine, theirs)]

    assert [engine.sealed(seal) for seal in seals] == [ours, theirs]
    assert engine.records(Seal) == seals


def test_a_number_that_is_taken_is_not_given_again(engine, clock):
    lines = lines_of(engine, 4)
    seal = sealed(engine, lines[:2])

    assert not engine.seal(a_seal(lines[2:]), lines[2:])
    assert engine.records(Seal) == [seal]
    assert engine.sealed(seal) == lines[:2]
    assert engine.unsealed(limit=100) == lines[2:]


@pytest.mark.parametrize("again", [0, 2, 3])
def test_a_line_is_sealed_once_and_stops_a_batch_that_holds_it(engine, clock, again):
    lines = lines_of(engine, 5)
    first = sealed(engine, [lines[again]])
    others = [line for line in lines if line != lines[again]]

    assert not engine.seal(a_seal(lines, 2), lines)
    assert engine.records(Seal) == [first]
    assert engine.unsealed(limit=100) == others
    assert sealed(engine, others, 2) in engine.records(Seal)


def test_a_line_that_is_not_there_stops_its_batch(engine, clock):
    lines = lines_of(engine, 2)
    lines.append(lines[0]._replace(job_id=new_id()))

    assert not engine.seal(a_seal(lines), lines)
    assert engine.records(Seal) == []
    assert engine.unsealed(limit=100) == lines[:2]


# ------------------------------------------------------------------------------------------------ forgetting


def test_lines_whose_seal_was_removed_are_strays_and_no_others(engine, clock):
    first = lines_of(engine, 3)
    kept = sealed(engine, first)
    second = lines_of(engine, 2)
    gone = sealed(engine, second, 2)
    forgotten = sealed(engine, lines_of(engine, 2), 3)
    assert engine.prune_events(forgotten)
    open_line = told(engine)
    assert engine.orphaned_events(limit=10) == []

    assert engine.drop(gone)

    assert engine.orphaned_events(limit=10) == second
    assert engine.orphaned_events(limit=1) == second[:1]
    assert (engine.unsealed(limit=10), engine.sealed(kept)) == ([open_line], first)


def test_forgetting_deletes_the_lines_once_and_keeps_the_seal(engine, clock):
    job = enqueued(engine, tenant="acme")
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
    lines = in_order([*engine.events(job.id), *lines_of(engine, 3)])
    seal = sealed(engine, lines)
    clock.advance(days=1)

    assert engine.prune_events(seal)
    assert not engine.prune_events(seal)
    assert engine.records(Seal) == [seal.evolve(pruned_at=clock.now())]
    assert engine.sealed(seal) == engine.unsealed(limit=100) == engine.events(job.id) == []
    assert current(engine, job).state is State.CANCELLED


def test_forgetting_again_does_not_move_the_time_of_the_first(engine, clock):
    seal = sealed(engine, lines_of(engine, 1))
    engine.prune_events(seal)
    first = clock.now()
    clock.advance(days=1)
    engine.prune_events(seal)

    assert engine.records(Seal) == [seal.evolve(pruned_at=first)]


def test_forgetting_leaves_the_lines_of_others(engine, clock):
    lines, theirs = lines_of(engine, 4), lines_of(engine, 2, tenant="zeta")
    first, second, third = sealed(engine, lines[:2]), sealed(engine, lines[2:3], 2), sealed(engine, theirs)

    assert engine.prune_events(first)
    assert [engine.sealed(seal) for seal in (first, second, third)] == [[], lines[2:3], theirs]
    assert engine.unsealed(limit=100) == lines[3:]


def test_forgetting_takes_a_part_of_a_jobs_trail_and_leaves_the_rest(engine, clock):
    job = running(engine)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
    first = engine.events(job.id)
    seal = sealed(engine, first)
    clock.advance(seconds=1)
    settle(engine, current(engine, job), Stopped("as asked"))
    engine.prune_events(seal)

    assert [line.kind for line in engine.events(job.id)] == [EventKind.CANCELLED]


def test_a_seal_that_is_not_there_is_not_forgotten(engine, clock):
    line = told(engine)

    assert not engine.prune_events(a_seal([line]))
    assert engine.records(Seal) == []
    assert engine.unsealed(limit=10) == [line]


# ----------------------------------------------------------------------------- trails that outlive their jobs


def pruned(engine, clock):
    """Every finished job is gone."""
    clock.advance(microseconds=1)
    return engine.prune(Retention(dict.fromkeys(State, timedelta(0))), limit=100)


def test_pruning_a_job_leaves_its_lines_sealed_or_not(engine, clock):
    jobs = [ended(engine, State.CANCELLED) for _ in range(2)]
    trails = [engine.events(job.id) for job in jobs]
    seal = sealed(engine, trails[0])

    assert pruned(engine, clock) == 2
    assert engine.get([job.id for job in jobs]) == [None, None]
    assert [engine.events(job.id) for job in jobs] == trails
    assert engine.sealed(seal) == trails[0]
    assert engine.unsealed(limit=10) == trails[1]


def twice(engine, clock):
    """An id whose job was cancelled and pruned, and came back and was cancelled again: two lines of one revision."""
    first = enqueued(engine)
    write(engine, lifecycle.cancel(first, clock.now(), actor="ann"))
    pruned(engine, clock)
    second = enqueued(engine, id=first.id)
    write(engine, lifecycle.cancel(second, clock.now(), actor="bob"))
    return first.id


def test_an_id_that_came_back_keeps_the_lines_of_both_its_lives(engine, clock):
    lines = engine.events(twice(engine, clock))

    assert [(line.revision, line.actor) for line in lines] == [(1, "ann"), (1, "bob")]
    assert engine.unsealed(limit=10) == lines


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the first life first", "the second life first"])
def test_the_lives_of_one_id_are_sealed_and_forgotten_apart(engine, clock, order):
    lines = engine.events(twice(engine, clock))
    one, two = (lines[place] for place in order)

    first = sealed(engine, [one])

    assert engine.unsealed(limit=10) == [two]
    assert engine.sealed(first) == [one]
    second = sealed(engine, [two], 2)
    engine.prune_events(first)
    assert engine.events(one.job_id) == engine.sealed(second) == [two]


def test_both_lives_of_one_id_fit_into_one_seal(engine, clock):
    lines = engine.events(twice(engine, clock))

    assert engine.sealed(sealed(engine, lines)) == lines


def test_a_trail_is_in_the_order_of_revisions_even_if_a_clock_went_back(engine, clock):
    job = running(engine)
    later = clock.now() + timedelta(seconds=5)
    engine.turn([lifecycle.cancel(job, later, actor="ann")])
    settle(engine, current(engine, job), Stopped("as asked"))

    assert [line.kind for line in engine.events(job.id)] == [EventKind.CANCEL_REQUESTED, EventKind.CANCELLED]


# ----------------------------------------------------------------------------------------------------- races


def test_of_two_sealers_of_the_same_lines_exactly_one_is_done(make_engine, clock):
    engines = several(make_engine, 2)
    for number in range(1, ROUNDS + 1):
        lines = lines_of(engines[0], 3)
        seals = [a_seal(lines, number, hash=f"by {place}") for place in (0, 1)]
        answers = race(2, lambda at, seals=seals, lines=lines: engines[at].seal(seals[at], lines))

        assert sorted(answers) == [False, True]
        won = seals[answers.index(True)]
        assert engines[0].records(Seal)[-1] == won
        assert engines[0].sealed(won) == lines


def test_of_two_sealers_that_share_a_line_exactly_one_is_done(make_engine, clock):
    engines = several(make_engine, 2)
    for number in range(ROUNDS):
        lines = lines_of(engines[0], 5, tenant=f"t{number:02}")
        parts = [lines[:3], lines[2:]]
        seals = [a_seal(parts[place], place + 1) for place in (0, 1)]
        answers = race(2, lambda at, seals=seals, parts=parts: engines[at].seal(seals[at], parts[at]))

        assert sorted(answers) == [False, True]
        assert engines[0].records(Seal, tenant=f"t{number:02}") == [seals[answers.index(True)]]
        assert engines[0].unsealed(limit=10) == [line for line in lines if line not in parts[answers.index(True)]]
        sealed(engines[0], engines[0].unsealed(limit=10), 9)


def test_of_two_that_forget_a_seal_exactly_one_did_it(make_engine, clock):
    engines = several(make_engine, 2)
    for number in range(1, ROUNDS + 1):
        seal = sealed(engines[0], lines_of(engines[0], 2), number)
        answers = race(2, lambda at, seal=seal: engines[at].prune_events(seal))

        assert sorted(answers) == [False, True]
    assert engines[0].unsealed(limit=10) == []
