"""Beside every act of every page stands the command that does the same, and `treadle` has it."""

import re
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

from tests.browser.pages import addresses, links_of, parts_of
from tests.server.conftest import Client
from tests.server.reading import commands
from tests.support.commands import check_command
from treadle import Treadle
from treadle.engines.values import OVERWRITE, Claim
from treadle.model import new_id
from treadle.model.records import WorkerInfo
from treadle.server.api import Server
from treadle.testing import run_until_idle

FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"')
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]+")
ASIDE = {"/logout", "/jobs/bulk"}  # the last is on the list, to ask for a preview, and in that preview
NOTHING_YET = "Nothing is changed yet."  # a form to edit a schedule; the command comes with what is typed


def pages(server: Server, app: Treadle, client: Client) -> Iterator[tuple[str, str]]:
    """Every page, form and preview that links lead to, with its address."""
    waiting, seen = addresses(server, app), set[tuple[str, str, str]]()
    while waiting:
        address = waiting.pop(0)
        parts = parts_of(server, address)
        if parts <= seen:
            continue
        seen |= parts
        shown = client.ask("GET", f"/{address.partition('#')[0]}").text
        yield address, shown
        waiting += [f"{urlsplit(address).path}{link}" if link.startswith("?") else link for link in links_of(shown)]


def fill(app: Treadle) -> None:
    """Something to act on for every act that there is."""
    app.enqueue("send", {"to": "Ada"})
    app.enqueue("cost", {"micros": 1200})
    run_until_idle(app, queues=["mail", "default"])
    app.cancel(app.enqueue("greet", {"name": "Bob"}).id, actor="ada")
    app.enqueue("greet", {"name": "Cy"})
    app.enqueue("greet", {"name": "Di"}, run_after=timedelta(hours=1))
    app.pause(queue="mail", actor="grace", reason="the relay is away")
    app.schedules.create("nightly", "greet", {"name": "all"}, cron="0 2 * * *")
    app.schedules.create("weekly", "greet", {"name": "all"}, every="7d")
    app.schedules.disable("weekly", actor="ada")
    now = app.engine.now()
    info = WorkerInfo("loom-1", "box", 7, ["default"], None, {"greet": 1}, 4, 1, False, now, now, 30.0)
    app.engine.save(info, before=OVERWRITE)
    app.engine.turn([], Claim(new_id(), "loom-1", 1, 600.0, ["default"], tasks=["greet"]))


def test_beside_every_act_stands_a_command_and_every_command_exists(
    app: Treadle, server: Server, admin: Client
) -> None:
    fill(app)
    acts, bare = set[str](), list[str]()
    for address, shown in pages(server, app, admin):
        found = commands(shown)
        for words in found:
            check_command(words)
        forms = FORM.split(shown)
        here = {ID.sub("ID", action) for action in forms[1::2]} - ASIDE
        acts |= here
        inside = [body.partition("</form>")[0] for body in forms[2::2]]
        if "act=" in address and not any('class="cli"' in body for body in inside):
            bare.append(address)
        if here and not found and NOTHING_YET not in shown:
            bare.append(address)
    assert not bare, "\n".join(bare)
    assert acts == {
        "/jobs/ID/cancel", "/jobs/ID/delete", "/jobs/ID/edit", "/jobs/ID/retry", "/jobs/ID/run-now",
        "/queues/pause", "/queues/resume", "/workers/drain",
        "/schedules/new", "/schedules/ID/edit", "/schedules/ID/switch", "/schedules/ID/run", "/schedules/ID/delete",
    }  # fmt: skip
