"""The REST API of a store: `treadle serve`, or `asgi(app)` mounted in an ASGI application of your own."""

from treadle.server.api import asgi
from treadle.server.principal import Principal

__all__ = ["Principal", "asgi"]
