"""Where the store is and who we are: the address, the region and the credentials.

botocore knows all places where AWS tools look for them. To load and ask it takes a tenth of a second, so what the URL
and the plain environment variables say is read without it, and an address that everybody can write is not asked for.
"""

import os
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from treadle.engines.dynamodb.signing import Credentials
from treadle.errors import ConfigError

if find_spec("botocore") is None:
    raise ImportError("botocore is missing")

LOCAL_REGION = "us-east-1"  # what an emulator is told
_SUFFIXES = {"aws": "amazonaws.com", "cn": "amazonaws.com.cn"}
_REGION = re.compile(r"(?:(?:us|eu|ap|sa|ca|me|af|il|mx)-(?!iso)|(cn)-)[a-z]+(?:-[a-z]+)?-\d+")
_ELSEWHERE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SECURITY_TOKEN", "AWS_CREDENTIAL_EXPIRATION")
_ADDRESSED = ("AWS_ENDPOINT_URL", "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_IGNORE_CONFIGURED")
_CONFIGURED = ("endpoint_url", "use_fips_endpoint", "use_dualstack_endpoint")


class CredentialSource(Protocol):
    """Credentials that may change: botocore fetches new ones before they expire."""

    def get_frozen_credentials(self) -> Credentials: ...


class Access(NamedTuple):
    """The address, the region that requests are signed for, and the credentials."""

    url: str
    region: str
    credentials: CredentialSource


class FixedCredentials(NamedTuple):
    """Credentials that do not change."""

    access_key: str
    secret_key: str
    token: str | None = None

    def get_frozen_credentials(self) -> Credentials:
        return self

    def __repr__(self) -> str:
        return f"FixedCredentials({self.access_key!r})"  # nobody sees the secret


def find_access(region: str | None, endpoint: str | None) -> Access:
    """How to reach the table; the URL may name a region and an endpoint. ConfigError says what is missing."""
    region = region or os.environ.get("AWS_REGION")
    credentials = _from_environment()
    known = region or os.environ.get("AWS_DEFAULT_REGION")
    if credentials is not None and known and (url := endpoint or _plain_address(known)):
        return Access(url, known, credentials)
    return _ask_botocore(region, endpoint)


def botocore_errors() -> tuple[type[Exception], ...]:
    """What botocore raises; nothing as long as it is not loaded."""
    module = sys.modules.get("botocore.exceptions")
    return () if module is None else (module.BotoCoreError,)


def _from_environment() -> FixedCredentials | None:
    """The credentials in the plain variables; None if botocore may find others, or must complain."""
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret or any(name in os.environ for name in _ELSEWHERE):
        return None
    return FixedCredentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


def _plain_address(region: str) -> str | None:
    """The address of a region; None if it is not a usual one, or somebody has said that it is another."""
    found = _REGION.fullmatch(region)
    if found is None or any(name.startswith(_ADDRESSED) for name in os.environ) or _is_configured():
        return None
    return f"https://dynamodb.{region}.{_SUFFIXES[found[1] or 'aws']}"


def _is_configured() -> bool:
    """Whether the file of settings says something about addresses."""
    path = Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser()
    try:
        text = path.read_text()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # botocore says what is wrong with it
        return True
    return any(name in text for name in _CONFIGURED)


def _ask_botocore(region: str | None, endpoint: str | None) -> Access:
    import botocore.exceptions  # noqa: PLC0415 - a tenth of a second, that most never need
    from botocore.credentials import Credentials as Keys  # noqa: PLC0415

    session = _session()
    try:
        region = region or session.get_config_variable("region")
        credentials = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"url: AWS credentials or region: {error}") from None
    if credentials is None and endpoint is not None:  # an emulator does not check them
        credentials = Keys("local", "local")
    if credentials is None:
        raise ConfigError(
            "url: no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or a profile, or run where a role is attached"
        )
    if region is None and endpoint is None:
        raise ConfigError("url: no AWS region; set AWS_REGION or write dynamodb://table?region=eu-central-1")
    region = region or LOCAL_REGION
    try:
        url = endpoint or _plain_address(region) or _address(session, region)
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"url: {error}") from None
    return Access(url, region, credentials)


@cache
def _hooks() -> Any:
    """botocore's own handlers, for a role or SSO may need them; each session would register them anew, in 9 ms."""
    import botocore.session  # noqa: PLC0415
    from botocore.hooks import HierarchicalEmitter  # noqa: PLC0415

    hooks = HierarchicalEmitter()
    botocore.session.Session(event_hooks=hooks)
    return hooks


def _session() -> Any:
    import botocore.session  # noqa: PLC0415

    return botocore.session.Session(event_hooks=_hooks(), include_builtin_handlers=False)


def _address(session: Any, region: str) -> str:
    return str(session.create_client("dynamodb", region_name=region).meta.endpoint_url)
