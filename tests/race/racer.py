"""One process of a race for keys: `python -m tests.race.racer URL RACER`; what it is told goes to standard output.

It says `ready`, waits for a line that names the moment of the start, and then asks for one key after the other at the
same moments as all the others: [round, scope, job it was answered with, whether it made it]. After that it asks for one
key as fast as it can, and if it made the job, claims it and ends it: [job, "made" or "ended", when]. Nobody else claims
that one, for its lane is the racer's, so it was surely active all the time between.
"""

import json
import sys
import time
from datetime import timedelta

from tests.support.sizes import size
from treadle import EngineUnavailable
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, Ruling
from treadle.model import Change, Job, Scope, lifecycle, new_id
from treadle.model.clock import SystemClock
from treadle.model.lifecycle import Succeeded

ROUNDS = size(15, long=50)  # of each scope
PERIOD = 0.03  # seconds between two rounds
RUSH = size(1, long=2)  # seconds in which one key changes hands


def main(url: str, racer: str) -> None:
    engine = connect(url)
    engine.open()
    tell("ready")
    start = float(sys.stdin.readline())
    for number in range(ROUNDS * len(Scope)):
        scope = list(Scope)[number % len(Scope)]
        time.sleep(max(0.0, start + number * PERIOD - time.monotonic()))
        receipt = ask(engine, f"round {number}", scope)
        tell(number, scope, receipt.id, receipt.made)
    until, lucky = time.monotonic() + RUSH, False
    while time.monotonic() < until or not lucky:
        answer = ask(engine, "rush", Scope.ACTIVE, lane=racer)
        if not answer.made:
            time.sleep(0.001)  # its maker wants to write too, and SQLite gives everybody the lock but who waits for it
            continue
        lucky = True
        tell(answer.id, "made", time.monotonic())
        [job] = claim(engine, racer)
        at = time.monotonic()
        if insist(engine, lifecycle.settle(job, Succeeded("1"), engine.now())):
            tell(job.id, "ended", at)
    engine.close()


class Answer:
    def __init__(self, id_: str, *, made: bool) -> None:
        self.id, self.made = id_, made


def ask(engine: Engine, key: str, scope: Scope, lane: str = "") -> Answer:
    now = SystemClock().now()
    until = now + timedelta(hours=1) if scope is Scope.WINDOW else None
    queue = "rush" if key == "rush" else "rounds"
    job = Job(new_id(), "task", "{}", now, now, queue=queue, lane=lane, key=key, key_scope=scope, key_until=until)
    while True:
        try:
            [receipt] = engine.enqueue([job])
            return Answer(receipt.job.id, made=receipt.job.id == job.id)  # also if an earlier try had made it
        except EngineUnavailable:
            continue


def claim(engine: Engine, racer: str) -> list[Job]:
    wish = Claim(new_id(), racer, 1, 30.0, ("rush",), (racer,), None, {})
    while True:
        try:
            if jobs := engine.turn([], wish).jobs:
                return list(jobs)
        except EngineUnavailable:
            continue


def insist(engine: Engine, change: Change) -> bool:
    """Whether it is written, by this try or an earlier one."""
    while True:
        try:
            [verdict] = engine.turn([change]).verdicts
        except EngineUnavailable:
            continue
        if verdict.ruling is not Ruling.BUSY:
            return verdict.ruling in (Ruling.APPLIED, Ruling.ALREADY)


def tell(*what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
