"""All pages of the dashboard, found by themselves: the routes that the server has, and where links lead."""

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi.routing import iter_route_contexts

from tests.server.endpoints import is_page
from treadle import Treadle
from treadle.server.api import Server

TELLING = {"act", "tab", "show", "state", "by", "span", "view", "mode", "kind", "ran", "done", "did", "verify"}
"""Parameters whose values make another page of it; of others it counts whether they are there."""

ASIDE = ("/static/", "/login", "/logout")


class Route(NamedTuple):
    """A page's address with its parameters, and what fits it."""

    path: str
    pattern: re.Pattern[str]


def routes(server: Server) -> list[Route]:
    """The pages that can be looked at, those with fewer parameters first."""
    found = {}
    for route in iter_route_contexts(server.api.routes):
        if is_page(route) and "GET" in (route.methods or ()) and not route.path.startswith(ASIDE):
            found[route.path] = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", route.path))
    return [Route(path, found[path]) for path in sorted(found, key=lambda path: (path.count("{"), path))]


def addresses(server: Server, app: Treadle) -> list[str]:
    """One address of each page, with what is in this store."""
    failed = app.find(state="failed", limit=1).jobs or app.find(limit=1).jobs
    ids = {"/jobs/": failed[0].id if failed else "none", "/schedules/": _id([*app.schedules.list()])}
    ids |= {"/workers/": _name(app.workers(silent=True)), "/failures/": _fingerprint(app)}
    made = []
    for path, _ in routes(server):
        kind = next((kind for kind in ids if path.startswith(kind)), "/jobs/")
        made.append(re.sub(r"\{[^}]*\}", quote(ids[kind], safe=""), path))
    return made


def parts_of(server: Server, address: str) -> set[tuple[str, str, str]]:
    """What makes this page what it is: its kind and each of its parameters; nothing if it is none of ours."""
    parts = urlsplit(address)
    if parts.netloc or parts.path.startswith(ASIDE):
        return set()
    kind = next((route.path for route in routes(server) if route.pattern.fullmatch(parts.path)), None)
    if kind is None:
        return set()
    given = {(kind, name, value if name in TELLING else "") for name, value in parse_qsl(parts.query)}
    return given | {(kind, "", "")}


def links_of(text: str) -> Iterator[str]:
    """Where the links of a page lead."""
    reader = Links()
    reader.feed(text)
    yield from reader.found


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href and not href.startswith("#"):
            self.found.append(href)


def _id(found: Sequence[Any]) -> str:
    return str(found[0].id) if found else "none"


def _name(found: Sequence[Any]) -> str:
    return str(found[0].name) if found else "none"


def _fingerprint(app: Treadle) -> str:
    groups = app.failures().groups
    return str(groups[0].fingerprint) if groups else "none"
