"""What a job of `email.send` holds: the mail, checked before it is stored."""

import re
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MOST_RECIPIENTS = 50
MOST_HEADERS = 20
LONGEST_LINE = 900  # characters of a header: a line of a mail has at most 998
LONGEST_ADDRESS = 254

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"(?=.{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_NAMED = re.compile(r"(?P<name>[^<>]*?)\s*<(?P<address>[^<>]*)>")
_QUOTED = re.compile(r'"(?P<name>[^"\\]*)"')
_TO_BE_QUOTED = re.compile(r'[",;:@()\[\]\\.]')
_BROKEN_LINE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,76}")
_OWN_HEADERS = {
    "bcc", "cc", "date", "dkim-signature", "from", "message-id", "mime-version", "received", "reply-to", "return-path",
    "sender", "subject", "to",
}  # fmt: skip
_OWN_KINDS = ("content-", "resent-", "arc-")


class MailAddress(NamedTuple):
    """An address, and the name in front of it if there is one."""

    address: str
    name: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `ada@example.org` or `Ada Lovelace <ada@example.org>`; ValueError says what is wrong."""
        _check_line(text)
        stripped = text.strip()
        named = _NAMED.fullmatch(stripped)
        name, address = (named["name"].strip(), named["address"].strip()) if named else ("", stripped)
        if quoted := _QUOTED.fullmatch(name):
            name = quoted["name"].strip()
        elif _TO_BE_QUOTED.search(name.replace(".", "")):
            raise ValueError(f'{text!r}: put the name in quotes: "Lovelace, Ada" <ada@example.org>')
        if not address.isascii():
            raise ValueError(f"{text!r}: an address must be ASCII; write its domain as xn--...")
        if not _ADDRESS.fullmatch(address) or len(address) > LONGEST_ADDRESS:
            raise ValueError(
                f"{text!r} is not an address; write ada@example.org or Ada Lovelace <ada@example.org>, "
                "and several as a list"
            )
        return cls(address, name)

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]

    def __str__(self) -> str:
        if not self.name:
            return self.address
        name = f'"{self.name}"' if _TO_BE_QUOTED.search(self.name) else self.name
        return f"{name} <{self.address}>"


def _check_line(text: str) -> str:
    if _BROKEN_LINE.search(text):
        raise ValueError("holds a line break or a control character; remove it")
    if len(text) > LONGEST_LINE:
        raise ValueError(f"is {len(text):,} characters long; the limit is {LONGEST_LINE}")
    return text


def _check_address(text: str) -> str:
    MailAddress.of(text)
    return text


def _check_addresses(given: str | list[str]) -> str | list[str]:
    for text in _listed(given):
        MailAddress.of(text)
    return given


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    if len(headers) > MOST_HEADERS:
        raise ValueError(f"are {len(headers)}; the limit is {MOST_HEADERS}")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r:.100} is not a name of a header; use letters, digits and -")
        if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_KINDS):
            raise ValueError(f"{name!r} is set by the task itself; use the field for it, or leave it out")
        try:
            _check_line(value)
        except ValueError as error:
            raise ValueError(f"{name!r} {error}") from None
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("one name is there twice, in another case; keep one of them")
    return headers


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


Line = Annotated[str, AfterValidator(_check_line)]
OneAddress = Annotated[str, AfterValidator(_check_address)]
Addresses = Annotated[str | list[str], AfterValidator(_check_addresses)]


class Email(BaseModel):
    """A mail to send. Addresses are `ada@example.org` or `Ada Lovelace <ada@example.org>`."""

    model_config = ConfigDict(extra="forbid", frozen=True, revalidate_instances="always")

    to: Addresses
    subject: Line
    text: str | None = None
    html: str | None = None
    cc: Addresses = Field(default_factory=list)
    bcc: Addresses = Field(default_factory=list)
    reply_to: Addresses = Field(default_factory=list)
    sender: OneAddress | None = None
    headers: Annotated[dict[str, str], AfterValidator(_check_headers)] = Field(default_factory=dict)
    transport: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.text and not self.html:
            raise ValueError("text: is missing, and so is html; give at least one of them")
        if not self.recipients("to"):
            raise ValueError("to: is empty; give at least one address")
        for field, limit in (("to", MOST_RECIPIENTS), ("reply_to", MOST_RECIPIENTS)):
            others = ("cc", "bcc") if field == "to" else ()
            number = len(self.recipients(field, *others))
            if number > limit:
                together = ", with cc and bcc" if others else ""
                raise ValueError(
                    f"{field}: holds {number} addresses{together}; the limit is {limit}: send several mails"
                )
        return self

    def recipients(self, *fields: str) -> list[MailAddress]:
        """The addresses in these fields."""
        return [MailAddress.of(text) for field in fields for text in _listed(getattr(self, field))]

    def envelope(self) -> list[str]:
        """Everybody who gets it, once each."""
        return list(dict.fromkeys(person.address for person in self.recipients("to", "cc", "bcc")))
