"""Bugs to plant in the stand-ins: each must be noticed by the vendor's own client."""

from typing import NamedTuple


class Bug(NamedTuple):
    """In this file of the stand-ins, `old` becomes `new`, and the tests of `vendor` must fail."""

    vendor: str
    file: str
    what: str
    old: str
    new: str

    def planted_in(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


BUGS = (
    Bug("resend", "resend_server.py", "an error has no name", '"name": code or', '"error": code or'),
    Bug(
        "resend",
        "resend_server.py",
        "an id is called otherwise",
        '{"id": self._deliver(request, _v',
        '{"email_id": self._deliver(request, _v',
    ),
    Bug("resend", "resend_server.py", "keys are kept too long", "timedelta(hours=24)", "timedelta(hours=25)"),
    Bug(
        "resend",
        "resend_server.py",
        "another mail is taken for the same",
        "if (kept.path, kept.asked) !=",
        "if False and (kept.path, kept.asked) !=",
    ),
    Bug(
        "graph",
        "graph_server.py",
        "a message has no internetMessageId",
        '"internetMessageId": f',
        '"internetMessageID": f',
    ),
    Bug(
        "graph",
        "graph_server.py",
        "a sent message keeps its id",
        'parentFolderId="sentitems", id=_id("AAMk")',
        'parentFolderId="sentitems"',
    ),
    Bug(
        "graph", "graph_server.py", "an error is not below error", '{"error": {"code": code', '{"errors": {"code": code'
    ),
    Bug("graph", "graph_server.py", "parameters of an action in one case only", "name[:1].lower()", "name[:1]"),
    Bug("graph", "graph_server.py", "times without a zone", '"%Y-%m-%dT%H:%M:%SZ"', '"%d.%m.%Y"'),
    Bug("graph", "graph_server.py", "a token is called otherwise", '"access_token": token', '"accessToken": token'),
    Bug("graph", "graph_filter.py", "any value fits", "== wanted", "!= ()"),
    Bug("slack", "slack_server.py", "a success does not say so", '{"ok": True', '{"okay": True'),
    Bug(
        "slack",
        "slack_server.py",
        "JSON without a body is an error",
        'Content-Type", "") and request.body',
        'Content-Type", "")',
    ),
    Bug("slack", "slack_server.py", "metadata is not kept", '"client_msg_id", "metadata")', '"client_msg_id")'),
    Bug("slack", "slack_server.py", "a page has no cursor", '"next_cursor": str(start', '"next": str(start'),
    Bug("slack", "http_fake.py", "headers of a failure are lost", "body, fault.headers)", "body)"),
    Bug("sentry", "sentry_server.py", "a length is not heeded", 'about["length"] if "length" in about else', ""),
    Bug("sentry", "sentry_server.py", "gzip is not unpacked", "gzip.decompress(request.body)", "request.body"),
    Bug("sentry", "http_fake.py", "headers of a failure are lost", "body, fault.headers)", "body)"),
    Bug("smtp", "smtp_session.py", "dots stay doubled", 'line.removeprefix(b".")', "line"),
    Bug(
        "smtp",
        "smtp_session.py",
        "nobody has to say HELO",
        "self.sender is not None or not self.greeted",
        "self.sender is not None",
    ),
    Bug(
        "smtp", "smtp_session.py", "a password is not looked at", "(user, password) !=", "(user, self.fake.password) !="
    ),
    Bug(
        "smtp",
        "smtp_session.py",
        "EHLO leaves the mail begun",
        "self.greeted, self.sender, self.recipients = True, None, []",
        "self.greeted = True",
    ),
    Bug(
        "webhook",
        "http_fake.py",
        "a body is not kept as it came",
        "address.path, query, headers, body,",
        "address.path, query, headers, body.strip(b'}'),",
    ),
    Bug("gmail", "gmail_server.py", "a field that Gmail does not have", '"resultSizeEstimate": len', '"total": len'),
    Bug("gmail", "gmail_server.py", "a history id is a number", '"historyId": str(newest)', '"historyId": newest'),
    Bug("gmail", "gmail_server.py", "an old history id is good", "if events is None:", "if False:"),
    Bug(
        "gmail",
        "gmail_server.py",
        "a page has no token",
        '{"nextPageToken": _token_after',
        '{"pageToken": _token_after',
    ),
    Bug("gmail", "gmail_server.py", "an error has no reason", '"reason": code or reason', '"why": code or reason'),
    Bug("gmail", "gmail_server.py", "a refusal of a token is called otherwise", '"invalid_grant"', '"revoked"'),
    Bug(
        "gmail",
        "gmail_mailbox.py",
        "labels are taken off in silence",
        '("labelsRemoved", fewer)',
        '("labelsRemoved", ())',
    ),
    Bug("gmail", "gmail_message.py", "a body is plain base64", "urlsafe_b64encode", "standard_b64encode"),
    Bug(
        "gmail",
        "gmail_message.py",
        "a number is text",
        '"sizeEstimate": len(self.raw)',
        '"sizeEstimate": str(len(self.raw))',
    ),
    Bug("gmail", "gmail_query.py", "days are hours", "timedelta(days=", "timedelta(hours="),
    Bug(
        "llm", "llm_shapes.py", "arguments are no text", '"arguments": json.dumps(arguments)', '"arguments": arguments'
    ),
    Bug(
        "llm", "llm_shapes.py", "an end has another reason", '"tool_use" if reply.calls', '"tool_calls" if reply.calls'
    ),
    Bug("llm", "llm_shapes.py", "usage is not counted", '"total_tokens": spent + made', '"total": spent + made'),
    Bug(
        "llm",
        "llm_shapes.py",
        "a call may stay without a result",
        "if open_calls:\n            raise",
        "if False:\n            raise",
    ),
    Bug(
        "llm",
        "llm_shapes.py",
        "a stream's block has no start",
        '"type": "content_block_start"',
        '"type": "block_start"',
    ),
    Bug("llm", "llm_shapes.py", "an error has no kind", '"error": about, "request_id"', '"error": {}, "request_id"'),
    Bug("llm", "http_fake.py", "headers of a failure are lost", "body, fault.headers)", "body)"),
)
