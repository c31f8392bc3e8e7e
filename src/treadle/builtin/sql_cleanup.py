"""`sql.cleanup`: deletes the rows of a table that are too old, a batch at a time.

    sql_cleanup.register(app, OldRows("sessions", "expires_at"), OldRows("carts", "updated_at", keep="30d"))

Tables and columns are named where it is registered. A payload can only say how long rows are kept.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, TypedDict

from pydantic import AfterValidator

from treadle.app.treadle import Treadle, UrlObject
from treadle.builtin.arguments import add_task
from treadle.builtin.sql_databases import Expired, Missing, Quoted, database_of
from treadle.errors import Cancelled, ConfigError, GiveUp
from treadle.model.clock import Duration, seconds
from treadle.tasks.context import Context
from treadle.tasks.task import Task

NAME = "sql.cleanup"
MOST_ROWS = 100_000  # of a batch


class OldRows(NamedTuple):
    """The rows of `table` whose time in `column` passed longer than `keep` ago; a NULL never did.

    `table` may be `schema.table`. `where` are values that other columns must have: `{"state": "draft"}`.
    """

    table: str
    column: str
    keep: Duration = 0
    where: Mapping[str, Any] = {}


class Deleted(TypedDict):
    """How many rows are gone, in all and by table."""

    deleted: int
    tables: dict[str, int]


def _kept(keep: float | str | None) -> float | str | None:
    if keep is not None:
        seconds(keep, "keep")
    return keep


Keep = Annotated[float | str | None, AfterValidator(_kept)]


class SqlCleanup:
    """Deletes old rows of an app's own database, or of the one at `url`; `batch` rows a transaction.

    >>> cleanup = SqlCleanup(app, OldRows("sessions", "expires_at"))  # doctest: +SKIP
    >>> cleanup.run()  # doctest: +SKIP
    {'deleted': 3, 'tables': {'sessions': 3}}
    """

    def __init__(
        self, app: Treadle, *rows: OldRows, url: "str | UrlObject | None" = None, batch: int = 1000, name: str = NAME
    ) -> None:
        if not rows:
            raise ConfigError(f'{name}: no rows are named; give it OldRows("sessions", "expires_at", keep="1d")')
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_ROWS:
            raise ConfigError(f"{name}: batch: {batch!r} must be a whole number from 1 to {MOST_ROWS:,}")
        self._app, self._rows, self._batch, self._name = app, rows, batch, name
        self._keeps = [seconds(old.keep, f"{name}: keep") for old in rows]
        for old in rows:
            Quoted.of(old.table, old.column, *old.where)
            if None in old.where.values():
                raise ConfigError(f"{name}: where: no row equals NULL; leave the column out")
        self._database = None if url is None else database_of(url)

    def run(self, keep: Duration | None = None, ctx: Context | None = None) -> Deleted:
        """Delete what is too old now, by the clock of the app's store; `keep` is used instead of every rule's own.

        With the `ctx` of a job it tells how far it is, and stops between two batches when it is asked to.
        """
        given = None if keep is None else seconds(keep, "keep")
        now = self._app.engine.now()
        done: Deleted = {"deleted": 0, "tables": {old.table: 0 for old in self._rows}}
        try:
            with (self._database or database_of(self._app.settings.url)).opened() as database:
                for number, (old, own) in enumerate(zip(self._rows, self._keeps, strict=True)):
                    before = now - timedelta(seconds=own if given is None else given)
                    for deleted in database.delete(Expired(old.table, old.column, before, old.where), self._batch):
                        done["deleted"] += deleted
                        done["tables"][old.table] += deleted
                        self._report(ctx, number, old.table, done["deleted"])
        except Missing as error:
            way_out = "create what is missing, or change what is registered"
            raise GiveUp(f"{self._name}: table {error.table!r}: {error}; {way_out}") from error
        except ConfigError as error:
            raise GiveUp(
                f"{self._name}: {error}; the database can be named where it is registered, with url="
            ) from None
        return done

    def _report(self, ctx: Context | None, number: int, table: str, deleted: int) -> None:
        if ctx is None:
            return
        ctx.progress(number / len(self._rows), f"{deleted:,} rows deleted, now in {table}")
        if ctx.cancelled:
            raise Cancelled(f"{deleted:,} rows were deleted before it was asked to stop")


def register(
    app: Treadle,
    *rows: OldRows,
    name: str = NAME,
    url: "str | UrlObject | None" = None,
    batch: int = 1000,
    **options: Any,
) -> Task[..., Deleted]:
    """Register a clean-up of these rows as a task; `options` are those of `app.register`, such as `cron`.

    Its payload may hold `keep`, a duration that is used instead of every rule's own.
    """
    cleanup = SqlCleanup(app, *rows, url=url, batch=batch, name=name)

    def sql_cleanup(ctx: Context, keep: Keep = None) -> Deleted:
        return cleanup.run(keep, ctx)

    return add_task(app, name, sql_cleanup, register, options)
