"""The record of a dated key, in the layout of the companion (003): one item for its own program and for treadle.

`Scheduler` is that program, from its document: a conditional write of the record, and a look at what it points to.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.engines.dynamodb.conftest import Table
from tests.support.making import an_error, claim, race, settle
from treadle import InvalidJob, Job, Retry, State, Treadle
from treadle.model.lifecycle import Failed, Succeeded
from treadle.profiles import companion
from treadle.testing import FakeClock, run_until_idle

DAY = "2026-01-01"
STATUSES = {
    "pending": State.PENDING, "in_progress": State.RUNNING, "completed": State.SUCCEEDED, "failed": State.PENDING,
    "dead_letter": State.FAILED, "cancelled": State.CANCELLED,
}  # fmt: skip


class Scheduler:
    """The companion's own code, as its document has it."""

    def __init__(self, table: Table, clock: FakeClock) -> None:
        self.table, self.clock = table, clock

    def schedule(self, user: str, day: str = DAY, status: str = "pending") -> str | None:
        """Schedule a summary unless there is one; the id of the new job."""
        id_, now = str(uuid4()), self.clock.now().isoformat()
        job = {
            "PK": {"S": "job"}, "SK": {"S": f"scheduled#{now}#{id_}"}, "job_type": {"S": "daily_summary"},
            "payload": {"S": f'{{"user_id":"{user}"}}'}, "scheduled_for": {"S": now}, "status": {"S": status},
            "attempts": {"N": "0"}, "created_at": {"S": now},
        }  # fmt: skip
        record = {
            "PK": {"S": f"scheduled-job#summary#{user}"},
            "SK": {"S": day},
            "job_pk": job["PK"],
            "job_sk": job["SK"],
        }
        return id_ if self._write(record, job) or self._take_over(record, job) else None

    def _write(self, record: dict[str, Any], job: dict[str, Any], **condition: Any) -> bool:
        condition = condition or {"ConditionExpression": "attribute_not_exists(PK)"}
        items = [
            {"TableName": self.table.name, "Item": record, **condition},
            {"TableName": self.table.name, "Item": job},
        ]
        try:
            self.table.client.transact_write_items(TransactItems=[{"Put": item} for item in items])
        except self.table.client.exceptions.TransactionCanceledException:
            return False
        return True

    def _take_over(self, record: dict[str, Any], job: dict[str, Any]) -> bool:
        """The record exists: verify that the job is still present before assuming that it was scheduled."""
        there = self.table.item(record["PK"]["S"], record["SK"]["S"])
        if there is None or self.table.item(there["job_pk"]["S"], there["job_sk"]["S"]) is not None:
            return False
        unchanged = {"ConditionExpression": "job_sk = :was", "ExpressionAttributeValues": {":was": there["job_sk"]}}
        return self._write(record, job, **unchanged)


@pytest.fixture
def scheduler(table: Table, clock: FakeClock) -> Scheduler:
    return Scheduler(table, clock)


@pytest.fixture
def app(make_app) -> Treadle:
    """The companion's app on treadle."""
    app = make_app(profile=companion.PROFILE)
    app.register("daily_summary", lambda payload: payload)
    return app


def scheduled(app: Treadle, user: str = "ada", day: str = DAY, **using: Any) -> Job:
    """As the companion schedules a summary with treadle: one for each user and day."""
    key = f"scheduled-job#summary#{user}#{day}"
    return app.tasks["daily_summary"].using(key=key, **using).enqueue({"user_id": user})


# ---------------------------------------------------------------------------------------------------- the layout


@pytest.mark.covers("003-S05.a")
def test_the_record_lies_where_the_companion_keeps_it_and_leads_to_its_job(app, table, clock):
    job = scheduled(app)
    [record] = table.items("scheduled-job#")
    assert (record["PK"], record["SK"]) == ({"S": "scheduled-job#summary#ada"}, {"S": "2026-01-01"})
    assert set(record) == {"PK", "SK", "job_pk", "job_sk", "job", "scope", "until", "ttl"}
    assert (record["scope"], record["until"]) == ({"S": "window"}, {"S": "2026-01-02T12:00:00.000000Z"})
    home = table.item(record["job_pk"]["S"], record["job_sk"]["S"])
    due = table.item(home["job_pk"]["S"], home["job_sk"]["S"])
    assert due["SK"] == {"S": f"scheduled#2026-01-01T12:00:00.000000Z#{job.id}"}
    assert table.items("key#") == []


@pytest.mark.covers("003-S05.a")
def test_the_record_leads_to_its_job_wherever_a_retry_or_the_end_moves_that(app, table, clock):
    job = scheduled(app)
    [first] = table.items("scheduled-job#")
    for end in (Failed(an_error(clock.now())), Succeeded("1")):
        [held] = claim(app.engine, 1)
        settle(app.engine, held, end)
        clock.advance(minutes=1)
        assert table.items("scheduled-job#") == [first]
        home = table.item(first["job_pk"]["S"], first["job_sk"]["S"])
        if "job_pk" in home:
            assert table.item(home["job_pk"]["S"], home["job_sk"]["S"])["attempts"] == {"N": "1"}
        else:
            assert (home["SK"], home["status"]) == ({"S": job.id}, {"S": "succeeded"})


@pytest.mark.parametrize(
    "key", ["scheduled-job#2026-01-01", "summary#ada#2026-01-01", "scheduled-job#summary#ada#today"]
)
def test_a_key_of_another_shape_or_of_a_tenant_lies_among_the_other_keys(app, table, key):
    task = app.tasks["daily_summary"]
    task.using(key=key).enqueue({})
    task.using(key=f"scheduled-job#summary#ada#{DAY}", tenant="acme").enqueue({})
    assert (table.items("scheduled-job#"), len(table.items("key#"))) == ([], 2)


def test_a_key_that_does_not_name_its_task_is_refused_to_another_task(app, table, clock):
    first = scheduled(app)
    other = app.register("user_sync", lambda payload: None).using(key=f"scheduled-job#summary#ada#{DAY}")
    with pytest.raises(InvalidJob, match="is the record of a job of task 'daily_summary'"):
        other.enqueue({})
    with pytest.raises(InvalidJob, match="is the record of a job of task 'daily_summary'"):
        other.using(tx=[]).enqueue({})
    assert sum(app.count().values()) == 1
    assert scheduled(app).id == first.id


# ----------------------------------------------------------------------------------------------- between programs


@pytest.mark.covers("003-S06.a", "003-S06.d")
@pytest.mark.parametrize("status", STATUSES)
def test_a_record_of_the_companions_own_code_is_honoured_while_its_job_is_there(app, table, scheduler, status):
    theirs = scheduler.schedule("ada", status=status)
    before = table.items("job"), table.items("scheduled-job#")
    found = scheduled(app)
    assert (found.id, found.task, found.state) == (theirs, "daily_summary", STATUSES[status])
    listed: list[dict[str, Any]] = []
    assert scheduled(app, tx=listed).id == theirs
    assert listed == []
    assert (table.items("job"), table.items("scheduled-job#")) == before
    assert table.items("id#") + table.items("key#") == []
    assert scheduled(app, user="bob").id != theirs


@pytest.mark.covers("003-S06.a", "003-S06.d")
def test_a_job_of_the_companions_own_code_that_treadle_has_run_is_still_the_one_of_its_record(app, scheduler, clock):
    theirs = scheduler.schedule("ada")
    clock.advance(seconds=1)
    [ran] = run_until_idle(app)
    assert (ran.id, ran.state) == (theirs, State.SUCCEEDED)
    assert scheduled(app).id == theirs
    assert run_until_idle(app) == []


@pytest.mark.covers("003-S06.c", "003-S06.d")
def test_a_record_of_the_companions_own_code_whose_job_is_gone_is_not_trusted(app, table, scheduler):
    scheduler.schedule("ada")
    [place] = table.places("job")
    table.remove(place)
    made = scheduled(app)
    [record] = table.items("scheduled-job#")
    assert record["job"] == {"S": made.id}
    assert scheduled(app).id == made.id
    assert scheduler.schedule("ada") is None


@pytest.mark.covers("003-S06.a", "003-S06.d")
@pytest.mark.parametrize("fate", ["pending", "running", "retried", "completed", "dead_letter", "cancelled"])
def test_the_companions_own_code_honours_our_record_whatever_becomes_of_the_job(app, table, scheduler, clock, fate):
    job = scheduled(app, retry=Retry(max_attempts=2 if fate == "retried" else 1, base=60, jitter=0))
    if fate == "cancelled":
        app.cancel(job.id)
    elif fate != "pending":
        [held] = claim(app.engine, 1)
        if fate != "running":
            settle(app.engine, held, Succeeded("1") if fate == "completed" else Failed(an_error(clock.now())))
    assert scheduler.schedule("ada") is None
    assert len(table.items("job")) == (1 if fate in ("pending", "running", "retried") else 0)
    assert scheduler.schedule("ada", day="2026-01-02") is not None


@pytest.mark.covers("003-S06.c", "003-S06.d")
def test_the_companions_own_code_does_not_trust_our_record_of_a_job_that_was_pruned(app, scheduler, clock):
    lost = scheduled(app)
    run_until_idle(app)
    clock.advance(days=30)
    assert app.prune() == 1
    again = scheduler.schedule("ada", day=DAY)
    assert again not in (None, lost.id)
    assert scheduled(app).id == again


@pytest.mark.covers("003-S06.b", "003-S06.d")
def test_of_both_programs_racing_for_one_user_and_day_one_makes_the_job(make_app, table, clock):
    apps = [make_app(profile=companion.PROFILE) for _ in range(3)]
    for each in apps:
        each.register("daily_summary", lambda payload: None)
        each.open()
    theirs = Scheduler(table, clock)
    for number in range(5):
        user = f"user{number}"

        def act(place: int, user: str = user) -> str | None:
            return scheduled(apps[place], user).id if place < 3 else theirs.schedule(user)

        ids = race(6, act)
        [record] = [item for item in table.items("scheduled-job#") if item["PK"]["S"].endswith(f"#{user}")]
        made = [item for item in table.items("job") if f'"{user}"' in item["payload"]["S"]]
        assert len(made) == 1
        [id_] = {item["SK"]["S"].rpartition("#")[2] for item in made}
        assert {found for found in ids if found is not None} == {id_}
        assert id_ in (record["job_sk"]["S"].rpartition("#")[2], record.get("job", {}).get("S"))


def test_the_window_of_a_record_is_that_of_its_key(app, table, clock):
    first = scheduled(app)
    clock.advance(days=1, microseconds=-1)
    assert scheduled(app).id == first.id
    clock.advance(microseconds=1)
    assert scheduled(app).id != first.id
    [record] = table.items("scheduled-job#")
    until = datetime.fromisoformat(record["until"]["S"])
    assert until == clock.now() + timedelta(days=1)


@pytest.mark.parametrize("there", [True, False], ids=["whose job is there", "whose job is gone"])
def test_our_job_is_deleted_beside_a_later_record_of_the_companions_own_code(app, table, scheduler, there):
    ours = scheduled(app)
    run_until_idle(app)
    table.remove(table.places("scheduled-job#")[0])  # as time to live does
    scheduler.schedule("ada")
    [record] = table.items("scheduled-job#")
    if not there:
        table.remove(table.places("job")[0])

    app.delete(ours)

    assert table.items("id#") == []
    assert (table.items("scheduled-job#"), len(table.items("job"))) == ([record], int(there))
