"""When a claim goes on where the last one ended, and when it looks everywhere."""

from datetime import UTC, datetime
from typing import Any

from tests.support.making import LEASE, a_job
from treadle.engines.postgres.cursors import MAX_CURSORS, SLOW_LOOKS, ClaimCursors
from treadle.engines.values import Claim, ClaimedJob
from treadle.model import new_id

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def a_wish(limit: int, **fields: Any) -> Claim:
    return Claim(new_id(), "w1", limit, LEASE, tasks=("greet",), **fields)


def of_ids(*ids: int) -> list[ClaimedJob]:
    return [ClaimedJob.of(a_job(EPOCH, id=f"00000000-0000-7000-8000-00000000000{id_}")) for id_ in ids]


FOUND_SLOWLY, FOUND_AT_ONCE = {"search_time": 0.02, "take_time": 0.004}, {"search_time": 0.002, "take_time": 0.004}


def slow_looks(cursors: ClaimCursors, wish: Claim, jobs: list[ClaimedJob], number: int = SLOW_LOOKS) -> None:
    for _ in range(number):
        cursors.learn(wish, jobs, **FOUND_SLOWLY, resumed=False, now=100.0)


def test_claims_whose_jobs_took_long_to_find_are_followed_by_claims_that_go_on_for_a_second_and_then_look_everywhere():
    cursors, wish = ClaimCursors(), a_wish(2)

    slow_looks(cursors, wish, of_ids(1, 2))

    [cursor] = cursors.of(wish, 100.5)
    assert cursor.id.endswith("2"), "everything up to the second was taken"
    assert cursors.of(a_wish(2, queues=("other",)), 100.5) == [], "another claim looks for itself"
    cursors.learn(wish, of_ids(8, 9), **FOUND_AT_ONCE, resumed=True, now=100.6)
    assert cursors.of(wish, 100.9)[0].id.endswith("9")
    assert cursors.of(wish, 101.1) == [], "a full scan at least every second"


def test_the_full_scan_between_needs_no_second_one_if_it_is_slow_again():
    cursors, wish = ClaimCursors(), a_wish(2)
    slow_looks(cursors, wish, of_ids(1, 2))
    cursors.learn(wish, of_ids(3, 4), **FOUND_AT_ONCE, resumed=True, now=100.9)

    cursors.learn(wish, of_ids(5, 6), **FOUND_SLOWLY, resumed=False, now=101.1)

    assert cursors.of(wish, 101.2)[0].id.endswith("6")


def test_one_slow_look_may_have_waited_for_a_cpu():
    cursors, wish = ClaimCursors(), a_wish(2)

    slow_looks(cursors, wish, of_ids(1, 2), SLOW_LOOKS - 1)
    assert cursors.of(wish, 100.1) == []
    cursors.learn(wish, of_ids(3, 4), **FOUND_AT_ONCE, resumed=False, now=100.2)
    slow_looks(cursors, wish, of_ids(5, 6), SLOW_LOOKS - 1)

    assert cursors.of(wish, 100.3) == [], "not in a row"


def test_a_claim_that_found_too_little_looks_everywhere_the_next_time():
    cursors, wish = ClaimCursors(), a_wish(2)

    slow_looks(cursors, wish, of_ids(1))

    assert cursors.of(wish, 100.1) == []


def test_a_claim_that_went_on_and_found_too_little_looks_everywhere_the_next_time():
    cursors, wish = ClaimCursors(), a_wish(2)
    slow_looks(cursors, wish, of_ids(1, 2))

    cursors.learn(wish, of_ids(3), **FOUND_AT_ONCE, resumed=True, now=100.1)

    assert cursors.of(wish, 100.2) == []


def test_a_slow_claim_from_many_lanes_is_not_worth_a_cursor_in_each():
    for lanes, worth in ((MAX_CURSORS, True), (MAX_CURSORS + 1, False)):
        cursors, wish = ClaimCursors(), a_wish(lanes)
        jobs = [ClaimedJob.of(a_job(EPOCH, lane=f"l{n}")) for n in range(lanes)]

        slow_looks(cursors, wish, jobs)

        assert bool(cursors.of(wish, 100.1)) is worth
