"""Hypothesis looks for the shortest story in which an engine and the reference tell different endings."""

from datetime import datetime, timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)  # fmt: skip

from tests.engines.conformance.walk import START, Pair
from tests.support import stores
from tests.support.making import an_error
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.values import Claim, Lease, Retention, Ruling
from treadle.model import Change, Fence, Job, Progress, Reason, Retry, Scope, State, lifecycle

LEASE = 5.0
PATIENT = settings(
    max_examples=size(25, long=120),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # the same stories in every run: walk.py is for new ones
    suppress_health_check=list(HealthCheck),
)

requests = st.fixed_dictionaries(
    {
        "lane": st.sampled_from(["", "a"]),
        "priority": st.sampled_from([0, 0, 5]),
        "due": st.sampled_from([0, 0, 3]),  # seconds from now
        "max_attempts": st.integers(1, 2),
        "scope": st.sampled_from([None, None, None, *Scope]),
        "lives": st.sampled_from([None, None, None, 4]),  # seconds until it expires
    }
)
outcomes = st.sampled_from(
    [
        lambda error: lifecycle.Succeeded("1"),
        lambda error: lifecycle.Failed(error, 0.0),
        lifecycle.TimedOut,
        lambda error: lifecycle.FailedForGood(Reason.PERMANENT, error),
        lambda error: lifecycle.Snoozed(2.0),
        lambda error: lifecycle.Released(),
        lambda error: lifecycle.Stopped("enough"),
    ]
)


def test_no_story_ends_differently_on_the_engine_and_on_the_reference(engine_kind, tmp_path):
    if engine_kind == "sqlite":
        run_state_machine_as_test(lambda: Story("sqlite:///:memory:"), settings=PATIENT)
        return
    with stores.fresh_store(engine_kind, tmp_path) as url:
        run_state_machine_as_test(
            lambda: Story(stores.emptied(url)), settings=settings(PATIENT, max_examples=size(4, long=10))
        )


class Story(RuleBasedStateMachine):
    """Copies of jobs and changes stay in their bundles, so any rule may act on one that is long out of date."""

    readings: Bundle[Job] = Bundle("readings")
    held: Bundle[Job] = Bundle("held")
    written: Bundle[Change] = Bundle("written")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.now = START
        self.pair = Pair(connect(url, clock=lambda: START, audit_all=True), audit_all=True)
        self.made = 0
        self.requests: dict[str, Job] = {}
        self.claims: list[Claim] = []

    def teardown(self) -> None:
        self.pair.engine.close()

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        self.pair.check()

    @initialize(target=held, wishes=st.lists(requests, min_size=2, max_size=4), limit=st.integers(1, 3))
    def begin(self, wishes: list[dict], limit: int) -> object:
        """A story starts in the middle of the day: some jobs wait, some run."""
        self.enqueue(wishes=wishes)
        return self.claim(limit=limit, lanes=None)

    # ---------------------------------------------------------------------------------- producers

    @rule(target=readings, wishes=st.lists(requests, min_size=1, max_size=3))
    def enqueue(self, wishes: list[dict]) -> object:
        jobs = [self._request(wish) for wish in wishes]
        self.requests.update({job.id: job for job in jobs})
        return multiple(*(receipt.job for receipt in self.pair.enqueue(jobs, self.now)))

    @rule(job=readings)
    def enqueue_again(self, job: Job) -> None:
        if job.id in self.pair.reference.jobs:  # once pruned, an id starts a new story
            self.pair.enqueue([self.requests[job.id]], self.now)

    @rule(target=written, job=readings, wish=requests)
    def replace(self, job: Job, wish: dict) -> object:
        if job.state is not State.PENDING:
            return multiple()
        return self._write(lifecycle.replace(job, self._request(wish), self.now, actor="producer"))

    def _request(self, wish: dict) -> Job:
        self.made += 1
        number, scope = self.made, wish["scope"]
        return Job(
            id=f"{number * 0x9E3779B1 % 2**32:08x}-0000-7000-8000-{number:012x}",  # in no order
            task="greet",
            payload_json=str(number),
            created_at=self.now,
            due_at=self.now + timedelta(seconds=wish["due"]),
            lane=wish["lane"],
            priority=wish["priority"],
            retry=Retry(wish["max_attempts"], 1.0, None, 0.0),
            expires_at=wish["lives"] and self.now + timedelta(seconds=wish["lives"]),
            key="ever" if scope is Scope.EVER else scope and "the key",
            key_scope=scope,
            key_until=self.now + timedelta(seconds=4) if scope is Scope.WINDOW else None,
        )

    # ------------------------------------------------------------------------------------ workers

    @precondition(lambda self: self._any(State.PENDING))
    @rule(target=held, limit=st.integers(1, 3), lanes=st.sampled_from([None, None, [""], ["a"]]))
    def claim(self, limit: int, lanes: list[str] | None) -> object:
        number = len(self.claims) + 1
        self.claims.append(Claim(f"token {number}", f"w{number}", limit, LEASE, lanes=lanes))
        return multiple(*self.pair.turn([], self.claims[-1], self.now).jobs)

    @rule(target=held, back=st.integers(0, 2))
    def claim_again(self, back: int) -> object:
        return multiple(*self.pair.turn([], self.claims[-1 - back % len(self.claims)], self.now).jobs)

    @rule(target=written, job=held, outcome=outcomes)
    def settle(self, job: Job, outcome: object) -> object:
        return self._write(lifecycle.settle(job, outcome(an_error(self.now)), self.now))

    @rule(jobs=st.lists(held, min_size=1, max_size=3, unique_by=lambda job: (job.id, job.lease_token)))
    def extend(self, jobs: list[Job]) -> None:
        holds = [Lease(job.id, job.lease_token, self.now, Progress(0.5), 7) for job in jobs]
        self.pair.extend(holds, LEASE, self.now)

    # ---------------------------------------------------------------- upkeep, operators, lost answers

    @rule(target=written, job=held)
    def recover(self, job: Job) -> object:
        return self._write(lifecycle.crash(job, self.now, actor="reaper"))

    @rule()
    def recover_what_has_expired(self) -> None:
        for job in self.pair.expired(100, self.now):
            act = lifecycle.crash if job.state is State.RUNNING else lifecycle.expire
            self._write(act(job, self.now, actor="reaper"))

    @rule(target=readings, job=st.one_of(readings, held))
    def look(self, job: Job) -> object:
        return multiple(*filter(None, self.pair.get([job.id])))

    @rule(target=written, job=st.one_of(readings, held))
    def cancel(self, job: Job) -> object:
        return multiple() if job.state.final else self._write(lifecycle.cancel(job, self.now, actor="operator"))

    @precondition(lambda self: self._any(State.FAILED, State.CANCELLED))
    @rule(target=written, job=readings, keep_attempts=st.booleans())
    def retry(self, job: Job, keep_attempts: bool) -> object:
        if job.state not in (State.FAILED, State.CANCELLED):
            return multiple()
        return self._write(lifecycle.retry(job, self.now, actor="operator", keep_attempts=keep_attempts))

    @rule(changes=st.lists(written, min_size=1, max_size=3, unique_by=lambda change: change.before.id))
    def write_again(self, changes: list[Change]) -> None:
        self.pair.turn(changes, None, self.now)

    @precondition(lambda self: self._any(State.SUCCEEDED, State.FAILED, State.CANCELLED))
    @rule(keep=st.sampled_from([0, 3]), limit=st.sampled_from([1, 100]))
    def prune(self, keep: int, limit: int) -> None:
        ages = {state: timedelta(seconds=keep) for state in State if state.final}
        self.pair.prune(Retention(ages), limit, self.now)

    @rule(seconds=st.sampled_from([0.001, 1, 3, 5, 12]))
    def wait(self, seconds: float) -> None:
        self.now: datetime = self.now + timedelta(seconds=seconds)

    def _any(self, *states: State) -> bool:
        return any(job.state in states for job in self.pair.reference.jobs.values())

    def _write(self, change: Change) -> object:
        """Send a change, give way to the holder of the key, and keep what was sent for sending it again."""
        [verdict] = self.pair.turn([change], None, self.now).verdicts
        if verdict.ruling is Ruling.REFUSED and change.fence in (Fence.HOLDER, Fence.RECOVERY):
            self.pair.turn([lifecycle.supersede(change, self.now)], None, self.now)
        return multiple(change)
