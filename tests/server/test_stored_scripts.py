"""What jobs, callers and other programs have written is text for a browser: in the API's answers, and on every page.

tests/browser looks at the same with a browser's own eyes; here are more texts and more pages.
"""

import re
from collections import deque
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from tests.browser.hostile import CORPUS, poison
from tests.server.conftest import Client
from tests.server.endpoints import ENDPOINTS, PUBLIC, Place, routes_of
from tests.support.sizes import size
from treadle import Treadle
from treadle.server import dashboard
from treadle.server.api import Server
from treadle.testing import FakeClock

OUT = ["", '"', "'", ">", "'>", '">', "</td>", "</textarea>", "</script>", "-->", "]]>", "`", "\\", "%22%3E", "\u2028"]
THEN = [
    "<b class=pwned>", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", " onmouseover=alert(1) x=",
    "<svg/onload=alert(1)>", "javascript:alert(1)", "<iframe srcdoc=x>", "{{7*7}}${7*7}", "<a href='javascript:x'>",
    "data:text/html,<script>", "&lt;b class=pwned&gt;",
]  # fmt: skip
TEXTS = list(dict.fromkeys([*CORPUS, *(f"{out}{then}" for then in THEN for out in OUT)]))
PAGES_READ = size(70, long=4000)
DATA = {"application/json", "application/problem+json", "text/plain", "text/event-stream"}
LEADS = ("href", "src", "action", "formaction", "data", "xlink:href", "poster", "ping")


def test_there_are_two_hundred_texts() -> None:
    assert len(TEXTS) >= 200


def poisoned(app: Treadle, clock: FakeClock, texts: list[str]) -> Place:
    """Each text wherever people and jobs can write."""
    poison(app, clock, texts)
    return Place(app.find(state="failed", limit=1).jobs[0].id, app.schedules.list(limit=1)[0].name)


def test_no_answer_of_the_api_is_a_page(app: Treadle, clock: FakeClock, admin: Client, server: Server) -> None:
    """Every answer is said to be JSON or text, and browsers are told not to guess."""
    place = poisoned(app, clock, TEXTS[::10])
    server.stop()  # a stream ends at once
    asked = [one for one in ENDPOINTS if one.method == "GET" and one.scope != PUBLIC]
    paths = [f"/{one.url(Place(place.job_id, quote(place.name, safe='')))}" for one in asked]
    for path in [*paths, "/jobs?limit=500", "/audit?limit=500", *(f"/jobs/{quote(text, safe='')}" for text in TEXTS)]:
        answer = admin.ask("GET", path)
        kind = answer.headers["content-type"]
        assert kind.startswith(("application/json", "application/problem+json", "text/plain", "text/event-stream")), (
            path
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "script-src" not in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_nothing_that_was_written_becomes_a_part_of_a_page(
    app: Treadle, clock: FakeClock, admin: Client, server: Server
) -> None:
    """No element, attribute or address is there that is not the page's own, on any page that links lead to."""
    place = poisoned(app, clock, TEXTS)
    patterns = [path for method, path in routes_of(server.api, pages=True) if method == "GET" and "static" not in path]
    waiting = {pattern: deque[str]() for pattern in sorted(patterns)}
    seen, shown = set[str](), set[str]()

    def add(address: str) -> None:
        if (pattern := pattern_of(patterns, address)) and address not in seen:
            seen.add(address)
            waiting[pattern].append(address)

    for state in ("failed", "retrying", "succeeded", "cancelled"):
        add(f"/jobs?state={state}")
        add(f"/jobs/{app.find(state=state, limit=1).jobs[0].id}")
    for pattern in patterns:
        add(pattern.format(job_id=place.job_id, name=quote(place.name, safe="")))
    for number in range(PAGES_READ):
        kinds = [pattern for pattern in waiting if waiting[pattern]]
        if not kinds:
            break
        address = waiting[kinds[number % len(kinds)]].popleft()
        answer = admin.ask("GET", f"/{address}")
        assert answer.status_code < 500, address
        if not answer.headers.get("content-type", "").startswith("text/html"):
            continue
        page = Page()
        page.feed(answer.text)
        assert page.strange == [], address
        shown |= {text for text in TEXTS if text in page.text}
        for link in page.links:
            add(urljoin(address, link).partition("#")[0])
    assert len(shown) > len(TEXTS) * 0.9


def pattern_of(patterns: list[str], address: str) -> str | None:
    """The route of a page that an address leads to."""
    path = urlsplit(address).path
    found = [one for one in patterns if re.fullmatch(re.sub(r"\\?\{\w+\\?\}", "[^/]+", re.escape(one)), path)]
    return min(found, key=lambda one: one.count("{")) if found else None


class Page(HTMLParser):
    """What a page is made of: its text, its links, and what is not its own."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        odd = [name for name in given if name.startswith("on") or not re.fullmatch(r"[a-z][a-z0-9-]*(:[a-z]+)?", name)]
        odd += [f"{name}={given[name]}" for name in LEADS if not is_ours(given.get(name, ""))]
        odd += [name for name in ("srcdoc", "style", "http-equiv") if name in given]
        if tag not in own_elements() or odd or "pwned" in given.get("class", "").split():
            self.strange.append(f"<{tag} {odd or given}>")
        if tag == "script" and "src" not in given:
            self.strange.append("a script within the page")
        self.links += [given["href"]] if tag == "a" and given.get("href") else []
        self.text += "".join(f"\n{value}" for value in given.values())

    def handle_comment(self, data: str) -> None:
        self.strange.append(f"<!--{data}-->")

    def handle_data(self, data: str) -> None:
        self.text += data


def is_ours(address: str) -> bool:
    return not address or address.startswith(("#", "?")) or re.match(r"/(?![/\\])", address) is not None


@cache
def own_elements() -> set[str]:
    """What the templates and the drawings of the dashboard are made of."""
    folder = Path(dashboard.__file__).parent
    files = [path for kind in ("*.html", "*.py") for path in folder.rglob(kind)]
    return {name for path in files for name in re.findall(r"<([a-z][a-z0-9]*)", path.read_text("utf-8"))}
