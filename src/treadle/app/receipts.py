"""The receipts of an iterator of calls: sixteen bytes a job, however many there were."""

from collections.abc import Sequence

from treadle.app.store import Store
from treadle.engines.batches import LazyReceipts
from treadle.engines.values import Receipt
from treadle.errors import JobNotFound
from treadle.model import Job
from treadle.model.alike import ids_of

ID_BYTES = 16


class StoredReceipts(LazyReceipts):
    """Receipts that keep the ids of their jobs alone. A job is read from the store when somebody looks at it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids = bytearray()
        self._others: dict[int, Receipt] = {}
        super().__init__(self._others)

    def __len__(self) -> int:
        return len(self._ids) // ID_BYTES

    def add(self, jobs: Sequence[Job], receipts: Sequence[Receipt]) -> None:
        """Note what became of these jobs."""
        first = len(self)
        others = receipts.others if isinstance(receipts, LazyReceipts) else _not_created(receipts)
        self._others.update({first + place: receipt for place, receipt in others.items()})
        self._ids += bytes.fromhex("".join(ids_of(jobs)).replace("-", ""))

    def made(self, places: Sequence[int]) -> list[Receipt]:
        ids = [self._id(place) for place in places]
        jobs = self._store.engine.get(ids) if ids else []
        return [Receipt(_there(id_, job), created=True) for id_, job in zip(ids, jobs, strict=True)]

    def _id(self, place: int) -> str:
        text = self._ids[ID_BYTES * place : ID_BYTES * (place + 1)].hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _not_created(receipts: Sequence[Receipt]) -> dict[int, Receipt]:
    return {place: receipt for place, receipt in enumerate(receipts) if not receipt.created}


def _there(id_: str, job: Job | None) -> Job:
    if job is None:
        raise JobNotFound(id_)
    return job
