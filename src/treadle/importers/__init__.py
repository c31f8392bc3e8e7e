"""Adopting a table of jobs that an application had: a view that takes its place, and its rows with their past."""

from treadle.importers.own_table import own_table_sql

__all__ = ["own_table_sql"]
