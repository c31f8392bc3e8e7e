"""Adopting a table of jobs that an application had: a view that takes its place, and its rows with their past."""

from treadle.importers.bring import BATCH, MAX_BATCH, ImportResult, bring
from treadle.importers.own_table import own_table_sql
from treadle.importers.rows import Misfit
from treadle.importers.table_map import TableMap, as_toml, checked_map, map_of, read_map

__all__ = [
    "BATCH",
    "MAX_BATCH",
    "ImportResult",
    "Misfit",
    "TableMap",
    "as_toml",
    "bring",
    "checked_map",
    "map_of",
    "own_table_sql",
    "read_map",
]
