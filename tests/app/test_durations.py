"""Wherever a duration is given, it may be a number of seconds, text or a timedelta, and a wrong one names its field."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from treadle import ConfigError, Retry, Treadle, TreadleError, Unique

Place = Callable[[Treadle, Any], object]


def nothing() -> None: ...


def enqueued(app: Treadle, **options: Any) -> object:
    return app.register("greet", nothing).using(**options).enqueue()


def scheduled(app: Treadle, **options: Any) -> object:
    app.register("greet", nothing)
    return app.schedules.create("nightly", "greet", **{"every": "1h", **options})


PLACES: dict[str, Place] = {
    "task timeout": lambda app, span: app.register("greet", nothing, timeout=span).options.timeout,
    "task every": lambda app, span: app.register("greet", nothing, every=span) and app.declared()[0].every,
    "task misfire_age": lambda app, span: app.register("greet", nothing, every="1h", misfire_age=span),
    "task jitter": lambda app, span: app.register("greet", nothing, every="1h", jitter=span),
    "policy base": lambda app, span: Retry(base=span).base,
    "policy cap": lambda app, span: Retry(cap=span).cap,
    "policy jitter": lambda app, span: Retry(jitter=span).jitter,
    "using timeout": lambda app, span: enqueued(app, timeout=span).timeout,
    "using run_after": lambda app, span: enqueued(app, run_after=span),
    "using expires_at": lambda app, span: enqueued(app, expires_at=span),
    "key window": lambda app, span: enqueued(app, key="k", unique=Unique("window", window=span)),
    "schedule every": lambda app, span: scheduled(app, every=span).every,
    "schedule timeout": lambda app, span: scheduled(app, timeout=span).timeout,
    "schedule misfire_age": lambda app, span: scheduled(app, misfire_age=span).misfire_age,
    "schedule jitter": lambda app, span: scheduled(app, jitter=span).jitter,
    "pause until": lambda app, span: app.pause(queue="mail", until=span),
    "pause timeout": lambda app, span: app.pause(queue="mail", wait=True, timeout=span),
    "worker lease": lambda app, span: app.worker(lease=span).config.lease,
    "worker grace": lambda app, span: app.worker(grace=span).config.grace,
    "worker poll": lambda app, span: app.worker(poll=span).config.poll,
    **{
        f"setting {name}": lambda app, span, name=name: getattr(Treadle(**{name: span}).settings, name)
        for name in ("lease", "grace", "poll", "sweep", "heartbeat", "schedule_interval", "keep_failed", "keep_audit")
    },
}


@pytest.fixture
def app() -> Iterator[Treadle]:
    with Treadle("sqlite:///:memory:") as app:
        yield app


@pytest.mark.parametrize("span", [90, 90.0, "90", "90s", "1m30s", "1.5m", timedelta(seconds=90)], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_a_duration_is_a_number_text_or_a_timedelta(app: Treadle, place: str, span: Any) -> None:
    found = PLACES[place](app, span)
    assert not isinstance(found, float) or found == 90.0


@pytest.mark.parametrize(
    "wrong",
    ["soon", "5 years", "", True, [], object(), -1, "nan"],
    ids=lambda wrong: type(wrong).__name__ + str(wrong)[:8],
)
@pytest.mark.parametrize("place", [place for place in PLACES if not place.startswith("policy")])
def test_what_is_not_a_duration_is_refused_by_its_field(app: Treadle, place: str, wrong: Any) -> None:
    with pytest.raises(TreadleError, match=rf"\b{place.split()[1]}: "):
        PLACES[place](app, wrong)


@pytest.mark.parametrize("field", ["base", "cap", "jitter"])
def test_a_policy_names_its_own_field(app: Treadle, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: 'soon' is not a valid duration; write seconds"):
        app.register("greet", nothing, retry=Retry(**{field: "soon"}))
    with pytest.raises(TreadleError, match=f"^{field}: -1 must be 0 seconds or more"):
        app.register("greet", nothing, retry=Retry(**{field: -1}))
