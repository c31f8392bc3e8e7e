"""Which addresses a webhook may be sent to: those of the public internet, and what an operator has allowed.

Whoever may register a webhook's URL could otherwise let the worker speak to the services around it: a database, an
admin page, the cloud's metadata.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from treadle.builtin.arguments import listed
from treadle.builtin.http_calls import HttpUrl
from treadle.errors import ConfigError, GiveUp, Unreachable

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

# Written out, because what Python takes for private differs from version to version.
_RESERVED_V4 = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared (carrier-grade NAT)",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "cloud platform's own",
    "169.254.0.0/16": "link-local",  # with the metadata of most clouds
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "reserved",
    "192.31.196.0/24": "reserved",
    "192.52.193.0/24": "reserved",
    "192.88.99.0/24": "reserved",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved",
    "198.18.0.0/15": "reserved",
    "198.51.100.0/24": "reserved",
    "203.0.113.0/24": "reserved",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_RESERVED_V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "2001::/23": "reserved",  # with Teredo
    "2001:db8::/32": "reserved",
    "2620:4f:8000::/48": "reserved",
    "3fff::/20": "reserved",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
_NETWORKS: tuple[tuple[IpNetwork, str], ...] = tuple(
    (ipaddress.ip_network(network), kind) for network, kind in {**_RESERVED_V4, **_RESERVED_V6}.items()
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ALLOWING = 'hosts and networks are allowed where the task is registered: allow=["hooks.internal", "10.1.0.0/16"]'
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ISATAP = (0x00005EFE, 0x02005EFE)


class Target(NamedTuple):
    """Where a request may go: the addresses that were checked, to be tried in turn."""

    url: HttpUrl
    addresses: list[str]


class AddressGuard:
    """Looks a name up once and says which of its addresses may be called.

    `allow` opens hosts by their name ("hooks.internal") and networks ("10.1.0.0/16"), also for plain http.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._hosts = set[str]()
        self._networks: list[IpNetwork] = []
        for entry in listed("allow", allow, f"[{allow!r}]" if isinstance(allow, str) else '["hooks.internal"]'):
            self._allow(entry)

    def target(self, url: str) -> Target:
        """The addresses of this URL; GiveUp for one that may not be called, Unreachable if its name is not known."""
        place = HttpUrl.of(url)
        named = _plain_name(place.host) in self._hosts
        found = _look_up(place)
        if not named:
            for address in found:
                self._check(place, address)
        return Target(place, found)

    def _check(self, place: HttpUrl, address: str) -> None:
        ip = _ip(address)
        if ip is not None and any(_within(one, self._networks) for one in (ip, *_meant(ip))):
            return
        kind = "strange" if ip is None else kind_of(ip)
        if kind:
            raise GiveUp(f"url: {place.host} leads to a {kind} address, and nobody has allowed it; {_ALLOWING}")
        if not place.secure:
            raise GiveUp(f"url: http:// is open to everybody on the way; use https://; {_ALLOWING}")

    def _allow(self, entry: object) -> None:
        example = 'write a host such as "hooks.internal", or a network such as "10.1.0.0/16"'
        if not isinstance(entry, str) or not entry.strip():
            raise ConfigError(f"allow: {entry!r} is not the name of a host; {example}")
        try:
            self._networks.append(ipaddress.ip_network(entry))
        except ValueError:
            if not _NAME.fullmatch(entry):
                raise ConfigError(f"allow: {entry!r} is neither a host nor a network; {example}") from None
            self._hosts.add(_plain_name(entry))


def kind_of(address: IpAddress | str) -> str:
    """Why this address is not one of the public internet; an empty string if it is."""
    ip = ipaddress.ip_address(address)
    for network, kind in _NETWORKS:
        if ip in network:
            return kind
    inner = _embedded(ip)
    for hidden in inner:
        if kind := kind_of(hidden):
            return kind
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _PUBLIC_V6 and not _meant(ip):
        return "reserved"
    return ""


def _meant(ip: IpAddress) -> list[ipaddress.IPv4Address]:
    """The IPv4 address that this IPv6 address is only another way to write: mapped, or of the well-known NAT64."""
    if isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip in _NAT64):
        return [_last_four_bytes(ip)]
    return []


def _embedded(ip: IpAddress) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that this IPv6 address may lead to by way of another one: 6to4 and ISATAP too."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    found = _meant(ip)
    if ip.sixtofour is not None:
        found.append(ip.sixtofour)
    if (int(ip) >> 32 & 0xFFFFFFFF) in _ISATAP:
        found.append(_last_four_bytes(ip))
    return found


def _last_four_bytes(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)


def _look_up(place: HttpUrl) -> list[str]:
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the name {place.host} was not found: {error}") from None
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


def _within(ip: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    return any(ip in network for network in networks)


def _ip(address: str) -> IpAddress | None:
    with suppress(ValueError):
        return ipaddress.ip_address(address)
    return None


def _plain_name(host: str) -> str:
    return host.rstrip(".").lower()
