"""What one call costs the client in processor time: treadle's way to DynamoDB beside botocore's signer and urllib3.

python -m benchmarks.dynamodb_client [calls]

Both send the same UpdateItem of 0.7 kB to a server in another process that answers each request with two bytes. The
ways take turns, so that a busy machine is busy for both; the figure is the median of the rounds. It also says what it
costs to build an engine whose credentials are in the environment.
"""

import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from treadle.engines import connect
from treadle.engines.dynamodb.connection import Endpoint

ROUNDS = 9
ANSWER = (
    b"HTTP/1.1 200 OK\r\nServer: Server\r\nDate: Thu, 01 Jan 2026 12:00:00 GMT\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: 2\r\nConnection: keep-alive\r\n"
    b"x-amzn-RequestId: B4EOA9GGCMQJN7V5OBTGVQ5SGVVV4KQNSO5AEMVJF66Q9ASUAAJG\r\nx-amz-crc32: 2745614147\r\n\r\n{}"
)
BODY = {
    "TableName": "shop-jobs",
    "Key": {"PK": {"S": "job"}, "SK": {"S": "scheduled#2026-01-01T12:00:00.000000Z#" + "0" * 36}},
    "UpdateExpression": "SET #status = :status, #lease_token = :lease_token, #locked_by = :locked_by",
    "ConditionExpression": "#status = :was_0 and attribute_not_exists(#revision)",
    "ExpressionAttributeNames": {f"#{name}": name for name in ("status", "lease_token", "locked_by", "revision")},
    "ExpressionAttributeValues": {
        ":status": {"S": "running"}, ":lease_token": {"S": "1" * 36}, ":locked_by": {"S": "worker-1"},
        ":was_0": {"S": "pending"},
    },
}  # fmt: skip


def serve(listening: socket.socket) -> None:
    """Answer every request on every connection, one connection at a time."""
    while True:
        connection, _ = listening.accept()
        waiting = b""
        while received := connection.recv(65_536):
            waiting += received
            while (end := waiting.find(b"\r\n\r\n")) >= 0:
                length = int(waiting[:end].lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                if len(waiting) < end + 4 + length:
                    break
                waiting = waiting[end + 4 + length :]
                connection.sendall(ANSWER)
        connection.close()


def with_urllib3(url: str) -> Callable[[bytes], Any]:
    """A call as botocore's signer and urllib3 make it."""
    pool = urllib3.connection_from_url(url, maxsize=32, timeout=urllib3.Timeout(connect=2, read=5))
    credentials = Credentials("AKIA", "secret")

    def call(data: bytes) -> Any:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "DynamoDB_20120810.UpdateItem"}
        request = AWSRequest(method="POST", url=url, data=data, headers=headers)
        SigV4Auth(credentials.get_frozen_credentials(), "dynamodb", "eu-central-1").add_auth(request)
        response = pool.urlopen("POST", "/", body=data, headers=dict(request.headers.items()), retries=False)
        return json.loads(response.data)

    return call


def with_treadle(url: str) -> Callable[[bytes], Any]:
    endpoint = Endpoint("shop-jobs", region="eu-central-1", endpoint=url)
    return lambda data: endpoint.send("UpdateItem", data)


def microseconds(call: Callable[[bytes], Any], calls: int) -> float:
    """Processor time of this process, a call."""
    data = json.dumps(BODY, separators=(",", ":")).encode()
    call(data)
    before = time.process_time()
    for _ in range(calls):
        call(data)
    return (time.process_time() - before) / calls * 1e6


def build() -> None:
    engine: Any = connect("dynamodb://shop-jobs?region=eu-central-1")
    engine.client._connect()  # what it puts off until the first call
    engine.close()


def milliseconds(act: Callable[[], None], times: int = 50) -> float:
    act()
    before = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - before) / times * 1e3


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    os.environ |= {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
    listening = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=serve, args=[listening], daemon=True)
    server.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    figures: dict[str, list[float]] = {"botocore and urllib3": [], "treadle": []}
    for _ in range(ROUNDS):
        for name, way in (("botocore and urllib3", with_urllib3), ("treadle", with_treadle)):
            call = way(url)
            figures[name].append(microseconds(call, calls))
            del call  # and its connection: the server has one at a time
    old, new = (statistics.median(some) for some in figures.values())
    print(f"CPU us per call, median of {ROUNDS} rounds of {calls}")
    print(f"  botocore and urllib3  {old:7.1f}")
    print(f"  treadle               {new:7.1f}   {old / new:.1f} times less")
    print(f"CPU ms to build an engine, credentials in the environment: {milliseconds(build):.2f}")
    server.terminate()


if __name__ == "__main__":
    main()
