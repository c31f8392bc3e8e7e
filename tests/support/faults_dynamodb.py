"""A layer before a DynamoDB-compatible server that does the harm the real service does and no emulator dares.

    with FaultLayer(shared_dynamodb(), seed=7) as layer:
        client = boto3.client("dynamodb", endpoint_url=layer.url, ...)
        layer.conflict("TransactWriteItems", times=2)  # the next two
        layer.lose("UpdateItem", chance=0.01)  # applied, but the client is told nothing
        layer.limit_partitions(write=100)
        ...
        print(layer.spent.writes, layer.count("Query"))

One thread with an event loop does all the work; the methods of `FaultLayer` may be called from any thread, and when one
returns, its fault is in force. A request meets at most one fault. What a fault keeps from the server costs no units.
"""

import asyncio
import contextlib
import enum
import json
import math
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

SINGLE_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
TRANSACTIONS = frozenset({"TransactWriteItems", "TransactGetItems"})
BATCHES = {"BatchWriteItem": "UnprocessedItems", "BatchGetItem": "UnprocessedKeys"}
WRITES = SINGLE_WRITES | {"TransactWriteItems", "BatchWriteItem"}
READS = frozenset({"GetItem", "Query", "Scan", "TransactGetItems", "BatchGetItem"})
VERBS = {"PutItem": "Put", "UpdateItem": "Update", "DeleteItem": "Delete", "GetItem": "Get"}

SERVICE = "com.amazonaws.dynamodb.v20120810#"
TYPES = {"ThrottlingException": "com.amazon.coral.availability#ThrottlingException"}
MESSAGES = {
    "InternalServerError": "The request processing has failed because of an unknown error, exception or failure.",
    "ServiceUnavailable": "The service is currently unavailable or busy.",
    "ProvisionedThroughputExceededException": (
        "The level of configured provisioned throughput for the table was exceeded. "
        "Consider increasing your provisioning level with the UpdateTable API."
    ),
    "RequestLimitExceeded": (
        "Throughput exceeds the current throughput limit for your account. "
        "Please contact AWS Support at https://aws.amazon.com/support request a limit increase"
    ),
    "ThrottlingException": (
        "Throughput exceeds the current capacity of your table or index. DynamoDB is automatically scaling your table "
        "or index so please try again shortly. If exceptions persist, check if you have a hot key."
    ),
    "TransactionConflictException": "Transaction is ongoing for the item",
}


class Request(NamedTuple):
    """What the client wants: `operation` as in X-Amz-Target, `body` as sent."""

    operation: str
    body: dict[str, Any]


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]

    @property
    def error(self) -> str:
        """The name of the exception, or nothing."""
        return str(self.body.get("__type", "")).rpartition("#")[2]


class Silence(enum.Enum):
    """No answer at all."""

    CUT = "the connection is closed"
    HELD = "the connection stays open until the client has had enough"


class Exchange(NamedTuple):
    """One request and what became of it: `status` 0 means no answer, `fault` is empty when the server had its way."""

    operation: str
    status: int
    error: str
    fault: str


class Order:
    """A fault that was asked for: `count` requests have met it, `left` still shall."""

    def __init__(
        self,
        fault: str,
        answer: Callable[[Request], Answer | Silence],
        operations: frozenset[str],
        *,
        applied: bool,
        times: float,
        chance: float,
        when: Callable[[Request], bool] | None,
    ) -> None:
        self.fault, self.answer, self.applied = fault, answer, applied
        self.left, self.count = times, 0
        self.done = threading.Event()
        self._operations, self._chance, self._when = operations, chance, when

    def stop(self) -> None:
        self.left = 0

    def wait(self, timeout: float = 10.0) -> None:
        """Return once `times` requests have met the fault; AssertionError after `timeout` seconds."""
        assert self.done.wait(timeout), f"{self.fault}: only {self.count} so far. Did the requests match, and succeed?"

    def picks(self, request: Request, dice: random.Random) -> bool:
        if not self.left or request.operation not in self._operations:
            return False
        if self._when is not None and not self._when(request):
            return False
        return self._chance >= 1 or dice.random() < self._chance

    def met(self) -> None:
        self.left, self.count = self.left - 1, self.count + 1
        if not self.left:
            self.done.set()


class FaultLayer:
    """`with FaultLayer(target_url, seed=1) as layer:` and connect to `layer.url`. At the end all that is open is cut.

    `seed` decides all that is left to chance; `clock`, in seconds, the age of answers and the filling of buckets.
    """

    def __init__(self, target_url: str, *, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(target_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._dice = random.Random(seed)
        self._clock = clock
        self._lock = threading.RLock()
        self._orders: list[Order] = []
        self._log: deque[Exchange] = deque(maxlen=1_000_000)
        self._capacity = Capacity(clock)
        self._lag = Lag()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._listener = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512))
        self.port: int = self._listener.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"faults-{self.port}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ------------------------------------------------------------------------------------------------ faults
    # They all take `times`, after which they end by themselves, `chance`, and `when`, which looks at the request.
    # Without an operation they mean every one that the fault can happen to.

    def conflict(self, operation: str | None = None, *, at: int | None = None, **how: Any) -> Order:
        """Another transaction holds the item; in a transaction the one at that place, else at a random one."""

        def answer(request: Request) -> Answer:
            if request.operation in SINGLE_WRITES:
                return failure(400, "TransactionConflictException")
            items = len(request.body.get("TransactItems", [])) or 1
            place = self._dice.randrange(items) if at is None else at
            return cancellation([("TransactionConflict" if n == place else "") for n in range(items)])

        return self._order("conflict", answer, _chosen(operation, SINGLE_WRITES | TRANSACTIONS), **how)

    def refuse(self, code: str, operation: str | None = None, **how: Any) -> Order:
        """Answer 400 with that exception, such as ThrottlingException or RequestLimitExceeded, and send nothing on."""
        return self._order("refused", lambda _: failure(400, code), _chosen(operation, WRITES | READS), **how)

    def fail(
        self, operation: str | None = None, *, status: Literal[500, 503] = 500, applied: bool = False, **how: Any
    ) -> Order:
        """Answer with InternalServerError or ServiceUnavailable; `applied`: although the server has done it."""
        code = {500: "InternalServerError", 503: "ServiceUnavailable"}[status]
        chosen = _chosen(operation, WRITES | READS)
        return self._order("failed", lambda _: failure(status, code), chosen, applied=applied, **how)

    def lose(self, operation: str | None = None, *, applied: bool = True, held: bool = False, **how: Any) -> Order:
        """Let the server do it and swallow its answer, or with applied=False keep the request from it.

        An answer that is an error is told as usual, and the order stands: a loss always means a change. `held` keeps
        the connection open until the client times out.
        """
        silence = Silence.HELD if held else Silence.CUT
        return self._order("lost", lambda _: silence, _chosen(operation, WRITES | READS), applied=applied, **how)

    def lag(
        self,
        seconds: float,
        *,
        chance: float = 1.0,
        indexes_only: bool = True,
        same: Callable[[Request], Hashable] | None = None,
    ) -> None:
        """Repeat the last answer to the same read for so long, if it may be stale; 0 ends this.

        That is a Query or Scan of an index, and without `indexes_only` whatever did not ask for a consistent read.
        Reads are the same when they say the same; give `same` to leave out, say, the time in them.
        """
        with self._lock:
            self._lag = Lag(seconds, chance, indexes_only, same)

    def limit_partitions(
        self, write: float = 1000, read: float = 3000, *, burst: float = 1.0, on_demand: bool = True
    ) -> None:
        """Throttle each partition of a table or index to so many units a second, after `burst` seconds' worth at once.

        A partition here is one value of the partition key, learnt from the table. A request passes while every
        partition it touches has units left, and is charged what the server says it cost, into debt if need be. So the
        rate holds over time, and requests under way at once may overdraw it.
        """
        with self._lock:
            self._capacity.limits = Limits(write, read, burst, on_demand)
            self._capacity.buckets.clear()

    def calm(self) -> None:
        """End every fault."""
        with self._lock:
            for order in self._orders:
                order.stop()
            self._orders.clear()
            self._lag = Lag()
            self._capacity.limits = None

    # ------------------------------------------------------------------------------------------- what happened

    @property
    def log(self) -> list[Exchange]:
        with self._lock:
            return list(self._log)

    def count(self, operation: str | None = None, *, fault: str | None = None) -> int:
        """How many requests came; `fault` is conflict, refused, failed, lost, stale, throttled, or "" for none."""
        return sum(operation in (None, exchange.operation) and fault in (None, exchange.fault) for exchange in self.log)

    @property
    def spent(self) -> "Spent":
        """The units spent so far, as the server tells them; a copy."""
        with self._lock:
            return deepcopy(self._capacity.spent)

    def forget(self) -> None:
        """Empty the log and set what was spent to nothing."""
        with self._lock:
            self._log.clear()
            self._capacity.spent = Spent()

    # --------------------------------------------------------------------------------------------------- inside

    def _order(
        self,
        fault: str,
        answer: Callable[[Request], Answer | Silence],
        operations: frozenset[str],
        *,
        applied: bool = False,
        times: float = math.inf,
        chance: float = 1.0,
        when: Callable[[Request], bool] | None = None,
    ) -> Order:
        order = Order(fault, answer, operations, applied=applied, times=times, chance=chance, when=when)
        with self._lock:
            self._orders = [one for one in self._orders if one.left] + [order]
        return order

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server = Upstream(*self._target)
        try:
            while (message := await read_message(reader)) is not None:
                answer = await self._answer(message, server)
                if isinstance(answer, Silence):
                    if answer is Silence.HELD:
                        await reader.read()
                    break
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError):
            pass  # one side is gone, and the other will notice
        except asyncio.CancelledError:
            writer.transport.abort()  # or it would wait for a client that does not read
        finally:
            self._tasks.discard(task)
            server.close()
            writer.close()

    async def _close(self) -> None:
        self._listener.close()
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)  # transports close a turn later

    async def _answer(self, message: "Message", server: "Upstream") -> bytes | Silence:
        operation = message.headers.get(b"x-amz-target", b"").decode().rpartition(".")[2]
        request = Request(operation, json.loads(message.body) if operation in WRITES | READS else {})
        try:
            unknown = self._capacity.unknown_tables(request)
        except (LookupError, TypeError, AttributeError):  # another operation, or one that the server will not like
            if operation in ("CreateTable", "UpdateTable", "DeleteTable"):
                self._capacity.schemas.clear()
            reply = await server.ask(message)
            self._note(operation, Answer(reply.status, {}), "")
            return reply.encode(reply.body)
        for table in unknown:
            self._capacity.learn(table, await server.describe(table))
        answer, fault = await self._decide(request, message, server)
        self._note(operation, answer, fault)
        return answer if isinstance(answer, Silence) else encode_answer(answer)

    async def _decide(self, request: Request, message: "Message", server: "Upstream") -> tuple[Answer | Silence, str]:
        """The answer, and the fault that had a part in it."""
        with self._lock:
            if order := self._met(request, applied=False):
                return order.answer(request), order.fault
            lag = self._lag
            if old := lag.repeated(request, message.body, self._clock(), self._dice):
                return old, "stale"
            throttled = self._capacity.throttled(request)
            if throttled and (request.operation not in BATCHES or len(throttled) == len(actions(request))):
                return self._capacity.refusal(request, throttled), "throttled"
        sent, withheld = parted(request, throttled) if throttled else (request, {})
        answer = await server.measure(sent, message)
        with self._lock:
            self._capacity.charge(sent, answer)
            answer = without_capacity(answer, request.body.get("ReturnConsumedCapacity", "NONE"))
            for table, entries in withheld.items():
                answer.body.setdefault(BATCHES[request.operation], {})[table] = entries
            if answer.status == 200:
                lag.keep(request, message.body, self._clock(), answer)
                if order := self._met(request, applied=True):
                    return order.answer(request), order.fault
        return answer, "throttled" if withheld else ""

    def _met(self, request: Request, *, applied: bool) -> Order | None:
        for order in self._orders:
            if order.applied == applied and order.picks(request, self._dice):
                order.met()
                return order
        return None

    def _note(self, operation: str, answer: Answer | Silence, fault: str) -> None:
        status, error = (0, "") if isinstance(answer, Silence) else (answer.status, answer.error)
        with self._lock:
            self._log.append(Exchange(operation, status, error, fault))


def _chosen(operation: str | None, possible: frozenset[str]) -> frozenset[str]:
    if operation is None:
        return possible
    if operation not in possible:
        raise ValueError(f"this cannot happen to {operation}, only to {sorted(possible)}")
    return frozenset({operation})


def failure(status: int, code: str, **more: Any) -> Answer:
    """An error as the service words it."""
    return Answer(status, {"__type": TYPES.get(code, SERVICE + code), "message": MESSAGES.get(code, code), **more})


def cancellation(codes: Iterable[str]) -> Answer:
    """A transaction that was cancelled for these reasons, one an item, empty where the item was innocent."""
    messages = {
        "TransactionConflict": MESSAGES["TransactionConflictException"],
        "ThrottlingError": MESSAGES["ThrottlingException"],
        "ProvisionedThroughputExceeded": MESSAGES["ProvisionedThroughputExceededException"],
    }
    reasons = [{"Code": code, "Message": messages[code]} if code else {"Code": "None"} for code in codes]
    listed = ", ".join(reason["Code"] for reason in reasons)
    body = {
        "__type": SERVICE + "TransactionCanceledException",
        "CancellationReasons": reasons,
        # This one exception spells it with a capital letter.
        "Message": f"Transaction cancelled, please refer cancellation reasons for specific reasons [{listed}]",
    }
    return Answer(400, body)


# ------------------------------------------------------------------------------------------------ stale reads


@dataclass
class Lag:
    """Answers that are repeated for a while."""

    seconds: float = 0
    chance: float = 1.0
    indexes_only: bool = True
    same: Callable[[Request], Hashable] | None = None
    answers: dict[Hashable, tuple[float, Answer]] = field(default_factory=dict)

    def repeated(self, request: Request, raw: bytes, now: float, dice: random.Random) -> Answer | None:
        if not self._may_be_stale(request):
            return None
        at, answer = self.answers.get(self._key(request, raw), (-math.inf, None))
        is_young = now - at < self.seconds
        return answer if is_young and (self.chance >= 1 or dice.random() < self.chance) else None

    def keep(self, request: Request, raw: bytes, now: float, answer: Answer) -> None:
        if self._may_be_stale(request):
            if len(self.answers) > 10_000:
                self.answers = {key: kept for key, kept in self.answers.items() if now - kept[0] < self.seconds}
            self.answers[self._key(request, raw)] = (now, answer)

    def _may_be_stale(self, request: Request) -> bool:
        if not self.seconds or request.operation not in READS - TRANSACTIONS:
            return False
        if self.indexes_only:
            return "IndexName" in request.body and not request.body.get("ConsistentRead")
        asked = request.body.get("RequestItems", {"": request.body})
        return not any(one.get("ConsistentRead") for one in asked.values())

    def _key(self, request: Request, raw: bytes) -> Hashable:
        return (request.operation, self.same(request) if self.same else raw)


# ---------------------------------------------------------------------------------------- units and partitions


class Partition(NamedTuple):
    """One value of the partition key of a table or of its index; None where the layer could not tell."""

    table: str
    index: str | None
    value: str | None


@dataclass
class Spent:
    """Capacity units, by operation and by partition."""

    writes: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    partition_writes: Counter[Partition] = field(default_factory=Counter)
    partition_reads: Counter[Partition] = field(default_factory=Counter)


class Limits(NamedTuple):
    write: float
    read: float
    burst: float
    on_demand: bool


class Schema(NamedTuple):
    """The names of a table's key attributes, and of each index's partition key."""

    keys: list[str]
    indexes: dict[str, str]


class Action(NamedTuple):
    """One item's part of a request; `verb` is Put, Update, Delete, ConditionCheck, Get, Query or Scan."""

    verb: str
    table: str
    details: Mapping[str, Any]


def actions(request: Request) -> list[Action]:
    operation, body = request
    if operation in TRANSACTIONS:
        parts = [part for item in body["TransactItems"] for part in item.items()]
        return [Action(verb, details["TableName"], details) for verb, details in parts]
    if operation == "BatchWriteItem":
        entries = [
            (table, part) for table, listed in body["RequestItems"].items() for one in listed for part in one.items()
        ]
        return [Action(verb.removesuffix("Request"), table, details) for table, (verb, details) in entries]
    if operation == "BatchGetItem":
        listed = body["RequestItems"].items()
        return [Action("Get", table, {"Key": key}) for table, entry in listed for key in entry["Keys"]]
    return [Action(VERBS.get(operation, operation), body["TableName"], body)]


def parted(request: Request, throttled: Iterable[int]) -> tuple[Request, dict[str, Any]]:
    """A batch without the entries at those places, and these entries as the answer gives them back."""
    places, place = set(throttled), iter(range(len(actions(request))))
    kept: dict[str, Any] = {}
    withheld: dict[str, Any] = {}
    for table, listed in request.body["RequestItems"].items():
        entries = listed["Keys"] if isinstance(listed, dict) else listed
        for entry in entries:
            (withheld if next(place) in places else kept).setdefault(table, []).append(entry)
        if isinstance(listed, dict):
            for part in (kept, withheld):
                if table in part:
                    part[table] = listed | {"Keys": part[table]}
    return Request(request.operation, request.body | {"RequestItems": kept}), withheld


class Capacity:
    """Which partitions a request touches, what it costs there and whether they can afford it. It does no I/O."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.spent = Spent()
        self.limits: Limits | None = None
        self.schemas: dict[str, Schema] = {}
        self.buckets: dict[tuple[Partition, bool], tuple[float, float]] = {}  # units left, and when that was
        self._clock = clock
        # An update that does not name the key of an index still writes there, to where the item was seen last.
        self._places: dict[tuple[str, str], dict[str, str]] = {}

    def unknown_tables(self, request: Request) -> set[str]:
        return {action.table for action in actions(request)} - self.schemas.keys()

    def learn(self, table: str, description: Mapping[str, Any]) -> None:
        """From the answer to DescribeTable; of a table that is not there nothing is learnt."""
        if described := description.get("Table"):
            indexes = described.get("GlobalSecondaryIndexes", [])
            keys = [key["AttributeName"] for key in described["KeySchema"]]
            self.schemas[table] = Schema(keys, {one["IndexName"]: _hash_key(one["KeySchema"]) for one in indexes})

    def throttled(self, request: Request) -> list[int]:
        """The places of the actions that a partition without units forbids."""
        if self.limits is None:
            return []
        is_write = request.operation in WRITES
        return [
            place
            for place, action in enumerate(actions(request))
            if any(self._left(partition, is_write) <= 0 for partition in self._partitions(action))
        ]

    def refusal(self, request: Request, throttled: list[int]) -> Answer:
        assert self.limits is not None
        if request.operation in TRANSACTIONS:
            code = "ThrottlingError" if self.limits.on_demand else "ProvisionedThroughputExceeded"
            return cancellation([code if n in throttled else "" for n in range(len(actions(request)))])
        is_write = request.operation in WRITES
        blamed = min(  # not "the first without units": by now it may have some again
            self._partitions(actions(request)[throttled[0]]), key=lambda partition: self._left(partition, is_write)
        )
        kind, side = ("Index" if blamed.index else "Table"), ("Write" if is_write else "Read")
        resource = f"arn:aws:dynamodb:us-east-1:000000000000:table/{blamed.table}"
        reasons = [
            {
                "reason": f"{kind}{side}KeyRangeThroughputExceeded",
                "resource": resource + (f"/index/{blamed.index}" if blamed.index else ""),
            }
        ]
        if self.limits.on_demand:
            return failure(400, "ThrottlingException", throttlingReasons=reasons)
        return failure(400, "ProvisionedThroughputExceededException", ThrottlingReasons=reasons)

    def charge(self, request: Request, answer: Answer) -> None:
        parts = actions(request)
        if answer.status != 200:
            for action, units in zip(parts, _cost_of_failure(request, answer), strict=False):
                self._book(request.operation, self._base(action), units)
            return
        told = answer.body.get("ConsumedCapacity", [])
        for entry in told if isinstance(told, list) else [told]:
            here = [action for action in parts if action.table == entry["TableName"]]
            indexes = {name: one["CapacityUnits"] for name, one in entry.get("GlobalSecondaryIndexes", {}).items()}
            table = (
                entry["Table"]
                if "Table" in entry
                else {"CapacityUnits": entry["CapacityUnits"] - sum(indexes.values())}
            )
            weights = [_weight(action) for action in here]
            for action, weight in zip(here, weights, strict=True):
                self._book(request.operation, self._base(action), table["CapacityUnits"] * weight / sum(weights))
            for name, units in indexes.items():
                touched = [one for action in here for one in self._partitions(action) if one.index == name]
                for partition in touched or [Partition(entry["TableName"], name, None)]:
                    self._book(request.operation, partition, units / (len(touched) or 1))
        for action in parts:
            self._remember(action)

    def _book(self, operation: str, partition: Partition, units: float) -> None:
        if not units:
            return
        is_write = operation in WRITES
        by_operation = self.spent.writes if is_write else self.spent.reads
        by_partition = self.spent.partition_writes if is_write else self.spent.partition_reads
        by_operation[operation] += units
        by_partition[partition] += units
        if self.limits is not None and partition.value is not None:
            self.buckets[partition, is_write] = (self._left(partition, is_write) - units, self._clock())

    def _left(self, partition: Partition, is_write: bool) -> float:
        if self.limits is None or partition.value is None:
            return math.inf
        rate, now = (self.limits.write if is_write else self.limits.read), self._clock()
        most = rate * self.limits.burst
        left, at = self.buckets.get((partition, is_write), (most, now))
        return min(most, left + rate * (now - at))

    def _partitions(self, action: Action) -> list[Partition]:
        """The table's, and those of its indexes from and to which a write moves the item."""
        schema = self.schemas.get(action.table)
        base = self._base(action)
        if schema is None or action.verb not in ("Put", "Update", "Delete"):
            return [base]
        old, new = self._places.get(self._item(action, schema), {}), _index_values(action, schema)
        values = [(name, value) for name in schema.indexes for value in {old.get(name), new.get(name)} if value]
        return [base, *(Partition(action.table, name, value) for name, value in values)]

    def _base(self, action: Action) -> Partition:
        schema, index = self.schemas.get(action.table), action.details.get("IndexName")
        if schema is None or action.verb == "Scan":
            return Partition(action.table, index, None)
        key = schema.indexes.get(index, schema.keys[0]) if index else schema.keys[0]
        if action.verb == "Query":
            equals = dict(_equalities(action.details.get("KeyConditionExpression", ""), action.details))
            return Partition(action.table, index, equals.get(key))
        return Partition(action.table, None, _value(_key(action), key))

    def _item(self, action: Action, schema: Schema) -> tuple[str, str]:
        return action.table, json.dumps([_key(action).get(key) for key in schema.keys])

    def _remember(self, action: Action) -> None:
        schema = self.schemas.get(action.table)
        if schema is None or not schema.indexes or action.verb not in ("Put", "Update", "Delete"):
            return
        item, new = self._item(action, schema), _index_values(action, schema)
        if action.verb == "Update":
            new = self._places.get(item, {}) | new
        self._places[item] = {name: value for name, value in new.items() if value}
        if not self._places[item]:
            del self._places[item]


def _hash_key(keys: list[Mapping[str, str]]) -> str:
    return next(key["AttributeName"] for key in keys if key["KeyType"] == "HASH")


def _key(action: Action) -> Mapping[str, Any]:
    """What holds the key attributes, among others."""
    key: Mapping[str, Any] = action.details.get("Item") or action.details.get("Key") or {}
    return key


def _value(item: Mapping[str, Any], name: str) -> str | None:
    return next(iter(item[name].values())) if name in item else None


def _index_values(action: Action, schema: Schema) -> dict[str, str | None]:
    """Where in each index a write puts the item; None where it takes it out, left out where it does not say."""
    if action.verb == "Put":
        return {index: _value(action.details["Item"], key) for index, key in schema.indexes.items()}
    if action.verb == "Delete":
        return {}
    expression = action.details.get("UpdateExpression", "")
    told: dict[str, str | None] = dict(_equalities(expression, action.details))
    told |= dict.fromkeys(_removed(expression, action.details))
    return {index: told[key] for index, key in schema.indexes.items() if key in told}


def _equalities(expression: str, details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every `name = :value` in an expression, resolved."""
    names, values = details.get("ExpressionAttributeNames", {}), details.get("ExpressionAttributeValues", {})
    for name, value in re.findall(r"([#\w.-]+)\s*=\s*(:\w+)", expression):
        if value in values:
            yield names.get(name, name), next(iter(values[value].values()))


def _removed(expression: str, details: Mapping[str, Any]) -> list[str]:
    names = details.get("ExpressionAttributeNames", {})
    clauses = re.findall(r"\bremove\b(.*?)(?=\b(?:set|add|delete)\s|$)", expression, re.IGNORECASE | re.DOTALL)
    return [names.get(name.strip(), name.strip()) for clause in clauses for name in clause.split(",")]


def _weight(action: Action) -> int:
    """By which the server's one sum is shared out among the items of a transaction or batch; the rest is unknown."""
    return _kilobytes(action.details.get("Item", {}))


def _cost_of_failure(request: Request, answer: Answer) -> list[int]:
    """A failed condition costs as much as writing the item that is there; the server tells it only with ALL_OLD."""
    if answer.error == "ConditionalCheckFailedException":
        return [_kilobytes(answer.body.get("Item", {}))]
    if answer.error == "TransactionCanceledException" and request.operation == "TransactWriteItems":
        reasons = answer.body.get("CancellationReasons", [])
        return [2 * _kilobytes(reason.get("Item") or {}) for reason in reasons]
    return []


def _kilobytes(item: Mapping[str, Any]) -> int:
    """Started ones, and at least one."""
    return max(1, -(-sum(len(name.encode()) + _size(value) for name, value in item.items()) // 1024))


def _size(value: Mapping[str, Any]) -> int:
    """Of one attribute, by the service's rules."""
    [(kind, content)] = value.items()
    if kind == "S":
        return len(content.encode())
    if kind == "B":
        return len(content) * 3 // 4
    if kind == "N":
        return len(content) // 2 + 2
    if kind == "M":
        return 3 + sum(len(name.encode()) + 1 + _size(one) for name, one in content.items())
    if kind == "L":
        return 3 + sum(1 + _size(one) for one in content)
    if kind in ("SS", "NS", "BS"):
        return sum(_size({kind[0]: one}) for one in content)
    return 1


def without_capacity(answer: Answer, wanted: str) -> Answer:
    """Only what the client asked for itself."""
    told = answer.body.get("ConsumedCapacity")
    if told is None or wanted == "INDEXES":
        return answer
    body = dict(answer.body)
    del body["ConsumedCapacity"]
    if wanted == "TOTAL":
        entries = [{name: one for name, one in entry.items() if not isinstance(one, dict)} for entry in _listed(told)]
        body["ConsumedCapacity"] = entries if isinstance(told, list) else entries[0]
    return Answer(answer.status, body)


def _listed(told: Any) -> list[dict[str, Any]]:
    return told if isinstance(told, list) else [told]


# -------------------------------------------------------------------------------------------------------- HTTP


@dataclass(frozen=True)
class Message:
    """A request or an answer on the wire; header names in lower case."""

    first: bytes
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.first.split(b" ", 2)[1])

    def encode(self, body: bytes) -> bytes:
        """With that body, and a plain length instead of whatever else described the old one."""
        described = (b"content-length", b"transfer-encoding", b"accept-encoding")
        kept = [name + b": " + value for name, value in self.headers.items() if name not in described]
        return b"\r\n".join([self.first, *kept, b"content-length: %d" % len(body), b"", body])


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next one, or None when there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as ended:
        if ended.partial:
            raise
        return None
    first, *lines = head[:-4].split(b"\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if headers.get(b"transfer-encoding") == b"chunked":
        return Message(first, headers, b"".join([chunk async for chunk in _chunks(reader)]))
    return Message(first, headers, await reader.readexactly(int(headers.get(b"content-length", b"0"))))


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()
    while await reader.readline() != b"\r\n":
        pass


def encode_answer(answer: Answer) -> bytes:
    reason = {200: b"OK", 400: b"Bad Request", 500: b"Internal Server Error", 503: b"Service Unavailable"}
    first = b"HTTP/1.1 %d %s" % (answer.status, reason.get(answer.status, b"Unknown"))
    headers = {b"content-type": b"application/x-amz-json-1.0", b"x-amzn-requestid": b"TREADLEFAULTLAYER"}
    return Message(first, headers, b"").encode(json.dumps(answer.body).encode())


class Upstream:
    """Our own connection to the server, one for each of a client's, opened when it is needed."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, message: Message) -> Message:
        if self._reader is None or self._writer is None or self._reader.at_eof() or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(message.encode(message.body))
        reply = await read_message(self._reader)
        if reply is None:
            raise EOFError("the server closed the connection without an answer")
        if reply.headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return reply

    async def measure(self, request: Request, message: Message) -> Answer:
        """Ask, and have the server say what it cost."""
        body = json.dumps(request.body | {"ReturnConsumedCapacity": "INDEXES"}).encode()
        reply = await self.ask(replace(message, body=body))
        return Answer(reply.status, json.loads(reply.body or b"{}"))

    async def describe(self, table: str) -> dict[str, Any]:
        signed = b"AWS4-HMAC-SHA256 Credential=treadle/20260101/us-east-1/dynamodb/aws4_request"
        headers = {
            b"host": b"%s:%d" % (self._address[0].encode(), self._address[1]),
            b"content-type": b"application/x-amz-json-1.0",
            b"x-amz-target": b"DynamoDB_20120810.DescribeTable",
            b"x-amz-date": b"20260101T000000Z",
            b"authorization": signed + b", SignedHeaders=host, Signature=none",
        }
        reply = await self.ask(Message(b"POST / HTTP/1.1", headers, json.dumps({"TableName": table}).encode()))
        described: dict[str, Any] = json.loads(reply.body) if reply.status == 200 else {}
        return described

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._writer.close()
        self._reader = self._writer = None
