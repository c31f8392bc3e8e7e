"""Promise 10 on real processes: eight of them want the same keys at the same moments."""

import json
import subprocess
import time
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tests.support import forks, processes
from tests.support.making import a_job
from tests.support.marks import any_store
from treadle.engines import connect
from treadle.engines.values import JobFilter
from treadle.model import Scope, State

pytestmark = any_store

RACERS = 8
AHEAD = 0.3  # seconds for all of them to read when the start is
PATIENCE = 240  # seconds after which it is no slow machine


@pytest.fixture
def told(store_url):
    """What eight racers say, line by line, in no order."""
    engine = connect(store_url)
    engine.migrate()
    engine.close()
    command = processes.module("tests.race.racer", store_url)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": processes.environment()}
    racers = [forks.Popen([*command, f"r{place}"], **pipes) for place in range(RACERS)]
    try:
        assert [racer.stdout.readline() for racer in racers] == ['["ready"]\n'] * RACERS
        start = f"{time.monotonic() + AHEAD}\n"
        said = [racer.stdin.write(start) and racer.stdin.flush() for racer in racers]
        said = [racer.communicate(timeout=PATIENCE)[0] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert [racer.returncode for racer in racers] == [0] * RACERS
    return [json.loads(line) for text in said for line in text.splitlines()]


@pytest.mark.slow
def test_of_eight_processes_with_one_key_one_makes_the_job_and_all_are_told_of_it(told, store_url):
    answers, makers = defaultdict(Counter), Counter()
    for number, scope, job, made in (line for line in told if len(line) == 4):
        answers[number, scope][job] += 1
        makers[number, scope] += made

    assert {scope for _, scope in answers} == set(Scope)
    assert {each: list(jobs.values()) for each, jobs in answers.items()} == {each: [RACERS] for each in answers}
    assert set(makers.values()) == {1}

    lives = defaultdict(dict)
    for job, what, when in (line for line in told if len(line) == 3):
        assert what not in lives[job], f"job {job} was {what} twice"
        lives[job][what] = when
    known = sorted((life["made"], life["ended"]) for life in lives.values())
    assert len(known) >= RACERS
    assert [pair for pair in pairwise(known) if pair[1][0] < pair[0][1]] == [], "two jobs were active under one key"

    engine = connect(store_url)
    active = engine.find(JobFilter(queue="rush", state=State.PENDING), limit=10).jobs
    [receipt] = engine.enqueue([a_job(engine.now(), task="task", queue="rush", key="rush", key_scope=Scope.ACTIVE)])
    engine.close()
    assert receipt.created
    assert active == []
