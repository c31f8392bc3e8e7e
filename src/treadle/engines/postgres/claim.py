"""Claiming jobs. One statement (sql/turn.sql) settles the changes of a turn and claims."""

import time
from collections.abc import Sequence
from datetime import datetime

from treadle.engines.batches import check_one_each
from treadle.engines.fence import in_order
from treadle.engines.postgres.connection import WRITE_ERRORS, refusal
from treadle.engines.postgres.cursors import ClaimCursors
from treadle.engines.postgres.rows import JOB, change_record, job_from
from treadle.engines.postgres.session import PostgresStore
from treadle.engines.postgres.settle import is_plain, settle, settle_alone, verdicts
from treadle.engines.postgres.turn import TurnAnswer, parameter, statement, turn_form
from treadle.engines.values import Claim, Turn, Verdict
from treadle.model import Change, Job, State

FILL_TIMEOUT = 1.0  # seconds that one claim may take to fill up from many lanes, or past jobs that it may not take
MAX_PARKED = 1000  # jobs that one statement may park beside those that it claims

HELD = f"select {JOB} from @.jobs where state = 'running' and lease_token = %s"


class PostgresTurns:
    """Takes turns, and remembers from one to the next what makes a claim cheap."""

    def __init__(self, store: PostgresStore) -> None:
        self.cursors = ClaimCursors()
        self._store = store
        self._rounds = 0
        self._parked: set[tuple[str, ...]] = set()  # queues whose last claim met a pause, or a parked job

    def turn(self, changes: Sequence[Change], claim: Claim | None, now: datetime | None) -> Turn:
        """Write these changes, then claim."""
        check_one_each(changes)
        now = self._store.clock.written(now)
        if claim is None:
            return Turn(self._settle(changes, now), [], now or self._store.clock.now())
        answer = TurnAnswer()
        rulings = self._settle_and_claim(changes, claim, now, answer)
        jobs = self._held(claim.token) if answer.claimed or answer.held else []
        self.cursors.learn(claim, jobs, took=answer.took, resumed=answer.resumed, now=time.monotonic())
        # What the token held before may have been the whole answer: then nobody has looked for more.
        return Turn(rulings, jobs, answer.now or now or self._store.clock.now(), answer.more or bool(answer.held))

    def _settle(self, changes: Sequence[Change], now: datetime | None) -> list[Verdict]:
        """Write the changes, plain ones together; a verdict each, in order."""
        plain = [change for change in changes if is_plain(change)]
        written = dict(zip((change.before.id for change in plain), settle(self._store, plain, now), strict=True))
        return [written.get(change.before.id) or settle_alone(self._store, change, now) for change in changes]

    def _settle_and_claim(
        self, changes: Sequence[Change], claim: Claim, now: datetime | None, answer: TurnAnswer
    ) -> list[Verdict]:
        """Write the changes and claim, in one statement if that can be; a verdict each, in order."""
        settled: list[Verdict] | None = None
        together = changes
        if not all(is_plain(change) and not self._makes_due(change, now) for change in changes):
            settled, together = self._settle(changes, now), []
        try:
            self._claim(together, claim, now, answer)
        except WRITE_ERRORS as error:
            refusal(error)
            if not together:
                raise
            settled, together = self._settle(changes, now), []
            self._claim([], claim, now, answer)
        if settled is None:
            claimed = {id_: answer.tokens_before.get(id_) for id_ in answer.claimed}
            settled = verdicts(self._store, changes, answer.settled, now, claimed)
        if not answer.held:
            self._fill(claim, now, answer)
        return settled

    def _makes_due(self, change: Change, now: datetime | None) -> bool:
        """Whether the change makes a job due at once: a statement has one snapshot, and could not claim it."""
        put_back = change.after.state is State.PENDING and change.after.due_at <= (now or self._store.clock.now())
        return put_back or change.follow is not None

    def _claim(self, changes: Sequence[Change], claim: Claim, now: datetime | None, answer: TurnAnswer) -> None:
        """Send the one statement of a turn, and add its answer."""
        store, queues = self._store, tuple(claim.queues)
        scans_all = claim.thorough or store.clock.fixed is not None
        cursors = [] if scans_all else self.cursors.of(claim, time.monotonic())
        parked = queues in self._parked
        self._rounds += 1
        store.notifications.waiters.claiming()
        text = parameter(
            [change_record(change, audit_all=store.audit_all) for change in changes],
            claim,
            now,
            audit_all=store.audit_all,
            cursors=cursors,
            spare=MAX_PARKED if answer.parked else 0,
            again=bool(answer.claimed),
            round_=self._rounds,
        )
        sql = statement(turn_form(claim, settles=bool(changes), parked=parked, resumes=bool(cursors)))
        sent_at = time.monotonic()
        answer.add(store.session.run_read_committed(lambda connection: store.session.execute(connection, sql, text)))
        answer.took, answer.resumed = time.monotonic() - sent_at, bool(cursors)
        if answer.parked_or_paused or answer.parked:
            self._parked.add(queues)
            answer.more = answer.more or not parked
        else:
            self._parked.discard(queues)
        if answer.now is not None:
            store.clock.sync(answer.now)

    def _fill(self, claim: Claim, now: datetime | None, answer: TurnAnswer) -> None:
        """Claim again while there may be more: in lanes that gave their share, or behind jobs that we may not take."""
        deadline = time.monotonic() + FILL_TIMEOUT
        while len(answer.claimed) < claim.limit and answer.more and time.monotonic() < deadline:
            self._claim([], claim, now, answer)

    def _held(self, token: str) -> list[Job]:
        """The jobs claimed under this token, in order."""
        return in_order(job_from(row) for row in self._store.session.read(HELD, [token]))
