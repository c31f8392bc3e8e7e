"""Bringing the rows of a table into treadle: in batches, each once, and as often as one likes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from treadle.app.treadle import Treadle
from treadle.engines.values import Ruling, Verdict
from treadle.errors import ConfigError, NotPossible
from treadle.importers.rows import Misfit, Past, past_of
from treadle.importers.source import SourceTable, Values, opened
from treadle.importers.table_map import TableMap
from treadle.model import Job, lifecycle

BATCH = 500
MAX_BATCH = 10_000
MAX_TOLD = 1_000  # misfits that are kept; the others are only counted
BUSY_TIMEOUT = 60.0  # seconds for which a store that is busy is asked again


class ImportResult(NamedTuple):
    """What became of the rows of a table."""

    read: int
    brought: dict[str, int]  # by state
    known: int  # were there already
    misfits: list[Misfit]
    unfit: int  # how many did not fit; of many, the misfits are the first


def bring(
    app: Treadle,
    url: str,
    table: str,
    table_map: TableMap,
    *,
    batch: int = BATCH,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> ImportResult:
    """Bring the rows of this table of the database at `url` into the app's store.

    A row that is there already, or was, is left as it is. A dry run writes nothing.
    """
    with opened(url, table) as source:
        names = _names(source, table_map)
        id_column = table_map.columns["id"][0]
        if len(table_map.columns["id"]) > 1:
            raise ConfigError("columns.id: must be a column of its own, and not a part of one")
        run = _Run(app, source.name, table_map, dry_run=dry_run)
        for rows in source.batches(id_column, names, batch):
            run.take(rows)
            progress(run.read)
    if run.brought and not dry_run:
        app.wake()
    return ImportResult(run.read, dict(run.brought), run.known, run.misfits, run.unfit)


def _names(source: SourceTable, table_map: TableMap) -> list[str]:
    """The columns to read besides the id; ConfigError for one that the table has not."""
    for field, (name, *_) in table_map.columns.items():
        if name not in source.columns:
            raise ConfigError(
                f"columns.{field}: table {source.name} has no column {name!r}; it has {', '.join(source.columns)}"
            )
    used = {name for name, *_ in table_map.columns.values()}
    return sorted(used - {table_map.columns["id"][0]})


class _Run:
    """One import under way."""

    def __init__(self, app: Treadle, table: str, table_map: TableMap, *, dry_run: bool) -> None:
        self.read = self.known = self.unfit = 0
        self.brought: Counter[str] = Counter()
        self.misfits: list[Misfit] = []
        self._app = app
        self._table = table
        self._map = table_map
        self._dry_run = dry_run
        self._ids: dict[str, str] = {}  # by job, the row: of a dry run, of rows that hold keys
        self._keys: dict[tuple[str, str, str | None], str] = {}

    def take(self, rows: Sequence[Values]) -> None:
        """Bring these rows."""
        self.read += len(rows)
        now = self._app.engine.now()
        pasts: dict[str, Past] = {}
        for values in rows:
            past = past_of(values, self._map, self._table, now)
            if isinstance(past, Misfit):
                self._tell(past)
            elif past.job.id in pasts:
                self._tell(self._twice(past.row))
            else:
                pasts[past.job.id] = past
        stored = dict(zip(pasts, self._app.engine.get(list(pasts)), strict=True))
        fresh = []
        for id_, past in pasts.items():
            current = stored[id_]
            if current is None:
                fresh.append(past)
            else:
                self._note_known(past, current)
        if self._dry_run:
            self._pretend(fresh)
        else:
            self._adopt(fresh)

    def _pretend(self, pasts: Sequence[Past]) -> None:
        for past in pasts:
            change = lifecycle.adopt(past.job, past.at, actor="import")
            key = (past.job.tenant, past.job.task, past.job.key)
            if change.takes_key and self._keys.setdefault(key, past.row) != past.row:
                self._tell(self._key_taken(past, f"row {self._keys[key]} has it, too"))
            else:
                self.brought[past.job.state.value] += 1

    def _adopt(self, pasts: Sequence[Past]) -> None:
        note, deadline = f"from table {self._table}", time.monotonic() + BUSY_TIMEOUT
        left = list(pasts)
        while left:
            changes = [lifecycle.adopt(past.job, past.at, actor="import", note=note) for past in left]
            verdicts = self._app.engine.turn(changes).verdicts
            busy = [past for past, verdict in zip(left, verdicts, strict=True) if verdict.ruling is Ruling.BUSY]
            for past, verdict in zip(left, verdicts, strict=True):
                if verdict.ruling is not Ruling.BUSY:
                    self._note(past, verdict)
            if busy and time.monotonic() > deadline:
                raise NotPossible(
                    f"the store was busy for {BUSY_TIMEOUT:g} s at row {busy[0].row}; run it again: nothing comes twice"
                )
            left = busy
            if left:
                time.sleep(0.2)

    def _note(self, past: Past, verdict: Verdict) -> None:
        if verdict.ruling is Ruling.APPLIED:
            self.brought[past.job.state.value] += 1
        elif verdict.ruling is not Ruling.REFUSED:
            self._note_known(past, verdict.job)
        elif past.job.key is not None and ("key" in verdict.why or verdict.holder):
            self._tell(self._key_taken(past, f"{verdict.holder or 'another job'} has it"))
        else:
            self._tell(Misfit(past.row, "*", verdict.why, "correct the row"))

    def _note_known(self, past: Past, current: Job | None) -> None:
        """A job of this id is there: it is the row's own, or somebody else's."""
        job = past.job
        same = current is None or (current.task, current.tenant) == (job.task, job.tenant)
        if same and current is not None and "created_at" in self._map.columns:
            same = current.created_at == job.created_at
        if same:
            self.known += 1
        else:
            self._tell(self._twice(past.row))

    def _twice(self, row: str) -> Misfit:
        return Misfit(row, self._map.column("id"), "another job has this id", "give the row an id of its own")

    def _key_taken(self, past: Past, whose: str) -> Misfit:
        why = f"key {past.job.key!r} is taken: {whose}"
        return Misfit(past.row, self._map.column("key"), why, "keep one of the two, or empty the column")

    def _tell(self, misfit: Misfit) -> None:
        self.unfit += 1
        if len(self.misfits) < MAX_TOLD:
            self.misfits.append(misfit)
