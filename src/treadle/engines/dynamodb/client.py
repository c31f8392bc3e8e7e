"""Calls to DynamoDB: signed, on pooled connections, repeated while that helps, their errors told apart by what to do.

botocore finds the credentials, the region and the address, and signs; its own client is not used for calls, for it
costs four times the processor time of the request it sends, and repeats conditional writes on its own.
"""

import json
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import botocore.exceptions
import botocore.session
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from treadle.engines.dynamodb.items import Item, Place
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError
from treadle.model import new_id

CONNECT = 2.0  # seconds to wait for a connection
ANSWER = 5.0  # seconds to wait for one answer
PATIENCE = 6.0  # seconds to go on trying
BRIEFLY = 2.0  # seconds, for one of many that others wait for
CONNECTIONS = 32
FIRST_PAUSE, LONGEST_PAUSE = 0.025, 1.0
TRIES = 20  # at something that others keep changing under us
BATCH = 100  # items a BatchGetItem takes, and a transaction
ALL = "\U0010ffff"  # the highest sort key of all; names of people go beyond ASCII

_CROWDED = (
    "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
    "TransactionConflictException", "TransactionInProgressException", "TransactionConflict", "ThrottlingError",
    "ProvisionedThroughputExceeded", "LimitExceededException",
)  # fmt: skip
_ACCESS = (
    "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "MissingAuthenticationTokenException", "IncompleteSignatureException",
)  # fmt: skip


class Failed(Exception):
    """A condition did not hold: of a transaction's parts, `which` were they, and their items as they are."""

    def __init__(self, which: Mapping[int, Item | None]) -> None:
        super().__init__("a condition did not hold")
        self.which = which


class Crowded(EngineUnavailable):
    """Others write there too often, or the partition gives no more just now; repeating is safe.

    Of a transaction, `which` were the parts that could not be written, as far as the store tells.
    """

    def __init__(self, message: str, which: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.which = frozenset(which)


class Refused(ValueError):
    """The store will not take this value."""


class Client:
    """One table of one account; may be used from many threads."""

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

    # ------------------------------------------------------------------------------------ reading

    def get(self, places: Sequence[Place]) -> dict[Place, Item]:
        """These items, as far as they exist, by a consistent read."""
        found: dict[Place, Item] = {}
        for start in range(0, len(places), BATCH):
            keys = [place.key for place in dict.fromkeys(places[start : start + BATCH])]
            wanted: dict[str, Any] = {self.table: {"Keys": keys, "ConsistentRead": True}}
            for pause in pauses(PATIENCE):
                reply = self.call("BatchGetItem", {"RequestItems": wanted})
                for item in reply["Responses"].get(self.table, ()):
                    found[Place(item["PK"]["S"], item["SK"]["S"])] = item
                wanted = reply.get("UnprocessedKeys") or {}
                if not wanted:
                    break
                time.sleep(pause)
            else:
                raise Crowded(f"{self.where} reads no more items just now; repeating is safe")
        return found

    def pages(
        self,
        pk: str,
        *,
        low: str = " ",
        high: str = "~",
        limit: int = 100,
        backward: bool = False,
        patience: float = PATIENCE,
    ) -> Iterator[list[Item]]:
        """The items of a partition with sort keys from `low` to `high`, by consistent reads, page by page."""
        body: dict[str, Any] = {
            "TableName": self.table,
            "KeyConditionExpression": "PK = :pk and SK between :low and :high",
            "ExpressionAttributeValues": {":pk": {"S": pk}, ":low": {"S": low}, ":high": {"S": high}},
            "ConsistentRead": True,
            "ScanIndexForward": not backward,
            "Limit": limit,
        }
        while low <= high:
            reply = self.call("Query", body, patience=patience)
            yield reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return
            body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}

    # ------------------------------------------------------------------------------------ writing

    def write(
        self, parts: Sequence[dict[str, Any]], *, patience: float = PATIENCE, once: bool = False, give_way: bool = False
    ) -> None:
        """Write all of these or none; `Failed` says whose condition did not hold.

        One part is a plain call and costs half, but if its answer is lost the repeat may fail of what it wrote itself;
        with `once` it is a transaction too. With `give_way` a crowded store is not asked again.
        """
        if len(parts) == 1 and not once:
            [(kind, part)] = parts[0].items()
            body = {**part, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
            self.call(f"{kind}Item", body, patience=patience, give_way=give_way)
            return
        items = [
            {
                kind: {**part, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
                if "ConditionExpression" in part
                else part
            }
            for one in parts
            for kind, part in one.items()
        ]
        # A repeated sending with the same token is recognised, so an answer that was lost is given again.
        body = {"TransactItems": items, "ClientRequestToken": new_id()}
        self.call("TransactWriteItems", body, patience=patience, give_way=give_way)

    def delete(self, places: Sequence[Place]) -> None:
        """Delete these items, whatever is in them."""
        for start in range(0, len(places), 25):
            requests = [{"DeleteRequest": {"Key": place.key}} for place in places[start : start + 25]]
            wanted: dict[str, Any] = {self.table: requests}
            for pause in pauses(PATIENCE):
                wanted = self.call("BatchWriteItem", {"RequestItems": wanted}).get("UnprocessedItems") or {}
                if not wanted:
                    break
                time.sleep(pause)
            else:
                raise Crowded(f"{self.where} deletes no more items just now; repeating is safe")

    # --------------------------------------------------------------------------------------- calls

    def call(
        self, operation: str, body: Mapping[str, Any], *, patience: float = PATIENCE, give_way: bool = False
    ) -> dict[str, Any]:
        """The answer to one call, which is repeated while the store is crowded or silent."""
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            raise Refused("holds half a character (a lone surrogate), which no store takes") from None
        trouble: EngineUnavailable = Crowded(f"{self.where} was not asked")
        for pause in pauses(patience):
            try:
                return self._send(operation, data)
            except EngineUnavailable as error:
                if isinstance(trouble, Crowded):  # else an earlier sending may have been applied, and that counts
                    trouble = error
                if give_way and isinstance(trouble, Crowded):
                    break
                time.sleep(pause)
        raise trouble

    def _send(self, operation: str, data: bytes) -> dict[str, Any]:
        pool, path, headers = self._signed(operation, data)
        try:
            answer = pool.urlopen("POST", path, body=data, headers=headers, retries=False, preload_content=True)
            said = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise EngineUnavailable(f"{self.where} does not answer ({error}); repeating is safe") from error
        if answer.status == 200:
            self._heed(answer.headers.get("Date"))
            return said  # type: ignore[no-any-return]
        raise self._meaning(answer.status, said)

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
            session = botocore.session.get_session()
            region, endpoint = self._wanted
            try:
                region = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
                credentials = session.get_credentials()
            except botocore.exceptions.BotoCoreError as error:
                raise ConfigError(f"url: AWS credentials or region: {error}") from None
            if credentials is None and endpoint is not None:  # an emulator does not care
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
            timeout = urllib3.Timeout(connect=CONNECT, read=ANSWER)
            self._pool = urllib3.connection_from_url(self._url, maxsize=CONNECTIONS, block=False, timeout=timeout)
            self._process = os.getpid()

    def _heed(self, date: str | None) -> None:
        with suppress(TypeError, ValueError):
            if date is not None:
                self.drift = (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds() + 0.5

    def close(self) -> None:
        if self._process == os.getpid():
            self._pool.close()
        self._process = 0

    # -------------------------------------------------------------------------- what an error means

    def _meaning(self, status: int, said: Mapping[str, Any]) -> Exception:
        code = str(said.get("__type", "")).rpartition("#")[2]
        text = str(said.get("message") or said.get("Message") or code or status)
        if code == "ConditionalCheckFailedException":
            return Failed({0: said.get("Item")})
        if code == "TransactionCanceledException":
            return self._cancelled(said, text)
        if code in _CROWDED:
            return Crowded(f"{self.where}: {text}; repeating is safe")
        if status >= 500:
            return EngineUnavailable(f"{self.where}: {text}; repeating is safe")
        if code == "ResourceNotFoundException":
            return SchemaError(f"{self.where} is not there; run `treadle migrate` (or set auto_migrate) first")
        if code == "ResourceInUseException":
            return Crowded(f"{self.where}: {text}; repeating is safe")
        if code == "AccessDeniedException":
            return EngineError(f"{self.where}: {text}. The DynamoDB guide has a policy with the rights it needs")
        if code in _ACCESS:
            return EngineError(f"{self.where}: {text}. See to the credentials: they are wrong or over")
        if code in ("ValidationException", "SerializationException", "ItemCollectionSizeLimitExceededException"):
            return Refused(text)
        return EngineError(f"{self.where}: {code}: {text}")

    def _cancelled(self, said: Mapping[str, Any], text: str) -> Exception:
        reasons = said.get("CancellationReasons") or [{"Code": code} for code in _codes(text)]
        which = {
            number: reason.get("Item")
            for number, reason in enumerate(reasons)
            if reason.get("Code") == "ConditionalCheckFailed"
        }
        if which:
            return Failed(which)
        blamed = [number for number, reason in enumerate(reasons) if reason.get("Code") not in (None, "None")]
        told: Mapping[str, Any] = reasons[blamed[0]] if blamed else {}
        if told.get("Code") in ("ValidationError", "ItemCollectionSizeLimitExceeded"):
            return Refused(str(told.get("Message") or text))
        return Crowded(f"{self.where}: {told.get('Message') or text}; repeating is safe", blamed)


def _codes(text: str) -> list[str]:
    """The reasons as the message spells them: `... reasons [ConditionalCheckFailed, None]`."""
    return [code.strip() for code in text.rpartition("[")[2].rstrip("]").split(",")]


def _address(session: Any, region: str) -> str:
    try:
        return str(session.create_client("dynamodb", region_name=region).meta.endpoint_url)
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"url: {error}") from None


def pauses(patience: float) -> Iterator[float]:
    """How long to wait after each try that failed, until patience is over: longer and longer, never in step."""
    deadline, pause = time.monotonic() + patience, FIRST_PAUSE
    while True:
        yield random.uniform(0, pause)  # noqa: S311 - spreads the callers
        if time.monotonic() >= deadline:
            return
        pause = min(pause * 2, LONGEST_PAUSE)
