"""The REST API of a store: `treadle serve`, `serve(app, Address(…))`, or `asgi(app)` in an application of yours."""

from typing import TYPE_CHECKING, Any

from treadle.server.api import asgi
from treadle.server.principal import Principal

if TYPE_CHECKING:
    from treadle.server.run import Address, serve

__all__ = ["Address", "Principal", "asgi", "serve"]


def __getattr__(name: str) -> Any:
    """What needs uvicorn, when it is asked for: an ASGI application may be served by another server."""
    if name not in ("Address", "serve"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from treadle.server import run  # noqa: PLC0415

    return getattr(run, name)
