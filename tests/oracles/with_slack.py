"""slack_sdk."""

from collections.abc import Iterator
from contextlib import contextmanager

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_handlers import RateLimitErrorRetryHandler
from slack_sdk.models.blocks import SectionBlock
from slack_sdk.models.metadata import Metadata

from tests.oracles.raising import raises
from treadle.testing import fakes
from treadle.testing.fakes import SlackServer

ABOUT = Metadata("daily_summary", {"job_id": "7"})


@contextmanager
def serving() -> Iterator[tuple[SlackServer, WebClient]]:
    with fakes.slack() as server:
        yield server, WebClient(server.token, base_url=server.base_url)


def test_a_message_is_posted_and_found_by_its_metadata() -> None:
    with serving() as (server, client):
        blocks = [SectionBlock(text="*Ten* jobs")]
        posted = client.chat_postMessage(channel="#general", text="Ten jobs", blocks=blocks, metadata=ABOUT)
        assert posted["message"]["metadata"] == ABOUT.to_dict() == server.messages[0]["metadata"]
        history = client.conversations_history(channel=posted["channel"], include_all_metadata=True, limit=10)
        assert [(one["ts"], one["metadata"]) for one in history["messages"]] == [(posted["ts"], ABOUT.to_dict())]
        assert "metadata" not in client.conversations_history(channel=posted["channel"])["messages"][0]
        assert history["messages"][0]["blocks"][0]["type"] == "section"


def test_pages_follow_one_another() -> None:
    with serving() as (_, client):
        for number in range(5):
            client.chat_postMessage(channel="#general", text=str(number))
        channel = client.conversations_list()["channels"][0]["id"]
        pages = [page["messages"] for page in client.conversations_history(channel=channel, limit=2)]
        assert [one["text"] for page in pages for one in page] == ["4", "3", "2", "1", "0"]


def test_a_thread_a_change_and_an_end() -> None:
    with serving() as (server, client):
        top = client.chat_postMessage(channel="#general", text="top")
        reply = client.chat_postMessage(channel="#general", text="reply", thread_ts=top["ts"])
        thread = client.conversations_replies(channel=top["channel"], ts=top["ts"])
        assert [one["text"] for one in thread["messages"]] == ["top", "reply"]
        assert client.chat_update(channel=top["channel"], ts=top["ts"], text="changed")["text"] == "changed"
        client.chat_delete(channel=reply["channel"], ts=reply["ts"])
        assert [one["text"] for one in server.messages] == ["changed"]


def test_users_and_direct_messages() -> None:
    with serving() as (server, client):
        ada = server.add_user("Ada", email="ada@example.org", tz="Asia/Tokyo")
        assert client.users_info(user=ada)["user"]["tz"] == "Asia/Tokyo"
        assert client.users_lookupByEmail(email="ada@example.org")["user"]["id"] == ada
        assert [one["id"] for page in client.users_list(limit=10) for one in page["members"]] == [ada]
        opened = client.conversations_open(users=[ada])
        assert client.chat_postMessage(channel=ada, text="hello")["channel"] == opened["channel"]["id"]
        assert client.auth_test()["bot_id"].startswith("B")


def test_what_slack_refuses_is_an_error_of_the_client() -> None:
    with serving() as (server, client):
        for asked, error in (
            ({"channel": "C1", "text": "x"}, "channel_not_found"),
            ({"channel": "#general"}, "no_text"),
        ):
            with raises(SlackApiError) as refused:
                client.chat_postMessage(**asked)
            assert refused.value.response["error"] == error
        with raises(SlackApiError) as refused:
            WebClient("xoxb-wrong", base_url=server.base_url).auth_test()
        assert refused.value.response["error"] == "invalid_auth"


def test_a_client_that_is_told_to_wait_waits_and_posts_once() -> None:
    with serving() as (server, client):
        server.fail_next(429, headers={"Retry-After": "0"})
        with raises(SlackApiError) as limited:
            client.chat_postMessage(channel="#general", text="x")
        assert (limited.value.response.status_code, limited.value.response["error"]) == (429, "ratelimited")
        assert limited.value.response.headers["Retry-After"] == "0"
        client.retry_handlers.append(RateLimitErrorRetryHandler(max_retry_count=2))
        server.fail_next(429, headers={"Retry-After": "0"}, times=2)
        client.chat_postMessage(channel="#general", text="x")
        assert len(server.messages) == 1
