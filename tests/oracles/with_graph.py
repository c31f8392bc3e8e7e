"""msgraph-sdk, with azure-identity, which takes a token over TLS only: here the stand-in has a certificate."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import wraps

import httpx
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientSecretCredential
from kiota_abstractions.base_request_configuration import RequestConfiguration
from kiota_authentication_azure.azure_identity_authentication_provider import AzureIdentityAuthenticationProvider
from kiota_http.kiota_client_factory import KiotaClientFactory
from msgraph import GraphRequestAdapter, GraphServiceClient
from msgraph.generated.models.body_type import BodyType
from msgraph.generated.models.email_address import EmailAddress
from msgraph.generated.models.item_body import ItemBody
from msgraph.generated.models.message import Message
from msgraph.generated.models.o_data_errors.o_data_error import ODataError
from msgraph.generated.models.recipient import Recipient
from msgraph.generated.models.single_value_legacy_extended_property import SingleValueLegacyExtendedProperty
from msgraph.generated.users.item.messages.item.message_item_request_builder import MessageItemRequestBuilder
from msgraph.generated.users.item.messages.messages_request_builder import MessagesRequestBuilder
from msgraph.generated.users.item.send_mail.send_mail_post_request_body import SendMailPostRequestBody
from msgraph.generated.users.item.user_item_request_builder import UserItemRequestBuilder

from tests.oracles.raising import raises
from tests.testing.fakes.certificates import certificate, trusted
from treadle.testing import fakes
from treadle.testing.fakes import GraphServer

OWN = "String {66f5a359-4659-4830-9070-00047ec6ac6e} Name treadle_job"
Query = MessagesRequestBuilder.MessagesRequestBuilderGetQueryParameters
User = UserItemRequestBuilder
Test = Callable[[GraphServer, User], Coroutine[None, None, None]]


def client(server: GraphServer, trusting: ssl.SSLContext, secret: str) -> User:
    credential = ClientSecretCredential(
        "fake-tenant",
        "fake-client",
        secret,
        authority=server.url,
        disable_instance_discovery=True,
        transport=RequestsTransport(connection_verify=trusted()),
        retry_total=0,
    )
    provider = AzureIdentityAuthenticationProvider(credential, allowed_hosts=["127.0.0.1"])
    own = httpx.AsyncClient(verify=trusting, timeout=10)
    adapter = GraphRequestAdapter(provider, client=KiotaClientFactory.create_with_default_middleware(client=own))
    adapter.base_url = f"{server.url}/v1.0"
    return GraphServiceClient(request_adapter=adapter).users.by_user_id("shop@example.org")


def serving(test: Test) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        shown, trusting = certificate()
        with fakes.graph(tls=shown) as server:
            asyncio.run(test(server, client(server, trusting, "fake-secret")))

    return run


def mail(job: str = "job-7") -> Message:
    return Message(
        subject="Thanks",
        body=ItemBody(content_type=BodyType.Html, content="<p>We have it.</p>"),
        to_recipients=[Recipient(email_address=EmailAddress(address="ada@example.org", name="Ada"))],
        single_value_extended_properties=[SingleValueLegacyExtendedProperty(id=OWN, value=job)],
    )


async def found(user: User, filter: str, expand: list[str] | None = None) -> list[Message]:
    asked = RequestConfiguration(query_parameters=Query(filter=filter, expand=expand))
    page = await user.messages.get(request_configuration=asked)
    return page.value


@serving
async def test_a_draft_is_found_and_sent_and_moves(server: GraphServer, user: User) -> None:
    draft = await user.messages.post(mail())
    await user.messages.post(mail("job-8"))
    assert (draft.is_draft, draft.subject, draft.body.content_type) == (True, "Thanks", BodyType.Html)
    assert draft.to_recipients[0].email_address.address == "ada@example.org"
    assert draft.created_date_time == server.clock.now()
    own = f"singleValueExtendedProperties/Any(ep: ep/id eq '{OWN}' and ep/value eq 'job-7')"
    [same] = await found(user, own, [f"singleValueExtendedProperties($filter=id eq '{OWN}')"])
    assert (same.id, same.single_value_extended_properties[0].value) == (draft.id, "job-7")
    await user.messages.by_message_id(draft.id).send.post()
    assert len(server.sent) == 1
    with raises(ODataError) as gone:
        await user.messages.by_message_id(draft.id).get()
    assert (gone.value.response_status_code, gone.value.error.code) == (404, "ErrorItemNotFound")
    assert gone.value.error.inner_error.request_id
    assert gone.value.error.inner_error.date
    [copy] = await found(user, f"internetMessageId eq '{draft.internet_message_id}'")
    assert (copy.is_draft, copy.id != draft.id) == (False, True)
    in_folder = await user.mail_folders.by_mail_folder_id("SentItems").messages.get()
    assert [one.id for one in in_folder.value] == [copy.id]


@serving
async def test_an_immutable_id_stays(server: GraphServer, user: User) -> None:
    asked = RequestConfiguration()
    asked.headers.add("Prefer", 'IdType="ImmutableId"')
    draft = await user.messages.post(mail(), request_configuration=asked)
    await user.messages.by_message_id(draft.id).send.post(request_configuration=asked)
    assert (await user.messages.by_message_id(draft.id).get(request_configuration=asked)).is_draft is False


@serving
async def test_a_mail_is_sent_at_once(server: GraphServer, user: User) -> None:
    await user.send_mail.post(SendMailPostRequestBody(message=mail(), save_to_sent_items=False))
    assert [one["subject"] for one in server.sent] == ["Thanks"]
    nobody = mail()
    nobody.to_recipients = []
    with raises(ODataError) as refused:
        await user.send_mail.post(SendMailPostRequestBody(message=nobody))
    assert refused.value.error.code == "ErrorInvalidRecipients"


@serving
async def test_a_draft_is_changed_and_deleted_and_pages_follow(server: GraphServer, user: User) -> None:
    drafts = [await user.messages.post(mail()) for _ in range(3)]
    one = user.messages.by_message_id(drafts[0].id)
    assert (await one.patch(Message(subject="Soon"))).subject == "Soon"
    await one.delete()
    select = MessageItemRequestBuilder.MessageItemRequestBuilderGetQueryParameters(select=["subject"])
    shown = await user.messages.by_message_id(drafts[1].id).get(RequestConfiguration(query_parameters=select))
    assert (shown.subject, shown.body) == ("Thanks", None)
    page = await user.messages.get(RequestConfiguration(query_parameters=Query(top=1, filter="isDraft eq true")))
    seen = [message.id for message in page.value]
    while page.odata_next_link:
        page = await user.messages.with_url(page.odata_next_link).get()
        seen += [message.id for message in page.value]
    assert seen == [drafts[2].id, drafts[1].id]


@serving
async def test_the_client_waits_when_it_is_told_to_and_sends_once(server: GraphServer, user: User) -> None:
    server.fail_next(429, headers={"Retry-After": "1"})
    await user.messages.post(mail())
    assert (len(server.drafts), [request.headers.get("Retry-Attempt") for request in server.requests][-1]) == (1, "1")


@serving
async def test_a_token_is_taken_once_and_again_when_it_ended(server: GraphServer, user: User) -> None:
    await user.messages.get()
    await user.messages.get()
    assert len([request for request in server.requests if request.path.endswith("/token")]) == 1
    server.expire_tokens()
    with raises(ODataError) as refused:
        await user.messages.get()
    assert (refused.value.response_status_code, refused.value.error.code) == (401, "InvalidAuthenticationToken")


@serving
async def test_a_wrong_secret_is_what_the_client_says(server: GraphServer, user: User) -> None:
    with raises(ClientAuthenticationError) as refused:
        await client(server, certificate()[1], "wrong").messages.get()
    assert "AADSTS7000215" in str(refused.value)
