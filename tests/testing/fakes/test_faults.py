"""What every stand-in can do: fail, hang up, be slow, be waited for, end."""

import socket
import threading
import time

import httpx2
import pytest

from tests.testing.fakes.certificates import certificate
from treadle.testing import fakes


def test_a_failure_answers_as_told_and_does_nothing_else(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.fail_next(status=429, headers={"Retry-After": "2"}, times=2)
        answers = [http.post(server.url, content=b"x") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [429, 429, 200]
        assert [answer.headers.get("Retry-After") for answer in answers] == ["2", "2", None]
        assert (len(server.requests), len(server.received)) == (3, 1)


def test_a_dropped_request_had_its_effect_and_no_answer(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.drop_next()
        with pytest.raises(httpx2.RemoteProtocolError):
            http.post(server.url)
        assert len(server.received) == 1
        assert http.post(server.url).status_code == 200


def test_a_request_dropped_before_had_no_effect(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.drop_next(before=True)
        with pytest.raises(httpx2.RemoteProtocolError):
            http.post(server.url)
        assert (len(server.requests), server.received) == (1, [])


def test_a_slow_answer_comes_after_the_effect() -> None:
    with fakes.webhook() as server:
        server.delay_next(60)
        with httpx2.Client(timeout=httpx2.Timeout(5, read=0.05)) as impatient, pytest.raises(httpx2.ReadTimeout):
            impatient.post(server.url)
        server.wait_until(lambda: len(server.received) == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 5  # the end waits for no slow answer


def test_a_delay_before_the_effect_leaves_nothing_when_the_server_ends() -> None:
    with fakes.webhook() as server:
        server.delay_next(60, before=True)
        with httpx2.Client(timeout=httpx2.Timeout(5, read=0.05)) as impatient, pytest.raises(httpx2.ReadTimeout):
            impatient.post(server.url)
    assert server.received == []


def test_faults_meet_the_requests_that_they_are_meant_for_in_their_order(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.fail_next(503, on="* /b")
        server.fail_next(500)
        server.fail_next(418, on="PUT *")
        statuses = [http.request(method, server.url + path).status_code for method, path in (
            ("POST", "/a"), ("POST", "/b"), ("PUT", "/c"), ("PUT", "/c"),
        )]  # fmt: skip
    assert statuses == [500, 503, 418, 200]


def test_a_fault_that_would_never_come_is_refused() -> None:
    with pytest.raises(ValueError, match="times: 0 is not possible; give 1 or more"):
        fakes.webhook().drop_next(0)


def test_one_waits_until_something_came_and_is_told_if_it_does_not(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        caller = threading.Timer(0.05, http.post, [server.url])
        caller.start()
        server.wait_until(lambda: len(server.received) == 1, timeout=5)
        caller.join()
        with pytest.raises(TimeoutError, match=r"did not happen within 0.05 s"):
            server.wait_until(lambda: len(server.received) == 2, timeout=0.05)


def test_nobody_talks_to_a_server_that_ended_and_it_comes_back_at_its_address(http: httpx2.Client) -> None:
    server = fakes.webhook()
    with pytest.raises(RuntimeError, match="use it in a `with` block, or call start"):
        _ = server.url
    server.start()
    url = server.url
    assert http.get(url).status_code == 200  # and the connection stays open
    server.close()
    with pytest.raises(httpx2.TransportError):
        http.get(url)
    server.start()
    assert (server.url, http.get(url).status_code, len(server.received)) == (url, 200, 2)
    server.close()
    server.close()


def test_a_hundred_requests_at_once_are_all_kept(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        threads = [threading.Thread(target=http.post, args=(server.url,)) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.received) == 100
    assert not [thread for thread in threading.enumerate() if thread.name == "treadle-fake"]


def test_what_was_received_is_forgotten_on_request(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        http.post(server.url)
        server.fail_next()
        server.clear()
        assert (server.requests, server.received) == ([], [])
        assert http.post(server.url).status_code == 200


def test_a_client_that_goes_away_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    with fakes.webhook() as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
        httpx2.post(server.url)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("body", [b"", b"abc" * 10_000])
def test_a_body_may_come_in_chunks(http: httpx2.Client, body: bytes) -> None:
    with fakes.webhook() as server:
        http.post(server.url, content=iter([body, b"end"]))
        assert "content-length" not in server.received[0].headers
        assert server.received[0].body == body + b"end"
        assert http.options(server.url).status_code == 200


def test_a_receiver_may_be_encrypted() -> None:
    shown, trusting = certificate()
    with fakes.webhook(tls=shown) as server, httpx2.Client(verify=trusting) as client:
        assert server.url.startswith("https://")
        assert client.post(server.url).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.post(server.url)
        with pytest.raises(httpx2.TransportError):
            client.post(server.url.replace("https", "http"))
        assert len(server.received) == 1


def test_one_may_ask_the_server_while_one_waits_for_it(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.wait_until(lambda: http.post(server.url).status_code == 200 and len(server.received) == 3, timeout=5)


def test_a_webhook_receiver_answers_as_told_from_then_on(http: httpx2.Client) -> None:
    with fakes.webhook() as server:
        server.answer(410, {"gone": True}, {"X-Why": "moved"})
        answers = [http.put(f"{server.url}/hooks/7?a=1", json={"n": 1}) for _ in range(2)]
        assert [(one.status_code, one.json(), one.headers["X-Why"]) for one in answers] == [
            (410, {"gone": True}, "moved")
        ] * 2
        request = server.received[0]
        assert (request.method, request.path, request.query, request.json()) == (
            "PUT",
            "/hooks/7",
            {"a": "1"},
            {"n": 1},
        )
        assert request.headers["content-type"] == "application/json"
