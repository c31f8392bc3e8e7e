"""Texts that are too large for their item: a payload, a result or an error, cut into pieces that lie beside the job."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from treadle.engines.dynamodb.items import Item, ItemKey, Value, beside, key_of, plain
from treadle.engines.rows import small
from treadle.model import Job, holds_nul

MAX_INLINE = 600  # bytes of such a text that stay in the item: with them it is under 1 KB, one write unit
PIECE_SIZE = 380_000  # bytes; an item holds 400 KB with all its names
LARGE_FIELDS = ("payload", "result", "last_error")


def text_item(name: str, text: bytes) -> Item:
    """A text as an attribute; if it is too large, only what its pieces are found by."""
    if len(text) <= MAX_INLINE:
        return {name: {"S": text.decode()}}
    item: Item = {f"{name}_size": {"N": str(len(text))}}
    return item | {f"{name}_hash": {"S": _hash(text)}} if len(text) > PIECE_SIZE else item


def large_texts(job: Job) -> dict[str, bytes]:
    """The texts of a job that may be too large for an item, by attribute."""
    texts = {"payload": job.payload_json, "result": job.result_json, "last_error": small(job.error)}
    found = {}
    for name, text in texts.items():
        if text is not None:
            check_text(text)
            found[name] = text.encode()
    return found


def check_text(text: str) -> None:
    if "\0" in text or holds_nul(text):
        raise ValueError("holds a NUL character, which not every store takes")


def job_pieces(job: Job, names: Sequence[str]) -> dict[ItemKey, Item]:
    """The pieces of those of these texts that are too large."""
    texts = {name: text for name, text in large_texts(job).items() if name in names and len(text) > MAX_INLINE}
    return {key_of(piece): piece for name, text in texts.items() for piece in pieces_of(job.id, name, text)}


def pieces_of(owner: str, name: str, text: bytes) -> Iterator[Item]:
    """A text in as many items as it needs; `owner` is the job's id, or the schedule's subject."""
    keys = _keys(owner, name, len(text), _hash(text))
    for key, start in zip(keys, range(0, len(text), PIECE_SIZE), strict=True):
        yield {**key.attributes, "piece": {"B": text[start : start + PIECE_SIZE]}}


def large_names(item: Mapping[str, Value]) -> list[str]:
    """Which texts of this item lie in pieces."""
    return [name for name in LARGE_FIELDS if f"{name}_size" in item]


def piece_keys(owner: str, item: Mapping[str, Value], name: str) -> list[ItemKey]:
    values = plain(item)
    return _keys(owner, name, int(values[f"{name}_size"]), values.get(f"{name}_hash", ""))


def joined(pieces: list[Item]) -> str:
    """The text in these pieces, as they were read (base64) or as they are to be written (bytes)."""
    parts = (piece["piece"]["B"] for piece in pieces)
    return b"".join(part if isinstance(part, bytes) else base64.b64decode(part) for part in parts).decode()


def _keys(owner: str, name: str, size: int, digest: str) -> list[ItemKey]:
    """One piece is overwritten by the next text; several lie beside those of the next, or a reader might mix them."""
    number = (size + PIECE_SIZE - 1) // PIECE_SIZE
    stem = name if number == 1 else f"{name}#{digest}"
    return [ItemKey(beside(owner), f"{stem}#{index}") for index in range(number)]


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()[:16]
