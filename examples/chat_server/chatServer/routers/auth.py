"""Who asks: the user named by Supabase's token."""

import base64
import binascii
import hashlib
import hmac
import json
import math
import time
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header, HTTPException

from chatServer.config import get_settings

USERS = "authenticated"  # the role and the audience of those who have signed in


def user_of(authorization: Annotated[str, Header()] = "") -> str:
    """The id of the user, from a token that is signed with SUPABASE_JWT_SECRET (HS256) and still good."""
    try:
        head, claims, signature = authorization.removeprefix("Bearer ").split(".")
        secret = get_settings().supabase_jwt_secret.encode()
        expected = hmac.new(secret, f"{head}.{claims}".encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(expected, _decoded(signature)) or json.loads(_decoded(head))["alg"] != "HS256":
            raise ValueError
        told = json.loads(_decoded(claims))
        if not time.time() < told["exp"] < math.inf or (told["role"], told["aud"]) != (USERS, USERS):
            raise ValueError
        return str(UUID(told["sub"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise HTTPException(401, "authorization: needs a token of Supabase that is still good") from None


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


User = Annotated[str, Depends(user_of)]
