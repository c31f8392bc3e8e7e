"""What jobs cost: summed per job, task, tenant and day; and a budget that pauses who has spent it."""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.support.making import claim, race
from tests.support.marks import any_store
from treadle import ConfigError, Context, InvalidJob, Retry, State, Task, Treadle
from treadle.engines.values import Lease
from treadle.model import EventKind
from treadle.model.records import ANY
from treadle.profiles import tenant_ops
from treadle.testing import FakeClock, run_until_idle
from treadle.worker.maintenance.budgets import Budgets

CENT = 10_000


@pytest.fixture
def think(app: Treadle) -> Task:
    return register(app)


def register(app: Treadle, name: str = "think") -> Task:
    """A task that costs what it is told, on each attempt, and fails as often as it is told."""

    def think(ctx: Context, micros: int, failures: int = 0) -> None:
        ctx.add_cost(micros)
        if ctx.attempt <= failures:
            raise RuntimeError("no idea")

    return app.register(name, think, retry=Retry(max_attempts=3, base=0, jitter=0))


def costing(app: Treadle, micros: int, tenant: str = "acme", task: str = "think", failures: int = 0) -> None:
    """A job of this cost, run."""
    app.tasks[task].using(tenant=tenant).enqueue(micros, failures)
    run_until_idle(app)


def spent(app: Treadle, *arguments: object, **named: object) -> dict[tuple[str, str], int]:
    return {(line.tenant, line.task): line.micros for line in app.costs(*arguments, **named)}


def heed(app: Treadle, **budgets: int) -> None:
    """A worker's look at the budgets."""
    Budgets(app.engine, budgets, logging.getLogger("test")).enforce()


# ------------------------------------------------------------------------------------------------ what was spent


@any_store
@pytest.mark.covers("004-T16.a")
def test_the_cost_of_a_job_is_kept_in_millionths_and_printed_in_whole_cents(make_app: Callable[..., Treadle]) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    register(app)
    for micros, cents in ((0, 0), (1, 1), (CENT, 1), (CENT + 1, 2), (123 * CENT, 123)):
        job = app.tasks["think"].using(tenant="acme").enqueue(micros)
        run_until_idle(app)
        assert app.get(job.id).cost_micros == micros
        assert app.view(app.get(job.id))["costCents"] == cents


@any_store
def test_costs_are_summed_by_tenant_and_task(app: Treadle, think: Task) -> None:
    register(app, "draw")
    costing(app, 5)
    costing(app, 7)
    costing(app, 11, task="draw")
    costing(app, 13, tenant="globex")
    costing(app, 0, tenant="free")
    assert spent(app) == {("acme", "draw"): 11, ("acme", "think"): 12, ("globex", "think"): 13}
    assert list(spent(app)) == sorted(spent(app))
    assert spent(app, tenant="globex") == {("globex", "think"): 13}
    assert app.costs(tenant="nobody") == []


@any_store
@pytest.mark.parametrize(("failures", "state"), [(1, State.SUCCEEDED), (3, State.FAILED)])
def test_every_attempt_costs_and_a_job_that_failed_costs_too(
    app: Treadle, think: Task, failures: int, state: State
) -> None:
    costing(app, 5, failures=failures)
    [job] = app.find().jobs
    assert job.state is state
    assert spent(app) == {("acme", "think"): 5 * job.attempt} == {("acme", "think"): job.cost_micros}


@any_store
def test_a_job_counts_on_the_day_it_ends(app: Treadle, think: Task, clock: FakeClock) -> None:
    for _ in range(3):
        costing(app, 5)
        clock.advance(days=1)
    today = clock.now().date()
    assert spent(app) == {}
    assert [spent(app, today - timedelta(days=back)).get(("acme", "think")) for back in range(5)] == [
        None, 5, 5, 5, None,
    ]  # fmt: skip
    assert spent(app, days=3) == {("acme", "think"): 10}
    assert spent(app, days=100) == {("acme", "think"): 15}
    assert spent(app, date(2026, 1, 2), days=2) == {("acme", "think"): 10}


@any_store
def test_a_day_is_one_of_utc_from_midnight_to_midnight(make_app: Callable[..., Treadle]) -> None:
    clock = FakeClock(datetime(2026, 5, 1, 23, 59, 59, 999_999, tzinfo=UTC))
    app = make_app(clock=clock)
    register(app)
    costing(app, 3)
    clock.advance(microseconds=1)
    costing(app, 5)
    assert spent(app, date(2026, 5, 1)) == {("acme", "think"): 3}
    assert spent(app, date(2026, 5, 2)) == spent(app) == {("acme", "think"): 5}


@any_store
def test_what_runs_or_waits_counts_when_it_has_ended(app: Treadle, think: Task) -> None:
    think.using(tenant="acme").enqueue(5)
    [held] = claim(app.engine, 1)
    app.engine.extend([Lease(held.id, held.lease_token, cost_micros=5)], lease=30.0)
    assert app.get(held.id).cost_micros == 5
    assert spent(app) == {}


@any_store
def test_sums_that_no_32_bits_hold_are_right(app: Treadle, think: Task) -> None:
    for _ in range(3):
        costing(app, 2**52)
    assert spent(app) == {("acme", "think"): 3 * 2**52}


@pytest.mark.parametrize(
    ("said", "words"),
    [({"days": 0}, "days"), ({"days": -1}, "days"), ({"day": "2026-01-01"}, "day"), ({"day": 20260101}, "day")],
    ids=str,
)
def test_a_day_that_is_none_is_refused(app: Treadle, said: dict, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        app.costs(**said)


@pytest.mark.parametrize("micros", [-1, 1.5, "7", None, 2**63])
def test_a_cost_that_is_none_fails_the_attempt(app: Treadle, micros: object) -> None:
    def odd(ctx: Context) -> None:
        ctx.add_cost(micros)  # type: ignore[arg-type]

    app.register("odd", odd, retry=Retry(max_attempts=1)).enqueue()
    [job] = run_until_idle(app)
    assert (job.state, job.cost_micros) == (State.FAILED, 0)
    assert "cost" in job.error.message


# ------------------------------------------------------------------------------------------------------- budgets


@any_store
def test_a_tenant_that_has_spent_its_budget_is_paused_until_the_day_is_over_and_told_why(
    app: Treadle, think: Task, clock: FakeClock
) -> None:
    costing(app, 60)
    heed(app, acme=100)
    assert app.pauses() == []
    costing(app, 40)
    heed(app, acme=100)
    [pause] = app.pauses()
    midnight = datetime(2026, 1, 2, tzinfo=UTC)
    assert (pause.scope, pause.actor, pause.until) == ("tenant acme", "budget", midnight)
    assert pause.reason == "100 of 100 micros were spent on 2026-01-01"
    waiting = think.using(tenant="acme").enqueue(1)
    assert run_until_idle(app) == []
    assert app.why(waiting.id)[0].kind == "budget"
    [line] = app.audit(tenant="acme")
    assert (line.kind, line.actor, line.note) == (EventKind.PAUSED, "budget", f"tenant acme: {pause.reason}")
    clock.advance(hours=12)
    assert [job.id for job in run_until_idle(app)] == [waiting.id]
    heed(app, acme=100)
    assert app.pauses() == []


def test_the_budget_of_one_stops_nobody_else(app: Treadle, think: Task) -> None:
    costing(app, 100)
    costing(app, 99, tenant="globex")
    costing(app, 10**9, tenant="rich")
    heed(app, acme=100, globex=100)
    assert [pause.tenant for pause in app.pauses()] == ["acme"]


def test_a_budget_for_everybody_counts_for_each_by_itself_and_one_of_its_own_comes_first(
    app: Treadle, think: Task
) -> None:
    for tenant, micros in (("acme", 100), ("globex", 99), ("rich", 500)):
        costing(app, micros, tenant=tenant)
    heed(app, **{ANY: 100, "rich": 1000})
    assert [pause.tenant for pause in app.pauses()] == ["acme"]


def test_it_is_a_brake_and_no_wall(app: Treadle, think: Task) -> None:
    """What is in flight when the budget is spent ends, and costs."""
    for _ in range(2):
        think.using(tenant="acme").enqueue(100)
    assert len(claim(app.engine, 1)) == 1
    costing(app, 0)
    heed(app, acme=100)
    assert len(app.pauses()) == 1
    assert app.count()[State.RUNNING] == 1


@any_store
def test_a_budget_pauses_once_a_day_however_many_look(make_app: Callable[..., Treadle]) -> None:
    apps = [make_app() for _ in range(4)]
    register(apps[0])
    costing(apps[0], 100)
    for app in apps:
        app.pauses()
    race(4, lambda place: heed(apps[place], acme=100))
    heed(apps[0], acme=100)
    assert len(apps[0].pauses()) == 1
    assert len(apps[0].audit(tenant="acme")) == 1


def test_a_pause_of_an_operator_is_left_alone(app: Treadle, think: Task, clock: FakeClock) -> None:
    costing(app, 100)
    app.pause(tenant="acme", actor="ada", reason="moves", until="1h")
    heed(app, acme=100)
    assert [pause.actor for pause in app.pauses()] == ["ada"]
    clock.advance(hours=1)
    heed(app, acme=100)
    assert [pause.actor for pause in app.pauses()] == ["budget"]


def test_a_pause_of_a_part_of_the_tenant_is_none_of_all_of_it(app: Treadle, think: Task) -> None:
    costing(app, 100)
    app.pause(tenant="acme", queue="mail", actor="ada")
    heed(app, acme=100)
    assert {pause.scope for pause in app.pauses()} == {"tenant acme, queue mail", "tenant acme"}


def test_one_that_is_lifted_comes_back_while_the_budget_is_what_it_is(app: Treadle, think: Task) -> None:
    costing(app, 100)
    heed(app, acme=100)
    app.resume(tenant="acme", actor="ada", reason="they pay")
    heed(app, acme=200)
    assert app.pauses() == []
    heed(app, acme=100)
    assert len(app.pauses()) == 1
    assert [line.kind for line in app.audit(tenant="acme")][::-1] == [
        EventKind.PAUSED,
        EventKind.RESUMED,
        EventKind.PAUSED,
    ]


def test_a_raised_budget_lifts_the_pause_it_made_and_no_other(app: Treadle, think: Task) -> None:
    costing(app, 100)
    heed(app, acme=100)
    heed(app, acme=101)
    assert app.pauses() == []
    lifted = app.audit(tenant="acme")[0]
    assert (lifted.kind, lifted.actor) == (EventKind.RESUMED, "budget")
    app.pause(tenant="acme", actor="ada")
    heed(app, acme=1000)
    assert [pause.actor for pause in app.pauses()] == ["ada"]


def test_a_job_that_is_run_again_and_counts_no_more_lifts_no_pause(app: Treadle, think: Task) -> None:
    failed = think.using(tenant="acme", retry=Retry(max_attempts=1)).enqueue(100, failures=1)
    run_until_idle(app)
    heed(app, acme=100)
    app.retry(failed.id)
    assert spent(app) == {}
    heed(app, acme=100)
    assert [pause.actor for pause in app.pauses()] == ["budget"]


def test_a_budget_of_nothing_pauses_at_once(app: Treadle, think: Task) -> None:
    heed(app, acme=0)
    assert [pause.scope for pause in app.pauses()] == ["tenant acme"]


def test_the_budget_of_the_day_before_is_forgotten(app: Treadle, think: Task, clock: FakeClock) -> None:
    costing(app, 100)
    clock.advance(days=1)
    heed(app, acme=100)
    assert app.pauses() == []


def test_budgets_are_a_setting(make_app: Callable[..., Treadle]) -> None:
    app = make_app(budgets={"acme": 100, "*": 7})
    assert app.worker().config.budgets == {"acme": 100, "*": 7}
    with pytest.raises(ConfigError, match="budgets"):
        make_app(budgets={"acme": "much"}).worker()
    with pytest.raises(ConfigError, match="budgets"):
        make_app(budgets={"acme": -1}).worker()


@pytest.mark.parametrize(
    "keep", [{"keep_succeeded": "1h"}, {"keep_failed": "23h"}, {"keep_tasks": {"think": {"cancelled": "1h"}}}], ids=str
)
def test_a_budget_wants_what_was_spent_kept_for_a_day(make_app: Callable[..., Treadle], keep: dict) -> None:
    with pytest.raises(ConfigError, match=r"budgets: .* must be '1d' or more"):
        make_app(budgets={"acme": 1}, **keep).worker()
    assert make_app(**keep).worker()
