"""The table itself: made, checked, described."""

import json
import time
from collections.abc import Mapping
from typing import Any

from treadle.engines.dynamodb.client import Client, Crowded, Failed, Refused
from treadle.engines.dynamodb.items import GATE, Place
from treadle.errors import EngineUnavailable, SchemaError

VERSION = 1
META = Place("meta", "meta")
SPREAD = 64  # partitions of id items: each carries about 250 jobs a second, and a list asks each of them
MIGRATION = "0001_table"
CREATION = 60.0  # seconds a new table may take

_TTL = "ttl"
_KEYS = {"PK": "HASH", "SK": "RANGE"}


def creation(name: str) -> dict[str, Any]:
    """What CreateTable is asked for."""
    return {
        "TableName": name,
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in _KEYS],
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in _KEYS.items()],
        "BillingMode": "PAY_PER_REQUEST",
    }


def create(client: Client, spread: int, *, gate: bool = False) -> bool:
    """Make the table and its first item; whether this call did it. With a `gate` from the start no pause waits."""
    made = False
    live = describe(client)
    if live is not None and (wrong := _wrong_keys(live)):
        raise SchemaError(f"{client.where} is none of ours: {'; '.join(wrong)}. Name another table")
    if live is None:
        try:
            client.call("CreateTable", creation(client.table), patience=0)
            made = True
        except Crowded:  # somebody else makes it
            pass
    deadline = time.monotonic() + CREATION
    while (describe(client) or {}).get("TableStatus") != "ACTIVE":
        if time.monotonic() > deadline:
            raise EngineUnavailable(f"{client.where} is still being made after {CREATION:g} s; repeating is safe")
        time.sleep(0.2)
    items = [{**META.key, "version": {"N": str(VERSION)}, "spread": {"N": str(spread)}}]
    if gate:
        items.append({**GATE.key, "version": {"N": "1"}, "ready": {"BOOL": True}})
    new = {"TableName": client.table, "ConditionExpression": "attribute_not_exists(PK)"}
    try:
        client.write([{"Put": {**new, "Item": item}} for item in items])
        made = True
    except Failed:  # another process, or an earlier sending of ours
        pass
    if _ttl(client) != _TTL:
        said = {"Enabled": True, "AttributeName": _TTL}
        client.call("UpdateTimeToLive", {"TableName": client.table, "TimeToLiveSpecification": said})
    return made


def _ttl(client: Client) -> str | None:
    """By which attribute items are deleted some time after their time is over."""
    said = client.call("DescribeTimeToLive", {"TableName": client.table})["TimeToLiveDescription"]
    return said.get("AttributeName") if said["TimeToLiveStatus"] in ("ENABLED", "ENABLING") else None


def describe(client: Client) -> dict[str, Any] | None:
    try:
        return client.call("DescribeTable", {"TableName": client.table})["Table"]  # type: ignore[no-any-return]
    except SchemaError:
        return None


def spread_of(client: Client) -> int:
    """Over how many partitions the id items lie; SchemaError if the table is not ours or is newer."""
    try:
        item = client.get([META]).get(META)
    except Refused as error:
        raise SchemaError(f"{client.where} is none of ours ({error}); its keys must be PK and SK, both text") from None
    if item is None:
        raise SchemaError(f"{client.where} has no treadle in it; run `treadle migrate` (or set auto_migrate) first")
    version = int(item["version"]["N"])
    if version > VERSION:
        raise SchemaError(f"{client.where} was made by a newer treadle (layout {version}, this one knows {VERSION})")
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
        return [f"{client.where} is not there; run `treadle migrate`"]
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
