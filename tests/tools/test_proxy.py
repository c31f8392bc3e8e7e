"""The proxy that breaks connections on purpose: every fault does what it says, and nothing else is disturbed."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from select import select
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import scalar_row

from tests.support.making import race
from tests.support.provision import drop_database, fresh_database, shared_postgres
from tests.support.proxy import GSS, TLS, Drops, Proxy, Talk

Connect = Callable[..., psycopg.Connection[object]]
INSERT = "insert into kept values (%s)"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    url = fresh_database(shared_postgres())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept (n int primary key deferrable initially deferred)")
    yield url
    drop_database(url)


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    parts = urlsplit(database)
    with Proxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        yield proxy


@pytest.fixture
def connect(database: str, proxy: Proxy) -> Iterator[Connect]:
    """Opens connections through the proxy, which close with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            closing(psycopg.connect(proxy.url(database), **{"autocommit": True, "row_factory": scalar_row, **options}))
        )


@pytest.fixture
def kept(database: str) -> Iterator[Callable[[], list[object]]]:
    """What the table holds, asked past the proxy; it starts out empty."""
    with psycopg.connect(database, autocommit=True, row_factory=scalar_row) as connection:
        connection.execute("truncate kept")
        yield lambda: connection.execute("select n from kept order by n").fetchall()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that says only what the test has it say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        yield listener


@pytest.fixture
def wire(listener: socket.socket) -> Iterator[Proxy]:
    """A proxy before that server."""
    with Proxy(*listener.getsockname()) as proxy:
        yield proxy


@pytest.fixture
def call(wire: Proxy, listener: socket.socket) -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    """Opens connections through it: the client's end and the server's."""
    with ExitStack() as stack:

        def call() -> tuple[socket.socket, socket.socket]:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", wire.port), timeout=5))
            server = stack.enter_context(listener.accept()[0])
            server.settimeout(5)
            return client, server

        yield call


def inserts(sql: str) -> bool:
    return sql.startswith("insert into")


def result(connection: psycopg.Connection[object]) -> psycopg.pq.abc.PGresult:
    """Of the query sent last. `get_result` alone would wait holding the GIL, which the proxy needs, too."""
    last = None
    while True:
        while connection.pgconn.is_busy():
            assert select([connection], [], [], 10)[0], "waited 10 s in vain"
            connection.pgconn.consume_input()
        got = connection.pgconn.get_result()
        if last is not None and got is None:
            return last
        assert got is not None, "no query was sent"
        if got.status == psycopg.pq.ExecStatus.COPY_IN:
            return got
        last = got


def copy_in(connection: psycopg.Connection[object], line: bytes, *, extended: bool) -> psycopg.pq.abc.PGresult:
    """Cursors copy with the simple protocol only; the other has a Sync too many, which the server skips."""
    if extended:
        connection.pgconn.send_query_params(b"copy kept from stdin", None)
    else:
        connection.pgconn.send_query(b"copy kept from stdin")
    result(connection)
    connection.pgconn.put_copy_data(line)
    connection.pgconn.put_copy_end()
    return result(connection)


def told(client: socket.socket) -> bytes:
    """All that comes until the connection is reset."""
    got = b""
    with pytest.raises(ConnectionResetError):
        while more := client.recv(65_536):
            got += more
    return got


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "waited 10 s in vain"
        time.sleep(0.002)


def until_locked(connection: psycopg.Connection[object], key: int) -> None:
    """Somebody holds the advisory lock, so the statement that takes it has begun."""
    held = "select count(*) from pg_locks where locktype = 'advisory' and objid = %s"
    until(lambda: connection.execute(held, [key]).fetchone() == 1)


# ------------------------------------------------------------------------------- what passes undisturbed


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("postgresql://ann:s%40t@db:6000/jobs?sslmode=disable", "postgresql://ann:s%40t@{}/jobs?sslmode=disable"),
        ("postgresql:///jobs?host=/tmp&port=7&connect_timeout=3", "postgresql://{}/jobs?connect_timeout=3"),
        ("postgres://one:1,two:2/jobs", "postgres://{}/jobs"),
        ("postgresql://ann@[::1]/jobs", "postgresql://ann@{}/jobs"),
    ],
)
def test_a_url_leads_to_the_proxy_and_keeps_the_rest(wire, original, expected):
    assert wire.url(original) == expected.format(f"127.0.0.1:{wire.port}")


def test_large_messages_pass_unchanged_on_many_connections_at_once(connect):
    def talk(place: int) -> int:
        connection = connect()
        text = chr(ord("a") + place) * 3_000_000
        assert connection.execute("select %s::text || 'end'", [text]).fetchone() == text + "end"
        return len(connection.execute("select repeat('x', n % 100) from generate_series(1, 20000) n").fetchall())

    assert race(6, talk) == [20_000] * 6


def test_a_server_is_held_up_when_its_client_does_not_read(call):
    _, server = call()
    server.settimeout(0.1)

    with pytest.raises(TimeoutError):
        for _ in range(200):
            server.sendall(bytes(1_000_000))


def test_a_client_that_reads_slowly_holds_up_only_itself(proxy, connect):
    lazy, busy = connect(), connect()
    lazy.pgconn.send_query(b"select repeat('x', 1000000) from generate_series(1, 30)")

    assert busy.execute("select 1").fetchone() == 1

    assert result(lazy).ntuples == 30


@pytest.mark.parametrize("ssl", ["disable", "prefer"])
@pytest.mark.parametrize("gss", ["disable", "prefer"])
def test_a_question_for_encryption_is_passed_on(connect, ssl, gss):
    assert connect(sslmode=ssl, gssencmode=gss).execute("select 1").fetchone() == 1


def test_copies_pipelines_notifications_and_cancelling_pass(connect, kept):
    connection = connect()
    with connection.cursor().copy("copy kept from stdin") as copy:
        copy.write("1\n2\n")
    with connection.cursor().copy("copy (select n from kept where n < %s) to stdout", [9]) as copy:
        assert b"".join(copy) == b"1\n2\n"
    with connection.pipeline():
        cursors = [connection.execute("select %s::int", [n]) for n in range(50)]
        assert [cursor.fetchone() for cursor in cursors] == list(range(50))
    connection.execute("listen news")
    connect().execute("notify news, 'hello'")
    assert [note.payload for note in connection.notifies(timeout=5, stop_after=1)] == ["hello"]

    assert kept() == [1, 2]


def test_a_statement_can_be_cancelled(connect):
    connection, watching = connect(), connect()
    connection.pgconn.send_query(b"select pg_advisory_lock(1), pg_sleep(30)")
    until_locked(watching, 1)

    connection.cancel_safe()

    assert "canceling statement" in result(connection).get_error_message()


def test_a_client_that_leaves_and_a_server_that_ends_a_session_are_both_passed_on(proxy, connect):
    leaving, ended = connect(), connect()
    assert proxy.connections == 2

    pid = leaving.info.backend_pid
    leaving.close()
    until(lambda: ended.execute("select pid from pg_stat_activity where pid = %s", [pid]).fetchone() is None)
    with pytest.raises(psycopg.errors.AdminShutdown):
        ended.execute("select pg_terminate_backend(pg_backend_pid())")

    until(lambda: proxy.connections == 0)
    assert proxy.counts == {}


def test_the_last_words_of_a_client_that_is_gone_reach_the_server(wire, call):
    client, server = call()

    client.sendall(b"last words")
    client.close()

    assert server.recv(100, socket.MSG_WAITALL) == b"last words"
    until(lambda: wire.connections == 0)


def test_a_client_of_a_server_that_is_down_is_cut():
    with socket.socket() as down:
        down.bind(("127.0.0.1", 0))  # and does not listen
        with (
            Proxy(*down.getsockname()) as proxy,
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client,
        ):
            client.recv(1)


# ------------------------------------------------------------------------------------------------ faults


def test_reset_cuts_every_open_connection_and_no_new_one(proxy, connect):
    open_ones = [connect() for _ in range(3)]

    proxy.reset()

    assert (proxy.connections, proxy.counts) == (0, {"reset": 3})
    for connection in open_ones:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert connect().execute("select 1").fetchone() == 1


def test_a_reset_is_one_on_both_sides(wire, call):
    client, server = call()
    server.sendall(b"before")
    assert client.recv(6, socket.MSG_WAITALL) == b"before"

    wire.reset()

    assert told(client) == b""
    assert told(server) == b""


def test_a_reset_in_the_middle_of_a_statement_ends_the_wait_for_it(proxy, connect):
    waiting, watching = connect(), connect()
    waiting.pgconn.send_query(b"select pg_advisory_lock(2), pg_sleep(30)")
    until_locked(watching, 2)

    proxy.reset()

    with pytest.raises(psycopg.OperationalError):
        result(waiting)


def test_new_connections_are_refused_until_they_are_not(proxy, connect):
    earlier = connect()

    proxy.refuse()
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            connect()
    assert earlier.execute("select 1").fetchone() == 1
    proxy.refuse(False)

    assert connect().execute("select 1").fetchone() == 1
    assert proxy.counts["refused"] >= 2  # libpq may try again without asking for encryption


def test_nothing_passes_during_a_stall_and_everything_after_it(wire, call):
    client, server = call()
    wire.stall()
    late_client, late_server = call()

    client.sendall(b"a question")
    server.sendall(b"an answer")
    late_server.sendall(b"welcome!")
    for end in (client, server, late_client):
        end.settimeout(0.05)
        with pytest.raises(TimeoutError):
            end.recv(1)
        end.settimeout(5)
    assert (wire.connections, wire.counts) == (2, {"stalled": 2})
    wire.flow()

    assert client.recv(9, socket.MSG_WAITALL) == b"an answer"
    assert server.recv(10, socket.MSG_WAITALL) == b"a question"
    assert late_client.recv(8, socket.MSG_WAITALL) == b"welcome!"


def test_a_statement_waits_for_the_end_of_a_stall_and_reaches_the_server_only_then(proxy, connect, kept):
    connection = connect()
    proxy.stall()
    connection.pgconn.send_query(b"insert into kept values (1)")
    assert kept() == []

    proxy.flow()

    assert result(connection).command_status == b"INSERT 0 1"
    assert kept() == [1]


def test_a_stalled_connection_can_be_reset(wire, call):
    client, server = call()
    wire.stall()
    server.sendall(b"never heard")

    wire.reset()

    assert told(client) == b""


@pytest.mark.parametrize("n", [0, 1, 5, 70_000])
def test_each_connection_is_cut_after_exactly_so_many_further_bytes(wire, call, n):
    client, server = call()
    server.sendall(b"before")
    assert client.recv(6, socket.MSG_WAITALL) == b"before"

    wire.cut_after(n)
    later, later_server = call()
    for end in (server, later_server):
        with suppress(ConnectionError):
            end.sendall(bytes(100_000))

    assert [told(client), told(later)] == [bytes(n), bytes(n)]
    assert wire.counts == {"cut": 2}


def test_cutting_after_bytes_is_over_after_so_many_times(wire, call):
    wire.cut_after(3, times=1)
    (first, first_server), (second, second_server) = call(), call()

    first_server.sendall(b"abcdef")
    assert told(first) == b"abc"
    second_server.sendall(b"abcdef")

    assert second.recv(6, socket.MSG_WAITALL) == b"abcdef"


def test_a_large_reply_is_cut_in_the_middle(proxy, connect):
    connection = connect()
    proxy.cut_after(1_000_000, times=1)

    with pytest.raises(psycopg.OperationalError):
        connection.execute("select repeat('x', 1000) from generate_series(1, 5000)")

    assert proxy.counts == {"cut": 1}
    assert connect().execute("select 1").fetchone() == 1


def test_a_login_can_be_cut_too(proxy, connect):
    proxy.cut_after(20)
    with pytest.raises(psycopg.OperationalError):
        connect()

    proxy.cut_after(None)

    assert connect().execute("select 1").fetchone() == 1


# --------------------------------------------------------------------------------------- dropped replies


@pytest.mark.parametrize(
    "options",
    [{}, {"prepare_threshold": 0}, {"cursor_factory": psycopg.ClientCursor}, {"cursor_factory": psycopg.RawCursor}],
    ids=["extended", "prepared", "simple", "raw"],
)
def test_a_row_is_there_although_the_client_was_told_nothing(proxy, connect, kept, options):
    connection = connect(**options)
    insert = "insert into kept values ($1)" if "Raw" in str(options) else INSERT
    drops = proxy.drop_replies(inserts)

    with pytest.raises(psycopg.OperationalError):
        connection.execute(insert, [1])

    drops.wait()
    assert kept() == [1]
    assert connection.broken
    assert (drops.count, proxy.counts) == (1, {"dropped": 1})
    connect().execute(INSERT, [2])
    assert kept() == [1, 2]


def test_a_statement_prepared_long_before_is_known_by_its_text(proxy, connect, kept):
    connection = connect(prepare_threshold=0)
    connection.execute(INSERT, [1])
    drops = proxy.drop_replies(inserts)
    connection.execute("select 1")

    with pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, [2])

    drops.wait()
    assert kept() == [1, 2]


@pytest.mark.parametrize("picked", [inserts, lambda sql: sql == "COMMIT"], ids=["its insert", "its commit"])
def test_of_a_transaction_the_reply_to_the_commit_is_lost(proxy, connect, kept, picked):
    connection = connect()
    drops = proxy.drop_replies(picked)

    with pytest.raises(psycopg.OperationalError), connection.transaction():
        assert connection.execute(INSERT + " returning n", [1]).fetchone() == 1
        assert connection.execute("select count(*) from kept").fetchone() == 1
        assert drops.count == 0

    drops.wait()
    assert kept() == [1]


def test_what_fails_or_is_rolled_back_is_told_and_the_order_stands(proxy, connect, kept):
    connection = connect()
    connection.execute(INSERT, [1])
    drops = proxy.drop_replies(lambda sql: inserts(sql) or sql == "COMMIT")

    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(INSERT, [1])
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():  # the check is deferred to the commit
        connection.execute(INSERT, [1])
    assert connection.execute("select 1").fetchone() == 1
    with connection.transaction(force_rollback=True):
        connection.execute(INSERT, [2])
    with suppress(psycopg.errors.DivisionByZero):
        connection.execute("BEGIN")
        connection.execute("select 1/0")
    assert connection.execute("COMMIT").statusmessage == "ROLLBACK"
    assert (drops.count, kept()) == (0, [1])

    with pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, [3])
    drops.wait()
    assert kept() == [1, 3]


def test_a_session_that_ends_within_a_picked_statement_says_so(proxy, connect, kept):
    drops = proxy.drop_replies(inserts)

    with pytest.raises(psycopg.errors.AdminShutdown):
        connect().execute("insert into kept select 1 where pg_terminate_backend(pg_backend_pid())")

    assert (drops.count, kept()) == (0, [])


def test_statements_that_are_not_picked_are_heard_of(proxy, connect, kept):
    drops = proxy.drop_replies(lambda sql: "nowhere" in sql)

    connect().execute(INSERT, [1])

    assert (kept(), drops.count, proxy.counts) == ([1], 0, {})
    with pytest.raises(AssertionError, match="did the statement match"):
        drops.wait(0)


def test_an_order_that_was_taken_back_drops_nothing_more(proxy, connect, kept):
    connection = connect()
    drops = proxy.drop_replies(inserts)

    with connection.transaction():
        connection.execute(INSERT, [1])
        proxy.drop_replies(inserts, times=0)
    connection.execute(INSERT, [2])

    assert (kept(), drops.count, proxy.counts) == ([1, 2], 0, {})


def test_of_two_picked_transactions_only_the_first_to_commit_is_lost_when_one_was_ordered(proxy, connect, kept):
    first, second = connect(autocommit=False), connect(autocommit=False)
    drops = proxy.drop_replies(inserts)
    second.execute(INSERT, [2])
    first.execute(INSERT, [1])

    with pytest.raises(psycopg.OperationalError):
        first.commit()
    drops.wait()
    second.commit()

    assert (kept(), drops.count) == ([1, 2], 1)


def test_a_large_reply_is_dropped_whole(proxy, connect, kept):
    connection = connect()
    drops = proxy.drop_replies(inserts)

    with pytest.raises(psycopg.OperationalError):
        connection.execute("insert into kept select generate_series(1, 300) returning repeat('x', 50000)")

    drops.wait()
    assert len(kept()) == 300


COPIES = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


@COPIES
def test_the_reply_to_a_copy_is_dropped_at_its_end(proxy, connect, kept, extended):
    connection = connect()
    drops = proxy.drop_replies(lambda sql: sql.startswith("copy"))

    with pytest.raises(psycopg.OperationalError):
        copy_in(connection, b"1\n", extended=extended)

    drops.wait()
    assert kept() == [1]


@COPIES
@pytest.mark.parametrize(("line", "status"), [(b"1\n", "COMMAND_OK"), (b"no number\n", "FATAL_ERROR")])
def test_after_a_copy_the_replies_still_belong_to_their_statements(proxy, connect, kept, extended, line, status):
    connection = connect()
    assert copy_in(connection, line, extended=extended).status == psycopg.pq.ExecStatus[status]
    drops = proxy.drop_replies(inserts)

    connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, [2])

    drops.wait()
    assert 2 in kept()


def test_a_pipeline_loses_the_reply_to_its_sync(proxy, connect, kept):
    connection = connect()
    drops = proxy.drop_replies(inserts)

    with pytest.raises(psycopg.OperationalError), connection.pipeline():
        connection.execute("select 1")
        connection.execute(INSERT, [1])
        connection.execute(INSERT, [2])

    drops.wait()
    assert kept() == [1, 2]


def test_among_busy_connections_exactly_the_ordered_number_of_replies_is_dropped(proxy, connect, kept):
    drops = proxy.drop_replies(inserts, times=7)

    def insert(place: int) -> list[int]:
        """The rows of which the client was told nothing."""
        lost = []
        connection = connect()
        for n in range(place * 100, place * 100 + 25):
            try:
                connection.execute(INSERT + " returning repeat('x', 20000)", [n])
            except psycopg.OperationalError:
                lost.append(n)
                connection = connect()
        return lost

    lost = [n for place in race(6, insert) for n in place]

    drops.wait()
    assert (drops.count, proxy.counts, len(lost)) == (7, {"dropped": 7}, 7)
    assert len(kept()) == 150


def said(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


TLS_REQUEST, GSS_REQUEST = ((8).to_bytes(4) + code.to_bytes(4) for code in (TLS, GSS))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_in_pieces_of_any_size_are_understood(size):
    login = (12).to_bytes(4) + (3 << 16).to_bytes(4) + b"a\0\0\0"
    welcome = said(b"R", bytes(4)) + said(b"Z", b"I")
    parse = said(b"P", b"s1\0insert into kept values ($1)\0\0\0") + said(b"S")
    execute = said(b"B", b"p1\0s1\0\0\0\0\0\0\0") + said(b"E", b"p1\0\0\0\0\0") + said(b"S")
    note = said(b"A", b"\0\0\0\1news\0hello\0")
    failed = said(b"2") + said(b"E", b"no\0") + said(b"Z", b"I")
    done = said(b"2") + said(b"C", b"INSERT 0 1\0") + said(b"Z", b"I")
    talk, drops = Talk(), Drops(inserts, 1)

    def ask(data: bytes) -> bytes:
        return b"".join(talk.asked(data[at : at + size], drops) for at in range(0, len(data), size))

    def answer(data: bytes) -> bytes:
        return b"".join(talk.answered(data[at : at + size]) for at in range(0, len(data), size))

    for question, reply in [
        (GSS_REQUEST, b"N"),
        (TLS_REQUEST, b"N"),
        (login, welcome),
        (parse, said(b"1") + said(b"Z", b"I")),
        (b"", note),
        (execute, failed),
    ]:
        assert (ask(question), answer(reply)) == (question, reply)
    assert ask(execute + parse) == execute + parse
    assert answer(note + done) == b""
    assert talk.lost is drops


@pytest.mark.parametrize(("wish", "consent"), [(TLS_REQUEST, b"S"), (GSS_REQUEST, b"G")], ids=["TLS", "GSS"])
def test_what_is_encrypted_passes_as_it_comes(wish, consent):
    talk, drops = Talk(), Drops(inserts, 1)
    assert (talk.asked(wish, drops), talk.answered(consent)) == (wish, consent)

    for secret in (b"\x16", b"\x03\x01\x02\x00\x01\x00\x01\xfc", b"Q"):
        assert (talk.asked(secret, drops), talk.answered(secret)) == (secret, secret)


# ------------------------------------------------------------------------------------------- the end of it


def test_a_proxy_leaves_neither_threads_nor_sockets_behind_whatever_is_going_on(database):
    parts = urlsplit(database)
    threads, files = set(threading.enumerate()), len(os.listdir("/dev/fd"))
    for stalled in (False, True):
        with ExitStack() as stack:
            proxy = stack.enter_context(Proxy(parts.hostname or "", parts.port or 5432))
            ended = [psycopg.connect(proxy.url(database)) for _ in range(4)]
            proxy.drop_replies(lambda sql: True)
            ended[0].close()
            ended[1].pgconn.send_query(b"select repeat('x', 1000000) from generate_series(1, 30)")
            ended[2].pgconn.send_query(b"select pg_sleep(30)")
            proxy.stall(stalled)
        for connection in ended:
            connection.close()

        assert proxy.connections == 0
        assert set(threading.enumerate()) == threads
        assert len(os.listdir("/dev/fd")) == files
