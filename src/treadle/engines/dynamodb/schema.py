"""The table itself: made, compared with what it should be, described; and what `treadle doctor` says about it."""

import json
import time
from collections.abc import Mapping
from typing import Any

from treadle.engines.dynamodb.client import Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled, ValueRefused
from treadle.engines.dynamodb.items import GATE, ItemKey
from treadle.engines.values import Finding
from treadle.errors import EngineError, EngineUnavailable, SchemaError

LAYOUT_VERSION = 1
META = ItemKey("meta", "meta")
DEFAULT_SPREAD = 64  # partitions of id items: each takes about 250 jobs a second, and a list reads each of them
MIGRATION_NAME = "0001_table"
CREATION_TIMEOUT = 60.0  # seconds that a new table may take
MAX_DRIFT = 1.5  # seconds; the server tells whole ones

_TTL = "ttl"
_KEYS = {"PK": "HASH", "SK": "RANGE"}


def creation(name: str) -> dict[str, Any]:
    """The body of CreateTable."""
    return {
        "TableName": name,
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in _KEYS],
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in _KEYS.items()],
        "BillingMode": "PAY_PER_REQUEST",
    }


def create(client: Client, spread: int, *, gate: bool = False) -> bool:
    """Make the table and its first item; whether this call did it. With a `gate` from the start no pause waits."""
    live = describe(client)
    if live is not None and (wrong := _wrong_keys(live)):
        raise SchemaError(f"{client.where} is not a treadle table: {'; '.join(wrong)}. Name another table")
    made = live is None and _create_table(client)
    _wait_until_active(client)
    made = _put_first_items(client, spread, gate=gate) or made
    if _ttl(client) != _TTL:
        wanted = {"Enabled": True, "AttributeName": _TTL}
        client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": wanted})
    return made


def _create_table(client: Client) -> bool:
    try:
        client.call("CreateTable", creation(client.table), retry_for=0)
    except Throttled:  # somebody else is making it
        return False
    return True


def _wait_until_active(client: Client) -> None:
    deadline = time.monotonic() + CREATION_TIMEOUT
    while (describe(client) or {}).get("TableStatus") != "ACTIVE":
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                f"{client.where} is still being made after {CREATION_TIMEOUT:g} s; repeating is safe"
            )
        time.sleep(0.2)


def _put_first_items(client: Client, spread: int, *, gate: bool) -> bool:
    items = [{**META.attributes, "version": {"N": str(LAYOUT_VERSION)}, "spread": {"N": str(spread)}}]
    if gate:
        items.append({**GATE.attributes, "version": {"N": "1"}, "ready": {"BOOL": True}})
    new = {"TableName": client.table, "ConditionExpression": "attribute_not_exists(PK)"}
    try:
        client.write([{"Put": {**new, "Item": item}} for item in items])
    except ConditionFailed:  # another process did, or an earlier request of ours
        return False
    return True


def _ttl(client: Client) -> str | None:
    """The attribute that says when DynamoDB may delete an item."""
    live = client.call("DescribeTimeToLive", {"TableName": client.table})["TimeToLiveDescription"]
    return live.get("AttributeName") if live["TimeToLiveStatus"] in ("ENABLED", "ENABLING") else None


def describe(client: Client) -> dict[str, Any] | None:
    try:
        return client.call("DescribeTable", {"TableName": client.table})["Table"]  # type: ignore[no-any-return]
    except SchemaError:
        return None


def spread_of(client: Client) -> int:
    """Over how many partitions the id items are spread; SchemaError if the table is not ours or is newer."""
    try:
        item = client.get([META]).get(META)
    except ValueRefused as error:
        message = f"{client.where} is not a treadle table ({error}); its keys must be PK and SK, both text"
        raise SchemaError(message) from None
    if item is None:
        raise SchemaError(
            f"{client.where} is not set up for treadle yet; run `treadle migrate` (or set auto_migrate) first"
        )
    version = int(item["version"]["N"])
    if version > LAYOUT_VERSION:
        raise SchemaError(
            f"{client.where} was made by a newer treadle (layout {version}, this one knows {LAYOUT_VERSION})"
        )
    return int(item["spread"]["N"])


def differences(client: Client, *, quick: bool) -> list[str]:
    """Every difference between the live table and the expected one; `quick` needs no right to describe it."""
    if quick:
        try:
            spread_of(client)
        except SchemaError as error:
            return [str(error)]
        return []
    live = describe(client)
    if live is None:
        return [f"{client.where} does not exist; run `treadle migrate`"]
    found = _wrong_keys(live)
    if found:
        return found
    try:
        spread_of(client)
    except SchemaError as error:
        found.append(str(error))
    if _ttl(client) != _TTL:
        found.append(f"time to live is not on for the attribute {_TTL}; run `treadle migrate`")
    billing = live.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if billing != "PAY_PER_REQUEST":
        found.append(f"billing is {billing}, expected PAY_PER_REQUEST (on demand)")
    return found


def _wrong_keys(live: Mapping[str, Any]) -> list[str]:
    keys = {key["AttributeName"]: key["KeyType"] for key in live["KeySchema"]}
    if keys != _KEYS:
        return [f"the keys are {keys}, expected {_KEYS}"]
    kinds = {one["AttributeName"]: one["AttributeType"] for one in live["AttributeDefinitions"]}
    return [f"the key {key} is of type {kinds.get(key)}, expected S" for key in _KEYS if kinds.get(key) != "S"]


def as_text(name: str) -> str:
    return json.dumps(creation(name), indent=2) + "\n"


def doctor(client: Client) -> list[Finding]:
    try:
        wrong = differences(client, quick=False)
    except EngineUnavailable:
        raise
    except EngineError as error:  # a worker may do without that right
        found = [Finding("warning", f"the table was not compared: {error}")]
    else:
        if wrong:
            return [Finding("error", text) for text in wrong]
        found = [Finding("ok", f"{client.where} is up to date")]
    if client.drift is not None:
        level = "warning" if abs(client.drift) > MAX_DRIFT else "ok"
        seconds = f"{abs(client.drift):.0f} s"
        found.append(Finding(level, f"this machine's clock and the server's differ by about {seconds}"))
    found.append(Finding("ok", "there are no notifications here: workers find jobs by polling"))
    return found
