"""How a handler's arguments become JSON and JSON becomes its arguments again.

The shape follows from the handler's signature (a parameter annotated `Context` is never part of it):

    one parameter that is a Pydantic model     the payload is the model's own object
    one parameter called `payload`             the payload as it is, validated by its annotation if it has one
    one parameter called `job`                 a dict describing the job, its payload under "payload" and "input"
    anything else                              an object with a key per parameter
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, InvalidJob, InvalidPayload
from treadle.model import Job, check_finite, json_text
from treadle.tasks.context import Context

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_MASK = "*" * 10  # what Pydantic writes in place of a secret
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Payload:
    """The payload side of one handler: encode at enqueue, decode at run, both validated by Pydantic."""

    def __init__(self, handler: Callable[..., Any], name: str, model: type | None = None) -> None:
        self._name = name
        signature = _signature(handler, name)
        self.context_parameter = next((p.name for p in signature.parameters.values() if p.annotation is Context), None)
        taken = [p for p in signature.parameters.values() if p.name != self.context_parameter]
        for parameter in taken:
            if parameter.kind in _VARIADIC or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise ConfigError(f"task {name!r}: parameter {parameter} cannot be filled from JSON; name it")
        self._signature = signature.replace(parameters=taken)
        self._single = taken[0].name if len(taken) == 1 and _whole(taken[0], model) else None
        self._wants_job = self._single == "job" and model is None
        self._adapter = _adapter(name, taken, self._single, model)

    @property
    def names(self) -> list[str] | None:
        """The keys of the payload, where it is an object with one for each parameter."""
        return None if self._single else list(self._signature.parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON of a call, or InvalidPayload naming the argument."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload("payload", f"{self._name}{self._signature}: {error}") from None
        return self.encode_value(bound.arguments[self._single] if self._single else bound.arguments)

    def encode_value(self, value: Any) -> str:
        """The JSON of a whole payload given as data."""
        from pydantic import ValidationError  # noqa: PLC0415 - heavy, loaded on first use
        from pydantic_core import PydanticSerializationError  # noqa: PLC0415

        try:
            valid = self._adapter.validate_python(value)
        except ValidationError as error:
            raise self._misfit(error) from None
        try:
            # round_trip and by_alias: what is written must be what decode reads.
            data = self._adapter.dump_python(valid, mode="json", by_alias=True, round_trip=True, warnings="error")
            text = json_text(data, "payload")
            if "null" in text:
                check_finite(self._adapter.dump_python(valid, round_trip=True))
            if _MASK in text and self._adapter.validate_json(text) != valid:
                raise ValueError(
                    f"{_masked(data)} is a secret and would be stored as asterisks; pass a reference to it"
                )
        except InvalidJob as error:
            raise InvalidPayload(error.field, error.problem) from None
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidPayload("payload", f"cannot be JSON: {error}") from None
        return text

    def decode(self, job: Job) -> dict[str, Any]:
        """The keyword arguments in a stored payload, validated again: rows outlive the code that wrote them."""
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            value = self._adapter.validate_json(job.payload_json)
        except ValidationError as error:
            raise self._misfit(error) from None
        if self._wants_job:
            return {"job": describe(job, value)}
        if self._single:
            return {self._single: value}
        return dict(value)

    def _misfit(self, error: "ValidationError") -> InvalidPayload:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'payload'}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        return InvalidPayload("payload", f"does not fit task {self._name}{self._signature}: {shown}")


def describe(job: Job, payload: Any) -> dict[str, Any]:
    """A job as the plain dict that handlers registered by name are given."""
    return {
        "id": job.id,
        "task": job.task,
        "job_type": job.task,
        "payload": payload,
        "input": payload,
        "tenant": job.tenant,
        "user_id": job.tenant,
        "queue": job.queue,
        "priority": job.priority,
        "attempt": job.attempt,
        "retry_count": job.failures,
        "max_attempts": job.max_attempts,
        "status": job.state.value,
        "created_at": job.created_at.isoformat(),
        "due_at": job.due_at.isoformat(),
    }


def _masked(data: Any, path: str = "payload") -> str:
    """Where in this data a secret stands masked."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [_masked(item, str(name)) for name, item in items]
    return next(filter(None, found), path if data == _MASK else "")


def _signature(handler: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigError(
            f"task {name!r}: an annotation cannot be resolved ({error}); define its type at module level"
        ) from error


def _whole(parameter: inspect.Parameter, model: type | None) -> bool:
    """Whether this only parameter is the whole payload rather than one key of it."""
    if model is not None or parameter.name in ("payload", "job"):
        return True
    kind = parameter.annotation
    return isinstance(kind, type) and hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def _adapter(name: str, taken: list[inspect.Parameter], single: str | None, model: type | None) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, with_config  # noqa: PLC0415
    from typing_extensions import NotRequired, TypedDict  # noqa: PLC0415, UP035 - Pydantic wants this one below 3.12

    def annotation(parameter: inspect.Parameter) -> Any:
        return Any if parameter.annotation is parameter.empty else parameter.annotation

    try:
        if model is not None:
            return TypeAdapter(model)
        if single:
            return TypeAdapter(annotation(taken[0]))
        fields = {p.name: annotation(p) if p.default is p.empty else NotRequired[annotation(p)] for p in taken}
        shape = TypedDict("Payload", fields)  # type: ignore[misc]
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape))
    except PydanticSchemaGenerationError as error:
        raise ConfigError(f"task {name!r}: an annotation has no JSON form: {str(error).splitlines()[0]}") from None
