"""Tables for tests on the shared DynamoDB server of this process: fresh ones, or cheaper ones from a pool.

with empty_table("dynoxide") as url:
    connect(url)
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

from tests.support import dynamo_servers
from treadle.engines.dynamodb import schema
from treadle.engines.dynamodb.client import Client

SPREAD = 4
SPARE = 6  # whoever still talks to the last ones must be gone before they are used again
MANY = 100  # items; to drop a table with more is quicker than to empty it
BATCH = 25  # items of one BatchWriteItem
KEPT = ("TableStatus", "KeySchema", "AttributeDefinitions", "BillingModeSummary", "CreationDateTime", "TableId")

_spare: dict[str, deque[tuple[str, object]]] = {}


@contextmanager
def fresh_table(server: str) -> Iterator[str]:
    """The URL of a table that nobody used before; it is gone afterwards."""
    name = _created(server)
    try:
        yield _url(server, name)
    finally:
        _drop(_client(server), name)


@contextmanager
def empty_table(server: str) -> Iterator[str]:
    """The URL of a table with nothing in it that an earlier test may have used and left as it was."""
    client, spare = _client(server), _spare.setdefault(server, deque())
    if len(spare) < SPARE:
        name = _created(server)
        made = _shape(client, name)
    else:
        name, made = spare.popleft()
    yield _url(server, name)
    found = _shape(client, name)
    if found == made and emptied(client, name):
        spare.append((name, made))
    elif found is not None:
        _drop(client, name)


@cache
def _client(server: str) -> Client:
    """One a server: to make it costs more than all that is asked of it here."""
    return Client("", region="us-east-1", endpoint=dynamo_servers.shared_dynamodb(server))


def _url(server: str, name: str) -> str:
    endpoint = dynamo_servers.shared_dynamodb(server)
    return f"dynamodb://{name}?endpoint={endpoint}&region=us-east-1&spread={SPREAD}&skew=0"


def _created(server: str) -> str:
    client = _client(server)
    client.table = f"t{uuid4().hex[:20]}"
    schema.create(client, SPREAD)
    return client.table


def _drop(client: Client, name: str) -> None:
    client.call("DeleteTable", {"TableName": name})


def _shape(client: Client, name: str) -> object:
    """What of a table a test may have changed besides its items; None if it is gone."""
    client.table = name
    live = schema.describe(client)
    lives = {"TableName": name}
    return live and ([live.get(field) for field in KEPT], client.call("DescribeTimeToLive", lives))


def emptied(client: Client, name: str) -> bool:
    """Delete what a test left behind; whether only the first item is there now, as it was made."""
    page = client.call("Scan", {"TableName": name, "ConsistentRead": True})
    first = [item for item in page["Items"] if item == _first_item()]
    rest = [{"PK": item["PK"], "SK": item["SK"]} for item in page["Items"] if item not in first]
    if not first or len(rest) > MANY or "LastEvaluatedKey" in page:
        return False
    for start in range(0, len(rest), BATCH):
        deletes = [{"DeleteRequest": {"Key": key}} for key in rest[start : start + BATCH]]
        if client.call("BatchWriteItem", {"RequestItems": {name: deletes}}).get("UnprocessedItems"):
            return False
    return True


def _first_item() -> dict[str, Any]:
    return {**schema.META.attributes, "version": {"N": str(schema.LAYOUT_VERSION)}, "spread": {"N": str(SPREAD)}}
