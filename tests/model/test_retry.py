"""When a failed job runs again: the five backoffs that treadle replaces are settings of one function."""

import math
from copy import copy
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError, InvalidJob
from treadle.model import ATTEMPTS
from treadle.model.retry import Retry

policies = st.builds(
    Retry,
    max_attempts=st.integers(1, 10_000),
    base=st.floats(0, 1e9),
    cap=st.none() | st.floats(0, 1e9),
    jitter=st.floats(0, 1e6),
)


def waits(retry, failures, noise=0.0):
    return [retry.delay(number, noise) for number in range(1, failures + 1)]


def test_the_chat_server_waits_30_60_120_240_480_and_then_900():
    assert waits(Retry(base=30, cap=900, jitter=0), 7) == [30, 60, 120, 240, 480, 900, 900]


@pytest.mark.covers("001-R25.a")
def test_the_mail_assistant_does_not_wait():
    assert waits(Retry(base=0, cap=None, jitter=0), 5) == [0] * 5


@pytest.mark.covers("002-T1.g")
def test_the_backend_waits_5_and_doubles_to_300_with_up_to_a_second_of_jitter_on_top():
    retry = Retry(base=5, cap=300, jitter=1)

    assert waits(retry, 8) == [5, 10, 20, 40, 80, 160, 300, 300]
    assert waits(retry, 8, noise=0.5) == [5.5, 10.5, 20.5, 40.5, 80.5, 160.5, 300.5, 300.5]
    assert max(waits(retry, 50, noise=0.999)) < 301


def test_the_companion_waits_60_and_doubles_without_a_cap():
    assert waits(Retry(base=60, cap=None, jitter=0), 5) == [60, 120, 240, 480, 960]


def test_the_tenant_system_waits_10_20_40_80_without_a_cap():
    assert waits(Retry(base=10, cap=None, jitter=0), 4) == [10, 20, 40, 80]


def test_the_default_is_five_attempts_from_5_to_300_seconds():
    assert Retry() == (5, 5.0, 300.0, 1.0)


@pytest.mark.parametrize("given", ["100ms", 0.1, "0.1", timedelta(milliseconds=100)])
@pytest.mark.parametrize("field", ["base", "cap", "jitter"])
def test_a_policy_takes_durations_as_settings_do(field, given):
    assert getattr(Retry(**{field: given}), field) == 0.1
    assert getattr(Retry()._replace(**{field: given}), field) == 0.1


@pytest.mark.parametrize("wrong", ["soon", "", "5 years", True, [], object(), "nan", "-1s", "9000w"])
@pytest.mark.parametrize("field", ["base", "cap", "jitter"])
def test_what_is_not_a_duration_is_refused_by_its_field(field, wrong):
    for write in (Retry, Retry()._replace):
        with pytest.raises(ConfigError, match=rf"^{field}: "):
            write(**{field: wrong})


def test_a_policy_from_a_row_is_never_refused():
    """Another program may have written anything; only what we are given is checked."""
    assert Retry._make((0, -1.0, math.inf, math.nan))[:3] == (0, -1.0, math.inf)
    assert Retry._make((3, -1, None, -1)) == (3, -1, None, -1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("max_attempts", wrong) for wrong in (0, -1, 10_001, 2.5, True, "3", None)),
        *((field, wrong) for field in ("base", "cap", "jitter") for wrong in (-1, math.inf, math.nan)),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_where_it_is_written(field, wrong):
    for write in (Retry, Retry()._replace):
        with pytest.raises(InvalidJob, match=rf"^{field}: "):
            write(**{field: wrong})


def test_a_policy_stays_the_plain_tuple_that_it_is():
    policy = Retry(3, base="1m")
    assert repr(policy) == "Retry(max_attempts=3, base=60.0, cap=300.0, jitter=1.0)"
    assert copy(policy) == policy == (3, 60.0, 300.0, 1.0)
    assert type(Retry._make(policy)) is type(policy._replace(cap=None)) is Retry


def test_jitter_is_added_after_the_cap():
    assert Retry(base=10, cap=10, jitter=4).delay(3, 0.5) == 12


def test_a_cap_below_the_base_wins():
    assert waits(Retry(base=60, cap=7, jitter=0), 3) == [7, 7, 7]


def test_a_cap_of_zero_is_no_wait_and_not_no_cap():
    assert waits(Retry(base=60, cap=0, jitter=0), 3) == [0, 0, 0]


@pytest.mark.parametrize("failures", [0, -1, -100])
def test_a_count_below_one_is_read_as_one(failures):
    assert Retry(base=5, cap=300, jitter=0).delay(failures, 0.0) == 5


@pytest.mark.parametrize("failures", [63, 64, 1_025, 10_000, 10**9])
def test_no_number_of_failures_overflows(failures):
    assert Retry(base=5, cap=300, jitter=0).delay(failures, 0.0) == 300
    assert math.isfinite(Retry(base=60, cap=None, jitter=0).delay(failures, 0.0))


@given(policies, st.integers(1, ATTEMPTS[-1]), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_negative_and_never_past_cap_and_jitter(retry, failures, noise):
    wait = retry.delay(failures, noise)

    assert 0 <= wait < math.inf
    if retry.cap is not None:
        assert wait <= retry.cap + retry.jitter


@given(policies, st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_never_shrink_and_the_same_inputs_give_the_same_wait(retry, failures, noise):
    assert retry.delay(failures, noise) <= retry.delay(failures + 1, noise)
    assert retry.delay(failures, noise) == retry.delay(failures, noise)


@pytest.mark.parametrize(("base", "delays"), [("1h", [3600.0, 3600.0]), (200, [200.0, 300.0]), (5, [5.0, 10.0])])
def test_the_usual_cap_is_never_less_than_the_base(base: object, delays: list[float]) -> None:
    policy = Retry(max_attempts=3, base=base, jitter=0)
    assert [policy.delay(failures, 0) for failures in (1, 2)] == delays
