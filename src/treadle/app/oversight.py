"""What only those who run the whole store may do: see its workers and rates, keep it in order, say who may use it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.app.handle import note
from treadle.app.operations import Operations
from treadle.engines.contract import StagedSchema, TenantIsolation
from treadle.engines.values import OVERWRITE, Finding, Half, RowSecurity
from treadle.errors import NotPossible
from treadle.model import check_name
from treadle.model.clock import Duration
from treadle.model.records import Drain, WorkerInfo
from treadle.tasks.faces import async_face

if TYPE_CHECKING:
    from treadle.app.stats import Stats
    from treadle.app.tokens import Tokens


class Oversight(Operations):
    """The store as a whole; a tenant's handle has nothing of it."""

    logger: logging.Logger | None

    # ---------------------------------------------------------------------------------------- workers and rates

    def workers(self, *, silent: bool = False) -> list[WorkerInfo]:
        """The workers that are alive, as they last reported.

        With `silent` also those that were not heard of lately and did not say good-bye; they are kept for a day.
        """
        now = self.engine.now()
        return [member for member in self.engine.records(WorkerInfo) if silent or member.alive(now)]

    def drains(self) -> list[Drain]:
        """Who has asked which live worker to stop, and why."""
        return list(self.engine.records(Drain))

    def drain(self, worker: str, *, actor: str = "api", reason: str = "") -> WorkerInfo:
        """Ask a live worker to stop as a signal would: it finishes what it runs, and takes no more.

        It hears of it with its next heartbeat. NotPossible if no live worker has this name.
        """
        check_name("actor", actor)
        alive = {one.name: one for one in self.workers()}
        if worker not in alive:
            names = ", ".join(sorted(alive)) or "none"
            raise NotPossible(f"no live worker is called {worker!r}; alive: {names}")
        meant = alive[worker]
        self.engine.save(Drain(worker, actor, note(reason), self.engine.now(), meant.started_at), before=OVERWRITE)
        return meant

    def stats(self, span: Duration = "1h", *, queue: str | None = None, task: str | None = None) -> "Stats":
        """How many jobs ended in this time, by the minute, and how long they waited and ran; at most of 7 days.

        Workers count what they settle and write it every 10 seconds; one that crashes takes its last counts along.
        """
        from treadle.app.stats import stats  # noqa: PLC0415 - only operators ask

        return stats(self.engine, span, queue=queue, task=task)

    @property
    def tokens(self) -> "Tokens":
        """Who may use the REST API: make, list and revoke tokens."""
        from treadle.app.tokens import Tokens  # noqa: PLC0415 - random numbers are loaded where they are used

        return Tokens(self.engine)

    # ------------------------------------------------------------------------------------ keeping order

    def recover(self, *, message: str | None = None, actor: str = "api") -> int:
        """Requeue or end every job whose lease has run out; workers do this by themselves. How many it was.

        `message` is kept as the error, instead of the setting crash_message or our own words. A job that is locked is
        left for the next time.
        """
        from treadle.worker.maintenance.recovery import recover_leases  # noqa: PLC0415 - a process that only enqueues does not need it

        check_name("actor", actor)
        settings = self.settings
        text = note(settings.crash_message if message is None else message)
        return recover_leases(
            self.engine, actor=actor, message=text, count_claims=settings.count_claims, logger=self.logger
        )

    def prune(self, *, progress: Callable[[int], None] | None = None) -> int:
        """Delete finished jobs and audit events older than their retention, as workers do by themselves.

        How many jobs were deleted; `progress` is called with how many it is so far.
        """
        from treadle.worker.maintenance.sealing import prune_old_events  # noqa: PLC0415

        total = 0
        while batch := self.engine.prune(self.settings.keep, limit=1000, to_the_end=True):
            total += batch
            if progress is not None:
                progress(total)
        prune_old_events(self.engine, self.settings.audit_retention)
        return total

    def seal_audit(self) -> int:
        """Seal every audit event there is, as workers do by themselves within a minute or two; how many it was."""
        from treadle.worker.maintenance.sealing import seal_events  # noqa: PLC0415

        return seal_events(self.engine)

    def open(self) -> None:
        """See that the store is there and its schema fits; otherwise done on first use."""
        self.engine.open()

    def migrate(self, half: Half | None = None) -> list[str]:
        """Create or upgrade the schema; the names of the migrations applied now.

        To upgrade PostgreSQL without a pause: "pre" before the new code starts, "post" when no old code runs any more.
        """
        engine = self.engine
        if half is not None and isinstance(engine, StagedSchema):
            return engine.migrate_half(half)
        return engine.migrate()

    def check_schema(self, *, quick: bool = False) -> list[str]:
        """Every difference between the live schema and the expected one; `quick`: what keeps it from being used."""
        return self.engine.check(quick=quick)

    def schema_sql(self, half: Half | None = None) -> str:
        """The schema as SQL, for your own migration tool."""
        engine = self.engine
        if half is None or not isinstance(engine, StagedSchema):
            return "" if half == "post" else engine.schema_sql()
        return engine.half_sql(half)

    def rls(self, *, worker_role: str, app_role: str, owner: str = "", only_sql: bool = False) -> str:
        """Keep tenants apart in the database itself (PostgreSQL's row-level security); the statements.

        Workers connect as `worker_role`, which sees all rows; the application as `app_role`, whose `app.tenant(name)`
        sees that tenant's. `owner` is a condition in SQL that also lets a row be seen, over its column `tenant`. Run it
        as the tables' owner, after each migration.
        """
        engine = self.engine
        if not isinstance(engine, TenantIsolation):
            raise NotPossible(
                "only PostgreSQL has row-level security: whoever can open this store sees every row; "
                "give each tenant a store of its own, or move to PostgreSQL"
            )
        return engine.rls(RowSecurity(worker_role, app_role, owner), only_sql=only_sql)

    def doctor(self, *, workers: bool = True) -> list[Finding]:
        """What an operator should know about this store; with `workers`, also whether somebody does what is due."""
        found = self.engine.doctor()
        if any(finding.level == "error" for finding in found):  # the tables may not be there
            return found
        from treadle.app.status import status  # noqa: PLC0415 - a process that only enqueues does not need them
        from treadle.schedules.retirement import findings  # noqa: PLC0415

        problems = status(self.engine, None, [], limit=1_000).problems if workers else ()
        return [*found, *findings(self.engine), *(Finding("error", problem) for problem in problems)]

    aworkers = async_face(workers)
    adrain = async_face(drain)
    adrains = async_face(drains)
    astats = async_face(stats)
    adoctor = async_face(doctor)
