"""The pool of tables: a test gets an empty one, and none that an earlier test has altered."""

import pytest

from tests.support import dynamo_servers, dynamo_tables
from treadle import Treadle
from treadle.engines.dynamodb.client import Client
from treadle.engines.dynamodb.items import ItemKey
from treadle.engines.dynamodb.schema import META

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _a_pool_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_tables, "SPARE", 1)
    monkeypatch.setattr(dynamo_tables, "_spare", {})


def used(*deeds: str) -> str:
    """The URL of a table that a test used and did this to."""
    with dynamo_tables.empty_table(dynamo_servers.DEFAULT) as url:
        app = Treadle(url)
        app.register("greet", lambda name: name).enqueue_many([{"name": f"Ada {n}"} for n in range(30)])
        app.close()
        client = Client(
            url.partition("://")[2].partition("?")[0],
            region="us-east-1",
            endpoint=dynamo_servers.shared_dynamodb(),
        )
        for deed in deeds:
            ALTERED[deed](client)
    return url


def newer(client: Client) -> None:
    client.call("PutItem", {"TableName": client.table, "Item": {**META.attributes, "version": {"N": "2"}}})


def crowded(client: Client) -> None:
    for n in range(5):
        puts = [{"PutRequest": {"Item": ItemKey("crowd", f"{n}-{each}").attributes}} for each in range(25)]
        client.call("BatchWriteItem", {"RequestItems": {client.table: puts}})


def without_ttl(client: Client) -> None:
    off = {"Enabled": False, "AttributeName": "ttl"}
    client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": off})


def gone(client: Client) -> None:
    client.call("DeleteTable", {"TableName": client.table})


ALTERED = {"newer": newer, "crowded": crowded, "without ttl": without_ttl, "gone": gone}


def test_a_table_that_was_left_as_it_was_is_used_again_with_nothing_in_it() -> None:
    first = used()
    with dynamo_tables.empty_table(dynamo_servers.DEFAULT) as url:
        assert url == first
        app = Treadle(url)
        assert app.find().jobs == []
        app.close()


@pytest.mark.parametrize("deed", ALTERED)
def test_a_table_that_was_altered_is_not_used_again(deed: str) -> None:
    first = used(deed)
    with dynamo_tables.empty_table(dynamo_servers.DEFAULT) as url:
        assert url != first
