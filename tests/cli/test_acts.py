"""`treadle jobs retry`, `cancel`, `delete`, `edit` and `run-now`: an operator after a bad night."""

import getpass
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from tests.support import forks
from tests.support.making import claim
from treadle import Retry, State, Treadle
from treadle.cli import bulk
from treadle.cli.jobs import took
from treadle.testing import FakeClock, run_until_idle

STORE = "sqlite:///treadle.db"


@pytest.fixture
def night(ready, work):
    """Three jobs that failed on queue mail, one on default; two that wait."""
    for text in ("one", "two", "three"):
        ready("enqueue", "boom", f'{{"text": "{text}"}}')
    ready("enqueue", "give_up", '{"text": "no"}', "--tenant", "acme")
    work()
    ready("enqueue", "greet", '{"name": "Ada"}', "--run-after", "1h")
    ready("enqueue", "greet", '{"name": "Bob"}', "--run-after", "2h", "--queue", "mail")
    return ready


def counts() -> dict[State, int]:
    app = Treadle(STORE)
    try:
        return {state: number for state, number in app.count().items() if number}
    finally:
        app.close()


def ids(night, *options: str) -> list[str]:
    return [job["id"] for job in night("jobs", "list", "--json", *options).json["jobs"]]


# ----------------------------------------------------------------------------------------------- by filter


def test_a_dry_run_counts_and_names_the_first_and_does_nothing(night):
    failed = ids(night, "--state", "failed", "--task", "boom")
    shown = night("jobs", "retry", "--state", "failed", "--task", "boom", "--dry-run")
    assert (shown.code, shown.out.splitlines()) == (0, ["would retry 3 jobs:", *(f"  {id}" for id in failed)])
    machine = night("jobs", "retry", "--error", "RuntimeError", "--dry-run", "--json").json
    assert (machine["dry_run"], machine["found"], machine["done"], machine["first"]) == (True, 3, 0, failed)
    assert counts() == {State.PENDING: 2, State.FAILED: 4}


def test_nothing_is_done_unless_as_many_fit_as_are_expected(night):
    for act in ("retry", "cancel", "delete"):
        refused = night("jobs", act, "--queue", "mail", "--expect", "9", "--yes")
        assert refused.code == 1
        assert "fit now, not 9; nothing was done" in refused.err
    assert counts() == {State.PENDING: 2, State.FAILED: 4}
    one = night("jobs", "retry", ids(night)[0], "--expect", "1")
    assert "--expect is of a filter" in one.err
    assert night("jobs", "retry", "--task", "boom", "--expect", "3", "--yes").out == "retried 3 jobs\n"
    assert counts() == {State.PENDING: 5, State.FAILED: 1}


def test_failed_jobs_are_retried_by_filter(night):
    done = night("jobs", "retry", "--task", "boom", "--yes", "--reason", "the server is back")
    assert (done.code, done.out, done.err) == (0, "retried 3 jobs\n", "")
    assert counts() == {State.PENDING: 5, State.FAILED: 1}
    events = night("audit", "--kind", "retried", "--json").json["events"]
    assert {(event["actor"], event["note"]) for event in events} == {(getpass.getuser(), "the server is back")}
    assert len(events) == 3


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (("--error", "GiveUp"), {State.PENDING: 3, State.FAILED: 3}),
        (("--queue", "mail"), {State.PENDING: 5, State.FAILED: 1}),
        (("--tenant", "acme"), {State.PENDING: 3, State.FAILED: 3}),
        (("--since", "1h"), {State.PENDING: 6}),
        (("--before", "1h"), {State.PENDING: 2, State.FAILED: 4}),
        (("--since", "2020-01-01T00:00Z", "--before", "2020-01-02T00:00Z"), {State.PENDING: 2, State.FAILED: 4}),
        (("--all",), {State.PENDING: 6}),
        (("--state", "dead"), {State.PENDING: 5, State.FAILED: 1}),
        (("--state", "cancelled"), {State.PENDING: 2, State.FAILED: 4}),
    ],
)
def test_each_filter_means_what_it_says(night, filters, left):
    assert night("jobs", "retry", *filters, "--yes").code == 0
    assert counts() == left


def test_waiting_jobs_are_cancelled_and_ended_ones_deleted_by_filter(night):
    assert night("jobs", "cancel", "--task", "greet", "--yes").out == "cancelled 2 jobs\n"
    assert counts() == {State.FAILED: 4, State.CANCELLED: 2}
    deleted = night("jobs", "delete", "--state", "cancelled", "--yes", "--json").json
    assert (deleted["found"], deleted["done"], deleted["not_possible"]) == (2, 2, 0)
    assert counts() == {State.FAILED: 4}


def test_a_count_that_was_cut_short_is_said_to_be_so(night, monkeypatch):
    monkeypatch.setattr("treadle.app.queries.MOST_COUNTED", 3)
    said = night("jobs", "retry", "--state", "failed", "--dry-run")
    assert said.out.startswith("would retry at least 4 jobs:\n")
    assert night("jobs", "retry", "--state", "failed", "--dry-run", "--json").json["exact"] is False
    assert "would retry at least 4 jobs; --yes" in night("jobs", "retry", "--state", "failed").err
    assert night("jobs", "retry", "--state", "failed", "--yes").out == "retried 4 jobs\n"


def test_nothing_that_fits_is_said_without_a_question(night):
    done = night("jobs", "retry", "--task", "nobody")
    assert (done.code, done.out) == (0, "retried 0 jobs\n")


def test_jobs_that_still_run_are_said_to_be_asked_to_stop(ready):
    for name in ("Ada", "Bob"):
        ready("enqueue", "greet", f'{{"name": "{name}"}}')
    app = Treadle(STORE)
    assert len(claim(app.engine, 2)) == 2
    app.close()
    assert ready("jobs", "cancel", "--task", "greet", "--yes").out == "asked 2 jobs to stop that still run\n"
    ready("enqueue", "greet", '{"name": "Eve"}', "--run-after", "1h")
    answer = ready("jobs", "cancel", "--state", "pending", "--yes", "--json").json
    assert (answer["done"], answer["asked"]) == (1, 0)


def test_a_cancelled_job_took_as_long_as_its_last_attempt_and_not_as_long_as_it_waited(ready):
    app = Treadle(STORE, clock=(clock := FakeClock()))
    boom = app.register("boom", lambda: 1 / 0, retry=Retry(max_attempts=3, base=600, jitter=0))
    job = boom.enqueue()
    run_until_idle(app)
    clock.advance(minutes=5)
    cancelled = app.cancel(job.id)
    assert took(cancelled, clock.now()) == "0ms"
    app.close()


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete"])
def test_without_a_terminal_it_needs_a_yes(night, verb):
    before = counts()
    refused = night("jobs", verb, "--all")
    assert refused.code == 2
    assert re.search(rf"this would {verb} \d jobs; --yes does it, --dry-run shows which", refused.err)
    assert counts() == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("jobs", "retry"), "which jobs? Give ids, or a filter"),
        (("jobs", "retry", "0199e0c5", "--task", "boom"), "ids or a filter: leave out --task"),
        (("jobs", "cancel", "0199e0c5", "--all"), "ids or a filter: leave out --all"),
        (("jobs", "retry", "--since", "yesterday"), "--since: 'yesterday' is no time"),
        (("jobs", "retry", "--state", "succeeded", "--yes"), "cannot be retried, only: failed, cancelled"),
        (("jobs", "delete", "--state", "running", "--yes"), "cannot be deleted, only: pending, succeeded"),
        (("jobs", "cancel", "--state", "nonsense"), "'nonsense' must be one of"),
        (("jobs", "edit", "0199e0c5"), "what? Give --queue, --lane, --priority, --run-after or --payload"),
        (("jobs", "edit", "0199e0c5", "--run-after", "soon"), "--run-after: 'soon' is no time"),
        (("status", "--watch", "--json"), "--watch and --json cannot be given together"),
        (("status", "--watch", "--interval", "1ms"), "--interval: '1ms' is too short"),
        (("audit", "--since", "soon"), "--since: 'soon' is no time"),
        (("audit", "--cursor", "soon"), "cursor: 'soon' is not a valid cursor"),
    ],
)
def test_what_cannot_be_meant_is_refused(night, words, complaint):
    refused = night(*words)
    assert refused.code == 2
    assert complaint in refused.err


# -------------------------------------------------------------------------------------------------- by ids


def test_several_ids_on_one_line_are_done_and_what_is_not_possible_is_said(night):
    failed, waiting = ids(night, "--state", "failed"), ids(night, "--state", "pending")
    done = night("jobs", "retry", failed[0], failed[1], waiting[0], "00000000-0000-7000-8000-000000000000")
    assert (done.code, done.out) == (1, "retried 2 jobs\n")
    assert "not possible for 2 jobs:" in done.err
    assert f"job {waiting[0]} is pending; only a failed or cancelled job can be retried" in done.err
    assert "there is no job 00000000-0000-7000-8000-000000000000" in done.err
    assert counts() == {State.PENDING: 4, State.FAILED: 2}


def test_a_job_is_found_by_the_first_digits_of_its_id(night):
    [id] = ids(night, "--task", "give_up")
    assert night("jobs", "show", id[:18], "--json").json["job"]["id"] == id
    assert night("jobs", "show", id.replace("-", "")[:20].upper(), "--json").json["job"]["id"] == id
    assert night("why", id[:18]).code == 0
    assert night("jobs", "retry", id[:18]).out.startswith(id)


def test_digits_that_fit_several_jobs_name_them(night):
    all_of_them = ids(night)
    ambiguous = night("jobs", "show", all_of_them[0][:4])
    assert ambiguous.code == 2
    assert "fits several jobs" in ambiguous.err
    assert sum(id in ambiguous.err for id in all_of_them) == 5
    assert "and others; give more digits" in ambiguous.err
    none = night("jobs", "show", "ffff")
    assert (none.code, "there is no job ffff" in none.err) == (1, True)


@pytest.mark.parametrize("id", ["abc", "seven", "0199e0c5-zzzz", "0" * 33, ""])
def test_what_is_no_id_is_refused_before_a_store_is_opened(call, id):
    refused = call("jobs", "show", id, "--url", "sqlite:///nowhere.db")
    assert refused.code == 2
    assert "is neither a job id" in refused.err


# ------------------------------------------------------------------------------------------- delete, edit


def test_a_deleted_job_is_gone_and_the_trail_says_by_whom_and_why(night):
    [id] = ids(night, "--task", "give_up")
    assert night("jobs", "delete", id, "--yes", "--reason", "a password was in it").out == "deleted 1 job\n"
    assert id not in ids(night)
    gone = night("jobs", "show", id)
    assert gone.code == 1
    assert f"was deleted by {getpass.getuser()} at" in gone.err
    assert "(task give_up: a password was in it)" in gone.err
    [event, *_] = night("audit", "--job", id, "--json").json["events"]
    assert (event["kind"], event["note"]) == ("deleted", "task give_up: a password was in it")
    assert id in night("audit", "--kind", "deleted").out


def test_a_waiting_job_is_edited_and_run(night):
    [id] = ids(night, "--task", "greet", "--queue", "mail")
    edited = night("jobs", "edit", id[:18], "--priority", "5", "--queue", "default", "--lane", "a", "--run-after", "5m")
    assert edited.code == 0
    assert "greet is on queue default, lane a, priority 5, due 20" in edited.out
    job = night("jobs", "edit", id, "--lane", "", "--json").json["job"]
    assert (job["queue"], job["lane"], job["priority"]) == ("default", "", 5)
    assert night("jobs", "run-now", id).out == f"{id}  greet is due now\n"
    again = night("jobs", "run-now", id)
    assert (again.code, "is due already" in again.err) == (1, True)
    events = night("jobs", "show", id, "--json").json["events"]
    assert [event["kind"] for event in events] == ["changed"] * 3
    assert events[1]["note"] == "lane a to none"
    failed = night("jobs", "edit", ids(night, "--state", "failed")[0], "--priority", "1")
    assert (failed.code, "is failed; only a pending job can be edited" in failed.err) == (1, True)
    bad = night("jobs", "edit", id, "--queue", "*")
    assert (bad.code, "queue: '*' is not a valid name" in bad.err) == (2, True)


# -------------------------------------------------------------------------------------- question and Ctrl-C


def in_a_terminal(project, answer: bytes, *words: str) -> tuple[int, str]:
    """Run a command in a terminal of its own, and answer its question."""
    ours, theirs = pty.openpty()
    place = {**os.environ, "TREADLE_APP": "tasks:app", "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "treadle", *words]
    with forks.Popen(command, cwd=project, env=place, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"?" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, answer)
        try:
            while chunk := os.read(ours, 1000):
                shown += chunk
        except OSError:  # Linux says so when the other end is closed
            pass
        code = process.wait(30)
    os.close(ours)
    return code, shown.decode()


def test_in_a_terminal_it_asks_with_the_number_first(night, project):
    code, shown = in_a_terminal(project, b"n\n", "jobs", "retry", "--task", "boom")
    assert "retry 3 jobs? [y/N]" in shown
    assert (code, "nothing was done" in shown) == (1, True)
    assert counts()[State.FAILED] == 4
    code, shown = in_a_terminal(project, b"y\n", "jobs", "retry", "--task", "boom")
    assert (code, "retried 3 jobs" in shown) == (0, True)
    assert counts()[State.FAILED] == 1


def test_ctrl_c_finishes_the_batch_says_how_far_it_came_and_the_rest_can_follow(ready, monkeypatch):
    app = Treadle(STORE)
    greet = app.register("greet", lambda name: name)
    greet.enqueue_many([("Ada",)] * 1200)
    app.close()
    before = bulk.Steps.__call__

    def interrupted(self, report) -> None:
        if report.done == 550:
            os.kill(os.getpid(), signal.SIGINT)  # while the third batch has not begun
        before(self, report)

    monkeypatch.setattr(bulk.Steps, "__call__", interrupted)
    stopped = ready("jobs", "cancel", "--task", "greet", "--yes")
    assert stopped.code == 130
    assert "interrupted: 550 of 1,200 jobs were cancelled; the same command goes on with the rest" in stopped.err
    assert counts() == {State.PENDING: 650, State.CANCELLED: 550}

    monkeypatch.setattr(bulk.Steps, "__call__", before)
    assert ready("jobs", "cancel", "--task", "greet", "--yes").out == "cancelled 650 jobs\n"


def test_an_interrupt_in_json_is_a_document_too(ready, monkeypatch):
    ready("enqueue", "greet", '{"name": "Ada"}')

    def interrupted(self, report) -> None:
        self.report = report
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk.Steps, "__call__", interrupted)
    stopped = ready("jobs", "cancel", "--all", "--yes", "--json")
    assert (stopped.code, stopped.json["interrupted"], stopped.json["done"]) == (130, True, 1)


def test_a_progress_bar_is_drawn_on_stderr_of_a_terminal_only(night, monkeypatch):
    assert night("jobs", "retry", "--task", "boom", "--yes").err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "1/1" in night("jobs", "retry", "--task", "give_up", "--yes").err


def test_twenty_thousand_failed_jobs_are_retried_in_less_than_a_minute(ready):
    app = Treadle(STORE)
    app.register("greet", lambda name: name).enqueue_many([("Ada",)] * 20_000)
    app.close()
    ready("jobs", "cancel", "--all", "--yes")
    command = [sys.executable, "-m", "treadle", "jobs", "retry", "--state", "cancelled", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "retried 20,000 jobs\n"
