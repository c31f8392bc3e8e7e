"""Confirmations: an act on many jobs is counted first, and done by who has seen the number."""

import hmac
import secrets
import time
from hashlib import sha256

VALID = 600.0  # seconds


class Confirmations:
    """Signed words that say: this very act was counted a short while ago. Nothing is kept."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def make(self, meant: str) -> str:
        """A confirmation of this act."""
        return self._of(meant, int(time.time()))

    def check(self, meant: str, given: str) -> bool:
        """Whether this confirms the act."""
        at = given.partition("-")[0]
        if not at.isascii() or not at.isdigit() or not 0 <= time.time() - int(at) <= VALID:
            return False
        return hmac.compare_digest(self._of(meant, int(at)), given)

    def _of(self, meant: str, at: int) -> str:
        return f"{at}-{hmac.new(self._key, f'{at}{meant}'.encode(), sha256).hexdigest()}"
