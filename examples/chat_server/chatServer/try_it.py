"""`python -m chatServer.try_it`: the server with stand-ins for Gmail, the model and the receiver, and a user."""

import argparse
import base64
import hashlib
import hmac
import json
import os
import sys
import time
from uuid import uuid4

import psycopg

from chatServer.config import BadSettings, get_settings
from chatServer.database.migrate import migrate
from chatServer.main import serve
from chatServer.routers.auth import USERS
from treadle import TreadleError
from treadle.testing import fakes

REQUEST = """
One user, and stand-ins for Gmail, the language model and the receiver of notifications. In another terminal:

export TOKEN={token}
curl {server}/api/external-connections -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\
  -d '{{"provider": "gmail", "address": "{address}", "refresh_token": "{refresh}"}}'
curl {server}/api/jobs -H "Authorization: Bearer $TOKEN"
"""


def token_of(user: str, secret: str) -> str:
    """What Supabase gives to a user who has signed in; this one is good for a day."""
    claims = {"sub": user, "role": USERS, "aud": USERS, "exp": time.time() + 86_400}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256"}, claims)]
    signature = hmac.new(secret.encode(), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="chatServer.try_it", description="The chat server with stand-ins and a user.")
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    os.environ.setdefault("SUPABASE_JWT_SECRET", uuid4().hex)
    with fakes.gmail() as gmail, fakes.llm() as llm, fakes.webhook() as receiver:
        gmail.mailbox.add_message("Lunch", "Tomorrow at noon?", from_="bob@example.org")
        os.environ.update(
            GMAIL_URL=gmail.url,
            GOOGLE_TOKEN_URL=gmail.token_uri,
            GOOGLE_CLIENT_ID=gmail.client_id,
            GOOGLE_CLIENT_SECRET=gmail.client_secret,
            LLM_URL=llm.url,
            LLM_API_KEY=llm.api_key,
            NOTIFY_URL=receiver.url,
        )
        user = str(uuid4())
        try:
            settings = get_settings()
            migrate(settings.database_url)
            with psycopg.connect(settings.database_url) as connection:
                connection.execute("insert into auth.users (id) values (%s)", [user])
        except (BadSettings, TreadleError, psycopg.Error) as error:
            sys.exit(f"chatServer: {error}")
        token = token_of(user, settings.supabase_jwt_secret)
        box, server = gmail.mailbox, f"http://127.0.0.1:{port}"
        print(REQUEST.format(token=token, server=server, address=box.address, refresh=box.refresh_token), flush=True)
        serve(port)


if __name__ == "__main__":
    main()
