"""What tells one kind of failure from another: a short text that is the same whenever the same thing goes wrong."""

import hashlib
import re
from functools import lru_cache

from treadle.model.job import JobError

DIGITS = 12  # of a fingerprint
FINGERPRINT = re.compile(f"[0-9a-f]{{{DIGITS}}}")
LONGEST_MESSAGE = 1000  # characters that are looked at

_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)(?!\w)""")
_ADDRESS = re.compile(r"[\w.+\-]++(@[\w.\-]+)?")  # a word, looked at once, and whether it goes on as a mail address
_WORD = re.compile(r"[\w.:+\-]+")
_FRAME = re.compile(r'File "([^"\n]+)", line \d+, in ([^\n]+)')
_FOLDER = re.compile(r"[/\\]")
_SECTION = "Traceback (most recent call last)"
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+|treadle)[/\\]|^<")


def fingerprint(error: JobError) -> str:
    """12 hex digits made of the error's type, its message without what varies, and where in the user's code it rose.

    Neither numbers, ids, mail addresses and quoted values nor line numbers and folders count: the next job, worker and
    release that fail in the same way have the same one.
    """
    return _fingerprint(error.type, error.message[:LONGEST_MESSAGE], error.traceback)


def without_values(message: str) -> str:
    """A message with a sign in place of each quoted value, mail address, number and id."""
    unquoted = _QUOTED.sub("?", message[:LONGEST_MESSAGE])
    words = _WORD.sub(_generic, _ADDRESS.sub(lambda found: "?" if found[1] else found[0], unquoted))
    return " ".join(words.split())


def user_frame(traceback: str) -> str:
    """File and function of the innermost frame of user code, or of a library if there is no other; "" without one."""
    frames = _FRAME.findall(traceback.rpartition(_SECTION)[2])
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    if not own:
        return ""
    path, function = own[-1]
    return f"{_FOLDER.split(path)[-1]}:{function.strip()}"


# Many jobs that fail at one time do so with the same words.
@lru_cache(maxsize=4096)
def _fingerprint(kind: str, message: str, traceback: str) -> str:
    facts = "\x1f".join((kind, without_values(message), user_frame(traceback)))
    return hashlib.sha256(facts.encode(errors="backslashreplace")).hexdigest()[:DIGITS]


def _generic(word: re.Match[str]) -> str:
    text = word[0]
    return "#" if any(sign.isdigit() for sign in text) else text
