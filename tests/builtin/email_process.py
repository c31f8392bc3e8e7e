"""A worker in a process of its own that sends mail: given URL, KIND, ADDRESS, POLICY and OPTIONS."""

import json
import sys

from treadle import Treadle
from treadle.builtin import email_send
from treadle.builtin.email_send import Graph, MailTransport, Resend, Smtp

SENDER = "shop@example.org"


def transport(kind: str, address: str) -> MailTransport:
    """To a stand-in with its usual names."""
    if kind == "smtp":
        host, _, port = address.rpartition("/")[2].partition(":")
        return Smtp(host, int(port), security="plain", sender=SENDER)
    if kind == "graph":
        names = "fake-tenant", "fake-client", "fake-secret"
        return Graph(*names, sender=SENDER, url=f"{address}/v1.0", login=address)
    return Resend("re_fake", sender=SENDER, url=address)


def main(url: str, kind: str, address: str, policy: str, options: str) -> None:
    app = Treadle(url)
    email_send.register(app, transport(kind, address), on_ambiguous=policy)  # type: ignore[arg-type]
    app.run_worker(**json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
