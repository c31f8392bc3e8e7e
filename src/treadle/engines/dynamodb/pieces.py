"""What is too large for one item."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from treadle.engines.dynamodb.items import Item, Place, Value, place_of, plain
from treadle.engines.rows import small
from treadle.model import Job, holds_nul

INLINE = 600  # bytes of a payload, result or error that stay in the item: with them it is under 1 KB, one write unit
PIECE = 380_000  # bytes in one item of a larger one; the store takes 400 KB with all names
SPILLED = ("payload", "result", "last_error")


def text_item(name: str, text: bytes) -> Item:
    """A text as an attribute; of one that is too large, only what its pieces are found by."""
    if len(text) <= INLINE:
        return {name: {"S": text.decode()}}
    item: Item = {f"{name}_size": {"N": str(len(text))}}
    return item | {f"{name}_hash": {"S": _hash(text)}} if len(text) > PIECE else item


def spilling(job: Job) -> dict[str, bytes]:
    """The texts that may be too large for an item, by attribute."""
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


# -------------------------------------------------------------------------------- what is too large


def spilled_names(item: Mapping[str, Value]) -> list[str]:
    return [name for name in SPILLED if f"{name}_size" in item]


def pieces_of(job_id: str, name: str, text: bytes) -> Iterator[Item]:
    """A text in as many items as it needs."""
    for place, start in zip(_places(job_id, name, len(text), _hash(text)), range(0, len(text), PIECE), strict=True):
        yield {**place.key, "piece": {"B": base64.b64encode(text[start : start + PIECE]).decode()}}


def piece_places(job_id: str, item: Mapping[str, Value], name: str) -> list[Place]:
    at = plain(item)
    return _places(job_id, name, int(at[f"{name}_size"]), at.get(f"{name}_hash", ""))


def _places(job_id: str, name: str, size: int, digest: str) -> list[Place]:
    """One piece is overwritten by the next text; several lie beside those of the next, or a reader might mix them."""
    number = (size + PIECE - 1) // PIECE
    stem = name if number == 1 else f"{name}#{digest}"
    return [Place(f"large#{job_id}", f"{stem}#{place}") for place in range(number)]


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()[:16]


def joined(pieces: list[Item]) -> str:
    return b"".join(base64.b64decode(piece["piece"]["B"]) for piece in pieces).decode()


def job_pieces(job: Job, names: Sequence[str]) -> dict[Place, Item]:
    """The items of what is too large of these texts."""
    texts = {name: text for name, text in spilling(job).items() if name in names and len(text) > INLINE}
    return {place_of(piece): piece for name, text in texts.items() for piece in pieces_of(job.id, name, text)}
