"""A worker killed between ctx.settle and the commit: neither effect nor completion, and the job is run again."""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import forks, processes
from tests.transactions import tx_process
from tests.transactions.libraries import LIBRARIES, Shop, sqlite_shop
from treadle import State, Treadle

PATIENCE = 60.0  # seconds after which what should happen will not


@pytest.fixture(params=["postgres", "sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def shops(engine_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, list[str]]:
    """Which libraries write where: a server takes them all at once, a file has one writer."""
    names = [library.name for library in LIBRARIES if library.kind == engine_kind]
    if engine_kind == "postgres":
        return {request.getfixturevalue("shop").url: names}
    return {sqlite_shop(tmp_path / name).url: [name] for name in names}


async def until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.01)


def test_a_kill_between_settlement_and_commit_leaves_neither_and_the_job_is_recovered(
    shops: dict[str, list[str]], tmp_path: Path
) -> None:
    async def settle_and_hang() -> None:
        marks = [tmp_path / f"settled-{name}" for names in shops.values() for name in names]
        await until(lambda: all(mark.exists() for mark in marks), lambda: [m.name for m in marks if not m.exists()])

    async def recover() -> None:
        async with tx_process.working(tmp_path, shops):
            await until(lambda: all(app.get(job.id).state.final for app, job in jobs), lambda: jobs)

    apps = {url: Treadle(url) for url in shops}
    jobs = [(apps[url], apps[url].enqueue(name, checked=False)) for url, names in shops.items() for name in names]
    command = processes.module(tx_process.__name__, tmp_path, json.dumps(shops))
    with forks.Popen(command, env=processes.environment(), stdin=subprocess.PIPE) as worker:
        try:
            asyncio.run(settle_and_hang())
        finally:
            worker.kill()

    assert {app.get(job.id).state for app, job in jobs} == {State.RUNNING}
    assert all(Shop(url).names == [] for url in shops)

    asyncio.run(recover())
    for app, job in jobs:
        ended = app.get(job.id)
        assert (ended.state, ended.crashes, ended.failures) == (State.SUCCEEDED, 1, 0)
        assert ended.result == f"sold at try {ended.attempt}"  # a suspect that waits for its turn is put back once more
        assert ended.attempt > 1
    assert all(Shop(url).names == sorted(names) for url, names in shops.items())
    for app in apps.values():
        app.close()
