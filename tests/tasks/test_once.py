"""ctx.once, without a store: what is written and called, in which order, and what a handler is given."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from treadle import Ambiguous, GiveUp, InvalidJob, LeaseLost, Parked, RetryLater
from treadle.model.memo import MEMO_CAP, MOST_MEMOS, MemoState
from treadle.tasks.once import memos_of
from treadle.testing import FakeContext

BEGUN, UNDONE, PARKED, DONE = MemoState.BEGUN, MemoState.UNDONE, MemoState.PARKED, MemoState.DONE


class Service:
    """Something out there: it counts what reaches it, and may answer with an error."""

    def __init__(self, *answers):
        self.calls = []
        self.answers = list(answers)

    def send(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        answer = self.answers.pop(0) if self.answers else {"id": len(self.calls)}
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def asend(self, *args, **kwargs):
        await asyncio.sleep(0)
        return self.send(*args, **kwargs)


class Written(FakeContext):
    """A context that keeps the order of what is written and called."""

    def __init__(self, **told):
        super().__init__(**told)
        self.order = []
        keep = self._kept.remember

        def remember(memo):
            keep(memo)
            self.order.append(memo.state)

        self._kept.remember = remember


def both(ctx, service, name="mail", **told):
    """The two ways to say it, sync and async."""
    return {
        "once": lambda: ctx.once(name, service.send, **told),
        "aonce": lambda: asyncio.run(ctx.aonce(name, service.asend, **told)),
        "aonce of a plain function": lambda: asyncio.run(ctx.aonce(name, service.send, **told)),
    }


@pytest.fixture(params=["once", "aonce", "aonce of a plain function"])
def call(request):
    return lambda ctx, service, name="mail", **told: both(ctx, service, name, **told)[request.param]()


def test_an_effect_is_begun_done_and_gives_its_value(call):
    ctx, service = Written(), Service({"id": 7})

    assert call(ctx, service) == {"id": 7}

    assert ctx.order == [BEGUN, DONE]
    assert ctx.memos["mail"].value_json == '{"id":7}'


def test_arguments_are_passed_on():
    ctx, service = FakeContext(), Service()
    ctx.once("mail", service.send, "ada@example.org", name="ada", effect="none")
    assert service.calls == [(("ada@example.org",), {"name": "ada", "effect": "none"})]


def test_a_second_call_of_the_same_attempt_is_given_the_value(call):
    ctx, service = FakeContext(), Service({"id": 7})
    assert [call(ctx, service), call(ctx, service)] == [{"id": 7}] * 2
    assert len(service.calls) == 1


def test_a_later_attempt_is_given_what_the_first_one_was(call):
    """A tuple is a list the first time too: what a handler is given never depends on the attempt."""
    ctx, service = FakeContext(), Service(("a", 1))
    first = call(ctx, service)
    later = FakeContext(attempt=2, done={"mail": first})
    assert first == call(later, service) == ["a", 1]
    assert len(service.calls) == 1


def test_an_effect_of_nothing_is_done_too(call):
    service = Service(None)
    ctx = FakeContext()
    assert call(ctx, service) is None
    assert ctx.memos["mail"].state is DONE
    assert call(FakeContext(attempt=2, done={"mail": None}), service) is None
    assert len(service.calls) == 1


@pytest.mark.parametrize("error", [ValueError("422"), GiveUp("refused"), RetryLater(after=5), OSError("no route")])
def test_an_error_means_that_it_did_not_happen(call, error):
    ctx, service = Written(), Service(error)
    with pytest.raises(type(error)):
        call(ctx, service)
    assert ctx.order == [BEGUN, UNDONE]
    assert call(ctx, service) == {"id": 2}


def chained(error, cause):
    error.__cause__ = cause
    return error


AMBIGUOUS = [
    TimeoutError("30 s"),
    ConnectionResetError("by peer"),
    BrokenPipeError("closed"),
    Ambiguous("the answer was lost"),
    chained(RuntimeError("the client's own"), ConnectionResetError("by peer")),
]


@pytest.mark.parametrize("error", AMBIGUOUS, ids=repr)
def test_after_a_timeout_or_a_broken_connection_nobody_knows(call, error):
    ctx, service = Written(), Service(error)
    with pytest.raises(Parked, match="'mail': nobody knows whether it has happened: it ended with"):
        call(ctx, service)
    assert ctx.order == [BEGUN, PARKED]


def test_what_is_said_on_purpose_means_that_it_did_not_happen(call):
    """A client that knows that a timeout was one of connecting says RetryLater."""
    ctx, service = Written(), Service(chained(RetryLater("not connected", after=5), TimeoutError("connect")))
    with pytest.raises(RetryLater):
        call(ctx, service)
    assert ctx.order == [BEGUN, UNDONE]


def test_a_timeout_that_was_dealt_with_is_none():
    error = ValueError("422")
    error.__context__, error.__suppress_context__ = TimeoutError("the first try"), True
    ctx = Written()
    with pytest.raises(ValueError, match="422"):
        ctx.once("mail", Service(error).send)
    assert ctx.order == [BEGUN, UNDONE]


def test_park_ends_the_attempt_and_a_retry_does_it(call):
    service = Service()
    ctx = Written(attempt=2, begun=["mail"])
    with pytest.raises(
        Parked, match=r"attempt 1 began it at 2026-01-01 12:00:00 UTC.*A retry of the job does it again"
    ):
        call(ctx, service)
    assert (ctx.order, service.calls) == ([PARKED], [])

    assert call(ctx, service) == {"id": 1}
    assert ctx.order == [PARKED, BEGUN, DONE]


def test_send_does_it_again(call):
    ctx, service = Written(attempt=2, begun=["mail"]), Service(TimeoutError("again"))
    with pytest.raises(TimeoutError):
        call(ctx, service, on_ambiguous="send")
    assert ctx.order == [BEGUN]
    assert call(ctx, service, on_ambiguous="send") == {"id": 2}
    assert ctx.order == [BEGUN, BEGUN, DONE]


@pytest.mark.parametrize("look", [None, lambda: None], ids=["no look", "a look that finds nothing"])
def test_a_clear_failure_leaves_the_doubt_about_an_earlier_try(call, look):
    ctx, service = Written(attempt=2, begun=["mail"]), Service(RetryLater(after=5))
    with pytest.raises(RetryLater):
        call(ctx, service, on_ambiguous="send", look=look)
    assert (ctx.order, ctx.memos["mail"].state) == ([BEGUN], BEGUN)
    with pytest.raises(Parked, match="nobody knows whether it has happened"):
        call(ctx, service)


def test_a_clear_failure_after_a_person_has_decided_leaves_no_doubt(call):
    ctx, service = Written(attempt=2, begun=["mail"]), Service(RetryLater(after=5))
    with pytest.raises(Parked):
        call(ctx, service)
    with pytest.raises(RetryLater):
        call(ctx, service)
    assert ctx.order == [PARKED, BEGUN, UNDONE]
    assert call(ctx, service) == {"id": 2}


def test_a_doubt_is_dated_from_the_first_try_that_nobody_knows_the_end_of():
    hours = iter(range(9))
    ctx = FakeContext()
    ctx._kept.now = lambda: datetime(2026, 1, 1, next(hours), tzinfo=UTC)
    service = Service(RetryLater(after=5), TimeoutError(), TimeoutError(), RetryLater(after=5))
    began = []
    for error in (RetryLater, TimeoutError, TimeoutError, RetryLater):
        with pytest.raises(error):
            ctx.once("mail", service.send, on_ambiguous="send")
        began.append(memos_of(ctx)["mail"].began_at.hour)
    assert began == [0, 2, 2, 2]


@pytest.mark.parametrize("error", [None, TimeoutError("lost")])
def test_skip_takes_it_as_done(call, error):
    service = Service(*[error] if error else [])
    ctx = Written() if error else Written(attempt=2, begun=["mail"])
    assert call(ctx, service, on_ambiguous="skip") is None
    assert ctx.memos["mail"].state is DONE
    assert len(service.calls) == (1 if error else 0)
    assert call(ctx, service) is None


def test_look_finds_what_has_happened(call):
    ctx, service = Written(attempt=2, begun=["mail"]), Service()
    assert call(ctx, service, look=lambda: {"id": 9}) == {"id": 9}
    assert (ctx.order, service.calls) == ([DONE], [])


def test_look_that_finds_nothing_lets_it_happen(call):
    ctx, service = Written(attempt=2, begun=["mail"]), Service()
    assert call(ctx, service, look=lambda: None) == {"id": 1}
    assert ctx.order == [BEGUN, DONE]


def test_nobody_looks_for_what_was_never_begun(call):
    def look():
        raise AssertionError("asked")

    assert call(FakeContext(), Service(), look=look) == {"id": 1}


def test_with_a_look_a_timeout_is_an_ordinary_failure(call):
    ctx, service = Written(), Service(TimeoutError("lost"))
    with pytest.raises(TimeoutError):
        call(ctx, service, look=lambda: {"id": 9})
    assert ctx.order == [BEGUN]
    assert call(ctx, service, look=lambda: {"id": 9}) == {"id": 9}
    assert len(service.calls) == 1


def test_a_look_that_fails_changes_nothing(call):
    def look():
        raise OSError("the list cannot be read")

    ctx, service = Written(attempt=2, begun=["mail"]), Service()
    with pytest.raises(OSError, match="cannot be read"):
        call(ctx, service, look=look)
    assert (ctx.order, service.calls) == ([], [])


def test_look_may_be_async():
    async def look():
        return {"id": 9}

    ctx = FakeContext(attempt=2, begun=["mail"])
    assert asyncio.run(ctx.aonce("mail", Service().asend, look=look)) == {"id": 9}


@pytest.mark.parametrize(
    ("value", "problem"),
    [(threading.Lock(), "cannot be JSON"), ("x" * MEMO_CAP, "the limit is 262,144")],
    ids=["lock", "large"],
)
def test_a_value_that_cannot_be_kept_is_said_and_the_effect_is_not_repeated(call, value, problem):
    ctx, service = Written(), Service(value)
    with pytest.raises(GiveUp, match=f"once 'mail': .*{problem}.*It has happened and is not repeated"):
        call(ctx, service)
    assert ctx.order == [BEGUN, DONE]
    assert call(ctx, service) is None
    assert len(service.calls) == 1


def test_a_handler_that_is_stopped_leaves_it_begun():
    ctx, service = Written(), Service(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ctx.aonce("mail", service.asend))
    assert ctx.order == [BEGUN]


def test_a_cancelled_handler_stops_when_the_value_is_written():
    ctx, entered, go_on = Written(), threading.Event(), threading.Event()
    keep = ctx._kept.remember

    def slow(memo):
        if memo.state is DONE:
            entered.set()
            go_on.wait(10)
        keep(memo)

    async def handler():
        task = asyncio.ensure_future(ctx.aonce("mail", Service().asend))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    ctx._kept.remember = slow
    asyncio.run(handler())
    assert ctx.memos["mail"].state is DONE


def test_nothing_is_called_once_the_lease_is_lost(call):
    ctx, service = FakeContext(), Service()
    ctx.lose_lease()
    with pytest.raises(LeaseLost):
        call(ctx, service)
    assert service.calls == []


def test_a_lease_lost_while_it_happens_leaves_it_begun(call):
    ctx, service = Written(), Service()
    send = service.send
    service.send = lambda: (send(), ctx.lose_lease())

    with pytest.raises(LeaseLost):
        call(ctx, service)

    assert ctx.order == [BEGUN]
    assert len(service.calls) == 1


def test_two_threads_do_not_do_the_same():
    ctx, entered, go_on, refused = FakeContext(), threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        go_on.wait(10)

    thread = threading.Thread(target=lambda: ctx.once("mail", slow))
    thread.start()
    entered.wait(10)
    with pytest.raises(InvalidJob, match="'mail' is under way already: give each effect of a job its own name"):
        ctx.once("mail", refused.append, 1)
    go_on.set()
    thread.join()
    assert (refused, ctx.memos["mail"].state) == ([], DONE)


def test_effects_of_different_names_run_side_by_side():
    ctx, service = FakeContext(), Service()

    async def handler():
        return await asyncio.gather(*(ctx.aonce(f"mail {number}", service.asend) for number in range(20)))

    assert len(asyncio.run(handler())) == len(service.calls) == len(ctx.memos) == 20


WRONG = [
    ({"name": ""}, "once: '' is not a valid name"),
    ({"name": "n" * 201}, "once: is 201 bytes long; the limit is 200"),
    ({"name": 7}, "once: 7 is not a valid name"),
    ({"on_ambiguous": "resend"}, "on_ambiguous: 'resend' must be 'park', 'send' or 'skip'"),
    ({"look": {"id": 9}}, "look: .* cannot be called"),
]


@pytest.mark.parametrize(("told", "problem"), WRONG)
def test_what_is_wrong_is_refused_before_anything_happens(call, told, problem):
    ctx, service = Written(), Service()
    with pytest.raises(InvalidJob, match=problem):
        call(ctx, service, **told)
    assert (ctx.order, service.calls) == ([], [])


def test_an_effect_that_was_called_already_is_refused():
    ctx, service = Written(), Service()
    with pytest.raises(InvalidJob, match=r"once: .* cannot be called: pass the function and its arguments"):
        ctx.once("mail", service.send())
    assert ctx.order == []


def test_an_async_effect_of_a_plain_once_is_refused_and_not_run():
    ctx, service = Written(), Service()
    with pytest.raises(InvalidJob, match="'mail' is async and was not run"):
        ctx.once("mail", service.asend)
    assert (ctx.order, service.calls) == ([BEGUN, UNDONE], [])


def test_a_job_remembers_so_many_and_no_more():
    ctx, service = FakeContext(attempt=2, done=dict.fromkeys(map(str, range(MOST_MEMOS)))), Service()
    assert ctx.once("9999", service.send) is None
    with pytest.raises(InvalidJob, match="'mail' is one too many: a job remembers 10,000"):
        ctx.once("mail", service.send)
    assert service.calls == []
