"""Where schedules, pauses, workers, seals and costs lie, and what happens to them in trouble."""

from datetime import timedelta

import pytest

from tests.support.making import a_job, an_error, claimed, current, ended, enqueued, running, settle
from treadle.engines.dynamodb.audit import MAX_SEALED_EVENTS
from treadle.engines.dynamodb.items import ItemKey
from treadle.engines.values import OVERWRITE, JobFilter, Ruling
from treadle.model import Event, EventKind, FollowUp, OnEnd, Reason, State, lifecycle
from treadle.model.lifecycle import FailedForGood, Succeeded
from treadle.model.records import ANY, Pause, Schedule, Seal, WorkerInfo, subject

MINUTE = timedelta(minutes=1)
LATER = "2026-01-01T12:01:00.000000Z"


def a_schedule(now, **fields):
    return Schedule(**{"name": "tick", "task": "greet", "created_at": now, "every": 60.0, "next_at": now, **fields})


def saved(engine, record):
    assert engine.save(record, before=None).done
    return record


def fire(engine, schedule, job=None):
    after = schedule.evolve(next_at=schedule.next_at + MINUTE, revision=schedule.revision + 1)
    return after, engine.save(after, before=schedule, job=job)


def a_seal(lines, number=1):
    now = lines[0].at
    return Seal(lines[0].tenant, number, len(lines), now, lines[-1].at, "d", "", "h", now)


@pytest.fixture
def far(open_engine, far_url, clock):
    engine = open_engine(far_url, clock=clock.now)
    engine.open()
    return engine


# -------------------------------------------------------------------------------------------------- where they lie


def test_a_record_is_an_item_of_its_kind_with_its_fields_by_name(engine, table, clock):
    saved(engine, a_schedule(clock.now(), tenant="a#b", payload={"n": 1}, timeout=2.5, enabled=False))
    item = table.item("schedules", "a%23b#tick")
    assert {name: item[name] for name in ("name", "tenant", "payload", "timeout", "enabled", "revision")} == {
        "name": {"S": "tick"},
        "tenant": {"S": "a#b"},
        "payload": {"S": '{"n":1}'},
        "timeout": {"N": "2.5"},
        "enabled": {"BOOL": False},
        "revision": {"N": "0"},
    }
    assert "cron" not in item
    saved(engine, Pause(queue="mail", at=clock.now()))
    saved(engine, WorkerInfo("w1", "here", 7, ["default"], None, {}, 4, 0, False, clock.now(), clock.now(), 10.0))
    assert table.places("pauses") == [ItemKey("pauses", f"{ANY}#mail#{ANY}")]
    assert table.places("workers") == [ItemKey("workers", "w1")]


def test_an_enabled_schedule_has_a_tick_at_its_next_time_and_no_other_has_one(engine, table, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    assert table.places("ticks") == [ItemKey("ticks", "2026-01-01T12:00:00.000000Z#default#tick")]
    after, _ = fire(engine, schedule)
    assert table.places("ticks") == [ItemKey("ticks", f"{LATER}#default#tick")]
    off = after.evolve(enabled=False, revision=2)
    engine.save(off, before=after)
    assert table.places("ticks") == []
    engine.save(off.evolve(enabled=True, next_at=None), before=OVERWRITE)
    assert table.places("ticks") == [ItemKey("ticks", "#default#tick")]
    engine.drop(off)
    assert table.places("ticks") == []


@pytest.mark.parametrize("edited", [{"enabled": {"BOOL": False}}, {"next_at": {"S": LATER}}, None])
def test_a_tick_whose_schedule_was_changed_by_hand_makes_nothing_due(engine, table, clock, edited):
    saved(engine, a_schedule(clock.now()))
    item = table.item("schedules", "default#tick")
    if edited is None:
        table.remove(ItemKey("schedules", "default#tick"))
    else:
        table.put(**{**item, **edited})
    assert engine.due(limit=10) == []
    other = saved(engine, a_schedule(clock.now(), name="other"))
    assert engine.due(limit=1) == [other]


def test_the_name_of_a_tenant_is_no_prefix_of_anothers_however_long(engine, clock):
    tenants = ["%" * 200, "%" * 199 + "x", "~" + "a" * 64, "a", "a#", "a$", "aa"]
    made = {tenant: saved(engine, a_schedule(clock.now(), tenant=tenant, name="#" * 200)) for tenant in tenants}
    for tenant, schedule in made.items():
        assert engine.records(Schedule, tenant=tenant) == [schedule]


# ------------------------------------------------------------------------------------------------- large payloads


def test_a_large_payload_is_written_once_however_often_its_schedule_fires(far, table, layer, clock):
    schedule = saved(far, a_schedule(clock.now(), payload="x" * 900_000))
    assert len(table.places("large#")) == 3
    layer.forget()
    after, fired = fire(far, schedule)
    assert fired.done
    assert sum(layer.spent.writes.values()) <= 10
    assert far.records(Schedule) == [after]


@pytest.mark.parametrize("payload", ["y" * 900_000, "y" * 2000, "y", None])
def test_a_payload_that_changes_leaves_no_piece_of_the_old_one(engine, table, clock, payload):
    first = saved(engine, a_schedule(clock.now(), payload="x" * 900_000))
    second = first.evolve(payload=payload, revision=1)
    assert engine.save(second, before=first).done
    assert engine.records(Schedule) == [second]
    pieces = -(-len(payload or "") // 380_000) if len(payload or "") > 600 else 0
    assert len(table.places("large#")) == pieces
    assert engine.drop(second)
    assert table.places("large#") == []


# --------------------------------------------------------------------------------------------------- in trouble


@pytest.mark.parametrize("fault", ["lost answer", "500 after it was applied"])
def test_a_save_whose_answer_was_lost_is_done_once(far, engine, layer, clock, fault):
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now())
    if fault == "lost answer":
        layer.lose("TransactWriteItems", times=1)
    else:
        layer.fail("TransactWriteItems", applied=True, times=1)
    _, fired = fire(far, schedule, job)
    assert (fired.done, fired.receipt.created) == (True, True)
    assert engine.count(JobFilter()) == {State.PENDING: 1}


def test_a_save_that_meets_others_goes_on_when_they_are_done(far, layer, clock):
    layer.conflict("TransactWriteItems", times=3)
    pause = saved(far, Pause(tenant="acme", at=clock.now()))
    layer.conflict("TransactWriteItems", times=3)
    assert far.drop(pause)


def test_a_beat_of_a_worker_is_one_plain_write(far, layer, clock):
    member = WorkerInfo("w1", "here", 7, ["default"], None, {}, 4, 0, False, clock.now(), clock.now(), 10.0)
    layer.forget()
    far.save(member, before=OVERWRITE)
    assert [exchange.operation for exchange in layer.log] == ["PutItem"]


# ----------------------------------------------------------------------------------------------------- follow-ups

ON_END = OnEnd(failed=FollowUp(event="LOST", task="tell"))


def refused(now):
    return FailedForGood(Reason.PERMANENT, an_error(now))


def test_a_job_with_what_follows_is_kept_as_it_was_given(engine, table, clock):
    job = enqueued(engine, on_end=ON_END, schedule="tick")
    [item] = table.due()
    assert item["schedule"] == {"S": "tick"}
    assert "LOST" in item["on_end"]["S"]
    assert current(engine, job) == job
    assert claimed(engine, job).on_end == ON_END


def test_what_follows_is_stored_in_the_transaction_of_the_end(far, layer, clock):
    job = running(far, on_end=ON_END)
    layer.forget()
    settle(far, job, refused(clock.now()))
    writes = [exchange.operation for exchange in layer.log if exchange.operation != "UpdateItem"]
    assert writes == ["TransactWriteItems"]
    assert far.count(JobFilter(task="tell")) == {State.PENDING: 1}


def test_an_end_whose_answer_was_lost_is_followed_once(far, engine, layer, clock):
    job = running(far, on_end=ON_END)
    change = lifecycle.settle(job, refused(clock.now()), clock.now())
    layer.lose("TransactWriteItems", times=1)
    assert [verdict.ruling for verdict in far.turn([change]).verdicts] == [Ruling.APPLIED]
    assert [verdict.ruling for verdict in engine.turn([change]).verdicts] == [Ruling.ALREADY]
    assert engine.count(JobFilter(task="tell")) == {State.PENDING: 1}


def test_an_end_is_written_although_the_id_of_what_follows_is_taken(engine, clock):
    job = running(engine, on_end=ON_END)
    change = lifecycle.settle(job, refused(clock.now()), clock.now())
    first = enqueued(engine, id=change.follow.id, task="other")
    assert [verdict.ruling for verdict in engine.turn([change]).verdicts] == [Ruling.APPLIED]
    assert current(engine, job).state is State.FAILED
    assert current(engine, first) == first
    assert [line.kind for line in engine.events(job.id)] == [EventKind.FAILED]


# ---------------------------------------------------------------------------------------------------------- seals


def test_a_line_has_a_marker_until_it_is_sealed(engine, table, clock):
    ended(engine, State.FAILED)
    [line] = engine.unsealed(limit=10)
    [marker] = table.places("unsealed#")
    assert marker.sk == f"default#2026-01-01T12:00:00.000000Z#{line.job_id}#0000000002"
    seal = a_seal([line])
    assert engine.seal(seal, [line])
    assert table.places("unsealed#") == []
    assert engine.sealed(seal) == [line]
    assert engine.prune_events(seal)
    assert table.places("events#") == table.places("sealed#") == []


def test_events_and_seals_are_read_as_older_versions_wrote_them(engine, table, clock):
    """They called an event's kind `what`, and the events of a seal its lines."""
    ended(engine, State.FAILED)
    [event] = engine.unsealed(limit=10)
    seal = a_seal([event])
    assert engine.seal(seal, [event])
    for prefix, old, new in [("events#", "what", "kind"), ("sealed#", "lines", "events"), ("seals", "lines", "events")]:
        [item] = table.items(prefix)
        table.put(**{old if name == new else name: value for name, value in item.items()})

    assert engine.events(event.job_id) == engine.sealed(seal) == [event]
    assert engine.records(Seal) == [seal]
    [written] = table.items("seals")
    table.remove(ItemKey(written["PK"]["S"], written["SK"]["S"]))
    table.put(**{**written, "SK": {"S": "default#0000000007"}, "number": {"N": "7"}})
    assert engine.orphaned_events(limit=10) == [event]
    assert engine.prune_events(seal) is False
    table.put(**written)
    assert engine.prune_events(seal)
    assert table.places("events#") == table.places("sealed#") == []


@pytest.mark.parametrize("number", [MAX_SEALED_EVENTS, MAX_SEALED_EVENTS + 1])
def test_a_seal_takes_as_many_lines_as_a_transaction(engine, clock, number):
    pause = Pause(tenant="acme")
    lines = [
        Event(subject(pause), revision, clock.now(), EventKind.CHANGED, "ann", "", "acme") for revision in range(number)
    ]
    for line in lines:
        engine.save(Seal("other", line.revision, 0, line.at, line.at, "", "", "", line.at), before=None, event=line)
    assert engine.unsealed(limit=200) == lines
    assert engine.seal(a_seal(lines), lines) is (number <= MAX_SEALED_EVENTS)
    assert len(engine.sealed(a_seal(lines))) == (number if number <= MAX_SEALED_EVENTS else 0)
    assert engine.prune_events(a_seal(lines)) is (number <= MAX_SEALED_EVENTS)


def test_lines_that_were_taken_away_by_hand_keep_no_others_from_being_sealed(engine, table, clock):
    jobs = [ended(engine, State.FAILED) for _ in range(4)]
    lines = engine.unsealed(limit=10)
    for place in table.places("events#")[:2]:
        table.remove(place)
    left = engine.unsealed(limit=2)
    assert len(left) == 2
    assert set(left) < set(lines)
    assert {line.job_id for line in left} < {job.id for job in jobs}


# ---------------------------------------------------------------------------------------------------------- costs


def test_a_job_that_is_retried_counts_once_and_on_the_day_of_its_last_end(engine, table, clock):
    today, tomorrow = clock.now(), clock.now() + timedelta(days=1)
    job = running(engine)
    settle(engine, job.evolve(cost_micros=5), refused(clock.now()))
    assert engine.costs(since=today, until=tomorrow) == {("default", "greet"): 5}
    clock.advance(days=1)
    engine.turn([lifecycle.retry(current(engine, job), clock.now(), actor="ann")])
    assert engine.costs(since=today, until=tomorrow) == {}
    settle(engine, claimed(engine, job).evolve(cost_micros=8), Succeeded("1"))
    assert engine.costs(since=today, until=tomorrow) == {}
    assert engine.costs(since=tomorrow, until=tomorrow + MINUTE) == {("default", "greet"): 8}
    assert len(table.places("cost#")) == 1
    assert table.places("costs") == [ItemKey("costs", "2026-01-01"), ItemKey("costs", "2026-01-02")]


def test_the_line_of_a_cost_goes_after_400_days(engine, table, clock):
    job = running(engine)
    settle(engine, job.evolve(cost_micros=5), Succeeded("1"))
    [line] = table.items("cost#")
    assert int(line["ttl"]["N"]) == int(clock.now().timestamp()) + 400 * 86_400


def test_a_free_job_leaves_no_line_of_its_cost(engine, table, clock):
    ended(engine, State.SUCCEEDED)
    assert table.places("cost") == []
