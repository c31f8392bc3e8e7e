"""From a URL to a file: where it lies, how durable it is, and what is refused before anything is opened."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.making import claim, current, enqueued, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter, Ruling
from treadle.errors import ConfigError, TreadleError
from treadle.model import Job, State
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock

FULL, NORMAL = 2, 1


@pytest.mark.parametrize(
    ("option", "level"), [("", FULL), ("?synchronous=full", FULL), ("?synchronous=NORMAL", NORMAL)]
)
def test_the_durability_asked_for_is_the_one_in_force(
    store_url: str, clock: FakeClock, option: str, level: int
) -> None:
    engine = connect(store_url + option, clock=clock.now)
    enqueued(engine)
    assert engine.file.rows("pragma synchronous") == [(level,)]
    with engine.file.write() as connection:
        assert connection.execute("pragma synchronous").fetchone() == (level,)
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    engine.close()


@pytest.mark.parametrize(("option", "level"), [("", "ok"), ("?synchronous=normal", "warning")])
def test_the_doctor_tells_what_a_power_cut_may_undo(store_url: str, clock: FakeClock, option: str, level: str) -> None:
    engine = connect(store_url + option, clock=clock.now)
    enqueued(engine)
    [finding] = [finding for finding in engine.doctor() if "power cut" in finding.text]
    assert finding.level == level
    engine.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///x.db?synchronous=off", "synchronous='off'.*full, normal"),
        ("sqlite:///x.db?synchronous=", "synchronous=''"),
        ("sqlite:///x.db?timeout=5", "unknown option timeout"),
        ("sqlite:///x.db?timeout", "unknown option timeout"),
        ("sqlite://localhost/x.db", "names a host.*sqlite:////absolute"),
        ("sqlite://x.db", "names a host.*sqlite:///relative"),
        ("x.db", "no scheme.*sqlite:///x.db"),
        ("", "no scheme.*sqlite:///treadle.db"),
        ("sqlite:///", "names no file.*sqlite:///:memory:"),
        ("mysql://localhost/jobs", "'mysql'"),
        ("sqlite:///jo\x01bs.db", "url: it holds a control character.*remove it"),
        ("sqlite:///jobs.db\n", "url: it holds a control character.*remove it"),
        ("\x01sqlite:///jobs.db", "url: it holds a control character.*remove it"),
        ("dynamodb://jobs?region=eu\x7f", "url: it holds a control character.*remove it"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_by_name(
    url: str, said: str, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        connect(url, clock=clock.now)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite:///jobs#2.db", "sqlite:///jobs%00.db"], ids=["a fragment", "a NUL"])
def test_a_url_with_what_is_no_file_name_is_an_error_of_ours(
    url: str, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TreadleError), closing(connect(url, clock=clock.now)) as engine:
        enqueued(engine)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("in_url", "name"),
    [
        ("jobs.db", "jobs.db"),
        ("my%20jobs.db", "my jobs.db"),
        ("my jobs.db", "my jobs.db"),
        ("j%C3%B6bs.db", "jöbs.db"),
        ("what%3Fmode=memory.db", "what?mode=memory.db"),
        ("no%231.db", "no#1.db"),
        ("100%25.db", "100%.db"),
        ("a%2520b.db", "a%20b.db"),
    ],
)
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_a_path_may_be_absolute_or_relative_and_hold_any_character(
    in_url: str, name: str, absolute: bool, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = connect(f"sqlite:///{tmp_path}/{in_url}" if absolute else f"sqlite:///{in_url}", clock=clock.now)
    assert engine.migrate()[0] == "0001_jobs"
    job = enqueued(engine)
    assert current(engine, job) == job
    assert engine.check() == []
    engine.close()
    assert os.listdir(tmp_path) == [name]


def test_a_relative_path_stays_where_it_was_when_the_process_goes_elsewhere(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    engine = connect("sqlite:///jobs.db", clock=clock.now)
    monkeypatch.chdir(tmp_path / "elsewhere")
    enqueued(engine)
    engine.close()
    assert (tmp_path / "jobs.db").exists()
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_jobs_in_memory_are_shared_by_all_threads_of_the_engine(url: str, clock: FakeClock) -> None:
    engine = connect(url, clock=clock.now)
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda _: enqueued(engine), range(100)))
        claimed = [job for got in pool.map(lambda _: claim(engine, 1), range(100)) for job in got]
        outcomes = set(pool.map(lambda job: settle(engine, job, Succeeded()).ruling, claimed))
    assert {job.id for job in claimed} == {job.id for job in jobs}
    assert outcomes == {Ruling.APPLIED}
    assert engine.count(JobFilter()) == {State.SUCCEEDED: 100}
    engine.close()


def test_jobs_in_memory_belong_to_one_engine_and_end_with_it(clock: FakeClock) -> None:
    engine, other = connect("sqlite://", clock=clock.now), connect("sqlite://", clock=clock.now)
    job: Job = enqueued(engine)
    assert other.get([job.id]) == [None]
    engine.close()
    assert engine.get([job.id]) == [None]
    for each in (engine, other):
        each.close()


def test_a_closed_engine_opens_again_when_it_is_used(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    job = enqueued(engine)
    engine.close()
    engine.close()
    assert current(engine, job) == job
