"""The layer that fails as DynamoDB does: boto3 sees what the service would show it, and nothing else is disturbed."""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from tests.support.dynamo_servers import kinds, shared_dynamodb
from tests.support.faults_dynamodb import Exchange, FaultLayer, Partition
from tests.support.making import race

SESSION = boto3.session.Session(aws_access_key_id="treadle", aws_secret_access_key="treadle", region_name="us-east-1")
ONCE = Config(retries={"total_max_attempts": 1}, read_timeout=20, max_pool_connections=20)


class Seconds:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Table:
    """Short words for one table, which has an index `by_lane` on `lane`, as seen through one client."""

    def __init__(self, client, name: str) -> None:
        self.client, self.name = client, name

    def put(self, pk: str, sk: str = "1", **attributes: str):
        return self.client.put_item(TableName=self.name, Item=item(pk, sk, **attributes))

    def get(self, pk: str, sk: str = "1", **options):
        return self.client.get_item(TableName=self.name, Key=item(pk, sk), **options).get("Item")

    def update(self, pk: str, expression: str = "set n = :n", *, sk: str = "1", condition: str = "", **values: str):
        options = {"ConditionExpression": condition} if condition else {}
        if values:
            options["ExpressionAttributeValues"] = {f":{name}": {"S": value} for name, value in values.items()}
        return self.client.update_item(TableName=self.name, Key=item(pk, sk), UpdateExpression=expression, **options)

    def lane(self, value: str, **options) -> list[str]:
        """The partition keys that the index gives for a lane."""
        found = self.client.query(
            TableName=self.name,
            IndexName="by_lane",
            KeyConditionExpression="lane = :lane",
            ExpressionAttributeValues={":lane": {"S": value}},
            **options,
        )
        return sorted(each["PK"]["S"] for each in found["Items"])

    def put_together(self, *keys: str):
        puts = [{"Put": {"TableName": self.name, "Item": item(pk)}} for pk in keys]
        return self.client.transact_write_items(TransactItems=puts)

    def put_batch(self, *keys: str) -> list[str]:
        """The keys of what was not processed."""
        puts = [{"PutRequest": {"Item": item(pk)}} for pk in keys]
        left = self.client.batch_write_item(RequestItems={self.name: puts})["UnprocessedItems"]
        return [one["PutRequest"]["Item"]["PK"]["S"] for one in left.get(self.name, [])]


def item(pk: str, sk: str = "1", **attributes: str) -> dict[str, dict[str, str]]:
    return {name: {"S": value} for name, value in {"PK": pk, "SK": sk, **attributes}.items()}


def connect(url: str, config: Config = ONCE):
    return SESSION.client("dynamodb", endpoint_url=url, config=config)


def make_table(client) -> str:
    name = f"t{uuid4().hex[:12]}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("PK", "SK", "lane")],
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by_lane",
                "KeySchema": [
                    {"AttributeName": "lane", "KeyType": "HASH"},
                    {"AttributeName": "PK", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
    return name


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture(scope="module")
def server():
    return connect(shared_dynamodb())


@pytest.fixture
def truth(server) -> Iterator[Table]:
    """A table of the test's own, past the layer."""
    name = make_table(server)
    yield Table(server, name)
    server.delete_table(TableName=name)


@pytest.fixture
def layer(clock: Seconds) -> Iterator[FaultLayer]:
    with FaultLayer(shared_dynamodb(), seed=7, clock=clock) as layer:
        yield layer


@pytest.fixture
def table(layer: FaultLayer, truth: Table) -> Table:
    """The same table through the layer."""
    return Table(connect(layer.url), truth.name)


def refused(act: Callable[[], object]) -> dict:
    """The error's response."""
    with pytest.raises(ClientError) as caught:
        act()
    return caught.value.response


def code(act: Callable[[], object]) -> str:
    return refused(act)["Error"]["Code"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "waited 10 s in vain"
        time.sleep(0.002)


# ------------------------------------------------------------------------------- what passes undisturbed


@pytest.mark.parametrize("kind", kinds())
def test_without_a_fault_every_answer_is_the_servers_own(kind):
    direct = connect(shared_dynamodb(kind))
    name = make_table(direct)

    def said(client, **measured) -> list[object]:
        keys = {"TableName": name, "Key": item("a")}
        put = {"Put": {"TableName": name, "Item": item("a", lane="x", text="é" * 2000)}}
        check = {"ConditionCheck": {**keys, "ConditionExpression": "attribute_not_exists(lane)"}}
        query = {"KeyConditionExpression": "PK = :p", "ExpressionAttributeValues": {":p": {"S": "a"}}}
        answers = [
            client.put_item(TableName=name, Item=item("a", lane="x"), **measured),
            client.get_item(**keys, ConsistentRead=True, **measured),
            client.query(TableName=name, **query, **measured),
            client.scan(TableName=name, **measured),
            client.transact_write_items(TransactItems=[put], **measured),
            client.transact_get_items(TransactItems=[{"Get": keys}], **measured),
            client.batch_write_item(RequestItems={name: [{"PutRequest": {"Item": item("b")}}]}, **measured),
            client.batch_get_item(RequestItems={name: {"Keys": [item("a"), item("b")]}}, **measured),
            refused(lambda: client.transact_write_items(TransactItems=[check], **measured)),
            client.delete_item(**keys, ReturnValues="ALL_OLD", **measured),
            client.delete_item(TableName=name, Key=item("b"), **measured),
            client.describe_table(TableName=name),
            refused(lambda: client.describe_table(TableName="nowhere")),
            refused(lambda: client.put_item(TableName="nowhere", Item=item("a"))),
        ]
        for answer in answers:
            answer.pop("ResponseMetadata")
        return answers

    with FaultLayer(shared_dynamodb(kind), seed=1) as layer:
        through = connect(layer.url)
        for wish in ({}, {"ReturnConsumedCapacity": "INDEXES"}):
            assert said(through, **wish) == said(direct, **wish)
        total = through.put_item(TableName=name, Item=item("a", lane="x"), ReturnConsumedCapacity="TOTAL")
    assert total["ConsumedCapacity"] == {"TableName": name, "CapacityUnits": 2.0}
    direct.delete_table(TableName=name)


def test_large_items_pass_on_many_connections_at_once(table):
    def talk(place: int) -> bool:
        for n in range(5):
            text = chr(ord("a") + place) * 300_000
            table.put(f"{place}-{n}", text=text)
            assert table.get(f"{place}-{n}", ConsistentRead=True)["text"]["S"] == text
        return True

    assert all(race(6, talk))


def test_a_malformed_request_is_left_to_the_server(layer, truth):
    careless = connect(layer.url, ONCE.merge(Config(parameter_validation=False)))
    layer.limit_partitions()

    assert code(lambda: careless.update_item(TableName=truth.name)) == "ValidationException"
    assert code(careless.transact_write_items) == "ValidationException"
    assert code(lambda: careless.get_item(Key=item("a"))) == "ValidationException"


def test_a_client_of_a_server_that_is_down_is_cut():
    with socket.socket() as down:
        down.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{down.getsockname()[1]}"
        with FaultLayer(url, seed=1) as layer, pytest.raises(ConnectionClosedError):
            connect(layer.url).list_tables()


# --------------------------------------------------------------------------------------------- conflicts


@pytest.mark.parametrize("write", ["put", "update", "delete"])
def test_a_single_write_meets_an_ongoing_transaction(layer, table, truth, write):
    truth.put("a", n="old")
    acts = {
        "put": lambda: table.put("a", n="new"),
        "update": lambda: table.update("a", n="new"),
        "delete": lambda: table.client.delete_item(TableName=table.name, Key=item("a")),
    }
    order = layer.conflict(times=1)

    with pytest.raises(table.client.exceptions.TransactionConflictException) as caught:
        acts[write]()

    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert caught.value.response["Error"]["Message"] == "Transaction is ongoing for the item"
    assert (truth.get("a"), order.count) == (item("a", n="old"), 1)
    acts[write]()
    assert truth.get("a") != item("a", n="old")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_transaction_is_cancelled_with_the_reason_at_its_place(layer, table, truth, at):
    layer.conflict("TransactWriteItems", at=at, times=1)

    with pytest.raises(table.client.exceptions.TransactionCanceledException) as caught:
        table.put_together("a", "b", "c")

    codes = ["None"] * 3
    codes[at] = "TransactionConflict"
    reasons = caught.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == codes
    assert [reason.get("Message") for reason in reasons if len(reason) > 1] == ["Transaction is ongoing for the item"]
    assert caught.value.response["Error"]["Message"].endswith(f"specific reasons [{', '.join(codes)}]")
    assert [truth.get(pk) for pk in "abc"] == [None] * 3
    table.put_together("a", "b", "c")
    assert truth.get("b")


def test_without_a_place_one_item_chosen_by_chance_is_to_blame(layer, table):
    layer.conflict()

    places = set()
    for _ in range(20):
        codes = [reason["Code"] for reason in refused(lambda: table.put_together("a", "b"))["CancellationReasons"]]
        assert sorted(codes) == ["None", "TransactionConflict"]
        places.add(codes.index("TransactionConflict"))
    assert places == {0, 1}


def test_a_transaction_that_reads_can_conflict_but_a_plain_read_cannot(layer, table):
    layer.conflict()
    gets = [{"Get": {"TableName": table.name, "Key": item("a")}}]

    assert code(lambda: table.client.transact_get_items(TransactItems=gets)) == "TransactionCanceledException"
    assert table.get("a") is None
    with pytest.raises(ValueError, match="cannot happen to Query"):
        layer.conflict("Query")


# ----------------------------------------------------------------------------------- refusals and failures


@pytest.mark.parametrize(
    "name",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TransactionInProgressException",
    ],
)
def test_a_refused_request_raises_that_exception_and_is_not_applied(layer, table, truth, name):
    layer.refuse(name, times=2)

    for act in (lambda: table.put("a"), lambda: table.put_together("a")):
        with pytest.raises(getattr(table.client.exceptions, name)) as caught:
            act()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400

    assert truth.get("a") is None
    table.put("a")
    assert truth.get("a")


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize(("status", "name"), [(500, "InternalServerError"), (503, "ServiceUnavailable")])
def test_a_failure_is_seen_as_such_whether_or_not_the_write_was_applied(layer, table, truth, status, name, applied):
    order = layer.fail("PutItem", status=status, applied=applied, times=1)

    response = refused(lambda: table.put("a"))

    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (name, status)
    assert (truth.get("a") is not None) == applied
    assert (order.count, order.left) == (1, 0)
    table.put("b")


@pytest.mark.parametrize("applied", [False, True])
def test_an_answer_can_be_lost_and_only_the_server_knows_what_happened(layer, table, truth, applied):
    order = layer.lose("UpdateItem", applied=applied, times=1)

    with pytest.raises(ConnectionClosedError):
        table.update("a", n="1")

    order.wait(0)
    assert (truth.get("a") is not None) == applied
    table.update("b", n="2")
    assert truth.get("b")


def test_a_held_answer_makes_the_client_time_out(layer, truth):
    hasty = Table(connect(layer.url, ONCE.merge(Config(read_timeout=0.2))), truth.name)
    layer.lose("PutItem", held=True, times=1)

    with pytest.raises(ReadTimeoutError):
        hasty.put("a")

    assert truth.get("a")
    hasty.put("b")


@pytest.mark.parametrize("fault", ["lose", "fail"])
def test_what_the_server_refuses_is_told_and_the_order_stands(layer, table, truth, fault):
    order = getattr(layer, fault)(applied=True, times=1)

    failed = code(lambda: table.update("a", condition="attribute_exists(PK)", n="1"))

    assert (failed, order.count) == ("ConditionalCheckFailedException", 0)
    with pytest.raises(AssertionError, match="only 0 so far"):
        order.wait(0)
    with pytest.raises((ClientError, ConnectionClosedError)):
        table.update("a", n="1")
    assert order.count == 1
    assert truth.get("a")


# ---------------------------------------------------------------------------------------- which requests


def test_a_fault_meets_so_many_requests_of_its_operation_and_no_others(layer, table):
    layer.refuse("ThrottlingException", "UpdateItem", times=2)

    outcomes = []
    for act in (lambda: table.put("a"), lambda: table.update("a", n="1")) * 3:
        try:
            act()
            outcomes.append("ok")
        except table.client.exceptions.ThrottlingException:
            outcomes.append("throttled")

    assert outcomes == ["ok", "throttled", "ok", "throttled", "ok", "ok"]


def test_a_fault_can_look_at_the_request(layer, table):
    layer.fail(when=lambda request: request.body.get("Item", {}).get("PK") == {"S": "b"})

    table.put("a")
    assert code(lambda: table.put("b")) == "InternalServerError"
    table.put("c")


def test_chance_is_kept_and_repeated_by_the_seed(truth):
    def pattern(seed: int) -> list[bool]:
        with FaultLayer(shared_dynamodb(), seed=seed) as layer:
            table = Table(connect(layer.url), truth.name)
            layer.refuse("ThrottlingException", chance=0.3)
            for _ in range(100):
                with suppress(ClientError):
                    table.get("a")
            return [exchange.fault == "refused" for exchange in layer.log]

    assert pattern(1) == pattern(1) != pattern(2)
    assert 15 <= sum(pattern(1)) <= 45


def test_calm_ends_every_fault(layer, table, clock):
    table.put("a", lane="x")
    layer.refuse("ThrottlingException", "GetItem")
    layer.lose("PutItem")
    layer.lag(60)
    layer.limit_partitions(write=0, read=0)
    stopped = layer.conflict("UpdateItem")
    stopped.stop()
    assert code(lambda: table.get("a")) == "ThrottlingException"

    layer.calm()

    table.get("a")
    table.update("a", n="1")
    for pk in "bc":
        table.put(pk, lane="x")
        assert pk in table.lane("x")


def test_the_log_tells_each_request_and_what_became_of_it(layer, table):
    layer.conflict("PutItem", times=1)
    layer.lose("UpdateItem", times=1)
    refused(lambda: table.put("a"))
    table.put("a")
    with pytest.raises(ConnectionClosedError):
        table.update("a", n="1")
    refused(lambda: table.update("a", condition="attribute_exists(nothing)", n="1"))

    assert layer.log == [
        Exchange("PutItem", 400, "TransactionConflictException", "conflict"),
        Exchange("PutItem", 200, "", ""),
        Exchange("UpdateItem", 0, "", "lost"),
        Exchange("UpdateItem", 400, "ConditionalCheckFailedException", ""),
    ]
    assert [layer.count(), layer.count("PutItem"), layer.count(fault="lost"), layer.count("PutItem", fault="")] == [
        4,
        2,
        1,
        1,
    ]
    layer.forget()
    assert (layer.log, layer.spent.writes) == ([], {})


# -------------------------------------------------------------------------------------------- stale reads


def test_an_index_lags_behind_for_so_many_seconds(layer, table, clock):
    layer.lag(5)
    table.put("a", lane="x")
    assert table.lane("x") == ["a"]
    table.put("b", lane="x")

    clock.advance(4.9)
    assert table.lane("x") == ["a"]
    assert table.lane("x", Limit=9) == ["a", "b"]  # another question
    clock.advance(0.2)
    assert table.lane("x") == ["a", "b"]

    assert layer.count("Query", fault="stale") == 1


def test_reads_of_the_table_are_stale_only_when_asked_for_and_never_when_consistent(layer, table, truth):
    layer.lag(60)
    assert table.get("a") is None
    truth.put("a")
    assert table.get("a")

    layer.lag(60, indexes_only=False)
    assert table.get("b") is None
    assert table.get("b", ConsistentRead=True) is None
    truth.put("b")

    assert table.get("b") is None
    assert table.get("b", ConsistentRead=True)


def test_what_makes_two_reads_the_same_can_be_told(layer, table):
    layer.lag(60, same=lambda request: request.body["TableName"])
    assert table.lane("x") == []
    table.put("a", lane="x")

    assert table.lane("x", Limit=9) == []


def test_staleness_by_chance_comes_and_goes(layer, table):
    layer.lag(60, chance=0.5)
    for n in range(40):
        table.put(f"{n:02}", lane="x")
        table.lane("x")

    assert 8 <= layer.count("Query", fault="stale") <= 32


# ------------------------------------------------------------------------------------- hot partitions


@pytest.mark.parametrize(
    ("on_demand", "name", "reasons"),
    [
        (True, "ThrottlingException", "throttlingReasons"),
        (False, "ProvisionedThroughputExceededException", "ThrottlingReasons"),
    ],
)
def test_a_hot_partition_is_throttled_until_it_has_units_again(layer, table, truth, clock, on_demand, name, reasons):
    layer.limit_partitions(write=5, on_demand=on_demand)
    for n in range(5):
        table.put("hot", str(n))

    with pytest.raises(getattr(table.client.exceptions, name)) as caught:
        table.put("hot", "5")
    [reason] = caught.value.response[reasons]
    table.put("cold")

    assert reason["reason"] == "TableWriteKeyRangeThroughputExceeded"
    assert reason["resource"].endswith(f"table/{table.name}")
    assert truth.get("hot", "5") is None
    clock.advance(0.19)
    table.put("hot", "5")
    assert code(lambda: table.put("hot", "6")) == name
    assert layer.count("PutItem", fault="throttled") == 2


def test_after_a_pause_only_the_burst_is_there(layer, table, clock):
    layer.limit_partitions(write=2, burst=3)
    table.put("hot")
    clock.advance(1000)

    for n in range(6):
        table.put("hot", str(n))

    assert code(lambda: table.put("hot", "6")) == "ThrottlingException"
    layer.limit_partitions(write=2)  # another limit begins with a full bucket
    table.put("hot", "6")


def test_a_large_write_is_paid_for_in_full(layer, table, clock):
    layer.limit_partitions(write=5)
    table.put("hot", text="x" * 14_500)  # 15 units: two seconds of debt

    clock.advance(1.9)
    assert code(lambda: table.put("hot", "2")) == "ThrottlingException"
    clock.advance(0.2)
    table.put("hot", "2")


@pytest.mark.parametrize(("consistent", "affordable"), [(True, 4), (False, 8)])
def test_an_eventually_consistent_read_costs_half(layer, table, consistent, affordable):
    layer.limit_partitions(read=4)
    for _ in range(affordable):
        table.get("hot", ConsistentRead=consistent)

    assert code(lambda: table.get("hot", ConsistentRead=consistent)) == "ThrottlingException"
    table.put("hot")  # writes have units of their own


def test_a_failed_condition_costs_what_the_item_weighs(layer, table, truth):
    truth.put("hot", text="x" * 2500)
    layer.limit_partitions(write=3)
    options = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD", "ConditionExpression": "attribute_exists(nothing)"}
    delete = {"TableName": table.name, "Key": item("hot"), **options}

    assert code(lambda: table.client.delete_item(**delete)) == "ConditionalCheckFailedException"

    assert code(lambda: table.client.delete_item(**delete)) == "ThrottlingException"
    assert layer.spent.writes == {"DeleteItem": 3}


@pytest.mark.parametrize(("on_demand", "name"), [(True, "ThrottlingError"), (False, "ProvisionedThroughputExceeded")])
def test_a_transaction_is_cancelled_for_the_items_of_a_hot_partition(layer, table, truth, on_demand, name):
    layer.limit_partitions(write=4, on_demand=on_demand)
    table.put_together("hot", "other")
    table.put_together("hot", "another")

    response = refused(lambda: table.put_together("cold", "hot"))

    assert response["Error"]["Code"] == "TransactionCanceledException"
    assert [reason["Code"] for reason in response["CancellationReasons"]] == ["None", name]
    assert truth.get("cold") is None


def test_a_query_is_charged_to_its_partition_or_to_that_of_its_index(layer, table):
    table.put("a", lane="x")
    layer.limit_partitions(read=1)
    query = {
        "TableName": table.name,
        "KeyConditionExpression": "SK > :low AND #p = :p",
        "ExpressionAttributeNames": {"#p": "PK"},
        "ExpressionAttributeValues": {":p": {"S": "a"}, ":low": {"S": "0"}},
    }
    for _ in range(2):
        table.client.query(**query)
        assert table.lane("x") == ["a"]

    assert code(lambda: table.client.query(**query)) == "ThrottlingException"
    response = refused(lambda: table.lane("x"))
    assert response["throttlingReasons"][0]["reason"] == "IndexReadKeyRangeThroughputExceeded"
    assert response["throttlingReasons"][0]["resource"].endswith("/index/by_lane")
    assert table.lane("y") == []
    assert layer.spent.partition_reads == {
        Partition(table.name, None, "a"): 1,
        Partition(table.name, "by_lane", "x"): 1,
        Partition(table.name, "by_lane", "y"): 0.5,
    }


def test_a_hot_partition_of_an_index_holds_up_writes_to_the_table(layer, table, truth):
    layer.limit_partitions(write=3)
    table.put("a", lane="hot")
    table.update("a", n="1")  # does not say where the item is, and yet writes there
    table.put("b", lane="hot")

    assert code(lambda: table.update("a", n="2")) == "ThrottlingException"
    response = refused(lambda: table.put("c", lane="hot"))
    assert response["throttlingReasons"][0]["reason"] == "IndexWriteKeyRangeThroughputExceeded"
    assert code(lambda: table.update("b", "set lane = :lane", lane="cold")) == "ThrottlingException"
    assert code(lambda: table.update("b", "remove lane")) == "ThrottlingException"
    assert code(lambda: table.client.delete_item(TableName=table.name, Key=item("b"))) == "ThrottlingException"
    table.put("c")
    table.put("d", lane="cold")
    assert truth.lane("hot") == ["a", "b"]


def test_an_item_taken_out_of_an_index_is_not_held_up_by_it_any_more(layer, table):
    layer.limit_partitions(write=3)
    table.put("a", lane="hot")
    table.update("a", "set n = :n remove lane, extra", n="1")
    table.put("b", lane="hot")
    assert code(lambda: table.put("c", lane="hot")) == "ThrottlingException"

    table.update("a", n="2")

    assert layer.spent.partition_writes[Partition(table.name, "by_lane", "hot")] == 3


def test_a_batch_gives_back_what_a_hot_partition_refuses(layer, table, truth):
    truth.put("hot", "2", n="kept")
    layer.limit_partitions(write=1, read=0.5)
    table.put("hot")
    table.get("hot")

    assert table.put_batch("a", "hot", "b") == ["hot"]
    assert truth.get("a")
    assert truth.get("b")
    assert code(lambda: table.put_batch("hot")) == "ThrottlingException"
    wanted = {"Keys": [item("hot", "2"), item("a")], "ProjectionExpression": "PK"}
    got = table.client.batch_get_item(RequestItems={table.name: wanted})
    assert [one["PK"]["S"] for one in got["Responses"][table.name]] == ["a"]
    assert got["UnprocessedKeys"] == {table.name: {"Keys": [item("hot", "2")], "ProjectionExpression": "PK"}}


# ------------------------------------------------------------------------------------------- units spent


def test_units_are_counted_by_operation_and_by_partition(layer, table):
    table.put("a", lane="x", text="v" * 2500)  # three for the table, three for the index
    table.update("a", "set lane = :lane", lane="y")  # out of one partition of the index, into another
    table.get("a", ConsistentRead=True)
    table.get("a")
    table.put_together("b", "c")
    refused(lambda: table.update("b", condition="attribute_exists(nothing)", n="1"))
    table.put_batch("b", "d")

    spent = layer.spent
    assert spent.writes == {"PutItem": 6, "UpdateItem": 9 + 1, "TransactWriteItems": 4, "BatchWriteItem": 2}
    assert spent.reads == {"GetItem": 1.5}
    assert spent.partition_reads == {Partition(table.name, None, "a"): 1.5}
    assert spent.partition_writes == {
        Partition(table.name, None, "a"): 6,
        Partition(table.name, "by_lane", "x"): 3 + 3,
        Partition(table.name, "by_lane", "y"): 3,
        Partition(table.name, None, "b"): 2 + 1 + 1,
        Partition(table.name, None, "c"): 2,
        Partition(table.name, None, "d"): 1,
    }


def test_a_transaction_is_shared_out_by_the_weight_of_its_items(layer, table):
    puts = [{"Put": {"TableName": table.name, "Item": item(pk, text="v" * n)}} for pk, n in {"a": 3500, "b": 1}.items()]
    table.client.transact_write_items(TransactItems=puts)

    assert layer.spent.partition_writes == {Partition(table.name, None, "a"): 8, Partition(table.name, None, "b"): 2}


def test_a_cancelled_transaction_is_paid_for_and_a_request_kept_from_the_server_is_not(layer, table):
    check = {
        "ConditionCheck": {"TableName": table.name, "Key": item("a"), "ConditionExpression": "attribute_exists(PK)"}
    }
    put = {"Put": {"TableName": table.name, "Item": item("b")}}
    refused(lambda: table.client.transact_write_items(TransactItems=[check, put]))
    layer.refuse("ThrottlingException", times=1)
    refused(lambda: table.put("a"))

    assert layer.spent.writes == {"TransactWriteItems": 4}


# ------------------------------------------------------------------------------------------ on the wire


@pytest.mark.parametrize(
    ("reply", "answers_each"),
    [
        (b'Transfer-Encoding: chunked\r\n\r\n7;x=y\r\n{"Table\r\nA\r\nNames":[]}\r\n0\r\nA-Trailer: z\r\n\r\n', 2),
        (b'Connection: close\r\nContent-Length: 17\r\n\r\n{"TableNames":[]}', 1),
    ],
    ids=["chunked", "closing"],
)
def test_servers_may_answer_in_chunks_or_close_after_each_answer(reply, answers_each):
    def serve() -> None:
        for _ in range(2 // answers_each):
            with listener.accept()[0] as connection:
                for _ in range(answers_each):
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\n" + reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with FaultLayer(f"http://127.0.0.1:{listener.getsockname()[1]}", seed=1) as layer:
            client = connect(layer.url)
            assert [client.list_tables()["TableNames"] for _ in range(2)] == [[], []]
        thread.join()


def test_a_layer_leaves_neither_threads_nor_sockets_behind_whatever_is_going_on(truth):
    def put_in_vain() -> None:
        with pytest.raises(ConnectionClosedError):
            table.put("b")

    gc.collect()  # the clients of other tests
    threads, files = set(threading.enumerate()), len(os.listdir("/dev/fd"))
    with FaultLayer(shared_dynamodb(), seed=1) as layer:
        idle = socket.create_connection(("127.0.0.1", layer.port))
        table = Table(connect(layer.url), truth.name)
        table.put("a")
        layer.lose("PutItem", held=True)
        held = threading.Thread(target=put_in_vain)
        held.start()
        until(lambda: layer.count(fault="lost") == 1)
    held.join()
    with pytest.raises(EndpointConnectionError):
        table.put("c")
    table.client.close()
    idle.close()

    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/dev/fd")) == files
