"""Signatures of requests to DynamoDB, AWS Signature Version 4. Pure: a request, credentials and a time become headers.

The service takes one kind of request: a POST of JSON to the path `/`, without a query. So its canonical form is one
template. The key that signs is derived from the secret once a day.
"""

import time
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import NamedTuple, Protocol

SERVICE = "dynamodb"
CONTENT_TYPE = "application/x-amz-json-1.0"


class Credentials(Protocol):
    """What a request is signed with; `token` is there if they are temporary."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def token(self) -> str | None: ...


class Request(NamedTuple):
    """What is signed: the host as the request names it, X-Amz-Target, and the body."""

    host: str
    target: str
    body: bytes


def signed_headers(request: Request, credentials: Credentials, region: str, moment: float) -> dict[str, str]:
    """The headers of a request that is sent at this time, in seconds since 1970."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    scope = f"{stamp[:8]}/{region}/{SERVICE}/aws4_request"
    headers = {"Content-Type": CONTENT_TYPE, "Host": request.host, "X-Amz-Date": stamp}
    if credentials.token:
        headers["X-Amz-Security-Token"] = credentials.token
    headers["X-Amz-Target"] = request.target
    names = ";".join(headers).lower()  # they are in order
    lines = "\n".join([f"{name.lower()}:{' '.join(value.split())}" for name, value in headers.items()])
    canonical = f"POST\n/\n\n{lines}\n\n{names}\n{sha256(request.body).hexdigest()}"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = digest(_key(credentials.secret_key, stamp[:8], region), text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=8)
def _key(secret: str, day: str, region: str) -> bytes:
    """The key that signs the requests of one day."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, SERVICE, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    return key
