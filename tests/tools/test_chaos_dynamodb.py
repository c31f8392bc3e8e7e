"""The harness can be trusted on DynamoDB: it sees damage, and waits for what the dead had asked for."""

import socket
import threading

import pytest

from tests.chaos.gate import Layer
from tests.chaos.places import misplaced
from treadle.engines.dynamodb.items import ItemKey

DUE = ItemKey("job", "scheduled#2026-01-01T00:00:00.000000Z#a")
KEY = ItemKey("key#default#greet#k", "key")
WHOLE = {
    ItemKey("id#00", "a"): {"job_pk": DUE.pk, "job_sk": DUE.sk},
    DUE: {"status": "pending", "job_type": "greet", "key": "k", "key_scope": "active"},
    KEY: {"job": "a", "scope": "active"},
    ItemKey("id#00", "b"): {"status": "failed"},
    ItemKey("failed#00", "2026-01-01T00:00:00.000000Z#b"): {},
}
BROKEN = {
    "a due item that is gone": {DUE: None},
    "a due item too many": {ItemKey("job", f"{DUE.sk[:-1]}b"): {"status": "pending", "job_type": "greet"}},
    "a key that nobody holds": {KEY: None},
    "a key that another holds": {KEY: {"job": "b", "scope": "active"}},
    "a key of a job that has ended": {ItemKey("key#default#greet#l", "key"): {"job": "b", "scope": "active"}},
    "a failed job that is not listed": {ItemKey("failed#00", "2026-01-01T00:00:00.000000Z#b"): None},
    "a failed job that is listed twice": {ItemKey("failed#00", "2026-01-02T00:00:00.000000Z#b"): {}},
    "a cancelled job that is not": {ItemKey("cancelled#00", "2026-01-01T00:00:00.000000Z#b"): {}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_table_in_which_a_transaction_was_torn_is_damaged(what):
    assert list(misplaced(WHOLE)) == []

    torn = {place: item for place, item in (WHOLE | BROKEN[what]).items() if item is not None}

    assert list(misplaced(torn)) != [], what


class SlowServer(threading.Thread):
    """Takes one request, and answers it when it is told to."""

    def __init__(self):
        super().__init__(daemon=True)
        self.answer = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def run(self):
        with self._listening, self._listening.accept()[0] as connection:
            connection.recv(10_000)
            self.answer.wait(10)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


def test_the_gate_is_quiet_only_when_the_server_has_done_what_a_dead_process_had_asked_for():
    server = SlowServer()
    server.start()
    signed = b"AWS4-HMAC-SHA256 Credential=chaos/20260101/w0.1/dynamodb/aws4_request, SignedHeaders=host, Signature=no"
    asked = (
        b"POST / HTTP/1.1\r\nx-amz-target: D.ListTables\r\ncontent-length: 2\r\nauthorization: %s\r\n\r\n{}" % signed
    )
    with Layer(server.url, seed=1, latency=0.0) as layer:
        with socket.create_connection(("127.0.0.1", layer.port)) as process:
            process.sendall(asked)  # and dies

        assert not layer.do_quiet("w0.1", 0.2)
        assert layer.do_quiet("w0.2", 5.0)
        server.answer.set()
        assert layer.do_quiet("w0.1", 5.0)
    server.join()
