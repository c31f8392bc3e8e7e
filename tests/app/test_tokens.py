"""Tokens of the REST API: shown once, kept as a hash, limited in what and how long they allow."""

from datetime import datetime, timedelta

import pytest

from tests.support.marks import any_store
from treadle import InvalidInput, NotPossible, Treadle
from treadle.model.records import ApiToken
from treadle.testing import FakeClock


@any_store
def test_a_token_is_found_by_its_secret_and_by_nothing_else(app: Treadle) -> None:
    made = app.tokens.create("grafana", scopes=["read", "operate"], tenant="acme", queues=["mail"], actor="ada")
    found = app.tokens.find(made.secret)
    assert found == made.token
    assert (found.label, found.scopes, found.only_tenant, found.only_queues, found.actor) == (
        "grafana", ["read", "operate"], "acme", ["mail"], "ada",
    )  # fmt: skip
    for other in ("", "treadle_", made.token.hash, made.token.name, made.secret[:-1], f"{made.secret}x", "x" * 10_000):
        assert app.tokens.find(other) is None


@any_store
def test_the_store_never_holds_the_secret(app: Treadle) -> None:
    made = app.tokens.create("ci")
    assert len(made.secret) > 43
    [stored] = app.engine.records(ApiToken)
    assert made.secret not in repr(stored)
    assert made.secret.removeprefix("treadle_") not in repr([stored, app.audit()])


@any_store
def test_a_revoked_token_is_refused_at_once_and_stays_listed(app: Treadle) -> None:
    kept, made = app.tokens.create("kept"), app.tokens.create("ci")
    app.tokens.revoke("ci", actor="ada", reason="leaked")
    assert app.tokens.find(made.secret) is None
    assert app.tokens.find(kept.secret) == kept.token
    assert {token.label for token in app.tokens.list()} == {"kept", "ci"}
    with pytest.raises(NotPossible, match="there is no usable token 'ci'"):
        app.tokens.revoke("ci")


def test_a_token_expires_by_itself(app: Treadle, clock: FakeClock) -> None:
    made = app.tokens.create("short", expires="1h")
    clock.advance(minutes=59)
    assert app.tokens.find(made.secret) is not None
    clock.advance(minutes=1)
    assert app.tokens.find(made.secret) is None


def test_what_is_done_to_tokens_is_in_the_audit_trail(app: Treadle) -> None:
    made = app.tokens.create("ci", scopes=["enqueue"], actor="ada")
    app.tokens.revoke(made.token.name, actor="grace", reason="leaked")
    revoked, created = app.audit()
    assert (created.kind, created.actor, created.note) == (
        "created",
        "ada",
        f"token ci ({made.token.name}): with enqueue",
    )
    assert (revoked.kind, revoked.actor, revoked.note) == ("revoked", "grace", f"token ci ({made.token.name}): leaked")


def test_of_two_tokens_with_one_label_one_is_revoked_by_name(app: Treadle) -> None:
    one, other = app.tokens.create("ci"), app.tokens.create("ci")
    with pytest.raises(NotPossible, match="2 tokens are called 'ci'; give one of their names"):
        app.tokens.revoke("ci")
    app.tokens.revoke(one.token.name)
    assert app.tokens.find(other.secret) is not None
    app.tokens.revoke("ci")  # only one is usable now
    assert app.tokens.find(other.secret) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": "read"}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"tenant": ""}, "tenant"),
        ({"expires": -5}, "expires"),
        ({"expires": 0}, "expires"),
        ({"expires": datetime(2020, 1, 1)}, "expires"),  # noqa: DTZ001 - that is what is wrong
        ({"actor": ""}, "actor"),
    ],
)
def test_a_bad_token_is_refused_by_its_field(app: Treadle, given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        app.tokens.create("ci", **given)
    assert caught.value.field == field
    assert app.tokens.list() == []


def test_a_token_may_end_at_a_moment(app: Treadle) -> None:
    end = app.engine.now() + timedelta(days=1)
    assert app.tokens.create("ci", expires=end).token.expires_at == end
