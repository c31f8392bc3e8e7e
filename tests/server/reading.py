"""How tests ask for pages of the dashboard, fill their forms, and read what people read there."""

import re
import shlex
from html import unescape
from typing import Any
from urllib.parse import urlencode

from tests.server.conftest import Client

FORM = {"content-type": "application/x-www-form-urlencoded"}


def page(client: Client, path: str, expect: int = 200, **query: Any) -> str:
    """A page as it was sent."""
    answer = client.ask("GET", f"/{path}", params=query)
    assert answer.status_code == expect, answer.text[:2000]
    return str(answer.text)


def post(client: Client, path: str, fields: Any, expect: int = 303) -> Any:
    """The answer to a form, sent as a browser sends it."""
    answer = client.ask("POST", f"/{path}", content=urlencode(fields, doseq=True), headers=FORM)
    assert answer.status_code == expect, answer.text[:2000]
    return answer


def text(part: str) -> str:
    """What people read of a part of a page, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", part)).split())


def form_fields(part: str) -> dict[str, str]:
    """What a browser would send of the first form in this part of a page."""
    form = part[part.index("<form") :].partition("</form>")[0]
    found = {}
    for tag in re.findall(r"<input[^>]*>", form):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name and (not re.search("radio|checkbox", tag) or re.search(r"\bchecked\b", tag)):
            found[unescape(name[1])] = unescape(value[1] if value else "")
    for name, options in re.findall(r'<select[^>]*name="([^"]*)"[^>]*>(.*?)</select>', form, re.DOTALL):
        found[unescape(name)] = unescape(re.findall(r'value="([^"]*)" selected', options)[0])
    for name, written in re.findall(r'<textarea[^>]*name="([^"]*)"[^>]*>(.*?)</textarea>', form, re.DOTALL):
        found[unescape(name)] = unescape(written).removeprefix("\n").replace("\n", "\r\n")
    return found


def commands(shown: str) -> list[list[str]]:
    """The commands that a page shows to be copied, each in its words."""
    return [shlex.split(unescape(one)) for one in re.findall(r'<div class="cli"><code>(.*?)</code>', shown)]
