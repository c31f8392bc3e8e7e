"""Secrets that are unique, put into jobs by every way in; then everything the program shows is searched for them."""

import asyncio
import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.server.endpoints import ADMIN_ENDPOINTS, ENDPOINTS, Place, routes_of
from tests.server.raw import Raw
from tests.support.commands import looks
from treadle import Treadle
from treadle.app.logs import JobContext, JsonFormatter, LineFormatter
from treadle.cli.commands import run
from treadle.server import Principal, asgi, stream
from treadle.server.api import Server

MODULE = "canary_tasks"
TASKS = """
import os
from pydantic import BaseModel, SecretStr, field_validator
from treadle import Cancelled, Context, GiveUp, Retry, Snooze, Treadle

app = Treadle()


class Card(BaseModel):
    number: SecretStr
    holder: str = "Ada"

    @field_validator("number")
    @classmethod
    def good(cls, value):
        if value.get_secret_value().endswith("refused"):
            raise ValueError(f"what is {value.get_secret_value()}?")
        return value


class Order(BaseModel):
    cards: list[Card]
    codes: dict[str, SecretStr] = {}
    way: str


@app.task(retry=Retry(max_attempts=2, base=0, jitter=0), on_failed="alarm", on_succeeded="told")
def by_type(ctx: Context, order: Order, token: SecretStr | None = None):
    return act(ctx, order.cards[0].number.get_secret_value(), order.way)


@app.task(retry=Retry(max_attempts=2, base=0, jitter=0), on_failed="alarm", secret=["password", "card.number"])
async def by_list(ctx: Context, password: str, card: dict, way: str):
    return act(ctx, password if way != "fail" else card["number"], way)


def act(ctx, secret, way):
    ctx.log.info("it is %s", secret)
    ctx.log.debug({"secret": secret})
    ctx.progress(0.5, f"half of {secret}")
    if way == "snooze" and ctx.attempt == 1:
        raise Snooze(0)
    if way == "cancel":
        raise Cancelled(f"not {secret}")
    if way == "give up":
        raise GiveUp(f"never {secret!r}")
    if way in ("fail", "retry") and (way == "fail" or ctx.attempt == 1):
        try:
            {}[secret]
        except KeyError:
            ctx.log.exception("no %s", secret)
            error = ValueError(f"{secret} is wrong", {"secret": [secret]})
            error.add_note(f"a note with {secret}")
            raise error
    return {"seen": [secret], secret: len(secret)}


@app.task
def alarm(job_id: str, error: str): ...


@app.task(secret=["result"])
def told(job_id: str, result: dict): ...


@app.for_each
def users():
    yield {"way": "fail"}
    yield {"way": 5, "password": os.environ["CANARY_OF_A_ROW"]}
"""
OF_SCHEDULES = 8  # canaries
ACTS = ("retry", "edit", "cancel", "delete", "run-now", "run", "switch", "pause", "resume", "drain")  # forms of pages
WAYS = ("fine", "fail", "retry", "give up", "cancel", "snooze", "wrong")


class Canaries:
    """A folder with an app, its store, and everything that has been shown of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.made: list[str] = []
        self.shown: list[tuple[str, str]] = []
        self.url = f"sqlite:///{Path.cwd() / 'canaries.db'}"
        self._log = io.StringIO()

    def search(self) -> list[str]:
        """Where a canary was shown; an answer for each, without it."""
        Path(f"{MODULE}.py").write_text(TASKS)
        with self._logged(), self._environment():
            self.app: Treadle = __import__(MODULE).app
            self.app.migrate()
            self._enqueue_all()
            self._run()
            self._look()
            self._look_without_code()
            self.app.close()
        self.shown += [("the log", line) for line in self._log.getvalue().splitlines()]
        return sorted({what for what, text in self.shown if any(one in text for one in self._parts())})

    def _parts(self) -> list[str]:
        """A part of a canary is one too."""
        return ["canary-", *(canary[7:17] for canary in self.made)]

    def _new(self, ending: str = "") -> str:
        number = len(self.made)
        self.made.append(f"canary-{number:04}{os.urandom(8).hex()}-{'long-' * (number % 3 * 5)}end{ending}")
        return self.made[-1]

    # ------------------------------------------------------------------------------------------------ in

    def _enqueue_all(self) -> None:
        server = asgi(self.app, auth=everybody, rate=1e9, burst=10**9)
        bare = Treadle(self.url)
        with Raw(server) as raw:
            for number in count():
                if len(self.made) >= self.number - OF_SCHEDULES:
                    break
                way = WAYS[number % len(WAYS)]
                task, payload = self._payload(number, way)
                door = number % 4 if way != "wrong" else 4
                if door == 0:
                    self.app.enqueue(task, payload)
                elif door in (1, 4):
                    self._ask(raw, "POST", "/api/v1/jobs", {"task": task, "payload": payload})
                elif door == 2:
                    self._command("enqueue", task, json.dumps(payload), *(["--json"] if number % 8 < 4 else []))
                else:
                    bare.enqueue(task, payload, checked=False)
                if door == 4:  # refused there; and stored all the same by somebody who has no code
                    self._command("enqueue", task, json.dumps(payload), "--debug")
                    bare.enqueue(task, payload, checked=False)
        self._schedules(bare)
        bare.close()

    def _payload(self, number: int, way: str) -> tuple[str, dict[str, Any]]:
        if number % 2:
            card: Any = {"number": self._new()} if way != "wrong" else [self._new()]
            return "by_list", {"password": self._new(), "card": card, "way": way}
        numbers = [{"number": self._new("refused" if way == "wrong" else "")} for _ in range(1 + number % 2)]
        order = {"cards": numbers, "codes": {"a": self._new()}, "way": way}
        return "by_type", {"order": order, "token": self._new() if way != "wrong" else [self._new()]}

    def _schedules(self, bare: Treadle) -> None:
        words = ("--task", "by_list", "--every", "1h")
        for name, way in (("first", "fine"), ("second", "fail")):
            payload = json.dumps({"password": self._new(), "card": {"number": self._new()}, "way": way})
            self._command("schedules", "create", name, *words, "--payload", payload, "--json")
            self._command("schedules", "run", name, "--json")
        os.environ["CANARY_OF_A_ROW"] = self._new()
        rows = json.dumps({"password": self._new(), "card": {"number": self._new()}})
        self._command("schedules", "create", "rows", *words, "--payload", rows, "--for-each", "users", "--json")
        self._command("schedules", "run", "rows", "--json")
        bare.schedules.create("bare", "by_list", {"password": self._new()}, every="1h", checked=False)

    # ----------------------------------------------------------------------------------------------- out

    def _run(self) -> None:
        self.app.run_worker(until_idle=True, name="canaries", concurrency=5)

    def _look(self) -> None:
        counts = {state.value: number for state, number in self.app.count().items()}
        assert min(counts["succeeded"], counts["failed"], counts["cancelled"]) > 0, counts
        assert not counts["running"], counts
        self._look_at(self.app, "with the code")
        step = 1 if self.number > 100 else 7
        for job in self.app.find(limit=500).jobs[::step]:
            self._command("jobs", "show", job.id)
            self._command("why", job.id)
            self._command("jobs", "show", job.id, "--json")
        self._commands()

    def _look_without_code(self) -> None:
        """While a worker lives that knows the tasks, and when none does."""
        bare = Treadle(self.url)
        self._look_at(bare, "without the code")
        worker = self.app.worker(name="alive")
        with contextlib.ExitStack() as stack:
            loop = asyncio.Runner()
            stack.enter_context(loop)
            loop.run(worker.__aenter__())
            try:
                while not bare.workers():
                    loop.run(asyncio.sleep(0.01))
                bare._masking._workers = (float("-inf"), ())
                seen = bare.view(bare.find(task="by_list", limit=1).jobs[0])
                assert seen["payload"]["password"] == "***", seen
                self._look_at(bare, "with a worker")
            finally:
                loop.run(worker.__aexit__())
        bare.close()
        job = self.app.find(limit=1).jobs[0].id
        for words in (("jobs", "list"), ("jobs", "show", job), ("schedules", "list"), ("schedules", "show", "first")):
            for form in ((), ("--json",)):
                self._command(*words, *form, "--url", self.url)

    def _look_at(self, app: Treadle, how: str) -> None:
        server = asgi(app, auth=everybody, admin=True, rate=1e9, burst=10**9)
        jobs = []
        with Raw(server) as raw:
            cursor = ""
            while cursor is not None:
                page = self._ask(raw, "GET", f"/api/v1/jobs?limit=500{cursor and f'&cursor={cursor}'}", how=how)
                jobs += page["jobs"]
                cursor = page["cursor"]
            for state in ("failed", "succeeded", "cancelled"):
                self._ask(raw, "GET", f"/api/v1/jobs?limit=500&state={state}", how=how)
            for job in jobs if self.number > 100 else jobs[::5]:
                self._ask(raw, "GET", f"/api/v1/jobs/{job['id']}", how=how)
                self._ask(raw, "GET", f"/api/v1/jobs/{job['id']}/why", how=how)
                self._ask(raw, "GET", f"/jobs/{job['id']}", how=how)
            place = Place(next(one["id"] for one in jobs if one["state"] == "failed"), "first", schedule_id="first")
            self._turn_pages(raw, server, place, how)
            for endpoint in (*ENDPOINTS, *ADMIN_ENDPOINTS):
                if endpoint.method != "DELETE" and not endpoint.path.endswith(("/session", "/login")):
                    self._ask(raw, endpoint.method, endpoint.url(place), endpoint.body, how=how)
            bulk = {"action": "retry", "filter": {"state": "failed"}}
            self._ask(raw, "POST", "/api/v1/jobs/bulk", bulk, how=how)

    def _turn_pages(self, raw: Raw, server: Server, place: Place, how: str) -> None:
        """Every page of the dashboard, also with its forms open and its rows unfolded."""
        kinds = self.app.failures().groups
        queries = (
            [f"act={act}" for act in ACTS]
            + [f"open={one.fingerprint}" for one in kinds]
            + ["state=failed", "limit=500"]
        )
        for method, path in routes_of(server.api, pages=True):
            if method == "GET" and path not in ("/login", "/static/{name}"):
                address = path.format(**place._asdict())
                self._ask(raw, "GET", address, how=how, expect=200)
                for query in queries:  # a page that does not have it refuses it
                    self._ask(raw, "GET", f"{address}?{query}", how=how)

    def _commands(self) -> None:
        """Every command that only looks, and some that act, for people and as JSON."""
        failed = self.app.find(state="failed", limit=1).jobs[0].id
        for schedule in ("first", "rows", "bare"):
            for given in looks(failed, schedule):
                if schedule == "first" or schedule in given:
                    self._command(*given)
        for words in (
            "jobs list --state failed", "jobs retry --state failed --dry-run", "schedules disable bare",
            "jobs show 0000", "schedules delete second", f"jobs edit {failed} --priority 1",
        ):  # fmt: skip
            for form in ((), ("--json",)):
                self._command(*words.split(), *form)

    # --------------------------------------------------------------------------------------------- means

    def _ask(self, raw: Raw, method: str, target: str, body: Any = None, how: str = "", expect: int = 0) -> Any:
        text = b"" if body is None else json.dumps(body).encode()
        answer = raw.ask(method, target, [(b"content-type", b"application/json")] if text else [], text)
        assert answer.status < 500, (method, target, answer)
        assert expect in (0, answer.status), (method, target, answer)
        what = f"{method} {target.partition('?')[0]} {how}"
        self.shown.append((what, f"{answer.headers} {answer.body.decode()}"))
        return json.loads(answer.body) if answer.headers.get("content-type") == "application/json" else None

    def _command(self, *words: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run(list(words))
        self.shown.append((f"treadle {' '.join(words[:2])}", out.getvalue() + err.getvalue()))

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """All that is logged, as `treadle worker` writes it in both its forms."""
        root = logging.getLogger()
        level, handlers = root.level, []
        for formatter in (LineFormatter(), JsonFormatter(), logging.Formatter("%(message)s")):
            handlers.append(logging.StreamHandler(self._log))
            handlers[-1].addFilter(JobContext())
            handlers[-1].setFormatter(formatter)
            root.addHandler(handlers[-1])
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.setLevel(level)
            for handler in handlers:
                root.removeHandler(handler)

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        # A command at the database shows what nobody knows, unless it is told not to.
        os.environ |= {"TREADLE_URL": self.url, "TREADLE_APP": f"{MODULE}:app", "TREADLE_UNKNOWN_PAYLOADS": "hide"}
        sys.path.insert(0, str(Path.cwd()))
        interval, stream.INTERVAL = stream.INTERVAL, 0.01
        try:
            yield
        finally:
            stream.INTERVAL = interval
            sys.path.remove(str(Path.cwd()))
            for name in ("TREADLE_URL", "TREADLE_APP", "TREADLE_UNKNOWN_PAYLOADS", "CANARY_OF_A_ROW"):
                del os.environ[name]
            sys.modules.pop(MODULE, None)


def everybody(request: object) -> Principal:
    return Principal.of("ada", ["admin"])
