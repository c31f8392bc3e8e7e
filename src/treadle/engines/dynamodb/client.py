"""Calls on one table: reads, pages and transactions, each repeated while that helps."""

import base64
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treadle.engines.dynamodb.connection import Endpoint, Throttled, ValueRefused
from treadle.engines.dynamodb.items import Item, ItemKey, key_of
from treadle.errors import EngineUnavailable
from treadle.model import new_id
from treadle.model.backoff import Backoff

RETRY_FOR = 6.0  # seconds for which a call is repeated
SHORT_RETRY = 2.0  # seconds, if it is one of many that others wait for
MAX_TRIES = 20  # at something that others keep changing
MAX_ITEMS = 100  # that one BatchGetItem takes, and one transaction
LARGEST_PAGE = 1000  # items, to which a growing page grows
MAX_DELETED = 25  # items that one BatchWriteItem takes
MAX_SORT_KEY = "\U0010ffff"  # the highest sort key of all: people's names go beyond ASCII
BACKOFF = Backoff(0.025, 1.0)


class Client(Endpoint):
    """One table of one account; may be used from many threads."""

    # ------------------------------------------------------------------------------------ reading

    def get(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Item]:
        """These items, as far as they exist, by a consistent read."""
        found: dict[ItemKey, Item] = {}
        for start in range(0, len(keys), MAX_ITEMS):
            wanted_keys = [key.attributes for key in dict.fromkeys(keys[start : start + MAX_ITEMS])]
            wanted: dict[str, Any] = {self.table: {"Keys": wanted_keys, "ConsistentRead": True}}
            for delay in retry_delays(RETRY_FOR):
                reply = self.call("BatchGetItem", {"RequestItems": wanted})
                found.update({key_of(item): item for item in reply["Responses"].get(self.table, ())})
                wanted = reply.get("UnprocessedKeys") or {}
                if not wanted:
                    break
                time.sleep(delay)
            else:
                raise Throttled(f"{self.where} reads no more items just now; repeating is safe")
        return found

    def pages(
        self,
        pk: str,
        *,
        low: str = " ",
        high: str = "~",
        limit: int = 100,
        backward: bool = False,
        growing: bool = False,
        retry_for: float = RETRY_FOR,
    ) -> Iterator[list[Item]]:
        """The items of a partition with sort keys from `low` to `high`, by consistent reads, page by page.

        With `growing`, each page is twice as large as the one before: few pages for whoever reads on and on.
        """
        body = self._query(pk, low, high, limit)
        body["ScanIndexForward"] = not backward
        while low <= high:
            reply = self.call("Query", body, retry_for=retry_for)
            yield reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return
            limit = min(limit * 2, LARGEST_PAGE) if growing else limit
            body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"], "Limit": limit}

    def page(
        self, pk: str, *, low: str, high: str, limit: int, retry_for: float = RETRY_FOR
    ) -> tuple[list[Item], bool]:
        """One page of these items, and whether there may be more."""
        if low > high:
            return [], False
        reply = self.call("Query", self._query(pk, low, high, limit), retry_for=retry_for)
        return reply["Items"], "LastEvaluatedKey" in reply

    def _query(self, pk: str, low: str, high: str, limit: int) -> dict[str, Any]:
        return {
            "TableName": self.table,
            "KeyConditionExpression": "PK = :pk and SK between :low and :high",
            "ExpressionAttributeValues": {":pk": {"S": pk}, ":low": {"S": low}, ":high": {"S": high}},
            "ConsistentRead": True,
            "Limit": limit,
        }

    # ------------------------------------------------------------------------------------ writing

    def write(
        self,
        parts: Sequence[dict[str, Any]],
        *,
        retry_for: float = RETRY_FOR,
        once: bool = False,
        give_way: bool = False,
    ) -> None:
        """Write all of these or none; ConditionFailed says whose condition did not hold.

        One part is a plain call and costs half, but if its answer is lost, the repeat may fail because of what the call
        itself wrote; with `once` it is a transaction too. With `give_way` a throttled call is not repeated.
        """
        if len(parts) == 1 and not once:
            [(kind, part)] = parts[0].items()
            body = {**part, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
            self.call(f"{kind}Item", body, retry_for=retry_for, give_way=give_way)
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
        # A repeated request with the same token is recognised, so an answer that was lost is given again.
        body = {"TransactItems": items, "ClientRequestToken": new_id()}
        self.call("TransactWriteItems", body, retry_for=retry_for, give_way=give_way)

    def delete(self, keys: Sequence[ItemKey]) -> None:
        """Delete these items, whatever is in them."""
        for start in range(0, len(keys), MAX_DELETED):
            requests = [{"DeleteRequest": {"Key": key.attributes}} for key in keys[start : start + MAX_DELETED]]
            wanted: dict[str, Any] = {self.table: requests}
            for delay in retry_delays(RETRY_FOR):
                wanted = self.call("BatchWriteItem", {"RequestItems": wanted}).get("UnprocessedItems") or {}
                if not wanted:
                    break
                time.sleep(delay)
            else:
                raise Throttled(f"{self.where} deletes no more items just now; repeating is safe")

    # --------------------------------------------------------------------------------------- calls

    def call(
        self, operation: str, body: Mapping[str, Any], *, retry_for: float = RETRY_FOR, give_way: bool = False
    ) -> dict[str, Any]:
        """The answer to one call, which is repeated while the store is throttled or silent."""
        try:
            text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_base64)
            data = text.encode()
        except UnicodeEncodeError:
            raise ValueRefused("holds half a character (a lone surrogate), which no store takes") from None
        trouble: EngineUnavailable = Throttled(f"{self.where} was not asked")
        for delay in retry_delays(retry_for):
            try:
                return self.send(operation, data)
            except EngineUnavailable as error:
                if isinstance(trouble, Throttled):  # else an earlier request may have been applied, and that counts
                    trouble = error
                if give_way and isinstance(trouble, Throttled):
                    break
                time.sleep(delay)
        raise trouble


def _base64(value: bytes) -> str:
    """A binary value as the protocol writes it; in an item it is bytes, as boto3 takes it from a caller's list."""
    return base64.b64encode(value).decode()


def retry_delays(seconds: float) -> Iterator[float]:
    """How long to wait after each failed try, until the seconds are over: longer each time, never in step."""
    deadline, failures = time.monotonic() + seconds, 0
    while True:
        yield BACKOFF.delay(failures) * random.random()  # noqa: S311 - spreads the callers
        if time.monotonic() >= deadline:
            return
        failures += 1
