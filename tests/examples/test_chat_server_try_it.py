"""`python -m chatServer.try_it`: a reader types what it prints, and sees a job from its request to its end."""

import argparse
import json
import re
import shlex
import signal
import socket
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.examples.conftest import Example
from tests.support.workbench import until


@pytest.mark.slow
def test_the_requests_that_it_prints_connect_a_mailbox_and_show_its_job(
    example: Callable[[str], Example], database: str
) -> None:
    chat = example("chat_server")
    chat.environment |= {"DATABASE_URL": database, "RUNNER_POLL_SECONDS": "0.1"}
    process = chat.start("python -m chatServer.try_it", "--port", str(a_free_port()))
    token = process.says(r"^export TOKEN=(\S+)$")
    connect = process.says(r"^(curl .* \\)$").removesuffix("\\") + process.says(r"^  (-d '.*')$")
    look = process.says(r"^(curl .*)$")
    process.says("serving http")
    connection = typed(connect, token)["id"]

    def ended() -> Any:
        return [job for job in typed(look, token) if job["status"] == "complete"]

    [job] = until(ended, "the mailbox is read")
    assert (job["job_type"], job["input"]) == ("email_processing", {"connection_id": connection})
    process.end(signal.SIGTERM)


def typed(command: str, token: str) -> Any:
    """What a command of curl's would print."""
    words = shlex.split(re.sub(r"\$TOKEN\b", token, command))
    given = argparse.ArgumentParser()
    given.add_argument("curl")
    given.add_argument("url")
    given.add_argument("-H", action="append")
    given.add_argument("-d", type=str.encode)
    asked = given.parse_args(words)
    headers = dict(line.split(": ", 1) for line in asked.H)
    assert asked.url.startswith("http://127.0.0.1:")
    with urlopen(Request(asked.url, asked.d, headers), timeout=60) as answer:  # noqa: S310 - seen above
        return json.load(answer)


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
