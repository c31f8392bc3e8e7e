"""What every engine compares before it writes, and what it answers; pure."""

from collections.abc import Iterable
from datetime import datetime

from treadle.engines.values import Ruling, Verdict
from treadle.model import Change, Fence, Job, State


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs as a claim gives them: the most urgent first, then the longest due."""
    return sorted(jobs, key=lambda job: (-job.priority, job.due_at, job.id))


def fits(change: Change, current: Job, now: datetime) -> bool:
    """Whether the job is as the change's fence wants it (model.Fence)."""
    before = change.before
    if change.fence is Fence.UNKNOWN:
        return False
    if change.fence is Fence.RUNNING:
        return current.state is State.RUNNING
    if current.revision != before.revision:
        return False
    if change.fence is Fence.REVISION:
        return current.state is before.state
    if current.state is not State.RUNNING or not before.lease_token or current.lease_token != before.lease_token:
        return False
    lease = before.lease_until
    return change.fence is Fence.HOLDER or (lease is not None and current.lease_until == lease and lease <= now)


def judge(change: Change, current: Job | None) -> Verdict:
    """Why a change did not apply, from the job as it is now; the same reasoning on every engine."""
    if current is None:
        return Verdict(Ruling.LOST)
    before, after = change.before, change.after
    if change.fence is Fence.HOLDER and before.lease_token and current.lease_token == before.lease_token:
        # Only the holder's own writes keep its token: anybody else's take it away.
        if current.state is State.RUNNING and current.revision > before.revision:
            return Verdict(Ruling.STALE, current)
        if current.state is after.state and current.revision == after.revision:
            return Verdict(Ruling.ALREADY, current)
    return Verdict(Ruling.LOST, current)
