"""The way to DynamoDB: a request is signed and sent on a pooled connection; its answer is a reply or one of our errors.

botocore finds the credentials, the region and the address, and signs. Its own client is not used for requests: it costs
four times the processor time of the request that it sends, and it repeats conditional writes on its own.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import botocore.exceptions
import botocore.session
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.hooks import HierarchicalEmitter

from treadle.engines.dynamodb.items import Item
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError

CONNECT_TIMEOUT = 2.0  # seconds to wait for a connection
READ_TIMEOUT = 5.0  # seconds to wait for one answer
MAX_CONNECTIONS = 32

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


@cache
def _hooks() -> HierarchicalEmitter:
    """botocore's own handlers, for a role or SSO may need them; each session would register them anew, in 9 ms."""
    hooks = HierarchicalEmitter()
    botocore.session.Session(event_hooks=hooks)
    return hooks


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
        self._process = 0
        self._pool: urllib3.HTTPConnectionPool

    @property
    def where(self) -> str:
        return f"table {self.table} at {self._wanted[1] or 'DynamoDB'}"

    def send(self, operation: str, data: bytes) -> dict[str, Any]:
        """The answer to one request, which is sent once."""
        pool, path, headers = self._signed(operation, data)
        try:
            response = pool.urlopen("POST", path, body=data, headers=headers, retries=False, preload_content=True)
            answer = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise EngineUnavailable(f"{self.where} does not answer ({error}); repeating is safe") from error
        if response.status == 200:
            self._note_drift(response.headers.get("Date"))
            return answer  # type: ignore[no-any-return]
        raise self._translated(response.status, answer)

    def close(self) -> None:
        if self._process == os.getpid():
            self._pool.close()
        self._process = 0

    def _signed(self, operation: str, data: bytes) -> tuple[urllib3.HTTPConnectionPool, str, dict[str, str]]:
        if self._process != os.getpid():  # also after a fork: connections are not shared
            self._connect()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        request = AWSRequest(method="POST", url=self._url, data=data, headers=headers)
        try:
            SigV4Auth(self._credentials.get_frozen_credentials(), "dynamodb", self._region).add_auth(request)
        except botocore.exceptions.BotoCoreError as error:  # a role or a token that could not be fetched just now
            raise EngineUnavailable(f"{self.where}: AWS credentials: {error}; repeating is safe") from error
        return self._pool, "/", dict(request.headers.items())

    def _connect(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                return
            session = botocore.session.Session(event_hooks=_hooks(), include_builtin_handlers=False)
            region, endpoint = self._wanted
            try:
                region = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
                credentials = session.get_credentials()
            except botocore.exceptions.BotoCoreError as error:
                raise ConfigError(f"url: AWS credentials or region: {error}") from None
            if credentials is None and endpoint is not None:  # an emulator does not check them
                credentials = Credentials("local", "local")
            if credentials is None:
                raise ConfigError(
                    "url: no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                    "or a profile, or run where a role is attached"
                )
            if region is None and endpoint is None:
                raise ConfigError("url: no AWS region; set AWS_REGION or write dynamodb://table?region=eu-central-1")
            self._region = region or "us-east-1"
            self._url = endpoint or _address(session, self._region)
            self._credentials = credentials
            timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT, read=READ_TIMEOUT)
            self._pool = urllib3.connection_from_url(self._url, maxsize=MAX_CONNECTIONS, block=False, timeout=timeout)
            self._process = os.getpid()

    def _note_drift(self, date: str | None) -> None:
        with suppress(TypeError, ValueError):
            if date is not None:
                self.drift = (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds() + 0.5

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


def _address(session: Any, region: str) -> str:
    try:
        return str(session.create_client("dynamodb", region_name=region).meta.endpoint_url)
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"url: {error}") from None
