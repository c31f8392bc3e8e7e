"""What an engine does with its connections: a claim still under way, one that became read-only, the server's time."""

import threading
import time
from datetime import timedelta

import psycopg

from tests.support.making import current, enqueued
from tests.support.workbench import until
from treadle.engines.values import Claim, JobFilter
from treadle.errors import EngineUnavailable
from treadle.model import Scope, State, new_id


def test_a_claim_is_not_repeated_while_its_first_sending_is_under_way(near, far, proxy, connection):
    for _ in range(4):
        enqueued(near, key=new_id(), key_scope=Scope.PENDING)
    connection.execute(f"lock table {near.schema}.keys in access exclusive mode")  # claims wait at their end
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=30.0)
    answers = []

    def take():
        while not answers:
            try:
                answers.append(far.turn([], wish).jobs)
            except EngineUnavailable:
                time.sleep(0.05)

    thread = threading.Thread(target=take)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'treadle'"
    until(lambda: near.session.read(waiting)[0][0], "a claim that waits")
    proxy.reset()  # its answer is lost, but not the claim
    time.sleep(0.5)
    connection.rollback()
    thread.join(30)

    assert len(answers[0]) == 2
    assert near.count(JobFilter())[State.RUNNING] == 2


def test_looking_for_past_leases_syncs_the_clock_with_the_servers(near):
    near._store.clock.sync(near.now() - timedelta(hours=1))

    near.expired(limit=1)

    with psycopg.connect(near.server._conninfo) as connection:
        [[now]] = connection.execute("select clock_timestamp()").fetchall()
    assert abs(near.now() - now) < timedelta(seconds=5)


def test_a_connection_that_became_read_only_is_not_used_again(near, store_url):
    enqueued(near)
    [connection] = near.server._idle
    connection.execute("set default_transaction_read_only = on")

    job = enqueued(near)  # the second try has a connection of its own

    assert current(near, job) == job
