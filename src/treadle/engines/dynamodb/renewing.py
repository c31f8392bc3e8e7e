"""Renewing leases: a conditional update each, that no late answer puts back."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

from treadle.engines.dynamodb import writes
from treadle.engines.dynamodb.client import Client, Crowded, Failed, pauses
from treadle.engines.dynamodb.items import Item, Place, Value, value_of
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import Memory
from treadle.engines.dynamodb.writes import Table
from treadle.engines.rows import renewal_of
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.errors import EngineUnavailable
from treadle.model import State


class Renewing:
    """Renews leases in one table."""

    def __init__(self, client: Client, table: Table, reader: Reader, places: Memory[Place]) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._places = places

    def renew(self, held: Lease, until: Callable[[], datetime], deadline: float, *, forward: bool) -> RenewalResult:
        """Renew one lease. Each try counts from its own time; with `forward` what arrives late puts nothing back."""
        trouble: EngineUnavailable | None = None
        for pause in pauses(deadline - time.monotonic()):
            try:
                return self._try(held, until(), forward=forward)
            except EngineUnavailable as error:
                trouble = error
                time.sleep(pause)
        if trouble is not None and not isinstance(trouble, Crowded):
            raise trouble
        return RenewalResult(held.job_id, Renewal.MISSED)

    def _try(self, held: Lease, until: datetime, *, forward: bool) -> RenewalResult:
        _, token, started_at, progress, cost = renewal_of(held, lambda moment: moment)
        told = {"started_at": started_at, "progress": progress, "cost_micros": cost, "lock_expires_at": until}
        sets: dict[str, Value] = {name: value_of(value) for name, value in told.items() if value is not None}
        place = self._places.get(held.job_id)
        for last in (False, True):
            place = self._reader.place(held.job_id) if last or place is None else place
            item = self._renewed(place, token, sets, forward=forward) if place is not None else None
            if item is not None:
                return RenewalResult(held.job_id, Renewal.RENEWED, bool(item.get("cancel_requested")))
        self._places.drop(held.job_id)
        return RenewalResult(held.job_id, Renewal.LOST)

    def _renewed(self, place: Place, token: str, sets: Mapping[str, Value], *, forward: bool) -> Item | None:
        """The item as the renewal leaves it; None if it is not there any more, or not ours."""
        said = writes.renewal(self._table, place, token, sets, forward=forward)["Update"]
        said |= {"ReturnValues": "ALL_NEW", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            return self._client.call("UpdateItem", said, patience=0)["Attributes"]  # type: ignore[no-any-return]
        except Failed as failed:
            item = failed.which[0] or {}
        if item.get("lease_token") != {"S": token} or item["status"]["S"] != State.RUNNING:
            return None
        # A later renewal was here first, and its end stands; what else there is to tell still counts.
        rest = {name: value for name, value in sets.items() if name != "lock_expires_at"}
        return self._renewed(place, token, rest, forward=forward) if rest and rest != sets else item
