"""Deleting finished jobs that are old enough, in short transactions, because every writer waits for them."""

import json
from datetime import datetime

from treadle.engines.retention import Place, Rule, Sweeper, Window
from treadle.engines.sqlite.connection import DatabaseFile
from treadle.engines.sqlite.rows import DELETE_MEMOS, IDS
from treadle.engines.values import Retention
from treadle.model.clock import micros

WINDOW_SIZE = 1000  # finished jobs that one transaction reads to see which of them are old

DELETE_FINISHED = f"delete from treadle_finished where id in {IDS}"  # noqa: S608


class Pruner:
    """Deletes what a Retention does not keep; goes on where the last call ended."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._sweeper = Sweeper()

    def prune(self, keep: Retention, limit: int, now: datetime, *, to_the_end: bool) -> int:
        with self._file.write() as connection:
            connection.execute("delete from treadle_keys where until <= ?", (micros(now),))
        return self._sweeper.sweep(keep, limit, now, self._prune_window, to_the_end=to_the_end)

    def _prune_window(self, rule: Rule, since: Place, until: datetime, limit: int) -> Window:
        with self._file.write() as connection:
            rows = connection.execute(
                """
                select id, task, finished_at from treadle_finished
                where state = ? and (finished_at, id) > (?, ?) and finished_at < ?
                and not exists (select 1 from treadle_keys where job = id)
                order by finished_at, id limit ?
                """,
                (rule.state, *(since or (-(2**62), "")), micros(until), WINDOW_SIZE if rule.picky else limit),
            ).fetchall()
            gone = [row for row in rows if rule.wants(row[1])][:limit]
            if gone:
                ids = json.dumps([row[0] for row in gone])
                connection.execute(DELETE_FINISHED, (ids,))
                connection.execute(DELETE_MEMOS, (ids,))
        if len(rows) < WINDOW_SIZE and len(gone) < limit:
            return Window(len(gone), None)
        last = (gone if len(gone) == limit else rows)[-1]
        return Window(len(gone), (last[2], last[0]))
