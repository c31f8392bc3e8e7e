"""Jobs: find them by words, page through them, and retry, cancel or delete many after a look at what that would do."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from treadle.errors import InvalidInput
from treadle.server import jobs as api
from treadle.server import overview as overview_api
from treadle.server.caller import Caller
from treadle.server.dashboard import search
from treadle.server.dashboard.page import (
    ERRORS,
    PageOperator,
    PageReader,
    PageRoute,
    Url,
    go,
    is_signed,
    refusal,
    render,
    signed,
    with_query,
)
from treadle.server.dashboard.plan import Meant, form, offered, outcome, plan
from treadle.server.dashboard.posted import Posted, PostedFields, read_into
from treadle.server.dashboard.words import shape_of
from treadle.server.forms import CountQuery, JobQuery
from treadle.server.forms import Query as Form

router = APIRouter(route_class=PageRoute)

PAGE = 50  # jobs
LONGEST_BRIEF, LONGEST_ERROR = 90, 200  # characters of a payload, and of an error, in a row
MOST_BACK = 1500  # characters of cursors that lead back
COUNTED = ("task", "queue", "tenant", "lane")  # what jobs can be counted by, beside their state
TABS = ("pending", "scheduled", "retrying", "running", "failed", "succeeded", "cancelled")
FINAL = ("succeeded", "failed", "cancelled")
SPENT = ("exhausted", "timeout", "crashed")  # why a job failed whose last attempt was a failure like those before
NOTHING: dict[str, Any] = {"jobs": [], "cursor": None, "looked": 0, "back_to": None}
Word = Annotated[str | None, Query(max_length=2000)]


class ListAddress(Form):
    """What the address of the list may say; the filters are checked by the API, so that the page can say it."""

    state: Word = None
    task: Word = None
    queue: Word = None
    tenant: Word = None
    lane: Word = None
    key: Word = None
    error: Word = None
    fingerprint: Word = None
    since: Word = None
    before: Word = None
    text: Word = None
    cursor: Word = None
    back: Word = None  # the cursors of the pages before
    q: Word = None
    act: Literal["retry", "cancel", "delete", "pause", "run", "drain"] | None = None
    did: Literal["retry", "cancel", "delete"] | None = None
    n: Annotated[int, Query(ge=0)] = 0
    asked: Annotated[int, Query(ge=0)] = 0
    sure: Word = None  # of what was done: that it was


@router.get("/jobs")
def show(caller: PageReader, request: Request, asked: Annotated[ListAddress, Query()]) -> Response:
    """Jobs that fit the filters, newest first; with `act` what that would do to all of them."""
    page = _Page(caller, request, asked.model_dump())
    if asked.q is not None and asked.q.strip():
        return _search(page, asked.q)
    if asked.act in ("retry", "cancel", "delete") and "operate" in caller.who.scopes:
        return _preview(page, asked.act, Meant(page.filters))
    if asked.did is not None and is_signed(request, caller, asked.sure, asked.did, asked.n, asked.asked):
        page.values["did"] = outcome(asked.did, asked.n, min(asked.asked, asked.n))
    return page.answer()


@router.post("/jobs/bulk")
def act_on_many(caller: PageOperator, request: Request, posted: Posted) -> Response:
    """Without `confirm` say what the act would do to the selected rows, or to all that fit; with it, do it."""
    given: dict[str, str | None] = {**posted}
    if "lane" in posted.lists:
        given["lane"] = posted.lists["lane"][0]
    page, action = _Page(caller, request, given), posted.get("action")
    which = Meant(page.filters, tuple(filter(None, posted.lists.get("id", ()))))
    try:
        if posted.get("of") == "rows" and not which.ids:
            which = Meant(ids=_rows_of(page, posted))
        if posted.get("confirm") is None:
            return _preview(page, action, which)
        done = _done(page, action, which, posted)
    except ERRORS as error:
        return _preview(page, action, which, refusal(request, error), posted.get("reason", ""))
    if not done["not_possible"]:
        result = {"did": action, "n": done["done"], "asked": done["asked"] or None}
        sure = signed(request, caller, action, done["done"], done["asked"])
        return go(request, _address(page.filters, **result, sure=sure))
    page.values |= {"report": done, "did": outcome(str(action), done["done"], done["asked"])}
    return page.answer()


def _done(page: "_Page", action: str | None, which: Meant, posted: PostedFields) -> dict[str, Any]:
    """Do it, if as many fit as were seen."""
    if action == "delete":
        posted.demand_reason("say why, for those who look for these jobs later; nothing brings them back")
    more = {"reason": posted.get("reason", ""), "confirm": posted["confirm"], "expect": posted.number("expect")}
    return api.act_on_many(page.caller, page.request, form(action, which, **more))


def _rows_of(page: "_Page", posted: PostedFields) -> tuple[str, ...]:
    """The rows of the page, if the box above them was ticked where no script ticks theirs."""
    if posted.get("page") is None:
        raise InvalidInput("rows", "none is selected: tick the boxes of some, or the one above them for this page")
    return tuple(job["id"] for job in page.found()["jobs"])


def _preview(
    page: "_Page", action: str | None, which: Meant, problem: dict[str, Any] | None = None, reason: str = ""
) -> Response:
    """The page with what the act would do; `problem` is why it was not done."""
    try:
        page.values["plan"] = plan(page.caller, page.request, action, which, reason)
    except ERRORS as error:
        problem = problem or refusal(page.request, error)
    page.values["problem"] = problem
    return page.answer()


def _search(page: "_Page", text: str) -> Response:
    """Lead to what was looked for; words that mean nothing are shown again, with those that may be meant."""
    try:
        states = [*page.about["profile"]["states"].values(), *TABS, "claimed", "dead", "expired"]
        tasks = [task["name"] for task in overview_api.tasks(page.caller)["tasks"]]
        found = search.read(text, states=states, tasks=tasks)
        if found.job is not None:
            return go(page.request, f"/jobs/{api.show_job(page.caller, found.job)['job']['id']}")
    except ERRORS as error:
        instead = error.instead if isinstance(error, search.Misread) else (search.written("text", text.strip()),)
        page.values |= {"problem": refusal(page.request, error), "typed": text, "instead": instead}
        return page.answer()
    return go(page.request, _address({**page.given, **found.filters}))


# ------------------------------------------------------------------------------------------------ the page


class _Page:
    """The list as an address or a form has asked for it, and what is shown around it."""

    def __init__(self, caller: Caller, request: Request, given: Mapping[str, Any]) -> None:
        self.caller = caller
        self.request = request
        self.given = {
            name: value
            for name in search.FIELDS
            if (value := given.get(name)) or (value == "" and name in search.EMPTY)
        }
        self.about = overview_api.about(caller)
        words = self.about["profile"]["states"]
        if "state" in self.given and self.given["state"] not in words.values():  # links have treadle's own words
            self.given["state"] = words.get(self.given["state"], self.given["state"])
        self.cursor = given.get("cursor") or None
        self.back = str(given.get("back") or "")
        self.bound = sorted(caller.who.queues or ())
        self.filters = dict(self.given)
        if self.bound:
            self.filters.setdefault("queue", self.bound[0])
        self.values: dict[str, Any] = {
            "plan": None, "problem": None, "typed": "", "instead": (), "did": None, "report": None
        }  # fmt: skip

    def found(self) -> dict[str, Any]:
        """The jobs of this page."""
        return api.list_jobs(self.caller, read_into(JobQuery, **self.filters, cursor=self.cursor, limit=PAGE))

    def answer(self) -> Response:
        """The page itself; where the filters are refused, with why, and no jobs."""
        found, counts = NOTHING, None
        try:
            found, counts = self.found(), self._counts()
        except ERRORS as error:
            problem = refusal(self.request, error)
            if problem["status"] not in range(400, 500):
                raise
            self.values["problem"] = self.values["problem"] or problem
        about = self.about
        problem = self.values["problem"]
        empty = not found["jobs"] and not found["cursor"] and self.cursor is None and problem is None
        first = empty and not self.given and len(self.bound) < 2
        return render(
            self.request,
            "jobs.html",
            self.caller,
            status=problem["status"] if problem else 200,
            at=about["now"],
            about=about,
            rows=[_row(job, about["profile"]["states"]) for job in found["jobs"]],
            found=found,
            filters=self.filters,
            chips=self._chips(),
            bound=self.bound,
            tabs=self._tabs(counts, bool(about["profile"]["states"])),
            partly=counts is not None and bool(counts["labels"]) and "pending" in counts["estimates"],
            total=_known(counts).get(self.filters.get("state"), ""),
            acts=offered(self.filters.get("state")),
            wording=search.in_words(self.filters),
            command=["jobs", "list", *search.options(self.filters)],
            address=self._to,
            place={"cursor": self.cursor, "back": self.back or None},
            newer=self._newer(),
            older=self._older(found["cursor"]),
            drops=self._drops() if empty and self.given else [],
            first=first,
            workers=self._workers() if first else None,
            **self.values,
        )

    def _to(self, filters: Mapping[str, str] | None = None, /, **more: Any) -> str:
        return Url(self.request)(_address(self.given if filters is None else filters, **more))

    def _counts(self) -> dict[str, Any] | None:
        """How many jobs there are by state, where they can be counted by these filters."""
        if not {*self.filters} <= {"state", *COUNTED}:
            return None
        where = {name: self.filters[name] for name in COUNTED if name in self.filters}
        return api.count(self.caller, read_into(CountQuery, **where))

    def _chips(self) -> list[dict[str, str]]:
        """The filters, each with the address without it."""
        return [
            {"name": name, "value": self.given[name] or '""', "without": self._to(self._without(name))}
            for name in search.FIELDS
            if name in self.given
        ]

    def _without(self, name: str) -> dict[str, str]:
        return {one: value for one, value in self.given.items() if one != name}

    def _newer(self) -> str | None:
        """The address of the page before."""
        if self.cursor is None:
            return None
        back, _, last = self.back.rpartition("~")
        return self._to(cursor=last or None, back=back or None)

    def _older(self, cursor: str | None) -> str | None:
        if cursor is None:
            return None
        back = "~".join(filter(None, (self.back, self.cursor)))
        return self._to(cursor=cursor, back=back if len(back) <= MOST_BACK else None)

    def _drops(self) -> list[dict[str, Any]]:
        """Where nothing fits: each filter, and whether something fits without it."""
        found = []
        for chip in self._chips():
            rest = {name: value for name, value in self.filters.items() if name != chip["name"]}
            if self.bound:
                rest.setdefault("queue", self.bound[0])
            try:
                some = bool(api.list_jobs(self.caller, read_into(JobQuery, **rest, limit=1))["jobs"])
            except ERRORS:
                some = False
            found.append({**chip, "some": some})
        return [chip for chip in found if chip["some"]] or found

    def _workers(self) -> int | None:
        """How many workers are alive; None for those who are not told."""
        return len(overview_api.workers(self.caller)["workers"]) if self.caller.who.whole else None

    def _tabs(self, counts: Mapping[str, Any] | None, profiled: bool) -> list[dict[str, Any]]:
        """All, and the states, each with how many jobs are in it if that is known."""
        state, rest = self.given.get("state"), self._without("state")
        words = [*(counts["counts"] if counts else ())] if profiled else [*TABS]
        if state is not None and state not in words:
            words.append(state)
        known = _known(counts)
        states = [
            {"word": word, "count": known.get(word, ""), "href": self._to({**rest, "state": word})} for word in words
        ]
        return [{"word": None, "count": known.get(None, ""), "href": self._to(rest)}, *states]


def _address(filters: Mapping[str, str], /, **more: Any) -> str:
    """The address of a list, which can be shared."""
    ordered = {name: filters[name] for name in search.FIELDS if name in filters}
    return with_query("/jobs" + (f"?{urlencode(ordered)}" if ordered else ""), **more)


def _number(value: int, estimate: bool) -> str:
    return f"{'~' if estimate else ''}{value:,}"


def _known(counts: Mapping[str, Any] | None) -> dict[str | None, str]:
    """How many jobs the list of each state has, as far as that is known; None is the list of all."""
    if counts is None:
        return {}
    partly = "pending" in counts["estimates"]
    return {
        None: _number(counts["total"], not counts["exact"]),
        **{word: _number(number, word in counts["estimates"]) for word, number in counts["counts"].items()},
        **{label: _at_least(number) if partly else f"{number:,}" for label, number in counts["labels"].items()},
    }


def _at_least(number: int) -> str:
    """A number with a plus; nothing where none was seen: that says nothing about the others."""
    return f"{number:,}+" if number else ""


def _row(job: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """A job as a row of the list."""
    label, error = job["label"], job["error"] if job["state"] != "succeeded" else None
    later = job["due_at"] if label in ("scheduled", "retrying") else None
    return {
        "id": job["id"],
        "task": job["task"],
        "brief": brief(job["payload"]),
        "shape": shape_of(label),
        "word": words.get(label) or words.get(job["state"]) or (job["state"] if job["state"] in FINAL else label),
        "reason": (job["reason"] or "").replace("_", " "),
        "queue": job["queue"],
        "other": " · ".join(_other(job)),
        "tries": _attempts(job),
        "most": job["max_attempts"],
        "error": error and error["type"].rpartition(".")[2],
        "line": error and (error["message"].strip().splitlines() or [""])[0][:LONGEST_ERROR],
        "when": job["finished_at"] or later or job["created_at"],
        "due": later is not None,
    }


def _attempts(job: Mapping[str, Any]) -> int:
    """How many attempts it has made, the one that runs included."""
    failures: int = job["failures"]
    if job["state"] in ("running", "succeeded"):
        return failures + 1
    one_more = job["state"] in FINAL and job["reason"] not in SPENT and job["started_at"]
    return min(job["attempt"], failures + 1) if one_more else failures


def _other(job: Mapping[str, Any]) -> Sequence[str]:
    """Its tenant, lane and key, where they are not the usual ones."""
    usual = {"tenant": "default", "lane": "", "key": None}
    return [f"{name} {job[name]}" for name, value in usual.items() if job[name] != value]


def brief(payload: Any) -> str:
    """A payload in one line."""
    if isinstance(payload, dict):
        text = ", ".join(
            f"{name}: {value if isinstance(value, str) else _compact(value)}" for name, value in payload.items()
        )
    else:
        text = "" if payload is None else _compact(payload)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_BRIEF else f"{text[:LONGEST_BRIEF]}…"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
