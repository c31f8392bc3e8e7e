"""Doctor: what an operator should know about the store, the worst first, each with what to do about it."""

import re
import shlex

from fastapi import APIRouter, Request, Response

from treadle.server import overview as api
from treadle.server.dashboard.page import PageReader, PageRoute, now, refusal, render
from treadle.server.dashboard.words import Row, capital
from treadle.server.problems import Refused

router = APIRouter(route_class=PageRoute)

LEVELS = ("error", "warning", "ok")
COMMAND = re.compile(r"`treadle ([^`]+)`")


@router.get("/doctor")
def show(caller: PageReader, request: Request) -> Response:
    """Look the store over. It is not live: to compare the schema is more than a look."""
    try:
        found = api.doctor(caller)
    except Refused as error:
        if error.status != 403:
            raise
        problem = refusal(request, error)
        return render(request, "doctor.html", caller, status=problem["status"], found=None, problem=problem)
    levels = {level: [_finding(one) for one in found["findings"] if one["level"] == level] for level in LEVELS}
    looked_at = now(caller)
    return render(request, "doctor.html", caller, found=found, levels=levels, looked_at=looked_at, problem=None)


def _finding(one: Row) -> Row:
    """A finding as a sentence, with the commands that it names."""
    text = one["text"]
    return {
        "text": capital(text) if text.partition(" ")[0].isalpha() else text,
        "commands": [words for command in COMMAND.findall(text) if (words := _words(command))],
    }


def _words(command: str) -> list[str]:
    """The words of a command; none if it is only the name of one, or no shell would read it."""
    try:
        return shlex.split(command)
    except ValueError:
        return []
