"""`python -m treadle.testing.fakes slack --port 8025`: a stand-in in its own process, until Ctrl-C."""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from treadle.errors import ConfigError
from treadle.testing import fakes
from treadle.testing.fakes import HttpFake, RunningClock

MAKERS: dict[str, Callable[..., Any]] = {
    "gmail": fakes.gmail,
    "graph": fakes.graph,
    "llm": fakes.llm,
    "resend": fakes.resend,
    "sentry": fakes.sentry,
    "slack": fakes.slack,
    "smtp": fakes.smtp,
    "webhook": fakes.webhook,
}
CLIENTS: dict[str, Callable[[Any], Mapping[str, str]]] = {
    "gmail": lambda server: {
        "token URL": server.token_uri,
        "client id": server.client_id,
        "client secret": server.client_secret,
        "address": server.mailbox.address,
        "refresh token": server.mailbox.refresh_token,
    },
    "graph": lambda server: {
        "API": f"{server.url}/v1.0",
        "tenant": server.tenant,
        "client id": server.client_id,
        "client secret": server.client_secret,
    },
    "llm": lambda server: {"API key": server.api_key},
    "resend": lambda server: {"API key": server.api_key},
    "sentry": lambda server: {"DSN": server.dsn},
    "slack": lambda server: {"API": server.base_url, "token": server.token, "channel": server.add_channel("summaries")},
}
"""What a client of each has to know."""


def main(arguments: list[str]) -> int:
    """Say where it listens, and then each request as it comes."""
    parser = argparse.ArgumentParser("python -m treadle.testing.fakes", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", choices=MAKERS)
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0, the default, takes a free one")
    parser.add_argument("--user", action="append", default=[], help="a member for slack, as NAME or NAME=TIMEZONE")
    chosen = parser.parse_args(arguments)
    if chosen.user and chosen.name != "slack":
        parser.error(f"--user: {chosen.name} has no members; slack has")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        with MAKERS[chosen.name](port=chosen.port, clock=RunningClock()) as server:
            print(f"{chosen.name} listens on {server.url}; Ctrl-C ends it")
            for user in chosen.user:
                name, _, zone = user.partition("=")
                server.add_user(name, tz=zone or "UTC")
            for what, value in CLIENTS.get(chosen.name, lambda _: {})(server).items():
                print(f"  {what}: {value}")
            sys.stdout.flush()
            shown = 0
            while not ended.wait(0.1):
                came = lines(server)
                print(*came[shown:], sep="\n", end="\n" * (len(came) > shown), flush=True)
                shown = len(came)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def lines(server: Any) -> list[str]:
    """What came so far, a line each."""
    if isinstance(server, HttpFake):
        return [f"{request.method} {request.path}" for request in server.requests]
    return [f"{mail.sender} -> {', '.join(mail.recipients)}: {mail.message['Subject']}" for mail in server.sent]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
