"""Tamper evidence: what a look at the seals of the audit trail finds, and what it cannot know."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.model import Event, EventKind
from treadle.model.records import Seal
from treadle.model.seals import AT_ONCE, digest, hash_of, sealing, verify

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEPT = timedelta(days=90)


def a_line(number=0, **fields):
    """An audit event of tenant acme, a second after the one before it."""
    given = {
        "job_id": f"00000000-0000-7000-8000-{number:012d}",
        "revision": number % 7,
        "at": NOON + timedelta(seconds=number),
        "kind": EventKind.FAILED,
        "actor": "w1",
        "note": f"boom {number}",
        "tenant": "acme",
    }
    return Event(**{**given, **fields})


class Trail:
    """A tenant's seals and the events in them, for anybody to meddle with."""

    def __init__(self, *sizes):
        self.seals, self.events, number = {}, {}, 0
        last = None
        for size in sizes:
            batch = [a_line(number + place) for place in range(size)]
            number += size
            last, ordered = sealing(batch, last, NOON + timedelta(days=1, seconds=number))
            self.seals[last.number], self.events[last.number] = last, ordered

    def verify(self, keep=KEPT):
        return verify("acme", list(self.seals.values()), lambda seal: self.events[seal.number], keep)

    def problems(self):
        return list(self.verify().problems)


@pytest.fixture
def trail():
    """Three seals, of two, three and one event."""
    return Trail(2, 3, 1)


# ------------------------------------------------------------------------------------------------ sealing


def test_a_seal_names_its_lines_in_order_its_place_and_the_seal_before_it():
    first, ordered = sealing([a_line(2), a_line(0), a_line(1)], None, NOON)
    assert ordered == [a_line(0), a_line(1), a_line(2)]
    assert (first.tenant, first.number, first.events, first.previous) == ("acme", 1, 3, "")
    assert (first.first_at, first.last_at, first.sealed_at) == (a_line(0).at, a_line(2).at, NOON)
    assert (first.digest, first.hash) == (digest(ordered), hash_of(first))
    second, _ = sealing([a_line(3)], first, NOON)
    assert (second.number, second.previous) == (2, first.hash)


def test_lines_of_one_moment_have_one_order_however_they_come():
    same = [a_line(number, at=NOON) for number in range(3)] + [a_line(0, at=NOON, revision=9)]
    assert sealing(same, None, NOON) == sealing(same[::-1], None, NOON)


def test_equal_lines_have_equal_digests_in_every_time_zone_and_no_others():
    line = a_line(note='Zoë \N{SNOWMAN} "quoted" \\ \n')
    berlin = line._replace(at=line.at.astimezone(datetime.now().astimezone().tzinfo))
    assert digest([line]) == digest([berlin])
    split = [a_line(note="a", actor="bc"), a_line(note="ab", actor="c")]
    assert digest(split[:1]) != digest(split[1:])
    assert digest([line, line]) != digest([line])


def test_an_untouched_trail_is_sound(trail):
    found = trail.verify()
    assert (found.tenant, found.seals, found.events, found.pruned) == ("acme", 3, 6, 0)
    assert found.hash == trail.seals[3].hash
    assert not found.problems
    assert not verify("acme", [], lambda seal: []).problems


def test_seals_are_looked_at_in_their_order_however_they_come(trail):
    trail.seals = dict(reversed(trail.seals.items()))
    assert not trail.problems()


# ------------------------------------------------------------------------------------------ what it finds

EDITS = {
    "job_id": "00000000-0000-7000-8000-999999999999",
    "revision": 99,
    "at": NOON + timedelta(microseconds=1),
    "kind": EventKind.RETRIED,
    "actor": "mallory",
    "note": "",
    "tenant": "globex",
}


@pytest.mark.parametrize("field", Event._fields)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_edit_of_any_word_of_any_line_is_found(trail, field, number):
    trail.events[number][0] = trail.events[number][0]._replace(**{field: EDITS[field]})
    assert trail.problems() == [f"seal {number}: an event was edited or moved"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_deleted_line_is_found_and_counted(trail, number):
    size = len(trail.events[number])
    trail.events[number].pop()
    assert trail.problems() == [f"seal {number}: 1 of its {size} events are gone"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_inserted_line_is_found_and_counted(trail, number):
    trail.events[number] += [a_line(77), a_line(78)]
    assert trail.problems() == [f"seal {number}: 2 events were added to it"]


def test_a_line_put_in_the_place_of_another_is_found(trail):
    trail.events[2][1] = a_line(77, at=trail.events[2][1].at)
    assert trail.problems() == ["seal 2: an event was edited or moved"]


def test_two_lines_that_changed_places_are_found(trail):
    """Of the store they come by time: who swaps two events has to swap their times."""
    one, other, _ = trail.events[2]
    trail.events[2][:2] = [other._replace(at=one.at), one._replace(at=other.at)]
    assert trail.problems() == ["seal 2: an event was edited or moved"]


def test_a_line_moved_to_another_seal_is_found_in_both(trail):
    trail.events[1].append(trail.events[2].pop())
    assert trail.problems() == ["seal 1: 1 events were added to it", "seal 2: 1 of its 3 events are gone"]


@pytest.mark.parametrize(("number", "said"), [(1, "seal 1 is missing"), (2, "seal 2 is missing")])
def test_a_seal_removed_with_its_lines_is_found_at_the_front_and_in_the_middle(trail, number, said):
    del trail.seals[number]
    assert trail.problems() == [said]


def test_several_removed_seals_are_named():
    trail = Trail(1, 1, 1, 1, 1)
    del trail.seals[1], trail.seals[3], trail.seals[4]
    assert trail.problems() == ["seal 1 is missing", "seals 3 to 4 are missing"]


SEAL_EDITS = {
    "tenant": "globex", "number": 9, "events": 4, "first_at": NOON - timedelta(days=1),
    "last_at": NOON + timedelta(days=9), "digest": "0" * 64, "previous": "1" * 64, "hash": "2" * 64, "sealed_at": NOON,
}  # fmt: skip


@pytest.mark.parametrize("field", SEAL_EDITS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_edit_of_any_word_of_any_seal_is_found(trail, field, number):
    edited = trail.seals.pop(number).evolve(**{field: SEAL_EDITS[field]})
    trail.seals[edited.number] = edited
    trail.events.setdefault(edited.number, trail.events[number])
    assert any(str(edited.number) in problem for problem in trail.problems())


def test_every_word_of_a_seal_but_its_prune_is_tried():
    assert {*SEAL_EDITS, "pruned_at"} == set(Seal._fields)


@pytest.mark.parametrize("number", [1, 2])
def test_lines_rewritten_with_a_new_seal_over_them_break_the_chain_to_the_next(trail, number):
    trail.events[number][0] = trail.events[number][0]._replace(note="nothing happened")
    forged = trail.seals[number].evolve(digest=digest(trail.events[number]))
    trail.seals[number] = forged.evolve(hash=hash_of(forged))
    assert trail.problems() == [f"seal {number + 1} does not follow the seal before it"]


def test_two_seals_that_changed_places_are_found(trail):
    one, two = trail.seals[1], trail.seals[2]
    trail.seals[1], trail.seals[2] = two.evolve(number=1), one.evolve(number=2)
    trail.events[1], trail.events[2] = trail.events[2], trail.events[1]
    assert trail.problems()


changes = st.sampled_from(["edit", "delete", "insert", "swap", "drop seal", "edit seal", "re-seal"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), changes, st.data())
def test_whatever_is_done_to_a_sealed_trail_is_found(sizes, change, data):
    trail = Trail(*sizes)
    number = data.draw(st.integers(1, len(sizes)))
    lines, seal = trail.events[number], trail.seals[number]
    place = data.draw(st.integers(0, len(lines) - 1))
    match change:
        case "edit":
            field = data.draw(st.sampled_from(Event._fields))
            lines[place] = lines[place]._replace(**{field: EDITS[field]})
        case "delete":
            del lines[place]
        case "insert":
            lines.insert(place, a_line(500))
        case "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            if other == place:
                return
            lines[place], lines[other] = lines[other], lines[place]
        case "drop seal":
            if number == len(sizes):
                return  # the last one: see below
            del trail.seals[number]
        case "edit seal":
            field = data.draw(st.sampled_from(sorted(SEAL_EDITS)))
            edited = seal.evolve(**{field: SEAL_EDITS[field]})
            if edited == seal:
                return
            trail.seals[number] = edited
            trail.events[edited.number] = lines
        case "re-seal":
            if number == len(sizes):
                return  # the last one: see below
            lines[place] = lines[place]._replace(note="nothing happened")
            forged = seal.evolve(digest=digest(lines))
            trail.seals[number] = forged.evolve(hash=hash_of(forged))
    assert trail.problems()


# --------------------------------------------------------------------------------------- pruned by age


def pruned(trail, number, after=KEPT):
    seal = trail.seals[number]
    trail.seals[number] = seal.evolve(pruned_at=seal.last_at + after)
    trail.events[number] = []


def test_lines_that_were_pruned_in_time_are_missed_by_nobody_and_their_seals_still_hold_the_chain(trail):
    pruned(trail, 1)
    pruned(trail, 2)
    found = trail.verify()
    assert (found.problems, found.pruned, found.events, found.seals) == ([], 2, 1, 3)
    del trail.seals[1]
    assert trail.problems() == ["seal 1 is missing"]


def test_lines_that_went_sooner_than_they_are_kept_today_are_counted_and_no_alarm(trail):
    """The setting may have been another one then; an operator who never changed it knows what to think."""
    pruned(trail, 1, KEPT - timedelta(days=1))
    pruned(trail, 2)
    assert (trail.verify().early, trail.verify().problems) == (1, [])
    assert trail.verify(keep=None).early == 2


def test_a_pruned_seal_cannot_be_edited_either(trail):
    pruned(trail, 1)
    trail.seals[1] = trail.seals[1].evolve(events=1)
    assert trail.problems() == ["seal 1 was edited"]


def test_lines_that_are_still_there_under_a_seal_that_says_they_were_pruned_are_told_of(trail):
    """Or a mark on the seal would keep an edited event from being looked at."""
    edited = [trail.events[2][0]._replace(note="nothing happened"), *trail.events[2][1:]]
    pruned(trail, 2)
    trail.events[2] = edited
    assert any("seal 2" in problem for problem in trail.problems())


# ------------------------------------------------------------------------------------- what it cannot know


def test_the_last_seal_gone_with_its_lines_shows_only_in_a_hash_that_was_kept_elsewhere(trail):
    kept_elsewhere = trail.verify().hash
    del trail.seals[3]
    found = trail.verify()
    assert not found.problems
    assert found.hash != kept_elsewhere
    assert found.hash == trail.seals[2].hash


def test_a_trail_that_was_forged_as_a_whole_shows_only_in_a_hash_that_was_kept_elsewhere(trail):
    kept_elsewhere, last = trail.verify().hash, None
    for number in (1, 2, 3):
        lines = [line._replace(actor="mallory") for line in trail.events[number]]
        last, trail.events[number] = sealing(lines, last, trail.seals[number].sealed_at)
        trail.seals[number] = last
    assert not trail.problems()
    assert trail.verify().hash != kept_elsewhere


def test_a_seal_holds_what_every_engine_can_write_in_one_atom():
    assert AT_ONCE <= 98  # of the hundred items of a DynamoDB transaction, one is the seal
