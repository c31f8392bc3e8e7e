"""Signatures: the same as botocore's own signer makes, for whatever is signed."""

import random
from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from treadle.engines.dynamodb.access import FixedCredentials
from treadle.engines.dynamodb.signing import CONTENT_TYPE, Request, signed_headers

LETTERS = "abcXYZ019/+=-_.~%&#@!*'()[]{}:;,?|$^\"<>` "
WIDE = f"{LETTERS}äß€語🙂\u00a0"


def text(dice, letters, longest):
    return "".join(dice.choice(letters) for _ in range(dice.randrange(longest)))


def botocores(monkeypatch, request, credentials, region, moment):
    """The headers of botocore's signer for the same request at the same time."""
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: datetime.fromtimestamp(moment, UTC))
    headers = {"Content-Type": CONTENT_TYPE, "X-Amz-Target": request.target}
    signed = AWSRequest(method="POST", url=f"https://{request.host}/", data=request.body, headers=headers)
    botocore.auth.SigV4Auth(Credentials(*credentials), "dynamodb", region).add_auth(signed)
    return {name: value for name, value in signed.headers.items() if value is not None}


@pytest.mark.parametrize("seed", range(200))
def test_a_signature_is_the_one_that_botocore_makes(monkeypatch, seed):
    dice = random.Random(seed)
    host = dice.choice(["dynamodb.eu-central-1.amazonaws.com", "localhost:8000", "127.0.0.1:17753", "[::1]:8000"])
    body = b"" if dice.random() < 0.1 else text(dice, WIDE, 3_000).encode()
    request = Request(host, f"DynamoDB_20120810.{dice.choice(['Query', 'UpdateItem', 'two  spaces', ''])}", body)
    token = dice.choice([None, "", f"t{text(dice, LETTERS, 900)}", f" inner   spaces {seed} "])
    credentials = FixedCredentials(f"AKIA{seed}", text(dice, WIDE, 60), token)
    region, moment = dice.choice(["eu-central-1", "us-gov-west-1", "cn-north-1", "odd region"]), dice.uniform(0, 4e9)
    ours = signed_headers(request, credentials, region, moment)
    theirs = botocores(monkeypatch, request, credentials, region, moment)
    assert ours["Authorization"] == theirs["Authorization"]
    assert {name: ours[name] for name in theirs} == theirs


def test_the_key_of_a_day_is_not_used_on_another_or_with_another_secret_or_region(monkeypatch):
    request = Request("localhost:8000", "DynamoDB_20120810.Query", b"{}")
    for moment in (86_399.0, 86_400.0):
        for secret in ("one", "two"):
            for region in ("eu-west-1", "eu-west-2"):
                credentials = FixedCredentials("AKIA", secret)
                ours = signed_headers(request, credentials, region, moment)
                assert (
                    ours["Authorization"]
                    == botocores(monkeypatch, request, credentials, region, moment)["Authorization"]
                )


def test_credentials_do_not_show_their_secret():
    assert "s3cret" not in repr(FixedCredentials("AKIA", "s3cret", "s3cret-token"))
