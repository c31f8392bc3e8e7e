"""What reaches the terminal."""

from datetime import UTC, datetime, timedelta

import pytest

from treadle.cli.terminal import age, masked, preview, safe

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ünïcode 日本 🙂", "plain ünïcode 日本 🙂"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\x00b\x07\x7f\x9b", "a\\x00b\\x07\\x7f\\x9b"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202ebackwards\u2066", "\\u202ebackwards\\u2066"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(raw, shown):
    assert safe(raw) == shown


def test_line_ends_are_kept_where_lines_are_wanted():
    assert safe("a\n\tb\r\x1b", lines=True) == "a\n\tb\\r\\x1b"


def test_a_preview_is_one_short_line():
    assert preview("one\n  two\tthree") == "one two three"
    assert preview("x" * 100, 10) == "xxxxxxxxx…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///treadle.db", "sqlite:///treadle.db"),
        ("postgresql://me:s3cret@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:p@ss:w@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:it's@host/db", "postgresql://me:***@host/db"),
        ('postgresql://me:a"b@host/db?password=c"d', "postgresql://me:***@host/db?password=***"),
        ("postgresql://me@host/db?password=s3cret&x=1", "postgresql://me@host/db?password=***&x=1"),
        ("cannot open 'postgresql://me:s3cret@host/db' now", "cannot open 'postgresql://me:***@host/db' now"),
    ],
)
def test_passwords_are_masked(url, shown):
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s ago"), (119, "119s ago"), (300, "5m ago"), (7200, "2h ago"), (86400 * 3, "3d ago"), (-90, "in 90s")],
)
def test_ages_are_short(seconds, said):
    assert age(NOW - timedelta(seconds=seconds), NOW) == said
