"""Where a webhook may go: every address that is not public is refused, however it is written."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from treadle import ConfigError, GiveUp, Unreachable
from treadle.builtin.webhook_guard import AddressGuard, kind_of

Resolver = Callable[..., list[str]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """Lets names lead to what the test says, one answer after the other; the names that were asked for."""
    asked: list[str] = []

    def leads_to(*answers: list[str]) -> list[str]:
        left = list(answers)

        def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
            asked.append(host)
            found = left.pop(0) if len(left) > 1 else left[0]
            if not found:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return leads_to


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0.0.0.0", "unspecified"),  # noqa: S104 - not bound to
        ("0.1.2.3", "unspecified"), ("10.0.0.1", "private"), ("100.64.0.1", "shared"),
        ("100.127.255.255", "shared"), ("127.0.0.1", "loopback"), ("127.255.1.2", "loopback"),
        ("168.63.129.16", "cloud"), ("169.254.169.254", "link-local"), ("172.16.0.1", "private"),
        ("172.31.255.255", "private"), ("192.0.0.192", "reserved"), ("192.0.2.1", "reserved"),
        ("192.88.99.1", "reserved"), ("192.168.1.1", "private"), ("198.18.0.1", "reserved"),
        ("198.51.100.1", "reserved"), ("203.0.113.9", "reserved"), ("224.0.0.1", "multicast"),
        ("240.0.0.1", "reserved"), ("255.255.255.255", "reserved"),
        ("::", "unspecified"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"), ("::ffff:10.1.2.3", "private"),
        ("::127.0.0.1", "reserved"), ("64:ff9b::7f00:1", "loopback"), ("64:ff9b::a9fe:a9fe", "link-local"),
        ("64:ff9b:1::a00:1", "reserved"), ("2002:7f00:1::", "loopback"), ("2002:a00:1::1", "private"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"), ("2001:db8::1", "reserved"),
        ("2a00::5efe:10.0.0.1", "private"), ("3fff::1", "reserved"), ("fc00::1", "private"),
        ("fd00:ec2::254", "private"), ("fe80::1", "link-local"), ("fe80::1%eth0", "link-local"),
        ("fec0::5efe:808:808", "reserved"), ("200::5efe:808:808", "reserved"), ("::5efe:808:808", "reserved"),
        ("64:ff9b:1:7f00:0:5efe:808:808", "reserved"), ("5f00::200:5efe:808:808", "reserved"),
        ("::ffff:0:808:808", "reserved"), ("fec0::1", "reserved"), ("ff02::1", "multicast"),
        ("100::1", "reserved"), ("5f00::1", "reserved"),
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_known_by_its_kind(address: str, kind: str, resolver: Resolver) -> None:
    assert kind in kind_of(address)
    resolver([address])
    with pytest.raises(
        GiveUp, match=r"^url: hooks\.example leads to a .* address, and nobody has allowed it; .*allow="
    ):
        AddressGuard().target("https://hooks.example/x")


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.169.0.1", "223.255.255.255",
     "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)  # fmt: skip
def test_an_address_of_the_public_internet_passes(address: str, resolver: Resolver) -> None:
    resolver([address])
    assert AddressGuard().target("https://hooks.example/x").addresses == [address]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "017700000001", "0", "[::1]", "[::ffff:127.0.0.1]", "localhost"],
)  # fmt: skip
def test_the_real_resolver_hides_no_loopback_behind_another_spelling(host: str) -> None:
    with pytest.raises(GiveUp, match="leads to a"):
        AddressGuard().target(f"https://{host}/")


def test_one_private_address_among_public_ones_refuses_them_all(resolver: Resolver) -> None:
    resolver(["1.1.1.1", "10.0.0.1"])
    with pytest.raises(GiveUp, match="private"):
        AddressGuard().target("https://hooks.example/")
    with pytest.raises(GiveUp, match="private"):
        AddressGuard(["10.1.0.0/16"]).target("https://hooks.example/")


def test_a_name_is_looked_up_once_and_its_addresses_are_given_once_each(resolver: Resolver) -> None:
    asked = resolver(["1.1.1.1", "1.1.1.1", "8.8.8.8"], ["127.0.0.1"])
    assert AddressGuard().target("https://hooks.example/").addresses == ["1.1.1.1", "8.8.8.8"]
    assert asked == ["hooks.example"]


def test_a_name_that_is_not_found_is_unreachable_for_now(resolver: Resolver) -> None:
    resolver([])
    with pytest.raises(Unreachable, match=r"hooks\.example was not found"):
        AddressGuard().target("https://hooks.example/")


def test_plain_http_is_for_what_was_allowed(resolver: Resolver) -> None:
    resolver(["1.1.1.1"])
    with pytest.raises(GiveUp, match="use https://"):
        AddressGuard().target("http://hooks.example/")
    assert AddressGuard(["hooks.example"]).target("http://hooks.example/").addresses == ["1.1.1.1"]
    assert AddressGuard(["1.1.1.0/24"]).target("http://hooks.example/").addresses == ["1.1.1.1"]


@pytest.mark.parametrize(
    ("allow", "url", "address"),
    [
        ("Hooks.Internal.", "https://hooks.internal/", "10.0.0.1"),
        ("hooks.internal", "https://HOOKS.internal./", "127.0.0.1"),
        ("10.1.0.0/16", "https://any.example/", "10.1.2.3"),
        ("10.1.2.3", "https://any.example/", "::ffff:10.1.2.3"),
        ("10.1.2.3", "https://any.example/", "64:ff9b::a01:203"),
        ("fd00::/8", "https://any.example/", "fd00::1"),
    ],
)
def test_an_operator_opens_hosts_and_networks(allow: str, url: str, address: str, resolver: Resolver) -> None:
    resolver([address])
    assert AddressGuard([allow]).target(url).addresses == [address]


@pytest.mark.parametrize(
    ("allow", "address"),
    [
        ("10.1.0.0/16", "fd00:ec2::5efe:a01:1"),
        ("10.1.0.0/16", "2a00::5efe:a01:1"),
        ("10.1.0.0/16", "2002:a01:1::1"),
        ("127.0.0.1", "::127.0.0.1"),
    ],
)
def test_an_allowed_network_opens_no_address_that_only_holds_one_of_it(
    allow: str, address: str, resolver: Resolver
) -> None:
    resolver([address])
    with pytest.raises(GiveUp, match="nobody has allowed it"):
        AddressGuard([allow]).target("http://hooks.example/")


def test_an_allowed_name_opens_no_name_below_or_beside_it(resolver: Resolver) -> None:
    resolver(["10.0.0.1"])
    for host in ("a.hooks.internal", "xhooks.internal", "internal"):
        with pytest.raises(GiveUp):
            AddressGuard(["hooks.internal"]).target(f"https://{host}/")


@pytest.mark.parametrize("allow", ["hooks.internal", [""], [5], ["10.1.2.3/16"], ["https://a.b"], ["*.internal"]])
def test_what_cannot_be_allowed_is_refused_with_an_example(allow: Any) -> None:
    with pytest.raises(ConfigError, match=r"^allow: .*write "):
        AddressGuard(allow)
