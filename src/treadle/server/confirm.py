"""Confirmations: an act on many jobs is counted first, and done by who has seen the number."""

import hmac
import secrets
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

from treadle.app.tokens import same

VALID = 600.0  # seconds
MOST_DIGITS = 12  # of the second in which one was made


class Confirmations:
    """Signed words that say: this very act was counted a short while ago. Nothing is kept."""

    def __init__(self, now: Callable[[], datetime], key: bytes | None = None) -> None:
        self._now = now
        self._key = key or secrets.token_bytes(32)

    def make(self, meant: str) -> str:
        """A confirmation of this act."""
        return self._of(meant, int(self._now().timestamp()))

    def check(self, meant: str, given: str) -> bool:
        """Whether this confirms the act."""
        at = given.partition("-")[0]
        if not at.isascii() or not at.isdigit() or len(at) > MOST_DIGITS:
            return False
        recent = 0 <= self._now().timestamp() - int(at) <= VALID
        return same(given, self._of(meant, int(at))) and recent

    def _of(self, meant: str, at: int) -> str:
        return f"{at}-{hmac.new(self._key, f'confirm {at} {meant}'.encode(), sha256).hexdigest()}"
