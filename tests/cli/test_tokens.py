"""`treadle tokens`: made, listed and revoked; the secret is printed once, and nowhere else."""

import re

import pytest

from tests.cli.conftest import Call
from treadle import Treadle

SECRET = r"treadle_[\w-]{43}"


@pytest.fixture
def store(ready: Call) -> Treadle:
    return Treadle("sqlite:///treadle.db")


def test_a_token_is_printed_once_on_stdout_alone(ready: Call, store: Treadle) -> None:
    made = ready("tokens", "create", "grafana")
    assert made.code == 0
    assert re.fullmatch(SECRET + "\n", made.out)
    [token] = store.tokens.list()
    assert made.err == f"token grafana ({token.name}) may read; it is shown this once:\n"
    found = store.tokens.find(made.out.strip())
    assert found == token
    assert (token.scopes, token.only_tenant, token.only_queues, token.expires_at) == (["read"], None, None, None)
    for again in (ready("tokens", "list"), ready("tokens", "list", "--json"), ready("audit", "--json")):
        assert made.out.strip() not in again.out + again.err
        assert token.hash not in again.out + again.err


def test_a_token_has_scopes_a_tenant_queues_and_an_end(ready: Call, store: Treadle) -> None:
    made = ready(
        "tokens", "create", "ci", "--scope", "operate", "--scope", "enqueue", "--tenant", "acme", "-q", "mail",
        "--queue", "slow", "--expires", "30d", "--json",
    )  # fmt: skip
    assert made.err == ""
    token = store.tokens.find(made.json["secret"])
    assert token is not None
    assert made.json["token"]["name"] == token.name
    assert "hash" not in made.json["token"]
    assert (token.scopes, token.only_tenant, token.only_queues) == (["enqueue", "operate"], "acme", ["mail", "slow"])
    assert token.expires_at is not None
    assert (token.expires_at - token.created_at).days == 30
    listed = ready("tokens", "list").out
    assert "enqueue, operate" in listed
    assert "tenant acme, queue mail, queue slow" in listed
    assert "until " in listed


def test_tokens_are_listed_with_what_became_of_them(ready: Call, store: Treadle) -> None:
    assert ready("tokens", "list").out == "no tokens; `treadle tokens create NAME` makes one\n"
    assert ready("tokens", "list", "--json").json == {"tokens": []}
    for label in ("kept", "gone"):
        ready("tokens", "create", label)
    revoked = ready("tokens", "revoke", "gone", "--reason", "leaked")
    assert revoked.code == 0
    assert re.fullmatch(r"token gone \(\w{12}\) is revoked\n", revoked.out)
    lines = ready("tokens", "list").out.splitlines()
    assert lines[0].split() == ["name", "label", "scopes", "bound", "to", "made", "state"]
    states = {line.split()[1]: line for line in lines[1:]}
    assert states["kept"].rstrip().endswith("usable")
    assert "revoked " in states["gone"]
    assert [event.note for event in store.audit(kind="revoked")] == [
        f"token gone ({store.tokens.list()[0].name}): leaked"
    ]


def test_a_token_is_revoked_by_its_name_and_as_json(ready: Call, store: Treadle) -> None:
    ready("tokens", "create", "ci")
    ready("tokens", "create", "ci")
    refused = ready("tokens", "revoke", "ci")
    assert refused.code == 1
    assert "2 tokens are called 'ci'; give one of their names: " in refused.err
    name = store.tokens.list()[0].name
    revoked = ready("tokens", "revoke", name, "--json").json["token"]
    assert (revoked["name"], revoked["revoked_at"] is None, "hash" in revoked) == (name, False, False)
    assert ready("tokens", "revoke", "ci").code == 0
    again = ready("tokens", "revoke", "ci")
    assert (again.code, again.err) == (
        1, "error: there is no usable token 'ci'; `treadle tokens list` shows them\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create"], "Missing argument 'LABEL'"),
        (["create", ""], "label: '' is not a valid name"),
        (["create", "*"], "label: '*' is not a valid name"),
        (["create", "a\nb"], "label: 'a\\nb' holds a control character"),
        (["create", "x" * 201], "label: is 201 bytes long; the limit is 200"),
        (["create", "ci", "--scope", "root"], "scopes: 'root' must be one of read, enqueue, operate, admin"),
        (["create", "ci", "--tenant", ""], "tenant: '' is not a valid name"),
        (["create", "ci", "--queue", ""], "queue: '' is not a valid name"),
        (["create", "ci", "--expires", "soon"], "--expires: 'soon' is no time"),
        (["create", "ci", "--expires", "0"], "expires: 0.0 must be in the future"),
        (["create", "ci", "--expires", "2020-01-01T00:00Z"], "expires: "),
        (["create", "ci", "--expires", "2020-01-01"], "has no time zone"),
        (["revoke"], "Missing argument 'NAME'"),
        (["forget", "ci"], "No such command 'forget'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_one_line_and_makes_nothing(
    ready: Call, store: Treadle, arguments: list[str], words: str
) -> None:
    refused = ready("tokens", *arguments)
    assert (refused.code, refused.out) == (2, "")
    [line] = refused.err.splitlines()
    assert words in line
    assert store.tokens.list() == []


def test_a_store_that_is_not_there_is_not_made(call: Call, project) -> None:
    refused = call("tokens", "create", "ci")
    assert (refused.code, "treadle migrate" in refused.err) == (1, True)
    assert not (project / "treadle.db").exists()


def test_a_label_cannot_act_on_the_terminal(ready: Call, store: Treadle) -> None:
    ready("tokens", "create", "\u202eevil\u200b", "--tenant", "\u2066t")
    for shown in (ready("tokens", "list"), ready("tokens", "revoke", "\u202eevil\u200b")):
        assert not set("\u202e\u200b\u2066") & set(shown.out + shown.err)
        assert "evil" in shown.out


def test_who_made_it_is_in_the_audit_trail(ready: Call, store: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("LOGNAME", "ada")
    ready("tokens", "create", "ci")
    [event] = store.audit(kind="created")
    assert event.actor == store.tokens.list()[0].actor
    assert "ada" in event.actor
