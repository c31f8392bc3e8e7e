"""How a handler's arguments become JSON and JSON becomes its arguments again.

The shape follows from the handler's signature (a parameter annotated `Context` is never part of it):

    one parameter that is a Pydantic model     the payload is the model's own object
    one parameter called `payload`             the payload as it is, validated by its annotation if it has one
    one parameter called `job`                 a dict describing the job, its payload under "payload" and "input"
    anything else                              an object with a key per parameter
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol, get_args, get_origin

from treadle.errors import ConfigError, InvalidJob, InvalidPayload
from treadle.model import PAYLOAD_CAP, Job, check_finite, json_text
from treadle.model.text import json_data
from treadle.tasks.context import is_context
from treadle.tasks.secrets import ANY_DEPTH, ANY_KEY, NO_SECRETS, Path, Secrets, hide, masked, revealed, spelt, stand_in

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_MASK = "*" * 10  # what Pydantic writes in place of a secret
_MASK_BYTES = _MASK.encode()
_NUL = rb"\u0000"
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_REPLACED_BYTES = _REPLACED.encode()
_UNLIKE = re.compile(rb"[0-9]{17}|[0-9]e[-+0-9]|0\.0000")
"""Numbers that Pydantic may write in other digits than Python, or that Python may refuse to write."""
_SHORT = 640  # no number in so few characters has too many digits for Python
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Stored(Protocol):
    """What has a stored payload: a Job, or what a claim gives."""

    @property
    def payload_json(self) -> str: ...


class Payload:
    """The payload side of one handler: encode at enqueue, decode at run, both validated by Pydantic."""

    def __init__(
        self, handler: Callable[..., Any], name: str, model: type | None = None, secret: Sequence[Path] = ()
    ) -> None:
        """`secret` are paths that the task names, beside the secrets that its types tell."""
        self._name = name
        signature = _signature(handler, name)
        self.context_parameter = next((p.name for p in signature.parameters.values() if is_context(p)), None)
        taken = [p for p in signature.parameters.values() if p.name != self.context_parameter]
        for parameter in taken:
            if parameter.kind in _VARIADIC or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise ConfigError(f"task {name!r}: parameter {parameter} cannot be filled from JSON; name it")
        self._signature = signature.replace(parameters=taken)
        self._by_place = [p.name for p in taken if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        self.single = taken[0].name if len(taken) == 1 and _is_whole(taken[0], model) else None
        self.wants_job = self.single == "job" and model is None
        self._adapter = _adapter(name, taken, self.single, model)
        self._bind()
        self.secrets = self._secrets(secret)

    def json_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the payload; None where a type of it has none."""
        from pydantic import PydanticUserError  # noqa: PLC0415 - heavy, loaded on first use

        try:
            return self._adapter.json_schema()
        except PydanticUserError:  # PydanticInvalidForJsonSchema is one
            return None

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Which of these keys the payload may hold."""
        keys = self._keys
        return [name for name in names if keys is None or any(name in key.read_as for key in keys)]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which keys the payload needs beside these."""
        return [key.name for key in self._keys or () if key.required and key.read_as.isdisjoint(names)]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON of a call, or InvalidPayload naming the argument."""
        if not isinstance(args, tuple):  # what a caller of enqueue_many gives instead
            args = _as_tuple(args)
        value: dict[str, Any] = dict(zip(self._by_place, args))  # noqa: B905 - those too many are missed below
        value.update(kwargs)
        if len(value) != len(args) + len(kwargs) or (self.single and value.keys() != {self.single}):
            value = self._bound(args, kwargs)
        try:
            valid = self._validate(value[self.single] if self.single else value)
        except Exception as error:
            self._bound(args, kwargs)  # a call that Python would refuse is refused in Python's words
            given = value[self.single] if self.single else value
            self._refuse(error, given)
            self._blame(error, given)
        return self._text(valid)

    def encode_named(self, arguments: Mapping[str, Any]) -> str:
        """The JSON of a call whose arguments are all named."""
        if self.single is not None or type(arguments) is not dict:
            return self.encode((), arguments)
        try:
            valid = self._validate(arguments)
        except Exception:
            return self.encode((), arguments)  # which says what is wrong
        return self._text(valid)

    def encode_value(self, value: Any) -> str:
        """The JSON of a whole payload given as data."""
        try:
            valid = self._validate(value)
        except Exception as error:
            self._refuse(error, value)
            self._blame(error, value)
        return self._text(valid)

    def decode(self, source: Stored) -> dict[str, Any]:
        """The keyword arguments in a stored payload, validated again: rows outlive the code that wrote them.

        A handler that `wants_job` can only be given a whole Job.
        """
        try:
            value = self._validate_json(source.payload_json)
        except Exception as error:
            self._refuse(error, json_data(source.payload_json))
            raise
        if self.single is None:
            return value  # type: ignore[no-any-return] # a dict of its own
        if not self.wants_job:
            return {self.single: value}
        if not isinstance(source, Job):
            raise TypeError(f"the handler of task {self._name!r} is given the whole job: decode a Job")
        return {"job": describe(source, value)}

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, as Python binds them; InvalidPayload in Python's words."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload("payload", f"{self._shown}: {error}") from None
        if self.single:
            bound.apply_defaults()
        return bound.arguments

    def _checked_text(self, valid: Any) -> str:
        """The JSON of a valid payload whose types may not be read as they are written."""
        text = self._text_of(valid)
        if self._trip.in_doubt():
            self._read_back(valid, text)
        return text

    def _text_of(self, valid: Any) -> str:
        """The JSON of a valid payload: as Pydantic writes it, where that is the very text of `_careful_text`."""
        shape = self._shape
        if shape is None:
            return self._careful_text(valid)
        certain = shape.certain
        for name, zero in shape.numbers.items():
            certain = certain and type(valid.get(name, zero)) is type(zero)
        try:
            # To ask for errors costs more than the text does.
            text = self._to_json(
                valid, by_alias=self._trip.by_alias, round_trip=True, warnings=False if certain else "error"
            )
        except Exception:  # the careful way says why, in our words
            return self._careful_text(valid)
        if len(text) > PAYLOAD_CAP or _odd_text(text) or _odd_number(text, shape.kinds):
            return self._careful_text(valid)
        return text.decode()

    def _careful_text(self, valid: Any) -> str:
        """The JSON of a valid payload by way of plain data, or InvalidPayload saying why it has none."""
        try:
            data = self._plain_data(valid)
            text = json_text(data, "payload")
            if "null" in text:
                check_finite(self._adapter.dump_python(valid, round_trip=True))
            if _MASK in text and self._adapter.validate_json(text) != valid:
                raise ValueError(
                    f"{masked(data, _MASK)} is a secret and would be stored as asterisks; pass a reference to it"
                )
            if _REPLACED in text:  # maybe in place of half a character in a key
                self._read_back(valid, text)
        except InvalidPayload:
            raise
        except InvalidJob as error:
            raise InvalidPayload(self._culprit(valid) or error.field, error.problem) from None
        except ValueError as error:  # Pydantic's own is one
            problem = hide(str(error), self.secrets.values(valid))
            raise InvalidPayload(self._culprit(valid) or "payload", f"cannot be JSON: {problem}") from None
        return text

    def _plain_data(self, valid: Any, include: set[str] | None = None) -> Any:
        """A valid payload as plain data. round_trip and by_alias: what is written must be what decode reads."""
        options: Any = {
            "by_alias": self._trip.by_alias, "round_trip": True, "warnings": "error", "include": include,
        }  # fmt: skip
        data = self._adapter.dump_python(valid, mode="json", **options)
        return revealed(data, self._adapter.dump_python(valid, **options)) if self._fields.paths else data

    def _culprit(self, valid: Any) -> str:
        """The argument that has no JSON form by itself; none if it is the payload as a whole that has none."""
        if self.single or not isinstance(valid, dict):
            return ""
        for name in valid:
            try:
                json_text(self._plain_data(valid, {name}), "payload")
                check_finite(self._adapter.dump_python(valid, round_trip=True, include={name}))
            except ValueError:  # ours and Pydantic's are
                return str(name)
        return ""

    def _read_back(self, valid: Any, text: str) -> None:
        """InvalidPayload if this text would not be read as the payload that it was made of."""
        from treadle.tasks.round_trip import difference  # noqa: PLC0415 - loaded with Pydantic

        try:
            read = self._validate_json(text)
        except Exception as error:
            self._refuse(error, json_data(text), "is not read as it is written by")
            self._blame(error, valid)
        if found := difference(valid, read, self._trip):
            path, problem = found
            hint = self._trip.hints.get(path.rpartition(".")[2], "")
            raise InvalidPayload(path or "payload", f"{problem}{hint and f': {hint}'}")

    def _refuse(self, error: Exception, given: Any, what: str = "does not fit") -> None:
        """InvalidPayload for what Pydantic says of a payload; any other error is a validator's own.

        No secret that was given is repeated.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - heavy, loaded on first use

        if not isinstance(error, ValidationError):
            return
        items = error.errors(include_url=False, include_context=False, include_input=False)
        found = [(".".join(map(str, item["loc"])), self._words(item)) for item in items]
        problems = [f"{place or 'payload'}: {words}" for place, words in found]
        if what != "does not fit":
            known = self._trip.hints
            problems += dict.fromkeys(known[str(part)] for item in items for part in item["loc"] if part in known)
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        hidden = self.secrets.values(given)
        shown = hide(shown, hidden)
        parts = [(hide(f"payload.{place}".rstrip("."), hidden), hide(words, hidden)) for place, words in found[:100]]
        raise InvalidPayload("payload", f"{what} task {self._shown}: {shown}", parts) from None

    @property
    def _shown(self) -> str:
        from treadle.tasks.signature import as_called  # noqa: PLC0415 - for errors alone

        return as_called(self._name, self._signature)

    def _blame(self, error: Exception, given: Any) -> NoReturn:
        """InvalidPayload for what a validator has raised of its own, such as a bug; its cause tells where that was."""
        from pydantic import PydanticUserError  # noqa: PLC0415 - heavy, loaded on first use

        if isinstance(error, PydanticUserError):  # about how the types are written
            raise error
        values, secret = self.secrets.values(given), bool(self.secrets.paths)
        cause = stand_in(error, lambda text: hide(text, values)) if secret else error
        words = type(error).__name__ if secret else f"{type(error).__name__}: {error}"
        problem = f"does not fit task {self._shown}: a validator raised {words}"
        raise InvalidPayload("payload", problem) from cause

    def _words(self, item: Any) -> str:
        """What Pydantic says of a part of a payload; a validator's own words about a secret may hold some of it."""
        own = item["type"] in ("value_error", "assertion_error")
        if own and self.secrets.covers(item["loc"]):
            return "its validator refuses it"
        return str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")

    def _secrets(self, named: Sequence[Path]) -> Secrets:
        """What is secret in it: by its types, and by the paths that the task names. ConfigError for a slip of these."""
        keys = {ANY_KEY, ANY_DEPTH}.union(*({key.name, *key.read_as} for key in self._keys or ()))
        for path in named:
            if self._keys is not None and path[0] not in keys:
                known = ", ".join(key.name for key in self._keys) or "none"
                raise ConfigError(f"task {self._name!r}: secret: the payload has no {path[0]!r}; it has {known}")
        paths = [*self._fields.paths, *(way for path in named for way in spelt(path, self._fields.aliases))]
        return Secrets(tuple(dict.fromkeys(paths))) if paths else NO_SECRETS

    def _bind(self) -> None:
        """Look up once what each call needs of Pydantic."""
        from pydantic_core import SchemaSerializer, SchemaValidator  # noqa: PLC0415 - heavy, loaded on first use

        from treadle.tasks.plain_schema import plain_shape  # noqa: PLC0415
        from treadle.tasks.round_trip import payload_keys, round_trip  # noqa: PLC0415
        from treadle.tasks.secret_fields import SecretFields  # noqa: PLC0415

        adapter = self._adapter
        self._fields = SecretFields(adapter.core_schema)
        self._trip = round_trip(adapter.core_schema)
        self._keys = payload_keys(adapter.core_schema)
        certain = not self._trip.doubtful and not self._trip.classes
        self._text = self._text_of if certain else self._checked_text
        # A model may be built later, and a plugin may look on: then the adapter is asked each time.
        validator = adapter.validator if type(adapter.validator) is SchemaValidator else adapter
        self._validate, self._validate_json = validator.validate_python, validator.validate_json
        straight = type(adapter.serializer) is SchemaSerializer
        self._shape = plain_shape(adapter.core_schema) if straight else None
        self._to_json: Callable[..., bytes] = adapter.serializer.to_json if straight else adapter.dump_json


def _as_tuple(call: object) -> tuple[Any, ...]:
    if isinstance(call, str | bytes) or not isinstance(call, Iterable):
        raise InvalidPayload(
            "payload",
            f"{type(call).__name__} is not a call; write a tuple such as (value,), or a dict of named arguments",
        )
    return tuple(call)


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


def _odd_text(text: bytes) -> bool:
    """Whether there may be a character that no store keeps, or a secret."""
    return _NUL in text or _MASK_BYTES in text or _REPLACED_BYTES in text


def _odd_number(text: bytes, kinds: frozenset[str]) -> bool:
    """Whether there may be a number that Python would write otherwise, or not at all."""
    if "float" in kinds:
        return b"null" in text or _UNLIKE.search(text) is not None  # null: maybe in place of NaN
    return len(text) > _SHORT and "int" in kinds and _UNLIKE.search(text) is not None


def _signature(handler: Callable[..., Any], name: str) -> inspect.Signature:
    """The handler's signature, its annotations evaluated; ConfigError if one cannot be."""
    try:
        return inspect.signature(handler, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigError(
            f"task {name!r}: an annotation cannot be resolved ({error}); define its type at module level"
        ) from error


def _is_whole(parameter: inspect.Parameter, model: type | None) -> bool:
    """Whether this only parameter is the whole payload rather than one key of it."""
    if model is not None or parameter.name in ("payload", "job"):
        return True
    kind = parameter.annotation
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return isinstance(kind, type) and hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def _adapter(name: str, taken: list[inspect.Parameter], single: str | None, model: type | None) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, with_config  # noqa: PLC0415
    from typing_extensions import NotRequired, TypedDict  # noqa: PLC0415, UP035 - Pydantic wants this one below 3.12

    def annotation(parameter: inspect.Parameter) -> Any:
        return Any if parameter.annotation is parameter.empty else parameter.annotation

    def culprit() -> str:
        """The parameter whose annotation Pydantic refuses."""
        for parameter in taken if model is None else ():
            try:
                TypeAdapter(annotation(parameter))
            except PydanticUserError:
                return f" parameter {parameter.name}:"
        return ""

    try:
        if model is not None:
            return TypeAdapter(model)
        if single:
            return TypeAdapter(annotation(taken[0]))
        fields = {p.name: annotation(p) if p.default is p.empty else NotRequired[annotation(p)] for p in taken}
        shape = TypedDict("Payload", fields)  # type: ignore[misc]
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape))
    except PydanticSchemaGenerationError as error:
        problem = f"an annotation has no JSON form: {str(error).splitlines()[0]}"
        raise ConfigError(f"task {name!r}:{culprit()} {problem}") from None
    except PydanticUserError as error:  # such as: use typing_extensions.TypedDict on Python < 3.12
        raise ConfigError(f"task {name!r}:{culprit()} {error.message.splitlines()[0]}") from None
