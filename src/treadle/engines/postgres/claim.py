"""Claiming jobs, and what is settled before: one call of a function (turn.py) does both.

changes ──► successes, plain changes ──► turn() ──► verdicts, jobs
                │ one was not written       ▲
                └─► settle.py says why ─────┘ then the claim alone
"""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.batches import check_one_each
from treadle.engines.postgres.adopt import adopt
from treadle.engines.postgres.connection import WRITE_ERRORS, refusal
from treadle.engines.postgres.cursors import ClaimCursor, ClaimCursors
from treadle.engines.postgres.records import await_claims
from treadle.engines.postgres.rows import change_record
from treadle.engines.postgres.session import PostgresStore
from treadle.engines.postgres.settle import is_plain, settle, settle_alone, settle_together, verdicts
from treadle.engines.postgres.turn import HELD, TURN, ClaimedRows, TurnAnswer, answer_of, parameters, request, travels
from treadle.engines.postgres.wire import Connection, Value
from treadle.engines.values import APPLIED, Claim, ClaimedJob, Turn, Verdict
from treadle.model import Change
from treadle.model.change import Write
from treadle.model.lifecycle import Success, whole

MAX_LOOKS = 10  # of a claim that must not overlook anything, beside other claims
FILL_TIMEOUT = 1.0  # seconds for which a claim that found nothing goes on looking


class Ends(NamedTuple):
    """The ends of attempts that the function can write: plain successes, and other plain changes."""

    successes: Sequence[Success] = ()
    changes: Sequence[Change] = ()


class PostgresTurns:
    """Takes turns, and remembers from one to the next what makes a claim cheap."""

    def __init__(self, store: PostgresStore) -> None:
        self.cursors = ClaimCursors()
        self._store = store
        self._rounds = 0
        self._served: dict[tuple[str, ...], Sequence[str] | None] = {}  # by queues: the lane that was served last

    def turn(self, changes: Sequence[Change | Success], claim: Claim | None, now: datetime | None) -> Turn:
        """Write these changes, then claim."""
        check_one_each(changes)
        now = self._store.clock.written(now)
        ruled: dict[str, Verdict] = {}
        answer = self._write(changes, claim, now, ruled) if changes else None
        if claim is None:
            claimed, more = list[ClaimedJob](), False
        else:
            if answer is None or not answer.looked:
                answer = self._call(Ends(), claim, now)
            claimed, more = self._claimed(claim, now, answer)
            search, take, resumed = answer.search_time, answer.take_time, answer.resumed
            self.cursors.learn(
                claim, claimed, search_time=search, take_time=take, resumed=resumed, now=time.monotonic()
            )
        time_ = answer.now if answer is not None else now or self._store.clock.now()
        return Turn([ruled[change.id] for change in changes], claimed, time_, more)

    # -------------------------------------------------------------------------------------------- settling

    def _write(
        self, changes: Sequence[Change | Success], claim: Claim | None, now: datetime | None, ruled: dict[str, Verdict]
    ) -> TurnAnswer | None:
        """Write the changes, and claim with them if all of them can be written together; note a verdict for each."""
        plain = [change for change in changes if isinstance(change, Success) and travels(change)]
        sent = {success.id for success in plain}
        others = whole([change for change in changes if change.id not in sent], now or self._store.clock.now())
        if all(is_plain(change) and change.follow is None for change in others):
            ends = Ends(plain, others)
        else:
            ends = Ends(plain)
            self._settle(others, now, ruled)
        if not plain and not ends.changes:
            return None
        try:
            answer = self._call(ends, claim, now)
        except WRITE_ERRORS as error:
            refusal(error)
            self._settle([*whole(plain, now or self._store.clock.now()), *ends.changes], now, ruled)
            return None
        self._rule(ends, answer, now, ruled)
        return answer

    def _rule(self, ends: Ends, answer: TurnAnswer, now: datetime | None, ruled: dict[str, Verdict]) -> None:
        """Note a verdict for each end; what was not written is looked at, or written in the general way."""
        written = answer.succeeded
        ruled.update((success.id, APPLIED) for success in ends.successes if written is None or success.id in written)
        if written is not None:
            left = [success for success in ends.successes if success.id not in written]
            self._settle(whole(left, answer.now), now, ruled)
        answers = verdicts(self._store, ends.changes, answer.settled, now)
        ruled.update(zip((change.id for change in ends.changes), answers, strict=True))

    def _settle(self, changes: Sequence[Change], now: datetime | None, ruled: dict[str, Verdict]) -> None:
        """Write the changes in the general way, plain ones together; note a verdict for each."""
        plain = [change for change in changes if is_plain(change)]
        ruled.update(zip((change.id for change in plain), settle(self._store, plain, now), strict=True))
        groups: dict[Write, list[Change]] = {}
        for change in changes:
            if change.write is Write.ADOPT:
                groups.setdefault(change.write, []).append(change)
            elif not is_plain(change) and (change.takes_key or change.follow is not None):
                ruled[change.id] = settle_alone(self._store, change, now)
            elif not is_plain(change):
                groups.setdefault(change.write, []).append(change)
        for kind, group in groups.items():
            write = adopt if kind is Write.ADOPT else settle_together
            answers = write(self._store, group, now)
            ruled.update(zip((change.id for change in group), answers, strict=True))

    # -------------------------------------------------------------------------------------------- claiming

    def _claimed(self, claim: Claim, now: datetime | None, answer: TurnAnswer) -> tuple[list[ClaimedJob], bool]:
        """The jobs claimed, in order, and whether there may be more."""
        if claim.thorough:
            answer = self._once_more(claim, now, answer)
        deadline = time.monotonic() + FILL_TIMEOUT
        while not answer.taken and not answer.held and answer.more and time.monotonic() < deadline:
            answer = self._call(Ends(), claim, now)
        if answer.held:  # the whole answer of this claim, which was lost; nobody has looked for more
            return self._held(claim.token), True
        if not answer.taken:
            return [], answer.more
        if answer.claimed is None:
            return self._held(claim.token), answer.more
        return answer.claimed.claimed(claim.token, 1), answer.more

    def _once_more(self, claim: Claim, now: datetime | None, answer: TurnAnswer) -> TurnAnswer:
        """The answer of a claim that must not overlook anything, when it has found nothing.

        A claim under way may have locked a job that it does not know, and park it: then this one has seen it neither
        where it was nor where it is. So when those claims are over, it looks once more.
        """
        for _ in range(MAX_LOOKS):
            if answer.taken or answer.held or answer.more:
                break
            others = await_claims(self._store.session.read, "nothing was found")
            answer = self._call(Ends(), claim, now)
            if not others:
                break
        return answer

    def _held(self, token: str) -> list[ClaimedJob]:
        """The jobs claimed under this token, in order."""
        session = self._store.session
        rows = session.run(lambda connection: self._rows(connection, HELD, [token]), retry_for=session.retry_for)
        return rows.claimed(token, 0)

    def _rows(self, connection: Connection, sql: str, values: Sequence[Value]) -> ClaimedRows:
        return ClaimedRows(self._store.session.call(connection, sql, values))

    def _call(self, ends: Ends, claim: Claim | None, now: datetime | None) -> TurnAnswer:
        """Call the function, and learn from its answer."""
        store, session = self._store, self._store.session
        queues = tuple(claim.queues) if claim else ()
        cursors: list[ClaimCursor] = []
        if claim is not None:
            store.notifications.waiters.claiming()
            self._rounds += 1
            if not claim.thorough and store.clock.fixed is None:
                cursors = self.cursors.of(claim, time.monotonic())
        text = request(
            claim,
            audit_all=store.audit_all,
            round_=self._rounds,
            after=self._served.get(queues),
            cursors=cursors,
        )
        records = [change_record(change, audit_all=store.audit_all) for change in ends.changes]
        values = parameters(records, ends.successes, text, now)
        answer = answer_of(session.run_read_committed(lambda connection: self._rows(connection, TURN, values)))
        store.clock.sync(answer.now)
        if claim is not None and answer.looked:
            self._served[queues] = answer.after
            if cursors and answer.taken < claim.limit:  # it has not looked elsewhere
                self.cursors.forget()
                answer = answer._replace(more=True)
        return answer._replace(resumed=bool(cursors))
