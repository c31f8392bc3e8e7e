"""A payload that Pydantic writes in one pass is the very text that careful writing gives, or the very same refusal."""

import inspect
import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, PydanticUserError, TypeAdapter, ValidationError

from tests.tasks.odd import (
    KINDS,
    VALUES,
    Clash,
    Constants,
    Custom,
    Deep,
    Floats,
    Inner,
    Mixed,
    Open,
    Renamed,
    Secret,
    Total,
    Tree,
    Whole,
)
from treadle import Context, Job
from treadle.engines.values import ClaimedJob
from treadle.errors import InvalidJob, InvalidPayload
from treadle.model import check_finite, json_text, new_id
from treadle.tasks.payload import Payload
from treadle.tasks.plain_schema import plain_shape
from treadle.tasks.secrets import revealed

# ------------------------------------------------------------------------------------ the careful way, as reference


def careful(payload: Payload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Bind, validate, dump to plain data, write that: how every payload could be written."""
    adapter, signature, single = payload._adapter, payload._signature, payload.single
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidPayload("payload", f"{payload._shown}: {error}") from None
    try:
        valid = adapter.validate_python(bound.arguments[single] if single else bound.arguments)
    except ValidationError as error:
        raise InvalidPayload("payload", f"does not fit: {error.error_count()}") from None
    try:
        ways: Any = {"by_alias": payload._trip.by_alias, "round_trip": True, "warnings": "error"}
        data = adapter.dump_python(valid, mode="json", **ways)
        if payload.secrets.paths:
            data = revealed(data, adapter.dump_python(valid, **ways))
        text = json_text(data, "payload")
        if "null" in text:
            check_finite(adapter.dump_python(valid, round_trip=True))
        if "*" * 10 in text and adapter.validate_json(text) != valid:
            raise ValueError("secret")
    except InvalidJob as error:
        raise InvalidPayload(error.field, error.problem) from None
    except ValueError as error:
        raise InvalidPayload("payload", f"cannot be JSON: {error}") from None
    if payload._trip.in_doubt() or "\N{REPLACEMENT CHARACTER}" in text:
        payload._read_back(valid, text)
    return text


def outcome(write: Callable[[], str]) -> tuple[str, str]:
    """The text, or the error in a few words."""
    try:
        return "text", write()
    except Exception as error:
        message = error.problem if isinstance(error, InvalidJob) else str(error)  # the argument is named elsewhere
        for start, short in (("does not fit", "does not fit"), ("secret", "secret")):
            message = short if start in message else message
        return type(error).__name__, message


def shapes(kind: Any) -> Iterator[Payload]:
    """A handler whose payload is this kind as a whole, and two of which it is a part."""

    def alone(payload): ...  # type: ignore[no-untyped-def]
    def named(value): ...  # type: ignore[no-untyped-def]
    def among(first, value=None, *, last=0): ...  # type: ignore[no-untyped-def]

    alone.__annotations__ = {"payload": kind}
    named.__annotations__ = {"value": kind}
    among.__annotations__ = {"first": int, "value": kind, "last": str}
    yield from (Payload(handler, "task") for handler in (alone, named, among))


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_a_payload_is_written_as_careful_writing_would(kind: Any) -> None:
    alone, named, among = shapes(kind)
    for value in VALUES:
        calls: list[tuple[Payload, tuple[Any, ...], dict[str, Any]]] = [
            (alone, (value,), {}),
            (named, (), {"value": value}),
            (among, (1, value), {"last": "z"}),
        ]
        for payload, args, kwargs in calls:
            if isinstance(value, Iterator):
                continue  # it can be read once only
            wanted = outcome(lambda: careful(payload, args, kwargs))  # noqa: B023
            assert outcome(lambda: payload.encode(args, kwargs)) == wanted, (kind, value)  # noqa: B023


@pytest.mark.parametrize("kind", [str, int, float, list[int], dict[str, str], Inner, Deep, Renamed, datetime, Decimal])
def test_these_are_written_in_one_pass(kind: Any) -> None:
    for payload in shapes(kind):
        assert payload._shape is not None


@pytest.mark.parametrize(
    "kind", [Any, Floats, Clash, Open, Total, Custom, Constants, Tree, Secret, Whole, Mixed, bytes]
)
def test_these_are_written_with_care(kind: Any) -> None:
    assert plain_shape(TypeAdapter(kind).core_schema) is None


def test_a_float_is_written_as_python_writes_it() -> None:
    def handler(x: float) -> None: ...

    payload, noise = Payload(handler, "task"), random.Random(7)
    for _ in range(20_000):
        [number] = struct.unpack("d", noise.randbytes(8))
        for value in (
            number,
            noise.uniform(-10, 10),
            round(noise.uniform(-1e6, 1e6), 3),
            10.0 ** noise.randint(-30, 30),
        ):
            if math.isfinite(value):
                assert payload.encode((value,), {}) == json.dumps({"x": value}, separators=(",", ":"))


# ------------------------------------------------------------------------------------------------------ the call


def one(a: int, b: str = "b", *, c: int = 3) -> None: ...


def required(a: int, *, c: int) -> None: ...


def nothing() -> None: ...


def whole(payload: dict[str, int]) -> None: ...


def with_context(ctx: Context, a: int, b: str = "b") -> None: ...


CALLS: list[tuple[Any, Any]] = [
    ((), {}), ((1,), {}), ((1, "x"), {}), ((1, "x", 3), {}), ((1, "x", 3, 4), {}), ((), {"a": 1}),
    ((), {"b": "x", "a": 1}), ((1,), {"a": 2}), ((1,), {"c": 5}), ((1, "x"), {"b": "y"}), ((1,), {"d": 5}),
    ((), {"b": "x"}), ((), {1: 2}), ((1,), {"c": "no"}), (("no",), {"d": 1}), (({"k": 1},), {}),
    ((), {"payload": {"k": 1}}), (({"k": 1},), {"payload": {}}), (({"k": 1},), {"x": 1}), (([],), {}), (("no",), {}),
    ((None,), {}), ([1], {}), ({1: 2}, {}), ((), {"ctx": 1, "a": 1}),
    ((), {"c": 1}), ((1,), {"c": 1, "b": "z"}),
]  # fmt: skip


@pytest.mark.parametrize("handler", [one, required, nothing, whole, with_context])
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_a_call_is_bound_as_python_binds_it(handler: Callable[..., None], call: tuple[Any, Any]) -> None:
    payload = Payload(handler, "task")
    assert outcome(lambda: payload.encode(*call)) == outcome(lambda: careful(payload, *call))


def test_a_whole_payload_may_have_a_default() -> None:
    def handler(payload: Inner = Inner(n=5)) -> None: ...  # noqa: B008

    assert Payload(handler, "task").encode((), {}) == '{"n":5,"note":null}'


def test_an_error_of_a_validator_is_not_changed() -> None:
    def explode(value: Any) -> Any:
        raise PydanticUserError("mine", code=None)

    def handler(x: Annotated[int, BeforeValidator(explode)]) -> None: ...

    payload = Payload(handler, "task")
    with pytest.raises(PydanticUserError, match="mine"):
        payload.encode((1,), {})
    with pytest.raises(InvalidPayload, match="too many positional arguments"):
        payload.encode((1, 2), {})
    with pytest.raises(InvalidPayload, match="missing a required argument"):
        payload.encode((), {})


# ------------------------------------------------------------------------------------------------------- decode

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)


def test_what_a_claim_gives_is_decoded_like_the_whole_job() -> None:
    payload = Payload(one, "task")
    job = Job(new_id(), "task", payload.encode((1,), {"c": 5}), MOMENT, MOMENT)
    assert payload.decode(ClaimedJob.of(job)) == payload.decode(job) == {"a": 1, "c": 5}


def test_only_a_handler_of_jobs_needs_the_whole_job() -> None:
    def handler(job: dict[str, Any]) -> None: ...

    payload = Payload(handler, "task")
    job = Job(new_id(), "task", '{"a":1}', MOMENT, MOMENT)
    assert payload.wants_job
    assert payload.decode(job)["job"]["payload"] == {"a": 1}
    with pytest.raises(TypeError, match="decode a Job"):
        payload.decode(ClaimedJob.of(job))
    assert not Payload(one, "task").wants_job


def test_decoded_arguments_are_the_callers_own() -> None:
    payload = Payload(one, "task")
    job = Job(new_id(), "task", '{"a":1}', MOMENT, MOMENT)
    payload.decode(job).clear()
    assert payload.decode(job) == {"a": 1}
    assert inspect.signature(one).bind(**payload.decode(job))
