"""Notifications are hints: they come at once where they can, few of them, and nothing depends on them."""

import threading
import time

import psycopg
import pytest

from tests.support.making import a_job
from treadle.engines.postgres.notify import ECHO_DELAY

SOON = 5.0  # seconds; the machine may be busy
NEVER = 0.3


@pytest.fixture
def waiting(near):
    """An engine that listens already."""
    assert near._store.notifications.receives(
        lambda: near.session.read("select pg_notify(%s, '')::text", [near._store.notifications.channel]), within=SOON
    )
    time.sleep(ECHO_DELAY * 2)  # the echo of that
    return near


def waits(engine, timeout):
    began = time.monotonic()
    return engine.wait(["default"], timeout), time.monotonic() - began


def test_an_enqueue_of_another_process_wakes_who_waits(waiting, open_engine, store_url):
    other = open_engine(store_url)
    timer = threading.Timer(0.1, lambda: other.enqueue([a_job(other.now())]))
    timer.start()

    hinted, took = waits(waiting, SOON)

    timer.join()
    assert hinted
    assert took < SOON


def test_an_enqueue_of_this_process_wakes_without_the_server(near, monkeypatch):
    monkeypatch.setattr(near._store.notifications, "_start", lambda: None)  # nobody listens
    timer = threading.Timer(0.05, lambda: near.enqueue([a_job(near.now())]))
    timer.start()

    hinted, _ = waits(near, SOON)

    timer.join()
    assert hinted


def test_nothing_wakes_who_waits_for_nothing(waiting):
    assert waits(waiting, NEVER)[0] is False


def test_a_job_due_later_is_no_hint(waiting, open_engine, store_url):
    other = open_engine(store_url)
    now = other.now()
    other.enqueue([a_job(now, due_at=now.replace(year=now.year + 1))])

    assert waits(waiting, NEVER)[0] is False


def test_many_enqueues_are_few_notifications_and_an_echo_follows_for_the_last_of_them(open_engine, store_url):
    sender = open_engine(store_url)
    sender.open()
    heard = []
    with psycopg.connect(store_url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"listen {sender._store.notifications.channel}")
        for _ in range(50):  # until they follow each other quickly, which a busy machine may not let them
            began, made = time.monotonic(), 0
            while time.monotonic() - began < 4 * ECHO_DELAY:
                sender.enqueue([a_job(sender.now())])
                made += 1
            took = time.monotonic() - began
            heard = list(connection.notifies(timeout=0.2))
            if took / made < ECHO_DELAY / 5:
                break

    assert 1 <= len(heard) <= took / (ECHO_DELAY / 2) + 1
    assert made > len(heard), "coalesced"


def test_a_second_hint_follows_the_first_for_what_was_sent_without_a_notification(waiting, open_engine, store_url):
    other = open_engine(store_url)
    hints = []
    done = threading.Event()

    def listen():
        while not done.is_set():
            if waiting.wait(["default"], 0.5):
                hints.append(time.monotonic())

    thread = threading.Thread(target=listen)
    thread.start()
    other.enqueue([a_job(other.now())])
    deadline = time.monotonic() + SOON
    while len(hints) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    thread.join()

    assert len(hints) >= 2, "one at once, and its echo"


def test_the_listener_comes_back_after_its_connection_was_cut(far, near, proxy):
    assert far._store.notifications.receives(
        lambda: near.session.read("select pg_notify(%s, '')::text", [near._store.notifications.channel]), within=SOON
    )

    proxy.reset()

    deadline = time.monotonic() + 20
    while not far._store.notifications.receives(
        lambda: near.session.read("select pg_notify(%s, '')::text", [near._store.notifications.channel]), within=0.5
    ):
        assert time.monotonic() < deadline, "it listens no more"


def test_a_closed_engine_leaves_no_thread_behind(open_engine, store_url):
    others = set(threading.enumerate())
    engine = open_engine(store_url)
    engine.wait(["default"], 0.01)
    assert set(threading.enumerate()) - others

    engine.close()

    assert not set(threading.enumerate()) - others
