"""The way to DynamoDB: a request is signed and sent on a kept connection; its answer is a reply or one of our errors.

botocore finds credentials where nothing simpler does. Its client is not used for requests: it costs many times the
processor time of the request that it sends, and it repeats conditional writes on its own.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from treadle.engines.dynamodb.access import CredentialSource, botocore_errors, find_access
from treadle.engines.dynamodb.items import Item
from treadle.engines.dynamodb.signing import Request, signed_headers
from treadle.engines.dynamodb.wire import Wire
from treadle.errors import EngineError, EngineUnavailable, SchemaError

CONNECT_TIMEOUT = 2.0  # seconds to wait for a connection
READ_TIMEOUT = 5.0  # seconds to wait for one answer

_THROTTLED = (
    "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
    "TransactionConflictException", "TransactionInProgressException", "TransactionConflict", "ThrottlingError",
    "ProvisionedThroughputExceeded", "LimitExceededException", "ResourceInUseException",
)  # fmt: skip
_CREDENTIALS = (
    "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "MissingAuthenticationTokenException", "IncompleteSignatureException",
)  # fmt: skip
_VALUE_REFUSED = ("ValidationException", "SerializationException", "ItemCollectionSizeLimitExceededException")
_PART_REFUSED = ("ValidationError", "ItemCollectionSizeLimitExceeded")


class ConditionFailed(Exception):
    """A condition did not hold; `which` parts of the transaction had it, each with its item as it is now."""

    def __init__(self, which: Mapping[int, Item | None]) -> None:
        super().__init__("a condition did not hold")
        self.which = which


class Throttled(EngineUnavailable):
    """Others write there too often, or the partition takes no more just now; repeating is safe.

    `which` parts of the transaction could not be written, as far as the store says.
    """

    def __init__(self, message: str, which: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.which = frozenset(which)


class ValueRefused(ValueError):
    """The store does not take this value."""


class Endpoint:
    """Where the requests for one table go; may be used from many threads."""

    def __init__(self, table: str, *, region: str | None = None, endpoint: str | None = None) -> None:
        self.table = table
        self.drift: float | None = None  # seconds that the server's clock was ahead of ours at its last answer
        self._wanted = (region, endpoint)
        self._lock = threading.Lock()
        self._date = ("", 0.0)  # the last date that an answer had, as text and as seconds
        self._process = 0
        self._url: str
        self._region: str
        self._credentials: CredentialSource
        self._wire: Wire

    @property
    def where(self) -> str:
        return f"table {self.table} at {self._wanted[1] or 'DynamoDB'}"

    def send(self, operation: str, data: bytes) -> dict[str, Any]:
        """The answer to one request, which is sent once."""
        if self._process != os.getpid():  # also after a fork: connections are not shared
            self._connect()
        try:
            credentials = self._credentials.get_frozen_credentials()
        except botocore_errors() as error:  # a role or a token that could not be fetched just now
            raise EngineUnavailable(f"{self.where}: AWS credentials: {error}; repeating is safe") from error
        request = Request(self._wire.host, f"DynamoDB_20120810.{operation}", data)
        try:
            answer = self._wire.post(signed_headers(request, credentials, self._region, time.time()), data)
            reply = json.loads(answer.body)
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"{self.where} does not answer ({error}); repeating is safe") from error
        if answer.status == 200:
            self._note_drift(answer.date)
            return reply  # type: ignore[no-any-return]
        raise self._translated(answer.status, reply)

    def close(self) -> None:
        if self._process == os.getpid():
            self._wire.close()
        self._process = 0

    def _connect(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                return
            self._url, self._region, self._credentials = find_access(*self._wanted)
            self._wire = Wire(self._url, CONNECT_TIMEOUT, READ_TIMEOUT)
            self._process = os.getpid()

    def _note_drift(self, date: str) -> None:
        if date and date != self._date[0]:
            try:
                self._date = (date, parsedate_to_datetime(date).timestamp())
            except (TypeError, ValueError):
                return
        if date:
            self.drift = self._date[1] - time.time() + 0.5

    # -------------------------------------------------------------------------- what an error means

    def _translated(self, status: int, answer: Mapping[str, Any]) -> Exception:
        """The error that an answer stands for: one for each thing that a caller can do about it."""
        code = str(answer.get("__type", "")).rpartition("#")[2]
        text = str(answer.get("message") or answer.get("Message") or code or status)
        if code == "ConditionalCheckFailedException":
            return ConditionFailed({0: answer.get("Item")})
        if code == "TransactionCanceledException":
            return self._cancelled(answer, text)
        if code in _THROTTLED:
            return Throttled(f"{self.where}: {text}; repeating is safe")
        if status >= 500:
            return EngineUnavailable(f"{self.where}: {text}; repeating is safe")
        if code in _VALUE_REFUSED:
            return ValueRefused(text)
        return self._lasting(code, text)

    def _lasting(self, code: str, text: str) -> Exception:
        """An error that stays until somebody has done something about it."""
        if code == "ResourceNotFoundException":
            return SchemaError(f"{self.where} does not exist; run `treadle migrate` (or set auto_migrate) first")
        if code == "AccessDeniedException":
            return EngineError(f"{self.where}: {text}. The DynamoDB guide has a policy with the rights it needs")
        if code in _CREDENTIALS:
            return EngineError(f"{self.where}: {text}. Check the AWS credentials: they are wrong or have expired")
        return EngineError(f"{self.where}: {code}: {text}")

    def _cancelled(self, answer: Mapping[str, Any], text: str) -> Exception:
        """Why a transaction was cancelled. A condition that failed counts more than a conflict beside it."""
        reasons = answer.get("CancellationReasons") or [{"Code": code} for code in _codes(text)]
        which = {
            number: reason.get("Item")
            for number, reason in enumerate(reasons)
            if reason.get("Code") == "ConditionalCheckFailed"
        }
        if which:
            return ConditionFailed(which)
        blamed = [number for number, reason in enumerate(reasons) if reason.get("Code") not in (None, "None")]
        first: Mapping[str, Any] = reasons[blamed[0]] if blamed else {}
        if first.get("Code") in _PART_REFUSED:
            return ValueRefused(str(first.get("Message") or text))
        return Throttled(f"{self.where}: {first.get('Message') or text}; repeating is safe", blamed)


def _codes(text: str) -> list[str]:
    """The reasons as the message spells them: `... reasons [ConditionalCheckFailed, None]`."""
    return [code.strip() for code in text.rpartition("[")[2].rstrip("]").split(",")]
