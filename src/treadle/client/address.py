"""Where a server is, and the token it is asked with: checked before anything is sent."""

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from treadle.errors import ConfigError

API = "/api/v1"
EXAMPLE = "https://jobs.example.com"
LONGEST_URL = 2_000  # characters
LONGEST_HEADER = 4_000  # characters of what may be sent as a token

_PRINTABLE = re.compile(r"[!-~]+")  # ASCII without blanks: what a header and a request line can hold


class ServerAddress(NamedTuple):
    """A server: `path` is what stands before the API, where it is mounted in another application."""

    tls: bool
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """As people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.tls else 80)
        return f"{'https' if self.tls else 'http'}://{host}{'' if usual else f':{self.port}'}{self.path}"

    @property
    def local(self) -> bool:
        """Whether it is this machine, so that nobody can listen on the way."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address_of(url: str, *, insecure: bool = False) -> ServerAddress:
    """The address that this URL names; ConfigError if it names none, or the token would travel in the clear."""
    if not isinstance(url, str) or len(url) > LONGEST_URL or not _PRINTABLE.fullmatch(url):
        raise ConfigError(f"server: {url!r:.100} is not a URL; write one such as {EXAMPLE}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"server: {url!r:.100} is not a URL ({error}); write one such as {EXAMPLE}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise ConfigError(f"server: {url!r:.100} must begin with https:// (or http:// on this machine): {EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("server: leave out user and password; a server is asked with a token (TREADLE_TOKEN)")
    if parts.query or parts.fragment or port == 0:
        raise ConfigError(f"server: {url!r:.100} must be a host, a port and maybe a path: {EXAMPLE}")
    tls = parts.scheme.lower() == "https"
    path = parts.path.rstrip("/").removesuffix(API).rstrip("/")
    found = ServerAddress(tls, host, port or (443 if tls else 80), path)
    if not tls and not found.local and not insecure:
        raise ConfigError(
            f"server: {found.url} would send the token in the clear; use https://, or --insecure if the way is safe"
        )
    return found


def checked_token(token: str | None) -> str:
    """The token, if a request can hold it; no error shows it."""
    if not token:
        raise ConfigError(
            "token: which one? Set TREADLE_TOKEN, or give --token; where the server runs, "
            "`treadle tokens create NAME --scope operate` makes one"
        )
    if not isinstance(token, str) or len(token) > LONGEST_HEADER or not _PRINTABLE.fullmatch(token):
        raise ConfigError("token: it is too long, or has blanks or other characters that no token has; copy it again")
    return token
