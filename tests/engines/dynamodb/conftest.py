"""What the tests of DynamoDB alone need: the table seen with boto3, a layer that counts units, nothing of AWS set."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config

from tests.support import dynamo_servers
from tests.support.faults_dynamodb import FaultLayer
from treadle import Treadle
from treadle.engines import connect
from treadle.engines.dynamodb import claim, cursors, gate, leases, scan, settle
from treadle.engines.dynamodb.engine import DynamoEngine
from treadle.engines.dynamodb.items import Item, ItemKey, Value
from treadle.testing import FakeClock

SESSION = boto3.session.Session(aws_access_key_id="treadle", aws_secret_access_key="treadle", region_name="us-east-1")


@pytest.fixture(params=["dynamodb"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine, whatever else the conformance suite runs on."""
    return request.param


@pytest.fixture(autouse=True)
def _nothing_of_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials and regions come from the test alone."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))


class Table:
    """The table as another program sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        once = Config(retries={"total_max_attempts": 1})
        self.client = SESSION.client("dynamodb", endpoint_url=dynamo_servers.shared_dynamodb(), config=once)

    def item(self, pk: str, sk: str) -> Item | None:
        key = ItemKey(pk, sk).attributes
        return self.client.get_item(TableName=self.name, Key=key, ConsistentRead=True).get("Item")

    def items(self, prefix: str = "") -> list[Item]:
        """Every item whose partition begins so."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        found = [item for page in pages for item in page["Items"] if item["PK"]["S"].startswith(prefix)]
        return sorted(found, key=lambda item: (item["PK"]["S"], item["SK"]["S"]))

    def places(self, prefix: str = "") -> list[ItemKey]:
        return [ItemKey(item["PK"]["S"], item["SK"]["S"]) for item in self.items(prefix)]

    def due(self, pk: str = "job", high: str = "scheduled#~") -> list[Item]:
        """The seed's own query: PK = job and SK <= scheduled#..., whatever number of pages it takes."""
        pages = self.client.get_paginator("query").paginate(
            TableName=self.name,
            KeyConditionExpression="PK = :pk and SK <= :high",
            ExpressionAttributeValues={":pk": {"S": pk}, ":high": {"S": high}},
            ConsistentRead=True,
        )
        return [item for page in pages for item in page["Items"]]

    def put(self, **attributes: Value) -> None:
        self.client.put_item(TableName=self.name, Item=attributes)

    def remove(self, place: ItemKey) -> None:
        self.client.delete_item(TableName=self.name, Key=place.attributes)


@pytest.fixture
def table(store_url: str) -> Table:
    return Table(store_url.partition("://")[2].partition("?")[0])


@pytest.fixture
def open_engine() -> Iterator[Callable[..., DynamoEngine]]:
    """Opens engines on any URL; they go by the machine's clock unless they are given one."""
    opened: list[DynamoEngine] = []

    def open_one(url: str, **options: Any) -> DynamoEngine:
        opened.append(connect(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that meets others' writes counts as busy at once, not after two seconds."""
    for module in (settle, leases, claim, scan):
        monkeypatch.setattr(module, "SHORT_RETRY", 0.02)


@pytest.fixture
def make_app(store_url: str, clock: FakeClock) -> Iterator[Callable[..., Treadle]]:
    """Opens apps on the same store; `clock=None` makes one that goes by the machine's."""
    opened: list[Treadle] = []

    def open_app(**settings: Any) -> Treadle:
        opened.append(Treadle(settings.pop("url", store_url), **{"clock": clock, **settings}))
        return opened[-1]

    yield open_app
    for app in opened:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app()


# ------------------------------------------------------------------------------------------------ units


@pytest.fixture
def layer() -> Iterator[FaultLayer]:
    """Between a far engine and the server: it counts requests and units."""
    with FaultLayer(dynamo_servers.shared_dynamodb(), seed=1) as layer:
        yield layer


@pytest.fixture
def far_url(layer: FaultLayer, store_url: str) -> str:
    """The store by way of the layer."""
    return store_url.replace(dynamo_servers.shared_dynamodb(), layer.url)


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim has seen it trusts for an hour instead of a second or two.

    Else a count depends on the machine: where a claim takes longer than that, the next one reads everything again.
    """
    monkeypatch.setattr(gate, "GATE_LIFETIME", 3600.0)  # that there is no gate
    monkeypatch.setattr(scan, "CURSOR_LIFETIME", 3600.0)  # that these jobs run; a third of a lease is the most
    monkeypatch.setattr(cursors, "QUIET_LIFETIME", timedelta(hours=1))  # that a lane has no jobs
    monkeypatch.setattr(claim, "FRESH_TOKEN_AGE", 3600.0)  # that no other process has sent this claim


class Units(NamedTuple):
    """What some work cost."""

    writes: float
    reads: float
    requests: int


class Meter:
    """An engine whose units are counted: `with meter: work()`, then `meter.last`."""

    def __init__(self, engine: DynamoEngine, layer: FaultLayer) -> None:
        self.engine, self.layer = engine, layer
        self.last = Units(0, 0, 0)

    def __enter__(self) -> None:
        self.layer.forget()

    def __exit__(self, *_: object) -> None:
        spent = self.layer.spent
        self.last = Units(sum(spent.writes.values()), sum(spent.reads.values()), len(self.layer.log))

    def of(self, work: Callable[[], Any]) -> Units:
        with self:
            work()
        return self.last


@pytest.fixture
def meter(open_engine: Callable[..., DynamoEngine], far_url: str, layer: FaultLayer, clock: FakeClock) -> Meter:
    """Opened, with the slot of plain jobs known: what is paid once in the life of a table or process is paid."""
    meter = Meter(open_engine(far_url, clock=clock.now), layer)
    meter.engine.open()
    return meter
