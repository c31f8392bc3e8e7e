"""The items as another program reads and writes them: the seed's names, one place a job, no two jobs at one place."""

import itertools
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest

from tests.support.making import (
    a_job,
    an_error,
    claim,
    claimed,
    crashed,
    current,
    ended,
    enqueued,
    recover,
    running,
    settle,
    start,
)
from tests.support.workbench import until, working
from treadle.engines.dynamodb.items import ItemKey, Slot, id_key, plain, unique_key
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.values import JobFilter, Lease, Renewal, Ruling
from treadle.model import KEY_CAP, NAME_CAP, Progress, Scope, State, lifecycle
from treadle.model.lifecycle import Failed, Released, Snoozed, Stopped, Succeeded
from treadle.model.retry import Retry

SEED = {
    "PK", "SK", "job_type", "payload", "scheduled_for", "status", "locked_by", "lock_expires_at", "attempts",
    "last_error", "created_at", "completed_at",
}  # fmt: skip
NOON = "2026-01-01T12:00:00.000000Z"
WIDTH = re.compile(r"scheduled#\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z#[0-9a-f-]{36}")
SPREAD = 4  # of the tables of these tests


def home(table, job):
    """The id item of a job."""
    place = id_key(job.id, SPREAD)
    return table.item(*place)


def due_item(table, job):
    """The one due item of this job, wherever it is; None when it has none."""
    found = [item for item in table.items("job") if item["SK"]["S"].endswith(f"#{job.id}")]
    assert len(found) <= 1, f"job {job.id} lies in two places"
    return found[0] if found else None


def pointer(item):
    """Where an item says the job is."""
    return ItemKey(item["job_pk"]["S"], item["job_sk"]["S"])


def a_plain_item(table, *, at=NOON, id=None, **attributes):
    """An item as the seed's own code puts it: no id item, no treadle."""
    id = id or str(uuid4())
    item = {
        "PK": "job", "SK": f"scheduled#{at}#{id}", "job_type": "greet", "payload": '{"name":"Ada"}',
        "scheduled_for": at, "status": "pending", "created_at": at,
    }  # fmt: skip
    table.put(**{**{name: {"S": value} for name, value in item.items()}, "attempts": {"N": "0"}, **attributes})
    return id


# ------------------------------------------------------------------------------------------- a job in its item


@pytest.mark.covers("003-S01.a", "003-S01.b", "003-S02.a", "003-S03.a")
def test_a_fresh_plain_job_is_the_seeds_item_and_nothing_else(engine, table, clock):
    job = enqueued(engine, payload_json='{"name":"Ada"}')
    assert table.items("job") == [
        {
            "PK": {"S": "job"},
            "SK": {"S": f"scheduled#{NOON}#{job.id}"},
            "job_type": {"S": "greet"},
            "payload": {"S": '{"name":"Ada"}'},
            "scheduled_for": {"S": NOON},
            "status": {"S": "pending"},
            "attempts": {"N": "0"},
            "created_at": {"S": NOON},
        }
    ]


@pytest.mark.covers("003-S01.b")
def test_between_them_the_items_of_a_job_hold_every_attribute_of_the_seed(engine, table, clock):
    job = running(engine, retry=Retry(max_attempts=1))
    held = due_item(table, job)
    assert (held["locked_by"], held["lock_expires_at"]) == ({"S": "w1"}, {"S": "2026-01-01T12:00:30.000000Z"})
    settle(engine, job, Failed(an_error(clock.now())))
    record = home(table, job)
    assert (record["completed_at"], record["attempts"]) == ({"S": NOON}, {"N": "1"})
    assert json.loads(record["last_error"]["S"])["message"] == "boom"
    assert set(held) | set(record) >= SEED


@pytest.mark.parametrize("fields", [{}, {"key": "ada", "key_scope": Scope.PENDING, "lane": "acme", "priority": 3}])
def test_a_claim_leaves_the_item_that_the_claimed_job_would_be_written_as(engine, table, clock, fields):
    """It sets and removes single attributes; together they are what lifecycle.claim says."""
    job = running(engine, **fields)
    start(engine, job)
    engine.extend([Lease(job.id, job.lease_token, progress=Progress(0.5, "half"))], lease=30.0)
    settle(engine, current(engine, job), Released())
    released = current(engine, job)

    got = claimed(engine, released, token="t2", worker="w2")

    after = lifecycle.claim(released, clock.now(), worker="w2", token="t2", lease=30.0).after
    assert got == after == current(engine, job)
    item = due_item(table, job)
    assert item == {**attributes_of(after), "PK": item["PK"], "SK": item["SK"]}


def test_no_job_ends_before_it_started(engine, table, clock):
    """The machine that wrote the start may be ahead of the one that writes the end."""
    ahead = clock.now() + timedelta(seconds=5)
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, started_at=ahead)], lease=30.0)

    settle(engine, current(engine, job), Succeeded("1"))

    record = home(table, job)
    assert record["completed_at"] == record["started_at"] == {"S": "2026-01-01T12:00:05.000000Z"}


@pytest.mark.covers("003-S03.a")
@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC), "2026-01-01T12:00:01.000000Z"),
        (datetime(2026, 1, 1, 12, 0, 1, 1, tzinfo=UTC), "2026-01-01T12:00:01.000001Z"),
        (
            datetime(2026, 1, 1, 20, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
            "2026-01-01T14:15:01.000000Z",
        ),
        (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_every_time_is_written_in_one_fixed_width_of_utc(engine, table, clock, moment, text):
    job = enqueued(engine, due_at=moment)
    item = due_item(table, job)
    assert (item["SK"]["S"], item["scheduled_for"]["S"]) == (f"scheduled#{text}#{job.id}", text)
    assert current(engine, job).due_at == moment


@pytest.mark.covers("003-S01.a")
def test_the_sort_keys_order_jobs_by_due_time_and_then_id(engine, table, clock):
    moments = [clock.now() + timedelta(microseconds=n) for n in (1, 10**6, 5, 999_999, 2 * 10**6 + 1, 60 * 10**6, 1)]
    jobs = [enqueued(engine, due_at=moment) for moment in moments]
    in_table = [item["SK"]["S"].rpartition("#")[2] for item in table.due()]
    assert in_table == [job.id for job in sorted(jobs, key=lambda job: (job.due_at, job.id))]


@pytest.mark.covers("003-S04.a")
def test_the_due_query_finds_what_is_due_exactly_now_and_nothing_later(engine, table, clock):
    job = enqueued(engine, due_at=clock.now() + timedelta(seconds=1))
    exactly = "scheduled#2026-01-01T12:00:01.000000Z#~"
    before = "scheduled#2026-01-01T12:00:00.999999Z#~"
    assert [item["SK"]["S"].rpartition("#")[2] for item in table.due(high=exactly)] == [job.id]
    assert table.due(high=before) == []
    clock.advance(microseconds=999_999)
    assert claim(engine) == []
    clock.advance(microseconds=1)
    assert [got.id for got in claim(engine)] == [job.id]


# ------------------------------------------------------------------------------- where it is, and that it moves


def test_the_id_item_points_at_the_due_item_and_becomes_the_record(engine, table, clock):
    job = enqueued(engine)
    assert pointer(home(table, job)) == ItemKey("job", f"scheduled#{NOON}#{job.id}")
    got = claimed(engine, job)
    assert pointer(home(table, job)) == ItemKey("job", f"scheduled#{NOON}#{job.id}")  # a claim leaves it alone
    settle(engine, got, Succeeded('"done"'))
    record = home(table, job)
    assert "job_pk" not in record
    assert (record["status"], record["result"]) == ({"S": "succeeded"}, {"S": '"done"'})
    assert (record["completed_at"], record["job_type"]) == ({"S": NOON}, {"S": "greet"})


@pytest.mark.covers("003-S01.a", "003-S04.b")
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_a_finished_job_leaves_the_due_range_in_the_transaction_that_ends_it(
    open_engine, far_url, layer, table, clock, impatient, state
):
    far = open_engine(far_url, clock=clock.now)
    job = running(far)
    outcome = {
        State.SUCCEEDED: Succeeded("1"),
        State.FAILED: lifecycle.FailedForGood("permanent", an_error(clock.now())),
        State.CANCELLED: Stopped("not wanted"),
    }[state]
    before = table.items()
    layer.conflict("TransactWriteItems")  # whatever is no part of the transaction would be written all the same
    assert settle(far, job, outcome).ruling is Ruling.BUSY
    assert table.items() == before
    layer.calm()
    layer.forget()
    assert settle(far, job, outcome).ruling is Ruling.APPLIED
    assert [exchange.operation for exchange in layer.log] == ["TransactWriteItems"]
    assert table.items("job") == []
    assert home(table, job)["status"] == {"S": state.value}


@pytest.mark.covers("003-S02.a", "003-S03.b")
@pytest.mark.parametrize("how", ["failure", "snooze"])
def test_a_retry_moves_the_item_and_its_id_and_key_follow_in_one_transaction(
    open_engine, far_url, layer, table, clock, how
):
    engine = open_engine(far_url, clock=clock.now)
    job = running(engine, key="ada", key_scope=Scope.ACTIVE, retry=Retry(base=60, jitter=0))
    old = due_item(table, job)
    layer.forget()
    settle(engine, job, Failed(an_error(clock.now())) if how == "failure" else Snoozed(60.0))
    assert [exchange.operation for exchange in layer.log] == ["TransactWriteItems"]
    new = due_item(table, job)  # one place, and not where it was
    assert (old["SK"]["S"], new["SK"]["S"]) == (
        f"scheduled#{NOON}#{job.id}", f"scheduled#2026-01-01T12:01:00.000000Z#{job.id}",
    )  # fmt: skip
    assert new["scheduled_for"] == {"S": "2026-01-01T12:01:00.000000Z"}
    assert table.item(*pointer(home(table, job))) == new
    key = table.item(*unique_key("default", "greet", "ada"))
    assert table.item(*pointer(table.item(*pointer(key)))) == new  # the key by way of the id
    assert current(engine, job).due_at == clock.now() + timedelta(seconds=60)


def test_of_a_retry_that_is_cut_off_nothing_is_written(open_engine, far_url, layer, table, clock, impatient):
    engine = open_engine(far_url, clock=clock.now)
    job = running(engine, key="ada", key_scope=Scope.ACTIVE)
    before = table.items()
    for place in range(3):
        layer.conflict("TransactWriteItems", at=place)
        assert settle(engine, job, Failed(an_error(clock.now()))).ruling is Ruling.BUSY
        layer.calm()
        assert table.items() == before


@pytest.mark.parametrize("how", ["release", "crash", "replace", "operator retry"])
def test_wherever_a_job_goes_there_is_one_due_item_and_its_id_points_there(engine, table, clock, how):
    job = enqueued(engine, retry=Retry(max_attempts=1)) if how == "operator retry" else enqueued(engine)
    if how == "replace":
        asked = a_job(clock.now(), queue="other", lane="ada", priority=7, due_at=clock.now() + timedelta(days=1))
        engine.turn([lifecycle.replace(job, asked, clock.now(), actor="ada")])
    else:
        got = claimed(engine, job)
        if how == "release":
            settle(engine, got, Released())
        elif how == "crash":
            crashed(engine, clock, got)
        else:
            settle(engine, got, Failed(an_error(clock.now())))
            engine.turn([lifecycle.retry(current(engine, job), clock.now(), actor="ada")])
    item = due_item(table, job)
    assert table.item(*pointer(home(table, job))) == item
    assert item["status"] == {"S": "pending"}
    assert item["scheduled_for"]["S"] == item["SK"]["S"].split("#")[1]
    assert [found.id for found in engine.find(JobFilter(state=State.PENDING), limit=10).jobs] == [job.id]


# ------------------------------------------------------------------------------------------------------- keys


@pytest.mark.covers("003-S05.a", "003-S06.b")
def test_a_key_is_an_item_that_names_its_scope_its_window_and_its_job(engine, table, clock):
    until_ = clock.now() + timedelta(days=1)
    job = enqueued(
        engine, task="summary", key="user-1#2026-01-01", key_scope=Scope.WINDOW, key_until=until_, tenant="acme"
    )
    [key] = table.items("key#")
    assert plain(key) == {
        "PK": "key#acme#summary#user-1%232026-01-01", "SK": "key", "job": job.id, "scope": "window",
        "until": "2026-01-02T12:00:00.000000Z", "ttl": str(int(until_.timestamp()) + 86_400),
        "job_pk": id_key(job.id, SPREAD).pk, "job_sk": job.id,
    }  # fmt: skip
    assert table.item(*pointer(table.item(*pointer(key)))) == due_item(table, job)


@pytest.mark.parametrize("scope", [Scope.PENDING, Scope.ACTIVE, Scope.EVER])
def test_a_key_without_a_window_has_no_end_that_ttl_could_take_it_at(engine, table, clock, scope):
    enqueued(engine, key="ada", key_scope=scope)
    [key] = table.items("key#")
    assert (key["scope"], "ttl" in key, "until" in key) == ({"S": scope.value}, False, False)


# ------------------------------------------------------------------------------- plain items of other programs


def test_a_plain_item_of_another_program_is_run_by_a_worker(make_app, table):
    app = make_app(clock=None)
    names = []

    @app.task
    def greet(name: str) -> str:
        names.append(name)
        return f"hello {name}"

    id = a_plain_item(table)
    with working(app):
        until(lambda: names, "a run of the plain item")
        until(lambda: table.items("job") == [], "its end")
    job = app.get(id)
    assert (names, job.state, job.result, job.task) == (["Ada"], State.SUCCEEDED, "hello Ada", "greet")


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("2026-01-01T12:00:00.000000+00:00", id="isoformat with its offset"),
        pytest.param("2026-01-01T12:00:00+00:00", id="isoformat without microseconds"),
        pytest.param("2026-01-01T12:00:00Z", id="to the second"),
    ],
)
def test_a_plain_item_in_another_iso_format_is_claimed_retried_and_settled(engine, table, clock, at):
    id = a_plain_item(table, at=at)
    clock.advance(seconds=1)
    [job] = claim(engine)
    assert (job.id, job.due_at) == (id, datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert settle(engine, job, Failed(an_error(clock.now()))).ruling is Ruling.APPLIED
    assert WIDTH.fullmatch(due_item(table, job)["SK"]["S"])
    clock.advance(minutes=10)
    [job] = claim(engine)
    assert settle(engine, job, Succeeded("1")).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.SUCCEEDED


@pytest.mark.covers("003-S13.a")
def test_a_plain_item_whose_time_has_no_zone_is_read_as_utc(engine, table, clock):
    naive = a_plain_item(table, at="2026-01-01T11:59:59.000000")
    ours = enqueued(engine)
    got = claim(engine)  # in order, which times with and without a zone have not
    assert [job.id for job in got] == [naive, ours.id]
    assert got[0].due_at == datetime(2026, 1, 1, 11, 59, 59, tzinfo=UTC)
    settle(engine, got[0], Failed(an_error(clock.now())))
    assert WIDTH.fullmatch(due_item(table, got[0])["SK"]["S"])


def test_a_plain_item_can_be_renewed_and_its_holder_is_fenced(engine, table, clock):
    a_plain_item(table)
    [job] = claim(engine)
    assert engine.extend([Lease(job.id, job.lease_token)], lease=30.0)[0].renewal is Renewal.RENEWED
    stale = job.evolve(lease_token="another")
    assert settle(engine, stale, Succeeded("1")).ruling is Ruling.LOST
    assert settle(engine, job, Succeeded("1")).ruling is Ruling.APPLIED


def test_a_plain_item_whose_worker_crashed_is_recovered_by_another_process(make_engine, table, clock):
    first, second = make_engine(), make_engine()
    id = a_plain_item(table)
    assert [job.id for job in claim(first)] == [id]
    clock.advance(seconds=30)
    [seen] = second.expired(limit=10)
    assert recover(second, seen).ruling is Ruling.APPLIED
    [again] = claim(second)
    assert (again.id, again.crashes) == (id, 1)


ODD = {
    "an error as plain text": {"last_error": {"S": "Traceback: boom"}, "attempts": {"N": "1"}},
    "None as boto3 writes it": {
        name: {"NULL": True} for name in ("last_error", "locked_by", "lock_expires_at", "completed_at")
    },
    "a payload that is a map": {"payload": {"M": {"name": {"S": "Ada"}}}},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_other_programs_may_write_in_the_seeds_fields_is_understood(engine, table, clock, odd):
    id = a_plain_item(table, **ODD[odd])
    [job] = claim(engine)
    assert (job.id, job.payload) == (id, {"name": "Ada"})
    assert settle(engine, job, Succeeded("1")).ruling is Ruling.APPLIED


@pytest.mark.parametrize("missing", ["status", "job_type", "scheduled_for"])
def test_one_broken_item_keeps_no_other_job_from_its_worker(engine, table, clock, missing):
    a_plain_item(table, at="2026-01-01T11:00:00.000000Z")
    [item] = table.items("job")
    table.put(**{name: value for name, value in item.items() if name != missing})
    good = enqueued(engine)
    assert [job.id for job in claim(engine)] == [good.id]
    assert [job.id for job in engine.find(JobFilter(state=State.RUNNING), limit=10).jobs] == [good.id]


def test_items_that_the_seeds_own_code_finished_are_neither_claimed_nor_counted(engine, table, clock):
    for status in ("completed", "dead_letter", "cancelled", "failed", "in_progress"):
        a_plain_item(table, status={"S": status})
    job = enqueued(engine)
    assert [got.id for got in claim(engine)] == [job.id]
    assert engine.count(JobFilter())[State.RUNNING] == 1


# ------------------------------------------------------------------------------------------------------ names


STRANGE = ["a", "#", "%", "~", "a#b", "a%23b", "%23", "a~b", "~0", "~3", "##", "é", "e\u0301", "日本", "🙂", " a", "A"]


def test_no_two_slots_lie_in_one_partition():
    lanes = ["", *STRANGE]
    slots = [Slot(queue, lane, priority) for queue in STRANGE for lane in lanes for priority in (-1, 0, 11)]
    slots += [Slot(queue, str(n), 0, hashed=True) for queue in STRANGE for n in range(4)]
    slots += [Slot("q", lane, 0, task=task, version=v) for lane in lanes for task in STRANGE for v in (1, 11)]
    slots += [Slot("q", "", 0, task=task, version=1, tenant=tenant) for task in STRANGE for tenant in (*STRANGE, "0")]
    partitions = [slot.partition(shard) for slot in slots for shard in (0, 1, 11)]
    assert len(set(partitions)) == len(partitions)


def test_no_two_keys_lie_at_one_place():
    names = [unique_key(tenant, task, key) for tenant, task, key in itertools.product(STRANGE, repeat=3)]
    assert len(set(names)) == len(names)


def test_jobs_of_strange_names_are_kept_apart_and_come_back_as_they_were(engine, table, clock):
    jobs = [
        a_job(clock.now(), queue=queue, lane=lane, tenant=lane or "x", task=f"t{queue}", key=queue,
              key_scope=Scope.EVER, priority=1)
        for queue in STRANGE for lane in ("", "#", "~1", "日#本")
    ]  # fmt: skip
    assert all(receipt.created for receipt in engine.enqueue(jobs))
    assert engine.get([job.id for job in jobs]) == jobs
    for queue in STRANGE:
        got = claim(engine, 50, queues=[queue])
        assert {job.id for job in got} == {job.id for job in jobs if job.queue == queue}


def test_the_longest_names_fit(engine, table, clock):
    """Escaped, four names of the greatest length are longer than any key of DynamoDB."""
    hash_, percent = "#" * NAME_CAP, "%" * NAME_CAP
    fields = {"queue": hash_, "lane": percent, "task": hash_, "tenant": "日" * (NAME_CAP // 3)}
    ones = [enqueued(engine, key="#" * KEY_CAP, key_scope=Scope.EVER, **fields)]
    ones += [enqueued(engine, key="#" * (KEY_CAP - 1) + "x", key_scope=Scope.EVER, **fields)]  # they differ at the end
    other = enqueued(engine, **{**fields, "lane": "%" * (NAME_CAP - 1) + "x"})
    assert engine.get([job.id for job in ones]) == ones
    assert {job.id for job in claim(engine, queues=[hash_], lanes=[percent])} == {job.id for job in ones}
    assert [job.id for job in claim(engine, queues=[hash_])] == [other.id]
    for job in ones:
        settle(engine, current(engine, job), Succeeded("1"))
        assert current(engine, job).state is State.SUCCEEDED


def test_jobs_of_the_longest_names_are_parked_and_found_again(engine, clock):
    names = {"queue": "#" * NAME_CAP, "lane": "%" * NAME_CAP, "task": "~" * NAME_CAP}
    strangers = [a_job(clock.now(), **names) for _ in range(40)]
    engine.enqueue(strangers)
    known = enqueued(engine, queue=names["queue"], lane=names["lane"])
    assert [job.id for job in claim(engine, queues=[names["queue"]], tasks=["greet"])] == [known.id]
    got = claim(engine, 50, queues=[names["queue"]], tasks=[names["task"]])
    assert [job.id for job in got] == [job.id for job in strangers]


# --------------------------------------------------------------------------------------------- lists of the ended


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_failed_or_cancelled_job_has_a_line_in_its_list_until_it_is_retried(engine, table, clock, state):
    job = ended(engine, state)
    [line] = table.places(state.value)
    assert line.sk == f"{NOON}#{job.id}"
    engine.turn([lifecycle.retry(job, clock.now(), actor="ada")])
    assert table.places(state.value) == []


def test_a_succeeded_job_has_no_line_anywhere(engine, table, clock):
    job = ended(engine, State.SUCCEEDED)
    assert [place for place in table.places() if place.pk not in ("meta", "slots")] == [id_key(job.id, SPREAD)]
